//! Everything a pass has decided, in one fenced transaction.
//!
//! The hot path of the whole system. Statements are prepared once, a run costs two statements plus one for each
//! task instance, and JSON is written before the job reaches the writer's thread.

use std::collections::HashSet;

use rusqlite::{CachedStatement, Connection, params};
use tenure_model::{RunKey, ShardId, TaskInstance, TenantId, TiKey};
use tenure_store::{
    Committed, NewRunOutcome, Pass, RunChange, ScheduleChange, StateChange, TiChange, TryRecord, fallen,
};

use crate::Office;
use crate::errors::Fail;
use crate::leases::{Authority, check_fence};
use crate::rows::{At, at, one};
use crate::runs::{self, Inserted};
use crate::trail::{self, By};
use crate::writer::Tx;

/// A pass as the writer's thread takes it.
pub(crate) struct PassWrite {
    authority: Authority,
    actor: String,
    at: jiff::Timestamp,
    runs: Vec<RunWrite>,
    new_runs: Vec<tenure_model::NewRun>,
    schedules: Vec<ScheduleChange>,
    attended: Vec<i64>,
}

struct RunWrite {
    run: RunKey,
    revision: i64,
    state: Option<StateChange>,
    tis: Vec<TiChange>,
    past_tries: Vec<TryRecord>,
    results: Vec<(TiKey, String)>,
    /// JSON; empty when there is nothing to say.
    audit: String,
}

impl PassWrite {
    pub(crate) fn of(authority: Authority, pass: &Pass) -> Self {
        Self {
            authority,
            actor: pass.actor.clone(),
            at: pass.at,
            runs: pass.runs.iter().map(RunWrite::of).collect(),
            new_runs: pass.new_runs.clone(),
            schedules: pass.schedules.clone(),
            attended: pass.attended.clone(),
        }
    }

    fn by<'a>(&'a self, tenant: &'a TenantId) -> By<'a> {
        let authority = Some((self.authority.scope.as_str(), self.authority.epoch.0));
        By { tenant, actor: &self.actor, at: self.at, authority }
    }
}

impl RunWrite {
    fn of(change: &RunChange) -> Self {
        let audit = match change.audit.is_empty() {
            true => String::new(),
            false => serde_json::to_string(&change.audit).expect("audit entries are plain data"),
        };
        Self {
            run: change.run,
            revision: change.revision,
            state: change.state.clone(),
            tis: change.tis.clone(),
            past_tries: change.past_tries.clone(),
            results: change.results.iter().map(|(ti, value)| (*ti, value.to_string())).collect(),
            audit,
        }
    }
}

pub(crate) fn commit(tx: &Tx<'_>, office: &Office, pass: &PassWrite) -> Result<Committed, Fail> {
    check_fence(tx, &pass.authority)?;
    let mut committed = Committed { conflicts: commit_runs(tx, pass)?, created: vec![] };
    for run in &pass.new_runs {
        committed.created.push(match runs::insert(tx, office, pass.by(&run.tenant), run)? {
            Inserted::Created(header) => NewRunOutcome::Created(header),
            Inserted::Exists => NewRunOutcome::Exists,
            Inserted::NoDag => NewRunOutcome::NoDag,
        });
    }
    for schedule in &pass.schedules {
        let mut update = tx.prepare_cached(
            "UPDATE dags SET last_tick = ?3, next_tick = ?4 WHERE tenant = ?1 AND dag_id = ?2",
        )?;
        let ScheduleChange { tenant, dag, last_tick, next_tick } = schedule;
        update.execute(params![tenant.as_str(), dag.as_str(), At(*last_tick), at(*next_tick)])?;
    }
    for seq in &pass.attended {
        tx.prepare_cached("DELETE FROM attention WHERE seq = ?1")?.execute([seq])?;
    }
    Ok(committed)
}

/// All but those that conflict, and those that fall with them.
fn commit_runs(tx: &Tx<'_>, pass: &PassWrite) -> Result<Vec<RunKey>, Fail> {
    let mut tis = TiWriter::new(tx)?;
    let mut conflicts = HashSet::new();
    loop {
        let left_out = conflicts.clone();
        tx.prepare_cached("SAVEPOINT runs")?.execute([])?;
        for run in pass.runs.iter().filter(|run| !left_out.contains(&run.run)) {
            if !commit_run(tx, &mut tis, pass, run)? {
                conflicts.insert(run.run);
            }
        }
        let fallen = fallen(pass.runs.iter().map(|run| (run.run, &run.tis[..])), &conflicts);
        if !fallen.is_empty() {
            tx.prepare_cached("ROLLBACK TO runs")?.execute([])?;
        }
        tx.prepare_cached("RELEASE runs")?.execute([])?;
        if fallen.is_empty() {
            let in_order = pass.runs.iter().map(|run| run.run);
            return Ok(in_order.filter(|run| conflicts.contains(run)).collect());
        }
        conflicts.extend(fallen);
    }
}

/// False: the run is not what the pass was decided from, and nothing of it was changed.
fn commit_run(tx: &Tx<'_>, tis: &mut TiWriter<'_>, pass: &PassWrite, run: &RunWrite) -> Result<bool, Fail> {
    tx.prepare_cached("SAVEPOINT run")?.execute([])?;
    let applied = apply_run(tx, tis, pass, run)?;
    if !applied {
        tx.prepare_cached("ROLLBACK TO run")?.execute([])?;
    }
    tx.prepare_cached("RELEASE run")?.execute([])?;
    Ok(applied)
}

fn apply_run(tx: &Tx<'_>, tis: &mut TiWriter<'_>, pass: &PassWrite, run: &RunWrite) -> Result<bool, Fail> {
    let mut advance = tx.prepare_cached(
        "UPDATE runs SET revision = revision + 1, updated_at = ?3 WHERE key = ?1 AND revision = ?2
         RETURNING shard, tenant, dag_id, run_id",
    )?;
    let found = one(&mut advance, params![run.run.0, run.revision, At(pass.at)], |cells| {
        let (shard, tenant) = (ShardId(cells.take()?), cells.text::<TenantId>()?);
        Ok((shard, tenant, cells.take::<String>()?, cells.take::<String>()?))
    })?;
    let Some((shard, tenant, dag, run_id)) = found else { return Ok(false) };
    if shard.scope() != pass.authority.scope.as_str() {
        let scope = &pass.authority.scope;
        return Err(Fail::conflict(format!(
            "{} is of {shard}, which {scope} has no authority over",
            run.run
        )));
    }
    if let Some(change) = &run.state
        && !change_run_state(tx, run.run, change)?
    {
        return Ok(false);
    }
    for change in &run.tis {
        if !tis.change(change)? {
            return Ok(false);
        }
    }
    for past in &run.past_tries {
        keep_try(tx, &tenant, past)?;
    }
    for (ti, value) in &run.results {
        put_result(tx, &tenant, *ti, value)?;
    }
    if !run.audit.is_empty() {
        trail::audit_text(tx, pass.by(&tenant), Some(&dag), Some(&run_id), &run.audit)?;
    }
    Ok(true)
}

/// False: the run is not in the state it was decided from.
pub(crate) fn change_run_state(conn: &Connection, run: RunKey, change: &StateChange) -> Result<bool, Fail> {
    let mut update = conn.prepare_cached(match change.to {
        tenure_model::RunState::Queued => {
            "UPDATE runs SET state = ?3, queued_at = ?4, started_at = NULL, ended_at = NULL, reason = ?5
             WHERE key = ?1 AND state = ?2"
        }
        tenure_model::RunState::Running => {
            "UPDATE runs SET state = ?3, started_at = coalesce(started_at, ?4), ended_at = NULL, reason = ?5
             WHERE key = ?1 AND state = ?2"
        }
        tenure_model::RunState::Success | tenure_model::RunState::Failed => {
            // A run may begin and end in one pass; then it has taken no time.
            "UPDATE runs SET state = ?3, started_at = coalesce(started_at, ?4), ended_at = ?4, reason = ?5
             WHERE key = ?1 AND state = ?2"
        }
    })?;
    let StateChange { from, to, at, reason } = change;
    Ok(update.execute(params![run.0, from.as_str(), to.as_str(), At(*at), reason])? == 1)
}

/// Writes task instances one after another through one prepared statement.
pub(crate) struct TiWriter<'c> {
    update: CachedStatement<'c>,
}

impl<'c> TiWriter<'c> {
    pub(crate) fn new(conn: &'c Connection) -> Result<Self, Fail> {
        let update = conn.prepare_cached(
            "UPDATE task_instances SET state = ?6, try_number = ?7, max_tries = ?8, attempt = ?9, node = ?10,
                 scheduled_at = ?11, queued_at = ?12, started_at = ?13, ended_at = ?14, reason = ?15
             WHERE run = ?1 AND task_no = ?2 AND map_index = ?3 AND state = ?4 AND attempt IS ?5",
        )?;
        Ok(Self { update })
    }

    /// False: the row is not in the state, or under the attempt, that the change was decided from.
    pub(crate) fn change(&mut self, change: &TiChange) -> Result<bool, Fail> {
        let TiChange { ti, from, from_attempt, to } = change;
        let changed = self.update.execute(params![
            ti.run.0,
            ti.task.0,
            ti.map_index,
            from.as_str(),
            from_attempt.as_ref().map(|attempt| attempt.0.as_bytes()),
            to.state.as_str(),
            to.try_number,
            to.max_tries,
            to.attempt.as_ref().map(|attempt| attempt.0.as_bytes()),
            to.node.as_ref().map(|node| node.as_str()),
            at(to.scheduled_at),
            at(to.queued_at),
            at(to.started_at),
            at(to.ended_at),
            to.reason,
        ])?;
        Ok(changed == 1)
    }
}

/// The same try again replaces what was kept of it.
pub(crate) fn keep_try(conn: &Connection, tenant: &TenantId, past: &TryRecord) -> Result<(), Fail> {
    let mut insert = conn.prepare_cached(
        "INSERT OR REPLACE INTO tries (run, task_no, map_index, try_number, tenant, task_id, state, max_tries, attempt,
             node, scheduled_at, queued_at, started_at, ended_at, reason)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?;
    let TryRecord { ti, task_id, instance } = past;
    let TaskInstance { state, try_number, max_tries, attempt, node, .. } = instance;
    insert.execute(params![
        ti.run.0,
        ti.task.0,
        ti.map_index,
        try_number,
        tenant.as_str(),
        task_id.as_str(),
        state.as_str(),
        max_tries,
        attempt.as_ref().map(|attempt| attempt.0.as_bytes()),
        node.as_ref().map(|node| node.as_str()),
        at(instance.scheduled_at),
        at(instance.queued_at),
        at(instance.started_at),
        at(instance.ended_at),
        instance.reason,
    ])?;
    Ok(())
}

pub(crate) fn put_result(conn: &Connection, tenant: &TenantId, ti: TiKey, value: &str) -> Result<(), Fail> {
    let mut insert = conn.prepare_cached(
        "INSERT OR REPLACE INTO results (run, task_no, map_index, tenant, value) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    insert.execute(params![ti.run.0, ti.task.0, ti.map_index, tenant.as_str(), value])?;
    Ok(())
}
