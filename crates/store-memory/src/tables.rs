//! The rows, and the few indexes that keep a verb's cost with what it touches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tenure_model::timetable::ScheduleProgress;
use tenure_model::{
    DagId, DagSpec, NodeId, PoolName, Resources, RunId, RunKey, RunState, ShardId, TaskId, TaskInstance,
    TaskNo, TenantId, TiKey,
};
use tenure_store::{
    Attention, AuditView, CachedTi, DagSchedule, JoinTokenRecord, NodeIdentity, NodeRecord, PoolRecord,
    RunHeader, RunSnapshot, RunView, StateChange, StoreError, TiChange, TiView, TryRecord, VersionView,
};

pub(crate) type DagKey = (TenantId, DagId);
/// A task instance within its run.
pub(crate) type Place = (TaskNo, i32);

#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) shards: u16,
    pub(crate) dags: BTreeMap<DagKey, Dag>,
    pub(crate) runs: BTreeMap<RunKey, Run>,
    /// Never reused, not even after a delete.
    pub(crate) last_run: i64,
    /// Queued and running ones; history is not passed by.
    pub(crate) unfinished: BTreeSet<(ShardId, RunKey)>,
    pub(crate) audit: BTreeMap<i64, AuditRow>,
    /// A bug on purpose is at work in this transaction.
    pub(crate) careless: bool,
    /// When this transaction is.
    pub(crate) now: Timestamp,
    pub(crate) last_audit: i64,
    pub(crate) attention: BTreeMap<(ShardId, i64), Attention>,
    pub(crate) attention_of: BTreeMap<i64, ShardId>,
    pub(crate) last_attention: i64,
    pub(crate) limits_version: u64,
    /// Whom this transaction concerns.
    pub(crate) woken: BTreeSet<ShardId>,
    pub(crate) pools: BTreeMap<PoolName, PoolRecord>,
    pub(crate) quotas: BTreeMap<TenantId, Resources>,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    /// By what they are of.
    pub(crate) shares: BTreeMap<String, Shares>,
    pub(crate) presence: BTreeMap<String, (Timestamp, Vec<NodeId>)>,
    pub(crate) tokens: BTreeMap<String, TokenRow>,
    pub(crate) credentials: BTreeMap<String, Credential>,
    pub(crate) admin_token: Option<String>,
    /// What the controller's leader has told last.
    pub(crate) open_signals: Option<String>,
    pub(crate) spoiled_runs: BTreeSet<RunKey>,
    pub(crate) spoiled_tasks: BTreeSet<TiKey>,
}

#[derive(Debug)]
pub(crate) struct Dag {
    pub(crate) shard: ShardId,
    pub(crate) paused: bool,
    pub(crate) origin: String,
    pub(crate) progress: ScheduleProgress,
    pub(crate) next_tick: Option<Timestamp>,
    pub(crate) registered_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// Version n is at n − 1; the last one is in force.
    pub(crate) versions: Vec<VersionView>,
    pub(crate) runs: BTreeMap<RunId, RunKey>,
    pub(crate) by_date: BTreeMap<Timestamp, RunKey>,
    pub(crate) by_key: BTreeMap<String, RunKey>,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) view: RunView,
    pub(crate) shard: ShardId,
    pub(crate) revision: i64,
    /// The client's key and the fingerprint of the request that carried it.
    pub(crate) idempotency: Option<(String, String)>,
    pub(crate) tis: BTreeMap<Place, Ti>,
    pub(crate) tries: BTreeMap<(TaskNo, i32, u32), TaskInstance>,
    pub(crate) results: BTreeMap<Place, Value>,
}

#[derive(Debug)]
pub(crate) struct Ti {
    pub(crate) task_id: TaskId,
    pub(crate) pool: PoolName,
    pub(crate) ti: TaskInstance,
}

#[derive(Debug)]
pub(crate) struct AuditRow {
    pub(crate) tenant: TenantId,
    pub(crate) committed_at: Timestamp,
    pub(crate) view: AuditView,
}

/// Who has how much of something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    pub(crate) rows: BTreeMap<ShardId, ShareRow>,
    /// Of all rows, kept because there may be thousands of them.
    pub(crate) sum: Resources,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ShareRow {
    pub(crate) amount: Resources,
    /// Its last bid was not met in full.
    pub(crate) wanted: bool,
}

#[derive(Debug)]
pub(crate) struct TokenRow {
    pub(crate) digest: String,
    pub(crate) record: JoinTokenRecord,
}

#[derive(Debug)]
pub(crate) struct Credential {
    pub(crate) identity: NodeIdentity,
    /// The join token that it was given for; none where another identity was shown.
    pub(crate) token: Option<String>,
}

impl Tables {
    pub(crate) fn new(shards: u16) -> Self {
        let pool = PoolName::default_pool();
        let record = PoolRecord { name: pool.clone(), slots: 128, description: "Default pool".into() };
        Self {
            shards,
            dags: BTreeMap::new(),
            runs: BTreeMap::new(),
            last_run: 0,
            unfinished: BTreeSet::new(),
            audit: BTreeMap::new(),
            careless: false,
            now: Timestamp::UNIX_EPOCH,
            last_audit: 0,
            attention: BTreeMap::new(),
            attention_of: BTreeMap::new(),
            last_attention: 0,
            limits_version: 0,
            woken: BTreeSet::new(),
            pools: BTreeMap::from([(pool, record)]),
            quotas: BTreeMap::new(),
            nodes: BTreeMap::new(),
            shares: BTreeMap::new(),
            presence: BTreeMap::new(),
            tokens: BTreeMap::new(),
            credentials: BTreeMap::new(),
            admin_token: None,
            open_signals: None,
            spoiled_runs: BTreeSet::new(),
            spoiled_tasks: BTreeSet::new(),
        }
    }

    pub(crate) fn dag(&self, tenant: &TenantId, dag: &DagId) -> Result<&Dag, StoreError> {
        self.dags.get(&(tenant.clone(), dag.clone())).ok_or_else(|| no_dag(dag))
    }

    pub(crate) fn run_key(&self, tenant: &TenantId, dag: &DagId, run: &RunId) -> Result<RunKey, StoreError> {
        let known = self.dags.get(&(tenant.clone(), dag.clone())).and_then(|dag| dag.runs.get(run));
        known.copied().ok_or_else(|| StoreError::NotFound(format!("dag {dag} has no run {run}")))
    }

    /// The keys of the unfinished runs of a shard, or of all.
    pub(crate) fn unfinished(&self, shard: Option<ShardId>) -> impl Iterator<Item = RunKey> + '_ {
        let (from, to) = shard.map_or((ShardId(0), ShardId(u16::MAX)), |shard| (shard, shard));
        let range = (from, RunKey(i64::MIN))..=(to, RunKey(i64::MAX));
        self.unfinished.range(range).map(|(_, run)| *run)
    }

    pub(crate) fn set_state(&mut self, key: RunKey, change: &StateChange) {
        let run = self.runs.get_mut(&key).expect("whoever changes a run has found it");
        let view = &mut run.view;
        let StateChange { to, at, reason, .. } = change;
        view.state = *to;
        view.reason.clone_from(reason);
        match to {
            RunState::Queued => (view.queued_at, view.started_at, view.ended_at) = (*at, None, None),
            RunState::Running => (view.started_at, view.ended_at) = (view.started_at.or(Some(*at)), None),
            // A run may begin and end in one pass; then it has taken no time.
            RunState::Success | RunState::Failed => {
                (view.started_at, view.ended_at) = (view.started_at.or(Some(*at)), Some(*at));
            }
        }
        match to.is_finished() {
            true => self.unfinished.remove(&(run.shard, key)),
            false => self.unfinished.insert((run.shard, key)),
        };
    }

    /// Takes a run out with all that belongs to it but its audit.
    pub(crate) fn forget_run(&mut self, key: RunKey) {
        let Some(run) = self.runs.remove(&key) else { return };
        self.unfinished.remove(&(run.shard, key));
        let dag = (run.view.tenant.clone(), run.view.dag.clone());
        let Some(dag) = self.dags.get_mut(&dag) else { return };
        dag.runs.remove(&run.view.run_id);
        run.view.logical_date.map(|date| dag.by_date.remove(&date));
        run.idempotency.map(|(key, _)| dag.by_key.remove(&key));
    }

    /// The run as an owner loads it; `Corrupt` if a row of it makes no sense.
    pub(crate) fn snapshot(&self, key: RunKey) -> Option<Result<RunSnapshot, StoreError>> {
        let run = self.runs.get(&key)?;
        Some(self.readable(key).map(|()| run.snapshot()))
    }

    pub(crate) fn readable(&self, key: RunKey) -> Result<(), StoreError> {
        let unknown = || "\"nonsense\" is unknown to this release".into();
        if self.spoiled_runs.contains(&key) {
            return Err(StoreError::Corrupt { what: format!("the type of {key}"), source: unknown() });
        }
        match self.spoiled_tasks.iter().find(|ti| ti.run == key) {
            Some(ti) => Err(StoreError::Corrupt { what: format!("the state of {ti:?}"), source: unknown() }),
            None => Ok(()),
        }
    }
}

impl Dag {
    pub(crate) fn version(&self) -> u32 {
        self.versions.len() as u32
    }

    pub(crate) fn in_force(&self) -> &VersionView {
        self.versions.last().expect("a dag is made with its first version")
    }

    /// `None`: it never had that one.
    pub(crate) fn numbered(&self, version: u32) -> Option<&VersionView> {
        self.versions.get((version as usize).checked_sub(1)?)
    }

    pub(crate) fn spec(&self, version: u32) -> Result<Arc<DagSpec>, StoreError> {
        let dag = &self.in_force().dag;
        let missing = || StoreError::NotFound(format!("dag {dag} has no version {version}"));
        self.numbered(version).map(|version| Arc::clone(&version.spec)).ok_or_else(missing)
    }

    pub(crate) fn schedule(&self, tenant: &TenantId) -> DagSchedule {
        DagSchedule {
            tenant: tenant.clone(),
            dag: self.in_force().dag.clone(),
            shard: self.shard,
            version: self.version(),
            paused: self.paused,
            progress: self.progress,
        }
    }
}

impl Run {
    pub(crate) fn header(&self) -> RunHeader {
        let view = &self.view;
        RunHeader {
            key: view.key,
            tenant: view.tenant.clone(),
            dag: view.dag.clone(),
            run_id: view.run_id.clone(),
            version: view.version,
            shard: self.shard,
            state: view.state,
            revision: self.revision,
            run_type: view.run_type,
            logical_date: view.logical_date,
            data_interval: view.data_interval,
            run_after: view.run_after,
            queued_at: view.queued_at,
            started_at: view.started_at,
            conf: view.conf.clone(),
        }
    }

    pub(crate) fn snapshot(&self) -> RunSnapshot {
        let tis = self.tis.iter().map(|(place, ti)| ti.cached(*place)).collect();
        RunSnapshot { header: self.header(), tis }
    }

    pub(crate) fn ti_view(&self, (task, map_index): Place, ti: &Ti) -> TiView {
        let view = &self.view;
        TiView {
            key: TiKey { run: view.key, task, map_index },
            dag: view.dag.clone(),
            run_id: view.run_id.clone(),
            logical_date: view.logical_date,
            run_after: view.run_after,
            version: view.version,
            task_id: ti.task_id.clone(),
            task_no: task,
            pool: ti.pool.to_string(),
            instance: ti.ti.clone(),
        }
    }

    /// The row as it was; `None` if it is not in the state, or under the attempt, that the change was decided from.
    pub(crate) fn change_ti(&mut self, change: &TiChange) -> Option<TaskInstance> {
        let row = self.tis.get_mut(&place(change.ti))?;
        row.is_as_expected(change).then(|| std::mem::replace(&mut row.ti, change.to.clone()))
    }

    /// Whether it has the row that the change was decided from.
    pub(crate) fn expects(&self, change: &TiChange) -> bool {
        self.tis.get(&place(change.ti)).is_some_and(|row| row.is_as_expected(change))
    }

    /// The same try again replaces what was kept of it.
    pub(crate) fn keep_try(&mut self, past: &TryRecord) {
        let TiKey { task, map_index, .. } = past.ti;
        self.tries.insert((task, map_index, past.instance.try_number), past.instance.clone());
    }
}

impl Ti {
    pub(crate) fn untouched(task: &tenure_model::TaskSpec) -> Self {
        let ti = TaskInstance::untouched(task.retries);
        Self { task_id: task.id.clone(), pool: task.pool.clone(), ti }
    }

    fn is_as_expected(&self, change: &TiChange) -> bool {
        self.ti.state == change.from && self.ti.attempt == change.from_attempt
    }

    pub(crate) fn cached(&self, (task, map_index): Place) -> CachedTi {
        CachedTi { task, map_index, task_id: self.task_id.clone(), ti: self.ti.clone() }
    }
}

pub(crate) fn place(ti: TiKey) -> Place {
    (ti.task, ti.map_index)
}

pub(crate) fn no_dag(dag: &DagId) -> StoreError {
    StoreError::NotFound(format!("there is no dag {dag}"))
}
