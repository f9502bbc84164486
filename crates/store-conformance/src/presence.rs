//! Goal: a node that any replica hears from is present, and one that none has heard from lately is not.

use std::time::Duration;

use tenure_model::NodeId;

use crate::Fresh;
use crate::harness::World;

const LONG: Duration = Duration::from_secs(600);

fn nodes(names: &str) -> Vec<NodeId> {
    names.split_whitespace().map(NodeId::new).collect()
}

async fn present(world: &World, asked: &str, within: Duration) -> Vec<NodeId> {
    let mut present = world.store.present(&nodes(asked), within).await.expect("answered");
    present.sort();
    present
}

pub async fn a_node_is_present_while_some_replica_hears_it(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(present(&world, "n1 n2", LONG).await, []);
    world.store.record_presence("replica-1", &nodes("n1 n2")).await.expect("recorded");
    world.store.record_presence("replica-2", &nodes("n2 n3")).await.expect("recorded");
    assert_eq!(present(&world, "n1 n2 n3 n4", LONG).await, nodes("n1 n2 n3"));
    assert_eq!(present(&world, "n3", LONG).await, nodes("n3"), "only what was asked for");
    assert_eq!(present(&world, "", LONG).await, []);
}

pub async fn a_replica_says_anew_whom_it_hears(fresh: Fresh) {
    let world = World::of(fresh);
    world.store.record_presence("replica-1", &nodes("n1 n2")).await.expect("recorded");
    world.store.record_presence("replica-2", &nodes("n2")).await.expect("recorded");
    world.store.record_presence("replica-1", &nodes("n3")).await.expect("recorded");
    assert_eq!(present(&world, "n1 n2 n3", LONG).await, nodes("n2 n3"));
    world.store.record_presence("replica-2", &[]).await.expect("recorded");
    assert_eq!(present(&world, "n1 n2 n3", LONG).await, nodes("n3"));
}

pub async fn what_was_heard_long_ago_does_not_count(fresh: Fresh) {
    let world = World::of(fresh);
    world.store.record_presence("replica-1", &nodes("n1")).await.expect("recorded");
    let gone = async {
        while !present(&world, "n1", Duration::from_millis(20)).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("twenty milliseconds pass");
    assert_eq!(present(&world, "n1", LONG).await, nodes("n1"));
    assert_eq!(present(&world, "n1", Duration::MAX).await, nodes("n1"));
}
