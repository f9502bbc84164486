//! What users and agents ask for. Not fenced: guarded by the state it expects, and followed by an
//! attention row for the shard's owner.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_lease::EpochGuard;
use tenure_model::state::Mark;
use tenure_model::{
    Ack, DagId, DagSpec, NewRun, NodeId, PoolName, QueueName, Report, Resources, RunId, RunState, Taint,
    TaskId, TenantId,
};

use crate::{AuditEntry, Drain, DrainStage, RunHeader, RunView, StoreError, TiView, VersionView};

#[async_trait]
pub trait IntentStore: Send + Sync {
    /// Makes a dag version the one in force. The same content again changes nothing.
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError>;

    async fn set_paused(&self, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), StoreError>;

    /// Forgets a dag with its versions, runs and task instances. A run that is still active is a conflict.
    async fn delete_dag(&self, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError>;

    /// Creates a run with its task instances, all untouched.
    async fn create_run(&self, trigger: &Trigger, run: &NewRun) -> Result<CreateRunOutcome, StoreError>;

    /// Forgets a finished run.
    async fn delete_run(&self, trigger: &Trigger, dag: &DagId, run: &RunId) -> Result<(), StoreError>;

    /// Ends a run, or (with `Queued`) sends it round again: running task instances take the state and are
    /// stopped, pending ones are skipped, finished ones stay.
    async fn set_run_state(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        state: RunState,
    ) -> Result<RunView, StoreError>;

    async fn set_run_note(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        note: Option<&str>,
    ) -> Result<RunView, StoreError>;

    /// Sends task instances round again, as `request` selects them.
    async fn clear(&self, trigger: &Trigger, request: &ClearRequest) -> Result<Cleared, StoreError>;

    /// Declares task instances to be in a terminal state; what had failed below them is cleared, and a finished
    /// run goes round again. Answers with everything it has changed, as it is now.
    async fn mark(&self, trigger: &Trigger, request: &MarkRequest) -> Result<Vec<TiView>, StoreError>;

    async fn put_pool(&self, trigger: &Trigger, pool: &PoolRecord) -> Result<(), StoreError>;

    /// A pool that unfinished tasks may name is kept by those: they wait until it is there again.
    async fn delete_pool(&self, trigger: &Trigger, pool: &PoolName) -> Result<(), StoreError>;

    /// What runs already goes on, even if it is more than that.
    async fn put_quota(&self, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError>;

    async fn delete_quota(&self, trigger: &Trigger, tenant: &TenantId) -> Result<(), StoreError>;

    /// A node (re)appears with what it has. Nothing new about it disturbs nobody.
    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError>;

    /// From now on the node gets nothing new; what runs there may finish until `deadline`. Asked for again, the drain
    /// that is going on gets the new deadline.
    async fn drain_node(
        &self,
        trigger: &Trigger,
        node: &NodeId,
        deadline: Timestamp,
    ) -> Result<NodeRecord, StoreError>;

    /// The node takes work again. One that is not being drained stays as it is.
    async fn undrain_node(&self, trigger: &Trigger, node: &NodeId) -> Result<NodeRecord, StoreError>;

    /// What agents say, for whoever owns the run: each report is guarded by its attempt id and answered by itself,
    /// in order. The owner gets attention, and a plan that it made meanwhile becomes a conflict. So it does when a claim
    /// is repeated, which changes nothing else: the attempt is about to start, and must not be given up unseen.
    async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError>;

    /// The digest of the token that administrators show. The first one offered is kept; `None`: there is none yet.
    async fn admin_token(&self, offered: Option<&str>) -> Result<Option<String>, StoreError>;
}

/// The scope whose leader does the chores.
pub const CONTROLLER_SCOPE: &str = "controller/leader";

/// Chores for the whole database, for whoever leads [`CONTROLLER_SCOPE`] (or what the verb names); any other authority
/// is a conflict.
#[async_trait]
pub trait ChoreStore: Send + Sync {
    /// Forgets runs that finished before `before`, with all that belongs to them but their audit, at most `limit` of
    /// them, the oldest first. The newest run of each dag stays, and so does the one with its latest logical date,
    /// which the next may depend on. An audit row says that a run is gone. Answers with how many are.
    async fn delete_old_runs(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError>;

    /// Forgets audit rows from before `before`, at most `limit` of them, oldest first.
    async fn delete_old_audit(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError>;

    /// Moves the drain of a node that began at `since` on to a later stage, under the lease of
    /// [`drain_scope`](crate::drain_scope) and no other. Every shard gets attention. `false`: the node is gone, is no
    /// longer being drained, or has come that far.
    async fn advance_drain(
        &self,
        guard: &EpochGuard<'_>,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError>;

    /// Forgets leases, ended terms, and presence rows that ran out before `before` and that nobody can still need:
    /// numbered seats of members that are gone, replicas that no longer report. Fences stay for ever.
    async fn delete_old_members(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError>;

    /// Tells of signals in the audit trail, and keeps `open`, what is to be remembered of them, in their place for
    /// the next leader: both or neither.
    async fn tell_signals(
        &self,
        guard: &EpochGuard<'_>,
        at: Timestamp,
        entries: &[AuditEntry],
        open: &str,
    ) -> Result<(), StoreError>;

    /// What the last [`tell_signals`](Self::tell_signals) has kept. `None`: there never was one.
    async fn open_signals(&self) -> Result<Option<String>, StoreError>;
}

/// Who asks, for whom, and when.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub tenant: TenantId,
    /// `admin`, `dags folder`.
    pub actor: String,
    pub at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct DagRegistration {
    pub trigger: Trigger,
    pub spec: DagSpec,
    /// The text it was parsed from.
    pub source: String,
    /// Where that came from: a file name, `api`.
    pub origin: String,
    /// For a dag that is new; one that exists keeps what its users chose.
    pub paused_if_new: bool,
}

#[derive(Clone, Debug)]
pub struct Registered {
    pub version: VersionView,
    /// False: this content was in force already.
    pub changed: bool,
    pub new_dag: bool,
}

#[derive(Clone, Debug)]
pub enum CreateRunOutcome {
    Created(RunHeader),
    /// The same idempotency key with the same request came before.
    Replayed(RunHeader),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClearRequest {
    pub dag: DagId,
    pub run: RunId,
    pub selection: ClearSelection,
    /// Keep only failed and upstream-failed task instances.
    pub only_failed: bool,
    /// Keep only running ones.
    pub only_running: bool,
    /// Also what comes before, or after, each selected task in the graph.
    pub upstream: bool,
    pub downstream: bool,
    /// Also the same tasks in runs with an earlier, or later, logical date.
    pub past: bool,
    pub future: bool,
    /// Finished runs go back to `queued`; otherwise the run's state is left alone.
    pub reset_runs: bool,
    /// Follow the newest dag version: tasks it no longer has become `removed`, new ones are added.
    pub latest_version: bool,
    /// Say what would be cleared and change nothing.
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClearSelection {
    All,
    Tasks(Vec<TaskId>),
}

#[derive(Clone, Debug)]
pub struct Cleared {
    /// As they were before.
    pub tis: Vec<TiView>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MarkRequest {
    pub dag: DagId,
    pub run: RunId,
    pub task: TaskId,
    /// `None`: every map index.
    pub map_index: Option<i32>,
    pub mark: Mark,
    pub upstream: bool,
    pub downstream: bool,
    pub past: bool,
    pub future: bool,
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub name: PoolName,
    pub slots: u32,
    pub description: String,
}

/// What the tasks of a tenant may take of all nodes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub tenant: TenantId,
    /// Of what is not named there is no limit. `tasks` counts tasks.
    pub most: Resources,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeRegistration {
    pub node: NodeId,
    pub capacity: Resources,
    pub labels: BTreeMap<String, String>,
    /// What keeps tasks away that do not tolerate it.
    pub taints: BTreeSet<Taint>,
    /// It gets tasks of these queues and of no other.
    pub queues: BTreeSet<QueueName>,
    /// The agent's version.
    pub version: String,
}

impl NodeRegistration {
    /// A node as it is when nobody says anything about it but what it has: no labels, no taints, the default queue.
    pub fn new(node: NodeId, capacity: Resources, version: impl Into<String>) -> Self {
        Self {
            node,
            capacity,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            queues: BTreeSet::from([QueueName::default()]),
            version: version.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub node: NodeId,
    pub capacity: Resources,
    pub labels: BTreeMap<String, String>,
    pub taints: BTreeSet<Taint>,
    pub queues: BTreeSet<QueueName>,
    pub version: String,
    /// When its agent last came to some replica.
    pub registered_at: Timestamp,
    /// An operator empties it.
    pub drain: Option<Drain>,
    /// It is no longer a node, and is here because it still holds something.
    pub removed: bool,
}

impl NodeRecord {
    /// Whether anything new may go there.
    pub fn takes_work(&self) -> bool {
        self.drain.is_none() && !self.removed
    }
}
