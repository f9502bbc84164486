//! P1, P2 and P9: wrong epochs, wrong owners, no owner.

use std::time::Duration;

use jiff::SignedDuration;

use crate::history::{Aftermath, Fault, History, Hit, TrailRow};

pub(super) fn two_holders_in_one_epoch(history: &mut History) -> Option<()> {
    let owned = |row: &&TrailRow| row.epoch.is_some();
    let first = history.trail.iter().find(owned)?;
    let authority = (first.scope.clone(), first.epoch);
    let second = history.trail.iter_mut().filter(|row| (row.scope.clone(), row.epoch) == authority).nth(1)?;
    second.actor += "'";
    Some(())
}

pub(super) fn epoch_given_out_twice(history: &mut History) -> Option<()> {
    let mut term = history.terms.first()?.clone();
    term.term += "'";
    history.terms.push(term);
    Some(())
}

pub(super) fn epoch_without_a_term(history: &mut History) -> Option<()> {
    let row = history.trail.iter().find(|row| row.epoch.is_some())?;
    let (scope, epoch) = (row.scope.clone()?, row.epoch?);
    let before = history.terms.len();
    history.terms.retain(|term| (&term.scope, term.epoch) != (&scope, epoch));
    (before > history.terms.len() && !history.terms.is_empty()).then_some(())
}

pub(super) fn writes_to_another_shard(history: &mut History) -> Option<()> {
    let owned = history.trail.iter().find(|row| row.epoch.is_some() && row.run.is_some())?;
    let run = owned.run.clone()?;
    let row = history.runs.iter_mut().find(|row| row.name == run)?;
    row.shard += 1;
    Some(())
}

pub(super) fn epoch_moves_backwards(history: &mut History) -> Option<()> {
    let (earlier, later) = change_of_epoch(history)?;
    // A row about nothing, so that no story is touched.
    let stale = TrailRow { run: None, entries: vec![], ..history.trail[earlier].clone() };
    let at = history.trail[later].committed_at;
    let seq = history.trail.last()?.seq + 1;
    history.trail.push(TrailRow { seq, committed_at: at, ..stale });
    Some(())
}

pub(super) fn late_commit_of_a_deposed_owner(history: &mut History) -> Option<()> {
    let (earlier, later) = change_of_epoch(history)?;
    let after = history.trail[later].committed_at + SignedDuration::from_micros(1);
    let seq = history.trail[earlier].seq;
    let stale =
        TrailRow { run: None, entries: vec![], seq, committed_at: after, ..history.trail[earlier].clone() };
    history.trail.insert(earlier, stale);
    Some(())
}

pub(super) fn fence_forgets(history: &mut History) -> Option<()> {
    let used = history.trail.iter().rev().find(|row| row.epoch.is_some())?;
    let (scope, epoch) = (used.scope.clone()?, used.epoch?);
    history.fences.iter_mut().find(|fence| fence.scope == scope)?.epoch = epoch.checked_sub(1)?;
    Some(())
}

pub(super) fn scheduling_stands_still(history: &mut History) -> Option<()> {
    // A fault just before a run was created, that allows no time at all.
    let run = history.runs.iter().find(|run| {
        let words = history.trail.iter().filter(|row| row.run.as_ref() == Some(&run.name));
        words.flat_map(|row| &row.entries).any(|entry| entry.event == "claimed")
    })?;
    let of_run: Vec<&TrailRow> =
        history.trail.iter().filter(|row| row.run.as_ref() == Some(&run.name)).collect();
    let at = of_run.first()?.committed_at - SignedDuration::from_micros(1);
    let scope = of_run.iter().find_map(|row| row.scope.clone())?;
    history.faults.push(Fault {
        name: "standstill".into(),
        target: "the owner".into(),
        at,
        until: at,
        silenced: vec![],
        hit: vec![Hit { scope, epoch: 0, deposed: false }],
        bound: Duration::ZERO,
        aftermath: Aftermath::Unwatched,
    });
    Some(())
}

pub(super) fn cluster_stays_broken(history: &mut History) -> Option<()> {
    history.faults.first_mut()?.aftermath = Aftermath::Broken;
    Some(())
}

/// Two rows of one scope under different epochs: the last of the earlier one, the first of the later one.
fn change_of_epoch(history: &History) -> Option<(usize, usize)> {
    let owned: Vec<usize> =
        (0..history.trail.len()).filter(|at| history.trail[*at].epoch.is_some()).collect();
    owned.iter().find_map(|&later| {
        let scope = &history.trail[later].scope;
        let same = |at: &&usize| **at < later && history.trail[**at].scope == *scope;
        let earlier = *owned.iter().rev().find(same)?;
        (history.trail[earlier].epoch < history.trail[later].epoch).then_some((earlier, later))
    })
}
