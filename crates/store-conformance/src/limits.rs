//! Goal: every owner learns that pools, quotas or nodes have changed from one number, and what comes with a number is
//! never older than it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use tenure_model::{NodeId, Resources, ShardId};
use tenure_store::{DrainStage, NodeRegistration, PoolRecord, Quota, drain_scope};

use crate::harness::{NODE, World, assert_conflict, assert_not_found, now, spec, user};
use crate::{Fresh, SHARDS};

fn pool(slots: u32) -> PoolRecord {
    PoolRecord { name: "gpu".into(), slots, description: String::new() }
}

fn quota() -> Quota {
    Quota { tenant: "fraud".into(), most: Resources::default().with("gpu", 1_000) }
}

fn node(name: &str) -> NodeRegistration {
    NodeRegistration::new(name.into(), Resources::default(), "1")
}

pub async fn every_change_of_the_limits_is_the_next_version_for_every_shard(fresh: Fresh) {
    let world = World::of(fresh);
    let (store, by, name) = (&world.store, &user(), &NodeId::new(NODE));
    let mut version = world.limits_version().await;
    let mut next = async |what: &str| {
        version += 1;
        assert_eq!(world.limits_version().await, version, "{what}");
    };
    store.put_pool(by, &pool(1)).await.expect("put");
    next("a new pool").await;
    store.put_pool(by, &pool(2)).await.expect("put");
    next("another size").await;
    store.delete_pool(by, &"gpu".into()).await.expect("deleted");
    next("a pool that is gone").await;
    store.put_quota(by, &quota()).await.expect("put");
    next("a quota").await;
    store.delete_quota(by, &"fraud".into()).await.expect("deleted");
    next("a quota that is gone").await;
    store.register_node(&node(NODE), now()).await.expect("registered");
    next("a node").await;
    let deadline = now() + SignedDuration::from_mins(1);
    let drain = store.drain_node(by, name, deadline).await.expect("drained").drain.expect("a drain");
    next("a drain").await;
    let holder = world.leader(drain_scope(name)).await;
    let guard = holder.guard().expect("a long lease");
    assert!(store.advance_drain(&guard, name, drain.since, DrainStage::Stopping).await.expect("moved on"));
    next("a drain that has come further").await;
    store.undrain_node(by, name).await.expect("taken back");
    next("a drain that was taken back").await;
    store.remove_node(by, name).await.expect("removed");
    next("a node that was removed").await;
    store.register_node(&node(NODE), now()).await.expect("registered");
    next("a node that is back").await;
    for shard in (0..SHARDS).map(ShardId) {
        assert_eq!(world.attention(shard).await, [], "a number says it all: {shard}");
    }
}

pub async fn what_changes_no_limit_is_no_new_version(fresh: Fresh) {
    let world = World::of(fresh);
    let (store, by, name) = (&world.store, &user(), &NodeId::new(NODE));
    store.register_node(&node(NODE), now()).await.expect("registered");
    let deadline = now() + SignedDuration::from_mins(1);
    let drain = store.drain_node(by, name, deadline).await.expect("drained").drain.expect("a drain");
    let version = world.limits_version().await;

    store.register_node(&node(NODE), now()).await.expect("nothing new");
    let holder = world.leader(drain_scope(name)).await;
    let guard = holder.guard().expect("a long lease");
    let another = drain.since - SignedDuration::from_secs(1);
    assert!(!store.advance_drain(&guard, name, another, DrainStage::Stopping).await.expect("another drain"));
    assert_not_found(store.delete_pool(by, &"gpu".into()).await, "gpu");
    assert_conflict(store.delete_pool(by, &"default_pool".into()).await, "default_pool");
    assert_not_found(store.delete_quota(by, &"fraud".into()).await, "fraud");
    assert_not_found(store.drain_node(by, &"nope".into(), deadline).await, "nope");
    assert_not_found(store.remove_node(by, &"nope".into()).await, "nope");
    let owner = world.owner_of("etl").await;
    world.register(&spec("etl", "a")).await;
    let run = world.trigger("etl", "r1").await;
    world.drive(&owner, run.key, "run=running a=running").await;
    assert_eq!(world.limits_version().await, version);
}

pub async fn a_node_without_news_is_no_new_version(fresh: Fresh) {
    let world = World::of(fresh);
    let node = |cpu: u64, zone: &str, taint: &str, queue: &str| NodeRegistration {
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        taints: BTreeSet::from([taint.parse().expect("a taint")]),
        queues: BTreeSet::from([queue.into()]),
        ..NodeRegistration::new(NODE.into(), Resources::default().with(Resources::CPU, cpu), "1")
    };
    let mut expected = world.limits_version().await;
    for (cpu, zone, taint, queue, news) in [
        (1_000, "a", "x", "q", true),
        (1_000, "a", "x", "q", false),
        (2_000, "a", "x", "q", true),
        (2_000, "b", "x", "q", true),
        (2_000, "b", "x", "q", false),
        (2_000, "b", "x=1", "q", true),
        (2_000, "b", "x=1", "p", true),
        (2_000, "b", "x=1", "p", false),
    ] {
        let at = now();
        let said = node(cpu, zone, taint, queue);
        let record = world.store.register_node(&said, at).await.expect("registered");
        assert_eq!((record.registered_at, record.capacity.get(Resources::CPU)), (at, cpu));
        assert_eq!((record.taints, record.queues), (said.taints, said.queues));
        expected += u64::from(news);
        assert_eq!(world.limits_version().await, expected, "{cpu} {zone} {taint} {queue}");
    }
}

pub async fn a_change_of_the_limits_wakes_every_shard(fresh: Fresh) {
    let world = World::of(fresh);
    let mut wakes: Vec<_> = (0..SHARDS).map(|shard| world.store.wakes(ShardId(shard))).collect();
    wakes.iter_mut().for_each(|wakes| drop(wakes.borrow_and_update()));
    world.store.register_node(&node(NODE), now()).await.expect("registered");
    for wakes in &mut wakes {
        let woken = tokio::time::timeout(Duration::from_secs(5), wakes.changed()).await;
        woken.expect("woken by a new node").expect("open");
    }
}

pub async fn a_version_is_never_newer_than_what_comes_with_it(fresh: Fresh) {
    /// Enough for a reader that is careless to come between two of the things it reads.
    const SEEN: u32 = 30;
    let world = World::of(fresh);
    let start = world.limits_version().await;
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, enough) = (Arc::clone(&world.store), Arc::clone(&enough));
            tokio::spawn(async move {
                let mut registered = 0;
                while !enough.load(Ordering::Relaxed) {
                    let node = node(&format!("n-{writer}-{registered}"));
                    store.register_node(&node, now()).await.expect("registered");
                    registered += 1;
                    // A store in memory would have a million nodes before the reader has looked twice.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                registered
            })
        })
        .collect();
    let (mut seen, mut last) = (0, start);
    while seen < SEEN {
        let look = world.store.attention(ShardId(1), 10).await.expect("attention").limits;
        let limits = world.store.limits().await.expect("limits");
        assert!(limits.version >= look, "{} after {look}", limits.version);
        // Every version after the first came with one node more.
        let (nodes, versions) = (limits.nodes.len() as u64, limits.version - start);
        assert!(nodes >= versions, "{nodes} nodes after {versions} registrations");
        seen += u32::from(limits.version > last);
        last = limits.version;
        assert!(!writers.iter().all(|writer| writer.is_finished()), "somebody must write");
        tokio::task::yield_now().await;
    }
    enough.store(true, Ordering::Relaxed);
    let mut registered = 0;
    for writer in writers {
        registered += writer.await.expect("no panic");
    }
    assert_eq!(world.limits_version().await, start + registered, "one for each node");
}
