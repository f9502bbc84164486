//! Everything that can be set, in one place: which settings there are, where each value comes from, and whether
//! they make sense together.
//!
//! A value is looked for on the command line, then in the environment, then in the config file, then among the
//! profile's defaults. A setting has one name in all of them: `claim_timeout` in the file, `TENURE_CLAIM_TIMEOUT`
//! in the environment, `--claim-timeout` on the command line. All problems are told at once, each with the place
//! where it was set.

mod check;
mod file;
mod given;
mod knobs;
mod masks;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tenure_lease::LossPolicy;
use tenure_lease_etcd::EtcdOptions;
use tenure_scheduler::{Policy, SignalRules};

use crate::epochs::Epochs;

pub use masks::without_secrets;

pub use given::{Given, ServerSettings, Source, UpSettings};

/// Which command is set up. They differ in what they are wired to, not in what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// `tenure up`: one process with an agent of its own.
    Up,
    /// `tenure server`: one replica of many.
    Server,
}

/// A set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For one machine and a folder.
    Lite,
    /// For replicas, agents elsewhere, and a database that is somebody's job.
    Pro,
}

impl Profile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lite => "lite",
            Self::Pro => "pro",
        }
    }
}

/// Where a cluster keeps its leases. Fences are in the state database in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseBackend {
    Database,
    Etcd(EtcdOptions),
}

/// What a server shows to whoever connects by TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What is in force.
#[derive(Clone, Debug)]
pub struct Settings {
    pub profile: Profile,
    pub listen: SocketAddr,
    /// How others reach this replica; `None`: to be made out from `listen`.
    pub advertise: Option<String>,
    /// Certificate and key; `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// How long a node's own identity lasts, unless it is renewed.
    pub identity_lifetime: Duration,
    pub data: PathBuf,
    /// Where the logs of tasks are kept; `None`: in the data folder.
    pub logs: Option<PathBuf>,
    pub dags: Option<PathBuf>,
    pub database_url: Option<String>,
    pub database_connections: usize,
    pub statement_timeout: Duration,
    pub epochs: Epochs,
    /// For a database that is new.
    pub shards: u16,
    /// Somebody asked for exactly this number.
    pub shards_asked: bool,
    pub leases: LeaseBackend,
    pub lease_duration: Duration,
    pub on_loss: LossPolicy,
    pub tick: Duration,
    pub claim_timeout: Duration,
    pub heartbeat_threshold: Duration,
    pub orphan_threshold: Duration,
    pub dispatch_workers: usize,
    pub dispatch_queue: usize,
    pub placement: Policy,
    pub preemption: bool,
    /// Where signals are sent.
    pub webhook: Option<String>,
    pub signals: SignalRules,
    /// `None`: for ever.
    pub keep_runs: Option<Duration>,
    pub keep_audit: Option<Duration>,
    /// Every setting as it is, for people.
    pub shown: Vec<Shown>,
}

/// One setting with where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub key: &'static str,
    /// Without passwords; `None`: not set, and that is fine.
    pub value: Option<String>,
    pub source: Source,
}

impl Settings {
    pub fn load(edition: Edition, given: &Given) -> Result<Self, Problems> {
        let file = match given.config_file() {
            Some(path) => file::read(path)?,
            None => vec![],
        };
        check::settle(edition, given, file)
    }
}

/// What is wrong with the settings, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests;
