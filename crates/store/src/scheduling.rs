//! What the owner of a shard reads and writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_lease::EpochGuard;
use tenure_model::timetable::ScheduleProgress;
use tenure_model::{
    AttemptId, DagId, DagSpec, DataInterval, NewRun, NodeId, PoolName, Resources, RunId, RunKey, RunState,
    RunType, ShardId, TaskId, TaskInstance, TaskNo, TaskState, TenantId, TiKey,
};
use tokio::sync::watch;

use crate::{NodeRecord, PoolRecord, Quota, StoreError};

#[async_trait]
pub trait SchedulingStore: Send + Sync {
    /// How many shards the dags are divided into; fixed when the database is created.
    async fn shard_count(&self) -> Result<u16, StoreError>;

    /// What an owner needs to take over besides the [limits](Self::limits): every dag's schedule, every run that is not
    /// finished (running ones with their task instances), its shares. Finished history is not touched.
    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError>;

    /// What users and other replicas have changed since it was last told so. Items stay until a pass
    /// names them as done, so a crash loses none. One round trip: every owner asks once a second.
    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Look, StoreError>;

    /// Pools, quotas and nodes, at one moment: the version is never newer than what comes with it. Whoever has seen this
    /// version need not ask again until a [`Look`] shows another.
    async fn limits(&self) -> Result<Limits, StoreError>;

    /// Runs as they are now, with their task instances. Runs that no longer exist are left out.
    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError>;

    /// Running runs in which nothing is active and nothing will be tried again, and which nobody has touched since
    /// `untouched_since`: the oldest first. Costs what is running, not what has finished.
    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError>;

    /// Brings a shard's shares as close to its bids as what is free allows, under the fence. Shards that hold some of
    /// what could not be had in full get attention, and so do those that still want what was given back.
    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError>;

    /// This replica hears from these nodes. One row for each replica, however many nodes there are.
    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError>;

    /// Which of these nodes some replica has heard from within this time, by the database's clock.
    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError>;

    /// A dag's schedule as it is now; `None` when it is gone.
    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError>;

    /// Immutable dag versions, in the order asked for. One that is not there or makes no sense costs itself alone.
    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError>;

    async fn dag_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: u32,
    ) -> Result<DagVersion, StoreError> {
        let name = DagVersionName { tenant: tenant.clone(), dag: dag.clone(), version };
        self.dag_versions(&[name]).await?.remove(0)
    }

    /// Takes the versions in force into memory, so that whoever takes a shard over finds them there. Answers with how
    /// many were not there yet.
    async fn read_ahead(&self) -> Result<usize, StoreError>;

    /// The latest run of the dag with an earlier logical date, for tasks that depend on the past.
    async fn past_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        before: Timestamp,
    ) -> Result<Option<PastRun>, StoreError>;

    /// Values that tasks of a run have returned.
    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError>;

    /// Writes everything a pass has decided, in one transaction under the fence. Runs whose revision
    /// has moved are left untouched and named in the answer; the others are committed.
    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError>;

    /// Changes whenever this process has committed something that leaves attention behind for the shard, or that changes
    /// the limits (and, where the database can tell, when another process has). Carries nothing that must not be lost.
    fn wakes(&self, shard: ShardId) -> watch::Receiver<u64>;
}

#[derive(Clone, Debug)]
pub struct ShardSnapshot {
    pub dags: Vec<DagSchedule>,
    /// Finished ones are not there; `Queued` ones come without task instances.
    pub running: Vec<RunSnapshot>,
    pub queued: Vec<RunHeader>,
    /// Runs of which a row makes no sense: they cost nobody else anything.
    pub unreadable: Vec<(RunKey, String)>,
    /// What the shard may use of what all shards draw from.
    pub shares: Vec<Share>,
}

/// What all shards draw from. It is the same for every one of them, so it is read apart from them.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Grows with every transaction that changes any of it, and says nothing else.
    pub version: u64,
    pub pools: Vec<PoolRecord>,
    pub quotas: Vec<Quota>,
    /// Those that were removed are here while they hold something.
    pub nodes: Vec<NodeRecord>,
}

#[derive(Clone, Debug, Default)]
pub struct LoadedRuns {
    pub runs: Vec<RunSnapshot>,
    /// Runs of which a row makes no sense, and what.
    pub unreadable: Vec<(RunKey, String)>,
}

/// Something that all shards draw from together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Common {
    Pool(PoolName),
    Node(NodeId),
    /// A tenant's quota.
    Quota(TenantId),
}

/// How much of it a shard may use without asking the others. The shares of all shards together never exceed what
/// there is, unless there is less of it than there was.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub of: Common,
    pub amount: Resources,
    /// In nobody's share.
    pub free: Resources,
}

/// What a shard wants its share to be: less than it has gives back, more takes from what is free.
#[derive(Clone, Debug, PartialEq)]
pub struct Bid {
    pub of: Common,
    pub wish: Resources,
    /// A share that comes to less than this is of no use, and does not grow: others may need what it would take.
    pub least: Resources,
}

/// What the timetable loop knows of a dag.
#[derive(Clone, Debug, PartialEq)]
pub struct DagSchedule {
    pub tenant: TenantId,
    pub dag: DagId,
    pub shard: ShardId,
    pub version: u32,
    pub paused: bool,
    pub progress: ScheduleProgress,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DagVersionName {
    pub tenant: TenantId,
    pub dag: DagId,
    pub version: u32,
}

#[derive(Clone, Debug)]
pub struct DagVersion {
    pub tenant: TenantId,
    pub dag: DagId,
    pub version: u32,
    pub spec: Arc<DagSpec>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunHeader {
    pub key: RunKey,
    pub tenant: TenantId,
    pub dag: DagId,
    pub run_id: RunId,
    pub version: u32,
    pub shard: ShardId,
    pub state: RunState,
    /// Grows with every transaction that touches the run or one of its task instances. 0: fresh.
    pub revision: i64,
    pub run_type: RunType,
    pub logical_date: Option<Timestamp>,
    pub data_interval: Option<DataInterval>,
    pub run_after: Timestamp,
    pub queued_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub conf: Value,
}

impl RunHeader {
    /// Its moment had come when it was queued, by the clock of whoever queued it. Other clocks may be behind, and are not
    /// to make it wait.
    pub fn was_due(&self) -> bool {
        self.run_after <= self.queued_at
    }
}

#[derive(Clone, Debug)]
pub struct RunSnapshot {
    pub header: RunHeader,
    pub tis: Vec<CachedTi>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CachedTi {
    pub task: TaskNo,
    pub map_index: i32,
    pub task_id: TaskId,
    pub ti: TaskInstance,
}

/// The states of the previous run of a dag, by task.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRun {
    pub key: RunKey,
    pub state: RunState,
    pub tasks: Vec<(TaskId, TaskState)>,
}

/// What an owner sees when it looks whether anything concerns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    pub items: Vec<AttentionItem>,
    /// The version of the [`Limits`] in force. One number for all shards: a row for each of them whenever a node comes
    /// would be nodes times shards.
    pub limits: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttentionItem {
    pub seq: i64,
    pub what: Attention,
}

/// Something an owner must look at. It says where, never what: the rows are the truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Attention {
    /// Created, cleared, marked, cancelled, deleted.
    Run { run: RunKey },
    /// Registered, paused, unpaused, deleted.
    Dag { tenant: TenantId, dag: DagId },
    /// An agent should stop this attempt; its row has already moved on.
    Stop { node: NodeId, attempt: AttemptId },
    /// Another shard wants some of this, or has given some of it back to somebody who wanted it.
    Shares {
        of: Common,
        #[serde(default)]
        given_back: bool,
    },
    /// Of another release, which may still be running. The one before told every shard in this way that the limits have
    /// changed, so whoever finds it reads them again.
    #[serde(other)]
    Unknown,
}

/// Everything one pass has decided.
#[derive(Clone, Debug)]
pub struct Pass {
    /// When it was decided, and by which holder, for audit rows.
    pub at: Timestamp,
    pub actor: String,
    pub runs: Vec<RunChange>,
    pub new_runs: Vec<NewRun>,
    pub schedules: Vec<ScheduleChange>,
    /// Attention that has been dealt with.
    pub attended: Vec<i64>,
}

impl Pass {
    pub fn new(at: Timestamp, actor: impl Into<String>) -> Self {
        let (runs, new_runs, schedules, attended) = Default::default();
        Self { at, actor: actor.into(), runs, new_runs, schedules, attended }
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.new_runs.is_empty()
            && self.schedules.is_empty()
            && self.attended.is_empty()
    }

    /// See [`fallen`].
    pub fn fallen(&self, conflicts: &HashSet<RunKey>) -> Vec<RunKey> {
        fallen(self.runs.iter().map(|change| (change.run, &change.tis[..])), conflicts)
    }
}

/// All changes to one run: applied together, or not at all.
#[derive(Clone, Debug)]
pub struct RunChange {
    pub run: RunKey,
    /// The revision it was decided from.
    pub revision: i64,
    pub state: Option<StateChange>,
    pub tis: Vec<TiChange>,
    /// Tries that have ended and are followed by another one.
    pub past_tries: Vec<TryRecord>,
    pub results: Vec<(TiKey, Value)>,
    pub audit: Vec<AuditEntry>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StateChange {
    pub from: RunState,
    pub to: RunState,
    pub at: Timestamp,
    /// Why, where the tasks do not say: a deadlock, a timeout.
    pub reason: Option<String>,
}

/// A task instance's new row, and the state it was decided from.
#[derive(Clone, Debug, PartialEq)]
pub struct TiChange {
    pub ti: TiKey,
    pub from: TaskState,
    pub from_attempt: Option<AttemptId>,
    pub to: TaskInstance,
}

impl TiChange {
    /// An attempt stops occupying its node, its pool and its other limits.
    fn gives_back(&self) -> bool {
        self.from.is_bound() && !(self.to.state.is_bound() && self.is_same_attempt())
    }

    /// An attempt begins to occupy.
    fn takes(&self) -> bool {
        self.to.state.is_bound() && !(self.from.is_bound() && self.is_same_attempt())
    }

    fn is_same_attempt(&self) -> bool {
        self.from_attempt == self.to.attempt
    }
}

/// The runs of a pass that fall with those whose rows were not as expected: what one of these would have given back may
/// be what they take. Without the conflict their owner decides again, from what is really free.
pub fn fallen<'a>(
    runs: impl Iterator<Item = (RunKey, &'a [TiChange])> + Clone,
    conflicts: &HashSet<RunKey>,
) -> Vec<RunKey> {
    let gives_back =
        |(run, tis): (RunKey, &[TiChange])| conflicts.contains(&run) && tis.iter().any(TiChange::gives_back);
    if !runs.clone().any(gives_back) {
        return vec![];
    }
    let takes =
        |(run, tis): &(RunKey, &[TiChange])| !conflicts.contains(run) && tis.iter().any(TiChange::takes);
    runs.filter(takes).map(|(run, _)| run).collect()
}

/// One finished try, kept when another follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TryRecord {
    pub ti: TiKey,
    pub task_id: TaskId,
    pub instance: TaskInstance,
}

/// One step in the life of a run or a task instance: who did it is in the row around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Absent: about the run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_index: Option<i32>,
    /// `created`, `scheduled`, `bound`, `claimed`, `ended`, `withdrawn`, `cleared`, `marked`, …
    pub event: String,
    pub from: String,
    pub to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub try_number: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl AuditEntry {
    /// About a run, a dag or the installation as a whole.
    pub fn new(event: impl Into<String>) -> Self {
        Self {
            task: None,
            map_index: None,
            event: event.into(),
            from: String::new(),
            to: String::new(),
            try_number: None,
            attempt: None,
            node: None,
            reason: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleChange {
    pub tenant: TenantId,
    pub dag: DagId,
    /// `run_after` of the latest run the timetable has made.
    pub last_tick: Timestamp,
    /// When the timetable wants the next one, for people to see.
    pub next_tick: Option<Timestamp>,
}

#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// Runs that were left alone, in the order of the pass: evict, reload, plan again. Their revision had moved, or
    /// they fell with one whose had ([`fallen`]).
    pub conflicts: Vec<RunKey>,
    /// One per `Pass::new_runs`, in order.
    pub created: Vec<NewRunOutcome>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NewRunOutcome {
    /// Freshly created: every task instance is untouched.
    Created(Box<RunHeader>),
    /// A run with this id or logical date exists already: an earlier owner made it.
    Exists,
    /// The dag is gone.
    NoDag,
}
