//! Leases in a file of their own, for programs on one machine that have no server: any number of processes open
//! it at once, and SQLite's locks let one of them write at a time.
//!
//! Promises: an answered write is on disk (WAL, `synchronous=FULL`); an epoch is never used twice, not even when
//! lease rows are deleted; a change in one process is noticed in the others within a twentieth of a second, and
//! so is a crash. Not for network file systems, where neither SQLite's locks nor `flock` can be trusted.
//!
//! Time: a lease runs out on the wall clock of the [`Clock`] that is passed in, which the processes of one machine
//! share. Set back, it lengthens leases by as much, unless somebody who has seen no renewal for long enough says
//! so ([`Takeover::OfStalled`](tenure_lease::Takeover)); set forward, it ends them early. Neither can hurt more
//! than speed, because every effect is fenced by its epoch.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tenure_clock::Clock;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, FenceStore, Hint, LeaseError, LeaseRecord,
    LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tokio::sync::broadcast;

use super::changes::Changes;
use super::lifeline::FileLifeline;
use super::verbs::{Verbs, capabilities};
use crate::migrations::{self, MigrationError};
use crate::readers::Readers;
use crate::wakes::Wakes;
use crate::writer::Writer;
use crate::{OpenError, STATEMENTS, files};

/// Others write for milliseconds. Whoever waits longer than this has met a stopped process or a person with a
/// shell, and had better say so: a third of the usual lease is gone.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// While several processes make the file at the same moment, SQLite turns some away without waiting.
const OPEN_FOR: Duration = Duration::from_secs(5);

/// Cloned handles are not needed: open the file again, in this process or in another.
#[derive(Debug)]
pub struct SqliteLeases {
    // The order is the order of closing.
    changes: Mutex<Option<Changes>>,
    readers: Readers,
    writer: Writer,
    hints: broadcast::Sender<Hint>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
}

impl SqliteLeases {
    /// Opens the file, or makes it, readable by its owner alone. Refuses any other kind of database.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let given_up = clock.boottime() + OPEN_FOR;
        let (conn, reader) = loop {
            match connect(path) {
                Err(error) if is_busy(&error) && clock.boottime() < given_up => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                settled => break settled?,
            }
        };
        let readers = Readers::start(vec![reader]).map_err(io)?;
        // Leases leave nothing for an owner to look at.
        let writer = Writer::start(conn, Wakes::new(0), Arc::clone(&clock)).map_err(io)?;
        let (changes, hints) = (Mutex::default(), super::hints());
        Ok(Self { changes, readers, writer, hints, clock, path: path.to_owned() })
    }

    fn verbs(&self) -> Verbs<'_> {
        Verbs { writer: &self.writer, readers: Some(&self.readers), clock: &self.clock, hints: &self.hints }
    }
}

/// One connection that writes, one that reads.
fn connect(path: &Path) -> Result<(Connection, Connection), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let schema = |why| OpenError::Schema { path: path.to_owned(), why };
    // Before anything changes its permissions or its journal.
    if path.exists() {
        migrations::check_leases(&open_read_only(path).map_err(sqlite)?).map_err(schema)?;
    }
    files::make_private(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    let mut conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sqlite)?;
    configure(&conn).map_err(sqlite)?;
    migrations::migrate_leases(&mut conn).map_err(schema)?;
    Ok((conn, open_read_only(path).map_err(sqlite)?))
}

fn configure(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.busy_timeout(BUSY_FOR)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

fn open_read_only(path: &Path) -> Result<Connection, rusqlite::Error> {
    let conn = crate::open_reader(path)?;
    conn.busy_timeout(BUSY_FOR)?;
    Ok(conn)
}

fn is_busy(error: &OpenError) -> bool {
    let source = match error {
        OpenError::Sqlite { source, .. } => source,
        OpenError::Schema { why: MigrationError::Sql(source), .. } => source,
        _ => return false,
    };
    matches!(source.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[async_trait]
impl LeaseStore for SqliteLeases {
    fn capabilities(&self) -> Capabilities {
        capabilities(true)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.verbs().acquire(request).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.verbs().renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.verbs().release(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.verbs().list(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.verbs().find(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.verbs().history(scope, limit).await
    }

    /// Whoever watches first sets off the thread that looks for what other processes do.
    fn watch(&self) -> broadcast::Receiver<Hint> {
        let receiver = self.hints.subscribe();
        let mut changes = self.changes.lock().expect("no panic while holding the thread");
        if changes.is_none() {
            match Changes::start(&self.path, self.hints.clone()) {
                Ok(started) => *changes = Some(started),
                // Hints from this process still come; for all else there is the poll of whoever waits.
                Err(error) => tracing::warn!(%error, "no hints from other processes"),
            }
        }
        receiver
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        let lifeline = FileLifeline::attach(&self.path, session, self.hints.clone(), &*self.clock);
        let lifeline = lifeline.map_err(|error| LeaseError::Unavailable(error.into()))?;
        Ok(Some(Box::new(lifeline)))
    }
}

#[async_trait]
impl FenceStore for SqliteLeases {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.verbs().install_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.verbs().fence(scope).await
    }
}

#[cfg(test)]
mod tests;
