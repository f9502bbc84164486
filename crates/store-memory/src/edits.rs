//! Clears, marks, ended runs and reports: `tenure_store::edit` decides, this keeps the rows.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};

use jiff::Timestamp;
use tenure_model::{
    Ack, DagId, DagSpec, Report, ReportBody, RunId, RunKey, RunState, ShardId, TaskState, TenantId, TiKey,
};
use tenure_store::edit::{self, RunEdit};
use tenure_store::{
    Attention, ClearRequest, Cleared, MarkRequest, RunHeader, RunSnapshot, RunView, StoreError, TiView,
    Trigger,
};

use crate::Flaw;
use crate::tables::{Tables, Ti, place};
use crate::trail::By;

pub(crate) fn clear(
    tables: &mut Tables,
    trigger: &Trigger,
    request: &ClearRequest,
) -> Result<Cleared, StoreError> {
    let dag = tables.dag(&trigger.tenant, &request.dag)?;
    let named = tables.run_key(&trigger.tenant, &request.dag, &request.run)?;
    let mut edits = vec![];
    for run in affected(tables, named, request.past, request.future)? {
        let version = if request.latest_version { dag.version() } else { run.header.version };
        let spec = dag.spec(version)?;
        let edit = edit::clear(&run, dag.version(), &spec, request, trigger.at)?;
        edits.push((run, spec, edit));
    }
    let mut cleared = Cleared { tis: vec![] };
    for (run, spec, edit) in edits {
        cleared.tis.extend(views(tables, &edit).map(|(view, _)| view));
        if !request.dry_run {
            apply(tables, trigger, &run, &spec, &edit);
        }
    }
    Ok(cleared)
}

/// The task instances as they are afterwards (or, in a dry run, as they would be).
pub(crate) fn mark(
    tables: &mut Tables,
    trigger: &Trigger,
    request: &MarkRequest,
) -> Result<Vec<TiView>, StoreError> {
    let named = tables.run_key(&trigger.tenant, &request.dag, &request.run)?;
    let dag = tables.dag(&trigger.tenant, &request.dag)?;
    let mut edits = vec![];
    for run in affected(tables, named, request.past, request.future)? {
        let spec = dag.spec(run.header.version)?;
        let edit = edit::mark(&run, &spec, request, trigger.at, &trigger.actor)?;
        edits.push((run, spec, edit));
    }
    let mut marked = vec![];
    for (run, spec, edit) in edits {
        marked.extend(views(tables, &edit).map(|(view, instance)| TiView { instance, ..view }));
        if !request.dry_run {
            apply(tables, trigger, &run, &spec, &edit);
        }
    }
    Ok(marked)
}

pub(crate) fn set_run_state(
    tables: &mut Tables,
    trigger: &Trigger,
    dag: &DagId,
    run_id: &RunId,
    state: RunState,
) -> Result<RunView, StoreError> {
    let key = tables.run_key(&trigger.tenant, dag, run_id)?;
    let run = tables.snapshot(key).expect("found just now")?;
    let spec = tables.dag(&trigger.tenant, dag)?.spec(run.header.version)?;
    let edit = edit::set_run_state(&run, &spec, state, trigger.at, &trigger.actor)?;
    apply(tables, trigger, &run, &spec, &edit);
    Ok(tables.runs[&key].view.clone())
}

/// The named run first, then the dag's runs before and after its logical date, as asked.
fn affected(
    tables: &Tables,
    named: RunKey,
    past: bool,
    future: bool,
) -> Result<Vec<RunSnapshot>, StoreError> {
    let mut keys = vec![named];
    let view = &tables.runs[&named].view;
    if let Some(date) = view.logical_date {
        let by_date = &tables.dag(&view.tenant, &view.dag)?.by_date;
        if past {
            keys.extend(by_date.range(..date).map(|(_, key)| *key));
        }
        if future {
            keys.extend(by_date.range((Excluded(date), Unbounded)).map(|(_, key)| *key));
        }
    }
    keys.into_iter().filter_map(|key| tables.snapshot(key)).collect()
}

/// What the edit changes: as it is, and what becomes of it.
fn views<'a>(
    tables: &'a Tables,
    edit: &'a RunEdit,
) -> impl Iterator<Item = (TiView, tenure_model::TaskInstance)> + 'a {
    let run = &tables.runs[&edit.run];
    edit.tis.iter().filter_map(move |change| {
        let place = place(change.ti);
        Some((run.ti_view(place, run.tis.get(&place)?), change.to.clone()))
    })
}

fn apply(tables: &mut Tables, trigger: &Trigger, run: &RunSnapshot, spec: &DagSpec, edit: &RunEdit) {
    if edit.is_empty() {
        return;
    }
    write(tables, By::user(trigger), &run.header, edit);
    if edit.version.is_some() {
        follow_version(tables, spec, edit);
    }
    let shard = run.header.shard;
    for (node, attempt) in &edit.stops {
        tables.attend(shard, Attention::Stop { node: node.clone(), attempt: *attempt });
    }
    tables.attend(shard, Attention::Run { run: edit.run });
}

/// The run, its rows, its history and the audit row; all but attention. What the edit was decided from was read in
/// this transaction, so a guard that fails here is an error of ours.
fn write(tables: &mut Tables, by: By<'_>, header: &RunHeader, edit: &RunEdit) {
    let run = tables.runs.get_mut(&edit.run).expect("found in this transaction");
    run.revision += 1;
    run.view.updated_at = by.at;
    run.view.version = edit.version.unwrap_or(run.view.version);
    for change in &edit.tis {
        assert!(run.change_ti(change).is_some(), "{:?} moved inside its own transaction", change.ti);
    }
    edit.past_tries.iter().for_each(|past| run.keep_try(past));
    for ti in edit.forgotten_results() {
        run.results.remove(&place(ti));
    }
    for (ti, value) in &edit.results {
        run.results.insert(place(*ti), value.clone());
    }
    if let Some(change) = &edit.state {
        assert_eq!(run.view.state, change.from, "{} moved inside its own transaction", edit.run);
        tables.set_state(edit.run, change);
    }
    let by = By { tenant: &header.tenant, ..by };
    tables.audit(by, Some(&header.dag), Some(&header.run_id), edit.audit.clone());
}

/// New tasks get their rows; tasks that stay may have another pool in the new version.
fn follow_version(tables: &mut Tables, spec: &DagSpec, edit: &RunEdit) {
    let tasks: HashMap<_, _> = spec.tasks.iter().map(|task| (&task.id, task)).collect();
    let run = tables.runs.get_mut(&edit.run).expect("found in this transaction");
    for row in run.tis.values_mut() {
        if let Some(task) = tasks.get(&row.task_id) {
            row.pool = task.pool.clone();
        }
    }
    for added in &edit.added {
        let row = Ti { ti: added.ti.clone(), ..Ti::untouched(tasks[&added.task_id]) };
        run.tis.insert((added.task, added.map_index), row);
    }
}

/// What agents say about runs that the hearer does not own. One answer for each, in order.
pub(crate) fn record(tables: &mut Tables, reports: &[Report], at: Timestamp, flaw: Option<Flaw>) -> Vec<Ack> {
    let mut touched = BTreeMap::new();
    let acks = reports.iter().map(|report| record_one(tables, report, at, &mut touched, flaw)).collect();
    for (run, shard) in touched {
        tables.attend(shard, Attention::Run { run });
    }
    acks
}

/// A task that has ended runs again. Answers with how it had ended.
fn revive(tables: &mut Tables, ti: TiKey) -> Option<TaskState> {
    let row = tables.runs.get_mut(&ti.run)?.tis.get_mut(&place(ti))?;
    row.ti.state.is_finished().then(|| std::mem::replace(&mut row.ti.state, TaskState::Running))
}

fn record_one(
    tables: &mut Tables,
    report: &Report,
    at: Timestamp,
    touched: &mut BTreeMap<RunKey, ShardId>,
    flaw: Option<Flaw>,
) -> Ack {
    let ti = report.body.ti();
    let over = (flaw == Some(Flaw::EndsTwice)).then(|| revive(tables, ti)).flatten();
    let Some(run) = tables.runs.get(&ti.run) else { return Ack::Superseded };
    if tables.spoiled_runs.contains(&ti.run) || tables.spoiled_tasks.contains(&ti) {
        // Nobody can say whether this attempt is current: the agent keeps what it knows until somebody can.
        tracing::warn!(run = ti.run.0, task = ti.task.0, "a report is about a row that cannot be read");
        return Ack::Retry;
    }
    let header = run.header();
    let cached = run.tis.get(&place(ti)).map(|row| row.cached(place(ti)));
    let mut report = report.clone();
    if flaw == Some(Flaw::AnyAttempt) {
        let (ReportBody::Claim { attempt, .. }
        | ReportBody::End { attempt, .. }
        | ReportBody::Undelivered { attempt, .. }) = &mut report.body;
        *attempt = cached.as_ref().and_then(|cached| cached.ti.attempt).unwrap_or(*attempt);
    }
    let (mut edit, ack) = edit::report(&header, cached.as_ref(), &report, at);
    for (entry, state) in edit.audit.iter_mut().zip(over) {
        entry.from = state.to_string();
    }
    if !edit.is_empty() {
        let (actor, tenant): (String, TenantId) = (edit::reporter(&report), header.tenant.clone());
        write(tables, By { tenant: &tenant, actor: &actor, at, authority: None }, &header, &edit);
        touched.insert(ti.run, header.shard);
    }
    ack
}
