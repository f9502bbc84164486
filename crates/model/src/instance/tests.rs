//! Goal: a report moves a task instance exactly when it is about the attempt that the row names and still waits for.
//! Method: one instance in each state, one report, the new state as text.

use uuid::Uuid;

use super::*;
use crate::FailReason;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

const CURRENT: AttemptId = AttemptId(Uuid::from_u128(1));
const STALE: AttemptId = AttemptId(Uuid::from_u128(2));

/// In its first try of two, with an attempt on a node; claimed at second 10 where it has been claimed.
fn instance(state: TaskState) -> TaskInstance {
    let claimed = !matches!(state, TaskState::Queued | TaskState::None | TaskState::Scheduled);
    TaskInstance {
        state,
        try_number: 1,
        attempt: Some(CURRENT),
        node: Some(NodeId::new("n1")),
        queued_at: Some(at(5)),
        started_at: claimed.then(|| at(10)),
        ended_at: state.is_finished().then(|| at(15)),
        ..TaskInstance::untouched(1)
    }
}

fn failed() -> Outcome {
    Outcome::Failed { reason: FailReason::Exit { code: 3 } }
}

fn outcome_of(told: &Told) -> String {
    let to = told.step.as_ref().map_or("stays", |step| step.to.state.as_str());
    format!("{:?} {to}", told.verdict).to_lowercase()
}

#[test]
fn a_claim_starts_what_is_queued_and_nothing_else() {
    for state in TaskState::ALL {
        let expected = match state {
            TaskState::Queued => "applied running",
            TaskState::Running => "repeated stays",
            TaskState::Restarting => "superseded none",
            _ => "superseded stays",
        };
        assert_eq!(outcome_of(&instance(state).claim(CURRENT, at(20))), expected, "{state}");
        assert_eq!(outcome_of(&instance(state).claim(STALE, at(20))), "superseded stays", "{state}");
    }
}

#[test]
fn an_end_is_taken_from_the_bound_attempt_only() {
    let check = |state, outcome: &Outcome, expected: &str| {
        assert_eq!(
            outcome_of(&instance(state).end(CURRENT, outcome, at(20))),
            expected,
            "{state} {outcome:?}"
        );
        assert_eq!(outcome_of(&instance(state).end(STALE, outcome, at(20))), "superseded stays", "{state}");
    };
    check(TaskState::Running, &Outcome::Success, "applied success");
    check(TaskState::Running, &Outcome::Skipped, "applied skipped");
    check(TaskState::Running, &failed(), "applied up_for_retry");
    check(TaskState::Running, &Outcome::NeverStarted, "applied scheduled");
    check(TaskState::Queued, &Outcome::Success, "superseded stays");
    check(TaskState::Queued, &Outcome::Skipped, "superseded stays");
    check(TaskState::Queued, &failed(), "applied up_for_retry");
    check(TaskState::Queued, &Outcome::NeverStarted, "applied scheduled");
    for outcome in [Outcome::Success, Outcome::Skipped, failed(), Outcome::NeverStarted] {
        check(TaskState::Restarting, &outcome, "applied none");
        for state in TaskState::ALL.into_iter().filter(|state| !state.is_bound()) {
            check(state, &outcome, "superseded stays");
        }
    }
}

#[test]
fn what_was_stopped_on_request_is_placed_again_as_the_same_try() {
    let stopped = Outcome::Failed { reason: FailReason::Stopped };
    let last_try = TaskInstance { try_number: 2, ..instance(TaskState::Running) };
    for running in [instance(TaskState::Running), last_try] {
        let step = running.end(CURRENT, &stopped, at(20)).step.expect("a step");
        assert_eq!((step.event, step.to.state), (TaskEvent::Withdraw, TaskState::Scheduled));
        assert_eq!((step.to.try_number, step.to.attempt, step.to.node), (running.try_number, None, None));
        assert_eq!(step.past_try, None);
    }
    // A cleared one is stopped too, and that is another story.
    assert_eq!(outcome_of(&instance(TaskState::Restarting).end(CURRENT, &stopped, at(20))), "applied none");
}

#[test]
fn the_last_try_fails_for_good() {
    let last = TaskInstance { try_number: 2, ..instance(TaskState::Running) };
    assert_eq!(outcome_of(&last.end(CURRENT, &failed(), at(20))), "applied failed");
}

#[test]
fn a_step_says_what_happened_and_when() {
    let claimed = instance(TaskState::Queued).claim(CURRENT, at(20)).step.expect("a step");
    assert_eq!((claimed.event, claimed.to.started_at), (TaskEvent::Claim, Some(at(20))));
    let ended = claimed.to.end(CURRENT, &failed(), at(30)).step.expect("a step");
    assert_eq!((ended.to.ended_at, ended.to.reason.as_deref()), (Some(at(30)), Some("exit code 3")));
    assert_eq!(ended.past_try, None, "it goes to history when the next try begins");
}

#[test]
fn a_task_does_not_end_before_it_began_whatever_the_agents_clock_says() {
    let ended = instance(TaskState::Running).end(CURRENT, &Outcome::Success, at(3)).step.expect("a step");
    assert_eq!(ended.to.ended_at, Some(at(10)));
}

#[test]
fn a_withdrawn_attempt_leaves_the_try_and_nothing_of_the_placement() {
    let withdrawn = instance(TaskState::Running).withdrawn("not claimed in time", at(20)).to;
    let expected = TaskInstance {
        state: TaskState::Scheduled,
        try_number: 1,
        reason: Some("not claimed in time".into()),
        ..TaskInstance::untouched(1)
    };
    assert_eq!(withdrawn, expected);
}

#[test]
fn a_task_cleared_while_running_starts_over_with_the_tries_that_the_clear_has_granted() {
    let restarting = TaskInstance { max_tries: 3, ..instance(TaskState::Restarting) };
    let step = restarting.end(CURRENT, &Outcome::Success, at(20)).step.expect("a step");
    let fresh = TaskInstance { try_number: 1, reason: step.to.reason.clone(), ..TaskInstance::untouched(3) };
    assert_eq!(step.to, fresh);
    let past = step.past_try.expect("history");
    assert_eq!((past.state, past.attempt, past.ended_at), (TaskState::Failed, Some(CURRENT), Some(at(20))));
}

#[test]
fn what_could_not_be_delivered_counts_only_while_nobody_has_claimed_it() {
    let broken = FailReason::CannotStart { error: "no such secret".into() };
    for (state, failure, expected) in [
        (TaskState::Queued, None, "applied scheduled"),
        (TaskState::Queued, Some(&broken), "applied up_for_retry"),
        (TaskState::Running, None, "superseded stays"),
        (TaskState::Running, Some(&broken), "superseded stays"),
        (TaskState::Restarting, None, "superseded stays"),
        (TaskState::Success, None, "superseded stays"),
    ] {
        let told = instance(state).undelivered(CURRENT, failure, at(20));
        assert_eq!(outcome_of(&told), expected, "{state:?} {failure:?}");
    }
    assert_eq!(outcome_of(&instance(TaskState::Queued).undelivered(STALE, None, at(20))), "superseded stays");
}
