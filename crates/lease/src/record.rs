//! The lease record and the words in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a lease is for: `scheduler/shard-03`, `controller/leader`, or anything a user names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(Arc<str>);

impl Scope {
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(Arc::from(name.as_ref()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fencing token: grows with every term of a scope, never decreases, is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// One unbroken holding of a lease. Chosen by the candidate, so that asking twice is asking once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub Uuid);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who holds a lease. Only the term decides; this is for people, and for finding the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// `host:pid`.
    pub name: String,
    /// Stable across restarts of one installation (its data folder), where there is one.
    pub instance: String,
    /// Where others reach it.
    pub address: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A lease as its store knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub scope: Scope,
    /// The latest holder; `released` or `remaining == 0` says that it holds no longer.
    pub holder: Holder,
    pub term: Term,
    pub epoch: Epoch,
    pub duration: Duration,
    pub acquired_at: Timestamp,
    pub renewed_at: Timestamp,
    pub released: bool,
    /// Until it expires, on the store's clock at the moment of reading. Zero when released.
    pub remaining: Duration,
    /// Grows with every change of this record.
    pub resource_version: u64,
    /// How often the holder has changed.
    pub transitions: u64,
    /// The holder's free-form note.
    pub note: String,
}
