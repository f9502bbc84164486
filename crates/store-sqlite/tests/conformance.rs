//! Goal: SQLite behaves as every store does, from a file and from memory.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_store_conformance::Fresh;
use tenure_store_sqlite::{SqliteOptions, SqliteStore};

async fn in_a_file(shards: u16) -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let store = SqliteStore::open(&path, SqliteOptions { shards }, Arc::new(SystemClock)).expect("opened");
    let forget_leases = Box::new(move || {
        let path = path.clone();
        let deed = async move {
            let conn = rusqlite::Connection::open(&path).expect("opened behind its back");
            conn.busy_timeout(std::time::Duration::from_secs(5)).expect("patient");
            conn.execute("DELETE FROM leases", []).expect("deleted");
        };
        Box::pin(deed) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    Fresh { store: Arc::new(store), forget_leases, keep: Box::new(folder) }
}

tenure_store_conformance::exercise!(in_a_file);
