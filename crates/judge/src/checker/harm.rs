//! P6: nothing that lived and could say so was given up.

use super::attempts::{seconds, signed};
use super::index::{Index, Life, Step};
use super::{Promise, Verdict};
use crate::history::{Effect, Fault};

/// How a task ends when somebody has seen it end, or has been asked to end it. Everything else is a presumption.
const KNOWN_ENDS: [&str; 6] =
    ["exit code ", "killed by ", "timed out ", "stopped on request", "could not start", "bad result"];

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    for (attempt, life, step) in given_up(index) {
        let Some(effect) = index.effects.get(attempt) else { continue };
        let lived_on = effect.seen_at > step.row.committed_at || effect.end.is_some();
        if lived_on && could_speak(index, life, step) {
            let what = format!(
                "{}: attempt {attempt} was given up at {} ({}), and {}",
                life.task,
                step.row.committed_at,
                step.entry.reason.as_deref().unwrap_or("no reason"),
                life_of(effect, step)
            );
            verdict.violated(Promise::P6, Some(life.task.run), what);
        }
    }
    for (attempt, life) in &index.attempts {
        let taken_back = life.rest.iter().find(|step| {
            // What was asked to stop and has said that it did may have run: its node was to be emptied.
            let stopped =
                step.entry.reason.as_deref().is_some_and(|why| why.starts_with("stopped on request"));
            step.entry.event == "withdrawn" && step.entry.to == "scheduled" && !stopped
        });
        if let (Some(step), Some(effect)) = (taken_back, index.effects.get(attempt)) {
            let what = format!(
                "{}: attempt {attempt} was taken back at {} as never begun ({}), and it had begun at {}",
                life.task,
                step.row.committed_at,
                step.entry.reason.as_deref().unwrap_or("no reason"),
                effect.starts.first().map_or(effect.seen_at, |start| start.at)
            );
            verdict.violated(Promise::P6, Some(life.task.run), what);
        }
    }
}

/// Attempts that failed without anybody having seen how.
pub(super) fn given_up<'i, 'a>(
    index: &'i Index<'a>,
) -> impl Iterator<Item = (&'a str, &'i Life<'a>, &'i Step<'a>)> {
    index.attempts.iter().flat_map(|(attempt, life)| {
        let presumed = |step: &&Step<'a>| {
            let reason = step.entry.reason.as_deref().unwrap_or_default();
            // A cleared task that ends counts as cleared, however it ended.
            step.entry.event == "failed"
                && step.entry.from != "restarting"
                && !KNOWN_ENDS.iter().any(|known| reason.starts_with(known))
        };
        life.rest.iter().filter(presumed).map(move |step| (*attempt, life, step))
    })
}

/// No fault kept its node from speaking in the time that decides about it.
fn could_speak(index: &Index<'_>, life: &Life<'_>, step: &Step<'_>) -> bool {
    let nodes: Vec<&str> = life.bound.iter().filter_map(|bound| bound.entry.node.as_deref()).collect();
    let given_up_at = step.row.committed_at;
    let since = given_up_at - signed(index.history.limits.silence) * 2;
    let silenced = |fault: &Fault| {
        fault.at <= given_up_at
            && fault.until >= since
            && fault.silenced.iter().any(|node| nodes.contains(&node.as_str()))
    };
    !index.history.faults.iter().any(silenced)
}

fn life_of(effect: &Effect, step: &Step<'_>) -> String {
    match effect.end {
        Some(end) => format!("it ended with exit code {} at {}", end.code, end.at),
        None => {
            format!("it lived for {} more", seconds(effect.seen_at.duration_since(step.row.committed_at)))
        }
    }
}
