//! Clears, marks and ended runs: `tenure_store::edit` decides, this writes.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tenure_model::{DagId, DagSpec, RunId, RunKey, RunState, TenantId, TiKey};
use tenure_store::edit::{self, RunEdit};
use tenure_store::{
    Attention, ClearRequest, Cleared, DagVersionName, MarkRequest, RunHeader, RunSnapshot, RunView, TiView,
    Trigger,
};

use crate::Office;
use crate::commit_pass::{TiWriter, change_run_state, keep_try, put_result};
use crate::errors::Fail;
use crate::registration::no_dag;
use crate::rows::{At, all, ti_view, ti_view_columns};
use crate::runs::{self, INSERT_TASK};
use crate::snapshot;
use crate::trail::{self, By};
use crate::writer::Tx;

pub(crate) fn clear(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    request: &ClearRequest,
) -> Result<Cleared, Fail> {
    let dag = snapshot::dag(tx, &trigger.tenant, &request.dag)?.ok_or_else(|| no_dag(&request.dag))?;
    let named = runs::header(tx, &trigger.tenant, &request.dag, &request.run)?;
    let mut cleared = Cleared { tis: vec![] };
    for run in affected(tx, named, request.past, request.future)? {
        let version = if request.latest_version { dag.version } else { run.header.version };
        let spec = snapshot::version(
            tx,
            office,
            &DagVersionName { tenant: trigger.tenant.clone(), dag: request.dag.clone(), version },
        )?
        .spec;
        let edit = edit::clear(&run, dag.version, &spec, request, trigger.at)?;
        let before = views_of(tx, run.header.key)?;
        cleared.tis.extend(edit.tis.iter().filter_map(|change| before.get(&change.ti).cloned()));
        if !request.dry_run {
            apply(tx, trigger, &run, &spec, &edit)?;
        }
    }
    Ok(cleared)
}

/// The task instances as they are afterwards (or, in a dry run, as they would be).
pub(crate) fn mark(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    request: &MarkRequest,
) -> Result<Vec<TiView>, Fail> {
    let named = runs::header(tx, &trigger.tenant, &request.dag, &request.run)?;
    let mut marked = vec![];
    for run in affected(tx, named, request.past, request.future)? {
        let spec = own_spec(tx, office, &run.header)?;
        let edit = edit::mark(&run, &spec, request, trigger.at, &trigger.actor)?;
        let before = views_of(tx, run.header.key)?;
        let after = edit.tis.iter().filter_map(|change| {
            let view = before.get(&change.ti)?.clone();
            Some(TiView { instance: change.to.clone(), ..view })
        });
        marked.extend(after);
        if !request.dry_run {
            apply(tx, trigger, &run, &spec, &edit)?;
        }
    }
    Ok(marked)
}

pub(crate) fn set_run_state(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    dag: &DagId,
    run_id: &RunId,
    state: RunState,
) -> Result<RunView, Fail> {
    let header = runs::header(tx, &trigger.tenant, dag, run_id)?;
    let spec = own_spec(tx, office, &header)?;
    let run = snapshot::with_tasks(tx, header)?;
    let edit = edit::set_run_state(&run, &spec, state, trigger.at, &trigger.actor)?;
    apply(tx, trigger, &run, &spec, &edit)?;
    runs::view(tx, &trigger.tenant, dag, run_id)?.ok_or_else(|| runs::no_run(dag, run_id))
}

fn own_spec(conn: &Connection, office: &Office, run: &RunHeader) -> Result<Arc<DagSpec>, Fail> {
    let name = DagVersionName { tenant: run.tenant.clone(), dag: run.dag.clone(), version: run.version };
    Ok(snapshot::version(conn, office, &name)?.spec)
}

/// The named run first, then the dag's runs before and after its logical date, as asked.
fn affected(conn: &Connection, named: RunHeader, past: bool, future: bool) -> Result<Vec<RunSnapshot>, Fail> {
    let mut keys = vec![named.key];
    if let Some(date) = named.logical_date {
        let params = params![named.tenant.as_str(), named.dag.as_str(), At(date)];
        if past {
            let mut earlier = conn.prepare_cached(
                "SELECT key FROM runs WHERE tenant = ?1 AND dag_id = ?2 AND logical_date IS NOT NULL
                 AND logical_date < ?3 ORDER BY logical_date",
            )?;
            keys.extend(all(&mut earlier, params, |cells| Ok(RunKey(cells.take()?)))?);
        }
        if future {
            let mut later = conn.prepare_cached(
                "SELECT key FROM runs WHERE tenant = ?1 AND dag_id = ?2 AND logical_date IS NOT NULL
                 AND logical_date > ?3 ORDER BY logical_date",
            )?;
            keys.extend(all(&mut later, params, |cells| Ok(RunKey(cells.take()?)))?);
        }
    }
    snapshot::runs(conn, &keys)
}

fn views_of(conn: &Connection, run: RunKey) -> Result<HashMap<TiKey, TiView>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        ti_view_columns!(),
        " FROM task_instances t JOIN runs r ON r.key = t.run WHERE t.run = ?1"
    ))?;
    let views = all(&mut select, [run.0], ti_view)?;
    Ok(views.into_iter().map(|view| (view.key, view)).collect())
}

fn apply(
    tx: &Tx<'_>,
    trigger: &Trigger,
    run: &RunSnapshot,
    spec: &DagSpec,
    edit: &RunEdit,
) -> Result<(), Fail> {
    if edit.is_empty() {
        return Ok(());
    }
    let header = &run.header;
    write(tx, By::user(trigger), header, edit)?;
    if edit.version.is_some() {
        follow_version(tx, &header.tenant, run, spec, edit)?;
    }
    for (node, attempt) in &edit.stops {
        trail::attention(tx, header.shard, &Attention::Stop { node: node.clone(), attempt: *attempt })?;
    }
    trail::attention(tx, header.shard, &Attention::Run { run: edit.run })
}

/// The run, its rows, its history and the audit row; all but attention. What the edit was decided from was read in
/// this transaction, so a guard that fails here is an error of ours.
pub(crate) fn write(tx: &Tx<'_>, by: By<'_>, header: &RunHeader, edit: &RunEdit) -> Result<(), Fail> {
    let mut advance = tx.prepare_cached(
        "UPDATE runs SET revision = revision + 1, updated_at = ?2, version = coalesce(?3, version) WHERE key = ?1",
    )?;
    advance.execute(params![edit.run.0, At(by.at), edit.version])?;
    if let Some(change) = &edit.state {
        assert!(change_run_state(tx, edit.run, change)?, "{} moved inside its own transaction", edit.run);
    }
    let mut tis = TiWriter::new(tx)?;
    for change in &edit.tis {
        assert!(tis.change(change)?, "{:?} moved inside its own transaction", change.ti);
    }
    for past in &edit.past_tries {
        keep_try(tx, &header.tenant, past)?;
    }
    for ti in edit.forgotten_results() {
        let mut delete =
            tx.prepare_cached("DELETE FROM results WHERE run = ?1 AND task_no = ?2 AND map_index = ?3")?;
        delete.execute((ti.run.0, ti.task.0, ti.map_index))?;
    }
    for (ti, value) in &edit.results {
        put_result(tx, &header.tenant, *ti, &value.to_string())?;
    }
    if edit.audit.is_empty() {
        return Ok(());
    }
    trail::audit(tx, by, Some(&header.dag), Some(&header.run_id), &edit.audit)
}

/// New tasks get their rows; tasks that stay may have another pool in the new version.
fn follow_version(
    conn: &Connection,
    tenant: &TenantId,
    run: &RunSnapshot,
    spec: &DagSpec,
    edit: &RunEdit,
) -> Result<(), Fail> {
    let tasks: HashMap<_, _> = spec.tasks.iter().map(|task| (&task.id, task)).collect();
    for added in &edit.added {
        let task = tasks[&added.task_id];
        let (id, pool) = (added.task_id.as_str(), task.pool.as_str());
        let params =
            params![edit.run.0, added.task.0, added.map_index, tenant.as_str(), id, pool, added.ti.max_tries];
        conn.prepare_cached(INSERT_TASK)?.execute(params)?;
    }
    let mut update = conn.prepare_cached(
        "UPDATE task_instances SET pool = ?3 WHERE run = ?1 AND task_no = ?2 AND pool <> ?3",
    )?;
    for cached in &run.tis {
        if let Some(task) = tasks.get(&cached.task_id) {
            update.execute((edit.run.0, cached.task.0, task.pool.as_str()))?;
        }
    }
    Ok(())
}
