//! Notices what other processes have done to a file of leases, and passes it on as hints.
//!
//! SQLite keeps a number that moves when another connection has committed, and reading it costs next to nothing.
//! Only then the table is read. Renewals are not told: they give nobody anything to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tenure_lease::{Hint, Scope, Term};
use tokio::sync::broadcast;

use crate::errors::Fail;
use crate::rows::all;

/// A hand-over between two processes is seen after half of this, on average.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A thread that looks as long as somebody watches. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Changes {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Changes {
    pub(super) fn start(path: &Path, hints: broadcast::Sender<Hint>) -> Result<Self, crate::OpenError> {
        let sqlite = |source| crate::OpenError::Sqlite { path: path.to_owned(), source };
        let conn = crate::open_reader(path).map_err(sqlite)?;
        let (stop, stopped) = mpsc::channel();
        let name = std::thread::Builder::new().name("sqlite-changes".into());
        let thread = name.spawn(move || run(&conn, &hints, &stopped));
        let thread = thread.map_err(|source| crate::OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks for changes had panicked");
        }
    }
}

fn run(conn: &Connection, hints: &broadcast::Sender<Hint>, stopped: &mpsc::Receiver<()>) {
    let mut seen = Seen::default();
    let mut well = true;
    while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        if hints.receiver_count() == 0 {
            seen = Seen::default();
            continue;
        }
        match seen.look(conn) {
            // Those who watched may all have gone meanwhile.
            Ok(changed) => changed.into_iter().for_each(|hint| drop(hints.send(hint))),
            Err(fail) => {
                let error = fail.told("looking for changes");
                if well {
                    tracing::warn!(%error, "hints from other processes have stopped");
                }
                well = false;
                seen = Seen::default();
                continue;
            }
        }
        well = true;
    }
}

#[derive(Default)]
struct Seen {
    version: Option<i64>,
    /// Who held what, and whether it was given back. `None`: not looked yet.
    leases: Option<BTreeMap<Scope, (Term, bool)>>,
}

impl Seen {
    fn look(&mut self, conn: &Connection) -> Result<Vec<Hint>, Fail> {
        // The number before the table: what comes in between is seen again next time.
        let version = Some(conn.pragma_query_value(None, "data_version", |row| row.get(0))?);
        if version == self.version {
            return Ok(vec![]);
        }
        let mut select = conn.prepare_cached("SELECT scope, term, released FROM leases")?;
        let rows = all(&mut select, [], |cells| {
            Ok((Scope::new(cells.text::<&str>()?), (Term(cells.uuid()?), cells.take()?)))
        })?;
        let leases: BTreeMap<Scope, (Term, bool)> = rows.into_iter().collect();
        self.version = version;
        let Some(before) = self.leases.replace(leases) else { return Ok(vec![Hint::Resync]) };
        let now = self.leases.as_ref().expect("put there just now");
        let new = now.iter().filter(|(scope, lease)| before.get(*scope) != Some(*lease));
        let gone = before.iter().filter(|(scope, _)| !now.contains_key(*scope));
        Ok(new.chain(gone).map(|(scope, _)| Hint::Changed(scope.clone())).collect())
    }
}
