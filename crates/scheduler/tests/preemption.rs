//! Goal: where it is switched on, a more important task gets room from less important ones, which lose no try; and where
//! it is not, nobody is stopped. Method: the test plays a node with room for two.

mod rig;

use std::time::Duration;

use rig::{Options, Owner, Rig, exec};
use tenure_model::{
    Ack, Assignment, DagId, DagSpec, FailReason, Outcome, RunState, ShardId, TaskSpec, TenantId,
};
use tenure_scheduler::OwnerConfig;

const STOPPED: Outcome = Outcome::Failed { reason: FailReason::Stopped };

/// Two tasks in line, so that the first weighs more than it was given.
fn dag(id: &str, priority: i32) -> DagSpec {
    let task = |name: &str| TaskSpec { priority, ..exec(name) };
    let after = TaskSpec { needs: vec!["first".into()], ..task("second") };
    DagSpec::new(id, vec![task("first"), after])
}

async fn busy(preemption: bool) -> (Rig, Owner, [Assignment; 2]) {
    let (rig, mut owner) = cluster(1, preemption).await;
    for (id, priority) in [("low", 1), ("middle", 5), ("high", 9)] {
        rig.register(dag(id, priority)).await;
    }
    let first = [begin(&rig, &mut owner, "low").await, begin(&rig, &mut owner, "middle").await];
    (rig, owner, first)
}

async fn cluster(shards: u16, preemption: bool) -> (Rig, Owner) {
    let rig = Rig::with_shards(shards).await;
    rig.node(2).await;
    let options = Options::default();
    let config = OwnerConfig { preemption, ..options.config };
    let owner = rig.owner(Options { config, ..options });
    rig::wait("all shards", || owner.owned().len() == usize::from(shards)).await;
    (rig, owner)
}

async fn begin(rig: &Rig, owner: &mut Owner, dag: &str) -> Assignment {
    rig.trigger(dag, "r").await;
    let assignment = owner.next().await;
    assert_eq!((assignment.dag.as_str(), owner.claim(&assignment).await), (dag, Ack::Accepted));
    assignment
}

/// Registers a dag of this priority whose name falls into this of four shards.
async fn in_shard(rig: &Rig, shard: u16, priority: i32) -> String {
    let mut names = (0..).map(|number| format!("p{priority}-{number}"));
    let falls = |name: &String| {
        ShardId::of(&TenantId::default_tenant(), &DagId::from(name.clone()), 4) == ShardId(shard)
    };
    let name = names.find(falls).unwrap();
    rig.register(dag(&name, priority)).await;
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_important_task_makes_room_and_comes_back_as_the_same_try() {
    let (rig, mut owner, [low, middle]) = busy(true).await;
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
    let (rig, mut owner, [low, middle]) = busy(true).await;
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
    let (rig, mut owner, attempts) = busy(true).await;
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
    let (rig, mut owner, attempts) = busy(false).await;
    rig.trigger("high", "r").await;
    owner.nothing_for(Duration::from_millis(2_500)).await;
    for attempt in attempts {
        assert!(!owner.hands.stopped(attempt.attempt));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_shards_only_tasks_of_its_own_make_room_and_no_other_however_little_it_matters() {
    let (rig, mut owner) = cluster(4, true).await;
    let theirs = in_shard(&rig, 1, 1).await;
    let (own, high) = (in_shard(&rig, 0, 5).await, in_shard(&rig, 0, 9).await);
    let least = begin(&rig, &mut owner, &theirs).await;
    let victim = begin(&rig, &mut owner, &own).await;
    rig.trigger(&high, "r").await;
    owner.wait_stopped(victim.attempt).await;
    owner.nothing_for(Duration::from_millis(1_500)).await;
    assert!(!owner.hands.stopped(least.attempt), "it is another shard's");
    assert_eq!(owner.end(&victim, STOPPED).await, Ack::Accepted);
    assert_eq!(owner.next().await.dag.as_str(), high, "the place stays in the shard, for the most important");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_with_nothing_of_its_own_to_stop_waits_until_another_ones_task_ends() {
    let (rig, mut owner) = cluster(4, true).await;
    let (theirs, others) = (in_shard(&rig, 1, 1).await, in_shard(&rig, 2, 5).await);
    let high = in_shard(&rig, 0, 9).await;
    let running = [begin(&rig, &mut owner, &theirs).await, begin(&rig, &mut owner, &others).await];
    rig.trigger(&high, "r").await;
    owner.nothing_for(Duration::from_millis(2_500)).await;
    for assignment in &running {
        assert!(!owner.hands.stopped(assignment.attempt), "{}", assignment.dag);
    }
    // What comes after it in its own shard has the place first, and no longer: everybody has a turn.
    assert_eq!(owner.end(&running[0], Outcome::Success).await, Ack::Accepted);
    let mut next = owner.next().await;
    if next.dag.as_str() == theirs {
        assert_eq!(owner.claim(&next).await, Ack::Accepted);
        assert_eq!(owner.end(&next, Outcome::Success).await, Ack::Accepted);
        next = owner.next().await;
    }
    assert_eq!(next.dag.as_str(), high);
}
