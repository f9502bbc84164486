//! The contract of a state database, in domain verbs. Each verb is one transaction.
//!
//! Five traits, five kinds of caller: [`SchedulingStore`] for the owner of a shard (its writes are
//! fenced), [`IntentStore`] for users and agents (guarded by the state they expect, and every change
//! that an owner must notice leaves an *attention* row in the same transaction, or a new version of the
//! [`Limits`], which concern every owner), [`ChoreStore`] for the controller that tidies up, [`IdentityStore`]
//! for the door that nodes come in by, [`Views`] for screens.
//! SQL lives in the crates that implement them; `tenure-store-conformance` holds them to one behaviour.
//!
//! How writers are kept apart: a run has a `revision` that every transaction touching the run or its
//! task instances advances. The owner writes under the revision it has cached; when a user's clear got
//! in between, the owner's change to that run, and to that run alone, is a conflict: evict, reload,
//! plan again.

mod derived;
mod drain;
pub mod edit;
mod error;
mod identity;
mod intent;
mod scheduling;
pub mod shares;
mod specs;
mod views;

use std::sync::Arc;

use tenure_lease::{FenceStore, LeaseStore};

pub use derived::{next_tick, request_fingerprint};
pub use drain::{Drain, DrainStage, drain_scope};
pub use edit::RunEdit;
pub use error::{BoxError, StoreError};
pub use identity::{
    IdentityStore, Join, JoinTokenRecord, LONGEST_JOIN_TOKEN, NewJoinToken, NodeIdentity, RemovedNode,
    Renewal, cannot_renew, digest_in_use, name_in_use, removed_since, unknown_join_token,
};
pub use intent::{
    CONTROLLER_SCOPE, ChoreStore, ClearRequest, ClearSelection, Cleared, CreateRunOutcome, DagRegistration,
    IntentStore, MarkRequest, NodeRecord, NodeRegistration, PoolRecord, Quota, Registered, Trigger,
};
pub use scheduling::{
    Attention, AttentionItem, AuditEntry, Bid, CachedTi, Committed, Common, DagSchedule, DagVersion,
    DagVersionName, Limits, LoadedRuns, Look, NewRunOutcome, Pass, PastRun, RunChange, RunHeader,
    RunSnapshot, ScheduleChange, SchedulingStore, ShardSnapshot, Share, StateChange, TiChange, TryRecord,
    fallen,
};
pub use specs::SpecCache;
pub use views::{
    AuditQuery, AuditView, DagActivity, DagQuery, DagView, Occupancy, Page, Paging, PresenceView, RunQuery,
    RunView, TiQuery, TiView, TryView, VersionView, Views, Waiting,
};

/// A whole state database.
pub trait Store:
    SchedulingStore + IntentStore + IdentityStore + ChoreStore + Views + LeaseStore + FenceStore
{
}
impl<T: SchedulingStore + IntentStore + IdentityStore + ChoreStore + Views + LeaseStore + FenceStore> Store
    for T
{
}

pub type SharedStore = Arc<dyn Store>;
