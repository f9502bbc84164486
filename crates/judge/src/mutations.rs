//! Ways to break a good history, one promise at a time: the self-test of the checker.
//!
//! Each works on any history that has what it needs, synthetic or recorded. Whatever the checker answers to a
//! mutated history must name the broken promise and no other.

mod attempts;
mod owners;
mod requests;
mod rooms;
mod stories;

use jiff::{SignedDuration, Timestamp};

use crate::checker::Promise;
use crate::history::{Entry, Fault, History, RunName, TrailRow};

#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    pub name: &'static str,
    pub breaks: Promise,
    /// `None`: this history has nothing that could be broken in this way.
    pub apply: fn(&mut History) -> Option<()>,
}

pub const ALL: &[Mutation] = &[
    of("two holders write in one epoch", Promise::P1, owners::two_holders_in_one_epoch),
    of("an epoch is given out twice", Promise::P1, owners::epoch_given_out_twice),
    of("an epoch that is no term writes", Promise::P1, owners::epoch_without_a_term),
    of("an owner writes to another shard", Promise::P1, owners::writes_to_another_shard),
    of("a deposed owner's row comes after its successor's", Promise::P2, owners::epoch_moves_backwards),
    of("a deposed owner commits after its successor", Promise::P2, owners::late_commit_of_a_deposed_owner),
    of("a fence forgets an epoch", Promise::P2, owners::fence_forgets),
    of("an attempt starts twice", Promise::P3, attempts::duplicate_start),
    of("the claim that was committed is another attempt's", Promise::P3, attempts::claim_of_somebody_else),
    of("an attempt starts before its claim is committed", Promise::P3, attempts::start_before_the_claim),
    of("a process runs that the trail never knew", Promise::P3, attempts::unknown_process),
    of("an attempt id is used for two placements", Promise::P3, attempts::attempt_id_used_again),
    of("a trigger makes two runs", Promise::P4, requests::trigger_makes_two_runs),
    of("a run nobody asked for", Promise::P4, requests::unasked_run),
    of("a tick makes no run", Promise::P4, requests::tick_without_a_run),
    of("a tick makes two runs", Promise::P4, requests::tick_with_two_runs),
    of("a run never ends", Promise::P4, requests::run_never_ends),
    of("a refused trigger made a run", Promise::P4, requests::refused_and_yet_there),
    of("a finished task begins again by itself", Promise::P5, stories::finished_task_begins_again),
    of("a finished run is cleared and nobody had asked", Promise::P5, stories::cleared_by_nobody),
    of("a living task is reaped", Promise::P6, attempts::living_task_is_reaped),
    of("a task that has begun is taken back", Promise::P6, attempts::begun_task_is_taken_back),
    of("two attempts of a task overlap", Promise::P7, attempts::overlap),
    of("an acknowledged run is gone", Promise::P8, requests::acknowledged_run_is_gone),
    of("an acknowledged clear left no trace", Promise::P8, requests::acknowledged_clear_is_gone),
    of("an acknowledged cancel left no trace", Promise::P8, requests::acknowledged_cancel_is_gone),
    of("scheduling stands still after a fault", Promise::P9, owners::scheduling_stands_still),
    of("a cluster does not recover from a fault", Promise::P9, owners::cluster_stays_broken),
    of("a step of a task is missing", Promise::Story, stories::step_is_missing),
    of("two steps of a task change places", Promise::Story, stories::steps_change_places),
    of("a task succeeds that never ended", Promise::Story, stories::success_out_of_nothing),
    of("a task fails that has succeeded", Promise::Story, stories::failure_out_of_nothing),
    of("a run ends with a task that does not", Promise::Story, stories::run_ends_before_its_task),
    of("a table differs from the trail", Promise::Story, stories::table_differs_from_the_trail),
    of("a try is not kept", Promise::Story, stories::try_is_not_kept),
    of("a process outlives its run", Promise::Story, stories::process_outlives_its_run),
    of("an attempt stays queued for ever", Promise::Queued, attempts::immortal_queued),
    of("a task is placed on a node that is full", Promise::Room, rooms::placed_on_a_full_node),
    of(
        "a task is placed on a node that could never hold it",
        Promise::Room,
        rooms::node_smaller_than_its_task,
    ),
    of("a pool lends slots that it does not have", Promise::Room, rooms::pool_lends_what_it_has_not),
];

const fn of(name: &'static str, breaks: Promise, apply: fn(&mut History) -> Option<()>) -> Mutation {
    Mutation { name, breaks, apply }
}

/// An attempt that ended well, on a node that no fault had touched for long enough.
fn healthy_success(history: &History) -> Option<(RunName, String, String)> {
    let found = |row: &TrailRow| {
        let entry = row.entries.iter().find(|entry| {
            let node = entry.node.as_deref();
            entry.event == "succeeded"
                && entry.to == "success"
                && node.is_some_and(|node| could_speak(history, node, row.committed_at, row.committed_at))
        })?;
        Some((row.run.clone()?, entry.task.clone()?, entry.attempt.clone()?))
    };
    let all: Vec<_> = history.trail.iter().filter_map(found).collect();
    // The last word about its task, or the story would go on from the wrong state.
    all.into_iter().find(|(run, task, attempt)| {
        history.tasks.iter().any(|row| {
            row.run == *run
                && row.task == *task
                && row.state == "success"
                && row.attempt.as_ref() == Some(attempt)
        })
    })
}

/// No fault kept the node from speaking in this time, nor shortly before.
fn could_speak(history: &History, node: &str, from: Timestamp, until: Timestamp) -> bool {
    let margin = SignedDuration::try_from(history.limits.silence * 3).unwrap_or(SignedDuration::MAX);
    let silent = |fault: &Fault| {
        fault.at <= until
            && fault.until.duration_since(from) >= -margin
            && fault.silenced.iter().any(|name| name == node)
    };
    !history.faults.iter().any(silent)
}

fn entries(history: &mut History) -> impl Iterator<Item = &mut Entry> {
    history.trail.iter_mut().flat_map(|row| &mut row.entries)
}

fn speaks_of(row: &TrailRow, event: &str, attempt: &str) -> bool {
    row.entries.iter().any(|entry| entry.event == event && entry.attempt.as_deref() == Some(attempt))
}
