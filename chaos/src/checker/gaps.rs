//! P9: how long scheduling stood still after each fault, scope by scope.

use jiff::{SignedDuration, Timestamp};

use super::attempts::{seconds, signed};
use super::index::Index;
use super::{Promise, Verdict};
use crate::history::{Aftermath, Fault, Hit, TrailRow};

/// From a fault until the next pass of a scope that it hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Of the scenario.
    pub fault: String,
    pub scope: String,
    pub stood_still: SignedDuration,
}

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    for fault in &index.history.faults {
        for hit in &fault.hit {
            check_hit(index, fault, hit, verdict);
        }
        if fault.aftermath == Aftermath::Broken {
            let what = format!(
                "the cluster was not whole again after {} of {} at {}",
                fault.name, fault.target, fault.at
            );
            verdict.violated(Promise::P9, None, what);
        }
    }
}

fn check_hit(index: &Index<'_>, fault: &Fault, hit: &Hit, verdict: &mut Verdict) {
    let went_on = first_after(index, fault, hit).map(|row| row.committed_at);
    let until = went_on.unwrap_or(index.history.ended_at);
    let stood_still = until.duration_since(fault.at);
    if stood_still > signed(fault.bound) && work_was_waiting(index, fault, hit, until) {
        let how = if went_on.is_some() { "went on only after" } else { "had not gone on after" };
        let what = format!(
            "{}: {} of {} at {}, and it {how} {} (allowed: {})",
            hit.scope,
            fault.name,
            fault.target,
            fault.at,
            seconds(stood_still),
            seconds(signed(fault.bound))
        );
        verdict.violated(Promise::P9, None, what);
    }
    if went_on.is_some() {
        verdict.gaps.push(Gap { fault: fault.name.clone(), scope: hit.scope.clone(), stood_still });
    }
}

fn first_after<'a>(index: &Index<'a>, fault: &Fault, hit: &Hit) -> Option<&'a TrailRow> {
    let later = |row: &&TrailRow| {
        row.scope.as_ref() == Some(&hit.scope)
            && row.committed_at > fault.at
            && (!hit.deposed || row.epoch.is_some_and(|epoch| epoch > hit.epoch))
    };
    index.history.trail.iter().filter(later).min_by_key(|row| row.committed_at)
}

/// A scope without work has nothing to go on with. Work is a run that was created long enough ago and that its owner
/// had not begun: the harness gives its dags no limit that could keep a run waiting.
fn work_was_waiting(index: &Index<'_>, fault: &Fault, hit: &Hit, until: Timestamp) -> bool {
    let shard = hit.scope.rsplit_once('-').and_then(|(_, number)| number.parse::<u16>().ok());
    index.run_steps.iter().any(|(run, steps)| {
        let here = index.runs.get(run).is_some_and(|row| Some(row.shard) == shard);
        let created_early = steps
            .first()
            .is_some_and(|created| until.duration_since(created.row.committed_at) > signed(fault.bound));
        let begun = steps.get(1).is_some_and(|begun| begun.row.committed_at < until);
        here && created_early && !begun
    })
}
