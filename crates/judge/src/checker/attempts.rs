//! P3, P7 and the patience of `queued`: the trail's word about attempts against what the tasks did.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::index::{Index, Life, TaskName};
use super::{Promise, Verdict};
use crate::history::{Effect, Fault};

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    for (attempt, life) in &index.attempts {
        bound_and_claimed_once(attempt, life, verdict);
        claimed_or_taken_back(index, attempt, life, verdict);
    }
    for effect in &index.history.effects {
        started_once_after_its_claim(index, effect, verdict);
    }
    no_overlap(index, verdict);
}

fn bound_and_claimed_once(attempt: &str, life: &Life<'_>, verdict: &mut Verdict) {
    if life.bound.len() != 1 {
        let what = format!("{}: attempt {attempt} was placed {} times", life.task, life.bound.len());
        verdict.violated(Promise::P3, Some(life.task.run), what);
    }
    if life.claimed.len() > 1 {
        let what = format!("{}: attempt {attempt} was claimed {} times", life.task, life.claimed.len());
        verdict.violated(Promise::P3, Some(life.task.run), what);
    }
}

fn claimed_or_taken_back(index: &Index<'_>, attempt: &str, life: &Life<'_>, verdict: &mut Verdict) {
    let Some(bound_at) = life.bound_at() else { return };
    let next = life.claimed.iter().chain(&life.rest).map(|step| step.row.committed_at).min();
    let waited = next.unwrap_or(index.history.ended_at).duration_since(bound_at);
    if waited > signed(index.history.limits.unclaimed) {
        let how = if next.is_some() { "only after" } else { "not even after" };
        let what = format!(
            "{}: attempt {attempt} was placed at {bound_at} and {how} {} claimed or taken back",
            life.task,
            seconds(waited)
        );
        verdict.violated(Promise::Queued, Some(life.task.run), what);
    }
}

fn started_once_after_its_claim(index: &Index<'_>, effect: &Effect, verdict: &mut Verdict) {
    let attempt = &effect.attempt;
    let Some(start) = effect.starts.first() else { return };
    let name = TaskName { run: &start.run, task: &start.task };
    let mut violated = |what: String| verdict.violated(Promise::P3, Some(&start.run), what);
    if effect.starts.len() > 1 {
        let times: Vec<String> = effect.starts.iter().map(|start| start.at.to_string()).collect();
        violated(format!("{name}: attempt {attempt} started {} times, at {}", times.len(), times.join(", ")));
    }
    let Some(life) = index.attempts.get(attempt.as_str()) else {
        return violated(format!(
            "{name}: attempt {attempt} started at {} and the trail never knew it",
            start.at
        ));
    };
    if life.task != name {
        violated(format!("attempt {attempt} of {} started as {name}", life.task));
    }
    match life.claimed.first().map(|step| step.row.committed_at) {
        None => violated(format!("{name}: attempt {attempt} started at {} and was never claimed", start.at)),
        Some(claimed) if claimed > start.at => violated(format!(
            "{name}: attempt {attempt} started at {}, and its claim was committed only at {claimed}",
            start.at
        )),
        Some(_) => {}
    }
}

fn no_overlap(index: &Index<'_>, verdict: &mut Verdict) {
    let mut by_task: BTreeMap<TaskName<'_>, Vec<&Effect>> = BTreeMap::new();
    for effect in &index.history.effects {
        if let Some(start) = effect.starts.first() {
            by_task.entry(TaskName { run: &start.run, task: &start.task }).or_default().push(effect);
        }
    }
    for (name, mut effects) in by_task {
        effects.sort_by_key(|effect| effect.starts[0].at);
        let started = |effect: &Effect| effect.starts[0].at;
        let pairs = effects
            .iter()
            .enumerate()
            .flat_map(|(at, later)| effects[..at].iter().map(move |earlier| (*earlier, *later)));
        for (earlier, later) in pairs.filter(|(earlier, later)| earlier.seen_at > started(later)) {
            if silenced(index, earlier)
                || given_up_before_its_start(index, later, earlier)
                || ended_by_hand_under_another_owner(index, earlier, later)
            {
                verdict.counts.excused_overlaps += 1;
                continue;
            }
            let what = format!(
                "{name}: attempt {} was alive at {}, when attempt {} had started at {}",
                earlier.attempt, earlier.seen_at, later.attempt, later.starts[0].at
            );
            verdict.violated(Promise::P7, Some(name.run), what);
        }
    }
}

/// Its node could neither speak nor listen for so long that it was given up: nobody could have stopped it.
fn silenced(index: &Index<'_>, effect: &Effect) -> bool {
    let Some(life) = index.attempts.get(effect.attempt.as_str()) else { return false };
    let nodes: Vec<&str> = life.bound.iter().filter_map(|step| step.entry.node.as_deref()).collect();
    let hit = |fault: &&Fault| fault.silenced.iter().any(|node| nodes.contains(&node.as_str()));
    let long = |fault: &&Fault| fault.until.duration_since(fault.at) > signed(index.history.limits.silence);
    let during = |fault: &Fault| fault.at <= effect.seen_at && fault.until >= effect.starts[0].at;
    index.history.faults.iter().filter(hit).filter(long).any(during)
}

/// Its node stood still between the claim and the start, for so long that it was given up and `next` was placed; it starts
/// when the node goes on, before anybody can tell it not to.
fn given_up_before_its_start(index: &Index<'_>, effect: &Effect, next: &Effect) -> bool {
    let life = |effect: &Effect| index.attempts.get(effect.attempt.as_str());
    let (Some(old), Some(new)) = (life(effect), life(next)) else { return false };
    let given_up = old.rest.first().map(|step| step.row.committed_at);
    given_up.is_some_and(|at| new.bound_at().is_some_and(|bound| at <= bound)) && silenced(index, effect)
}

/// A user ended the earlier one while it ran, and its shard has changed hands since: the new owner does not know that a
/// process is still being stopped.
fn ended_by_hand_under_another_owner(index: &Index<'_>, earlier: &Effect, later: &Effect) -> bool {
    let life = |effect: &Effect| index.attempts.get(effect.attempt.as_str());
    let (Some(earlier), Some(later)) = (life(earlier), life(later)) else { return false };
    let by_hand = earlier.rest.iter().any(|step| step.entry.event == "marked" && step.row.scope.is_none());
    let epoch = |life: &Life<'_>| life.bound.first().and_then(|step| step.row.epoch);
    by_hand && epoch(earlier) != epoch(later)
}

pub(super) fn signed(duration: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

pub(super) fn seconds(duration: SignedDuration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}
