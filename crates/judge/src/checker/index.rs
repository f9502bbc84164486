//! The history, looked up from every side that the checks need.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::history::{Call, Effect, Entry, History, RunName, RunRow, TrailRow};

pub(super) struct Index<'a> {
    pub history: &'a History,
    pub runs: BTreeMap<&'a RunName, &'a RunRow>,
    /// By idempotency key.
    pub keyed: BTreeMap<&'a str, Vec<&'a RunRow>>,
    /// Everything that was written about each run, in order.
    pub rows: BTreeMap<&'a RunName, Vec<&'a TrailRow>>,
    /// What the trail says of each run itself, in order.
    pub run_steps: BTreeMap<&'a RunName, Vec<Step<'a>>>,
    /// What the trail says of each task instance, in order.
    pub task_steps: BTreeMap<TaskName<'a>, Vec<Step<'a>>>,
    pub attempts: BTreeMap<&'a str, Life<'a>>,
    /// Tries that were followed by another one.
    pub tries: BTreeSet<(TaskName<'a>, u32)>,
    pub calls: BTreeMap<&'a RunName, Vec<&'a Call>>,
    pub effects: BTreeMap<&'a str, &'a Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskName<'a> {
    pub run: &'a RunName,
    pub task: &'a str,
}

impl std::fmt::Display for TaskName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.run, self.task)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub row: &'a TrailRow,
    pub entry: &'a Entry,
}

/// One attempt as the trail tells it.
#[derive(Debug)]
pub(super) struct Life<'a> {
    pub task: TaskName<'a>,
    pub bound: Vec<Step<'a>>,
    pub claimed: Vec<Step<'a>>,
    /// Everything after that, in order.
    pub rest: Vec<Step<'a>>,
}

impl Life<'_> {
    pub fn ended_by(&self, event: &str) -> bool {
        self.rest.iter().any(|step| step.entry.event == event)
    }

    pub fn bound_at(&self) -> Option<Timestamp> {
        self.bound.first().map(|step| step.row.committed_at)
    }
}

impl<'a> Index<'a> {
    pub fn of(history: &'a History) -> Self {
        let mut index = Self {
            history,
            runs: history.runs.iter().map(|row| (&row.name, row)).collect(),
            keyed: BTreeMap::new(),
            rows: BTreeMap::new(),
            run_steps: BTreeMap::new(),
            task_steps: BTreeMap::new(),
            attempts: BTreeMap::new(),
            tries: history
                .tries
                .iter()
                .map(|row| (TaskName { run: &row.run, task: &row.task }, row.try_number))
                .collect(),
            calls: BTreeMap::new(),
            effects: history.effects.iter().map(|effect| (effect.attempt.as_str(), effect)).collect(),
        };
        for row in &history.runs {
            if let Some(key) = &row.idempotency_key {
                index.keyed.entry(key).or_default().push(row);
            }
        }
        for call in &history.calls {
            index.calls.entry(&call.run).or_default().push(call);
        }
        for row in &history.trail {
            let Some(run) = &row.run else { continue };
            index.rows.entry(run).or_default().push(row);
            for entry in &row.entries {
                index.enter(run, Step { row, entry });
            }
        }
        index
    }

    fn enter(&mut self, run: &'a RunName, step: Step<'a>) {
        let Some(task) = &step.entry.task else {
            self.run_steps.entry(run).or_default().push(step);
            return;
        };
        let task = TaskName { run, task };
        self.task_steps.entry(task).or_default().push(step);
        let Some(attempt) = &step.entry.attempt else { return };
        let life = self.attempts.entry(attempt).or_insert_with(|| Life {
            task,
            bound: vec![],
            claimed: vec![],
            rest: vec![],
        });
        match step.entry.event.as_str() {
            "bound" => life.bound.push(step),
            "claimed" => life.claimed.push(step),
            _ => life.rest.push(step),
        }
    }
}
