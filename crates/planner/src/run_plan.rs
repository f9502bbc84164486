//! One run in memory: its task instances, what their upstreams have come to, and what follows.
//!
//! Events go in (`claim`, `end`, `bind`, the passing of time); state changes come out of `take_changes`
//! exactly as the store is to save them. The caller drops a plan whose changes could not be committed
//! and builds a new one from the database: memory is a cache.
//!
//! Promises: planning twice at the same instant changes nothing more; every step is legal by
//! `TaskState::apply`; a terminal task instance moves only by a clear or a mark, which happen in the
//! database and arrive here as a fresh snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tenure_model::retry::{self, TryName};
use tenure_model::{
    AttemptId, AttemptVerdict, DagId, FailReason, NodeId, Outcome, RunId, RunState, Tally, TaskEvent, TaskId,
    TaskInstance, TaskKind, TaskNo, TaskSpec, TaskState, TiStep, Told, Verdict,
};

use crate::DagGraph;

/// What a plan needs to know of its run besides the tasks.
#[derive(Clone, Debug)]
pub struct RunFacts {
    pub dag: DagId,
    pub run_id: RunId,
    pub logical_date: Option<Timestamp>,
    pub state: RunState,
    pub started_at: Option<Timestamp>,
    /// Now. Whatever is dated later was written by a clock that is ahead, and is taken to have just happened.
    pub read_at: Timestamp,
}

#[derive(Debug)]
pub struct RunPlan {
    facts: RunFacts,
    graph: Arc<DagGraph>,
    slots: Vec<Slot>,
    /// Where each task of the graph sits among the slots. A fresh run has them in the same order.
    slot_of: Vec<u32>,
    past: Past,
    /// Tasks whose situation may have changed since they were last looked at.
    dirty: BTreeSet<u32>,
    /// When tasks come back from `up_for_retry`.
    retries: BTreeSet<(Timestamp, u32)>,
    unfinished: usize,
    /// Of the unfinished ones, those that something has begun to happen to.
    active: usize,
    /// Where the previous attempt of a task came to nothing. Not in the database: an owner that takes over while the
    /// next one waits for a place may send it there once more.
    failed_on: BTreeMap<u32, NodeId>,
    changes: PendingChanges,
}

#[derive(Debug)]
struct Slot {
    task_id: TaskId,
    /// Absent: the version the run follows no longer has this task.
    spec: Option<u32>,
    /// Tasks to which the same has happened share it: most of a large run waits in the same way.
    ti: Arc<TaskInstance>,
    tally: Tally,
    blocked_by_past: bool,
}

/// What the previous run means for tasks that depend on the past.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Past {
    /// There is none, or no task asks.
    #[default]
    None,
    Run(BTreeMap<TaskId, TaskState>),
}

#[derive(Debug, Default)]
struct PendingChanges {
    /// By slot: the state and attempt that the database still has.
    before: BTreeMap<u32, (TaskState, Option<AttemptId>)>,
    past_tries: Vec<(TaskNo, TaskInstance)>,
    steps: Vec<Step>,
    run: Vec<RunStep>,
}

/// Everything that has changed since the last call, for one transaction.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    pub touched: Vec<Touched>,
    pub past_tries: Vec<(TaskNo, TaskInstance)>,
    /// Each step on the way, for the audit trail: a task may take several in one pass.
    pub steps: Vec<Step>,
    pub run: Vec<RunStep>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.run.is_empty()
    }
}

/// A task instance's new row, and what the database should have now.
#[derive(Debug, PartialEq)]
pub struct Touched {
    pub task: TaskNo,
    pub from: TaskState,
    pub from_attempt: Option<AttemptId>,
    pub to: TaskInstance,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub task: TaskNo,
    pub event: TaskEvent,
    pub from: TaskState,
    pub to: TaskState,
    pub try_number: u32,
    pub attempt: Option<AttemptId>,
    pub node: Option<NodeId>,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunStep {
    pub from: RunState,
    pub to: RunState,
    pub at: Timestamp,
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// `queued` → `running`: the agent may start it once this is committed.
    Granted,
    /// The same claim came before; a repeated answer is all the agent needs.
    Repeated,
    /// Not the current attempt.
    Superseded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndVerdict {
    Applied,
    /// Not the current attempt, or known already: the agent may forget it.
    Superseded,
}

impl From<AttemptVerdict> for EndVerdict {
    fn from(verdict: AttemptVerdict) -> Self {
        match verdict {
            AttemptVerdict::Applied => Self::Applied,
            AttemptVerdict::Repeated | AttemptVerdict::Superseded => Self::Superseded,
        }
    }
}

impl RunPlan {
    /// `tis` in the order of their task numbers.
    pub fn new(facts: RunFacts, graph: Arc<DagGraph>, tis: Vec<(TaskId, TaskInstance)>) -> Self {
        let mut slots: Vec<Slot> = Vec::with_capacity(tis.len());
        for (task_id, ti) in tis {
            let spec = graph.position(&task_id);
            let ti = match slots.last() {
                Some(before) if *before.ti == ti => Arc::clone(&before.ti),
                _ => Arc::new(ti),
            };
            let task_id = spec.map_or(task_id, |at| graph.task(at).id.clone());
            slots.push(Slot { task_id, spec, ti, tally: Tally::default(), blocked_by_past: false });
        }
        let mut slot_of = vec![u32::MAX; graph.len()];
        for (at, slot) in slots.iter().enumerate() {
            if let Some(spec) = slot.spec {
                slot_of[spec as usize] = at as u32;
            }
        }
        let mut plan = Self {
            facts,
            graph,
            slot_of,
            past: Past::None,
            dirty: (0..slots.len() as u32).collect(),
            retries: BTreeSet::new(),
            unfinished: slots.iter().filter(|slot| !slot.ti.state.is_finished()).count(),
            active: slots.iter().filter(|slot| is_active(slot.ti.state)).count(),
            slots,
            failed_on: BTreeMap::new(),
            changes: PendingChanges::default(),
        };
        plan.count_upstreams();
        for at in 0..plan.slots.len() as u32 {
            plan.arm_retry(at, plan.facts.read_at);
        }
        plan
    }

    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    pub fn graph(&self) -> &Arc<DagGraph> {
        &self.graph
    }

    pub fn state(&self) -> RunState {
        self.facts.state
    }

    pub fn task(&self, task: TaskNo) -> Option<&TaskInstance> {
        self.slots.get(task.index()).map(|slot| &*slot.ti)
    }

    pub fn task_id(&self, task: TaskNo) -> &TaskId {
        &self.slots[task.index()].task_id
    }

    /// The task's definition in the version the run follows.
    pub fn spec(&self, task: TaskNo) -> Option<&TaskSpec> {
        self.slots[task.index()].spec.map(|at| self.graph.task(at))
    }

    /// The node on which its previous try failed, or that has not taken its previous attempt.
    pub fn failed_on(&self, task: TaskNo) -> Option<&NodeId> {
        self.failed_on.get(&task.0)
    }

    /// Where what it needs has ended in this run, and how many of those on each node.
    pub fn upstream_on(&self, task: TaskNo) -> BTreeMap<NodeId, u32> {
        let mut nodes = BTreeMap::new();
        let upstream = self.slots[task.index()].spec.map_or(&[][..], |at| self.graph.upstream(at));
        for up in upstream {
            let slot = self.slots.get(self.slot_of[*up as usize] as usize);
            let ended = slot.map(|slot| &slot.ti).filter(|ti| ti.state.is_finished());
            if let Some(node) = ended.and_then(|ti| ti.node.as_ref()) {
                *nodes.entry(node.clone()).or_default() += 1;
            }
        }
        nodes
    }

    pub fn weight(&self, task: TaskNo) -> i64 {
        self.slots[task.index()].spec.map_or(0, |at| self.graph.weight(at))
    }

    pub fn tasks(&self) -> impl Iterator<Item = (TaskNo, &TaskInstance)> {
        self.slots.iter().enumerate().map(|(at, slot)| (TaskNo(at as u32), &*slot.ti))
    }

    pub fn states_by_task(&self) -> BTreeMap<TaskId, TaskState> {
        self.slots.iter().map(|slot| (slot.task_id.clone(), slot.ti.state)).collect()
    }

    /// When time alone will change something: a retry falls due, the run times out.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let retry = self.retries.first().map(|(at, _)| *at);
        retry.into_iter().chain(self.times_out_at()).min()
    }

    /// The previous run has moved: look again at tasks that depend on it.
    pub fn set_past(&mut self, past: Past) {
        if self.past != past {
            self.past = past;
            let waiting = self.slots.iter().enumerate().filter(|(_, slot)| slot.ti.state == TaskState::None);
            self.dirty.extend(waiting.map(|(at, _)| at as u32));
        }
    }

    /// `queued` → `running`, when the dag has room for another active run.
    pub fn start(&mut self, now: Timestamp) {
        assert_eq!(self.facts.state, RunState::Queued, "only a queued run starts");
        self.facts.started_at = Some(now);
        self.run_becomes(RunState::Running, now, None);
    }

    /// Everything that follows from what is known at `now`.
    pub fn plan(&mut self, now: Timestamp) {
        if self.facts.state != RunState::Running {
            return;
        }
        if self.times_out_at().is_some_and(|deadline| deadline <= now) {
            let limit = self.graph.spec().run_timeout.unwrap_or_default();
            let reason = format!("run timed out after {}", tenure_model::duration::format(limit));
            return self.abandon(RunState::Failed, now, &reason);
        }
        while let Some(&(due, at)) = self.retries.first().filter(|(due, _)| *due <= now) {
            self.retries.remove(&(due, at));
            self.begin_try(at, TaskEvent::RetryDue, now);
        }
        while let Some(at) = self.dirty.pop_first() {
            self.look_at(at, now);
        }
        self.settle(now);
    }

    /// Ends the run here and now: what has not finished is skipped.
    pub fn abandon(&mut self, state: RunState, now: Timestamp, reason: &str) {
        for at in 0..self.slots.len() as u32 {
            if !self.slots[at as usize].ti.state.is_finished() {
                self.step(at, TaskEvent::RunEnded, Some(reason), |ti| ti.ended_at = Some(now));
            }
        }
        self.dirty.clear();
        self.run_becomes(state, now, Some(reason.to_owned()));
    }

    /// Places a scheduled task on a node under a fresh attempt id.
    pub fn bind(&mut self, task: TaskNo, attempt: AttemptId, node: NodeId, now: Timestamp) {
        self.failed_on.remove(&task.0);
        self.step(task.0, TaskEvent::Bind, None, |ti| {
            ti.attempt = Some(attempt);
            ti.node = Some(node);
            ti.queued_at = Some(now);
        });
    }

    pub fn claim(&mut self, task: TaskNo, attempt: AttemptId, now: Timestamp) -> ClaimVerdict {
        let Some(ti) = self.task(task) else { return ClaimVerdict::Superseded };
        match self.hear(task.0, ti.claim(attempt, now)) {
            AttemptVerdict::Applied => ClaimVerdict::Granted,
            AttemptVerdict::Repeated => ClaimVerdict::Repeated,
            AttemptVerdict::Superseded => ClaimVerdict::Superseded,
        }
    }

    pub fn end(
        &mut self,
        task: TaskNo,
        attempt: AttemptId,
        outcome: &Outcome,
        ended_at: Timestamp,
    ) -> EndVerdict {
        let Some(ti) = self.task(task) else { return EndVerdict::Superseded };
        self.hear(task.0, ti.end(attempt, outcome, ended_at)).into()
    }

    /// The attempt could not be handed over: see [`TaskInstance::undelivered`].
    pub fn undelivered(
        &mut self,
        task: TaskNo,
        attempt: AttemptId,
        failure: Option<&FailReason>,
        now: Timestamp,
    ) -> EndVerdict {
        let Some(ti) = self.task(task) else { return EndVerdict::Superseded };
        self.hear(task.0, ti.undelivered(attempt, failure, now)).into()
    }

    /// Takes a bound attempt back; the same try is placed again under a new attempt id.
    pub fn withdraw(&mut self, task: TaskNo, reason: &str, now: Timestamp) {
        let step = self.slots[task.index()].ti.withdrawn(reason, now);
        self.take_step(task.0, step);
    }

    /// What has changed since the last call; the caller commits it or drops this plan.
    pub fn take_changes(&mut self) -> Changes {
        let PendingChanges { before, past_tries, steps, run } = std::mem::take(&mut self.changes);
        let mut touched = Vec::with_capacity(before.len());
        let mut last: Option<Arc<TaskInstance>> = None;
        for (at, (from, from_attempt)) in before {
            let ti = &mut self.slots[at as usize].ti;
            match &last {
                Some(last) if *last == *ti => *ti = Arc::clone(last),
                _ => last = Some(Arc::clone(ti)),
            }
            touched.push(Touched { task: TaskNo(at), from, from_attempt, to: TaskInstance::clone(ti) });
        }
        Changes { touched, past_tries, steps, run }
    }

    fn hear(&mut self, at: u32, told: Told) -> AttemptVerdict {
        if let Some(step) = told.step {
            self.take_step(at, step);
        }
        told.verdict
    }

    fn take_step(&mut self, at: u32, step: TiStep) {
        let TiStep { event, to, past_try } = step;
        self.changes.past_tries.extend(past_try.map(|past| (TaskNo(at), past)));
        let reason = to.reason.clone();
        if event == TaskEvent::Withdraw {
            self.remember_failure(at);
        }
        self.step(at, event, reason.as_deref(), |ti| *ti = to);
        self.arm_retry(at, Timestamp::MAX);
        if self.slots[at as usize].ti.state == TaskState::None {
            self.dirty.insert(at);
        }
    }

    fn arm_retry(&mut self, at: u32, latest: Timestamp) {
        let slot = &self.slots[at as usize];
        let (TaskState::UpForRetry, Some(ended_at), Some(spec)) =
            (slot.ti.state, slot.ti.ended_at, slot.spec)
        else {
            return;
        };
        let facts = &self.facts;
        let name = TryName {
            dag: &facts.dag,
            run: &facts.run_id,
            logical_date: facts.logical_date,
            try_number: slot.ti.try_number,
        };
        let delay = retry::delay(self.graph.task(spec), name);
        let due = ended_at.min(latest).saturating_add(delay).unwrap_or(Timestamp::MAX);
        self.retries.insert((due, at));
    }

    /// Looks at one task whose situation may have changed.
    fn look_at(&mut self, at: u32, now: Timestamp) {
        let slot = &self.slots[at as usize];
        if slot.ti.state != TaskState::None {
            return;
        }
        let Some(spec) = slot.spec else {
            return self
                .step(at, TaskEvent::Remove, Some("no longer in the dag"), |ti| ti.ended_at = Some(now));
        };
        let task = self.graph.task(spec);
        let verdict = task.trigger_rule.verdict(&slot.tally);
        let blocked = verdict == Verdict::Run && self.blocked_by_past(spec);
        let empty = matches!(task.kind, TaskKind::Empty);
        self.slots[at as usize].blocked_by_past = blocked;
        match verdict {
            Verdict::Wait => {}
            Verdict::Run if blocked => {}
            Verdict::Run if empty => self.step(at, TaskEvent::CompleteEmpty, None, |ti| {
                ti.try_number += 1;
                ti.started_at = Some(now);
                ti.ended_at = Some(now);
            }),
            Verdict::Run => self.begin_try(at, TaskEvent::DependenciesMet, now),
            Verdict::Skip => self.step(at, TaskEvent::Skip, None, |ti| ti.ended_at = Some(now)),
            Verdict::UpstreamFail => {
                self.step(at, TaskEvent::UpstreamFail, None, |ti| ti.ended_at = Some(now))
            }
        }
    }

    fn begin_try(&mut self, at: u32, event: TaskEvent, now: Timestamp) {
        let ti = &self.slots[at as usize].ti;
        if event == TaskEvent::RetryDue {
            self.changes.past_tries.push((TaskNo(at), TaskInstance::clone(ti)));
            self.remember_failure(at);
        }
        let ti = &self.slots[at as usize].ti;
        let next = TaskInstance {
            state: ti.state,
            try_number: ti.try_number + 1,
            scheduled_at: Some(now),
            ..TaskInstance::untouched(ti.max_tries)
        };
        self.step(at, event, None, |ti| *ti = TaskInstance { state: ti.state, ..next });
    }

    /// The next attempt had better go elsewhere.
    fn remember_failure(&mut self, at: u32) {
        if let Some(node) = &self.slots[at as usize].ti.node {
            self.failed_on.insert(at, node.clone());
        }
    }

    fn blocked_by_past(&self, spec: u32) -> bool {
        let task = self.graph.task(spec);
        let Past::Run(states) = &self.past else { return false };
        let good = |id: &TaskId| {
            // A task that the previous run did not have cannot hold this one up.
            states.get(id).is_none_or(|state| matches!(state, TaskState::Success | TaskState::Skipped))
        };
        let own = (task.depends_on_past || task.wait_for_downstream) && !good(&task.id);
        let mut downstream = self.graph.downstream(spec).iter().map(|at| &self.graph.task(*at).id);
        own || (task.wait_for_downstream && downstream.any(|id| !good(id)))
    }

    /// Ends the run when nothing can happen in it any more.
    fn settle(&mut self, now: Timestamp) {
        if self.unfinished > 0 {
            if self.active == 0 && !self.slots.iter().any(|slot| slot.blocked_by_past) {
                self.abandon(RunState::Failed, now, "deadlock: no unfinished task can ever run");
            }
            return;
        }
        let bad = |at: &u32| {
            let state = self.slots[self.slot_of[*at as usize] as usize].ti.state;
            matches!(state, TaskState::Failed | TaskState::UpstreamFailed)
        };
        let failed = (0..self.graph.len() as u32)
            .filter(|at| self.graph.is_leaf(*at) && self.slot_of[*at as usize] != u32::MAX)
            .any(|at| bad(&at));
        self.run_becomes(if failed { RunState::Failed } else { RunState::Success }, now, None);
    }

    fn times_out_at(&self) -> Option<Timestamp> {
        if self.facts.state != RunState::Running {
            return None;
        }
        self.facts.started_at?.checked_add(self.graph.spec().run_timeout?).ok()
    }

    fn run_becomes(&mut self, to: RunState, at: Timestamp, reason: Option<String>) {
        let from = self.facts.state;
        assert!(from.can_become(to), "a run that is {from} cannot become {to}");
        self.facts.state = to;
        self.changes.run.push(RunStep { from, to, at, reason });
    }

    /// The only place where a task instance changes.
    fn step(
        &mut self,
        at: u32,
        event: TaskEvent,
        reason: Option<&str>,
        fill: impl FnOnce(&mut TaskInstance),
    ) {
        let slot = &mut self.slots[at as usize];
        let from = slot.ti.state;
        let (attempt_before, node_before) = (slot.ti.attempt, slot.ti.node.clone());
        let to = from
            .apply(event)
            .unwrap_or_else(|illegal| panic!("{} of {}: {illegal}", slot.task_id, self.facts.run_id));
        self.changes.before.entry(at).or_insert((from, attempt_before));
        let ti = Arc::make_mut(&mut slot.ti);
        fill(ti);
        ti.state = to;
        ti.reason = reason.map(str::to_owned);
        self.changes.steps.push(Step {
            task: TaskNo(at),
            event,
            from,
            to,
            try_number: slot.ti.try_number,
            attempt: slot.ti.attempt.or(attempt_before),
            node: slot.ti.node.clone().or(node_before),
            reason: slot.ti.reason.clone(),
        });
        self.unfinished = self.unfinished + usize::from(!to.is_finished()) - usize::from(!from.is_finished());
        self.active = self.active + usize::from(is_active(to)) - usize::from(is_active(from));
        self.tell_downstream(at, from, to);
    }

    fn tell_downstream(&mut self, at: u32, from: TaskState, to: TaskState) {
        let Some(spec) = self.slots[at as usize].spec else { return };
        if !from.is_finished() && !to.is_finished() {
            return;
        }
        for &down in self.graph.downstream(spec) {
            let slot = self.slot_of[down as usize];
            if slot == u32::MAX {
                continue;
            }
            let tally = &mut self.slots[slot as usize].tally;
            tally.leave(from);
            tally.enter(to);
            self.dirty.insert(slot);
        }
    }

    fn count_upstreams(&mut self) {
        for at in 0..self.slots.len() {
            let Some(spec) = self.slots[at].spec else { continue };
            let states = self.graph.upstream(spec).iter().map(|up| {
                // An upstream that this run has no instance of is as good as removed.
                self.slots
                    .get(self.slot_of[*up as usize] as usize)
                    .map_or(TaskState::Removed, |slot| slot.ti.state)
            });
            self.slots[at].tally = Tally::of(states);
        }
    }
}

fn is_active(state: TaskState) -> bool {
    !state.is_finished() && state != TaskState::None
}

#[cfg(test)]
mod tests;
