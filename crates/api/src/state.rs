//! What the routes work with: everything is handed in by the wiring, so that this crate names no concrete
//! store, parser or scheduler.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, RwLock};

use jiff::Timestamp;
use object_store::ObjectStore;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tenure_clock::{Clock, Entropy};
use tenure_lease::{FenceStore, LeaseRecord, LeaseStore, RenewalStatus, Tenure};
use tenure_model::{DagSpec, EmbeddedFile, TenantId};
use tenure_outlook::Policy;
use tenure_store::{SharedStore, Trigger};
use tokio::sync::watch;
use utoipa::ToSchema;

/// Cloning shares everything.
#[derive(Clone)]
pub struct ApiState {
    pub store: SharedStore,
    /// Where leases are kept: the state database itself, or another backend.
    pub leases: Arc<dyn LeaseStore>,
    /// The state database, whatever the leases are kept in.
    pub fences: Arc<dyn FenceStore>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub token: TokenDigest,
    pub logs: Arc<dyn ObjectStore>,
    pub parser: DagParser,
    /// What makes a node good, for whoever asks where a task would go.
    pub placement: Policy,
    /// What is wrong in the watched folder right now.
    pub import_errors: Arc<RwLock<Vec<ImportError>>>,
    pub health: Arc<dyn HealthSource>,
    pub metrics: Arc<Registry>,
    /// Changes after every pass that this process has committed. Only a hint to look again.
    pub changes: watch::Receiver<u64>,
    /// What `GET /api/tenure/info` adds to the version: data folder, profile, address.
    pub info: Value,
}

impl fmt::Debug for ApiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiState").field("info", &self.info).finish_non_exhaustive()
    }
}

impl ApiState {
    /// Until users and roles come, whoever has the token is this one.
    pub(crate) const ADMIN: &'static str = "admin";

    pub(crate) fn tenant(&self) -> TenantId {
        TenantId::default_tenant()
    }

    pub(crate) fn trigger(&self) -> Trigger {
        Trigger { tenant: self.tenant(), actor: Self::ADMIN.into(), at: self.clock.now() }
    }
}

/// Turns the text of a dag file into a spec: file name, text, and the files sent along.
pub type DagParser = Arc<dyn Fn(&str, &str, Attachments) -> Result<DagSpec, Vec<Diagnostic>> + Send + Sync>;

/// Scripts that a dag file names, by their name in the run.
pub type Attachments = BTreeMap<String, EmbeddedFile>;

/// One problem in a dag file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Diagnostic {
    pub file: String,
    /// Counted from one, like the column.
    pub line: usize,
    pub column: usize,
    /// `tasks.load.needs[0]`; empty for the file as a whole.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A file of the watched folder that is not in force because of its problems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ImportError {
    /// As `DagRegistration::origin` names it.
    pub file: String,
    pub at: Timestamp,
    pub diagnostics: Vec<Diagnostic>,
}

/// The admin token, kept only as a digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// As a store keeps it.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `None`: it is no digest.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        let pairs = text
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        if text.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            *byte = pair?;
        }
        Some(Self(digest))
    }

    /// Takes equally long for every wrong token, as far as this code decides it: digests of equal length
    /// are compared without an early end.
    pub fn matches(&self, token: &str) -> bool {
        let other = Self::of(token);
        self.0.iter().zip(other.0).fold(0, |differences, (ours, theirs)| differences | (ours ^ theirs)) == 0
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}

/// What this process knows about its own scheduling.
pub trait HealthSource: Send + Sync {
    /// Cheap and without waiting: it is called by every probe.
    fn health(&self) -> SchedulerHealth;
}

#[derive(Clone, Debug)]
pub struct SchedulerHealth {
    /// `Err` says why nothing can be scheduled yet, or any more.
    pub ready: Result<(), String>,
    /// When one of its shards last went round.
    pub last_pass_at: Option<Timestamp>,
    /// The shards, whoever owns them.
    pub scopes: Vec<ScopeHealth>,
    pub controller: Option<ScopeHealth>,
}

/// «It leads» and «its last renewal succeeded» are two facts; both are shown.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScopeHealth {
    pub scope: String,
    /// Of the holder known here, which is this process while `leading`.
    pub owner: Option<String>,
    /// How others reach the owner.
    pub address: Option<String>,
    pub epoch: Option<u64>,
    /// This process may act in the scope now.
    pub leading: bool,
    pub last_renewal_succeeded: bool,
    pub renewed_at: Option<Timestamp>,
    pub valid_for_ms: u64,
    /// When this process last went round in it.
    pub last_pass_at: Option<Timestamp>,
    /// What is wrong, or why it does not go round.
    pub problem: Option<String>,
}

impl ScopeHealth {
    pub fn of(tenure: &Tenure) -> Self {
        let RenewalStatus { leading, last_renewal_succeeded, renewed_at, valid_for } =
            tenure.renewal_status();
        Self {
            scope: tenure.scope().to_string(),
            owner: Some(tenure.record().holder.to_string()),
            address: tenure.record().holder.address.clone(),
            epoch: Some(tenure.epoch().0),
            leading,
            last_renewal_succeeded,
            renewed_at: Some(renewed_at),
            valid_for_ms: valid_for.as_millis() as u64,
            last_pass_at: None,
            problem: None,
        }
    }

    /// Held by another process, or by nobody, as its record says.
    pub fn elsewhere(record: &LeaseRecord) -> Self {
        let holder = Some(&record.holder).filter(|_| record.is_held());
        Self {
            owner: holder.map(|holder| holder.to_string()),
            address: holder.and_then(|holder| holder.address.clone()),
            epoch: Some(record.epoch.0),
            ..Self::campaigning(record.scope.to_string())
        }
    }

    /// Wanted, and held by nobody here.
    pub fn campaigning(scope: impl Into<String>) -> Self {
        Self {
            scope: scope.into(),
            owner: None,
            address: None,
            epoch: None,
            leading: false,
            last_renewal_succeeded: false,
            renewed_at: None,
            valid_for_ms: 0,
            last_pass_at: None,
            problem: None,
        }
    }
}
