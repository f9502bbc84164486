//! Goal: an owner keeps its promises towards agents, users and other owners.
//! Method: the real scheduler on a real store; the test plays the agent, one fact per test.

mod rig;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use rig::{Options, Rig, TrappedClock, exec, failed, held, wait, whole_second};
use tenure_clock::Entropy;
use tenure_dispatch::PoolSize;
use tenure_model::{
    Ack, AttemptId, DagSpec, FailReason, NewRun, NodeId, Outcome, PoolName, Report, ReportBody, Resources,
    RunId, RunState, RunType, Schedule, TaskKind, TaskSpec, TaskState, TenantId, TiKey,
};
use tenure_scheduler::OwnerConfig;
use tenure_store::{NodeRegistration, PoolRecord, Trigger};

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_runs_to_success_and_every_step_is_in_the_audit_trail() {
    let rig = Rig::new().await;
    let mut owner = rig.owner(Options::default());
    rig.register(DagSpec::new("d", vec![exec("a"), exec("b").needs(&["a"])])).await;
    rig.trigger("d", "r").await;
    assert_eq!(owner.play(Outcome::Success).await.task.as_str(), "a");
    assert_eq!(owner.play(Outcome::Success).await.task.as_str(), "b");
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    let audit = rig.trail("d", "r").await;
    let events: Vec<&str> =
        audit.iter().flat_map(|row| &row.entries).map(|entry| entry.event.as_str()).collect();
    for event in ["started", "scheduled", "bound", "claimed", "succeeded", "finished"] {
        assert!(events.contains(&event), "{event} is missing from {events:?}");
    }
    assert!(audit.iter().filter(|row| row.actor == "test").all(|row| row.epoch == Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_was_never_handed_out_is_handed_out_by_the_next_owner_and_starts_once() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    // The first owner commits the binding, and dies before its executor gets it.
    let first = rig.owner(Options { doors: 0, ..Options::default() });
    rig.trigger("d", "r").await;
    rig.wait_states("d", "r", "queued").await;
    let bound = rig.tis("d", "r").await[0].instance.attempt;
    first.kill();
    let mut second = rig.owner(Options::default());
    let assignment = second.next().await;
    assert_eq!(Some(assignment.attempt), bound, "the same attempt, under a new epoch");
    assert_eq!(assignment.epoch, 2);
    assert_eq!(second.claim(&assignment).await, Ack::Accepted);
    assert_eq!(second.claim(&assignment).await, Ack::Accepted, "a repeated question gets the same answer");
    assert_eq!(second.end(&assignment, Outcome::Success).await, Ack::Accepted);
    assert_eq!(second.end(&assignment, Outcome::Success).await, Ack::Superseded, "it is known already");
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_panics_gives_the_shard_back_and_takes_it_again() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let clock = Arc::new(TrappedClock::default());
    let mut owner = rig.owner(Options { clock: clock.clone(), ..Options::default() });
    rig.trigger("d", "before").await;
    let assignment = owner.next().await;
    assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
    clock.0.store(true, Ordering::SeqCst);
    rig.trigger("d", "after").await;
    let next = owner.next().await;
    assert!(next.epoch > assignment.epoch, "under the next term");
    assert_eq!(owner.claim(&next).await, Ack::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_owner_decides_nothing_more_and_what_agents_tell_it_still_counts() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut first = rig.owner(Options { restarted: false, deaf: true, ..Options::default() });
    rig.trigger("d", "r").await;
    let assignment = first.next().await;
    // A second owner takes over while the first believes to lead.
    let mut second = rig.owner(Options::default());
    let again = second.next().await;
    assert_eq!(again.attempt, assignment.attempt);
    // The fence refuses the first one's pass; the claim is then recorded by itself, and the second one sees it.
    assert_eq!(first.claim(&assignment).await, Ack::Accepted);
    assert_eq!(second.claim(&again).await, Ack::Accepted);
    assert_eq!(second.end(&again, Outcome::Success).await, Ack::Accepted);
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    let epochs: Vec<u64> = rig.trail("d", "r").await.iter().filter_map(|row| row.epoch).collect();
    assert!(epochs.is_sorted() && epochs.last() == Some(&2), "{epochs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_nobody_claims_is_placed_again_under_a_new_id() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let config = OwnerConfig { claim_timeout: Duration::from_millis(200), ..Options::default().config };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    let second = owner.next().await;
    assert_ne!(first.attempt, second.attempt);
    assert_eq!(second.try_number, 1, "it costs no try");
    owner.wait_stopped(first.attempt).await;
    assert_eq!(owner.claim(&first).await, Ack::Superseded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_dispatch_pool_leaves_tasks_scheduled_and_loses_none() {
    let rig = Rig::new().await;
    let tasks = (0..10).map(|n| exec(&format!("t{n}"))).collect();
    rig.register(DagSpec::new("d", tasks)).await;
    let mut owner = rig.owner(Options { pool: PoolSize::LITE, doors: 0, ..Options::default() });
    rig.trigger("d", "r").await;
    rig.wait_states("d", "r", &format!("queued queued{}", " scheduled".repeat(8))).await;
    assert_eq!(owner.metric("tenure_dispatch_queue_depth"), 2.0);
    assert!(owner.metric("tenure_dispatch_at_capacity_total") > 0.0);
    owner.hands.open.add_permits(100);
    for _ in 0..10 {
        owner.play(Outcome::Success).await;
    }
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    wait("nothing is being handed over", || owner.metric("tenure_dispatch_queue_depth") == 0.0).await;
    assert_eq!(owner.metric("tenure_dispatch_latency_seconds_count"), 10.0);
    assert!(owner.metric("tenure_dispatch_latency_seconds_sum") > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_cannot_be_prepared_fails_with_its_reason_and_the_others_run() {
    let rig = Rig::new().await;
    let broken = TaskSpec::new("broken", TaskKind::Exec { argv: vec!["{{ nope }}".into()] });
    rig.register(DagSpec::new("d", vec![broken, exec("fine")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    assert_eq!(owner.play(Outcome::Success).await.task.as_str(), "fine");
    rig.wait_end("d", "r").await;
    let tis = rig.tis("d", "r").await;
    assert_eq!(tis[0].instance.state, TaskState::Failed);
    assert!(
        tis[0].instance.reason.as_ref().unwrap().starts_with("could not start: template in exec, line 1")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dags_take_turns_when_places_are_few() {
    let rig = Rig::new().await;
    rig.node(1).await;
    let many = (0..20).map(|n| exec(&format!("t{n}"))).collect();
    rig.register(DagSpec::new("big", many)).await;
    rig.register(DagSpec::new("small", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("big", "r").await;
    let first = owner.next().await;
    rig.trigger("small", "r").await;
    rig.wait_states("small", "r", "scheduled").await;
    owner.claim(&first).await;
    owner.end(&first, Outcome::Success).await;
    let next_two = [owner.play(Outcome::Success).await.dag, owner.play(Outcome::Success).await.dag];
    assert!(
        next_two.iter().any(|dag| dag.as_str() == "small"),
        "small waited behind all of big: {next_two:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_pool_holds_its_tasks_and_says_so_until_it_is_there() {
    let rig = Rig::new().await;
    let task = TaskSpec { pool: PoolName::new("rare"), ..exec("a") };
    rig.register(DagSpec::new("d", vec![task])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    rig.wait_states("d", "r", "scheduled").await;
    let told = || owner.status().waiting.contains(&("pool", 1));
    wait("the reason is shown", told).await;
    let why = rig.why(&["d"], "r").await;
    assert!(why.contains("rare does not exist"), "{why}");
    let pool = PoolRecord { name: PoolName::new("rare"), slots: 1, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    owner.play(Outcome::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_different_sizes_share_a_pool_without_stopping_the_owner() {
    let rig = Rig::new().await;
    let pool = PoolRecord { name: PoolName::new("p"), slots: 3, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    let task = |id: &str, slots, priority| TaskSpec {
        pool: PoolName::new("p"),
        pool_slots: slots,
        priority,
        ..exec(id)
    };
    let tasks = vec![task("one", 1, 9), task("two", 2, 8), task("three", 2, 1), task("four", 2, 1)];
    rig.register(DagSpec::new("d", tasks)).await;
    let mut owner = rig.owner(Options { pool: PoolSize::LITE, ..Options::default() });
    rig.trigger("d", "r").await;
    let (one, two) = (owner.next().await, owner.next().await);
    assert_eq!((one.task.as_str(), two.task.as_str()), ("one", "two"));
    for assignment in [&one, &two] {
        owner.claim(assignment).await;
    }
    // One slot is free and both that wait want two.
    assert_eq!(owner.end(&one, Outcome::Success).await, Ack::Accepted);
    assert_eq!(owner.end(&two, Outcome::Success).await, Ack::Accepted);
    owner.play(Outcome::Success).await;
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_can_reach_gets_nothing() {
    let rig = Rig::new().await;
    let capacity = Resources::default().with(Resources::TASKS, 1_000_000_000);
    rig.register_node(NodeRegistration::new(NodeId::new("ghost"), capacity, "gone")).await;
    rig.register(DagSpec::new("d", vec![exec("a"), exec("b")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    for _ in 0..2 {
        assert_eq!(owner.play(Outcome::Success).await.node.as_str(), "n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_runs_that_end_and_vanish_hold_nobody_up() {
    let rig = Rig::new().await;
    rig.register(DagSpec { max_active_runs: 1, ..DagSpec::new("d", vec![exec("a")]) }).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "first").await;
    let first = owner.next().await;
    for n in 0..20 {
        let run = format!("r{n}");
        rig.trigger("d", &run).await;
        let (dag, run) = ("d".into(), RunId::from(run));
        rig.store.set_run_state(&rig.user(), &dag, &run, RunState::Failed).await.unwrap();
        rig.store.delete_run(&rig.user(), &dag, &run).await.unwrap();
    }
    rig.trigger("d", "last").await;
    owner.claim(&first).await;
    owner.end(&first, Outcome::Success).await;
    assert_eq!(owner.play(Outcome::Success).await.run_id.as_str(), "last");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_for_tomorrow_does_not_hold_the_schedule_up() {
    let rig = Rig::new().await;
    let spec = DagSpec {
        schedule: Schedule::Every { interval: Duration::from_secs(1) },
        max_active_runs: 1,
        ..DagSpec::new("d", vec![exec("a")])
    };
    rig.register(spec).await;
    let tomorrow = rig.clock.now() + Duration::from_secs(86_400);
    let later = NewRun { run_after: tomorrow, ..rig.new_run("d", "later") };
    rig.store.create_run(&rig.user(), &later).await.unwrap();
    let mut owner = rig.owner(Options::default());
    assert!(owner.play(Outcome::Success).await.run_id.as_str().starts_with("scheduled__"));
    assert_eq!(rig.run("d", "later").await.state, RunState::Queued);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_due_when_it_was_asked_for_starts_at_once_whatever_that_clock_said() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    let ahead = rig.clock.now() + Duration::from_secs(3_600);
    let asked = NewRun { run_after: ahead, ..rig.new_run("d", "asked") };
    rig.store.create_run(&Trigger { at: ahead, ..rig.user() }, &asked).await.unwrap();
    assert_eq!(owner.play(Outcome::Success).await.run_id.as_str(), "asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_past_run_holds_nobody_up() {
    let rig = Rig::new().await;
    let start = whole_second(rig.clock.now()) - Duration::from_secs(1_000);
    let spec = DagSpec {
        schedule: Schedule::Every { interval: Duration::from_secs(900) },
        start_date: Some(start),
        catchup: true,
        ..DagSpec::new("d", vec![TaskSpec { depends_on_past: true, ..exec("a") }])
    };
    let mut owner = rig.owner(Options::default());
    rig.register(spec).await;
    let first = owner.play(failed()).await;
    rig.wait_end("d", first.run_id.as_str()).await;
    rig.store.delete_run(&rig.user(), &"d".into(), &first.run_id).await.unwrap();
    assert_ne!(owner.play(Outcome::Success).await.run_id, first.run_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn pausing_holds_new_tasks_back_and_unpausing_lets_them_go() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a"), exec("b").needs(&["a"])])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    rig.store.set_paused(&rig.user(), &"d".into(), true).await.unwrap();
    rig.trigger("d", "later").await;
    owner.claim(&first).await;
    // The owner has seen the pause by the time it answers: intents wake it before reports do.
    owner.end(&first, Outcome::Success).await;
    rig.wait_states("d", "r", "success scheduled").await;
    assert_eq!(rig.run("d", "later").await.state, RunState::Queued);
    rig.store.set_paused(&rig.user(), &"d".into(), false).await.unwrap();
    for _ in 0..3 {
        owner.play(Outcome::Success).await;
    }
    rig.wait_end("d", "later").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn max_active_runs_are_active_and_the_rest_wait_their_turn() {
    let rig = Rig::new().await;
    rig.register(DagSpec { max_active_runs: 2, ..DagSpec::new("d", vec![exec("a")]) }).await;
    let mut owner = rig.owner(Options::default());
    for run in ["r1", "r2", "r3"] {
        rig.trigger("d", run).await;
    }
    let (first, _second) = (owner.next().await, owner.next().await);
    assert_eq!(rig.run("d", "r3").await.state, RunState::Queued);
    owner.claim(&first).await;
    owner.end(&first, Outcome::Success).await;
    assert_eq!(owner.next().await.run_id.as_str(), "r3");
}

#[tokio::test(flavor = "multi_thread")]
async fn catch_up_runs_every_missed_tick_once_oldest_first_and_no_more_than_may_be_active() {
    let rig = Rig::new().await;
    let start = whole_second(rig.clock.now()) - Duration::from_secs(3600);
    let spec = DagSpec {
        schedule: Schedule::Every { interval: Duration::from_secs(600) },
        start_date: Some(start),
        catchup: true,
        max_active_runs: 2,
        ..DagSpec::new("d", vec![exec("a")])
    };
    let mut owner = rig.owner(Options { pool: PoolSize::LITE, ..Options::default() });
    rig.register(spec).await;
    let mut seen = vec![];
    for _ in 0..6 {
        seen.push(owner.play(Outcome::Success).await.run_id);
        let query = tenure_store::RunQuery::of(TenantId::default_tenant(), Some("d".into()));
        let unfinished = rig.store.list_runs(&query).await.unwrap().items;
        let unfinished = unfinished.iter().filter(|run| !run.state.is_finished()).count();
        assert!(unfinished <= 2, "{unfinished} unfinished runs");
    }
    let expected: Vec<RunId> =
        (0..6).map(|tick| RunType::Scheduled.run_id(start + Duration::from_secs(600 * tick))).collect();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_dag_has_one_run_at_a_time_and_the_next_when_it_ends() {
    let rig = Rig::new().await;
    let mut owner = rig.owner(Options::default());
    rig.register(DagSpec { schedule: Schedule::Continuous, ..DagSpec::new("d", vec![exec("a")]) }).await;
    for _ in 0..3 {
        let assignment = owner.next().await;
        let query = tenure_store::RunQuery::of(TenantId::default_tenant(), Some("d".into()));
        let runs = rig.store.list_runs(&query).await.unwrap().items;
        assert_eq!(runs.iter().filter(|run| !run.state.is_finished()).count(), 1);
        owner.claim(&assignment).await;
        owner.end(&assignment, Outcome::Success).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_once_dag_runs_once_whoever_owns_it() {
    let rig = Rig::new().await;
    let mut owner = rig.owner(Options::default());
    rig.register(DagSpec { schedule: Schedule::Once, ..DagSpec::new("d", vec![exec("a")]) }).await;
    let run = owner.play(Outcome::Success).await.run_id;
    rig.wait_end("d", run.as_str()).await;
    owner.scheduler.stop().await;
    let mut next = rig.owner(Options::default());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(next.nothing_yet(), "it ran again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_owner_looks_once_a_tick_and_commits_nothing() {
    let rig = Rig::new().await;
    let owner = rig.owner(Options::default());
    rig.register(DagSpec { schedule: Schedule::Once, ..DagSpec::new("d", vec![]) }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let changes = owner.scheduler.handle().changes();
    let before = *changes.borrow();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*changes.borrow(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_depends_on_the_past_waits_for_the_run_before() {
    let rig = Rig::new().await;
    let start = whole_second(rig.clock.now()) - Duration::from_secs(1_000);
    let spec = DagSpec {
        schedule: Schedule::Every { interval: Duration::from_secs(900) },
        start_date: Some(start),
        catchup: true,
        ..DagSpec::new("d", vec![TaskSpec { depends_on_past: true, ..exec("a") }])
    };
    let mut owner = rig.owner(Options::default());
    rig.register(spec).await;
    let first = owner.next().await;
    let (run1, run2) = (first.run_id.clone(), RunType::Scheduled.run_id(start + Duration::from_secs(900)));
    owner.claim(&first).await;
    rig.wait_states("d", run2.as_str(), "none").await;
    owner.end(&first, failed()).await;
    assert_eq!(rig.wait_end("d", run1.as_str()).await.state, RunState::Failed);
    rig.wait_states("d", run2.as_str(), "none").await;
    assert_eq!(
        rig.run("d", run2.as_str()).await.state,
        RunState::Running,
        "it waits for the past to be mended"
    );
    let mark = tenure_store::MarkRequest {
        dag: "d".into(),
        run: run1.clone(),
        task: "a".into(),
        map_index: None,
        mark: tenure_model::state::Mark::Success,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        dry_run: false,
    };
    rig.store.mark(&rig.user(), &mark).await.unwrap();
    assert_eq!(owner.play(Outcome::Success).await.run_id, run2);
}

/// Everything of run `r`, from the beginning.
fn clear_all() -> tenure_store::ClearRequest {
    tenure_store::ClearRequest {
        dag: "d".into(),
        run: "r".into(),
        selection: tenure_store::ClearSelection::All,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        reset_runs: true,
        latest_version: true,
        dry_run: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_has_ended_and_cleared_waits_until_its_process_is_gone() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    owner.hands.connect(first.node.as_str(), Some(vec![held(&first)]));
    rig.store.set_run_state(&rig.user(), &"d".into(), &"r".into(), RunState::Failed).await.unwrap();
    owner.wait_stopped(first.attempt).await;
    rig.store.clear(&rig.user(), &clear_all()).await.unwrap();
    rig.wait_states("d", "r", "scheduled").await;
    owner.nothing_for(Duration::from_millis(400)).await;
    assert_eq!(owner.end(&first, Outcome::Failed { reason: FailReason::Stopped }).await, Ack::Superseded);
    let second = owner.play(Outcome::Success).await;
    assert_ne!(second.attempt, first.attempt);
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_has_ended_is_gone_when_its_node_does_not_have_it() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    owner.hands.connect(first.node.as_str(), Some(vec![held(&first)]));
    rig.store.set_run_state(&rig.user(), &"d".into(), &"r".into(), RunState::Failed).await.unwrap();
    owner.wait_stopped(first.attempt).await;
    rig.store.clear(&rig.user(), &clear_all()).await.unwrap();
    rig.wait_states("d", "r", "scheduled").await;
    owner.nothing_for(Duration::from_millis(400)).await;
    // Its end was told to another replica, which has nobody to pass it on to.
    owner.hands.connect(first.node.as_str(), Some(vec![]));
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_cleared_while_it_runs_is_reloaded_and_its_old_attempt_superseded() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    rig.store.clear(&rig.user(), &clear_all()).await.unwrap();
    assert_eq!(rig.states("d", "r").await, "restarting");
    owner.wait_stopped(first.attempt).await;
    assert_eq!(owner.end(&first, Outcome::Failed { reason: FailReason::Stopped }).await, Ack::Accepted);
    let second = owner.play(Outcome::Success).await;
    assert_eq!((second.try_number, second.attempt == first.attempt), (2, false));
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    assert_eq!(owner.claim(&first).await, Ack::Superseded);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_run_gets_superseded_not_silence() {
    let rig = Rig::new().await;
    let owner = rig.owner(Options::default());
    let attempt = AttemptId(Entropy::from_os().uuid(Timestamp::UNIX_EPOCH));
    let ti = TiKey::unmapped(tenure_model::RunKey(4711), tenure_model::TaskNo(0));
    for scope in ["scheduler/shard-00", "scheduler/shard-99"] {
        let body = ReportBody::Claim { attempt, ti };
        let report = Report { node: NodeId::new("n"), scope: scope.into(), body };
        assert_eq!(owner.desk.submit(report).await, Ack::Superseded);
    }
    assert_eq!(rig.store.shard_count().await.unwrap(), 1);
}
