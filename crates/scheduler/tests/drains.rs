//! Goal: a node can be emptied, and one that is gone is left at once, without costing any task a try.
//! Method: the test plays two nodes; the controller and its leases are real.

mod rig;

use std::time::Duration;

use rig::chief::Chief;
use rig::{Options, Owner, PATIENCE, Rig, exec, wait};
use tenure_model::{Ack, Assignment, DagSpec, FailReason, NodeId, Outcome, RunState};
use tenure_store::{Drain, DrainStage, drain_scope};

const STOPPED: Outcome = Outcome::Failed { reason: FailReason::Stopped };

/// `n` and `m` with room for so many tasks each.
async fn two_nodes(tasks: u64) -> (Rig, Owner) {
    let rig = Rig::new().await;
    rig.node(tasks).await;
    rig.named_node("m", tasks).await;
    let owner = rig.owner(Options::default());
    owner.hands.connect("m", Some(vec![]));
    (rig, owner)
}

async fn drain(rig: &Rig, node: &str, time: Duration) {
    let deadline = rig.clock.now() + time;
    rig.store.drain_node(&rig.user(), &node.into(), deadline).await.unwrap();
}

async fn stage(rig: &Rig, node: &str) -> Option<DrainStage> {
    let nodes = rig.store.list_nodes().await.unwrap();
    let drain: Option<Drain> = nodes.into_iter().find(|record| record.node.as_str() == node)?.drain;
    drain.map(|drain| drain.stage)
}

async fn wait_stage(rig: &Rig, node: &str, wanted: DrainStage) {
    let reached = async {
        while stage(rig, node).await != Some(wanted) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("the drain of {node} is {:?}, not {wanted:?}", stage(rig, node).await);
    }
}

async fn drain_holder(rig: &Rig, node: &str) -> Option<String> {
    let lease = rig.store.find_lease(&drain_scope(&NodeId::new(node))).await.unwrap()?;
    lease.is_held().then(|| lease.holder.name.clone())
}

/// The next assignment, claimed.
async fn claimed(owner: &mut Owner) -> Assignment {
    let assignment = owner.next().await;
    assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
    assignment
}

fn fan(tasks: &[&str]) -> DagSpec {
    DagSpec::new("d", tasks.iter().map(|task| exec(task)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_gets_nothing_new_and_gives_back_what_nobody_has_claimed() {
    let (rig, mut owner) = two_nodes(10).await;
    rig.register(fan(&["a", "b"])).await;
    rig.trigger("d", "r").await;
    let (first, second) = (owner.next().await, owner.next().await);
    let (leaving, staying) = if first.node.as_str() == "n" { (first, second) } else { (second, first) };
    assert_eq!((leaving.node.as_str(), staying.node.as_str()), ("n", "m"), "one on each");

    drain(&rig, "n", PATIENCE * 10).await;
    let moved = owner.next().await;
    assert_eq!((moved.node.as_str(), &moved.task), ("m", &leaving.task));
    assert_eq!((moved.try_number, moved.attempt == leaving.attempt), (1, false));
    assert_eq!(owner.claim(&leaving).await, Ack::Superseded, "too late");
    rig.trigger("d", "r2").await;
    let (third, fourth) = (owner.next().await, owner.next().await);
    assert_eq!((third.node.as_str(), fourth.node.as_str()), ("m", "m"));

    rig.store.undrain_node(&rig.user(), &"n".into()).await.unwrap();
    rig.trigger("d", "r3").await;
    assert_eq!(owner.next().await.node.as_str(), "n", "the emptier one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_may_finish_and_then_the_node_is_drained() {
    let (rig, mut owner) = two_nodes(1).await;
    let chief = Chief::start(&rig, "chief");
    rig.register(fan(&["a", "b"])).await;
    rig.trigger("d", "r").await;
    let (first, second) = (claimed(&mut owner).await, claimed(&mut owner).await);
    let on_n = if first.node.as_str() == "n" { &first } else { &second };

    drain(&rig, "n", PATIENCE * 10).await;
    let held = async {
        while drain_holder(&rig, "n").await.as_deref() != Some("chief") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.expect("whoever sees it through holds its scope");
    owner.nothing_for(Duration::from_millis(2_500)).await;
    assert_eq!(stage(&rig, "n").await, Some(DrainStage::Finishing));
    assert!(!owner.hands.stopped(on_n.attempt), "its time is not up");
    assert_eq!(owner.end(on_n, Outcome::Success).await, Ack::Accepted);
    wait_stage(&rig, "n", DrainStage::Drained).await;
    let released = async {
        while drain_holder(&rig, "n").await.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, released).await.expect("nothing is left to do");
    chief.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_its_time_is_up_a_task_is_stopped_and_goes_on_elsewhere_as_the_same_try() {
    let (rig, mut owner) = two_nodes(10).await;
    rig.register(fan(&["a"])).await;
    rig.store.drain_node(&rig.user(), &"m".into(), rig.clock.now() + PATIENCE * 10).await.unwrap();
    rig.trigger("d", "r").await;
    let first = claimed(&mut owner).await;
    assert_eq!(first.node.as_str(), "n");
    rig.store.undrain_node(&rig.user(), &"m".into()).await.unwrap();

    // Asked for while nobody leads the controller, and seen through by whoever does next.
    drain(&rig, "n", Duration::ZERO).await;
    owner.nothing_for(Duration::from_millis(300)).await;
    assert!(!owner.hands.stopped(first.attempt));
    let chief = Chief::start(&rig, "chief");
    owner.wait_stopped(first.attempt).await;
    assert_eq!(rig.states("d", "r").await, "running", "until its node says that it has ended");
    assert_eq!(owner.end(&first, STOPPED).await, Ack::Accepted);

    let second = claimed(&mut owner).await;
    assert_eq!((second.node.as_str(), second.try_number), ("m", 1), "no try was used up");
    assert_eq!(owner.end(&second, Outcome::Success).await, Ack::Accepted);
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    wait_stage(&rig, "n", DrainStage::Drained).await;
    let moved = rig.trail("d", "r").await;
    let why = moved.iter().flat_map(|row| &row.entries).find(|entry| entry.event == "withdrawn");
    assert_eq!(why.unwrap().reason.as_deref(), Some("stopped on request, to be placed again"));
    chief.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_outlives_every_replica() {
    let (rig, mut owner) = two_nodes(10).await;
    rig.register(fan(&["a"])).await;
    rig.store.drain_node(&rig.user(), &"m".into(), rig.clock.now() + PATIENCE * 10).await.unwrap();
    rig.trigger("d", "r").await;
    let first = claimed(&mut owner).await;
    drain(&rig, "n", Duration::ZERO).await;
    let chief = Chief::start(&rig, "chief");
    wait_stage(&rig, "n", DrainStage::Stopping).await;
    owner.wait_stopped(first.attempt).await;
    chief.stop().await;
    owner.kill();

    let next = rig.owner(Options::default());
    next.hands.connect("m", Some(vec![]));
    next.wait_stopped(first.attempt).await;
    let chief = Chief::start(&rig, "another");
    assert_eq!(next.end(&first, STOPPED).await, Ack::Accepted);
    wait_stage(&rig, "n", DrainStage::Drained).await;
    assert_eq!(rig.states("d", "r").await, "scheduled", "both nodes are being emptied");
    let told = || next.status().waiting.contains(&("node", 1));
    wait("the reason is shown", told).await;
    let why = rig.why(&["d"], "r").await;
    assert!(why.contains("2 ") && why.contains("draining"), "{why}");
    chief.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclaimed_attempt_leaves_a_node_that_nobody_hears_before_its_claim_is_due() {
    let (rig, mut owner) = two_nodes(10).await;
    rig.register(fan(&["a", "b"])).await;
    rig.trigger("d", "r").await;
    let (first, second) = (owner.next().await, owner.next().await);
    let (gone, other) = if first.node.as_str() == "n" { (first, second) } else { (second, first) };
    assert_eq!(owner.claim(&other).await, Ack::Accepted);

    // Another replica still hears it: it may yet come and claim.
    rig.store.record_presence("another", &[NodeId::new("n")]).await.unwrap();
    owner.hands.disconnect("n");
    owner.nothing_for(Duration::from_secs(3)).await;
    rig.store.record_presence("another", &[]).await.unwrap();
    let again = owner.next().await;
    assert_eq!((again.node.as_str(), &again.task, again.try_number), ("m", &gone.task, 1));
    assert_ne!(again.attempt, gone.attempt);
    assert_eq!(owner.claim(&gone).await, Ack::Superseded);
    assert_eq!(owner.claim(&again).await, Ack::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_stays_where_it_is_when_its_node_is_gone_for_a_moment() {
    let (rig, mut owner) = two_nodes(10).await;
    rig.register(fan(&["a"])).await;
    rig.trigger("d", "r").await;
    let first = claimed(&mut owner).await;
    owner.hands.disconnect(first.node.as_str());
    owner.nothing_for(Duration::from_secs(3)).await;
    assert_eq!(owner.end(&first, Outcome::Success).await, Ack::Accepted);
}
