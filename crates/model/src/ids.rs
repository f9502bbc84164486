//! Names and numbers of things, each with a type of its own, so that a run is never passed for a task.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id!(
    /// Whom a row belongs to. One tenant, `default`, until tenants are managed.
    TenantId
);
text_id!(
    /// A workflow's name, unique within its tenant.
    DagId
);
text_id!(
    /// A task's name, unique within its dag.
    TaskId
);
text_id!(
    /// What users call a run, unique within its dag: `manual__2026-01-01T00:00:00Z`.
    RunId
);
text_id!(
    /// A machine with an agent on it.
    NodeId
);
text_id!(PoolName);
text_id!(
    /// A kind of work that only some nodes do. A task waits in one, a node serves several.
    QueueName
);

impl TenantId {
    pub const DEFAULT: &'static str = "default";

    pub fn default_tenant() -> Self {
        Self::new(Self::DEFAULT)
    }
}

impl PoolName {
    /// The pool of every task that names none.
    pub const DEFAULT: &'static str = "default_pool";
    pub const DEFAULT_SLOTS: u32 = 128;

    pub fn default_pool() -> Self {
        Self::new(Self::DEFAULT)
    }
}

impl QueueName {
    /// The queue of every task that names none, and of every node that is not told otherwise.
    pub const DEFAULT: &'static str = "default";

    pub fn is_default(&self) -> bool {
        self.as_str() == Self::DEFAULT
    }
}

impl Default for QueueName {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

/// The database's own number for a run: short, dense, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunKey(pub i64);

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run#{}", self.0)
    }
}

/// A task's number inside one run: its position in the dag version the run was created from.
/// Tasks that a later version brings in when a run is cleared get the numbers after those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskNo(pub u32);

impl TaskNo {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One task instance: a task inside a run, and its map index (−1 for a task that is not mapped).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TiKey {
    pub run: RunKey,
    pub task: TaskNo,
    pub map_index: i32,
}

impl TiKey {
    pub const UNMAPPED: i32 = -1;

    pub fn unmapped(run: RunKey, task: TaskNo) -> Self {
        Self { run, task, map_index: Self::UNMAPPED }
    }

    /// The id that clients see. It changes with every try, and the old one stays valid for history.
    pub fn public_id(self, try_number: u32) -> Uuid {
        let name = format!("{}/{}/{}/{}", self.run.0, self.task.0, self.map_index, try_number);
        Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
    }
}

/// One placement of a task instance on one node. Fresh for every placement, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub Uuid);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slice of the dags. The count is fixed when the database is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The shard of a dag. Stable across releases and machines: it is stored with every dag.
    pub fn of(tenant: &TenantId, dag: &DagId, shards: u16) -> Self {
        let mut hash = Sha256::new();
        hash.update(tenant.as_str());
        hash.update([0]);
        hash.update(dag.as_str());
        let digest = hash.finalize();
        let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        Self((number % u32::from(shards.max(1))) as u16)
    }

    /// The lease scope that guards this shard.
    pub fn scope(self) -> String {
        format!("scheduler/shard-{:02}", self.0)
    }

    /// The shard that a lease scope guards, if it guards one.
    pub fn of_scope(scope: &str) -> Option<Self> {
        let shard = Self(scope.strip_prefix("scheduler/shard-")?.parse().ok()?);
        (shard.scope() == scope).then_some(shard)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard-{:02}", self.0)
    }
}

/// The address of an immutable dag version: the SHA-256 of its canonical JSON.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionHash(Arc<str>);

impl VersionHash {
    pub fn of(canonical: &[u8]) -> Self {
        let digest = Sha256::digest(canonical);
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }

    pub fn from_hex(hex: impl AsRef<str>) -> Self {
        Self(Arc::from(hex.as_ref()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VersionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for VersionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0[..self.0.len().min(12)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_read_back_from_its_scope_and_from_nothing_else() {
        for shard in [0, 7, 15, 100, u16::MAX].map(ShardId) {
            assert_eq!(ShardId::of_scope(&shard.scope()), Some(shard));
        }
        for other in ["scheduler/shard-7", "scheduler/shard-007", "scheduler/shard-", "controller/leader"] {
            assert_eq!(ShardId::of_scope(other), None, "{other}");
        }
    }
}
