//! What is counted. Nothing here may depend on time or chance: the same work gives the same count.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::json;
use tenure_clock::{Entropy, ManualClock};
use tenure_lease::{
    Campaign, Candidacy, Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Scope, Session, Tenure,
    WatchdogKind,
};
use tenure_model::{
    AttemptId, DagSpec, NewRun, NodeId, Outcome, RunId, RunState, RunType, ShardId, TaskInstance, TaskKind,
    TaskNo, TaskSpec, TaskState, TenantId, TiKey,
};
use tenure_placement::History;
use tenure_planner::{DagGraph, RunFacts, RunPlan};
use tenure_store::{
    AuditEntry, CachedTi, CreateRunOutcome, DagRegistration, IntentStore, Pass, RunChange, RunSnapshot,
    SchedulingStore, TiChange, Trigger,
};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::placement::{cluster, shapes};

/// Of the run that is planned: layers of so many tasks, each of which needs three of the layer before.
const LAYERS: usize = 20;
const LAYER: usize = 50;
const NODES: usize = 200;
const ATTEMPTS: usize = 2_000;
/// Of the run whose rows are written, each once in every pass.
const ROWS: usize = 200;
/// The states that its tasks go through, one pass for each step, and then from the beginning.
const LIFE: [TaskState; 5] =
    [TaskState::None, TaskState::Scheduled, TaskState::Queued, TaskState::Running, TaskState::Success];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    Planner,
    Placement,
    Commit,
}

impl Workload {
    pub const ALL: [Self; 3] = [Self::Planner, Self::Placement, Self::Commit];

    pub fn name(self) -> &'static str {
        match self {
            Self::Planner => "planner",
            Self::Placement => "placement",
            Self::Commit => "commit",
        }
    }

    pub fn figure(self) -> &'static str {
        match self {
            Self::Planner => "planner: a task of a run of 1,000, from its start to its end",
            Self::Placement => "placement: a decision among 200 nodes",
            Self::Commit => "commit of a pass on SQLite: a row of 200",
        }
    }

    /// What one repetition is divided by.
    pub fn units(self) -> usize {
        match self {
            Self::Planner => LAYERS * LAYER,
            Self::Placement => ATTEMPTS,
            Self::Commit => ROWS * LIFE.len(),
        }
    }

    /// Repetitions of the shorter run.
    pub fn times(self) -> usize {
        match self {
            Self::Planner => 4,
            Self::Placement => 1,
            Self::Commit => 2,
        }
    }

    pub fn run(self, times: usize) -> Result<()> {
        match self {
            Self::Planner => plan_runs(times),
            Self::Placement => place_attempts(times),
            Self::Commit => commit_passes(times),
        }
    }
}

/// A run from its start to its end, as its owner drives it: what is ready is bound, claimed and ended, layer by layer.
fn plan_runs(times: usize) -> Result<()> {
    let spec = DagSpec::new("layers", (0..LAYERS * LAYER).map(layered).collect());
    let graph = Arc::new(DagGraph::new(Arc::new(spec)));
    for _ in 0..times {
        let plan = plan_to_the_end(&graph);
        ensure!(plan.state() == RunState::Success, "the run ended as {}", plan.state());
    }
    Ok(())
}

fn layered(number: usize) -> TaskSpec {
    let task = TaskSpec::new(format!("t{number}"), TaskKind::Exec { argv: vec!["true".into()] });
    let Some(above) = (number / LAYER).checked_sub(1) else { return task };
    let needs = [0, 1, 7].map(|aside| format!("t{}", above * LAYER + (number + aside) % LAYER));
    task.needs(&needs.each_ref().map(String::as_str))
}

fn plan_to_the_end(graph: &Arc<DagGraph>) -> RunPlan {
    let facts = RunFacts {
        dag: graph.spec().id.clone(),
        run_id: RunId::new("r"),
        logical_date: None,
        state: RunState::Queued,
        started_at: None,
        read_at: at(0),
    };
    let tasks = graph.spec().tasks.iter();
    let tis = tasks.map(|task| (task.id.clone(), TaskInstance::untouched(task.retries))).collect();
    let mut plan = RunPlan::new(facts, Arc::clone(graph), tis);
    plan.start(at(0));
    for second in 1..=LAYERS as i64 + 1 {
        let now = at(second);
        plan.plan(now);
        let changes = black_box(plan.take_changes());
        for ready in changes.touched.iter().filter(|touched| touched.to.state == TaskState::Scheduled) {
            let task = ready.task;
            let attempt = attempt_of(task);
            plan.bind(task, attempt, NodeId::new("node"), now);
            plan.claim(task, attempt, now);
            plan.end(task, attempt, &Outcome::Success, now);
        }
    }
    plan
}

/// Attempts of forty kinds, half of them with wishes, each where it fits best.
fn place_attempts(times: usize) -> Result<()> {
    let nodes = cluster(NODES);
    let shapes: Vec<_> = shapes(false).into_iter().chain(shapes(true)).collect();
    let history = History::default();
    for _ in 0..times {
        let mut nodes = nodes.clone();
        let place = |attempt: &usize| nodes.place(&shapes[attempt % shapes.len()], &history).is_some();
        ensure!(
            (0..ATTEMPTS).filter(place).count() == ATTEMPTS,
            "the cluster is too small for what is counted"
        );
    }
    Ok(())
}

/// One run whose tasks go through their life together, a pass for each step.
fn commit_passes(times: usize) -> Result<()> {
    let clock = Arc::new(ManualClock::starting_at(at(0)));
    // In memory there are no threads that read: which of those is asked, and learns the schema first, is chance.
    let store = Arc::new(SqliteStore::in_memory(SqliteOptions::default(), clock.clone())?);
    // Two runtimes: the elector's stands still once there is an owner, so that none of its timers are counted.
    let (elections, work) = (runtime()?, runtime()?);
    let (_standing, tenure) = elections.block_on(owner(&store, clock))?;
    work.block_on(async {
        let mut run = queued_run(&store).await?;
        for step in 0..times * LIFE.len() {
            let pass = step_of_all(&run, LIFE[step % LIFE.len()], LIFE[(step + 1) % LIFE.len()]);
            let committed = store.commit_pass(&tenure.guard()?, &pass).await?;
            ensure!(committed.conflicts.is_empty(), "nobody else writes");
            run.header.revision += 1;
            for (cached, change) in run.tis.iter_mut().zip(&pass.runs[0].tis) {
                cached.ti = change.to.clone();
            }
        }
        Ok(())
    })
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Authority over the only shard, for as long as the first part is kept.
async fn owner(store: &Arc<SqliteStore>, clock: Arc<ManualClock>) -> Result<((Elector, Candidacy), Tenure)> {
    let entropy = Entropy::seeded(6);
    let session = Session(entropy.uuid(at(0)));
    let holder = Holder { name: "bench".into(), instance: "bench".into(), session, address: None };
    let parts = ElectorParts {
        leases: Arc::clone(store) as _,
        fences: Arc::clone(store) as _,
        clock,
        entropy,
        metrics: LeaseMetrics::default(),
    };
    let mut config = ElectorConfig::new(holder, Duration::from_secs(600));
    config.watchdog = WatchdogKind::Task; // a thread would count its rounds
    let elector = Elector::start(parts, config)?;
    let mut candidacy = elector.campaign(Campaign {
        component: "bench".into(),
        scopes: vec![Scope::new(ShardId(0).scope())],
        note: String::new(),
        sole_instance: false,
    });
    let tenure = candidacy.elected().await.context("nobody else stands")?;
    Ok(((elector, candidacy), tenure))
}

async fn queued_run(store: &SqliteStore) -> Result<RunSnapshot> {
    let tenant = TenantId::default_tenant();
    let trigger = Trigger { tenant: tenant.clone(), actor: "bench".into(), at: at(0) };
    let task = |number| TaskSpec::new(format!("t{number}"), TaskKind::Exec { argv: vec!["true".into()] });
    let registration = DagRegistration {
        trigger: trigger.clone(),
        spec: DagSpec::new("rows", (0..ROWS).map(task).collect()),
        source: String::new(),
        origin: "bench".into(),
        paused_if_new: true,
    };
    store.register_dag(&registration).await?;
    let run = NewRun {
        tenant,
        dag: "rows".into(),
        run_id: "r".into(),
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: at(0),
        conf: json!({}),
        note: None,
        triggered_by: "bench".into(),
        idempotency_key: None,
    };
    let CreateRunOutcome::Created(header) = store.create_run(&trigger, &run).await? else {
        bail!("the database is new");
    };
    store.load_runs(&[header.key]).await?.runs.pop().context("the run was created")
}

fn step_of_all(run: &RunSnapshot, from: TaskState, to: TaskState) -> Pass {
    let change = |cached: &CachedTi| TiChange {
        ti: TiKey { run: run.header.key, task: cached.task, map_index: cached.map_index },
        from,
        from_attempt: cached.ti.attempt,
        to: stepped(cached, to),
    };
    let told = |cached: &CachedTi| AuditEntry {
        task: Some(cached.task_id.clone()),
        map_index: None,
        event: "moved".into(),
        from: from.to_string(),
        to: to.to_string(),
        try_number: Some(1),
        attempt: cached.ti.attempt,
        node: cached.ti.node.clone(),
        reason: None,
    };
    let change = RunChange {
        run: run.header.key,
        revision: run.header.revision,
        state: None,
        tis: run.tis.iter().map(change).collect(),
        past_tries: vec![],
        results: vec![],
        audit: run.tis.iter().map(told).collect(),
    };
    Pass { runs: vec![change], ..Pass::new(at(1), "bench") }
}

fn stepped(cached: &CachedTi, state: TaskState) -> TaskInstance {
    let before = TaskInstance { state, ..cached.ti.clone() };
    match state {
        TaskState::Scheduled => TaskInstance { try_number: 1, scheduled_at: Some(at(1)), ..before },
        TaskState::Queued => TaskInstance {
            attempt: Some(attempt_of(cached.task)),
            node: Some(NodeId::new("node")),
            queued_at: Some(at(1)),
            ..before
        },
        TaskState::Running => TaskInstance { started_at: Some(at(1)), ..before },
        TaskState::Success => TaskInstance { ended_at: Some(at(1)), ..before },
        _ => TaskInstance::untouched(0),
    }
}

fn attempt_of(task: TaskNo) -> AttemptId {
    AttemptId(Uuid::from_u128(u128::from(task.0)))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}
