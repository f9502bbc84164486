//! Which replica hears from which nodes, by the database's clock: the only clock that all of them share.

use std::time::Duration;

use deadpool_postgres::Pool;
use tenure_model::NodeId;
use tenure_store::{PresenceView, StoreError};

use crate::rows;
use crate::session::Session;

/// The same nodes as before are not written again: a long list lies outside the row and would be copied each time.
const RECORD: &str = "INSERT INTO presence (replica, at, nodes) VALUES ($1, clock_timestamp(), $2)
    ON CONFLICT (replica) DO UPDATE SET at = excluded.at,
        nodes = CASE WHEN presence.nodes = excluded.nodes THEN presence.nodes ELSE excluded.nodes END";
const PRESENT: &str = "SELECT DISTINCT n.node FROM presence p CROSS JOIN LATERAL unnest(p.nodes) AS n(node)
    WHERE p.at >= clock_timestamp() - $2::float8 * interval '1 second' AND n.node = ANY($1::text[])
    ORDER BY n.node";

const LIST: &str = "SELECT p.replica, p.at, p.nodes FROM presence p
    WHERE p.at >= clock_timestamp() - $1::float8 * interval '1 second' ORDER BY p.replica";

/// A hundred years: an interval has an end.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) async fn record(pool: &Pool, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
    let mut names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let session = Session::borrow(pool, "recording which nodes are heard").await?.committing();
    session.execute(RECORD, &[&rows::storable(replica), &names]).await?;
    session.give_back();
    Ok(())
}

pub(crate) async fn present(
    pool: &Pool,
    nodes: &[NodeId],
    within: Duration,
) -> Result<Vec<NodeId>, StoreError> {
    let names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    let seconds = within.min(LONGEST).as_secs_f64();
    let found = Session::once(pool, "asking which nodes are heard", PRESENT, &[&names, &seconds]).await?;
    rows::all(&found, |cells| cells.text())
}

pub(crate) async fn list(pool: &Pool, within: Duration) -> Result<Vec<PresenceView>, StoreError> {
    let seconds = within.min(LONGEST).as_secs_f64();
    let found = Session::once(pool, "listing which replica hears whom", LIST, &[&seconds]).await?;
    rows::all(&found, |cells| {
        let (replica, at, nodes) = (cells.take()?, cells.take()?, cells.take::<Vec<String>>()?);
        Ok(PresenceView { replica, at, nodes: nodes.into_iter().map(NodeId::from).collect() })
    })
}
