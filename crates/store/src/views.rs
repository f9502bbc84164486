//! Reads for screens: filtered, ordered, paged. Nothing here decides anything.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_model::{
    DagId, DagSpec, DataInterval, NodeId, RunId, RunKey, RunState, RunType, ShardId, TaskId, TaskInstance,
    TaskNo, TaskState, TenantId, TiKey, VersionHash,
};

use crate::{AuditEntry, NodeRecord, PoolRecord, Quota, StoreError};

#[async_trait]
pub trait Views: Send + Sync {
    /// One cheap round trip: can the database answer?
    async fn ping(&self) -> Result<(), StoreError>;

    async fn list_dags(&self, query: &DagQuery) -> Result<Page<DagView>, StoreError>;
    async fn get_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagView>, StoreError>;

    /// Newest first.
    async fn list_versions(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        paging: &Paging,
    ) -> Result<Page<VersionView>, StoreError>;
    /// `None` for `version`: the one in force.
    async fn get_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: Option<u32>,
    ) -> Result<Option<VersionView>, StoreError>;

    async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunView>, StoreError>;
    async fn get_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
    ) -> Result<Option<RunView>, StoreError>;

    async fn list_tis(&self, query: &TiQuery) -> Result<Page<TiView>, StoreError>;
    /// Past tries and the current one, oldest first.
    async fn list_tries(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
        task: &TaskId,
        map_index: i32,
    ) -> Result<Vec<TryView>, StoreError>;
    async fn get_result(&self, ti: TiKey) -> Result<Option<Value>, StoreError>;

    /// Oldest first.
    async fn list_audit(&self, query: &AuditQuery) -> Result<Page<AuditView>, StoreError>;

    async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError>;
    async fn list_quotas(&self) -> Result<Vec<Quota>, StoreError>;
    async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError>;

    /// What is bound to nodes now, of all tenants, counted by node, task and state. Costs what is active, not what
    /// has finished.
    async fn occupancy(&self) -> Result<Vec<Occupancy>, StoreError>;

    /// Tasks that are ready and have no place yet, of all tenants, counted by task. Costs what waits.
    async fn waiting(&self) -> Result<Vec<Waiting>, StoreError>;

    /// How busy these dags are, in the order of their names. Those that are gone are left out. Costs what is active.
    async fn dag_activity(&self, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, StoreError>;

    /// Which nodes each replica hears from, of those replicas that have said so within this time, by the database's
    /// clock.
    async fn list_presence(&self, within: Duration) -> Result<Vec<PresenceView>, StoreError>;
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Of everything that matches, not of this page.
    pub total: u64,
}

/// `order_by` names a field of the view, with a leading `-` for descending; unknown names are a `Conflict`.
/// Ties are broken by the natural key, so pages never overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct Paging {
    pub limit: u32,
    pub offset: u32,
    pub order_by: Option<String>,
}

impl Default for Paging {
    fn default() -> Self {
        Self { limit: 100, offset: 0, order_by: None }
    }
}

#[derive(Clone, Debug)]
pub struct DagQuery {
    pub tenant: TenantId,
    /// SQL-like pattern on the id (`%` any text), case-insensitive.
    pub id_pattern: Option<String>,
    pub tags: Vec<String>,
    pub owners: Vec<String>,
    pub paused: Option<bool>,
    /// Orders by `dag_id` (default), `next_run_at`, `is_paused`.
    pub paging: Paging,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DagView {
    pub tenant: TenantId,
    pub dag: DagId,
    pub shard: ShardId,
    pub paused: bool,
    pub version: u32,
    pub hash: VersionHash,
    pub origin: String,
    pub spec: Arc<DagSpec>,
    /// First registration of the dag, and latest change of its version.
    pub registered_at: Timestamp,
    pub updated_at: Timestamp,
    pub last_tick: Option<Timestamp>,
    pub next_tick: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct VersionView {
    pub dag: DagId,
    pub version: u32,
    pub hash: VersionHash,
    pub spec: Arc<DagSpec>,
    pub source: String,
    pub origin: String,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct RunQuery {
    pub tenant: TenantId,
    /// `None`: runs of all dags.
    pub dag: Option<DagId>,
    pub states: Vec<RunState>,
    pub run_types: Vec<RunType>,
    /// SQL-like pattern on the run id.
    pub run_id_pattern: Option<String>,
    pub logical_date_gte: Option<Timestamp>,
    pub logical_date_lte: Option<Timestamp>,
    pub run_after_gte: Option<Timestamp>,
    pub run_after_lte: Option<Timestamp>,
    pub started_at_gte: Option<Timestamp>,
    pub started_at_lte: Option<Timestamp>,
    pub ended_at_gte: Option<Timestamp>,
    pub ended_at_lte: Option<Timestamp>,
    /// Orders by `id` (creation; default), `state`, `dag_id`, `run_id`, `logical_date`, `run_after`,
    /// `start_date`, `end_date`, `queued_at`.
    pub paging: Paging,
}

impl RunQuery {
    pub fn of(tenant: TenantId, dag: Option<DagId>) -> Self {
        Self {
            tenant,
            dag,
            states: vec![],
            run_types: vec![],
            run_id_pattern: None,
            logical_date_gte: None,
            logical_date_lte: None,
            run_after_gte: None,
            run_after_lte: None,
            started_at_gte: None,
            started_at_lte: None,
            ended_at_gte: None,
            ended_at_lte: None,
            paging: Paging::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub key: RunKey,
    pub tenant: TenantId,
    pub dag: DagId,
    pub run_id: RunId,
    pub version: u32,
    pub state: RunState,
    pub run_type: RunType,
    pub logical_date: Option<Timestamp>,
    pub data_interval: Option<DataInterval>,
    pub run_after: Timestamp,
    pub queued_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub conf: Value,
    pub note: Option<String>,
    pub triggered_by: String,
    /// Why it failed, where that is not a failed task: a deadlock, a timeout, a cancel.
    pub reason: Option<String>,
}

#[derive(Clone, Debug)]
pub struct TiQuery {
    pub tenant: TenantId,
    pub dag: Option<DagId>,
    pub run: Option<RunId>,
    pub task: Option<TaskId>,
    pub map_index: Option<i32>,
    /// `TaskState::None` among them asks for untouched ones.
    pub states: Vec<TaskState>,
    pub pools: Vec<String>,
    /// Only what is bound to this node now. Costs what is active.
    pub bound_to: Option<NodeId>,
    /// Orders by `id` (run, then position in the dag; default), `task_id`, `state`, `start_date`, `end_date`.
    pub paging: Paging,
}

impl TiQuery {
    pub fn of_run(tenant: TenantId, dag: DagId, run: RunId) -> Self {
        Self {
            tenant,
            dag: Some(dag),
            run: Some(run),
            task: None,
            map_index: None,
            states: vec![],
            pools: vec![],
            bound_to: None,
            paging: Paging::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TiView {
    pub key: TiKey,
    pub dag: DagId,
    pub run_id: RunId,
    pub logical_date: Option<Timestamp>,
    pub run_after: Timestamp,
    pub version: u32,
    pub task_id: TaskId,
    pub task_no: TaskNo,
    pub pool: String,
    pub instance: TaskInstance,
}

/// Attempts of one task that are in one state on one node, over all runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Occupancy {
    pub node: NodeId,
    pub tenant: TenantId,
    pub dag: DagId,
    pub version: u32,
    pub task: TaskId,
    /// `queued`, `running` or `restarting`.
    pub state: TaskState,
    pub count: u32,
}

/// Task instances of one task that are `scheduled`, over all runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub tenant: TenantId,
    pub dag: DagId,
    pub version: u32,
    pub task: TaskId,
    pub count: u32,
}

/// What decides whether a dag's next run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DagActivity {
    pub tenant: TenantId,
    pub dag: DagId,
    pub paused: bool,
    pub running_runs: u32,
}

/// What one replica hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceView {
    pub replica: String,
    /// When it last said so.
    pub at: Timestamp,
    pub nodes: Vec<NodeId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TryView {
    pub key: TiKey,
    pub task_id: TaskId,
    pub instance: TaskInstance,
    /// The try in force, not history.
    pub current: bool,
}

#[derive(Clone, Debug)]
pub struct AuditQuery {
    pub tenant: TenantId,
    pub dag: Option<DagId>,
    pub run: Option<RunId>,
    /// Only rows after this one.
    pub after_seq: Option<i64>,
    pub paging: Paging,
}

/// One transaction's entries about one run (or one dag).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditView {
    pub seq: i64,
    pub at: Timestamp,
    pub dag: Option<DagId>,
    pub run_id: Option<RunId>,
    /// Who: a holder of a lease, a user.
    pub actor: String,
    /// Under which authority, for scheduling writes.
    pub scope: Option<String>,
    pub epoch: Option<u64>,
    pub entries: Vec<AuditEntry>,
}
