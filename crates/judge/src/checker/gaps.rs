//! P9: how long scheduling stood still after each fault, scope by scope.
//!
//! Standing still counts from the fault, or from the first work that came after it, until a task that was placed
//! since then may start. A scope that had nothing to do has no gap.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::attempts::{seconds, signed};
use super::index::Index;
use super::{Promise, Verdict};
use crate::history::{Aftermath, Fault, Hit, RunName};

/// From a fault until the next task of a scope that it hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Of the scenario.
    pub fault: String,
    pub scope: String,
    pub stood_still: SignedDuration,
}

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    let work = Work::of(index);
    for fault in &index.history.faults {
        for hit in &fault.hit {
            check_hit(index, &work, fault, hit, verdict);
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

/// What there was to do in each scope, and when it was done.
struct Work<'a> {
    placements: BTreeMap<&'a str, Vec<Placement>>,
    runs: BTreeMap<u16, Vec<Begun>>,
}

/// A task that was placed, and when it was allowed to start.
struct Placement {
    epoch: u64,
    placed_at: Timestamp,
    claimed_at: Timestamp,
}

struct Begun {
    created_at: Timestamp,
    begun_at: Option<Timestamp>,
    /// From then on there was nothing to do in it, although nothing has been done.
    gone_at: Option<Timestamp>,
}

impl<'a> Work<'a> {
    fn of(index: &Index<'a>) -> Self {
        let mut work = Self { placements: BTreeMap::new(), runs: BTreeMap::new() };
        let mut could_start: BTreeSet<&RunName> = BTreeSet::new();
        for life in index.attempts.values() {
            let (Some(bound), Some(claimed)) = (life.bound.first(), life.claimed.first()) else { continue };
            could_start.extend(&claimed.row.run);
            let (Some(scope), Some(epoch)) = (&bound.row.scope, bound.row.epoch) else { continue };
            let (placed_at, claimed_at) = (bound.row.committed_at, claimed.row.committed_at);
            work.placements.entry(scope).or_default().push(Placement { epoch, placed_at, claimed_at });
        }
        for (run, steps) in &index.run_steps {
            let (Some(row), Some(created)) = (index.runs.get(run), steps.first()) else { continue };
            let begun = steps.get(1);
            if begun.is_some_and(|begun| begun.row.scope.is_none()) {
                continue; // a user ended it before anybody could begin it: nobody's work
            }
            let begun_at = begun.map(|begun| begun.row.committed_at);
            let created_at = created.row.committed_at;
            // A user who ends it before any of its tasks could start takes the work away.
            let by_user = steps.iter().skip(1).find(|step| step.row.scope.is_none());
            let gone_at = by_user.map(|step| step.row.committed_at).filter(|_| !could_start.contains(run));
            work.runs.entry(row.shard).or_default().push(Begun { created_at, begun_at, gone_at });
        }
        work
    }

    /// When the first task that was placed after the fault was allowed to start.
    fn next_start(&self, fault: &Fault, hit: &Hit) -> Option<Timestamp> {
        let placements = self.placements.get(hit.scope.as_str()).into_iter().flatten();
        let since = placements.filter(|placement| {
            placement.placed_at > fault.at && (!hit.deposed || placement.epoch > hit.epoch)
        });
        since.map(|placement| placement.claimed_at).min()
    }

    /// The longest time after the fault, up to `until`, for which the scope's owner had something to place: a run that was
    /// created and not begun. From when to when. The harness gives its dags no limit that could keep a run waiting.
    fn waiting(&self, fault: &Fault, hit: &Hit, until: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let shard: u16 = hit.scope.rsplit_once('-')?.1.parse().ok()?;
        let open =
            self.runs.get(&shard).into_iter().flatten().filter(|run| {
                run.created_at < until && run.begun_at.is_none_or(|begun_at| begun_at > fault.at)
            });
        let times = open.map(|run| {
            let since = run.created_at.max(fault.at);
            (since, run.gone_at.map_or(until, |gone| gone.clamp(since, until)))
        });
        times.max_by_key(|(since, until)| until.duration_since(*since))
    }
}

fn check_hit(index: &Index<'_>, work: &Work<'_>, fault: &Fault, hit: &Hit, verdict: &mut Verdict) {
    let went_on = work.next_start(fault, hit);
    // What happens after the scope was hit again is for that fault to answer for.
    let hit_again =
        next_hit(index, fault, hit).filter(|again| went_on.is_none_or(|went_on| *again < went_on));
    let next = hit_again.or(went_on).unwrap_or(index.history.ended_at);
    let Some((since, until)) = work.waiting(fault, hit, next) else { return };
    let stood_still = until.duration_since(since);
    if stood_still > signed(fault.bound) {
        let how = if hit_again.is_none() && went_on.is_some() { "went on only" } else { "had not gone on" };
        let what = format!(
            "{}: {} of {} at {}; there was work from {since} on, and it {how} after {} (allowed: {})",
            hit.scope,
            fault.name,
            fault.target,
            fault.at,
            seconds(stood_still),
            seconds(signed(fault.bound))
        );
        verdict.violated(Promise::P9, None, what);
    }
    if hit_again.is_none() && until == next {
        verdict.gaps.push(Gap { fault: fault.name.clone(), scope: hit.scope.clone(), stood_still });
    }
}

/// When a later fault hit the same scope.
fn next_hit(index: &Index<'_>, fault: &Fault, hit: &Hit) -> Option<Timestamp> {
    let later = index.history.faults.iter().filter(|other| other.at > fault.at);
    later.filter(|other| other.hit.iter().any(|again| again.scope == hit.scope)).map(|other| other.at).min()
}
