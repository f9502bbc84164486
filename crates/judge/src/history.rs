//! What a run of the harness leaves behind, as plain data: the audit trail, the final tables, what clients were
//! told, what tasks did, and which faults were injected when.
//!
//! A checker must not trust the words of what it checks, so nothing here is a type of the product. Every instant is
//! wall-clock time of the one machine that everything ran on. A history can be saved and checked again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// In the order of `seq`.
    pub trail: Vec<TrailRow>,
    pub runs: Vec<RunRow>,
    pub tasks: Vec<TaskRow>,
    /// Tries that were followed by another one.
    pub tries: Vec<TryRow>,
    /// Empty where another system keeps the leases.
    pub terms: Vec<TermRow>,
    pub fences: Vec<FenceRow>,
    pub schedules: Vec<Schedule>,
    pub calls: Vec<Call>,
    pub effects: Vec<Effect>,
    pub faults: Vec<Fault>,
    /// What there is on nodes and in pools; of those that are not named nothing is promised.
    #[serde(default)]
    pub rooms: Vec<Room>,
    #[serde(default)]
    pub needs: Vec<Need>,
    pub limits: Limits,
    /// When everything was read. Nothing is expected of what fell due just before.
    pub ended_at: Timestamp,
}

/// One transaction's words about one run or dag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrailRow {
    pub seq: i64,
    /// As the database has it, not as the writer says.
    pub committed_at: Timestamp,
    pub run: Option<RunName>,
    pub actor: String,
    /// Whose authority it was written under; users and agents need none.
    pub scope: Option<String>,
    pub epoch: Option<u64>,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(default)]
    pub task: Option<String>,
    pub event: String,
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub try_number: Option<u32>,
    #[serde(default)]
    pub attempt: Option<String>,
    #[serde(default)]
    pub node: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunName {
    pub dag: String,
    pub run: String,
}

impl RunName {
    pub fn new(dag: impl Into<String>, run: impl Into<String>) -> Self {
        Self { dag: dag.into(), run: run.into() }
    }
}

impl std::fmt::Display for RunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.dag, self.run)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    pub name: RunName,
    pub shard: u16,
    pub state: String,
    /// Made by a timetable, not by a client.
    pub scheduled: bool,
    pub logical_date: Option<Timestamp>,
    pub idempotency_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    pub run: RunName,
    pub task: String,
    pub state: String,
    pub try_number: u32,
    pub attempt: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TryRow {
    pub run: RunName,
    pub task: String,
    pub try_number: u32,
    pub attempt: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TermRow {
    pub scope: String,
    pub epoch: u64,
    pub term: String,
    pub holder: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FenceRow {
    pub scope: String,
    pub epoch: u64,
}

/// A dag that runs by itself, every missed tick included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub dag: String,
    pub first: Timestamp,
    pub every: Duration,
    /// The last instant that may be a tick.
    pub until: Timestamp,
}

/// One thing that a client asked for, whatever it took to ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub what: Asked,
    pub run: RunName,
    pub sent_at: Timestamp,
    pub answered_at: Timestamp,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    Trigger {
        key: String,
    },
    /// With how many task instances the server said it has cleared.
    Clear {
        cleared: usize,
    },
    /// The run's new state, `failed` or `success`.
    End {
        state: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Acknowledged,
    /// Told that it was not done.
    Refused,
    /// No answer ever came: done or not.
    Unknown,
}

/// What one attempt has left on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub attempt: String,
    pub starts: Vec<Start>,
    /// The last sign of life, its end included.
    pub seen_at: Timestamp,
    pub end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub at: Timestamp,
    pub run: RunName,
    pub task: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub at: Timestamp,
    pub code: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Of the scenario: `kill-owner`.
    pub name: String,
    /// What it hit.
    pub target: String,
    pub at: Timestamp,
    pub until: Timestamp,
    /// Nodes that could not speak from `at` to `until`.
    pub silenced: Vec<String>,
    /// What should go on elsewhere.
    pub hit: Vec<Hit>,
    /// How soon each of `hit` should go on.
    pub bound: Duration,
    pub aftermath: Aftermath,
}

/// Whether everybody was well again before the next fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aftermath {
    /// Every replica was ready and every shard owned.
    Whole { at: Timestamp },
    /// The next fault did not wait for it.
    Unwatched,
    /// Somebody waited in vain.
    Broken,
}

/// A scope that a fault has hit, and the epoch it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    pub scope: String,
    pub epoch: u64,
    /// It goes on only under a later epoch.
    pub deposed: bool,
}

/// How much there is of what attempts take up, from the beginning to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub of: Place,
    pub has: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    Node(String),
    Pool(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
        }
    }
}

/// What every attempt of a task takes up, from its placing to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    pub dag: String,
    pub task: String,
    /// Of the node it is on.
    pub of_node: BTreeMap<String, u64>,
    pub pool: String,
    pub of_pool: BTreeMap<String, u64>,
}

/// How long things may take on a busy machine with faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From bound to claimed or taken back.
    pub unclaimed: Duration,
    /// How long a node must have been silent before its tasks may be given up.
    pub silence: Duration,
    /// A tick that was due so shortly before the end may have made no run yet.
    pub tick_lateness: Duration,
    /// What a stopped task may take to end.
    pub stopping: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unclaimed: Duration::from_secs(60),
            silence: Duration::from_secs(90),
            tick_lateness: Duration::from_secs(15),
            stopping: Duration::from_secs(2),
        }
    }
}
