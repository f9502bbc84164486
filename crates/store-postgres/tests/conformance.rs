//! Goal: Postgres behaves as every store does. Method: the shared suite, each fact in a database of its own.

use std::sync::Arc;

use tenure_clock::Entropy;
use tenure_store_conformance::Fresh;
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::Postgres;

async fn fresh(shards: u16) -> Fresh {
    let database = Postgres::shared().database().await;
    let options = PostgresOptions { shards, ..PostgresOptions::default() };
    let store =
        PostgresStore::connect(&database.url, options, &Entropy::from_os()).await.expect("a fresh database");
    Fresh { store: Arc::new(store), keep: Box::new(database) }
}

tenure_store_conformance::exercise!(fresh);
