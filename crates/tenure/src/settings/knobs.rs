//! The table of settings: names, defaults, help. Flags, variables and the config file all follow it.

use super::{Edition, Profile};
use crate::discovery::DEFAULT_DATA_FOLDER;

#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// As the config file names it.
    pub key: &'static str,
    /// What stands for the value in a help text.
    pub value: &'static str,
    pub group: Group,
    pub default: Default,
    pub about: &'static str,
    /// Without a meaning to `tenure up`.
    pub server_only: bool,
}

/// How settings are grouped in help texts and in the example file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Place,
    Database,
    Leases,
    Scheduling,
    Placement,
    Signals,
    Retention,
}

impl Group {
    /// `None`: with those that every command has.
    pub fn heading(self) -> Option<&'static str> {
        match self {
            Self::Place => None,
            Self::Database => Some("Database"),
            Self::Leases => Some("Leases"),
            Self::Scheduling => Some("Scheduling"),
            Self::Placement => Some("Placement"),
            Self::Signals => Some("Signals"),
            Self::Retention => Some("Retention"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// Not set, or made out from something else.
    None,
    Same(&'static str),
    PerProfile {
        lite: &'static str,
        pro: &'static str,
    },
    PerCommand {
        up: &'static str,
        server: &'static str,
    },
}

impl Default {
    pub fn of(self, edition: Edition, profile: Profile) -> Option<&'static str> {
        match (self, edition, profile) {
            (Self::None, ..) => None,
            (Self::Same(value), ..) => Some(value),
            (Self::PerProfile { lite, .. }, _, Profile::Lite) => Some(lite),
            (Self::PerProfile { pro, .. }, _, Profile::Pro) => Some(pro),
            (Self::PerCommand { up, .. }, Edition::Up, _) => Some(up),
            (Self::PerCommand { server, .. }, Edition::Server, _) => Some(server),
        }
    }
}

impl Knob {
    pub fn find(key: &str) -> Option<&'static Self> {
        KNOBS.iter().find(|knob| knob.key == key)
    }

    /// `--claim-timeout`, without its dashes.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    pub fn variable(&self) -> String {
        format!("TENURE_{}", self.key.to_uppercase())
    }

    /// For help texts: what holds where nothing is said.
    pub fn default_text(&self, edition: Edition) -> Option<String> {
        match self.default {
            Default::None => None,
            Default::PerProfile { lite, pro } => Some(format!("lite {lite}, pro {pro}")),
            same => same.of(edition, Profile::Lite).map(str::to_owned),
        }
    }
}

const fn knob(
    key: &'static str,
    value: &'static str,
    group: Group,
    default: Default,
    about: &'static str,
) -> Knob {
    Knob { key, value, group, default, about, server_only: false }
}

const fn of_server(knob: Knob) -> Knob {
    Knob { server_only: true, ..knob }
}

/// In the order in which people read them.
pub const KNOBS: &[Knob] = &[
    knob(
        "listen",
        "ADDR",
        Group::Place,
        Default::Same("127.0.0.1:8080"),
        "Address to listen on, for the API (and for agents); port 0 takes any free one",
    ),
    knob(
        "advertise",
        "URL",
        Group::Place,
        Default::None,
        "How others reach this process, like https://10.0.0.7:8080 [default: from --listen, or the host's name]",
    ),
    knob(
        "tls_cert",
        "FILE",
        Group::Place,
        Default::None,
        "Serve TLS, and nothing else, with the certificates in this file (PEM, the server's own first)",
    ),
    knob(
        "tls_key",
        "FILE",
        Group::Place,
        Default::None,
        "The private key of the first certificate in --tls-cert (PEM)",
    ),
    of_server(knob(
        "identity_lifetime",
        "TIME",
        Group::Place,
        Default::Same("24h"),
        "How long the identity of a node that has joined lasts; its agent renews it when half of that has passed",
    )),
    knob(
        "data",
        "DIR",
        Group::Place,
        Default::Same(DEFAULT_DATA_FOLDER),
        "Folder for what this process keeps to itself; made if it is not there",
    ),
    knob(
        "logs",
        "DIR",
        Group::Place,
        Default::None,
        "Folder for the logs of tasks; shared by the replicas of a cluster [default: logs in --data]",
    ),
    knob(
        "dags",
        "DIR",
        Group::Place,
        Default::None,
        "Folder of dag files; it is watched [default of tenure up: ./dags]",
    ),
    knob(
        "profile",
        "PROFILE",
        Group::Place,
        Default::None,
        "Which defaults to take: lite or pro [default: lite on SQLite, pro on Postgres]",
    ),
    knob(
        "database_url",
        "URL",
        Group::Database,
        Default::None,
        "The state's database: postgres://user:password@host/database",
    ),
    knob(
        "database_connections",
        "COUNT",
        Group::Database,
        Default::PerProfile { lite: "8", pro: "16" },
        "Connections to Postgres for scheduling and the API; about ten more are for leases and wakes",
    ),
    knob(
        "statement_timeout",
        "TIME",
        Group::Database,
        Default::Same("30s"),
        "When Postgres gives up on a statement",
    ),
    knob(
        "epochs",
        "HOW",
        Group::Database,
        Default::Same("count"),
        "How epochs grow on Postgres: count, or clock where a failover may lose the newest commits",
    ),
    of_server(knob(
        "shards",
        "COUNT",
        Group::Database,
        Default::PerCommand { up: "1", server: "16" },
        "Into how many shards a new database is divided; one that exists keeps its number",
    )),
    of_server(knob(
        "leases",
        "WHERE",
        Group::Leases,
        Default::Same("postgres"),
        "Where leases are kept: postgres, or etcd://host:port[,host:port][/prefix]",
    )),
    knob(
        "lease_duration",
        "TIME",
        Group::Leases,
        Default::Same("10s"),
        "How long a frozen or cut-off replica can keep its shards from others",
    ),
    knob(
        "on_loss",
        "POLICY",
        Group::Leases,
        Default::Same("demote"),
        "What losing a shard does: demote (serve on, stand again) or exit (end the process with code 73)",
    ),
    knob(
        "tick",
        "TIME",
        Group::Scheduling,
        Default::Same("1s"),
        "The longest time between two looks at the database, for wakes that were lost",
    ),
    knob(
        "claim_timeout",
        "TIME",
        Group::Scheduling,
        Default::Same("1m"),
        "When a task that was handed out and that no agent has claimed is placed anew",
    ),
    knob(
        "heartbeat_threshold",
        "TIME",
        Group::Scheduling,
        Default::Same("1m30s"),
        "When the tasks of an agent that says nothing are given up",
    ),
    knob(
        "orphan_threshold",
        "TIME",
        Group::Scheduling,
        Default::Same("5m"),
        "When a run in which nothing can happen any more is ended",
    ),
    knob(
        "dispatch_workers",
        "COUNT",
        Group::Scheduling,
        Default::PerProfile { lite: "1", pro: "16" },
        "How many tasks are being handed to agents at once",
    ),
    knob(
        "dispatch_queue",
        "COUNT",
        Group::Scheduling,
        Default::PerProfile { lite: "1", pro: "256" },
        "How many more wait to be handed out; the rest stay scheduled",
    ),
    knob(
        "placement_strategy",
        "HOW",
        Group::Placement,
        Default::Same("spread"),
        "Which node is taken where several would do: the emptiest (spread) or the fullest (pack)",
    ),
    knob(
        "placement_load",
        "WEIGHT",
        Group::Placement,
        Default::Same("10"),
        "How much it counts how full a node is",
    ),
    knob(
        "placement_preferred",
        "WEIGHT",
        Group::Placement,
        Default::Same("20"),
        "How much it counts that a node has the labels a task prefers",
    ),
    knob(
        "placement_spread",
        "WEIGHT",
        Group::Placement,
        Default::Same("40"),
        "How much it counts that a dag's tasks are spread over a label, where they ask for it",
    ),
    knob(
        "placement_failed_here",
        "WEIGHT",
        Group::Placement,
        Default::Same("80"),
        "How much it counts against a node that the task's previous try failed there",
    ),
    knob(
        "placement_failed_lately",
        "WEIGHT",
        Group::Placement,
        Default::Same("5"),
        "How much it counts against a node that any attempt failed there in the last ten minutes",
    ),
    knob(
        "placement_locality",
        "WEIGHT",
        Group::Placement,
        Default::Same("2"),
        "How much it counts that what the task needs has run on the node in the same run",
    ),
    knob(
        "placement_preemption",
        "on|off",
        Group::Placement,
        Default::Same("off"),
        "Whether tasks that find no room stop running ones of a lower priority, which are placed again later",
    ),
    knob(
        "signals_webhook",
        "URL",
        Group::Signals,
        Default::None,
        "Where to POST what capacity is missing and which nodes could go, like https://scaler.internal/tenure",
    ),
    knob(
        "signals_shortage_after",
        "TIME",
        Group::Signals,
        Default::Same("1m"),
        "How long tasks must have fitted on no node before that is told",
    ),
    knob(
        "signals_idle_after",
        "TIME",
        Group::Signals,
        Default::Same("10m"),
        "How long a node must have had nothing to do before that is told",
    ),
    knob(
        "signals_keep_nodes",
        "COUNT",
        Group::Signals,
        Default::Same("1"),
        "How many connected nodes are never told to be idle",
    ),
    knob(
        "signals_interval",
        "TIME",
        Group::Signals,
        Default::Same("30s"),
        "The least time between two signals; what comes about meanwhile is told together",
    ),
    knob(
        "keep_runs",
        "TIME",
        Group::Retention,
        Default::PerProfile { lite: "off", pro: "90d" },
        "How long finished runs are kept; off keeps them for ever",
    ),
    knob(
        "keep_audit",
        "TIME",
        Group::Retention,
        Default::PerProfile { lite: "off", pro: "365d" },
        "How long the audit trail is kept; off keeps it for ever",
    ),
];
