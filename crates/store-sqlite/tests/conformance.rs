//! Goal: SQLite behaves as every store does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tenure_clock::SystemClock;
use tenure_store_conformance::{Fresh, Spoil, Spoiled};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};

async fn in_a_file(shards: u16) -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let store = SqliteStore::open(&path, SqliteOptions { shards }, Arc::new(SystemClock)).expect("opened");
    Fresh { store: Arc::new(store), spoil: spoil(path), keep: Box::new(folder) }
}

/// Through a connection of its own, as somebody with a shell would.
fn spoil(path: PathBuf) -> Spoil {
    Box::new(move |what| {
        let path = path.clone();
        Box::pin(async move {
            let conn = Connection::open(path).expect("opened");
            conn.busy_timeout(Duration::from_secs(5)).expect("set");
            let changed = match what {
                Spoiled::Run(run) => {
                    conn.execute("UPDATE runs SET run_type = 'nonsense' WHERE key = ?1", [run.0])
                }
                Spoiled::Task(ti) => conn.execute(
                    "UPDATE task_instances SET state = 'nonsense' WHERE run = ?1 AND task_no = ?2 AND map_index = ?3",
                    (ti.run.0, ti.task.0, ti.map_index),
                ),
            };
            assert_eq!(changed.expect("spoiled"), 1);
        })
    })
}

tenure_store_conformance::exercise!(in_a_file);
