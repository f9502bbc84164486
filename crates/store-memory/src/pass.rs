//! Everything a pass has decided, in one fenced transaction.

use std::collections::HashSet;

use tenure_model::RunKey;
use tenure_store::{Committed, NewRunOutcome, Pass, RunChange, ScheduleChange, StoreError};

use crate::runs::{self, Inserted};
use crate::tables::{Tables, place};
use crate::trail::By;
use crate::{Authority, Flaw};

pub(crate) fn commit(
    tables: &mut Tables,
    authority: &Authority,
    pass: &Pass,
    flaw: Option<Flaw>,
) -> Result<Committed, StoreError> {
    check_shards(tables, authority, pass)?;
    let mut conflicts: HashSet<RunKey> =
        pass.runs.iter().filter(|change| !is_as_expected(tables, change)).map(|change| change.run).collect();
    conflicts.extend(pass.fallen(&conflicts));
    let mut committed = Committed::default();
    for change in &pass.runs {
        match conflicts.contains(&change.run) {
            true => committed.conflicts.push(change.run),
            false => apply(tables, authority, pass, change),
        }
    }
    for run in &pass.new_runs {
        let by = By { tenant: &run.tenant, actor: &pass.actor, at: pass.at, authority: Some(authority) };
        let mut inserted = runs::insert(tables, by, run);
        if matches!((&inserted, flaw), (Inserted::Exists, Some(Flaw::DueRunsTwice))) {
            let run_id = format!("{}-again-{}", run.run_id, tables.last_run).into();
            let again = tenure_model::NewRun { run_id, logical_date: None, ..run.clone() };
            inserted = runs::insert(tables, by, &again);
        }
        committed.created.push(match inserted {
            Inserted::Created(header) => NewRunOutcome::Created(header),
            Inserted::Exists => NewRunOutcome::Exists,
            Inserted::NoDag => NewRunOutcome::NoDag,
        });
    }
    for ScheduleChange { tenant, dag, last_tick, next_tick } in &pass.schedules {
        let forgetful = flaw == Some(Flaw::DueRunsTwice);
        if let Some(dag) = tables.dags.get_mut(&(tenant.clone(), dag.clone())).filter(|_| !forgetful) {
            dag.progress.last_tick = Some(*last_tick);
            dag.next_tick = *next_tick;
        }
    }
    pass.attended.iter().for_each(|seq| tables.attended(*seq));
    Ok(committed)
}

/// Before anything is changed: nothing of a pass that reaches beyond its authority is kept.
fn check_shards(tables: &Tables, authority: &Authority, pass: &Pass) -> Result<(), StoreError> {
    let scope = &authority.scope;
    for change in &pass.runs {
        let Some(run) = tables.runs.get(&change.run) else { continue };
        if run.revision == change.revision && run.shard.scope() != scope.as_str() {
            return Err(StoreError::Conflict(format!(
                "{} is of {}, which {scope} has no authority over",
                change.run, run.shard
            )));
        }
    }
    Ok(())
}

/// False: the run is not what the pass was decided from.
fn is_as_expected(tables: &Tables, change: &RunChange) -> bool {
    let Some(run) = tables.runs.get(&change.run) else { return false };
    let state = change.state.as_ref().is_none_or(|state| state.from == run.view.state);
    let as_expected = run.revision == change.revision && state;
    tables.careless || (as_expected && change.tis.iter().all(|ti| run.expects(ti)))
}

fn apply(tables: &mut Tables, authority: &Authority, pass: &Pass, change: &RunChange) {
    let Some(run) = tables.runs.get_mut(&change.run) else { return };
    for ti in &change.tis {
        if let Some(row) = run.tis.get_mut(&place(ti.ti)) {
            row.ti = ti.to.clone();
        }
    }
    change.past_tries.iter().for_each(|past| run.keep_try(past));
    for (ti, value) in &change.results {
        run.results.insert(place(*ti), value.clone());
    }
    run.revision += 1;
    run.view.updated_at = pass.at;
    let (tenant, dag, run_id) = (run.view.tenant.clone(), run.view.dag.clone(), run.view.run_id.clone());
    if let Some(state) = &change.state {
        tables.set_state(change.run, state);
    }
    if !change.audit.is_empty() {
        let by = By { tenant: &tenant, actor: &pass.actor, at: pass.at, authority: Some(authority) };
        tables.audit(by, Some(&dag), Some(&run_id), change.audit.clone());
    }
}
