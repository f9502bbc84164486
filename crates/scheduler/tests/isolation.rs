//! Goal: what panics costs itself alone: its run, its dag's ticks, its attempt. The term goes on, and so do the others.
//! Method: the real scheduler with a trap in one run or timetable, beside a neighbour on the same shard.

mod rig;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rig::chief::Chief;
use rig::faulty::Faulty;
use rig::{Options, Owner, PATIENCE, Rig, exec, wait};
use tenure_clock::Entropy;
use tenure_model::{
    Ack, AttemptId, DagSpec, NodeId, Outcome, Report, ReportBody, RunKey, RunState, Schedule, TaskNo,
    TaskState, TiKey,
};
use tenure_scheduler::{OwnerConfig, Step, Trap, Work};
use tenure_store::{DrainStage, StoreError};

async fn with_trap(trap: Trap) -> (Rig, Owner) {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("poison", vec![exec("a")])).await;
    rig.register(DagSpec::new("good", vec![exec("a")])).await;
    let config = OwnerConfig { trap, ..Options::default().config };
    let owner = rig.owner(Options { config, ..Options::default() });
    (rig, owner)
}

/// The shard's work has not begun anew, and a run of another dag passes as ever.
async fn the_neighbour_lives(rig: &Rig, owner: &mut Owner, beside: &str) {
    let run = &format!("beside-{beside}");
    rig.trigger("good", run).await;
    let assignment = owner.play(Outcome::Success).await;
    assert_eq!((assignment.dag.as_str(), assignment.epoch), ("good", 1));
    assert_eq!(rig.wait_end("good", run).await.state, RunState::Success);
    assert_eq!(owner.metric("tenure_scheduler_panics_total"), 0.0);
    assert_eq!(owner.metric("tenure_failed_passes_total"), 0.0);
}

/// A run that is named after a step panics there.
fn at_the_step_in_its_name(work: &Work<'_>) {
    if let Work::Step(step, plan) = work {
        assert!(plan.facts().run_id.as_str() != format!("{step:?}"), "planted");
    }
}

async fn fails(rig: &Rig, run: &str, doing: &str) {
    let poisoned = rig.wait_end("poison", run).await;
    assert_eq!(poisoned.state, RunState::Failed);
    let reason = poisoned.reason.unwrap();
    assert_eq!(reason, format!("the scheduler panicked while {doing} this run: planted"));
    assert_eq!(rig.states("poison", run).await, "skipped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_panics_when_it_is_started_planned_or_placed_fails_alone() {
    let (rig, mut owner) = with_trap(at_the_step_in_its_name).await;
    for (run, doing) in [("Start", "starting"), ("Plan", "planning"), ("Bind", "placing a task of")] {
        rig.trigger("poison", run).await;
        fails(&rig, run, doing).await;
        the_neighbour_lives(&rig, &mut owner, run).await;
    }
    assert_eq!(owner.metric("tenure_poison_runs_total"), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_panics_is_to_be_sent_again_and_finds_its_run_failed() {
    let (rig, mut owner) = with_trap(|work| {
        if let Work::Step(Step::Report, plan) = work
            && plan.facts().dag.as_str() == "poison"
        {
            assert!(plan.tasks().all(|(_, ti)| ti.state != TaskState::Running), "planted");
        }
    })
    .await;
    rig.trigger("good", "before").await;
    let neighbour = owner.next().await;
    assert_eq!(owner.claim(&neighbour).await, Ack::Accepted);
    rig.trigger("poison", "r").await;
    let poisoned = owner.next().await;
    assert_eq!(owner.claim(&poisoned).await, Ack::Accepted);
    assert_eq!(owner.end(&poisoned, Outcome::Success).await, Ack::Retry, "its effect was not written");
    fails(&rig, "r", "hearing a report about").await;
    assert_eq!(owner.end(&poisoned, Outcome::Success).await, Ack::Superseded);
    assert_eq!(owner.end(&neighbour, Outcome::Success).await, Ack::Accepted);
    assert_eq!(rig.wait_end("good", "before").await.state, RunState::Success);
    the_neighbour_lives(&rig, &mut owner, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_panics_the_planner_in_the_middle_of_a_report_fails_alone() {
    let (rig, mut owner) = with_trap(|work| {
        if let Work::Step(Step::Plan, plan) = work
            && plan.facts().dag.as_str() == "poison"
        {
            assert!(plan.tasks().all(|(_, ti)| ti.state != TaskState::Success), "planted");
        }
    })
    .await;
    rig.trigger("poison", "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Retry, "its effect was not written");
    fails(&rig, "r", "planning").await;
    owner.wait_stopped(first.attempt).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Superseded);
    the_neighbour_lives(&rig, &mut owner, "r").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclaimed_attempt_that_cannot_be_taken_back_costs_its_run() {
    let rig = Rig::new().await;
    for dag in ["poison", "good"] {
        rig.register(DagSpec::new(dag, vec![exec("a")])).await;
    }
    let config = OwnerConfig {
        trap: at_the_step_in_its_name,
        claim_timeout: Duration::from_millis(300),
        ..Options::default().config
    };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("poison", "Withdraw").await;
    let unclaimed = owner.next().await;
    fails(&rig, "Withdraw", "taking an attempt back from").await;
    owner.wait_stopped(unclaimed.attempt).await;
    the_neighbour_lives(&rig, &mut owner, "r").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_cannot_be_given_up_costs_its_run_and_no_other_of_its_node() {
    let (rig, mut owner) = with_trap(at_the_step_in_its_name).await;
    for (dag, run) in [("poison", "Lose"), ("good", "lost")] {
        rig.trigger(dag, run).await;
        let assignment = owner.next().await;
        assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
    }
    owner.hands.connect("n", Some(vec![]));
    fails(&rig, "Lose", "giving up an attempt of").await;
    assert_eq!(rig.wait_end("good", "lost").await.state, RunState::Failed);
    assert_eq!(owner.metric("tenure_orphan_panic_total"), 1.0);
    assert_eq!(owner.metric("tenure_agent_lost_tasks_total"), 1.0);
    the_neighbour_lives(&rig, &mut owner, "r").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_even_be_failed_or_read_is_parked_and_its_trail_says_why() {
    let (rig, mut owner) = with_trap(|work| match work {
        Work::Read(header) => assert!(header.run_id.as_str() != "unread", "planted"),
        Work::Step(_, plan) => assert!(plan.facts().run_id.as_str() != "stubborn", "planted"),
        Work::Tick(_) => {}
    })
    .await;
    let stubborn = "the scheduler panicked while starting this run: planted; \
        the scheduler panicked while failing this run: planted";
    for (run, why) in
        [("unread", "the scheduler panicked while reading this run: planted"), ("stubborn", stubborn)]
    {
        rig.trigger("poison", run).await;
        the_neighbour_lives(&rig, &mut owner, run).await;
        let trail = rig.trail("poison", run).await;
        let told: Vec<_> =
            trail.iter().flat_map(|row| &row.entries).filter(|entry| entry.event == "parked").collect();
        assert_eq!(told.len(), 1, "once: {trail:?}");
        assert_eq!(told[0].reason.as_deref(), Some(why));
        assert_eq!(rig.run("poison", run).await.state, RunState::Queued, "it was left as it is");
    }
    assert_eq!(owner.metric("tenure_poison_runs_total"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timetable_that_panics_costs_its_dag_its_ticks_and_nothing_else() {
    let rig = Rig::new().await;
    let every = Schedule::Every { interval: Duration::from_secs(1) };
    for dag in ["poison", "good"] {
        rig.register(DagSpec { schedule: every.clone(), ..DagSpec::new(dag, vec![exec("a")]) }).await;
    }
    let trap: Trap = |work| {
        if let Work::Tick(schedule) = work {
            assert!(schedule.dag.as_str() != "poison", "planted");
        }
    };
    let config = OwnerConfig { trap, ..Options::default().config };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    wait("it is counted", || owner.metric("tenure_timetable_panics_total") > 0.0).await;
    for _ in 0..2 {
        let ticked = owner.play(Outcome::Success).await;
        assert_eq!((ticked.dag.as_str(), ticked.epoch), ("good", 1));
    }
    rig.trigger("poison", "by-hand").await;
    while owner.play(Outcome::Success).await.dag.as_str() != "poison" {}
    assert_eq!(rig.wait_end("poison", "by-hand").await.state, RunState::Success);
    // Once for each time that the dag was read.
    assert!(owner.metric("tenure_timetable_panics_total") <= 2.0);
    assert_eq!(owner.metric("tenure_scheduler_panics_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_panics_costs_its_attempt_and_no_other() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a"), exec("b"), exec("c")])).await;
    let mut owner = rig.owner(Options::default());
    owner.hands.trap.store(true, Ordering::SeqCst);
    rig.trigger("d", "r").await;
    for _ in 0..2 {
        owner.play(Outcome::Success).await;
    }
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Failed);
    let tis = rig.tis("d", "r").await;
    let failed: Vec<_> = tis.iter().filter(|ti| ti.instance.state == TaskState::Failed).collect();
    assert_eq!(failed.len(), 1);
    let reason = failed[0].instance.reason.as_ref().unwrap();
    assert!(reason.starts_with("could not start: an internal error"), "{reason}");
    assert_eq!(owner.metric("tenure_dispatch_panics_total"), 1.0);
    assert_eq!(owner.metric("tenure_scheduler_panics_total"), 0.0);
    wait("its place is free", || owner.metric("tenure_dispatch_queue_depth") == 0.0).await;
}

/// A rig whose store does this before each call.
async fn with_fault(fault: impl Fn(&str) -> Result<(), StoreError> + Send + Sync + 'static) -> Rig {
    let plain = Rig::new().await;
    Rig::on(Faulty::before(plain.store, fault), 1).await
}

/// The first calls of a verb panic.
fn panics(times: u32, verb: &'static str) -> impl Fn(&str) -> Result<(), StoreError> {
    let left = AtomicU32::new(times);
    move |call| {
        let spend = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(call != verb || spend().is_err(), "planted");
        Ok(())
    }
}

async fn the_node_is_drained(rig: &Rig) {
    let deadline = rig.clock.now() + PATIENCE;
    rig.store.drain_node(&rig.user(), &NodeId::new("n"), deadline).await.unwrap();
    let drained = async {
        while rig.store.list_nodes().await.unwrap()[0].drain.as_ref().unwrap().stage != DrainStage::Drained {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, drained).await.expect("the drain is seen through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_panics_starts_over_and_does_its_work() {
    let rig = with_fault(panics(2, "list_nodes")).await;
    let chief = Chief::start(&rig, "chief");
    wait("it has panicked twice", || chief.metric("tenure_controller_panics_total") == 2.0).await;
    the_node_is_drained(&rig).await;
    chief.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_whose_carrier_panics_is_carried_on() {
    let rig = with_fault(panics(1, "advance_drain")).await;
    let chief = Chief::start(&rig, "chief");
    the_node_is_drained(&rig).await;
    assert_eq!(chief.metric("tenure_controller_panics_total"), 0.0);
    chief.stop().await;
}

/// About a run that nobody knows, of a shard that nobody owns.
fn claim_from(node: &str) -> Report {
    let attempt = AttemptId(Entropy::from_os().uuid(jiff::Timestamp::UNIX_EPOCH));
    let body = ReportBody::Claim { attempt, ti: TiKey::unmapped(RunKey(4711), TaskNo(0)) };
    Report { node: NodeId::new(node), scope: "scheduler/shard-99".into(), body }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_panics_while_it_is_recorded_costs_no_other_report() {
    let rig = with_fault(|call| {
        if call.starts_with("record_reports") {
            assert!(!call.contains("poison"), "planted");
            if call.contains("slow") {
                std::thread::sleep(Duration::from_millis(300)); // meanwhile the others gather
            }
        }
        Ok(())
    })
    .await;
    let owner = rig.owner(Options::default());
    let said = |node: &'static str| owner.desk.submit(claim_from(node));
    let gathered = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::join!(said("before"), said("poison"), said("after"))
    };
    let (slow, gathered) = tokio::join!(said("slow"), gathered);
    assert_eq!(slow, Ack::Superseded);
    assert_eq!(gathered, (Ack::Superseded, Ack::Retry, Ack::Superseded));
    assert_eq!(owner.metric("tenure_report_panics_total"), 2.0, "together, and by itself");
    assert_eq!(said("later").await, Ack::Superseded, "the desk works on");
}
