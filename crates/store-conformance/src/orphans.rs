//! Goal: a run is an orphan when nothing goes on in it and nothing will, and nobody has touched it for long.

use jiff::{SignedDuration, Timestamp};
use tenure_model::{RunKey, ShardId, TaskState};

use crate::harness::{World, new_run, now, pass_of, spec};
use crate::{Fresh, SHARDS};

async fn orphans(world: &World, dag: &str, untouched_since: Timestamp, limit: u32) -> Vec<RunKey> {
    world.store.orphans(world.shard_of(dag).await, untouched_since, limit).await.expect("listed")
}

fn in_an_hour() -> Timestamp {
    now() + SignedDuration::from_hours(1)
}

/// A run that was last touched then: running, with one task that has ended.
async fn touched_at(world: &World, dag: &str, run: &str, at: Timestamp) -> RunKey {
    let owner = world.owner_of(dag).await;
    let run = world.create(&new_run(dag, run)).await;
    let change = world.change(&world.load(run.key).await, "run=running a=success");
    let pass = tenure_store::Pass { at, ..pass_of(vec![change]) };
    world.commit_whole(&owner, &pass).await;
    run.key
}

pub async fn only_a_running_run_in_which_nothing_goes_on_is_an_orphan(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b")).await;
    let owner = world.owner_of("etl").await;
    let mut expected = vec![];
    for state in TaskState::ALL {
        let run = world.trigger("etl", state.as_str()).await;
        let moves = if state == TaskState::None { String::new() } else { format!("b={state}") };
        world.drive(&owner, run.key, &format!("run=running a=success {moves}")).await;
        if state.is_finished() || state == TaskState::None {
            expected.push(run.key);
        }
    }
    world.trigger("etl", "waits for its turn").await;
    let finished = world.trigger("etl", "finished").await;
    world.drive(&owner, finished.key, "a=success b=success run=success").await;
    let untouched = world.trigger("etl", "untouched").await;
    world.drive(&owner, untouched.key, "run=running").await;
    expected.push(untouched.key);

    let mut found = orphans(&world, "etl", in_an_hour(), 100).await;
    found.sort();
    assert_eq!(found, expected);
}

pub async fn orphans_come_oldest_first_and_no_more_than_asked(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b")).await;
    let long_ago = |minutes: i64| now() - SignedDuration::from_mins(minutes);
    let second = touched_at(&world, "etl", "second", long_ago(20)).await;
    let first = touched_at(&world, "etl", "first", long_ago(30)).await;
    let young = touched_at(&world, "etl", "young", long_ago(1)).await;
    assert_eq!(orphans(&world, "etl", long_ago(5), 100).await, [first, second]);
    assert_eq!(orphans(&world, "etl", long_ago(25), 100).await, [first]);
    assert_eq!(orphans(&world, "etl", now(), 2).await, [first, second]);
    assert_eq!(orphans(&world, "etl", in_an_hour(), 100).await, [first, second, young]);
}

pub async fn a_shard_hears_of_its_own_orphans_only(fresh: Fresh) {
    let world = World::of(fresh);
    let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
    for (shard, dag) in shards.iter().zip(world.dags_in(&shards).await) {
        world.register(&spec(&dag, "a")).await;
        let run = touched_at(&world, &dag, "r1", now()).await;
        assert_eq!(world.store.orphans(*shard, in_an_hour(), 100).await.expect("listed"), [run]);
    }
}
