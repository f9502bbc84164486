//! Goal: what runs on a node is given up only on a sure sign, and then at once.
//! Method: the test plays nodes that forget, fall silent, go away and come back.

mod rig;

use std::time::Duration;

use rig::{Options, Owner, Rig, exec, held, report, wait};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_model::{Ack, Assignment, AttemptId, DagSpec, Held, NodeId, Outcome, ReportBody, TaskSpec};
use tenure_scheduler::OwnerConfig;

const SILENCE: Duration = Duration::from_millis(400);

/// A task that runs on `n`, with a retry in hand.
async fn running(rig: &Rig) -> (Owner, Assignment) {
    let task = TaskSpec { retries: 1, retry_delay: Duration::ZERO, ..exec("a") };
    rig.register(DagSpec::new("d", vec![task])).await;
    let config = OwnerConfig { heartbeat_threshold: SILENCE, ..Options::default().config };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("d", "r").await;
    let assignment = owner.next().await;
    assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
    (owner, assignment)
}

fn some_attempt() -> AttemptId {
    AttemptId(Entropy::from_os().uuid(SystemClock.now()))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_says_it_does_not_hold_is_lost_and_tried_again_at_once() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    let stranger = Held { attempt: some_attempt(), ..held(&first) };
    owner.hands.connect("n", Some(vec![stranger.clone()]));
    let second = owner.next().await;
    assert_eq!((second.try_number, first.attempt == second.attempt), (2, false));
    owner.wait_stopped(stranger.attempt).await;
    assert_eq!(owner.metric("tenure_agent_lost_tasks_total"), 1.0);
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Superseded);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_holds_runs_on() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    owner.hands.connect("n", Some(vec![held(&first)]));
    owner.nothing_for(SILENCE * 2).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_another_scope_or_of_a_finished_run_is_judged_by_what_the_database_knows() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
    rig.wait_end("d", "r").await;
    let elsewhere = Held { attempt: some_attempt(), scope: "scheduler/shard-77".into(), ..held(&first) };
    owner.hands.connect("n", Some(vec![held(&first), elsewhere.clone()]));
    owner.wait_stopped(first.attempt).await;
    owner.nothing_for(Duration::from_millis(200)).await;
    assert!(!owner.hands.stopped(elsewhere.attempt), "another owner's business");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_loses_its_tasks_after_the_threshold_and_not_before() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    rig.named_node("m", 10).await;
    owner.hands.connect("m", Some(vec![]));
    owner.hands.silence("n");
    owner.nothing_for(SILENCE / 2).await;
    let second = owner.next().await;
    assert_eq!(second.try_number, 2);
    let lost = rig.trail("d", "r").await;
    let reason = lost.iter().flat_map(|row| &row.entries).find_map(|entry| {
        entry.reason.as_ref().filter(|_| entry.attempt == Some(first.attempt) && entry.event == "failed")
    });
    assert!(reason.is_some_and(|reason| reason.starts_with("agent lost: silent for")), "{reason:?}");
    assert_eq!(owner.metric("tenure_agent_lost_tasks_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_link_breaks_has_the_whole_threshold_to_come_back() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    rig.named_node("m", 10).await;
    owner.hands.connect("m", Some(vec![]));
    owner.nothing_for(SILENCE * 2).await;
    owner.hands.disconnect("n");
    owner.nothing_for(SILENCE * 3 / 4).await;
    let second = owner.next().await;
    assert_eq!((second.try_number, second.attempt == first.attempt), (2, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_says_nothing_for_long_is_left_alone_while_its_agent_lives() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    owner.nothing_for(SILENCE * 3).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_another_replica_hears_is_not_given_up() {
    let rig = Rig::new().await;
    let (mut owner, first) = running(&rig).await;
    owner.hands.disconnect("n");
    let deadline = SystemClock.boottime() + SILENCE * 4;
    while SystemClock.boottime() < deadline {
        rig.store.record_presence("elsewhere", &[NodeId::new("n")]).await.unwrap();
        owner.nothing_for(SILENCE / 4).await;
    }
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_was_away_starts_its_clock_anew() {
    let rig = Rig::new().await;
    let (owner, first) = running(&rig).await;
    owner.hands.silence("n");
    owner.kill();
    tokio::time::sleep(SILENCE * 2).await;
    let config = OwnerConfig { heartbeat_threshold: SILENCE * 10, ..Options::default().config };
    let mut next = rig.owner(Options { config, ..Options::default() });
    next.hands.disconnect("n"); // the agent has not come back yet
    wait("the shard is taken over", || next.status().ready).await;
    next.nothing_for(SILENCE * 3).await;
    assert_eq!(next.end(&first, Outcome::Success).await, Ack::Accepted);
    assert_eq!(next.metric("tenure_agent_lost_tasks_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_for_a_node_that_is_gone_and_go_to_it_when_it_is_back() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    owner.hands.disconnect("n");
    rig.trigger("d", "r").await;
    let told = || owner.status().waiting.iter().any(|(why, _)| why.contains("1 node not connected"));
    wait("the reason is shown", told).await;
    owner.hands.connect("n", Some(vec![]));
    owner.play(Outcome::Success).await;
}

/// A process that takes over while the node is not connected to it yet, as one that has just been started is.
fn successor(rig: &Rig) -> Owner {
    rig.owner(Options { in_reach: false, ..Options::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_owner_has_delivered_is_not_given_up_by_one_that_cannot_reach_the_node() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let delivered = owner.next().await;
    owner.kill();
    let mut successor = successor(&rig);
    wait("the successor leads", || successor.status().ready).await;
    // Another replica takes the claim, and the task runs.
    let claim = ReportBody::Claim { attempt: delivered.attempt, ti: delivered.ti };
    let acks = rig.store.record_reports(&[report(&delivered, claim)], SystemClock.now()).await.unwrap();
    assert_eq!(acks, [Ack::Accepted]);
    successor.nothing_for(Duration::from_millis(800)).await;
    successor.hands.connect("n", Some(vec![held(&delivered)]));
    successor.nothing_for(Duration::from_millis(300)).await;
    assert_eq!(successor.end(&delivered, Outcome::Success).await, Ack::Accepted);
    rig.wait_states("d", "r", "success").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_owner_has_not_delivered_is_offered_when_the_node_connects() {
    let rig = Rig::new().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let owner = rig.owner(Options { doors: 0, ..Options::default() });
    rig.trigger("d", "r").await;
    rig.wait_states("d", "r", "queued").await;
    let bound = rig.tis("d", "r").await.remove(0).instance.attempt;
    owner.kill();
    let mut successor = successor(&rig);
    wait("the successor leads", || successor.status().ready).await;
    successor.hands.connect("n", Some(vec![]));
    let offered = successor.next().await;
    assert_eq!((Some(offered.attempt), offered.try_number), (bound, 1));
}
