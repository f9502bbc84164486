//! Which nodes the replicas hear from.

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::{Connection, params};
use tenure_model::NodeId;

use crate::Office;
use crate::errors::Fail;
use crate::rows::{At, all};

pub(crate) fn record(
    conn: &Connection,
    office: &Office,
    replica: &str,
    nodes: &[NodeId],
) -> Result<(), Fail> {
    let nodes = serde_json::to_string(nodes).expect("names are plain data");
    let mut put = conn.prepare_cached(
        "INSERT INTO presence (replica, nodes, at) VALUES (?1, ?2, ?3)
         ON CONFLICT (replica) DO UPDATE SET nodes = excluded.nodes, at = excluded.at",
    )?;
    put.execute(params![replica, nodes, At(office.clock.now())])?;
    Ok(())
}

/// Those of `nodes` that some replica has heard from, in the order of the question.
pub(crate) fn present(
    conn: &Connection,
    office: &Office,
    nodes: &[NodeId],
    within: Duration,
) -> Result<Vec<NodeId>, Fail> {
    let within = i64::try_from(within.as_micros()).unwrap_or(i64::MAX);
    let since = office.clock.now().as_microsecond().saturating_sub(within);
    // As many rows as there are replicas.
    let mut select = conn.prepare_cached("SELECT nodes FROM presence WHERE at >= ?1")?;
    let heard = all(&mut select, [since], |cells| cells.json::<Vec<NodeId>>("what a replica hears"))?;
    let heard: HashSet<NodeId> = heard.into_iter().flatten().collect();
    Ok(nodes.iter().filter(|node| heard.contains(*node)).cloned().collect())
}
