//! P4 and P8: what clients and timetables asked for against what is there.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::attempts::signed;
use super::index::Index;
use super::story::run_ended;
use super::{Promise, Verdict};
use crate::history::{Answer, Asked, Call, Schedule};

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    triggers(index, verdict);
    every_run_ends(index, verdict);
    for schedule in &index.history.schedules {
        ticks(index, schedule, verdict);
    }
    for call in index.history.calls.iter().filter(|call| call.answer == Answer::Acknowledged) {
        acknowledged(index, call, verdict);
    }
}

fn triggers(index: &Index<'_>, verdict: &mut Verdict) {
    for run in index.history.runs.iter().filter(|run| !run.scheduled && run.idempotency_key.is_none()) {
        verdict.violated(Promise::P4, Some(&run.name), format!("nobody asked for {}", run.name));
    }
    let mut asked = BTreeSet::new();
    for call in &index.history.calls {
        let Asked::Trigger { key } = &call.what else { continue };
        asked.insert(key.as_str());
        let runs = index.keyed.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        match (call.answer, runs.len()) {
            (_, 2..) => {
                let names: Vec<String> = runs.iter().map(|run| run.name.to_string()).collect();
                let what = format!("one trigger (key {key}) made {} runs: {}", runs.len(), names.join(", "));
                verdict.violated(Promise::P4, Some(&call.run), what);
            }
            (Answer::Refused, 1) => {
                let what = format!("the trigger of {} was refused, and yet it is there", call.run);
                verdict.violated(Promise::P4, Some(&call.run), what);
            }
            // Told that it is there, and it is not: that is for `acknowledged` to say.
            (Answer::Acknowledged | Answer::Unknown | Answer::Refused, 0)
            | (Answer::Acknowledged | Answer::Unknown, 1) => {}
        }
    }
    for (key, runs) in index.keyed.iter().filter(|(key, _)| !asked.contains(*key)) {
        for run in runs {
            verdict.violated(
                Promise::P4,
                Some(&run.name),
                format!("nobody asked for {} (key {key})", run.name),
            );
        }
    }
}

fn every_run_ends(index: &Index<'_>, verdict: &mut Verdict) {
    for run in index.history.runs.iter().filter(|run| !run_ended(&run.state)) {
        verdict.violated(
            Promise::P4,
            Some(&run.name),
            format!("{} never ended: it is {:?}", run.name, run.state),
        );
    }
}

fn ticks(index: &Index<'_>, schedule: &Schedule, verdict: &mut Verdict) {
    let mut found: BTreeMap<Timestamp, usize> = BTreeMap::new();
    for run in index.history.runs.iter().filter(|run| run.scheduled && run.name.dag == schedule.dag) {
        match run.logical_date {
            Some(date) => *found.entry(date).or_default() += 1,
            None => {
                let what = format!("{} was made by a timetable and has no date", run.name);
                verdict.violated(Promise::P4, Some(&run.name), what);
            }
        }
    }
    let dag = &schedule.dag;
    for (date, count) in found.iter().filter(|(_, count)| **count > 1) {
        verdict.violated(Promise::P4, None, format!("{dag}: the tick of {date} made {count} runs"));
    }
    let settled = index.history.ended_at - signed(index.history.limits.tick_lateness);
    let mut due = schedule.first;
    while due <= schedule.until.min(index.history.ended_at) {
        if found.remove(&due).is_none() && due <= settled {
            verdict.violated(Promise::P4, None, format!("{dag}: the tick of {due} made no run"));
        }
        due += signed(schedule.every);
    }
    for date in found.keys() {
        verdict.violated(Promise::P4, None, format!("{dag}: there is a run for {date}, which is no tick"));
    }
}

fn acknowledged(index: &Index<'_>, call: &Call, verdict: &mut Verdict) {
    let run = &call.run;
    let mut violated = |what: String| verdict.violated(Promise::P8, Some(run), what);
    match &call.what {
        Asked::Trigger { key } => {
            if !index.keyed.contains_key(key.as_str()) {
                violated(format!("the trigger of {run} (key {key}) was acknowledged, and it is not there"));
            }
        }
        Asked::Clear { cleared } => {
            if *cleared > 0 && !said_meanwhile(index, call, "cleared") {
                violated(format!(
                    "{} asked at {} to clear {run}: acknowledged, and not in the trail",
                    "a client", call.sent_at
                ));
            }
        }
        Asked::End { state } => {
            if !said_meanwhile(index, call, "marked") && state_at(index, call) != Some(state) {
                violated(format!(
                    "ending {run} as {state} was acknowledged at {}, and not in the trail",
                    call.answered_at
                ));
            }
        }
    }
}

/// A user's word of this kind about the run was committed between question and answer.
fn said_meanwhile(index: &Index<'_>, call: &Call, event: &str) -> bool {
    index.rows.get(&call.run).into_iter().flatten().any(|row| {
        row.scope.is_none()
            && (call.sent_at..=call.answered_at).contains(&row.committed_at)
            && row.entries.iter().any(|entry| entry.event == event)
    })
}

/// What the trail says the run was when the answer came.
fn state_at<'a>(index: &Index<'a>, call: &Call) -> Option<&'a String> {
    let steps = index.run_steps.get(&call.run)?;
    let before = steps.iter().rev().find(|step| step.row.committed_at <= call.answered_at)?;
    Some(&before.entry.to)
}
