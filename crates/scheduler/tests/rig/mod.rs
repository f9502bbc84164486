//! The real scheduler on a real store; the test plays the agents.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod chief;
pub mod faulty;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;
use tenure_clock::{BootTime, Clock, Entropy, SystemClock};
use tenure_dispatch::{AssignError, DispatchMetrics, EnvSecrets, Executor, Link, PoolSize};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Elector, ElectorConfig, ElectorParts, Hint, Holder,
    LeaseError, LeaseMetrics, LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome,
    Scope, Session,
};
use tenure_model::{
    Ack, Assignment, AttemptId, DagSpec, FailReason, Held, NewRun, NodeId, Outcome, Report, ReportBody,
    Resources, RunId, RunType, TaskKind, TaskSpec, TenantId,
};
use tenure_outlook::Reasons;
use tenure_scheduler::{OwnerConfig, OwnerStatus, ReportDesk, Scheduler, SchedulerMetrics, SchedulerParts};
use tenure_store::{
    AuditQuery, AuditView, CreateRunOutcome, DagRegistration, NodeRegistration, Paging, RunView, SharedStore,
    TiQuery, TiView, Trigger,
};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, broadcast, mpsc, watch};

pub const PATIENCE: Duration = Duration::from_secs(10);

/// The agents of one process, played by the test. It can be made to block, nodes can go and come back.
pub struct Hands {
    assigned: mpsc::UnboundedSender<Assignment>,
    stopped: Mutex<Vec<AttemptId>>,
    pub open: Semaphore,
    /// How long it takes to hand one over.
    slow: Mutex<Duration>,
    /// The next hand-over panics.
    pub trap: AtomicBool,
    nodes: Mutex<BTreeMap<NodeId, FakeNode>>,
    links: watch::Sender<u64>,
}

struct FakeNode {
    link: u64,
    /// Absent: it is heard whenever somebody asks.
    heard: Option<BootTime>,
    /// What it says it holds. Absent: it does not answer.
    holds: Option<Vec<Held>>,
}

impl Hands {
    fn new(assigned: mpsc::UnboundedSender<Assignment>, doors: usize) -> Self {
        Self {
            assigned,
            stopped: Mutex::default(),
            open: Semaphore::new(doors),
            slow: Mutex::default(),
            trap: AtomicBool::new(false),
            nodes: Mutex::default(),
            links: watch::Sender::new(0),
        }
    }

    /// The node is there (again).
    pub fn connect(&self, node: &str, holds: Option<Vec<Held>>) {
        let mut nodes = self.nodes.lock().unwrap();
        let link = nodes.get(&NodeId::new(node)).map_or(1, |node| node.link + 1);
        nodes.insert(NodeId::new(node), FakeNode { link, heard: None, holds });
        drop(nodes);
        self.links.send_modify(|count| *count += 1);
    }

    pub fn disconnect(&self, node: &str) {
        self.nodes.lock().unwrap().remove(&NodeId::new(node));
        self.links.send_modify(|count| *count += 1);
    }

    /// From now on nothing is heard from it, though its connection stands.
    pub fn silence(&self, node: &str) {
        let mut nodes = self.nodes.lock().unwrap();
        nodes.get_mut(&NodeId::new(node)).unwrap().heard = Some(SystemClock.boottime());
    }

    /// From now on it takes so long to hand one over.
    pub fn slow_down(&self, time: Duration) {
        *self.slow.lock().unwrap() = time;
    }

    pub fn stopped(&self, attempt: AttemptId) -> bool {
        self.stopped.lock().unwrap().contains(&attempt)
    }
}

#[async_trait]
impl Executor for Hands {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        if self.link(&assignment.node).is_none() {
            return Err(AssignError::NotTaken { node: assignment.node, reason: "not connected".into() });
        }
        assert!(!self.trap.swap(false, Ordering::SeqCst), "planted");
        self.open.acquire().await.unwrap().forget();
        let slow = *self.slow.lock().unwrap();
        tokio::time::sleep(slow).await;
        let _ = self.assigned.send(assignment); // nobody plays any more
        Ok(())
    }

    fn link(&self, node: &NodeId) -> Option<Link> {
        let nodes = self.nodes.lock().unwrap();
        let node = nodes.get(node)?;
        Some(Link { id: node.link, heard: node.heard.unwrap_or_else(|| SystemClock.boottime()) })
    }

    fn linked(&self) -> Vec<NodeId> {
        self.nodes.lock().unwrap().keys().cloned().collect()
    }

    fn links(&self) -> watch::Receiver<u64> {
        self.links.subscribe()
    }

    async fn inventory(&self, node: &NodeId) -> Option<Vec<Held>> {
        self.nodes.lock().unwrap().get(node)?.holds.clone()
    }

    async fn stop(&self, _node: &NodeId, attempt: AttemptId) {
        self.stopped.lock().unwrap().push(attempt);
    }
}

pub struct Rig {
    pub store: SharedStore,
    pub clock: Arc<dyn Clock>,
    shards: u16,
}

/// One process that schedules.
pub struct Owner {
    pub scheduler: Scheduler,
    pub desk: ReportDesk,
    pub hands: Arc<Hands>,
    pub registry: Registry,
    assignments: mpsc::UnboundedReceiver<Assignment>,
    _process: Process,
}

/// A runtime of its own is what a process is here: it can be killed as a whole.
struct Process(Option<Runtime>);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.take().expect("it is dropped once").shutdown_background();
    }
}

pub struct Options {
    pub name: &'static str,
    pub pool: PoolSize,
    pub doors: usize,
    pub config: OwnerConfig,
    /// Takes over from whoever held the shard before, as a restarted process does.
    pub restarted: bool,
    /// Learns of a takeover from its next renewal or its next write, not from a hint.
    pub deaf: bool,
    /// Its node is connected when it begins.
    pub in_reach: bool,
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        let config = OwnerConfig { tick: Duration::from_millis(100), ..OwnerConfig::new("test") };
        Self {
            name: "test",
            pool: PoolSize::PRO,
            doors: Semaphore::MAX_PERMITS,
            config,
            restarted: true,
            deaf: false,
            in_reach: true,
            clock: Arc::new(SystemClock),
        }
    }
}

/// Reading it panics once, when the trap is set: what no caller expects.
#[derive(Debug, Default)]
pub struct TrappedClock(pub AtomicBool);

impl Clock for TrappedClock {
    fn now(&self) -> Timestamp {
        assert!(!self.0.swap(false, Ordering::SeqCst), "the trap");
        SystemClock.now()
    }
    fn boottime(&self) -> BootTime {
        SystemClock.boottime()
    }
    fn suspended(&self) -> Duration {
        SystemClock.suspended()
    }
}

/// A wall clock that stands where the test has set it; the time since boot goes on.
#[derive(Debug)]
pub struct WallClock(Mutex<Timestamp>);

impl WallClock {
    pub fn at(instant: &str) -> Arc<Self> {
        Arc::new(Self(Mutex::new(instant.parse().unwrap())))
    }

    pub fn set(&self, instant: Timestamp) {
        *self.0.lock().unwrap() = instant;
    }

    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
    fn boottime(&self) -> BootTime {
        SystemClock.boottime()
    }
    fn suspended(&self) -> Duration {
        SystemClock.suspended()
    }
}

/// A lease store from which no hints come.
struct Deaf(Arc<dyn LeaseStore>);

#[async_trait]
impl LeaseStore for Deaf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.0.acquire(request).await
    }
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.0.renew(claims).await
    }
    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.0.release(claim).await
    }
    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.0.list_leases(under).await
    }
    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.0.find_lease(scope).await
    }
    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.0.lease_history(scope, limit).await
    }
    fn watch(&self) -> broadcast::Receiver<Hint> {
        broadcast::Sender::new(1).subscribe()
    }
    async fn attach(&self, _: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        Ok(None)
    }
}

impl Rig {
    pub async fn new() -> Self {
        Self::with_shards(1).await
    }

    pub async fn with_shards(shards: u16) -> Self {
        // A failing test shows what the scheduler said.
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = SqliteOptions { shards };
        let store = Arc::new(SqliteStore::in_memory(options, Arc::clone(&clock)).unwrap());
        Self::on(store, shards).await
    }

    pub async fn on(store: SharedStore, shards: u16) -> Self {
        let rig = Self { store, clock: Arc::new(SystemClock), shards };
        rig.node(1_000).await;
        rig
    }

    pub async fn node(&self, tasks: u64) {
        self.named_node("n", tasks).await;
    }

    pub async fn named_node(&self, name: &str, tasks: u64) {
        let capacity = Resources::default().with(Resources::TASKS, tasks * 1_000);
        self.register_node(NodeRegistration::new(NodeId::new(name), capacity, "test")).await;
    }

    pub async fn register_node(&self, node: NodeRegistration) {
        self.store.register_node(&node, self.clock.now()).await.unwrap();
    }

    pub fn owner(&self, options: Options) -> Owner {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let entered = runtime.enter();
        let entropy = Entropy::from_os();
        let session = Session(entropy.uuid(self.clock.now()));
        let instance = options.name.to_owned();
        let holder = Holder { name: options.name.into(), instance, session, address: None };
        let lease_metrics = LeaseMetrics::default();
        let parts = ElectorParts {
            leases: if options.deaf { Arc::new(Deaf(self.store.clone())) } else { self.store.clone() },
            fences: self.store.clone(),
            clock: Arc::clone(&self.clock),
            entropy: entropy.clone(),
            metrics: lease_metrics.clone(),
        };
        let elector = Elector::start(parts, ElectorConfig::new(holder, Duration::from_secs(10))).unwrap();
        let (assigned, assignments) = mpsc::unbounded_channel();
        let hands = Arc::new(Hands::new(assigned, options.doors));
        if options.in_reach {
            hands.connect("n", None);
        }
        let mut registry = Registry::default();
        let scheduler = Scheduler::start(SchedulerParts {
            store: self.store.clone(),
            elector: Arc::new(elector),
            shards: self.shards,
            executor: Arc::clone(&hands) as _,
            secrets: Arc::new(EnvSecrets),
            pool: options.pool,
            clock: options.clock,
            entropy,
            metrics: SchedulerMetrics::register(&mut registry),
            lease_metrics,
            dispatch_metrics: DispatchMetrics::register(&mut registry),
            config: options.config,
            sole_instance: options.restarted,
        });
        let desk = scheduler.desk();
        drop(entered);
        Owner { scheduler, desk, hands, registry, assignments, _process: Process(Some(runtime)) }
    }

    pub fn user(&self) -> Trigger {
        Trigger { tenant: TenantId::default_tenant(), actor: "tester".into(), at: self.clock.now() }
    }

    pub async fn register(&self, spec: DagSpec) {
        let registration = DagRegistration {
            trigger: self.user(),
            spec,
            source: String::new(),
            origin: "test".into(),
            paused_if_new: false,
        };
        self.store.register_dag(&registration).await.unwrap();
    }

    pub async fn trigger(&self, dag: &str, run: &str) {
        let created = self.store.create_run(&self.user(), &self.new_run(dag, run)).await.unwrap();
        assert!(matches!(created, CreateRunOutcome::Created(_)));
    }

    pub fn new_run(&self, dag: &str, run: &str) -> NewRun {
        NewRun {
            tenant: TenantId::default_tenant(),
            dag: dag.into(),
            run_id: RunId::new(run),
            run_type: RunType::Manual,
            logical_date: None,
            data_interval: None,
            run_after: self.clock.now(),
            conf: json!({}),
            note: None,
            triggered_by: "test".into(),
            idempotency_key: None,
        }
    }

    pub async fn run(&self, dag: &str, run: &str) -> RunView {
        self.store.get_run(&TenantId::default_tenant(), &dag.into(), &run.into()).await.unwrap().unwrap()
    }

    pub async fn tis(&self, dag: &str, run: &str) -> Vec<TiView> {
        let query = TiQuery::of_run(TenantId::default_tenant(), dag.into(), run.into());
        self.store.list_tis(&query).await.unwrap().items
    }

    pub async fn states(&self, dag: &str, run: &str) -> String {
        let tis = self.tis(dag, run).await;
        tis.iter().map(|ti| ti.instance.state.as_str()).collect::<Vec<_>>().join(" ")
    }

    pub async fn wait_states(&self, dag: &str, run: &str, wanted: &str) {
        let reached = async {
            while self.states(dag, run).await != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("{dag}/{run} is {:?}, not {wanted:?}", self.states(dag, run).await);
        }
    }

    pub async fn wait_end(&self, dag: &str, run: &str) -> RunView {
        let ended = async {
            loop {
                let view = self.run(dag, run).await;
                if view.state.is_finished() {
                    return view;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("{dag}/{run} does not end"))
    }

    /// What a user is told who asks why tasks of these runs wait.
    pub async fn why(&self, dags: &[&str], run: &str) -> String {
        let mut keys = vec![];
        for dag in dags {
            keys.push(self.run(dag, run).await.key);
        }
        let runs = self.store.load_runs(&keys).await.unwrap().runs;
        let reasons = Reasons::of(&*self.store, &runs, self.clock.now()).await.unwrap();
        reasons.tasks.into_values().collect::<Vec<String>>().join("; ")
    }

    /// The audit trail of a run, oldest first.
    pub async fn trail(&self, dag: &str, run: &str) -> Vec<AuditView> {
        let query = AuditQuery {
            tenant: TenantId::default_tenant(),
            dag: Some(dag.into()),
            run: Some(run.into()),
            after_seq: None,
            paging: Paging { limit: 1_000, ..Paging::default() },
        };
        self.store.list_audit(&query).await.unwrap().items
    }
}

impl Owner {
    pub async fn next(&mut self) -> Assignment {
        let next = tokio::time::timeout(PATIENCE, self.assignments.recv()).await;
        next.expect("an assignment within the time").expect("the owner lives")
    }

    pub fn try_next(&mut self) -> Option<Assignment> {
        self.assignments.try_recv().ok()
    }

    pub fn nothing_yet(&mut self) -> bool {
        self.assignments.try_recv().is_err()
    }

    /// Nothing is handed out for this long.
    pub async fn nothing_for(&mut self, time: Duration) {
        if let Ok(next) = tokio::time::timeout(time, self.assignments.recv()).await {
            panic!("{next:?} was handed out");
        }
    }

    pub async fn claim(&self, assignment: &Assignment) -> Ack {
        claim_through(&self.desk, assignment).await
    }

    pub async fn end(&self, assignment: &Assignment, outcome: Outcome) -> Ack {
        end_through(&self.desk, assignment, outcome).await
    }

    /// Plays one attempt to its end.
    pub async fn play(&mut self, outcome: Outcome) -> Assignment {
        let assignment = self.next().await;
        assert_eq!(self.claim(&assignment).await, Ack::Accepted);
        assert_eq!(self.end(&assignment, outcome).await, Ack::Accepted);
        assignment
    }

    /// Stops travel beside assignments, in no particular order.
    pub async fn wait_stopped(&self, attempt: AttemptId) {
        wait(&format!("{attempt} is stopped"), || self.hands.stopped(attempt)).await;
    }

    /// Where it stands with its only shard.
    pub fn status(&self) -> OwnerStatus {
        self.scheduler.handle().status().remove(0)
    }

    /// The shards it works on.
    pub fn owned(&self) -> Vec<Scope> {
        let shards = self.scheduler.handle().status();
        shards.into_iter().filter(|shard| shard.ready).map(|shard| shard.scope).collect()
    }

    /// A counter or gauge, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        metric(&self.registry, name)
    }

    /// The process is gone without a word; its lease stays.
    pub fn kill(self) {}
}

fn metric(registry: &Registry, name: &str) -> f64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let lines =
        text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

pub async fn wait(what: &str, mut reached: impl FnMut() -> bool) {
    let waiting = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("not within the time: {what}");
    }
}

pub fn held(assignment: &Assignment) -> Held {
    Held { attempt: assignment.attempt, ti: assignment.ti, scope: assignment.scope.clone() }
}

pub fn exec(id: &str) -> TaskSpec {
    TaskSpec::new(id, TaskKind::Exec { argv: vec!["x".into()] })
}

/// Databases keep microseconds.
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap()
}

pub fn failed() -> Outcome {
    Outcome::Failed { reason: FailReason::Exit { code: 1 } }
}

/// As an agent says it, to whichever process listens.
pub async fn claim_through(desk: &ReportDesk, assignment: &Assignment) -> Ack {
    let (attempt, ti) = (assignment.attempt, assignment.ti);
    say(desk, assignment, ReportBody::Claim { attempt, ti }).await
}

pub async fn end_through(desk: &ReportDesk, assignment: &Assignment, outcome: Outcome) -> Ack {
    let (attempt, ti, ended_at) = (assignment.attempt, assignment.ti, SystemClock.now());
    say(desk, assignment, ReportBody::End { attempt, ti, outcome, ended_at, result: None }).await
}

pub fn report(assignment: &Assignment, body: ReportBody) -> Report {
    Report { node: assignment.node.clone(), scope: assignment.scope.clone(), body }
}

async fn say(desk: &ReportDesk, assignment: &Assignment, body: ReportBody) -> Ack {
    let said = desk.submit(report(assignment, body));
    tokio::time::timeout(PATIENCE, said).await.expect("an answer within the time")
}
