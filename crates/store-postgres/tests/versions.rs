//! Goal: dag versions that were read ahead are in memory, and whoever takes a shard over asks for none of them.
//! Method: once they were read, the database holds nothing that could be read.

mod common;

use common::{client, register, store, user};
use tenure_store::{DagVersionName, SchedulingStore, StoreError};
use tenure_testkit::Postgres;

#[tokio::test]
async fn a_standby_that_has_read_ahead_asks_the_database_for_no_spec() {
    let database = Postgres::shared().database().await;
    let writer = store(&database.url, 1).await;
    let name = |dag: &str| DagVersionName { tenant: user().tenant, dag: dag.into(), version: 1 };
    let names = [name("etl"), name("report")];
    for dag in &names {
        register(&writer, dag.dag.as_str(), 2).await;
    }
    let (standby, newcomer) = (store(&database.url, 1).await, store(&database.url, 1).await);
    assert_eq!(standby.read_ahead().await.expect("read"), 2);
    assert_eq!(standby.read_ahead().await.expect("read"), 0, "they are there");
    client(&database.url).await.batch_execute("UPDATE dag_versions SET spec = 'no spec'").await.unwrap();
    for version in standby.dag_versions(&names).await.expect("read") {
        assert_eq!(version.expect("from memory").spec.tasks.len(), 2);
    }
    for version in newcomer.dag_versions(&names).await.expect("read") {
        assert!(matches!(version, Err(StoreError::Corrupt { .. })), "{version:?}");
    }
}
