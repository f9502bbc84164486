//! Goal: an intent that one process commits wakes the owners in another.

mod common;

use common::{SOON, dags_of_shards, register, sharded, store, trigger, user};
use tenure_model::ShardId;
use tenure_store::{IntentStore, PoolRecord, SchedulingStore, Views};
use tenure_testkit::{Postgres, Settings, wait_for};
use tokio::sync::watch;

/// Triggers runs until one of them wakes the other store: a hint may be lost while its listener connects.
async fn wakes_across(
    ours: &tenure_store_postgres::PostgresStore,
    wakes: &mut watch::Receiver<u64>,
    name: &str,
) {
    for number in 0..100 {
        wakes.borrow_and_update();
        trigger(ours, "etl", &format!("{name}-{number}")).await;
        let waited = tokio::time::timeout(SOON / 100, wakes.changed()).await;
        if waited.is_ok_and(|changed| changed.is_ok()) {
            return;
        }
    }
    panic!("a hundred triggers woke nobody");
}

#[tokio::test]
async fn another_process_is_woken() {
    let database = Postgres::shared().database().await;
    let (ours, theirs) = (store(&database.url, 2).await, store(&database.url, 2).await);
    register(&ours, "etl", 1).await;
    wakes_across(&ours, &mut theirs.wakes(ShardId(0)), "run").await;
}

#[tokio::test]
async fn an_intent_wakes_the_shards_it_concerns_and_no_others() {
    let database = Postgres::shared().database().await;
    let (ours, theirs) = (sharded(&database.url, 3, 2).await, sharded(&database.url, 3, 2).await);
    let dags = dags_of_shards(3);
    for dag in &dags {
        register(&ours, dag, 1).await;
    }
    // Once a wake has come across, the other store listens.
    let mut third = theirs.wakes(ShardId(2));
    for number in 0.. {
        third.borrow_and_update();
        trigger(&ours, &dags[2], &format!("first-{number}")).await;
        if tokio::time::timeout(SOON / 100, third.changed()).await.is_ok_and(|changed| changed.is_ok()) {
            break;
        }
        assert!(number < 100, "a hundred triggers woke nobody");
    }
    let counts = |store: &tenure_store_postgres::PostgresStore| {
        [0, 1, 2].map(|shard| *store.wakes(ShardId(shard)).borrow())
    };
    // What was said before is heard before: nothing is on its way once all is quiet.
    let quiet = || async {
        let before = counts(&theirs);
        tokio::time::sleep(SOON / 40).await;
        (counts(&theirs) == before).then_some(())
    };
    wait_for("silence", SOON, quiet).await;
    let (before_here, before) = (counts(&ours), counts(&theirs));
    trigger(&ours, &dags[1], "r1").await;
    let pool = PoolRecord { name: "gpu".into(), slots: 1, description: String::new() };
    ours.put_pool(&user(), &pool).await.expect("put");
    let expected = |before: [u64; 3]| [before[0] + 1, before[1] + 2, before[2] + 1];
    assert_eq!(counts(&ours), expected(before_here), "here at once");
    wait_for("the pool to be heard of", SOON, || async { (counts(&theirs)[0] > before[0]).then_some(()) })
        .await;
    assert_eq!(counts(&theirs), expected(before), "a run concerns its shard, a pool concerns all");
}

#[tokio::test]
async fn a_listener_finds_its_way_back_after_a_restart() {
    let server = Postgres::own(Settings::default());
    let (ours, theirs) = (store(&server.url(), 2).await, store(&server.url(), 2).await);
    register(&ours, "etl", 1).await;
    wakes_across(&ours, &mut theirs.wakes(ShardId(0)), "before").await;
    server.restart_immediately();
    wait_for("the server", SOON, || async { ours.list_pools().await.ok() }).await;
    wakes_across(&ours, &mut theirs.wakes(ShardId(0)), "after").await;
}

#[tokio::test]
async fn a_process_is_not_woken_twice_by_its_own_intent() {
    let database = Postgres::shared().database().await;
    let (ours, theirs) = (store(&database.url, 2).await, store(&database.url, 2).await);
    register(&ours, "etl", 1).await;
    // Both directions work, so both listen.
    wakes_across(&ours, &mut theirs.wakes(ShardId(0)), "there").await;
    wakes_across(&theirs, &mut ours.wakes(ShardId(0)), "back").await;
    tokio::time::sleep(SOON / 100).await;
    let (our_wakes, their_wakes) = (ours.wakes(ShardId(0)), theirs.wakes(ShardId(0)));
    let (our_start, their_start) = (*our_wakes.borrow(), *their_wakes.borrow());
    for number in 0..10 {
        trigger(&ours, "etl", &format!("mine-{number}")).await;
    }
    trigger(&theirs, "etl", "theirs").await;
    wait_for("everybody to hear of eleven intents", SOON, || async {
        (*our_wakes.borrow() >= our_start + 11 && *their_wakes.borrow() >= their_start + 11).then_some(())
    })
    .await;
    // Echoes of our own would come by now.
    tokio::time::sleep(SOON / 100).await;
    assert_eq!(*our_wakes.borrow(), our_start + 11);
}
