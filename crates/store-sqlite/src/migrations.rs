//! Brings a database file to the schema of this release.
//!
//! `PRAGMA user_version` counts the steps taken and lives in the file's header, so a step and its number are
//! one transaction. A migration library would add a table, a checksum policy and an async driver to do the
//! same for one file that one process has locked.

use rusqlite::{Connection, TransactionBehavior};

/// In order; a released step is never edited, the next one is appended.
const STEPS: [&str; 8] = [
    include_str!("../migrations/0001_initial.sql"),
    concat!(
        include_str!("../migrations/0002_set_fences_aside.sql"),
        include_str!("../migrations/leases_0001.sql"),
        include_str!("../migrations/0002_take_fences_back.sql"),
    ),
    include_str!("../migrations/0003_shards.sql"),
    include_str!("../migrations/0004_taints.sql"),
    include_str!("../migrations/0005_identities.sql"),
    include_str!("../migrations/0006_drain.sql"),
    include_str!("../migrations/0007_quotas.sql"),
    include_str!("../migrations/0008_limits.sql"),
];
/// The same for a file that holds nothing but leases.
const LEASE_STEPS: [&str; 1] = [include_str!("../migrations/leases_0001.sql")];

/// «Tnur», so that `file` and we ourselves can tell whose database this is.
const STATE: i32 = 0x546e_7572;
/// «Tlse»: leases and nothing else.
const LEASES: i32 = 0x546c_7365;

#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error("its schema is version {found}, made by a newer release; this one knows versions up to {known}")]
    Newer { found: i64, known: usize },
    #[error("it is a database of another program")]
    Foreign,
    #[error(
        "it holds leases only (of `tenure elect`, for instance): choose another file for a server's state"
    )]
    LeasesOnly,
    #[error(
        "it is the state database of a Tenure server: give the server's address instead, or another file"
    )]
    StateDatabase,
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

/// Brings a state database up to date; also fills in what a fresh one starts with.
pub(crate) fn migrate(conn: &mut Connection, shards: u16) -> Result<(), MigrationError> {
    take_steps(conn, STATE, &STEPS, |tx| seed(tx, shards))
}

/// Brings a file of leases up to date.
pub(crate) fn migrate_leases(conn: &mut Connection) -> Result<(), MigrationError> {
    take_steps(conn, LEASES, &LEASE_STEPS, |_| Ok(()))
}

/// For a look before anything is changed.
pub(crate) fn check_state(conn: &Connection) -> Result<(), MigrationError> {
    check_kind(&*conn.unchecked_transaction()?, STATE)
}

/// For a look before anything is changed, at one moment: others may be making the file.
pub(crate) fn check_leases(conn: &Connection) -> Result<(), MigrationError> {
    check_kind(&*conn.unchecked_transaction()?, LEASES)
}

fn take_steps(
    conn: &mut Connection,
    kind: i32,
    steps: &[&str],
    seed: impl Fn(&Connection) -> Result<(), rusqlite::Error>,
) -> Result<(), MigrationError> {
    loop {
        // Looked at and stepped forward in one transaction: another process may be about to do the same.
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        check_kind(&tx, kind)?;
        let found: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let step = match usize::try_from(found) {
            Ok(taken) if taken <= steps.len() => taken,
            _ => return Err(MigrationError::Newer { found, known: steps.len() }),
        };
        let Some(sql) = steps.get(step) else { return Ok(()) };
        tx.execute_batch(sql)?;
        if step == 0 {
            seed(&tx)?;
        }
        tx.pragma_update(None, "application_id", kind)?;
        tx.pragma_update(None, "user_version", (step + 1) as i64)?;
        tx.commit()?;
    }
}

/// A file without tables is nobody's yet.
fn check_kind(conn: &Connection, kind: i32) -> Result<(), MigrationError> {
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match id {
        _ if id == kind || (id == 0 && tables == 0) => Ok(()),
        LEASES => Err(MigrationError::LeasesOnly),
        STATE => Err(MigrationError::StateDatabase),
        _ => Err(MigrationError::Foreign),
    }
}

fn seed(conn: &Connection, shards: u16) -> Result<(), rusqlite::Error> {
    use tenure_model::{PoolName, TenantId};
    conn.execute("INSERT INTO meta (name, value) VALUES ('shards', ?1)", [shards.max(1).to_string()])?;
    conn.execute(
        "INSERT INTO pools (name, tenant, slots, description) VALUES (?1, ?2, ?3, 'every task that names no other')",
        (PoolName::DEFAULT, TenantId::default_tenant().as_str(), PoolName::DEFAULT_SLOTS),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_database_gets_every_step_and_the_next_start_none() {
        let mut conn = Connection::open_in_memory().expect("memory");
        migrate(&mut conn, 7).expect("migrated");
        migrate(&mut conn, 3).expect("nothing to do");
        let version: i64 =
            conn.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version");
        assert_eq!(version, STEPS.len() as i64);
        let shards: String = conn
            .query_row("SELECT value FROM meta WHERE name = 'shards'", [], |row| row.get(0))
            .expect("seeded");
        assert_eq!(shards, "7", "the number of shards is fixed at creation");
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let mut conn = Connection::open_in_memory().expect("memory");
        migrate(&mut conn, 1).expect("migrated");
        conn.pragma_update(None, "user_version", 99).expect("set");
        let refused = migrate(&mut conn, 1).expect_err("newer");
        assert!(refused.to_string().contains("version 99"), "{refused}");
    }

    #[test]
    fn another_programs_database_is_left_alone() {
        let mut conn = Connection::open_in_memory().expect("memory");
        conn.execute_batch("CREATE TABLE bookmarks (url TEXT)").expect("created");
        assert!(matches!(migrate(&mut conn, 1), Err(MigrationError::Foreign)));
    }

    #[test]
    fn leases_and_state_are_not_taken_for_each_other() {
        let mut state = Connection::open_in_memory().expect("memory");
        migrate(&mut state, 1).expect("migrated");
        assert!(matches!(migrate_leases(&mut state), Err(MigrationError::StateDatabase)));
        let mut leases = Connection::open_in_memory().expect("memory");
        migrate_leases(&mut leases).expect("migrated");
        migrate_leases(&mut leases).expect("nothing to do");
        assert!(matches!(migrate(&mut leases, 1), Err(MigrationError::LeasesOnly)));
    }

    #[test]
    fn fences_of_the_first_release_are_kept() {
        let mut conn = Connection::open_in_memory().expect("memory");
        take_steps(&mut conn, STATE, &STEPS[..1], |tx| seed(tx, 1)).expect("as the first release did");
        let fence = "INSERT INTO fences VALUES ('scheduler/shard-00', 1842, zeroblob(16))";
        conn.execute(fence, []).expect("written");
        migrate(&mut conn, 1).expect("migrated");
        let epoch: i64 = conn.query_row("SELECT epoch FROM fences", [], |row| row.get(0)).expect("kept");
        assert_eq!(epoch, 1842);
        let left_over = "SELECT count(*) FROM sqlite_schema WHERE name = 'fences_before'";
        assert_eq!(conn.query_row(left_over, [], |row| row.get(0)), Ok(0));
    }

    #[test]
    fn what_every_shard_was_told_of_the_limits_is_said_by_their_version() {
        let mut conn = Connection::open_in_memory().expect("memory");
        take_steps(&mut conn, STATE, &STEPS[..7], |tx| seed(tx, 1)).expect("as the release before did");
        let told =
            r#"INSERT INTO attention (shard, what) VALUES (0, '{"type":"limits"}'), (0, '{"type":"dag"}')"#;
        conn.execute(told, []).expect("written");
        migrate(&mut conn, 1).expect("migrated");
        let kept: Vec<String> = conn
            .prepare("SELECT what FROM attention")
            .and_then(|mut select| select.query_map([], |row| row.get(0))?.collect())
            .expect("read");
        assert_eq!(kept, [r#"{"type":"dag"}"#]);
        assert_eq!(conn.query_row("SELECT count(*) FROM limits", [], |row| row.get(0)), Ok(1));
    }
}
