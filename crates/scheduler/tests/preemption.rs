//! Goal: where it is switched on, a more important task gets room from less important ones, which lose no try; and where
//! it is not, nobody is stopped. Method: the test plays a node with room for two.

mod rig;

use std::time::Duration;

use rig::{Options, Owner, Rig, exec};
use tenure_model::{Ack, Assignment, DagSpec, FailReason, Outcome, RunState, TaskSpec};
use tenure_scheduler::OwnerConfig;

const STOPPED: Outcome = Outcome::Failed { reason: FailReason::Stopped };

/// Two tasks in line, so that the first weighs more than it was given.
fn dag(id: &str, priority: i32) -> DagSpec {
    let task = |name: &str| TaskSpec { priority, ..exec(name) };
    let after = TaskSpec { needs: vec!["first".into()], ..task("second") };
    DagSpec::new(id, vec![task("first"), after])
}

async fn busy(shards: u16, preemption: bool) -> (Rig, Owner, [Assignment; 2]) {
    let rig = Rig::with_shards(shards).await;
    rig.node(2).await;
    let options = Options::default();
    let config = OwnerConfig { preemption, ..options.config };
    let mut owner = rig.owner(Options { config, ..options });
    rig::wait("all shards", || owner.owned().len() == usize::from(shards)).await;
    for (id, priority) in [("low", 1), ("middle", 5), ("high", 9)] {
        rig.register(dag(id, priority)).await;
    }
    let mut first = vec![];
    for id in ["low", "middle"] {
        rig.trigger(id, "r").await;
        let assignment = owner.next().await;
        assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
        first.push(assignment);
    }
    (rig, owner, first.try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_important_task_makes_room_and_comes_back_as_the_same_try() {
    let (rig, mut owner, [low, middle]) = busy(1, true).await;
    rig.trigger("high", "r").await;
    owner.wait_stopped(low.attempt).await;
    owner.nothing_for(Duration::from_millis(1_500)).await;
    assert!(!owner.hands.stopped(middle.attempt), "one is enough");
    assert_eq!(owner.end(&low, STOPPED).await, Ack::Accepted);

    let high = owner.next().await;
    assert_eq!(high.dag.as_str(), "high", "what falls free goes to the most important");
    assert_eq!(owner.claim(&high).await, Ack::Accepted);
    assert_eq!(owner.end(&middle, Outcome::Success).await, Ack::Accepted);
    let after = owner.play(Outcome::Success).await;
    assert_eq!((after.dag.as_str(), after.task.as_str()), ("middle", "second"));
    let again = owner.next().await;
    assert_eq!((again.dag.as_str(), again.task.as_str(), again.try_number), ("low", "first", 1));
    assert_ne!(again.attempt, low.attempt);
    assert_eq!(owner.claim(&again).await, Ack::Accepted);
    assert_eq!(owner.end(&again, Outcome::Success).await, Ack::Accepted);
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("low", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_claimed_goes_first_and_at_once() {
    let (rig, mut owner, [low, middle]) = busy(1, true).await;
    assert_eq!(owner.end(&low, Outcome::Success).await, Ack::Accepted);
    let unclaimed = owner.next().await;
    assert_eq!((unclaimed.dag.as_str(), unclaimed.task.as_str()), ("low", "second"));
    rig.trigger("high", "r").await;
    let high = owner.next().await;
    assert_eq!(high.dag.as_str(), "high");
    assert_eq!(owner.claim(&unclaimed).await, Ack::Superseded);
    assert!(!owner.hands.stopped(middle.attempt));
}

#[tokio::test(flavor = "multi_thread")]
async fn equals_and_the_weight_of_what_follows_stop_nobody() {
    let (rig, mut owner, attempts) = busy(1, true).await;
    for run in ["r2", "r3"] {
        rig.trigger("low", run).await;
    }
    owner.nothing_for(Duration::from_millis(2_500)).await;
    for attempt in attempts {
        assert!(!owner.hands.stopped(attempt.attempt));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unless_it_is_switched_on_nobody_is_stopped() {
    let (rig, mut owner, attempts) = busy(1, false).await;
    rig.trigger("high", "r").await;
    owner.nothing_for(Duration::from_millis(2_500)).await;
    for attempt in attempts {
        assert!(!owner.hands.stopped(attempt.attempt));
    }
}
