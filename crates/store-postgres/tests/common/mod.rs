//! A store on a real server, with a dag, a run and an owner.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Campaign, Candidacy, Claim, Elector, ElectorConfig, ElectorParts, Holder,
    LeaseMetrics, LeaseRecord, LeaseStore, Scope, Session, Takeover, Tenure, Term,
};
use tenure_model::{
    AttemptId, DagSpec, NewRun, Outcome, Report, ReportBody, RunKey, RunState, RunType, ShardId, TaskKind,
    TaskSpec, TaskState, TenantId, TiKey,
};
use tenure_store::{
    AuditEntry, CreateRunOutcome, DagRegistration, IntentStore, Pass, RunChange, RunHeader, RunSnapshot,
    SchedulingStore, StateChange, TiChange, Trigger,
};
use tenure_store_postgres::{PostgresLeaseOptions, PostgresLeases, PostgresOptions, PostgresStore};
use tenure_testkit::wait_for;
use tokio_postgres::{Client, NoTls};

pub const SOON: Duration = Duration::from_secs(20);
pub const LONG: Duration = Duration::from_secs(600);

pub async fn store(url: &str, pool_size: usize) -> Arc<PostgresStore> {
    sharded(url, 1, pool_size).await
}

pub async fn sharded(url: &str, shards: u16, pool_size: usize) -> Arc<PostgresStore> {
    let options = PostgresOptions { shards, pool_size, ..PostgresOptions::default() };
    Arc::new(PostgresStore::connect(url, options, &Entropy::from_os()).await.expect("connected"))
}

pub async fn leases(url: &str) -> Arc<PostgresLeases> {
    let options = PostgresLeaseOptions::default();
    Arc::new(PostgresLeases::connect(url, options, &Entropy::from_os()).await.expect("connected"))
}

/// A session of the test's own, beside the store.
pub async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(SystemClock.now().as_microsecond()).expect("in range")
}

pub fn user() -> Trigger {
    Trigger { tenant: TenantId::default_tenant(), actor: "ada".into(), at: now() }
}

pub fn scope() -> Scope {
    Scope::new(ShardId(0).scope())
}

pub fn holder(name: &str) -> Holder {
    Holder { name: name.into(), instance: "test".into(), session: session(), address: None }
}

pub fn session() -> Session {
    Session(Entropy::from_os().uuid(now()))
}

pub fn term() -> Term {
    Term(Entropy::from_os().uuid(now()))
}

pub fn request(scope: &Scope, takeover: Takeover) -> AcquireRequest {
    AcquireRequest {
        scope: scope.clone(),
        holder: holder("heir"),
        term: term(),
        duration: LONG,
        takeover,
        note: String::new(),
    }
}

pub async fn granted(leases: &dyn LeaseStore, request: &AcquireRequest) -> LeaseRecord {
    match leases.acquire(request).await.expect("answered") {
        AcquireOutcome::Granted(record) => record,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

/// A takeover from a term that is believed to be dead.
pub fn takeover(of: &Tenure) -> AcquireRequest {
    request(of.scope(), Takeover::OfDead(of.term()))
}

/// Somebody who stands for the shard, for as long as it is kept.
pub struct Standing {
    elector: Elector,
    _candidacy: Candidacy,
}

impl Standing {
    pub async fn stop(&self) {
        self.elector.stop().await;
    }
}

pub async fn owner(store: &Arc<PostgresStore>) -> (Standing, Tenure) {
    leader(store, scope()).await
}

pub async fn leader(store: &Arc<PostgresStore>, scope: Scope) -> (Standing, Tenure) {
    let parts = ElectorParts {
        leases: Arc::clone(store) as _,
        fences: Arc::clone(store) as _,
        clock: Arc::new(SystemClock),
        entropy: Entropy::from_os(),
        metrics: LeaseMetrics::default(),
    };
    let elector = Elector::start(parts, ElectorConfig::new(holder("owner"), LONG)).expect("slack");
    let campaign = Campaign {
        component: "tests".into(),
        scopes: vec![scope],
        note: String::new(),
        sole_instance: false,
    };
    let mut candidacy = elector.campaign(campaign);
    let tenure = tokio::time::timeout(SOON, candidacy.elected()).await.expect("free").expect("it goes on");
    (Standing { elector, _candidacy: candidacy }, tenure)
}

pub async fn register(store: &PostgresStore, dag: &str, tasks: usize) {
    let tasks = (0..tasks).map(|number| TaskSpec::new(format!("t{number}"), TaskKind::Empty)).collect();
    let registration = DagRegistration {
        trigger: user(),
        spec: DagSpec::new(dag, tasks),
        source: String::new(),
        origin: "test".into(),
        paused_if_new: false,
    };
    store.register_dag(&registration).await.expect("registered");
}

pub fn new_run(dag: &str, run_id: &str) -> NewRun {
    NewRun {
        tenant: TenantId::default_tenant(),
        dag: dag.into(),
        run_id: run_id.into(),
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: now(),
        conf: json!({}),
        note: None,
        triggered_by: "ada".into(),
        idempotency_key: None,
    }
}

pub async fn trigger(store: &PostgresStore, dag: &str, run_id: &str) -> RunHeader {
    match store.create_run(&user(), &new_run(dag, run_id)).await.expect("created") {
        CreateRunOutcome::Created(header) => header,
        CreateRunOutcome::Replayed(_) => panic!("no key was given"),
    }
}

pub async fn load(store: &PostgresStore, run: RunKey) -> RunSnapshot {
    store.load_runs(&[run]).await.expect("loaded").runs.pop().expect("the run exists")
}

/// Starts the run and moves every task that is `from` to `to`.
pub fn change(run: &RunSnapshot, from: TaskState, to: TaskState) -> RunChange {
    let queued = run.header.state == RunState::Queued;
    let change = |cached: &tenure_store::CachedTi| TiChange {
        ti: TiKey { run: run.header.key, task: cached.task, map_index: cached.map_index },
        from,
        from_attempt: cached.ti.attempt,
        to: tenure_model::TaskInstance { state: to, scheduled_at: Some(now()), ..cached.ti.clone() },
    };
    let entry = |cached: &tenure_store::CachedTi| AuditEntry {
        task: Some(cached.task_id.clone()),
        map_index: None,
        event: "moved".into(),
        from: from.to_string(),
        to: to.to_string(),
        try_number: None,
        attempt: None,
        node: None,
        reason: None,
    };
    let moved: Vec<_> = run.tis.iter().filter(|cached| cached.ti.state == from).collect();
    RunChange {
        run: run.header.key,
        revision: run.header.revision,
        state: queued.then(|| StateChange {
            from: RunState::Queued,
            to: RunState::Running,
            at: now(),
            reason: None,
        }),
        tis: moved.iter().map(|cached| change(cached)).collect(),
        past_tries: vec![],
        results: vec![],
        audit: moved.iter().map(|cached| entry(cached)).collect(),
    }
}

/// A running run of which every task is bound to a node, under an attempt of its own.
pub async fn bound(store: &PostgresStore, tenure: &Tenure, dag: &str, run_id: &str) -> RunSnapshot {
    let run = load(store, trigger(store, dag, run_id).await.key).await;
    let mut bound = change(&run, TaskState::None, TaskState::Queued);
    for change in &mut bound.tis {
        change.to.attempt = Some(AttemptId(Entropy::from_os().uuid(now())));
        change.to.node = Some("n1".into());
        change.to.try_number = 1;
    }
    let guard = tenure.guard().expect("leads");
    let committed = store.commit_pass(&guard, &pass(vec![bound])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![]);
    load(store, run.header.key).await
}

fn report(run: &RunSnapshot, task: usize, body: impl FnOnce(AttemptId, TiKey) -> ReportBody) -> Report {
    let cached = &run.tis[task];
    let ti = TiKey { run: run.header.key, task: cached.task, map_index: cached.map_index };
    let attempt = cached.ti.attempt.expect("it is bound");
    Report { node: "n1".into(), scope: run.header.shard.scope(), body: body(attempt, ti) }
}

pub fn claim_of(run: &RunSnapshot, task: usize) -> Report {
    report(run, task, |attempt, ti| ReportBody::Claim { attempt, ti })
}

pub fn end_of(run: &RunSnapshot, task: usize) -> Report {
    let (outcome, result, ended_at) = (Outcome::Success, Some(json!(1)), now());
    report(run, task, |attempt, ti| ReportBody::End { attempt, ti, outcome, ended_at, result })
}

/// A dag for each shard, in order.
pub fn dags_of_shards(shards: u16) -> Vec<String> {
    let tenant = TenantId::default_tenant();
    let dag_in = |shard: u16| {
        let mut names = (0..).map(|number| format!("dag-{number}"));
        names
            .find(|dag| ShardId::of(&tenant, &dag.as_str().into(), shards).0 == shard)
            .expect("there are many")
    };
    (0..shards).map(dag_in).collect()
}

pub fn pass(runs: Vec<RunChange>) -> Pass {
    Pass { runs, ..Pass::new(now(), "owner") }
}

/// Until a session of this database waits for a lock in a statement that begins like this.
pub async fn parked(observer: &Client, statement: &str) {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() \
               AND wait_event_type = 'Lock' AND query LIKE $1 || '%' LIMIT 1";
    wait_for(statement, SOON, || async { observer.query_opt(sql, &[&statement]).await.expect("answered") })
        .await;
}
