//! Goal: tests get real databases, cannot see each other's, and leave no server behind.

use std::time::Duration;

use tenure_testkit::{Postgres, Settings, wait_for};
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test]
async fn each_test_has_a_database_of_its_own() {
    let (one, two) = (Postgres::shared().database().await, Postgres::shared().database().await);
    let (first, second) = (connect(&one.url).await.unwrap(), connect(&two.url).await.unwrap());
    first.batch_execute("CREATE TABLE mine (n int)").await.unwrap();
    assert!(second.batch_execute("SELECT * FROM mine").await.is_err());
}

#[tokio::test]
async fn a_dropped_database_is_gone() {
    let database = Postgres::shared().database().await;
    let url = database.url.clone();
    let _open = connect(&url).await.unwrap();
    drop(database);
    assert!(connect(&url).await.is_err());
}

#[tokio::test]
async fn an_own_server_keeps_its_data_through_an_immediate_restart() {
    let server = Postgres::own(Settings { fsync: true, ..Settings::default() });
    let client = connect(&server.url()).await.unwrap();
    client.batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)").await.unwrap();
    server.restart_immediately();
    assert!(client.batch_execute("SELECT 1").await.is_err(), "the old connection is dead");
    let client = connect(&server.url()).await.unwrap();
    let kept: i32 = client.query_one("SELECT n FROM kept", &[]).await.unwrap().get(0);
    assert_eq!(kept, 7);
}

#[tokio::test]
async fn an_own_server_goes_with_its_handle() {
    let server = Postgres::own(Settings::default());
    let url = server.url();
    drop(server);
    wait_for("the server to be gone", Duration::from_secs(10), || async { connect(&url).await.err() }).await;
}
