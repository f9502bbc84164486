//! Goal: Postgres behaves as every store does. Method: the shared suite, each fact in a database of its own.

use std::sync::Arc;

use tenure_clock::Entropy;
use tenure_store_conformance::{Fresh, Spoiled};
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::Postgres;
use tokio_postgres::NoTls;

async fn fresh(shards: u16) -> Fresh {
    let database = Postgres::shared().database().await;
    let options = PostgresOptions { shards, ..PostgresOptions::default() };
    let store =
        PostgresStore::connect(&database.url, options, &Entropy::from_os()).await.expect("a fresh database");
    let url = database.url.clone();
    let spoil = move |what| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let url = url.clone();
        Box::pin(async move { spoil(&url, what).await })
    };
    Fresh { store: Arc::new(store), spoil: Box::new(spoil), keep: Box::new(database) }
}

async fn spoil(url: &str, what: Spoiled) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connected");
    tokio::spawn(connection);
    let spoiled = match what {
        Spoiled::Run(run) => {
            client.execute("UPDATE runs SET run_type = 'strange' WHERE key = $1", &[&run.0]).await
        }
        Spoiled::Task(ti) => {
            let sql = "UPDATE task_instances SET state = 'strange'
                WHERE run = $1 AND task_no = $2 AND map_index = $3";
            client.execute(sql, &[&ti.run.0, &(ti.task.0 as i32), &ti.map_index]).await
        }
    };
    assert_eq!(spoiled.expect("spoiled"), 1);
}

tenure_store_conformance::exercise!(fresh);
