//! Task instances, their tries and what they returned.

use rusqlite::Connection;
use serde_json::Value;
use tenure_model::{DagId, RunId, RunKey, TaskId, TaskNo, TenantId, TiKey};
use tenure_store::{Page, TiQuery, TiView, TryView};

use super::query::{Filter, Order, page, text};
use crate::errors::Fail;
use crate::rows::{all, instance, instance_columns, one, ti_view, ti_view_columns};
use crate::runs::find_key;

const ORDER: Order = Order {
    names: &[
        ("id", "t.run, t.task_no, t.map_index"),
        ("task_id", "t.task_id"),
        ("state", "t.state"),
        ("start_date", "t.started_at"),
        ("end_date", "t.ended_at"),
    ],
    default: "id",
    tie: "t.run, t.task_no, t.map_index",
};

pub(super) fn list(conn: &Connection, query: &TiQuery) -> Result<Page<TiView>, Fail> {
    let mut filter = Filter::default();
    filter.and("r.tenant = ?", query.tenant.to_string());
    filter.and_if("r.dag_id = ?", query.dag.as_ref().map(ToString::to_string));
    filter.and_if("r.run_id = ?", query.run.as_ref().map(ToString::to_string));
    filter.and_if("t.task_id = ?", query.task.as_ref().map(ToString::to_string));
    filter.and_if("t.map_index = ?", query.map_index);
    filter.and_any("t.state IN ({})", query.states.iter().map(|state| text(state.as_str())));
    filter.and_any("t.pool IN ({})", query.pools.iter().cloned());
    if let Some(node) = &query.bound_to {
        filter.and("r.state IN ('queued', 'running') AND t.state IN ('queued', 'running', 'restarting') AND t.node = ?", node.to_string());
    }
    let tables = "runs r JOIN task_instances t ON t.run = r.key";
    page(conn, ti_view_columns!(), tables, filter, &ORDER, &query.paging, ti_view)
}

pub(super) fn list_tries(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    run: &RunId,
    task: &TaskId,
    map_index: i32,
) -> Result<Vec<TryView>, Fail> {
    let Some(run) = find_key(conn, tenant, dag, run)? else { return Ok(vec![]) };
    let Some(current) = current_try(conn, run, task, map_index)? else { return Ok(vec![]) };
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        instance_columns!(),
        " FROM tries t WHERE t.run = ?1 AND t.task_no = ?2 AND t.map_index = ?3 ORDER BY t.try_number"
    ))?;
    let TiKey { run, task: number, map_index } = current.key;
    let past = all(&mut select, (run.0, number.0, map_index), instance)?;
    let mut tries: Vec<TryView> = past
        .into_iter()
        .map(|instance| TryView { key: current.key, task_id: task.clone(), instance, current: false })
        .collect();
    // After a clear the row carries the number of the try in history until the next one begins.
    if tries.last().is_none_or(|last| last.instance.try_number != current.instance.try_number) {
        tries.push(current);
    }
    Ok(tries)
}

fn current_try(
    conn: &Connection,
    run: RunKey,
    task: &TaskId,
    map_index: i32,
) -> Result<Option<TryView>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT t.task_no, ",
        instance_columns!(),
        " FROM task_instances t WHERE t.run = ?1 AND t.task_id = ?2 AND t.map_index = ?3"
    ))?;
    one(&mut select, (run.0, task.as_str(), map_index), |cells| {
        let key = TiKey { run, task: TaskNo(cells.take()?), map_index };
        Ok(TryView { key, task_id: task.clone(), instance: instance(cells)?, current: true })
    })
}

pub(super) fn result(conn: &Connection, ti: TiKey) -> Result<Option<Value>, Fail> {
    let mut select =
        conn.prepare_cached("SELECT value FROM results WHERE run = ?1 AND task_no = ?2 AND map_index = ?3")?;
    one(&mut select, (ti.run.0, ti.task.0, ti.map_index), |cells| cells.json("a task's result"))
}
