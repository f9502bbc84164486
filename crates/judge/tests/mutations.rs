//! Goal: the checker catches every broken promise, and names the one that was broken.
//! Method: one good history, and mutations that break it in one way each.

mod support;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use tenure_judge::checker::{Promise, check, tell};
use tenure_judge::history::{History, RunName, TrailRow};
use tenure_judge::mutations;

#[test]
fn a_good_history_breaks_no_promise() {
    let verdict = check(&support::good());
    assert_eq!(verdict.violations, []);
    assert_eq!(verdict.counts.withdrawn, 1);
    assert_eq!(verdict.counts.given_up, 1);
    assert!(verdict.counts.reported_elsewhere > 0, "{:?}", verdict.counts);
    assert_eq!(verdict.gaps.len(), 1, "one fault has hit one scope");
    assert!(verdict.counts.filled > 2, "{:?}", verdict.counts);
}

#[test]
fn every_mutation_is_reported_as_the_promise_it_breaks_and_no_other() {
    let mut wrong = vec![];
    for mutation in mutations::ALL {
        let mut history = support::good();
        if (mutation.apply)(&mut history).is_none() {
            wrong.push(format!("{}: found nothing to break", mutation.name));
            continue;
        }
        let verdict = check(&history);
        let reported: BTreeSet<Promise> =
            verdict.violations.iter().map(|violation| violation.promise).collect();
        if reported != BTreeSet::from([mutation.breaks]) {
            let found: Vec<String> =
                verdict.violations.iter().map(|v| format!("{:?} {}", v.promise, v.what)).collect();
            wrong.push(format!("{} ({:?}): {found:#?}", mutation.name, mutation.breaks));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_has_a_mutation() {
    use Promise::*;
    let broken: BTreeSet<Promise> = mutations::ALL.iter().map(|mutation| mutation.breaks).collect();
    assert_eq!(broken, BTreeSet::from([P1, P2, P3, P4, P5, P6, P7, P8, P9, Story, Queued, Room]));
}

/// The attempt on the node that is lost; the next one is its successor.
fn with_a_lost_node() -> (History, usize) {
    let history = support::good();
    let lost =
        history.effects.iter().position(|effect| effect.end.is_none() && effect.starts[0].run.dag == "wide");
    (history, lost.expect("the good history has a lost node"))
}

/// It starts only when its silent node goes on, and is gone a moment later. When that is.
fn with_a_late_start() -> (History, usize, Timestamp) {
    let (mut history, lost) = with_a_lost_node();
    let fault = history.faults.iter_mut().find(|fault| !fault.silenced.is_empty()).unwrap();
    let starts = fault.at + millis(6_000);
    fault.until = starts;
    history.effects[lost].starts[0].at = starts;
    history.effects[lost].seen_at = starts + millis(1);
    (history, lost, starts)
}

fn millis(count: i64) -> SignedDuration {
    SignedDuration::from_millis(count)
}

#[test]
fn a_silenced_node_excuses_what_nobody_could_have_stopped() {
    let (mut history, lost) = with_a_lost_node();
    let again = history.effects[lost + 1].starts[0].at;
    history.effects[lost].seen_at = again + millis(1);
    let fault = history.faults.iter_mut().find(|fault| !fault.silenced.is_empty()).unwrap();
    fault.until = fault.at + SignedDuration::from_secs(6);
    let verdict = check(&history);
    assert_eq!(verdict.violations, []);
    assert_eq!(verdict.counts.excused_overlaps, 1);

    // Shorter than the threshold, it excuses nothing.
    let fault = history.faults.iter_mut().find(|fault| !fault.silenced.is_empty()).unwrap();
    fault.until = fault.at + SignedDuration::from_secs(4);
    let promises: Vec<Promise> =
        check(&history).violations.iter().map(|violation| violation.promise).collect();
    assert_eq!(promises, [Promise::P7]);
}

#[test]
fn what_was_given_up_before_its_start_is_excused_when_its_node_goes_on() {
    let (mut history, lost, starts) = with_a_late_start();
    history.effects[lost + 1].seen_at = starts + millis(1);
    let verdict = check(&history);
    assert_eq!((verdict.violations, verdict.counts.excused_overlaps), (vec![], 1));

    // Had its node been able to listen before that, somebody could have told it not to start.
    let fault = history.faults.iter_mut().find(|fault| !fault.silenced.is_empty()).unwrap();
    fault.until = starts - millis(1);
    let promises: Vec<Promise> =
        check(&history).violations.iter().map(|violation| violation.promise).collect();
    assert_eq!(promises, [Promise::P7]);
}

#[test]
fn an_excuse_for_one_overlap_is_none_for_the_next() {
    let (mut history, lost, starts) = with_a_late_start();
    history.effects[lost + 1].seen_at = starts + millis(3);
    let mut third = history.effects[lost].clone();
    third.attempt = "third".into();
    (third.starts[0].at, third.seen_at) = (starts + millis(2), starts + millis(2));
    history.effects.push(third);
    let overlaps: Vec<String> = check(&history)
        .violations
        .into_iter()
        .filter(|violation| violation.promise == Promise::P7)
        .map(|violation| violation.what)
        .collect();
    assert_eq!(overlaps.len(), 1, "{overlaps:?}");
    assert!(overlaps[0].contains(&history.effects[lost + 1].attempt) && overlaps[0].contains("third"));
}

#[test]
fn a_place_that_one_run_leaves_may_go_to_another_in_the_same_transaction_and_not_before() {
    let mut history = support::good();
    let tells = |row: &TrailRow, event: &str| row.entries.iter().any(|entry| entry.event == event);
    let end = history.trail.iter().position(|row| tells(row, "succeeded") && row.scope.is_some()).unwrap();
    let ended = history.trail[end].entries[0].clone();
    // The place that it leaves goes to a task of another run, in a row before its own.
    let next = history.trail[end + 1..].iter().position(|row| tells(row, "bound")).unwrap() + end + 1;
    let mut bound = history.trail.remove(next);
    bound
        .entries
        .iter_mut()
        .filter(|entry| entry.event == "bound")
        .for_each(|entry| entry.node = ended.node.clone());
    (bound.committed_at, bound.seq) = (history.trail[end].committed_at, history.trail[end].seq - 1);
    history.trail.insert(end, bound);
    let crowded = |history: &History| {
        check(history).violations.iter().any(|violation| violation.promise == Promise::Room)
    };
    assert!(!crowded(&history), "one transaction");
    history.trail[end].committed_at -= jiff::SignedDuration::from_micros(1);
    assert!(crowded(&history), "two of them");
}

#[test]
fn a_gap_is_blamed_on_the_latest_fault_of_its_scope() {
    let mut history = support::good();
    let fault = history.faults.iter_mut().find(|fault| fault.name == "kill-owner").unwrap();
    fault.bound = std::time::Duration::ZERO;
    let mut later = fault.clone();
    later.at += jiff::SignedDuration::from_micros(1);
    later.name = "hide-agents".into();
    later.bound = std::time::Duration::from_secs(5);
    let promises = |history: &History| -> Vec<Promise> {
        check(history).violations.iter().map(|violation| violation.promise).collect()
    };
    assert_eq!(promises(&history), [Promise::P9], "no time at all is too little");

    history.faults.push(later);
    let verdict = check(&history);
    assert_eq!(verdict.violations, [], "the second fault allows five seconds");
    let blamed: Vec<&str> = verdict.gaps.iter().map(|gap| gap.fault.as_str()).collect();
    assert_eq!(blamed, ["hide-agents"]);
}

#[test]
fn a_history_is_the_same_after_it_was_saved() {
    let history = support::good();
    let text = serde_json::to_string(&history).unwrap();
    assert_eq!(serde_json::from_str::<History>(&text).unwrap(), history);
}

#[test]
fn a_story_tells_trail_tasks_clients_and_faults_in_order() {
    let story = tell(&support::good(), &RunName::new("wide", "r1"));
    let at = |text: &str| story.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{story}"));
    assert!(at("client: trigger (key wide-r1), sent") < at("the run created"));
    assert!(at("fault: kill-owner of anna") < at("bert e2: task w withdrawn (queued → scheduled)"));
    assert!(at("starts") < at("ends with exit code 0"));
}
