//! Goal: whoever waits is told what for, in words that name the limit, from rows alone.

use std::sync::Arc;

use tenure_model::{
    DagSpec, NodeId, PoolName, Resources, RunId, RunType, ShardId, TaskKind, TaskNo, TaskSpec, TenantId,
};
use tenure_store::{NodeRecord, Occupancy, PoolRecord, PresenceView};

use super::*;
use crate::picture::Specs;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn task(id: &str) -> TaskSpec {
    TaskSpec::new(id, TaskKind::Bash { script: "true".into() })
}

/// A run of `spec` with its tasks in these states: `a=scheduled b=none`.
fn run(spec: &DagSpec, state: RunState, states: &str) -> RunSnapshot {
    let header = RunHeader {
        key: RunKey(1),
        tenant: TenantId::default_tenant(),
        dag: spec.id.clone(),
        run_id: RunId::new("r"),
        version: 1,
        shard: ShardId(0),
        state,
        revision: 1,
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: at(0),
        queued_at: at(0),
        started_at: None,
        conf: serde_json::json!({}),
    };
    let cached = |(number, text): (usize, &str)| {
        let (id, state) = text.split_once('=').unwrap();
        let state = TaskState::parse(state).unwrap();
        let ti = TaskInstance { state, try_number: 1, ended_at: Some(at(0)), ..TaskInstance::untouched(1) };
        CachedTi { task: TaskNo(number as u32), map_index: TiKey::UNMAPPED, task_id: TaskId::new(id), ti }
    };
    RunSnapshot { header, tis: states.split_whitespace().enumerate().map(cached).collect() }
}

fn node(name: &str, cpu: u64) -> NodeRecord {
    NodeRecord {
        node: NodeId::new(name),
        capacity: Resources::default().with(Resources::CPU, cpu * 1_000).with(Resources::TASKS, 8_000),
        labels: Default::default(),
        taints: Default::default(),
        queues: [tenure_model::QueueName::default()].into(),
        version: "1".into(),
        registered_at: at(0),
        drain: None,
        removed: false,
    }
}

/// Two nodes that are heard (4 cpus and 1), one of which nobody has heard, and a pool with one slot.
pub(crate) fn picture(bound: &[Occupancy], specs: &Specs) -> Picture {
    let nodes = vec![node("big", 4), node("small", 1), node("silent", 64)];
    let pools = [PoolName::DEFAULT, "etl"].map(|name| PoolRecord {
        name: name.into(),
        slots: if name == "etl" { 1 } else { 128 },
        description: String::new(),
    });
    let heard = vec![PresenceView {
        replica: "r1".into(),
        at: at(0),
        nodes: vec![NodeId::new("big"), NodeId::new("small")],
    }];
    Picture::of(nodes, &pools, bound, heard, specs)
}

fn told(spec: &DagSpec, run: &RunSnapshot, paused: bool, running_runs: u32, bound: &[Occupancy]) -> Reasons {
    let tenant = TenantId::default_tenant();
    let specs: Specs = [((tenant.clone(), spec.id.clone(), 1), Arc::new(spec.clone()))].into();
    let picture = picture(bound, &specs);
    let activity = DagActivity { tenant, dag: spec.id.clone(), paused, running_runs };
    let cluster = picture.cluster(Policy::default());
    let mut reasons = Reasons::default();
    Scene { picture: &picture, cluster: &cluster, activity: &activity, spec, run, now: at(100) }
        .tell(&mut reasons);
    reasons
}

pub(crate) fn bound(spec: &DagSpec, task: &str, node: &str) -> Occupancy {
    Occupancy {
        node: NodeId::new(node),
        tenant: TenantId::default_tenant(),
        dag: spec.id.clone(),
        version: 1,
        task: TaskId::new(task),
        state: TaskState::Running,
        count: 1,
    }
}

#[test]
fn a_quota_that_is_used_up_is_named_with_its_resource() {
    let ask = |cpus: u64| TaskSpec {
        resources: Resources::default().with(Resources::CPU, cpus * 1_000),
        ..task("a")
    };
    let told = |cpus: u64, bound: &[Occupancy]| {
        let (spec, tenant) = (DagSpec::new("d", vec![ask(cpus)]), TenantId::default_tenant());
        let specs: Specs = [((tenant.clone(), spec.id.clone(), 1), Arc::new(spec.clone()))].into();
        let most = Resources::default().with(Resources::CPU, 1_000);
        let picture = picture(bound, &specs).with_quota(tenant.clone(), most);
        picture
            .holdup(&picture.cluster(Policy::default()), &tenant, &spec.id, &spec.tasks[0])
            .map(|why| why.to_string())
    };
    let other = DagSpec::new("d", vec![]);
    assert_eq!(told(1, &[]), None);
    assert_eq!(told(2, &[]).as_deref(), Some("tenant default may take 1 cpu, and it asks for 2"));
    let running = bound(&other, "a", "big");
    assert_eq!(told(1, &[running]).as_deref(), Some("tenant default takes all it may (1 cpu)"));
}

/// What the first task is told.
#[track_caller]
fn check(spec: DagSpec, states: &str, bound: &[Occupancy], expected: &str) {
    let run = run(&spec, RunState::Running, states);
    let reasons = told(&spec, &run, false, 1, bound);
    let first = reasons.tasks.values().next().expect("a reason");
    assert!(first.contains(expected), "{first:?} does not say {expected:?}");
}

#[test]
fn a_task_that_fits_nowhere_hears_of_every_node() {
    let needs = |cpu: u64| TaskSpec {
        resources: Resources::default().with(Resources::CPU, cpu * 1_000),
        ..task("a")
    };
    let greedy = DagSpec::new("d", vec![needs(16)]);
    check(greedy.clone(), "a=scheduled", &[], "1 not connected");
    check(greedy, "a=scheduled", &[], "2 ");
    let large = DagSpec::new("d", vec![needs(3)]);
    check(large.clone(), "a=scheduled", &[], "there is room");
    check(large.clone(), "a=scheduled", &[bound(&large, "a", "big")], "busy");
}

#[test]
fn limits_are_told_with_their_numbers() {
    let pooled = DagSpec::new("d", vec![TaskSpec { pool: "etl".into(), ..task("a") }]);
    check(pooled.clone(), "a=scheduled", &[bound(&pooled, "a", "big")], "pool etl is full (1 slots)");
    let missing = DagSpec::new("d", vec![TaskSpec { pool: "gpu".into(), ..task("a") }]);
    check(missing, "a=scheduled", &[], "pool gpu does not exist");
    let narrow = DagSpec { max_active_tasks: 1, ..DagSpec::new("d", vec![task("a"), task("b")]) };
    check(narrow, "a=scheduled b=running", &[], "its run has max_active_tasks (1) running");
    let single = DagSpec::new("d", vec![TaskSpec { max_active_per_dag: Some(1), ..task("a") }]);
    check(single.clone(), "a=scheduled", &[bound(&single, "a", "big")], "max_active_per_dag");
}

#[test]
fn what_comes_before_is_counted_and_named() {
    let join = |needs: &[&str]| {
        let mut tasks = vec![task("z").needs(needs)];
        tasks.extend(needs.iter().map(|id| task(id)));
        DagSpec::new("d", tasks)
    };
    check(
        join(&["a", "b", "c"]),
        "z=none a=success b=running c=scheduled",
        &[],
        "waits for 2 of 3 upstream tasks: b, c",
    );
    check(join(&["a"]), "z=none a=running", &[], "waits for 1 of 1 upstream task: a");
    check(
        join(&["a", "b", "c", "e"]),
        "z=none a=none b=none c=none e=none",
        &[],
        "waits for 4 of 4 upstream tasks: a, b, c, …",
    );
}

#[test]
fn a_retry_says_when() {
    let spec = DagSpec::new(
        "d",
        vec![TaskSpec { retries: 3, retry_delay: std::time::Duration::from_secs(300), ..task("a") }],
    );
    check(spec, "a=up_for_retry", &[], "next try at 1970-01-01T00:05:00Z");
}

#[test]
fn a_run_that_has_not_begun_says_why_and_so_do_its_tasks() {
    let spec = DagSpec { max_active_runs: 2, ..DagSpec::new("d", vec![task("a")]) };
    let queued = run(&spec, RunState::Queued, "a=none");
    let why = |paused, running| {
        let reasons = told(&spec, &queued, paused, running, &[]);
        let (of_run, of_task) = (&reasons.runs[&RunKey(1)], reasons.tasks.values().next().unwrap());
        assert_eq!(of_task, &format!("its run waits: {of_run}"));
        of_run.clone()
    };
    assert_eq!(why(true, 0), "its dag is paused");
    assert_eq!(why(false, 2), "its dag has max_active_runs (2) running");
    assert_eq!(why(false, 1), "it is about to start");
    let mut later = queued.clone();
    later.header.run_after = at(3_600);
    let reasons = told(&spec, &later, false, 0, &[]);
    assert_eq!(reasons.runs[&RunKey(1)], "starts at 1970-01-01T01:00:00Z");
}

#[test]
fn a_paused_dag_holds_up_what_is_ready_and_finished_tasks_have_no_reason() {
    let spec = DagSpec::new("d", vec![task("a"), task("b"), task("c")]);
    let run = run(&spec, RunState::Running, "a=scheduled b=success c=running");
    let reasons = told(&spec, &run, true, 1, &[]);
    assert_eq!(reasons.tasks.into_values().collect::<Vec<_>>(), ["its dag is paused"]);
    assert!(reasons.runs.is_empty());
}
