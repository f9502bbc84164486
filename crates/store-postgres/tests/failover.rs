//! Goal: when a standby is promoted, work goes on there, and the old primary, which lives on and can only be read, is left.
//! Method: two real servers, one of which follows the other.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{SOON, client, store, user};
use tenure_store::{IntentStore, PoolRecord, StoreError, Views};
use tenure_testkit::{Postgres, Settings, wait_for};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

fn pool(name: &str) -> PoolRecord {
    PoolRecord { name: name.into(), slots: 1, description: String::new() }
}

/// The tables themselves may not have arrived yet.
async fn has_pool(client: &Client, name: &str) -> bool {
    match client.query("SELECT 1 FROM pools WHERE name = $1", &[&name]).await {
        Ok(found) => !found.is_empty(),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_is_written_to_and_the_old_primary_is_left() {
    let primary = Postgres::own(Settings::default());
    let standby = primary.standby();
    let store = store(&primary.url_with(&standby), 4).await;
    store.put_pool(&user(), &pool("before")).await.expect("put");
    let (old, new) = (client(&primary.url()).await, client(&standby.url()).await);
    wait_for("the standby follows", SOON, || async { has_pool(&new, "before").await.then_some(()) }).await;
    let refused = new.batch_execute("DELETE FROM pools").await;
    assert!(refused.is_err(), "it can only be read");

    old.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.expect("set");
    old.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
    standby.promote();

    let refusals = AtomicU32::new(0);
    wait_for("a write succeeds", SOON, || async {
        match store.put_pool(&user(), &pool("after")).await {
            Ok(()) => Some(()),
            Err(StoreError::Unavailable { .. }) => {
                refusals.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(other) => panic!("{other}"),
        }
    })
    .await;
    let refusals = refusals.into_inner();
    assert!(refusals <= 4, "each connection finds out once: {refusals}");
    assert!(has_pool(&new, "after").await, "it is on the promoted one");
    assert!(!has_pool(&old, "after").await, "and not on the other");
    let seen = store.list_pools().await.expect("read");
    assert!(seen.iter().any(|pool| pool.name.as_str() == "after"), "and it is read from there");
}
