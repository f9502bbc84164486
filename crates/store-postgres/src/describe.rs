//! What a database says of itself, without being changed: for people, and for whoever must know before it is made
//! into a state database.

use std::collections::BTreeMap;

use crate::connect::{self, ConnectError};
use crate::migrate;
use crate::session::Session;

const DOING: &str = "looking at the database";
const TABLES: &str = "SELECT to_regclass('schema_version') IS NOT NULL, to_regclass('meta') IS NOT NULL";
const VERSION: &str = "SELECT coalesce(max(version), 0) FROM schema_version";
const META: &str = "SELECT name, value FROM meta WHERE name IN ('shards', 'resharding', 'admin_token')";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Where it is, without the password.
    pub target: String,
    /// 0: nobody has made its tables.
    pub schema_version: i32,
    /// What this release would make of it.
    pub known_version: i32,
    /// `None` as long as there are no tables.
    pub shards: Option<u16>,
    /// A change of their number has begun and is not finished.
    pub resharding: bool,
    /// Administrators have a token.
    pub has_token: bool,
}

pub async fn describe(url: &str) -> Result<Description, ConnectError> {
    let config = connect::configure(url, "tenure database")?;
    let target = connect::target(&config);
    let pool = connect::pool(&config, 1);
    connect::reach(&pool, &target).await?;
    let failed = |error| connect::failed(&target, error);
    let tables = Session::once(&pool, DOING, TABLES, &[]).await.map_err(failed)?;
    let (versioned, described) = tables.first().map_or((false, false), |row| (row.get(0), row.get(1)));
    let version = match versioned {
        true => Session::once(&pool, DOING, VERSION, &[]).await.map_err(failed)?,
        false => vec![],
    };
    let meta = match described {
        true => Session::once(&pool, DOING, META, &[]).await.map_err(failed)?,
        false => vec![],
    };
    let meta: BTreeMap<&str, &str> = meta.iter().map(|row| (row.get(0), row.get(1))).collect();
    Ok(Description {
        schema_version: version.first().map_or(0, |row| row.get(0)),
        known_version: migrate::known_version(),
        shards: meta.get("shards").and_then(|shards| shards.parse().ok()),
        resharding: meta.contains_key("resharding"),
        has_token: meta.contains_key("admin_token"),
        target,
    })
}
