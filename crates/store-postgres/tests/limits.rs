//! Goal: the one row that every change of the limits writes refuses nobody, and no change is kept without it.

mod common;

use std::sync::Arc;

use common::wire::{Cut, Wire};
use common::{client, now, store};
use futures::future::try_join_all;
use tenure_model::Resources;
use tenure_store::{IntentStore, NodeRecord, NodeRegistration, SchedulingStore, StoreError};
use tenure_store_postgres::PostgresStore;
use tenure_testkit::Postgres;

/// More than there are connections.
const FLEET: u64 = 64;

async fn register(store: &PostgresStore, node: &str) -> Result<NodeRecord, StoreError> {
    let node = NodeRegistration::new(node.into(), Resources::default(), "1");
    store.register_node(&node, now()).await
}

/// A fleet that starts comes all at once.
#[tokio::test]
async fn nodes_that_meet_wait_for_each_other_at_every_isolation_level() {
    for level in ["read%5C%20committed", "repeatable%5C%20read", "serializable"] {
        let database = Postgres::shared().database().await;
        let url = format!("{}?options=-c%20default_transaction_isolation%3D{level}", database.url);
        let ours = store(&url, 8).await;
        let before = ours.limits().await.unwrap().version;
        let coming = (0..FLEET).map(|number| {
            let ours = Arc::clone(&ours);
            tokio::spawn(async move { register(&ours, &format!("n{number}")).await.expect("registered") })
        });
        try_join_all(coming).await.unwrap();
        let limits = ours.limits().await.unwrap();
        assert_eq!((limits.version - before, limits.nodes.len() as u64), (FLEET, FLEET), "{level}");
    }
}

/// The new version is sent together with the COMMIT, which must then undo everything.
#[tokio::test]
async fn a_change_whose_version_is_refused_is_not_kept() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 2).await;
    let before = ours.limits().await.unwrap();
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM limits FOR UPDATE", &[]).await.unwrap();
    let refused = register(&ours, "n1").await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert_eq!(ours.limits().await.unwrap(), before, "readers wait for nobody");
    lock.rollback().await.unwrap();
    register(&ours, "n1").await.expect("registered");
    let after = ours.limits().await.unwrap();
    assert_eq!((after.version, after.nodes.len()), (before.version + 1, 1));
}

#[tokio::test]
async fn a_lost_answer_to_a_new_version_is_unknown_and_repeating_is_safe() {
    for cut in [Cut::Before(b"COMMIT\0"), Cut::After(b"COMMIT\0")] {
        let database = Postgres::shared().database().await;
        let wire = Wire::to(&database.url, cut).await;
        let ours = store(&wire.url, 1).await;
        let before = ours.limits().await.unwrap().version;
        wire.arm();
        let lost = register(&ours, "n1").await;
        assert!(matches!(lost, Err(StoreError::Unknown { .. })), "{lost:?}");
        register(&ours, "n1").await.expect("a second try");
        let limits = ours.limits().await.unwrap();
        assert_eq!((limits.version - before, limits.nodes.len()), (1, 1));
    }
}
