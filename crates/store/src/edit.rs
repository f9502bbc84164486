//! What a clear, a mark, an ended run or an agent's report does to one run's rows, decided once for every store.
//!
//! Pure: a snapshot and a request in, the new rows out. A store reads the snapshot, calls one of these and
//! writes the answer in the same transaction: rows, history, audit, and an attention row for the run and for
//! each stop. Promises: every change of state is a legal step of [`TaskState::apply`]; whatever an agent may
//! still hold and must not go on with has a stop. What it does not do: find the other runs that `past` and
//! `future` ask for. A store calls it for each of them, and tasks that those do not have are passed over.

mod report;

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;
use tenure_model::state::Mark;
use tenure_model::{
    AttemptId, DagSpec, NodeId, RunKey, RunState, TaskEvent, TaskId, TaskInstance, TaskNo, TaskSpec,
    TaskState, TiKey,
};

use crate::{
    AuditEntry, CachedTi, ClearRequest, ClearSelection, MarkRequest, RunHeader, RunSnapshot, StateChange,
    StoreError, TiChange, TryRecord,
};

pub use report::{report, reporter};

/// Everything to write about one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEdit {
    pub run: RunKey,
    pub state: Option<StateChange>,
    /// The dag version that the run follows from now on, where that changes.
    pub version: Option<u32>,
    pub tis: Vec<TiChange>,
    /// Task instances that the new version brings in.
    pub added: Vec<CachedTi>,
    pub past_tries: Vec<TryRecord>,
    /// What a task has returned, to be kept in place of what it returned before.
    pub results: Vec<(TiKey, Value)>,
    /// Attempts that agents should stop: one attention row each.
    pub stops: Vec<(NodeId, AttemptId)>,
    pub audit: Vec<AuditEntry>,
    /// Its revision moves although nothing else does: what was planned from it has to be planned again.
    pub touched: bool,
}

impl RunEdit {
    fn of(run: &RunHeader) -> Self {
        Self {
            run: run.key,
            state: None,
            version: None,
            tis: vec![],
            added: vec![],
            past_tries: vec![],
            results: vec![],
            stops: vec![],
            audit: vec![],
            touched: false,
        }
    }

    /// Nothing to write: the run keeps its revision.
    pub fn is_empty(&self) -> bool {
        let changes_nothing = self.state.is_none() && self.version.is_none() && self.tis.is_empty();
        changes_nothing && self.added.is_empty() && !self.touched
    }

    /// Values returned by tries that are sent round again: the next try may return none.
    pub fn forgotten_results(&self) -> impl Iterator<Item = TiKey> + '_ {
        let again = |state| matches!(state, TaskState::None | TaskState::Restarting | TaskState::Removed);
        self.tis.iter().filter(move |change| again(change.to.state)).map(|change| change.ti)
    }

    fn change_run(
        &mut self,
        run: &RunSnapshot,
        event: &str,
        to: RunState,
        at: Timestamp,
        reason: Option<String>,
    ) {
        let from = run.header.state;
        self.audit.push(run_entry(event, from.as_str(), to.as_str(), reason.clone()));
        self.state = Some(StateChange { from, to, at, reason });
    }

    fn change_ti(&mut self, cached: &CachedTi, event: &str, to: TaskInstance) {
        let from = &cached.ti;
        self.audit.push(AuditEntry {
            task: Some(cached.task_id.clone()),
            map_index: mapped(cached.map_index),
            event: event.to_owned(),
            from: from.state.to_string(),
            to: to.state.to_string(),
            try_number: Some(to.try_number),
            attempt: from.attempt,
            node: from.node.clone(),
            reason: to.reason.clone(),
        });
        self.tis.push(TiChange { ti: self.key_of(cached), from: from.state, from_attempt: from.attempt, to });
    }

    fn stop(&mut self, ti: &TaskInstance) {
        if !ti.state.is_bound() {
            return;
        }
        if let (Some(node), Some(attempt)) = (&ti.node, ti.attempt) {
            self.stops.push((node.clone(), attempt));
        }
    }

    fn key_of(&self, cached: &CachedTi) -> TiKey {
        TiKey { run: self.run, task: cached.task, map_index: cached.map_index }
    }
}

/// Sends task instances round again. `spec` is the version that the run follows afterwards: `version_now`
/// with `latest_version`, otherwise the run's own.
pub fn clear(
    run: &RunSnapshot,
    version_now: u32,
    spec: &DagSpec,
    request: &ClearRequest,
    at: Timestamp,
) -> Result<RunEdit, StoreError> {
    let graph = Graph::of(spec);
    let chosen = match &request.selection {
        ClearSelection::All => None,
        ClearSelection::Tasks(tasks) => {
            if request.run == run.header.run_id {
                tasks.iter().try_for_each(|task| must_exist(run, &graph, task))?;
            }
            Some(graph.closure(tasks, request.upstream, request.downstream))
        }
    };
    let is_chosen = |task: &TaskId| chosen.as_ref().is_none_or(|chosen| chosen.contains(task));

    let mut edit = RunEdit::of(&run.header);
    let mut matched = false;
    for cached in run.tis.iter().filter(|cached| is_chosen(&cached.task_id)) {
        if !passes(request, cached.ti.state) {
            continue;
        }
        matched = true;
        if let Some(task) = graph.task(&cached.task_id) {
            clear_ti(&mut edit, cached, task, at);
        }
    }
    if request.latest_version {
        let added = graph.tasks_missing_from(run);
        // A run in which nothing was asked for stays with the version it has.
        if matched || added.iter().any(|task| is_chosen(&task.id)) {
            follow(&mut edit, run, version_now, &graph, &added, at);
        }
    }
    if request.reset_runs && !edit.is_empty() && run.header.state.is_finished() {
        edit.change_run(run, "cleared", RunState::Queued, at, None);
    }
    Ok(edit)
}

/// Declares task instances to be in a terminal state. As in Airflow, tasks further down that had failed are
/// cleared, so that a run goes on from a task that was marked.
pub fn mark(
    run: &RunSnapshot,
    spec: &DagSpec,
    request: &MarkRequest,
    at: Timestamp,
    actor: &str,
) -> Result<RunEdit, StoreError> {
    let graph = Graph::of(spec);
    if request.run == run.header.run_id {
        must_exist(run, &graph, &request.task)?;
    }
    let chosen = graph.closure([&request.task], request.upstream, request.downstream);
    let of_index = |index: i32| request.map_index.is_none_or(|wanted| wanted == index);
    let mut edit = RunEdit::of(&run.header);
    for cached in
        run.tis.iter().filter(|cached| chosen.contains(&cached.task_id) && of_index(cached.map_index))
    {
        mark_ti(&mut edit, cached, request.mark, at, actor);
    }
    if edit.is_empty() {
        return Ok(edit);
    }
    // What failed for want of this task gets another chance, and the run's outcome is found anew.
    let below = graph.closure([&request.task], false, true);
    let failed = |state| matches!(state, TaskState::Failed | TaskState::UpstreamFailed);
    for cached in run.tis.iter().filter(|cached| below.contains(&cached.task_id) && failed(cached.ti.state)) {
        if !chosen.contains(&cached.task_id)
            && let Some(task) = graph.task(&cached.task_id)
        {
            clear_ti(&mut edit, cached, task, at);
        }
    }
    if run.header.state.is_finished() {
        edit.change_run(run, "marked", RunState::Queued, at, None);
    }
    Ok(edit)
}

/// Ends a run by a user's word, or (with `Queued`) sends all of it round again under its own version.
pub fn set_run_state(
    run: &RunSnapshot,
    spec: &DagSpec,
    state: RunState,
    at: Timestamp,
    actor: &str,
) -> Result<RunEdit, StoreError> {
    match state {
        RunState::Queued => restart_run(run, spec, at),
        RunState::Success => Ok(end_run(run, state, Mark::Success, at, actor)),
        RunState::Failed => Ok(end_run(run, state, Mark::Failed, at, actor)),
        RunState::Running => Err(StoreError::Conflict(
            "a run becomes running by itself once there is room for it; ask for queued, success or failed"
                .into(),
        )),
    }
}

fn restart_run(run: &RunSnapshot, spec: &DagSpec, at: Timestamp) -> Result<RunEdit, StoreError> {
    let everything = ClearRequest {
        dag: run.header.dag.clone(),
        run: run.header.run_id.clone(),
        selection: ClearSelection::All,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        reset_runs: true,
        latest_version: false,
        dry_run: false,
    };
    let mut edit = clear(run, run.header.version, spec, &everything, at)?;
    // Also a run without anything to clear was asked to go round again.
    if edit.state.is_none() && run.header.state.is_finished() {
        edit.change_run(run, "cleared", RunState::Queued, at, None);
    }
    Ok(edit)
}

fn end_run(run: &RunSnapshot, state: RunState, mark: Mark, at: Timestamp, actor: &str) -> RunEdit {
    let mut edit = RunEdit::of(&run.header);
    if run.header.state == state {
        return edit;
    }
    for cached in run.tis.iter().filter(|cached| !cached.ti.state.is_finished()) {
        match cached.ti.state {
            TaskState::Running | TaskState::Restarting => mark_ti(&mut edit, cached, mark, at, actor),
            TaskState::None
            | TaskState::Scheduled
            | TaskState::Queued
            | TaskState::UpForRetry
            | TaskState::UpForReschedule
            | TaskState::Deferred => skip_ti(&mut edit, cached, state, at, actor),
            TaskState::Success
            | TaskState::Failed
            | TaskState::Skipped
            | TaskState::UpstreamFailed
            | TaskState::Removed => unreachable!("finished ones were filtered out"),
        }
    }
    edit.change_run(run, "marked", state, at, Some(format!("marked {state} by {actor}")));
    edit
}

fn clear_ti(edit: &mut RunEdit, cached: &CachedTi, task: &TaskSpec, at: Timestamp) {
    let old = &cached.ti;
    let state = step(old.state, TaskEvent::Clear);
    let new = match state {
        // The process ends first. Until then the row names the attempt, so that its end finds it; that end
        // is also what sends the try to history.
        TaskState::Restarting => TaskInstance {
            state,
            max_tries: old.try_number + task.retries,
            reason: Some("cleared while running".into()),
            ..old.clone()
        },
        _ => TaskInstance { state, ..old.cleared(task.retries) },
    };
    if new == *old {
        return;
    }
    edit.stop(old);
    if state != TaskState::Restarting {
        keep_try(edit, cached, at);
    }
    edit.change_ti(cached, "cleared", new);
}

/// Sends the try that a row describes to history, if it describes one.
fn keep_try(edit: &mut RunEdit, cached: &CachedTi, at: Timestamp) {
    let old = &cached.ti;
    // After a clear the row carries the number of a try that is in history already.
    if old.try_number == 0 || old.state == TaskState::None {
        return;
    }
    let mut instance = old.clone();
    if instance.ended_at.is_none() {
        instance.ended_at = Some(at);
        instance.reason = Some(format!("cleared while {}", old.state));
    }
    edit.past_tries.push(TryRecord { ti: edit.key_of(cached), task_id: cached.task_id.clone(), instance });
}

fn mark_ti(edit: &mut RunEdit, cached: &CachedTi, mark: Mark, at: Timestamp, actor: &str) {
    let old = &cached.ti;
    // Only a task that the dag no longer has refuses the user's word.
    let Ok(state) = old.state.apply(TaskEvent::Mark(mark)) else { return };
    if state == old.state {
        return;
    }
    edit.stop(old);
    let ended_at = if old.state.is_finished() { old.ended_at.or(Some(at)) } else { Some(at) };
    let reason = Some(format!("marked {state} by {actor}"));
    edit.change_ti(cached, "marked", TaskInstance { state, ended_at, reason, ..old.clone() });
}

fn skip_ti(edit: &mut RunEdit, cached: &CachedTi, run_state: RunState, at: Timestamp, actor: &str) {
    let old = &cached.ti;
    edit.stop(old);
    let new = TaskInstance {
        state: step(old.state, TaskEvent::RunEnded),
        ended_at: Some(at),
        reason: Some(format!("run marked {run_state} by {actor}")),
        ..old.clone()
    };
    edit.change_ti(cached, "run_ended", new);
}

/// Moves the run to another version: what that lacks is removed, what it adds is added.
fn follow(
    edit: &mut RunEdit,
    run: &RunSnapshot,
    version_now: u32,
    graph: &Graph<'_>,
    added: &[&TaskSpec],
    at: Timestamp,
) {
    if version_now == run.header.version {
        return;
    }
    edit.version = Some(version_now);
    let (from, to) = (format!("v{}", run.header.version), format!("v{version_now}"));
    edit.audit.push(run_entry("version", &from, &to, None));
    let gone = |cached: &&CachedTi| graph.task(&cached.task_id).is_none() && !cached.ti.state.is_finished();
    for cached in run.tis.iter().filter(gone) {
        remove_ti(edit, cached, version_now, at);
    }
    let first_free = run.tis.iter().map(|cached| cached.task.0 + 1).max().unwrap_or(0);
    for (task, number) in added.iter().zip(first_free..) {
        let ti = TaskInstance::untouched(task.retries);
        let cached =
            CachedTi { task: TaskNo(number), map_index: TiKey::UNMAPPED, task_id: task.id.clone(), ti };
        let none = TaskState::None.as_str();
        edit.audit.push(AuditEntry { task: Some(task.id.clone()), ..run_entry("added", "", none, None) });
        edit.added.push(cached);
    }
}

/// Nothing will take the place of a removed task, so its process need not have ended before the row moves on.
fn remove_ti(edit: &mut RunEdit, cached: &CachedTi, version: u32, at: Timestamp) {
    let old = &cached.ti;
    let idle = match old.state {
        TaskState::Running | TaskState::Restarting => {
            step(step(old.state, TaskEvent::Clear), TaskEvent::Withdraw)
        }
        TaskState::Queued => step(old.state, TaskEvent::Clear),
        other => other,
    };
    edit.stop(old);
    keep_try(edit, cached, at);
    let new = TaskInstance {
        state: step(idle, TaskEvent::Remove),
        ended_at: Some(at),
        reason: Some(format!("version {version} no longer has this task")),
        ..old.clone()
    };
    edit.change_ti(cached, "removed", new);
}

fn step(state: TaskState, event: TaskEvent) -> TaskState {
    state.apply(event).expect("edits take only steps that are legal from the state they found")
}

fn passes(request: &ClearRequest, state: TaskState) -> bool {
    let failed = matches!(state, TaskState::Failed | TaskState::UpstreamFailed);
    let running = matches!(state, TaskState::Running);
    match (request.only_failed, request.only_running) {
        (false, false) => true,
        (only_failed, only_running) => (only_failed && failed) || (only_running && running),
    }
}

fn must_exist(run: &RunSnapshot, graph: &Graph<'_>, task: &TaskId) -> Result<(), StoreError> {
    if graph.task(task).is_some() || run.tis.iter().any(|cached| cached.task_id == *task) {
        return Ok(());
    }
    let (dag, run_id) = (&run.header.dag, &run.header.run_id);
    Err(StoreError::NotFound(format!("run {run_id} of dag {dag} has no task {task}")))
}

fn mapped(map_index: i32) -> Option<i32> {
    (map_index != TiKey::UNMAPPED).then_some(map_index)
}

fn run_entry(event: &str, from: &str, to: &str, reason: Option<String>) -> AuditEntry {
    AuditEntry {
        task: None,
        map_index: None,
        event: event.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        try_number: None,
        attempt: None,
        node: None,
        reason,
    }
}

/// A version's tasks by id: numbers differ between a version and a run that has changed versions.
struct Graph<'a> {
    spec: &'a DagSpec,
    tasks: HashMap<&'a TaskId, &'a TaskSpec>,
}

impl<'a> Graph<'a> {
    fn of(spec: &'a DagSpec) -> Self {
        Self { spec, tasks: spec.tasks.iter().map(|task| (&task.id, task)).collect() }
    }

    fn task(&self, id: &TaskId) -> Option<&'a TaskSpec> {
        self.tasks.get(id).copied()
    }

    fn tasks_missing_from(&self, run: &RunSnapshot) -> Vec<&'a TaskSpec> {
        let known: HashSet<&TaskId> = run.tis.iter().map(|cached| &cached.task_id).collect();
        self.spec.tasks.iter().filter(|task| !known.contains(&task.id)).collect()
    }

    /// The named tasks with everything before and after them, as asked.
    fn closure<'b>(
        &self,
        named: impl IntoIterator<Item = &'b TaskId> + Clone,
        upstream: bool,
        downstream: bool,
    ) -> HashSet<TaskId> {
        let mut chosen: HashSet<TaskId> = named.clone().into_iter().cloned().collect();
        if upstream {
            let needs = |id: &TaskId| self.task(id).map_or(&[][..], |task| &task.needs);
            chosen.extend(reach(named.clone(), needs));
        }
        if downstream {
            let mut needed_by: HashMap<&TaskId, Vec<TaskId>> = HashMap::new();
            for task in &self.spec.tasks {
                task.needs.iter().for_each(|need| needed_by.entry(need).or_default().push(task.id.clone()));
            }
            chosen.extend(reach(named, |id| needed_by.get(id).map_or(&[][..], |tasks| tasks)));
        }
        chosen
    }
}

fn reach<'b, 'e>(
    from: impl IntoIterator<Item = &'b TaskId>,
    edges: impl Fn(&TaskId) -> &'e [TaskId],
) -> HashSet<TaskId> {
    let mut seen: HashSet<TaskId> = HashSet::new();
    let mut open: Vec<TaskId> = from.into_iter().cloned().collect();
    while let Some(id) = open.pop() {
        for next in edges(&id) {
            if seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests;
