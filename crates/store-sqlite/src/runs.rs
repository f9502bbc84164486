//! Runs come into being and are forgotten.

use rusqlite::{Connection, params};
use tenure_model::{
    DagId, DagSpec, DataInterval, NewRun, RunId, RunKey, RunState, ShardId, TenantId, TiKey, VersionHash,
};
use tenure_store::{Attention, CreateRunOutcome, RunHeader, RunView, Trigger, request_fingerprint};

use crate::Office;
use crate::errors::Fail;
use crate::registration::no_dag;
use crate::rows::{At, at, kept, one, run_header, run_header_columns, run_view, run_view_columns};
use crate::trail::{self, By};
use crate::writer::Tx;

/// What became of a request for a run.
pub(crate) enum Inserted {
    Created(Box<RunHeader>),
    Exists,
    NoDag,
}

pub(crate) fn create(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    run: &NewRun,
) -> Result<CreateRunOutcome, Fail> {
    if let Some(header) = replay(tx, run)? {
        return Ok(CreateRunOutcome::Replayed(header));
    }
    match insert(tx, office, By { tenant: &run.tenant, ..By::user(trigger) }, run)? {
        Inserted::Created(header) => {
            trail::attention(tx, header.shard, &Attention::Run { run: header.key })?;
            Ok(CreateRunOutcome::Created(*header))
        }
        Inserted::NoDag => Err(no_dag(&run.dag)),
        Inserted::Exists => Err(why_it_exists(tx, run)?),
    }
}

/// The run that this very request has made before.
fn replay(conn: &Connection, run: &NewRun) -> Result<Option<RunHeader>, Fail> {
    let Some(key) = &run.idempotency_key else { return Ok(None) };
    let mut select = conn.prepare_cached(concat!(
        "SELECT r.fingerprint, ",
        run_header_columns!(),
        " FROM runs r WHERE r.tenant = ?1 AND r.dag_id = ?2 AND r.idempotency_key = ?3"
    ))?;
    let params = (run.tenant.as_str(), run.dag.as_str(), key);
    let found = one(&mut select, params, |cells| Ok((cells.take::<String>()?, run_header(cells)?)))?;
    match found {
        Some((fingerprint, header)) if fingerprint == request_fingerprint(run) => Ok(Some(header)),
        Some((_, header)) => Err(Fail::conflict(format!(
            "idempotency key {key:?} was used for run {} of dag {} with another request; use a new key",
            header.run_id, run.dag
        ))),
        None => Ok(None),
    }
}

fn why_it_exists(conn: &Connection, run: &NewRun) -> Result<Fail, Fail> {
    if find_key(conn, &run.tenant, &run.dag, &run.run_id)?.is_some() {
        return Ok(Fail::conflict(format!("dag {} has a run {} already", run.dag, run.run_id)));
    }
    let date = run.logical_date.map_or("no logical date".to_owned(), |date| date.to_string());
    Ok(Fail::conflict(format!("dag {} has a run for logical date {date} already", run.dag)))
}

/// Writes a run from the dag version in force, with all its task instances, untouched.
pub(crate) fn insert(conn: &Connection, office: &Office, by: By<'_>, run: &NewRun) -> Result<Inserted, Fail> {
    let mut select =
        conn.prepare_cached("SELECT shard, version, hash FROM dags WHERE tenant = ?1 AND dag_id = ?2")?;
    let dag = one(&mut select, (run.tenant.as_str(), run.dag.as_str()), |cells| {
        Ok((ShardId(cells.take()?), cells.take::<u32>()?, VersionHash::from_hex(cells.text::<&str>()?)))
    })?;
    let Some((shard, version, hash)) = dag else { return Ok(Inserted::NoDag) };
    let spec = office.specs.load(conn, &run.tenant, &run.dag, version, &hash)?;
    let Some(key) = insert_row(conn, by, run, shard, version)? else { return Ok(Inserted::Exists) };
    insert_tasks(conn, &run.tenant, key, &spec)?;
    let created = trail::entry("created", "", RunState::Queued.as_str());
    trail::audit(conn, by, Some(&run.dag), Some(&run.run_id), &[created])?;
    Ok(Inserted::Created(Box::new(RunHeader {
        key,
        tenant: run.tenant.clone(),
        dag: run.dag.clone(),
        run_id: run.run_id.clone(),
        version,
        shard,
        state: RunState::Queued,
        revision: 0,
        run_type: run.run_type,
        logical_date: run.logical_date.map(kept),
        data_interval: run
            .data_interval
            .map(|interval| DataInterval { start: kept(interval.start), end: kept(interval.end) }),
        run_after: kept(run.run_after),
        queued_at: kept(by.at),
        started_at: None,
        conf: run.conf.clone(),
    })))
}

/// `None`: its id, logical date or idempotency key is taken.
fn insert_row(
    conn: &Connection,
    by: By<'_>,
    run: &NewRun,
    shard: ShardId,
    version: u32,
) -> Result<Option<RunKey>, Fail> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, logical_date,
             interval_start, interval_end, run_after, queued_at, updated_at, conf, note, triggered_by,
             idempotency_key, fingerprint)
         VALUES (?1, ?2, ?3, ?4, ?5, 'queued', 0, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13, ?14, ?15, ?16)
         ON CONFLICT DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        run.tenant.as_str(),
        run.dag.as_str(),
        run.run_id.as_str(),
        version,
        shard.0,
        run.run_type.as_str(),
        at(run.logical_date),
        at(run.data_interval.map(|interval| interval.start)),
        at(run.data_interval.map(|interval| interval.end)),
        At(run.run_after),
        At(by.at),
        run.conf.to_string(),
        run.note,
        run.triggered_by,
        run.idempotency_key,
        run.idempotency_key.as_ref().map(|_| request_fingerprint(run)),
    ])?;
    Ok((inserted == 1).then(|| RunKey(conn.last_insert_rowid())))
}

fn insert_tasks(conn: &Connection, tenant: &TenantId, run: RunKey, spec: &DagSpec) -> Result<(), Fail> {
    let mut insert = conn.prepare_cached(INSERT_TASK)?;
    for (task, number) in spec.tasks.iter().zip(0u32..) {
        let (id, pool) = (task.id.as_str(), task.pool.as_str());
        insert.execute(params![run.0, number, TiKey::UNMAPPED, tenant.as_str(), id, pool, task.retries])?;
    }
    Ok(())
}

/// An untouched task instance.
pub(crate) const INSERT_TASK: &str =
    "INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'none', 0, ?7)";

pub(crate) fn delete(tx: &Tx<'_>, trigger: &Trigger, dag: &DagId, run_id: &RunId) -> Result<(), Fail> {
    let run = header(tx, &trigger.tenant, dag, run_id)?;
    if !run.state.is_finished() {
        let text = format!("run {run_id} of dag {dag} is {}; end it before deleting it", run.state);
        return Err(Fail::conflict(text));
    }
    tx.prepare_cached("DELETE FROM runs WHERE key = ?1")?.execute([run.key.0])?;
    let entry = trail::entry("deleted", run.state.as_str(), "");
    trail::audit(tx, By::user(trigger), Some(dag), Some(run_id), &[entry])?;
    trail::attention(tx, run.shard, &Attention::Run { run: run.key })
}

pub(crate) fn set_note(
    tx: &Tx<'_>,
    trigger: &Trigger,
    dag: &DagId,
    run_id: &RunId,
    note: Option<&str>,
) -> Result<RunView, Fail> {
    let run = view(tx, &trigger.tenant, dag, run_id)?.ok_or_else(|| no_run(dag, run_id))?;
    // The revision stays: no owner reads notes, and one that is planning must not be disturbed by them.
    let mut update = tx.prepare_cached("UPDATE runs SET note = ?2, updated_at = ?3 WHERE key = ?1")?;
    update.execute(params![run.key.0, note, At(trigger.at)])?;
    let entry = trail::entry("note", run.note.clone().unwrap_or_default(), note.unwrap_or_default());
    trail::audit(tx, By::user(trigger), Some(dag), Some(run_id), &[entry])?;
    Ok(RunView { note: note.map(str::to_owned), updated_at: trigger.at, ..run })
}

pub(crate) fn find_key(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    run_id: &RunId,
) -> Result<Option<RunKey>, Fail> {
    let mut select =
        conn.prepare_cached("SELECT key FROM runs WHERE tenant = ?1 AND dag_id = ?2 AND run_id = ?3")?;
    one(&mut select, (tenant.as_str(), dag.as_str(), run_id.as_str()), |cells| Ok(RunKey(cells.take()?)))
}

/// The run by its name; a missing one is «not found».
pub(crate) fn header(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    run_id: &RunId,
) -> Result<RunHeader, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        run_header_columns!(),
        " FROM runs r WHERE r.tenant = ?1 AND r.dag_id = ?2 AND r.run_id = ?3"
    ))?;
    let found = one(&mut select, (tenant.as_str(), dag.as_str(), run_id.as_str()), run_header)?;
    found.ok_or_else(|| no_run(dag, run_id))
}

pub(crate) fn view(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    run_id: &RunId,
) -> Result<Option<RunView>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        run_view_columns!(),
        " FROM runs r WHERE r.tenant = ?1 AND r.dag_id = ?2 AND r.run_id = ?3"
    ))?;
    one(&mut select, (tenant.as_str(), dag.as_str(), run_id.as_str()), run_view)
}

pub(crate) fn no_run(dag: &DagId, run_id: &RunId) -> Fail {
    Fail::not_found(format!("dag {dag} has no run {run_id}"))
}
