//! Goal: an intent that one process commits wakes the owners in another.

mod common;

use common::{SOON, register, store, trigger};
use tenure_model::ShardId;
use tenure_store::SchedulingStore;
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
async fn a_listener_finds_its_way_back_after_a_restart() {
    let server = Postgres::own(Settings::default());
    let (ours, theirs) = (store(&server.url(), 2).await, store(&server.url(), 2).await);
    register(&ours, "etl", 1).await;
    wakes_across(&ours, &mut theirs.wakes(ShardId(0)), "before").await;
    server.restart_immediately();
    wait_for("the server", SOON, || async { ours.pools().await.ok() }).await;
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
