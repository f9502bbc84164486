//! P5, and that every story is legal and complete: each step begins where the last one ended, and the last one
//! ends where the tables are.

use std::collections::BTreeMap;

use super::index::{Index, Step, TaskName};
use super::{Promise, Verdict};
use crate::history::{Answer, Asked, RunName, TaskRow};

/// A task that is seen within this time before the end of the history is still running.
const STILL_THERE_MS: i64 = 500;

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    for (run, steps) in &index.run_steps {
        check_run(index, run, steps, verdict);
    }
    for run in index.runs.keys().filter(|run| !index.run_steps.contains_key(*run)) {
        verdict.violated(
            Promise::Story,
            Some(run),
            format!("{run} is there and the trail never mentions it"),
        );
    }
    let rows: BTreeMap<TaskName<'_>, &TaskRow> =
        index.history.tasks.iter().map(|row| (TaskName { run: &row.run, task: &row.task }, row)).collect();
    for (name, steps) in &index.task_steps {
        check_task(index, *name, steps, rows.get(name).copied(), verdict);
    }
    for (name, row) in &rows {
        check_row(index, *name, row, verdict);
    }
    nothing_left_running(index, verdict);
}

fn check_run(index: &Index<'_>, run: &RunName, steps: &[Step<'_>], verdict: &mut Verdict) {
    let mut state = "";
    for step in steps.iter().filter(|step| changes_run(&step.entry.event)) {
        let (event, from, to) = (step.entry.event.as_str(), step.entry.from.as_str(), step.entry.to.as_str());
        if from != state {
            let what = format!(
                "the story of {run} has a gap: {} (row {}) after {state:?}",
                said(step),
                step.row.seq
            );
            verdict.violated(Promise::Story, Some(run), what);
        } else if run_ended(from) {
            by_a_user(index, run, &run.to_string(), step, verdict);
        } else if !legal_for_run(event, from, to) {
            let what = format!("{run} took an illegal step: {} (row {})", said(step), step.row.seq);
            verdict.violated(Promise::Story, Some(run), what);
        }
        state = to;
    }
    if let Some(row) = index.runs.get(run).filter(|row| row.state != state) {
        let what = format!("{run} is {:?} in the tables and {state:?} at the end of the trail", row.state);
        verdict.violated(Promise::Story, Some(run), what);
    }
}

fn check_task(
    index: &Index<'_>,
    name: TaskName<'_>,
    steps: &[Step<'_>],
    row: Option<&TaskRow>,
    verdict: &mut Verdict,
) {
    let mut state = "none";
    for step in steps {
        let (from, to) = (step.entry.from.as_str(), step.entry.to.as_str());
        if from != state {
            let what = format!(
                "the story of {name} has a gap: {} (row {}) after {state:?}",
                said(step),
                step.row.seq
            );
            verdict.violated(Promise::Story, Some(name.run), what);
        } else if ended(from) {
            by_a_user(index, name.run, &name.to_string(), step, verdict);
        } else if !legal_for_task(&step.entry.event, from, to) {
            let what = format!("{name} took an illegal step: {} (row {})", said(step), step.row.seq);
            verdict.violated(Promise::Story, Some(name.run), what);
        }
        end_as_it_was(index, name, step, verdict);
        state = to;
    }
    tries_are_kept(index, name, steps, verdict);
    if let Some(row) = row.filter(|row| row.state != state) {
        let what = format!("{name} is {:?} in the tables and {state:?} at the end of the trail", row.state);
        verdict.violated(Promise::Story, Some(name.run), what);
    }
}

/// The tables alone: an ended run has ended tasks, and nothing moves without a trace.
fn check_row(index: &Index<'_>, name: TaskName<'_>, row: &TaskRow, verdict: &mut Verdict) {
    let over = index.runs.get(name.run).is_some_and(|run| run_ended(&run.state));
    if over && !ended(&row.state) {
        let what = format!("{} has ended, and its task {} is {:?}", name.run, name.task, row.state);
        verdict.violated(Promise::Story, Some(name.run), what);
    }
    if row.state != "none" && !index.task_steps.contains_key(&name) {
        let what = format!("{name} is {:?} and the trail never mentions it", row.state);
        verdict.violated(Promise::Story, Some(name.run), what);
    }
}

/// The outcome that was written down is the one that the task had.
fn end_as_it_was(index: &Index<'_>, name: TaskName<'_>, step: &Step<'_>, verdict: &mut Verdict) {
    let Some(attempt) = &step.entry.attempt else { return };
    let expected = match step.entry.event.as_str() {
        "succeeded" => Some(0),
        "failed" => {
            step.entry.reason.as_deref().and_then(|reason| reason.strip_prefix("exit code ")?.parse().ok())
        }
        _ => None,
    };
    let Some(expected): Option<i32> = expected else { return };
    let end = index.effects.get(attempt.as_str()).and_then(|effect| effect.end);
    if end.is_some_and(|end| end.code == expected && end.at <= step.row.committed_at) {
        return;
    }
    let truth = match end {
        Some(end) => format!("the task ended with exit code {} at {}", end.code, end.at),
        None => "the task never ended".to_owned(),
    };
    let what =
        format!("{name}: {} (row {}, {}), but {truth}", said(step), step.row.seq, step.row.committed_at);
    verdict.violated(Promise::Story, Some(name.run), what);
}

fn tries_are_kept(index: &Index<'_>, name: TaskName<'_>, steps: &[Step<'_>], verdict: &mut Verdict) {
    let retried = steps.iter().filter(|step| step.entry.event == "retried");
    let before = retried.filter_map(|step| step.entry.try_number?.checked_sub(1));
    for number in before.filter(|number| !index.tries.contains(&(name, *number))) {
        let what = format!("{name} was tried again, and its try {number} is not kept");
        verdict.violated(Promise::Story, Some(name.run), what);
    }
}

fn nothing_left_running(index: &Index<'_>, verdict: &mut Verdict) {
    for effect in index.history.effects.iter().filter(|effect| effect.end.is_none()) {
        let Some(start) = effect.starts.first() else { continue };
        let over = index.runs.get(&start.run).is_some_and(|run| run_ended(&run.state));
        let unseen_for = index.history.ended_at.duration_since(effect.seen_at);
        if over && unseen_for.as_millis() < i128::from(STILL_THERE_MS) {
            let what = format!(
                "{} has ended, and attempt {} of {} still runs",
                start.run, effect.attempt, start.task
            );
            verdict.violated(Promise::Story, Some(&start.run), what);
        }
    }
}

/// Out of a terminal state leads only a clear or a mark that a client has asked for.
fn by_a_user(index: &Index<'_>, run: &RunName, subject: &str, step: &Step<'_>, verdict: &mut Verdict) {
    let explicit = matches!(step.entry.event.as_str(), "cleared" | "marked") && step.row.scope.is_none();
    let asked = index.calls.get(run).into_iter().flatten().any(|call| {
        matches!(call.what, Asked::Clear { .. } | Asked::End { .. })
            && call.sent_at <= step.row.committed_at
            && call.answer != Answer::Refused
    });
    if !(explicit && asked) {
        let why = if explicit { "and nobody had asked for it" } else { "by itself" };
        let what = format!("{subject} left a terminal state {why}: {} (row {})", said(step), step.row.seq);
        verdict.violated(Promise::P5, Some(run), what);
    }
}

fn said(step: &Step<'_>) -> String {
    format!("{} {} → {}", step.entry.event, step.entry.from, step.entry.to)
}

pub(super) fn ended(state: &str) -> bool {
    matches!(state, "success" | "failed" | "skipped" | "upstream_failed" | "removed")
}

pub(super) fn run_ended(state: &str) -> bool {
    matches!(state, "success" | "failed")
}

/// Other entries about a run, such as a note, move nothing.
fn changes_run(event: &str) -> bool {
    matches!(event, "created" | "started" | "finished" | "cleared" | "marked")
}

fn legal_for_run(event: &str, from: &str, to: &str) -> bool {
    match event {
        "created" => from.is_empty() && to == "queued",
        "started" => from == "queued" && to == "running",
        "finished" => matches!(from, "queued" | "running") && run_ended(to),
        "marked" => run_ended(to),
        _ => false,
    }
}

/// From states that are not terminal.
fn legal_for_task(event: &str, from: &str, to: &str) -> bool {
    match event {
        "scheduled" => (from, to) == ("none", "scheduled"),
        "completed" => (from, to) == ("none", "success"),
        "upstream_failed" => (from, to) == ("none", "upstream_failed"),
        "skipped" => matches!((from, to), ("none" | "running", "skipped") | ("restarting", "none")),
        "bound" => (from, to) == ("scheduled", "queued"),
        "claimed" => (from, to) == ("queued", "running"),
        "withdrawn" => matches!((from, to), ("queued" | "running", "scheduled") | ("restarting", "none")),
        "succeeded" => matches!((from, to), ("running", "success") | ("restarting", "none")),
        "failed" => {
            matches!((from, to), ("queued" | "running", "up_for_retry" | "failed") | ("restarting", "none"))
        }
        "retried" => (from, to) == ("up_for_retry", "scheduled"),
        "run_ended" => to == "skipped",
        "removed" => to == "removed",
        "marked" => matches!(to, "success" | "failed" | "skipped"),
        "cleared" if matches!(from, "running" | "restarting") => to == "restarting",
        "cleared" => to == "none",
        _ => false,
    }
}
