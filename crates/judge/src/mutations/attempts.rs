//! P3, P6, P7 and the patience of `queued`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{could_speak, entries, healthy_success, speaks_of};
use crate::history::{Effect, End, Entry, History, RunName, Start, TrailRow};

pub(super) fn duplicate_start(history: &mut History) -> Option<()> {
    let effect = history.effects.iter_mut().find(|effect| effect.seen_at > effect.starts[0].at)?;
    let again = Start { at: effect.seen_at, ..effect.starts[0].clone() };
    effect.starts.push(again);
    Some(())
}

pub(super) fn claim_of_somebody_else(history: &mut History) -> Option<()> {
    let victim = history.effects.first()?.attempt.clone();
    let claim =
        entries(history).find(|entry| entry.event == "claimed" && entry.attempt.as_ref() == Some(&victim))?;
    claim.attempt = None;
    Some(())
}

pub(super) fn start_before_the_claim(history: &mut History) -> Option<()> {
    let victim = history.effects.first()?.attempt.clone();
    let claimed = |row: &&TrailRow| speaks_of(row, "claimed", &victim);
    let claimed_at = history.trail.iter().find(claimed)?.committed_at;
    history.effects[0].starts[0].at = claimed_at - SignedDuration::from_millis(1);
    Some(())
}

pub(super) fn unknown_process(history: &mut History) -> Option<()> {
    let effect = history.effects.last()?;
    // Later than everything else that this task did: an unknown process need not overlap.
    let at = history.ended_at - SignedDuration::from_secs(1);
    let start = Start { at, ..effect.starts[0].clone() };
    let attempt = format!("{}-unknown", effect.attempt);
    history.effects.push(Effect {
        attempt,
        starts: vec![start],
        seen_at: at,
        end: Some(End { at, code: 0 }),
    });
    Some(())
}

pub(super) fn attempt_id_used_again(history: &mut History) -> Option<()> {
    let bound: Vec<String> = history
        .trail
        .iter()
        .flat_map(|row| &row.entries)
        .filter(|entry| entry.event == "bound")
        .filter_map(|entry| entry.attempt.clone())
        .collect();
    // One that never ran, so that nothing else is untrue of it.
    let withdrawn = entries(history).find(|entry| entry.event == "withdrawn")?.attempt.clone()?;
    let other = bound.into_iter().find(|attempt| *attempt != withdrawn)?;
    entries(history)
        .find(|entry| entry.event == "bound" && entry.attempt.as_ref() == Some(&withdrawn))?
        .attempt = Some(other);
    Some(())
}

pub(super) fn living_task_is_reaped(history: &mut History) -> Option<()> {
    let (run, task, attempt) = healthy_success(history)?;
    let end = entries(history)
        .find(|entry| entry.event == "succeeded" && entry.attempt.as_ref() == Some(&attempt))?;
    end.event = "failed".into();
    end.to = "failed".into();
    end.reason = Some("silent for 90 s".into());
    history.tasks.iter_mut().find(|row| row.run == run && row.task == task)?.state = "failed".into();
    Some(())
}

pub(super) fn begun_task_is_taken_back(history: &mut History) -> Option<()> {
    let withdrawn = |row: &TrailRow| {
        let entry = row
            .entries
            .iter()
            .find(|entry| entry.event == "withdrawn" && entry.to == "scheduled" && entry.attempt.is_some())?;
        Some((row.run.clone()?, entry.task.clone()?, entry.attempt.clone()?, row.committed_at))
    };
    let (run, task, attempt, at) = history.trail.iter().find_map(withdrawn)?;
    if !history.trail.iter().any(|row| speaks_of(row, "claimed", &attempt)) {
        // It needs a claim to have begun: the story gets one.
        let row = history.trail.iter_mut().find(|row| speaks_of(row, "bound", &attempt))?;
        let bound = row
            .entries
            .iter()
            .position(|entry| entry.event == "bound" && entry.attempt.as_ref() == Some(&attempt))?;
        let claim = Entry {
            event: "claimed".into(),
            from: "queued".into(),
            to: "running".into(),
            ..row.entries[bound].clone()
        };
        row.entries.insert(bound + 1, claim);
        let taken_back = entries(history)
            .find(|entry| entry.event == "withdrawn" && entry.attempt.as_ref() == Some(&attempt))?;
        taken_back.from = "running".into();
    }
    let start = Start { at, run, task };
    history.effects.push(Effect { attempt, starts: vec![start], seen_at: at, end: None });
    Some(())
}

pub(super) fn overlap(history: &mut History) -> Option<()> {
    let mut by_task: BTreeMap<(&RunName, &str), Vec<usize>> = BTreeMap::new();
    for (at, effect) in history.effects.iter().enumerate() {
        by_task.entry((&effect.starts[0].run, &effect.starts[0].task)).or_default().push(at);
    }
    let began = |at: usize| history.effects[at].starts[0].at;
    let mut pairs = by_task.into_values().flat_map(|mut attempts| {
        attempts.sort_by_key(|at| began(*at));
        attempts.windows(2).map(|pair| (pair[0], began(pair[1]))).collect::<Vec<(usize, Timestamp)>>()
    });
    // Longer life on a node that was silenced would be excused, and an exit would be dated after its report.
    let (victim, next) = pairs.find(|(at, next)| {
        let effect = &history.effects[*at];
        let node = node_of(history, &effect.attempt);
        node.is_some_and(|node| could_speak(history, node, effect.starts[0].at, *next))
    })?;
    drop(pairs);
    history.effects[victim].seen_at = next + SignedDuration::from_millis(1);
    Some(())
}

pub(super) fn immortal_queued(history: &mut History) -> Option<()> {
    let limit = SignedDuration::try_from(history.limits.unclaimed).ok()?;
    let claimed = |row: &&TrailRow| row.entries.iter().any(|entry| entry.event == "claimed");
    let attempt = history.effects.first()?.attempt.clone();
    let claimed_at =
        history.trail.iter().filter(claimed).find(|row| speaks_of(row, "claimed", &attempt))?.committed_at;
    let bound = history.trail.iter_mut().find(|row| speaks_of(row, "bound", &attempt))?;
    let at = bound
        .entries
        .iter()
        .position(|entry| entry.event == "bound" && entry.attempt.as_ref() == Some(&attempt))?;
    // Only this entry moves: a row of its own, in the same place of the order, with an earlier date.
    let entry = bound.entries.remove(at);
    let earlier: Vec<Entry> = bound.entries.drain(..at).collect();
    let seq = bound.seq;
    let row = bound.clone();
    let here = history.trail.iter().position(|row| row.seq == seq)?;
    let alone = TrailRow {
        committed_at: claimed_at - limit - SignedDuration::from_secs(1),
        entries: vec![entry],
        // Nobody's authority: epochs are another promise.
        scope: None,
        epoch: None,
        ..row.clone()
    };
    history.trail.insert(here, alone);
    history.trail.insert(here, TrailRow { entries: earlier, ..row });
    Some(())
}

fn node_of<'a>(history: &'a History, attempt: &str) -> Option<&'a str> {
    let mut entries = history.trail.iter().flat_map(|row| &row.entries);
    let bound = |entry: &&Entry| entry.event == "bound" && entry.attempt.as_deref() == Some(attempt);
    entries.find(bound)?.node.as_deref()
}
