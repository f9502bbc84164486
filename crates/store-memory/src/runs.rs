//! Runs come into being and are forgotten.

use tenure_model::{DagId, NewRun, RunId, RunKey, RunState, TaskNo, TiKey};
use tenure_store::{
    Attention, CreateRunOutcome, RunHeader, RunView, StoreError, Trigger, request_fingerprint,
};

use crate::tables::{Run, Tables, Ti, no_dag};
use crate::trail::{By, entry};

/// What became of a request for a run.
pub(crate) enum Inserted {
    Created(Box<RunHeader>),
    Exists,
    NoDag,
}

pub(crate) fn create(
    tables: &mut Tables,
    trigger: &Trigger,
    run: &NewRun,
) -> Result<CreateRunOutcome, StoreError> {
    if let Some(header) = replay(tables, run)? {
        return Ok(CreateRunOutcome::Replayed(header));
    }
    match insert(tables, By { tenant: &run.tenant, ..By::user(trigger) }, run) {
        Inserted::Created(header) => {
            tables.attend(header.shard, Attention::Run { run: header.key });
            Ok(CreateRunOutcome::Created(*header))
        }
        Inserted::NoDag => Err(no_dag(&run.dag)),
        Inserted::Exists => Err(why_it_exists(tables, run)),
    }
}

/// The run that this very request has made before.
fn replay(tables: &Tables, run: &NewRun) -> Result<Option<RunHeader>, StoreError> {
    let Some(key) = &run.idempotency_key else { return Ok(None) };
    let dag = tables.dags.get(&(run.tenant.clone(), run.dag.clone()));
    let Some(known) = dag.and_then(|dag| dag.by_key.get(key)) else { return Ok(None) };
    let known = &tables.runs[known];
    let same = known.idempotency.as_ref().is_some_and(|(_, print)| *print == request_fingerprint(run));
    if same {
        return Ok(Some(known.header()));
    }
    Err(StoreError::Conflict(format!(
        "idempotency key {key:?} was used for run {} of dag {} with another request; use a new key",
        known.view.run_id, run.dag
    )))
}

fn why_it_exists(tables: &Tables, run: &NewRun) -> StoreError {
    let NewRun { tenant, dag, run_id, logical_date, .. } = run;
    if tables.run_key(tenant, dag, run_id).is_ok() {
        return StoreError::Conflict(format!("dag {dag} has a run {run_id} already"));
    }
    let date = logical_date.map_or("no logical date".to_owned(), |date| date.to_string());
    StoreError::Conflict(format!("dag {dag} has a run for logical date {date} already"))
}

/// Writes a run from the dag version in force, with all its task instances, untouched.
pub(crate) fn insert(tables: &mut Tables, by: By<'_>, run: &NewRun) -> Inserted {
    let key = RunKey(tables.last_run + 1);
    let Some(dag) = tables.dags.get_mut(&(run.tenant.clone(), run.dag.clone())) else {
        return Inserted::NoDag;
    };
    let taken = dag.runs.contains_key(&run.run_id)
        || run.logical_date.is_some_and(|date| dag.by_date.contains_key(&date))
        || run.idempotency_key.as_ref().is_some_and(|key| dag.by_key.contains_key(key));
    if taken {
        return Inserted::Exists;
    }
    tables.last_run = key.0;
    dag.runs.insert(run.run_id.clone(), key);
    run.logical_date.map(|date| dag.by_date.insert(date, key));
    let idempotency = run.idempotency_key.clone().map(|key| (key, request_fingerprint(run)));
    if let Some((name, _)) = &idempotency {
        dag.by_key.insert(name.clone(), key);
    }
    let tasks = dag.in_force().spec.tasks.iter().zip(0u32..);
    let tis = tasks.map(|(task, number)| ((TaskNo(number), TiKey::UNMAPPED), Ti::untouched(task))).collect();
    let view = RunView {
        key,
        tenant: run.tenant.clone(),
        dag: run.dag.clone(),
        run_id: run.run_id.clone(),
        version: dag.version(),
        state: RunState::Queued,
        run_type: run.run_type,
        logical_date: run.logical_date,
        data_interval: run.data_interval,
        run_after: run.run_after,
        queued_at: by.at,
        started_at: None,
        ended_at: None,
        updated_at: by.at,
        conf: run.conf.clone(),
        note: run.note.clone(),
        triggered_by: run.triggered_by.clone(),
        reason: None,
    };
    let shard = dag.shard;
    let (tries, results) = Default::default();
    let made = Run { view, shard, revision: 0, idempotency, tis, tries, results };
    let header = made.header();
    tables.runs.insert(key, made);
    tables.unfinished.insert((shard, key));
    let created = entry("created", "", RunState::Queued.as_str());
    tables.audit(by, Some(&run.dag), Some(&run.run_id), vec![created]);
    Inserted::Created(Box::new(header))
}

pub(crate) fn delete(
    tables: &mut Tables,
    trigger: &Trigger,
    dag: &DagId,
    run_id: &RunId,
) -> Result<(), StoreError> {
    let key = tables.run_key(&trigger.tenant, dag, run_id)?;
    let (state, shard) = (tables.runs[&key].view.state, tables.runs[&key].shard);
    if !state.is_finished() {
        let text = format!("run {run_id} of dag {dag} is {state}; end it before deleting it");
        return Err(StoreError::Conflict(text));
    }
    tables.forget_run(key);
    let deleted = entry("deleted", state.as_str(), "");
    tables.audit(By::user(trigger), Some(dag), Some(run_id), vec![deleted]);
    tables.attend(shard, Attention::Run { run: key });
    Ok(())
}

/// The revision stays: no owner reads notes, and one that is planning must not be disturbed by them.
pub(crate) fn set_note(
    tables: &mut Tables,
    trigger: &Trigger,
    dag: &DagId,
    run_id: &RunId,
    note: Option<&str>,
) -> Result<RunView, StoreError> {
    let key = tables.run_key(&trigger.tenant, dag, run_id)?;
    let view = &mut tables.runs.get_mut(&key).expect("found just now").view;
    let before = std::mem::replace(&mut view.note, note.map(str::to_owned));
    view.updated_at = trigger.at;
    let view = view.clone();
    let noted = entry("note", before.unwrap_or_default(), note.unwrap_or_default());
    tables.audit(By::user(trigger), Some(dag), Some(run_id), vec![noted]);
    Ok(view)
}
