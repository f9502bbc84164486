//! Brings a database file to the schema of this release.
//!
//! `PRAGMA user_version` counts the steps taken and lives in the file's header, so a step and its number are
//! one transaction. A migration library would add a table, a checksum policy and an async driver to do the
//! same for one file that one process has locked.

use rusqlite::Connection;

/// In order; a released step is never edited, the next one is appended.
const STEPS: [&str; 1] = [include_str!("../migrations/0001_initial.sql")];

/// «Tnur», so that `file` and we ourselves can tell whose database this is.
const APPLICATION_ID: i32 = 0x546e_7572;

#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error("its schema is version {found}, made by a newer release; this one knows versions up to {known}")]
    Newer { found: i64, known: usize },
    #[error("it is a database of another program")]
    Foreign,
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

/// Also fills in what a fresh database starts with.
pub(crate) fn migrate(conn: &mut Connection, shards: u16) -> Result<(), MigrationError> {
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let taken = match usize::try_from(found) {
        Ok(taken) if taken <= STEPS.len() => taken,
        _ => return Err(MigrationError::Newer { found, known: STEPS.len() }),
    };
    if !is_ours(conn)? {
        return Err(MigrationError::Foreign);
    }
    for (step, sql) in STEPS.iter().enumerate().skip(taken) {
        let tx = conn.transaction()?;
        tx.execute_batch(sql)?;
        if step == 0 {
            seed(&tx, shards)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", (step + 1) as i64)?;
        tx.commit()?;
    }
    Ok(())
}

/// A file without tables is nobody's yet.
fn is_ours(conn: &Connection) -> Result<bool, rusqlite::Error> {
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(id == APPLICATION_ID || (id == 0 && tables == 0))
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
}
