//! Runs as wholes: created, noted, deleted.

use tenure_model::{DagId, NewRun, RunId, RunKey, RunState, ShardId};
use tenure_store::{
    Attention, AuditEntry, CreateRunOutcome, RunHeader, RunView, StoreError, Trigger, request_fingerprint,
};

use super::{Deed, no_dag, no_run};
use crate::batch::{self, Author};
use crate::pass::{self, CreatedRow};
use crate::rows::{self, Cells};

const BY_KEY: &str = concat!(
    "SELECT r.fingerprint, ",
    rows::run_columns!(),
    " FROM runs r WHERE r.tenant = $1 AND r.dag_id = $2 AND r.idempotency_key = $3"
);
const SAME_ID: &str = "SELECT 1 FROM runs WHERE tenant = $1 AND dag_id = $2 AND run_id = $3";
const LOCK: &str =
    "SELECT key, shard, state FROM runs WHERE tenant = $1 AND dag_id = $2 AND run_id = $3 FOR UPDATE";
const DELETE: [&str; 4] = [
    "DELETE FROM results WHERE run = $1",
    "DELETE FROM tries WHERE run = $1",
    "DELETE FROM task_instances WHERE run = $1",
    "DELETE FROM runs WHERE key = $1",
];
/// Not even the revision moves: no owner reads notes.
const SET_NOTE: &str = concat!(
    "UPDATE runs r SET note = $4 WHERE r.tenant = $1 AND r.dag_id = $2 AND r.run_id = $3 RETURNING ",
    rows::run_view_columns!()
);

pub(super) async fn create(
    deed: &Deed<'_>,
    trigger: &Trigger,
    asked: &NewRun,
) -> Result<CreateRunOutcome, StoreError> {
    if let Some(earlier) = replayed(deed, asked).await? {
        return Ok(earlier);
    }
    let author = Author { at: trigger.at, actor: &trigger.actor, scope: None, epoch: None };
    let rows = pass::create_runs(&deed.session, std::slice::from_ref(asked), &author).await?;
    let row = rows.first().ok_or_else(|| no_dag(&asked.dag))?;
    match CreatedRow::of(row)? {
        CreatedRow { header: Some(header), shard, .. } => {
            deed.attention(&[(shard, Attention::Run { run: header.key })]).await?;
            Ok(CreateRunOutcome::Created(header))
        }
        CreatedRow { header: None, .. } => refused(deed, asked).await,
    }
}

/// The run that the same request made before, if there is one.
async fn replayed(deed: &Deed<'_>, asked: &NewRun) -> Result<Option<CreateRunOutcome>, StoreError> {
    let Some(key) = &asked.idempotency_key else { return Ok(None) };
    let (tenant, dag) = (asked.tenant.as_str(), asked.dag.as_str());
    let Some(row) = deed.session.row(BY_KEY, &[&tenant, &dag, key]).await? else { return Ok(None) };
    let mut cells = Cells::of(&row);
    let fingerprint: Option<String> = cells.take()?;
    let header: RunHeader = rows::run_header(&mut cells)?;
    if fingerprint.as_deref() == Some(&*request_fingerprint(asked)) {
        return Ok(Some(CreateRunOutcome::Replayed(header)));
    }
    Err(StoreError::Conflict(format!(
        "idempotency key {key:?} came before with another request, which made run {} of dag {dag}",
        header.run_id
    )))
}

/// Somebody else's run stands in the way; it may have been committed while this one waited for it.
async fn refused(deed: &Deed<'_>, asked: &NewRun) -> Result<CreateRunOutcome, StoreError> {
    if let Some(earlier) = replayed(deed, asked).await? {
        return Ok(earlier);
    }
    let (tenant, dag, run_id) = (asked.tenant.as_str(), asked.dag.as_str(), asked.run_id.as_str());
    let same_id = deed.session.row(SAME_ID, &[&tenant, &dag, &run_id]).await?.is_some();
    Err(StoreError::Conflict(match asked.logical_date {
        Some(date) if !same_id => format!("dag {dag} has a run with logical date {date} already"),
        _ => format!("dag {dag} has a run {run_id} already"),
    }))
}

pub(super) async fn delete(
    deed: &Deed<'_>,
    trigger: &Trigger,
    dag: &DagId,
    run: &RunId,
) -> Result<(), StoreError> {
    let names = (trigger.tenant.as_str(), dag.as_str(), run.as_str());
    let row =
        deed.session.row(LOCK, &[&names.0, &names.1, &names.2]).await?.ok_or_else(|| no_run(dag, run))?;
    let mut cells = Cells::of(&row);
    let (key, shard) = (RunKey(cells.take()?), ShardId(cells.number()?));
    let state = cells.parsed("the state of a run", RunState::parse)?;
    if !state.is_finished() {
        return Err(StoreError::Conflict(format!(
            "run {run} of dag {dag} is {state}: end it before deleting it"
        )));
    }
    for sql in DELETE {
        deed.session.execute(sql, &[&key.0]).await?;
    }
    let entry = AuditEntry { from: state.to_string(), ..batch::entry("deleted") };
    deed.trail(trigger, Some(dag), Some(run), entry).await?;
    deed.attention(&[(shard, Attention::Run { run: key })]).await
}

pub(super) async fn set_note(
    deed: &Deed<'_>,
    trigger: &Trigger,
    dag: &DagId,
    run: &RunId,
    note: Option<&str>,
) -> Result<RunView, StoreError> {
    let names = (trigger.tenant.as_str(), dag.as_str(), run.as_str());
    let note = note.map(rows::storable);
    let row = deed.session.row(SET_NOTE, &[&names.0, &names.1, &names.2, &note]).await?;
    rows::run_view(&mut Cells::of(&row.ok_or_else(|| no_run(dag, run))?))
}
