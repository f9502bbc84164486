//! Brings the schema up to date, once, whoever comes first.

use std::collections::BTreeMap;

use deadpool_postgres::Pool;
use tenure_store::StoreError;

use crate::connect::ConnectError;
use crate::errors;
use crate::session::Session;

/// In order; a migration that was released never changes.
const MIGRATIONS: [(&str, &str); 8] = [
    ("start", include_str!("../migrations/0001_start.sql")),
    ("lease_history", LEASES),
    ("cluster", include_str!("../migrations/0003_cluster.sql")),
    ("taints", include_str!("../migrations/0004_taints.sql")),
    ("identities", include_str!("../migrations/0005_identities.sql")),
    ("drain", include_str!("../migrations/0006_drain.sql")),
    ("quotas", include_str!("../migrations/0007_quotas.sql")),
    ("limits", include_str!("../migrations/0008_limits.sql")),
];

/// What leases need, also in a database that is not Tenure's. The next change to their tables is a migration of
/// its own that is run there too.
pub(crate) const LEASES: &str = include_str!("../migrations/0002_lease_history.sql");

/// Replicas that start together wait for the first one. Longer than any migration should take.
pub(crate) const ALONE: &str = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s';
    SELECT pg_advisory_xact_lock(7306921354498471525)";

const VERSIONED: &str = "CREATE TABLE IF NOT EXISTS schema_version (
        version integer PRIMARY KEY,
        name text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )";

pub(crate) fn known_version() -> i32 {
    MIGRATIONS.len() as i32
}

/// What a server finds when it starts.
pub(crate) struct Found {
    pub(crate) shards: u16,
    /// A change of their number has begun and is not finished.
    pub(crate) resharding: bool,
}

/// All that is missing in one transaction, then the number of shards the database has.
pub(crate) async fn run(pool: &Pool, target: &str, shards: u16) -> Result<Found, ConnectError> {
    let failed =
        |error: StoreError| ConnectError::Migrate { target: target.to_owned(), source: error.into() };
    let session = Session::begin(pool, "migrating the schema").await.map_err(failed)?;
    let known = known_version();
    let found = match version(&session).await {
        Ok(found) if found > known => {
            return Err(ConnectError::NewerSchema { target: target.to_owned(), found, known });
        }
        found => found,
    };
    let outcome = match found {
        Ok(found) => upgrade(&session, found, shards).await,
        Err(error) => Err(error),
    };
    session.finish(outcome).await.map_err(failed)
}

async fn version(session: &Session) -> Result<i32, StoreError> {
    session.batch(ALONE).await?;
    session.batch(VERSIONED).await?;
    let row = session.row("SELECT coalesce(max(version), 0) FROM schema_version", &[]).await?;
    Ok(row.expect("an aggregate has one row").get(0))
}

async fn upgrade(session: &Session, found: i32, shards: u16) -> Result<Found, StoreError> {
    for (version, (name, sql)) in (1..).zip(MIGRATIONS).skip(found.max(0) as usize) {
        session.batch(&beside_leases(sql)).await?;
        session
            .execute("INSERT INTO schema_version (version, name) VALUES ($1, $2)", &[&version, &name])
            .await?;
        tracing::info!(version, name, "schema migrated");
    }
    let wanted = shards.max(1).to_string();
    session.execute("INSERT INTO meta VALUES ('shards', $1) ON CONFLICT DO NOTHING", &[&wanted]).await?;
    let stored =
        session.rows("SELECT name, value FROM meta WHERE name IN ('shards', 'resharding')", &[]).await?;
    let stored: BTreeMap<&str, &str> = stored.iter().map(|row| (row.get(0), row.get(1))).collect();
    let shards = stored["shards"].parse();
    let unreadable = |error: std::num::ParseIntError| errors::corrupt("the number of shards", error);
    Ok(Found { shards: shards.map_err(unreadable)?, resharding: stored.contains_key("resharding") })
}

/// Someone may have kept leases in this database before it became Tenure's: their tables stay, with every
/// epoch in them. The migration itself was released and does not change.
fn beside_leases(sql: &str) -> String {
    ["leases", "fences"].iter().fold(sql.to_owned(), |sql, table| {
        sql.replace(&format!("CREATE TABLE {table} ("), &format!("CREATE TABLE IF NOT EXISTS {table} ("))
    })
}
