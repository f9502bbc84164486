//! Who occupies what, how busy dags are, and who hears whom.

use std::time::Duration;

use rusqlite::Connection;
use tenure_model::{DagId, TenantId};
use tenure_store::{DagActivity, Occupancy, PresenceView, Waiting};

use crate::Office;
use crate::errors::Fail;
use crate::rows::{all, one};

/// Unfinished runs have an index of their own: history is not passed by.
const OCCUPANCY: &str = "SELECT t.node, r.tenant, r.dag_id, r.version, t.task_id, t.state, count(*)
     FROM runs r INDEXED BY runs_unfinished CROSS JOIN task_instances t ON t.run = r.key
     WHERE r.state IN ('queued', 'running') AND t.state IN ('queued', 'running', 'restarting')
       AND t.node IS NOT NULL
     GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6";

pub(super) fn occupancy(conn: &Connection) -> Result<Vec<Occupancy>, Fail> {
    all(&mut conn.prepare_cached(OCCUPANCY)?, [], |cells| {
        Ok(Occupancy {
            node: cells.text()?,
            tenant: cells.text()?,
            dag: cells.text()?,
            version: cells.take()?,
            task: cells.text()?,
            state: cells.task_state()?,
            count: cells.take()?,
        })
    })
}

const WAITING: &str = "SELECT r.tenant, r.dag_id, r.version, t.task_id, count(*)
     FROM runs r INDEXED BY runs_unfinished CROSS JOIN task_instances t ON t.run = r.key
     WHERE r.state IN ('queued', 'running') AND r.state = 'running' AND t.state = 'scheduled'
     GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4";

pub(super) fn waiting(conn: &Connection) -> Result<Vec<Waiting>, Fail> {
    all(&mut conn.prepare_cached(WAITING)?, [], |cells| {
        Ok(Waiting {
            tenant: cells.text()?,
            dag: cells.text()?,
            version: cells.take()?,
            task: cells.text()?,
            count: cells.take()?,
        })
    })
}

const RUNNING: &str = "SELECT d.paused, (SELECT count(*) FROM runs r INDEXED BY runs_unfinished
         WHERE r.state IN ('queued', 'running') AND r.state = 'running' AND r.tenant = d.tenant
           AND r.dag_id = d.dag_id)
     FROM dags d WHERE d.tenant = ?1 AND d.dag_id = ?2";

pub(super) fn activity(conn: &Connection, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, Fail> {
    let mut dags: Vec<_> = dags.iter().collect();
    dags.sort();
    let mut select = conn.prepare_cached(RUNNING)?;
    let mut found = vec![];
    for (tenant, dag) in dags {
        found.extend(one(&mut select, (tenant.as_str(), dag.as_str()), |cells| {
            let (tenant, dag) = (tenant.clone(), dag.clone());
            Ok(DagActivity { tenant, dag, paused: cells.take()?, running_runs: cells.take()? })
        })?);
    }
    Ok(found)
}

pub(super) fn presence(
    conn: &Connection,
    office: &Office,
    within: Duration,
) -> Result<Vec<PresenceView>, Fail> {
    let within = i64::try_from(within.as_micros()).unwrap_or(i64::MAX);
    let since = office.clock.now().as_microsecond().saturating_sub(within);
    let mut select =
        conn.prepare_cached("SELECT replica, at, nodes FROM presence WHERE at >= ?1 ORDER BY replica")?;
    all(&mut select, [since], |cells| {
        Ok(PresenceView {
            replica: cells.take()?,
            at: cells.instant()?,
            nodes: cells.json("what a replica hears")?,
        })
    })
}
