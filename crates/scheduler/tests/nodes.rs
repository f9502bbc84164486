//! Goal: what runs on a node is given up only on a sure sign, and then at once.
//! Method: the test plays nodes that forget, fall silent, go away and come back.

mod rig;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rig::faulty::Faulty;
use rig::{Options, Owner, Rig, exec, held, report, wait};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_model::{
    Ack, Assignment, AttemptId, DagSpec, Held, NodeId, Outcome, PoolName, ReportBody, RunState, TaskSpec,
};
use tenure_scheduler::OwnerConfig;
use tenure_store::PoolRecord;

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

/// What an owner has watched while the node had nothing of its own says nothing about the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_link_breaks_right_after_a_task_began_has_the_whole_threshold_too() {
    let rig = Rig::new().await;
    let task = TaskSpec { retries: 1, retry_delay: Duration::ZERO, ..exec("a") };
    rig.register(DagSpec::new("d", vec![task])).await;
    // The looks between are those that something happening asks for.
    let config =
        OwnerConfig { heartbeat_threshold: SILENCE, tick: SILENCE * 10, ..Options::default().config };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    wait("the shard is taken over", || owner.status().ready).await;
    owner.nothing_for(SILENCE * 2).await;
    rig.trigger("d", "r").await;
    let first = owner.next().await;
    assert_eq!(owner.claim(&first).await, Ack::Accepted);
    rig.named_node("m", 10).await;
    owner.hands.disconnect("n");
    owner.hands.connect("m", Some(vec![]));
    owner.nothing_for(SILENCE / 2).await;
    assert_eq!(owner.metric("tenure_agent_lost_tasks_total"), 0.0);
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
}

/// An agent starts on this word. Memory may be behind the database, and the authority may be gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_is_answered_after_a_commit_too() {
    let rig = Rig::new().await;
    let (owner, first) = running(&rig).await;
    let revision = async || {
        let loaded = rig.store.load_runs(&[first.ti.run]).await.unwrap();
        loaded.runs[0].header.revision
    };
    let before = revision().await;
    assert_eq!(owner.claim(&first).await, Ack::Accepted);
    assert!(revision().await > before, "whoever has planned meanwhile has to look again");
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
    let told = || owner.status().waiting.contains(&("node", 1));
    wait("the reason is shown", told).await;
    let why = rig.why(&["d"], "r").await;
    assert!(why.contains("1 node not connected"), "{why}");
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

/// As another replica would take it in.
async fn end_elsewhere(rig: &Rig, assignment: &Assignment) -> Ack {
    let (attempt, ti, ended_at) = (assignment.attempt, assignment.ti, SystemClock.now());
    let body = ReportBody::End { attempt, ti, outcome: Outcome::Success, ended_at, result: None };
    rig.store.record_reports(&[report(assignment, body)], ended_at).await.unwrap().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_races_the_reaper_is_the_end_or_superseded_and_never_both() {
    const RUNS: usize = 60;
    let rig = Rig::new().await;
    let task = TaskSpec { retries: 1, retry_delay: Duration::ZERO, ..exec("a") };
    rig.register(DagSpec { max_active_runs: 2 * RUNS as u32, ..DagSpec::new("d", vec![task]) }).await;
    let config = OwnerConfig { heartbeat_threshold: SILENCE, ..Options::default().config };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    let mut first = vec![];
    for number in 0..RUNS {
        rig.trigger("d", &format!("r{number}")).await;
        let assignment = owner.next().await;
        assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
        first.push(assignment);
    }
    rig.named_node("m", 1_000).await;
    owner.hands.connect("m", Some(vec![]));
    owner.hands.silence("n");
    // The reaper comes with the first tick after the threshold. Ends come before it, with it and after it, half of
    // them by way of another replica.
    tokio::time::sleep(SILENCE * 3 / 4).await;
    let mut acks = vec![];
    for (number, assignment) in first.iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        acks.push(match number % 2 {
            0 => owner.end(assignment, Outcome::Success).await,
            _ => end_elsewhere(&rig, assignment).await,
        });
    }
    let late = acks.iter().filter(|ack| **ack == Ack::Superseded).count();
    for _ in 0..late {
        let again = owner.play(Outcome::Success).await;
        assert_eq!((again.node.as_str(), again.try_number), ("m", 2));
    }
    owner.nothing_for(Duration::from_millis(300)).await;
    for (number, (assignment, ack)) in first.iter().zip(&acks).enumerate() {
        let run = format!("r{number}");
        assert_eq!(rig.wait_end("d", &run).await.state, RunState::Success, "{run}");
        let trail = rig.trail("d", &run).await;
        let of_first = trail.iter().flat_map(|row| &row.entries);
        let ends: Vec<&str> = of_first
            .filter(|entry| entry.attempt == Some(assignment.attempt))
            .map(|entry| entry.event.as_str())
            .filter(|event| ["succeeded", "failed"].contains(event))
            .collect();
        match ack {
            Ack::Accepted => assert_eq!(ends, ["succeeded"], "{run}: what was acknowledged counts"),
            Ack::Superseded => assert_eq!(ends, ["failed"], "{run}: one end for each attempt"),
            Ack::Retry => panic!("{run}: neither heard nor refused"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_five_hundred_nodes_lost_together_had_not_begun_moves_once_and_not_in_one_moment() {
    const NODES: usize = 500;
    let rig = Rig::new().await;
    let tasks = (0..NODES).map(|number| exec(&format!("t{number}"))).collect();
    rig.register(DagSpec { max_active_tasks: 2 * NODES as u32, ..DagSpec::new("d", tasks) }).await;
    let slots = 2 * NODES as u32;
    let pool = PoolRecord { name: PoolName::default_pool(), slots, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    let mut owner = rig.owner(Options { in_reach: false, ..Options::default() });
    let lost: Vec<String> = (0..NODES).map(|number| format!("lost-{number}")).collect();
    for node in &lost {
        rig.named_node(node, 1).await;
        owner.hands.connect(node, Some(vec![]));
    }
    rig.trigger("d", "r").await;
    let mut first = vec![];
    for _ in 0..NODES {
        first.push(owner.next().await);
    }
    rig.named_node("refuge", NODES as u64).await;
    owner.hands.connect("refuge", Some(vec![]));
    lost.iter().for_each(|node| owner.hands.disconnect(node));
    let mut moved = BTreeSet::new();
    for _ in 0..NODES {
        let again = owner.next().await;
        assert_eq!((again.node.as_str(), again.try_number), ("refuge", 1), "no try is used up");
        assert!(moved.insert(again.task.clone()), "{} moves twice", again.task);
    }
    owner.nothing_for(Duration::from_millis(300)).await;
    let trail = rig.trail("d", "r").await;
    let withdrawn = trail.iter().filter(|row| row.entries.iter().any(|entry| entry.event == "withdrawn"));
    let moments: BTreeSet<_> = withdrawn.map(|row| row.at).collect();
    assert!(moments.len() > 1, "all at {moments:?}");
    assert_eq!(owner.claim(&first[0]).await, Ack::Superseded, "whoever comes back has nothing to start");
}

/// Whoever was to stop it has died, no row names it any more, and the shard has nothing else on that node.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_wants_is_found_and_stopped_on_whichever_node_it_is_and_by_whoever_takes_over() {
    let rig = Rig::new().await;
    rig.named_node("m", 1_000).await;
    let (mut owner, first) = running(&rig).await;
    let stray = |attempt| Held { attempt, ..held(&first) };
    let (later, sooner) = (stray(some_attempt()), stray(some_attempt()));
    owner.hands.connect("m", Some(vec![later.clone()]));
    owner.wait_stopped(later.attempt).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
    assert!(owner.nothing_yet());
    owner.kill();
    let next = rig.owner(Options { restarted: true, in_reach: false, ..Options::default() });
    next.hands.connect("m", Some(vec![sooner.clone()]));
    next.wait_stopped(sooner.attempt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_shards_of_a_process_read_the_limits_together() {
    const SHARDS: u16 = 16;
    let plain = Rig::with_shards(SHARDS).await;
    let read = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&read);
    let store = Faulty::before(plain.store, move |call| {
        counting.fetch_add(u32::from(call == "limits"), Ordering::SeqCst);
        Ok(())
    });
    let rig = Rig::on(store, SHARDS).await;
    let mut owner = rig.owner(Options::default());
    let dags: Vec<String> = (0..SHARDS * 2).map(|number| format!("d{number}")).collect();
    for dag in &dags {
        let task = TaskSpec { pool: PoolName::new("rare"), ..exec("a") };
        rig.register(DagSpec::new(dag.as_str(), vec![task])).await;
        rig.trigger(dag, "r").await;
    }
    for dag in &dags {
        rig.wait_states(dag, "r", "scheduled").await;
    }
    let before = read.load(Ordering::SeqCst);
    let pool = PoolRecord { name: PoolName::new("rare"), slots: 1_000, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    for _ in &dags {
        owner.play(Outcome::Success).await;
    }
    assert_eq!((before, read.load(Ordering::SeqCst)), (1, 2), "once at the start, once for what changed");
}
