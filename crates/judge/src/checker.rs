//! Holds a history against the promises of the design. Pure: a history in, a verdict out.
//!
//! Each promise has one place that reports it, so that a broken history names the promise it breaks and no other.
//! It does not repeat the product's own logic: what it knows of the life of a task is one small table in [`story`].

mod attempts;
mod gaps;
mod harm;
mod index;
mod owners;
mod requests;
mod room;
mod story;
mod tell;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use gaps::Gap;
pub use tell::tell;

use crate::history::{History, RunName};
use index::Index;

/// What is promised: P1 to P9 of the design, and three that stand beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Promise {
    /// One effective owner for each scope and epoch.
    P1,
    /// After an epoch has committed, nothing older does.
    P2,
    /// An attempt starts at most once, and only after its claim is committed.
    P3,
    /// Every acknowledged trigger and every due tick gives one run, and every run ends.
    P4,
    /// Terminal is final, except by a user's word.
    P5,
    /// Nothing that lived and could say so was given up.
    P6,
    /// Attempts of one task instance do not overlap.
    P7,
    /// What was acknowledged is there.
    P8,
    /// Scheduling goes on within its bound.
    P9,
    /// Legal steps only, and every story is complete.
    Story,
    /// `queued` is never immortal.
    Queued,
    /// No node and no pool ever holds more than it has.
    Room,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self {
            Self::P1 => "P1, one owner for each scope and epoch",
            Self::P2 => "P2, nothing of an older epoch after a newer one",
            Self::P3 => "P3, an attempt starts at most once and only after its claim",
            Self::P4 => "P4, one run for each trigger and tick, and every run ends",
            Self::P5 => "P5, terminal is final",
            Self::P6 => "P6, do no harm",
            Self::P7 => "P7, attempts of one task do not overlap",
            Self::P8 => "P8, what was acknowledged is there",
            Self::P9 => "P9, scheduling goes on within its bound",
            Self::Story => "the story of every task is legal and complete",
            Self::Queued => "queued is never immortal",
            Self::Room => "no node and no pool holds more than it has",
        };
        f.write_str(meaning)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub promise: Promise,
    /// The run concerned, where it is about one: [`tell`] has its story.
    pub run: Option<RunName>,
    pub what: String,
}

#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// For each fault and scope it hit, how long it took until scheduling went on.
    pub gaps: Vec<Gap>,
    pub counts: Counts,
}

/// How much the verdict rests on: a clean verdict over nothing says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub runs: usize,
    pub tasks: usize,
    pub attempts: usize,
    pub started: usize,
    /// Taken back without having begun, and placed again.
    pub withdrawn: usize,
    /// Ended without anybody saying how.
    pub given_up: usize,
    /// Written by a replica that does not own the shard.
    pub reported_elsewhere: usize,
    /// Highest epoch of any scope.
    pub epochs: u64,
    /// Overlaps of attempts whose node could not be told to stop, or whose owner did not know that it had been: the bound of
    /// P7 did not hold.
    pub excused_overlaps: usize,
    /// Placements that took the last of what a node or a pool had.
    pub filled: usize,
}

pub fn check(history: &History) -> Verdict {
    let index = Index::of(history);
    let mut verdict = Verdict::default();
    owners::check(&index, &mut verdict);
    attempts::check(&index, &mut verdict);
    story::check(&index, &mut verdict);
    requests::check(&index, &mut verdict);
    harm::check(&index, &mut verdict);
    gaps::check(&index, &mut verdict);
    room::check(&index, &mut verdict);
    count(&index, &mut verdict.counts);
    verdict.violations.sort_by_key(|violation| violation.promise);
    verdict
}

impl Verdict {
    pub(crate) fn violated(&mut self, promise: Promise, run: Option<&RunName>, what: String) {
        self.violations.push(Violation { promise, run: run.cloned(), what });
    }
}

fn count(index: &Index<'_>, counts: &mut Counts) {
    let history = index.history;
    counts.runs = history.runs.len();
    counts.tasks = history.tasks.len();
    counts.attempts = index.attempts.len();
    counts.started = history.effects.len();
    counts.withdrawn = index.attempts.values().filter(|life| life.ended_by("withdrawn")).count();
    counts.given_up = harm::given_up(index).count();
    let by_owner = |row: &&crate::history::TrailRow| row.scope.is_some();
    let reports = |entry: &crate::history::Entry| {
        matches!(entry.event.as_str(), "claimed" | "succeeded" | "failed" | "withdrawn")
    };
    let elsewhere = history.trail.iter().filter(|row| !by_owner(row));
    counts.reported_elsewhere = elsewhere.flat_map(|row| &row.entries).filter(|entry| reports(entry)).count();
    counts.epochs = history.fences.iter().map(|fence| fence.epoch).max().unwrap_or(0);
}
