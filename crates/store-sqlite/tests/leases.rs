//! Goal: SQLite keeps leases as every backend does, in a state database and in a file of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::SystemClock;
use tenure_lease_conformance::{Deed, Fresh};
use tenure_store_sqlite::{SqliteLeases, SqliteOptions, SqliteStore};

/// Deletes the rows over a connection of its own, as a person with a shell would.
fn forget_leases_in(path: PathBuf) -> Deed {
    Box::new(move || {
        let path = path.clone();
        Box::pin(async move {
            let conn = rusqlite::Connection::open(&path).expect("opened behind its back");
            conn.busy_timeout(Duration::from_secs(5)).expect("patient");
            conn.execute("DELETE FROM leases", []).expect("deleted");
        })
    })
}

mod a_state_database {
    use super::*;

    async fn in_a_file() -> Fresh {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tenure.db");
        let store = SqliteStore::open(&path, SqliteOptions::default(), Arc::new(SystemClock));
        let store = Arc::new(store.expect("opened"));
        let forget_leases = forget_leases_in(path);
        Fresh { leases: store.clone(), fences: store, forget_leases, keep: Box::new(folder) }
    }

    tenure_lease_conformance::exercise!(in_a_file);
}

mod a_file_of_leases {
    use super::*;

    /// Leases through one handle, fences through another, as two processes would.
    async fn two_handles() -> Fresh {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leases.db");
        let open = || Arc::new(SqliteLeases::open(&path, Arc::new(SystemClock)).expect("opened"));
        let (leases, fences) = (open(), open());
        Fresh { leases, fences, forget_leases: forget_leases_in(path.clone()), keep: Box::new(folder) }
    }

    tenure_lease_conformance::exercise!(two_handles);
}
