//! Collects what a pass decides, run by run, into the transaction that the store writes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use tenure_dispatch::{Binding, Place};
use tenure_model::{AttemptId, NodeId, RunKey, RunState, TaskNo, TiKey};
use tenure_planner::{Changes, RunPlan, RunStep, Step};
use tenure_store::{AuditEntry, Pass, RunChange, StateChange, TiChange, TryRecord};

#[derive(Debug)]
pub(crate) struct PassBuilder {
    pub pass: Pass,
    runs: BTreeMap<RunKey, RunDraft>,
    /// To hand out after the commit.
    pub bindings: Vec<(Binding, Place)>,
    /// To stop after the commit.
    pub stops: Vec<(NodeId, AttemptId)>,
}

#[derive(Debug)]
struct RunDraft {
    change: RunChange,
    /// A task may be touched more than once in a pass; it is written once.
    tis: BTreeMap<TaskNo, TiChange>,
}

impl PassBuilder {
    pub fn new(now: Timestamp, actor: &str) -> Self {
        Self { pass: Pass::new(now, actor), runs: BTreeMap::new(), bindings: vec![], stops: vec![] }
    }

    /// Nothing of the run changes, but what is answered for it holds only if it is still as it was read.
    pub fn touch(&mut self, run: RunKey, revision: i64) {
        self.draft(run, revision);
    }

    /// Nothing that was decided about the run is written.
    pub fn forget(&mut self, run: RunKey) {
        self.runs.remove(&run);
    }

    /// Nothing of the run changes but its audit trail.
    pub fn parked(&mut self, run: RunKey, revision: i64, state: RunState, why: String) {
        let step = RunStep { from: state, to: state, at: self.pass.at, reason: Some(why) };
        let entry = AuditEntry { event: "parked".into(), ..run_entry(&step) };
        self.draft(run, revision).change.audit.push(entry);
    }

    pub fn add_result(&mut self, run: RunKey, revision: i64, ti: TiKey, value: Value) {
        self.draft(run, revision).change.results.push((ti, value));
    }

    pub fn add(&mut self, run: RunKey, revision: i64, plan: &RunPlan, changes: Changes) {
        let draft = self.draft(run, revision);
        // The story in its order: a run starts before its tasks move, and ends after them.
        let (ends, starts): (Vec<&RunStep>, Vec<&RunStep>) =
            changes.run.iter().partition(|step| step.to.is_finished());
        draft.change.audit.extend(starts.into_iter().map(run_entry));
        draft.change.audit.extend(changes.steps.iter().map(|step| step_entry(step, plan)));
        draft.change.audit.extend(ends.into_iter().map(run_entry));
        for step in &changes.run {
            draft.change.state = Some(match draft.change.state.take() {
                // Started and finished in one pass: the row goes straight to the end.
                Some(earlier) => StateChange { from: earlier.from, ..state_change(step) },
                None => state_change(step),
            });
        }
        for touched in changes.touched {
            let ti = TiKey::unmapped(run, touched.task);
            let (from, from_attempt) = match draft.tis.get(&touched.task) {
                Some(earlier) => (earlier.from, earlier.from_attempt),
                None => (touched.from, touched.from_attempt),
            };
            draft.tis.insert(touched.task, TiChange { ti, from, from_attempt, to: touched.to });
        }
        draft.change.past_tries.extend(changes.past_tries.into_iter().map(|(task, instance)| TryRecord {
            ti: TiKey::unmapped(run, task),
            task_id: plan.task_id(task).clone(),
            instance,
        }));
    }

    pub fn finish(&mut self) -> &Pass {
        self.pass.runs = std::mem::take(&mut self.runs)
            .into_values()
            .map(|draft| RunChange { tis: draft.tis.into_values().collect(), ..draft.change })
            .collect();
        &self.pass
    }

    fn draft(&mut self, run: RunKey, revision: i64) -> &mut RunDraft {
        self.runs.entry(run).or_insert_with(|| RunDraft {
            change: RunChange {
                run,
                revision,
                state: None,
                tis: vec![],
                past_tries: vec![],
                results: vec![],
                audit: vec![],
            },
            tis: BTreeMap::new(),
        })
    }
}

fn state_change(step: &RunStep) -> StateChange {
    StateChange { from: step.from, to: step.to, at: step.at, reason: step.reason.clone() }
}

fn run_entry(step: &RunStep) -> AuditEntry {
    AuditEntry {
        task: None,
        map_index: None,
        event: if step.to.is_finished() { "finished" } else { "started" }.into(),
        from: step.from.to_string(),
        to: step.to.to_string(),
        try_number: None,
        attempt: None,
        node: None,
        reason: step.reason.clone(),
    }
}

fn step_entry(step: &Step, plan: &RunPlan) -> AuditEntry {
    AuditEntry {
        task: Some(plan.task_id(step.task).clone()),
        map_index: None,
        event: step.event.past_tense().into(),
        from: step.from.to_string(),
        to: step.to.to_string(),
        try_number: (step.try_number > 0).then_some(step.try_number),
        attempt: step.attempt,
        node: step.node.clone(),
        reason: step.reason.clone(),
    }
}
