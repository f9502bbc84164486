//! What the owner of a shard has in memory, and how it gets there from the database.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{BootTime, Clock, Entropy};
use tenure_dispatch::{Binding, DispatchPool, RunContext};
use tenure_lease::{Tenure, with_causes};
use tenure_model::timetable::Timetable;
use tenure_model::{AttemptId, DagSpec, RunKey, RunState, ShardId, TaskNo, TaskState, TiKey};
use tenure_placement::{History, Policy, Request};
use tenure_planner::{DagGraph, Past, RunFacts, RunPlan};
use tenure_store::{
    DagSchedule, DagVersion, DagVersionName, RunHeader, RunSnapshot, SharedStore, StoreError,
};

use crate::dags::{DagBook, DagNo, SchedulePlan, TenantNo};
use crate::departures::Departures;
use crate::inbox::{Envelope, ReportInbox};
use crate::isolation::{Trap, Work, isolated};
use crate::leavers::Leavers;
use crate::ledger::{Ledger, Limit, Wish};
use crate::metrics::{SchedulerMetrics, ShardLabel};
use crate::preemption::Preemption;
use crate::ready::{Candidate, ReadyQueue};
use crate::roster::{Roll, Roster};
use crate::shares::Trades;
use crate::watch::NodeWatch;

#[derive(Clone, Debug)]
pub struct OwnerConfig {
    /// The longest time between two looks at the database, for wakes that were lost.
    pub tick: Duration,
    /// An attempt that no agent has claimed for so long is placed again under a new id.
    pub claim_timeout: Duration,
    /// A running attempt whose agent nobody has heard for so long is lost.
    pub heartbeat_threshold: Duration,
    /// A running run in which nothing moves, and nothing can, for so long is ended.
    pub orphan_threshold: Duration,
    /// A shard whose owner has had no answer from the database for so long is given back: another may reach it.
    pub yield_after: Duration,
    /// What makes a node good.
    pub placement: Policy,
    /// More important tasks that find no room ask less important ones to leave.
    pub preemption: bool,
    /// How audit rows name this owner.
    pub actor: String,
    /// Does nothing. A parameter so that tests can plant a run, or a timetable, that panics.
    pub trap: Trap,
}

impl OwnerConfig {
    pub fn new(actor: impl Into<String>) -> Self {
        Self {
            tick: Duration::from_secs(1),
            claim_timeout: Duration::from_secs(60),
            heartbeat_threshold: Duration::from_secs(90),
            orphan_threshold: Duration::from_secs(300),
            yield_after: Duration::from_secs(5),
            placement: Policy::default(),
            preemption: false,
            actor: actor.into(),
            trap: |_| {},
        }
    }
}

/// Everything an owner works with.
#[derive(Clone)]
pub(crate) struct Deps {
    pub store: SharedStore,
    pub dispatch: DispatchPool,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub metrics: SchedulerMetrics,
    pub config: OwnerConfig,
    /// What all owners of this process place on.
    pub roster: Arc<Roster>,
    /// Into how many the dags are divided.
    pub shards: u16,
}

pub(crate) struct ShardOwner {
    pub(crate) deps: Deps,
    pub(crate) inbox: ReportInbox,
    pub(crate) shard: ShardId,
    pub(crate) tenure: Tenure,
    pub(crate) dags: DagBook,
    pub(crate) runs: BTreeMap<RunKey, ActiveRun>,
    graphs: BTreeMap<(DagNo, u32), Arc<DagGraph>>,
    pub(crate) ready: ReadyQueue,
    pub(crate) ledger: Ledger,
    /// Which pools, quotas and nodes the ledger has.
    pub(crate) roll: Arc<Roll>,
    /// When time alone changes something in a run.
    pub(crate) wakes: BTreeSet<(Timestamp, RunKey)>,
    /// Until when each queued attempt must be claimed.
    pub(crate) claims_due: BTreeSet<(Timestamp, TiKey, AttemptId)>,
    /// Runs whose cached state is known to be out of date.
    pub(crate) stale: BTreeSet<RunKey>,
    /// Runs that have panicked and are still to be failed, and why.
    pub(crate) poisoned: BTreeMap<RunKey, String>,
    /// Runs that were failed for that in this pass.
    pub(crate) failed: BTreeSet<RunKey>,
    /// Runs parked since the last commit: as they were read, and why.
    pub(crate) parked: Vec<(RunKey, i64, RunState, String)>,
    /// Queued runs that were read in this pass already.
    pub(crate) preloaded: BTreeMap<RunKey, RunSnapshot>,
    /// Runs to plan in the next pass.
    pub(crate) touched: BTreeSet<RunKey>,
    /// Queued attempts that their node does not have, to be offered again.
    pub(crate) reoffer: Vec<Binding>,
    /// Runs that cannot even be read, and why. They wait for a user or a newer release.
    pub(crate) unreadable: BTreeMap<RunKey, String>,
    /// Runs that reports were about and that belong to another shard.
    pub(crate) elsewhere: BTreeSet<RunKey>,
    /// Reports that memory speaks against, for the next pass: by then their runs have been read again.
    pub(crate) doubted: Vec<Envelope>,
    pub(crate) trades: Trades,
    pub(crate) watch: NodeWatch,
    pub(crate) departures: Departures,
    pub(crate) leavers: Leavers,
    pub(crate) preemption: Preemption,
    pub(crate) carried: Carried,
}

/// What outlives a cache that has to be read anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// When orphans were last looked for.
    pub orphans_sought: BootTime,
    /// The last commit failed: should due runs be what it failed on, let everything else go first.
    pub cautious: bool,
}

/// A version's spec, or why it cannot be used.
type ReadVersion = Result<Arc<DagSpec>, String>;

/// The version that a dag's next runs follow.
fn version_of(schedule: &DagSchedule) -> DagVersionName {
    let DagSchedule { tenant, dag, version, .. } = schedule;
    DagVersionName { tenant: tenant.clone(), dag: dag.clone(), version: *version }
}

pub(crate) struct ActiveRun {
    pub header: RunHeader,
    pub plan: RunPlan,
    pub dag: DagNo,
    pub tenant: TenantNo,
    pub context: Arc<RunContext>,
    /// The run whose tasks this one's depend on.
    pub past: Option<RunKey>,
    on_wakes: Option<Timestamp>,
}

impl ActiveRun {
    fn candidate(&self, key: RunKey, task: TaskNo) -> Candidate {
        Candidate {
            priority: Reverse(self.plan.weight(task)),
            date: self.header.logical_date.unwrap_or(self.header.run_after),
            run: key,
            task,
            dag: self.dag,
            tenant: self.tenant,
        }
    }

    /// `None`: the version that the run follows no longer has this task.
    fn wish(&self, key: RunKey, task: TaskNo) -> Option<Wish> {
        let spec = self.plan.spec(task)?;
        Some(Wish {
            tenant: self.header.tenant.clone(),
            dag: self.dag,
            run: key,
            task: spec.id.clone(),
            priority: i64::from(spec.priority),
            pool: spec.pool.clone(),
            pool_slots: spec.pool_slots,
            request: Request::of_task(spec, &self.header.tenant, &self.header.dag),
            history: History {
                failed_on: self.plan.failed_on(task).cloned(),
                near: self.plan.upstream_on(task),
            },
            max_active_in_run: self.plan.graph().spec().max_active_tasks,
            max_active_per_dag: spec.max_active_per_dag,
            max_active_per_run: spec.max_active_per_run,
        })
    }
}

impl ShardOwner {
    /// Reads the shard. The fence is up already, so nobody else writes to it from here on.
    pub async fn take_over(
        deps: Deps,
        inbox: ReportInbox,
        shard: ShardId,
        tenure: Tenure,
        carried: Carried,
    ) -> Result<Self, StoreError> {
        let now = deps.clock.now();
        let (snapshot, roll) = tokio::try_join!(deps.store.shard_snapshot(shard), deps.roster.get(|_| true))?;
        let boottime = deps.clock.boottime();
        // Equal nodes in an order of its own: shards that begin together should not all begin with the same node.
        let salt = if deps.shards > 1 { u64::from(shard.0) + 1 } else { 0 };
        let ledger = Ledger::new(deps.config.placement, salt);
        let mut owner = Self {
            deps,
            inbox,
            shard,
            tenure,
            dags: DagBook::default(),
            runs: BTreeMap::new(),
            graphs: BTreeMap::new(),
            ready: ReadyQueue::default(),
            ledger,
            roll: Arc::clone(&roll),
            wakes: BTreeSet::new(),
            claims_due: BTreeSet::new(),
            stale: BTreeSet::new(),
            poisoned: BTreeMap::new(),
            failed: BTreeSet::new(),
            parked: vec![],
            preloaded: BTreeMap::new(),
            touched: BTreeSet::new(),
            reoffer: vec![],
            unreadable: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
            doubted: vec![],
            trades: Trades::default(),
            watch: NodeWatch::since(boottime),
            departures: Departures::default(),
            leavers: Leavers::default(),
            preemption: Preemption::default(),
            carried,
        };
        if owner.deps.shards > 1 {
            owner.ledger.share_with_others();
        }
        owner.set_limits(roll);
        snapshot.shares.iter().for_each(|share| owner.ledger.set_share(share));
        for (run, what) in snapshot.unreadable {
            owner.park_unreadable(run, what);
        }
        let versions = owner.read_versions(&snapshot.dags, &snapshot.running).await?;
        for schedule in snapshot.dags {
            let version = versions.get(&version_of(&schedule)).cloned();
            owner.install_dag(schedule, version.unwrap_or_else(|| Err("it was not read".into())));
        }
        for header in snapshot.queued {
            owner.install_queued(&header);
        }
        for run in snapshot.running {
            owner.install(run).await?;
        }
        for dag in owner.dags.numbers() {
            owner.dags.reschedule(dag, now);
        }
        Ok(owner)
    }

    pub fn next_wake(&self) -> Option<Timestamp> {
        let runs = self.wakes.first().map(|(at, _)| *at);
        let claims = self.claims_due.first().map(|(at, ..)| *at);
        runs.into_iter().chain(claims).chain(self.dags.next_agenda()).min()
    }

    /// What holds scheduled tasks back, and how many.
    pub fn waiting(&self) -> Vec<(&'static str, usize)> {
        let mut reasons: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (limit, count) in self.ready.parked() {
            *reasons.entry(limit.kind()).or_default() += count;
        }
        let waiting = self.deps.metrics.waiting_tasks.get_or_create(&ShardLabel::of(self.shard));
        waiting.set(reasons.values().sum::<usize>() as i64);
        reasons.into_iter().collect()
    }

    /// All versions that a shard's dags and running runs follow, in one go; graphs for the runs.
    async fn read_versions(
        &mut self,
        dags: &[DagSchedule],
        running: &[RunSnapshot],
    ) -> Result<BTreeMap<DagVersionName, ReadVersion>, StoreError> {
        let of_run = |run: &RunSnapshot| DagVersionName {
            tenant: run.header.tenant.clone(),
            dag: run.header.dag.clone(),
            version: run.header.version,
        };
        let names: BTreeSet<DagVersionName> =
            dags.iter().map(version_of).chain(running.iter().map(of_run)).collect();
        let names: Vec<DagVersionName> = names.into_iter().collect();
        let versions = self.deps.store.dag_versions(&names).await?;
        let read = |version: Result<DagVersion, StoreError>| match version {
            Ok(version) => Ok(version.spec),
            Err(error) => Err(with_causes(&error)),
        };
        let versions: BTreeMap<_, _> = names.into_iter().zip(versions.into_iter().map(read)).collect();
        for name in running.iter().map(of_run) {
            if let Some(Ok(spec)) = versions.get(&name) {
                let dag = (self.dags.number(&name.tenant, &name.dag), name.version);
                // One that panics is met again by the runs that follow it.
                if !self.graphs.contains_key(&dag)
                    && let Ok(graph) = isolated(|| Arc::new(DagGraph::new(Arc::clone(spec))))
                {
                    self.graphs.insert(dag, graph);
                }
            }
        }
        Ok(versions)
    }

    /// As `install_dag`, for a dag whose version has to be asked for.
    pub async fn load_and_install_dag(&mut self, schedule: DagSchedule) -> Result<(), StoreError> {
        let read = match self.deps.store.dag_versions(&[version_of(&schedule)]).await?.remove(0) {
            Ok(version) => Ok(version.spec),
            Err(error) => Err(with_causes(&error)),
        };
        self.install_dag(schedule, read);
        Ok(())
    }

    /// A dag that cannot be read, or never has a next tick, is not scheduled; the others are.
    fn install_dag(&mut self, schedule: DagSchedule, read: ReadVersion) {
        let number = self.dags.number(&schedule.tenant, &schedule.dag);
        let timetable = read.and_then(|spec| match isolated(|| Timetable::new(&spec))? {
            Ok(timetable) => Ok((spec, timetable)),
            Err(error) => Err(error.to_string()),
        });
        self.dags.get_mut(number).plan = match timetable {
            Ok((spec, timetable)) => Some(SchedulePlan {
                timetable: Some(timetable),
                trap: self.deps.config.trap,
                panics: self.deps.metrics.timetable_panics.clone(),
                continuous: SchedulePlan::is_continuous(&spec.schedule),
                max_active_runs: spec.max_active_runs,
                schedule,
            }),
            Err(error) => {
                tracing::error!(dag = %schedule.dag, error, "dag cannot be read; it is not scheduled");
                None
            }
        };
    }

    pub fn install_queued(&mut self, header: &RunHeader) {
        let number = self.dags.number(&header.tenant, &header.dag);
        let (now, run_after) = (self.deps.clock.now(), header.run_after);
        let moment = if header.was_due() { run_after.min(now) } else { run_after };
        self.dags.get_mut(number).queued.insert(moment, header.key);
    }

    /// Takes a run that is running into the cache.
    pub async fn install(&mut self, snapshot: RunSnapshot) -> Result<(), StoreError> {
        let RunSnapshot { header, tis } = snapshot;
        let dag = self.dags.number(&header.tenant, &header.dag);
        let graph = match self.graph(dag, &header).await {
            Ok(graph) => graph,
            Err(StoreError::Corrupt { what, source }) => {
                self.deps.metrics.poison_runs.inc();
                self.park(&header, format!("{what}: {source}"));
                return Ok(());
            }
            Err(other) => return Err(other),
        };
        let facts = RunFacts {
            dag: header.dag.clone(),
            run_id: header.run_id.clone(),
            logical_date: header.logical_date,
            state: header.state,
            started_at: header.started_at,
            read_at: self.deps.clock.now(),
        };
        let tis = tis.into_iter().map(|cached| (cached.task_id, cached.ti)).collect();
        let context = Arc::new(RunContext {
            run_id: header.run_id.clone(),
            logical_date: header.logical_date,
            data_interval: header.data_interval,
            run_after: header.run_after,
            conf: header.conf.clone(),
        });
        let trap = self.deps.config.trap;
        let plan = isolated(|| {
            trap(&Work::Read(&header));
            RunPlan::new(facts, graph, tis)
        });
        let plan = match plan {
            Ok(plan) => plan,
            Err(panic) => {
                self.deps.metrics.poison_runs.inc();
                self.park(&header, format!("the scheduler panicked while reading this run: {panic}"));
                return Ok(());
            }
        };
        let key = header.key;
        let tenant = self.dags.get(dag).tenant_no;
        let mut run = ActiveRun { header, plan, dag, tenant, context, past: None, on_wakes: None };
        self.look_at_past(&mut run).await?;
        self.unreadable.remove(&key);
        if run.plan.state() == RunState::Running {
            self.dags.get_mut(dag).active.insert(key);
        }
        self.runs.insert(key, run);
        self.recover_tasks(key);
        self.touched.insert(key);
        Ok(())
    }

    /// A run of which a row makes no sense costs nobody else anything.
    pub fn park_unreadable(&mut self, run: RunKey, what: String) {
        tracing::error!(run = run.0, what, "run cannot be read; parked");
        self.deps.metrics.poison_runs.inc();
        self.unreadable.insert(run, what);
    }

    /// Forgets a run; what it occupies is free again until it is read anew.
    pub fn evict(&mut self, key: RunKey) {
        self.unreadable.remove(&key);
        let Some(run) = self.runs.remove(&key) else { return };
        if let Some(at) = run.on_wakes {
            self.wakes.remove(&(at, key));
        }
        for (task, ti) in run.plan.tasks() {
            if ti.state == TaskState::Scheduled
                && let Some(wish) = run.wish(key, task)
            {
                let limits = self.ledger.limits_of(TiKey::unmapped(key, task), &wish);
                self.ready.remove(&run.candidate(key, task), &limits);
            }
            if let (Some(attempt), Some(queued_at)) = (ti.attempt, ti.queued_at) {
                self.claims_due.remove(&(
                    queued_at + self.deps.config.claim_timeout,
                    TiKey::unmapped(key, task),
                    attempt,
                ));
            }
        }
        // By the ledger's own books: the plan may be half changed.
        let freed = self.ledger.give_back_run(key);
        self.free(freed);
        self.dags.forget_run(run.dag, key);
        self.touched.remove(&key);
    }

    pub fn give_back(&mut self, ti: TiKey) {
        let freed = self.ledger.give_back(ti);
        self.free(freed);
    }

    fn free(&mut self, freed: Vec<Limit>) {
        if !freed.is_empty() {
            freed.into_iter().for_each(|limit| self.ready.free(limit));
            self.ready.free_capacity();
        }
    }

    pub fn candidate(&self, key: RunKey, task: TaskNo) -> Candidate {
        self.runs[&key].candidate(key, task)
    }

    pub fn wish(&self, key: RunKey, task: TaskNo) -> Option<Wish> {
        self.runs[&key].wish(key, task)
    }

    /// Pools, quotas and nodes are those of this version, or newer, and who can be reached is known as of now.
    /// `doubtful`: something may have changed that the version does not tell.
    pub async fn keep_up_with(&mut self, version: u64, doubtful: bool) -> Result<(), StoreError> {
        let Roll { read: last_read, version: last_version, .. } = *self.roll;
        // A database that has lost its latest changes counts on from an earlier number.
        let doubtful = doubtful || version < last_version;
        let will_do = |roll: &Roll| if doubtful { roll.read > last_read } else { roll.version >= version };
        let roll = self.deps.roster.get(will_do).await?;
        if roll.number == self.roll.number {
            return Ok(());
        }
        let other_limits = roll.read != last_read;
        self.set_limits(roll);
        self.watch.links_changed();
        self.ready.free_all();
        if other_limits {
            // There may be less of something than there was.
            for of in self.ledger.shares() {
                self.trades.reconsider(of, self.deps.clock.boottime());
            }
        }
        Ok(())
    }

    fn set_limits(&mut self, roll: Arc<Roll>) {
        self.departures.set_drains(&roll.drains);
        self.ledger.set_limits(&roll.pools, &roll.quotas, &roll.nodes);
        self.roll = roll;
    }

    /// The hand-out of a bound attempt.
    pub fn binding(&self, key: RunKey, task: TaskNo) -> Option<Binding> {
        let run = self.runs.get(&key)?;
        let ti = run.plan.task(task)?;
        let spec = run.plan.graph().spec();
        Some(Binding {
            attempt: ti.attempt?,
            ti: TiKey::unmapped(key, task),
            node: ti.node.clone()?,
            scope: self.tenure.scope().to_string(),
            epoch: self.tenure.epoch().0,
            tenant: run.header.tenant.clone(),
            run: Arc::clone(&run.context),
            spec: Arc::clone(spec),
            task: run.plan.graph().position(run.plan.task_id(task))? as usize,
            try_number: ti.try_number,
        })
    }

    /// Puts the run where time will find it.
    pub fn set_wake(&mut self, key: RunKey) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        let next = run.plan.next_wake();
        if run.on_wakes != next {
            if let Some(before) = run.on_wakes {
                self.wakes.remove(&(before, key));
            }
            self.wakes.extend(next.map(|at| (at, key)));
            run.on_wakes = next;
        }
    }

    pub fn expect_claim(&mut self, ti: TiKey, attempt: AttemptId, queued_at: Timestamp) {
        self.claims_due.insert((queued_at + self.deps.config.claim_timeout, ti, attempt));
    }

    /// Task instances of a run that was just read: who occupies, and who waits for what.
    fn recover_tasks(&mut self, key: RunKey) {
        let tasks: Vec<(TaskNo, TaskState)> =
            self.runs[&key].plan.tasks().map(|(task, ti)| (task, ti.state)).collect();
        for (task, state) in tasks {
            let ti = TiKey::unmapped(key, task);
            match state {
                TaskState::Scheduled => self.ready.push(self.candidate(key, task)),
                TaskState::Queued | TaskState::Running | TaskState::Restarting => {
                    let node = self.runs[&key].plan.task(task).and_then(|ti| ti.node.clone());
                    let attempt = self.runs[&key].plan.task(task).and_then(|ti| ti.attempt);
                    if let (TaskState::Restarting, Some(node), Some(attempt)) = (state, &node, attempt) {
                        // Whoever was to stop it may have died before saying so; saying it twice is harmless.
                        self.deps.dispatch.stop(node.clone(), attempt);
                    }
                    if let (Some(wish), Some(node)) = (self.wish(key, task), node) {
                        self.ledger.recover(ti, node, wish);
                    }
                }
                _ => {}
            }
            if state == TaskState::Queued
                && let Some(binding) = self.binding(key, task)
            {
                // Counted from now: while nobody owned the shard, nobody could take a claim.
                self.expect_claim(ti, binding.attempt, self.deps.clock.now());
            }
        }
    }

    /// A dag that was deleted and registered again counts its versions from one.
    pub fn forget_graphs(&mut self, dag: DagNo) {
        self.graphs.retain(|(of, _), _| *of != dag);
    }

    async fn graph(&mut self, dag: DagNo, header: &RunHeader) -> Result<Arc<DagGraph>, StoreError> {
        if let Some(graph) = self.graphs.get(&(dag, header.version)) {
            return Ok(Arc::clone(graph));
        }
        let version = self.deps.store.dag_version(&header.tenant, &header.dag, header.version).await?;
        let graph = isolated(|| Arc::new(DagGraph::new(version.spec))).map_err(|panic| {
            let what = format!("version {} of dag {}", header.version, header.dag);
            StoreError::Corrupt { what, source: format!("the scheduler panicked on it: {panic}").into() }
        })?;
        self.graphs.retain(|_, graph| Arc::strong_count(graph) > 1 || graph.len() < 1_000);
        if self.graphs.len() > 10_000 {
            self.graphs.retain(|_, graph| Arc::strong_count(graph) > 1);
        }
        self.graphs.insert((dag, header.version), Arc::clone(&graph));
        Ok(graph)
    }

    /// For a dag whose tasks depend on the past: what the previous run has come to.
    async fn look_at_past(&self, run: &mut ActiveRun) -> Result<(), StoreError> {
        let (true, Some(date)) = (run.plan.graph().depends_on_past(), run.header.logical_date) else {
            return Ok(());
        };
        let past = self.deps.store.past_run(&run.header.tenant, &run.header.dag, date).await?;
        if let Some(past) = past {
            run.past = Some(past.key);
            run.plan.set_past(Past::Run(past.tasks.into_iter().collect()));
        }
        Ok(())
    }
}
