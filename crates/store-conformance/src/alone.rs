//! Goal: a database with one shard knows nothing of sharing.

use tenure_model::ShardId;

use crate::Fresh;
use crate::harness::World;

pub async fn a_single_shard_has_everything_and_no_shares(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(world.store.shard_count().await.expect("a count"), 1);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner(ShardId(0)).await;
    world.drive(&owner, run.key, "run=running a=queued").await;
    let snapshot = world.store.shard_snapshot(ShardId(0)).await.expect("a snapshot");
    assert_eq!((snapshot.running.len(), snapshot.shares), (1, vec![]));
}
