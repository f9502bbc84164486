//! Goal: SQLite behaves as every store does.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_store_conformance::Fresh;
use tenure_store_sqlite::{SqliteOptions, SqliteStore};

async fn in_a_file(shards: u16) -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let store = SqliteStore::open(&path, SqliteOptions { shards }, Arc::new(SystemClock)).expect("opened");
    Fresh { store: Arc::new(store), keep: Box::new(folder) }
}

tenure_store_conformance::exercise!(in_a_file);
