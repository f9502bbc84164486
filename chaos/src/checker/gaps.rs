//! P9: how long scheduling stood still after each fault, scope by scope.
//!
//! Standing still counts from the fault, or from the first work that came after it, until a task that was placed
//! since then may start. A scope that had nothing to do has no gap.

use jiff::{SignedDuration, Timestamp};

use super::attempts::{seconds, signed};
use super::index::{Index, Life};
use super::{Promise, Verdict};
use crate::history::{Aftermath, Fault, Hit};

/// From a fault until the next task of a scope that it hit.
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
    let went_on = next_start(index, fault, hit);
    let until = went_on.unwrap_or(index.history.ended_at);
    let Some(since) = waiting_since(index, fault, hit, until) else { return };
    let stood_still = until.duration_since(since);
    if stood_still > signed(fault.bound) {
        let how = if went_on.is_some() { "went on only after" } else { "had not gone on after" };
        let what = format!(
            "{}: {} of {} at {}; there was work from {since} on, and it {how} {} (allowed: {})",
            hit.scope,
            fault.name,
            fault.target,
            fault.at,
            seconds(stood_still),
            seconds(signed(fault.bound))
        );
        verdict.violated(Promise::P9, None, what);
    }
    verdict.gaps.push(Gap { fault: fault.name.clone(), scope: hit.scope.clone(), stood_still });
}

/// When the first task that was placed after the fault was allowed to start.
fn next_start(index: &Index<'_>, fault: &Fault, hit: &Hit) -> Option<Timestamp> {
    let placed_since = |life: &&Life<'_>| {
        life.bound.iter().any(|bound| {
            bound.row.scope.as_ref() == Some(&hit.scope)
                && bound.row.committed_at > fault.at
                && (!hit.deposed || bound.row.epoch.is_some_and(|epoch| epoch > hit.epoch))
        })
    };
    let claims = index.attempts.values().filter(placed_since).flat_map(|life| &life.claimed);
    claims.map(|claim| claim.row.committed_at).min()
}

/// The first moment after the fault at which the scope's owner had something to place: a run that was created and
/// not begun. The harness gives its dags no limit that could keep a run waiting.
fn waiting_since(index: &Index<'_>, fault: &Fault, hit: &Hit, until: Timestamp) -> Option<Timestamp> {
    let shard = hit.scope.rsplit_once('-').and_then(|(_, number)| number.parse::<u16>().ok());
    let of_shard = index
        .run_steps
        .iter()
        .filter(|(run, _)| index.runs.get(*run).is_some_and(|row| Some(row.shard) == shard));
    let waiting = of_shard.filter_map(|(_, steps)| {
        let created_at = steps.first()?.row.committed_at;
        let begun_at = steps.get(1).map(|begun| begun.row.committed_at);
        let open = created_at < until && begun_at.is_none_or(|begun| begun > fault.at);
        open.then_some(created_at.max(fault.at))
    });
    waiting.min()
}
