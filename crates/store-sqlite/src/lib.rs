//! The state database in one SQLite file: for one machine, with nothing to install.
//!
//! Promises: an answered write is on disk (WAL, `synchronous=FULL`) and survives power loss; one process at a
//! time has the file; readers never wait for writers. One thread writes and commits in groups ([`writer`]);
//! a few threads read.
//!
//! Time: leases expire on the wall clock of the [`Clock`] that is passed in, because boot time means nothing to
//! the next process that opens the file. A clock that is set back lengthens leases by as much, one that is set
//! forward ends them early; neither can hurt more than speed, because every effect is fenced by its epoch.

mod chores;
mod commit_pass;
mod edits;
mod errors;
mod files;
mod identities;
mod intent;
mod leases;
mod limits;
mod migrations;
mod presence;
mod readers;
mod registration;
mod reports;
mod rows;
mod runs;
mod scheduling;
mod shares;
mod snapshot;
mod specs;
mod trail;
mod views;
mod wakes;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tenure_clock::Clock;
use tenure_lease::Hint;
use tenure_store::StoreError;
use tokio::sync::broadcast;

use errors::Fail;
use files::{FileLock, LockFailure};
pub use leases::SqliteLeases;
pub use migrations::MigrationError;
use readers::Readers;
use specs::Specs;
use wakes::Wakes;
use writer::{Tx, Urgency, Writer};

/// Enough for a screen with several panels while a snapshot is being read.
const READERS: usize = 3;
/// Every statement of this crate, with room for the variants of filtered listings.
const STATEMENTS: usize = 128;

#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// For a database that is new; one that exists keeps what it was created with.
    pub shards: u16,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { shards: 1 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by {}: stop that one first, or choose another data folder",
        path.display(),
        holder.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse { path: PathBuf, holder: Option<u32> },
    #[error("{} cannot be opened", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} cannot be used: {why}", path.display())]
    Schema { path: PathBuf, why: MigrationError },
    #[error("{} cannot be opened as a database", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
}

/// A whole state database. Dropping it waits for the writes that were handed in.
#[derive(Debug)]
pub struct SqliteStore {
    // The order is the order of closing: readers, writer, then the lock that keeps others out.
    readers: Option<Readers>,
    writer: Writer,
    wakes: Wakes,
    hints: broadcast::Sender<Hint>,
    office: Arc<Office>,
    _lock: Option<FileLock>,
}

/// What every verb may need besides a connection.
#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) shards: u16,
    pub(crate) specs: Specs,
    pub(crate) clock: Arc<dyn Clock>,
}

impl SqliteStore {
    /// Opens the file, or makes it, readable by its owner alone.
    pub fn open(path: &Path, options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let lock = files::lock(path).map_err(|failure| match failure {
            LockFailure::Taken { holder } => OpenError::InUse { path: path.to_owned(), holder },
            LockFailure::Io(source) => io(source),
        })?;
        files::make_private(path).map_err(io)?;
        let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
        let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sqlite)?;
        let (conn, shards) = prepare(conn, options, path)?;
        let readers = (0..READERS).map(|_| open_reader(path)).collect::<Result<_, _>>().map_err(sqlite)?;
        let readers = Readers::start(readers).map_err(io)?;
        Self::assemble(conn, shards, clock, Some(readers), Some(lock)).map_err(io)
    }

    /// A database that is gone with the store. Everything goes through the one connection that sees it.
    pub fn in_memory(options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let path = Path::new(":memory:");
        let conn = Connection::open_in_memory()
            .map_err(|source| OpenError::Sqlite { path: path.to_owned(), source })?;
        let (conn, shards) = prepare(conn, options, path)?;
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        Self::assemble(conn, shards, clock, None, None).map_err(io)
    }

    fn assemble(
        conn: Connection,
        shards: u16,
        clock: Arc<dyn Clock>,
        readers: Option<Readers>,
        lock: Option<FileLock>,
    ) -> std::io::Result<Self> {
        let wakes = Wakes::new(shards);
        let writer = Writer::start(conn, wakes.clone(), Arc::clone(&clock))?;
        let office = Arc::new(Office { shards, specs: Specs::default(), clock });
        Ok(Self { readers, writer, wakes, hints: leases::hints(), office, _lock: lock })
    }

    async fn write<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>, &Office) -> Result<T, Fail> + Send + 'static,
    {
        let office = Arc::clone(&self.office);
        self.writer.run(Urgency::Ordinary, doing, move |tx| work(tx, &office)).await
    }

    async fn read<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, &Office) -> Result<T, Fail> + Send + 'static,
    {
        let office = Arc::clone(&self.office);
        match &self.readers {
            Some(readers) => readers.run(doing, move |conn| work(conn, &office)).await,
            None => self.writer.run(Urgency::Ordinary, doing, move |tx| work(tx, &office)).await,
        }
    }
}

/// Settings and schema of the connection that writes; also the number of shards.
fn prepare(
    mut conn: Connection,
    options: SqliteOptions,
    path: &Path,
) -> Result<(Connection, u16), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let schema = |why| OpenError::Schema { path: path.to_owned(), why };
    migrations::check_state(&conn).map_err(schema)?;
    configure_writer(&conn).map_err(sqlite)?;
    migrations::migrate(&mut conn, options.shards).map_err(schema)?;
    let shards = "SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'shards'";
    let shards = conn.query_row(shards, [], |row| row.get(0)).map_err(sqlite)?;
    Ok((conn, shards))
}

fn configure_writer(conn: &Connection) -> Result<(), rusqlite::Error> {
    // Nobody else writes, so a busy database is a backup tool or a person with a shell: worth a short wait.
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // 64 MiB of pages: the rows of every unfinished run of a busy machine.
    conn.pragma_update(None, "cache_size", -65_536)?;
    conn.pragma_update(None, "journal_size_limit", 64 << 20)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

fn open_reader(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.pragma_update(None, "query_only", true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

#[cfg(test)]
mod tests;
