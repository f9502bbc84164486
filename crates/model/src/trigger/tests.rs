//! Goal: all thirteen rules answer as documented for every combination of outcomes of up to three
//! upstreams. Method: the rules written a second time, as the sentences of the documentation.

use super::*;

const OUTCOMES: [TaskState; 6] = [
    TaskState::Running, // stands for everything unfinished
    TaskState::Success,
    TaskState::Failed,
    TaskState::UpstreamFailed,
    TaskState::Skipped,
    TaskState::Removed,
];

fn combinations(upstreams: usize) -> Vec<Vec<TaskState>> {
    (0..upstreams).fold(vec![vec![]], |shorter, _| {
        shorter
            .iter()
            .flat_map(|states| OUTCOMES.map(|outcome| states.iter().copied().chain([outcome]).collect()))
            .collect()
    })
}

/// The documented table, read from left to right: when it runs, otherwise what.
fn as_documented(rule: TriggerRule, states: &[TaskState]) -> Verdict {
    use TaskState::{Failed, Removed, Running, Skipped, Success, UpstreamFailed};
    let any = |wanted: &[TaskState]| states.iter().any(|state| wanted.contains(state));
    let all = |wanted: &[TaskState]| states.iter().all(|state| wanted.contains(state));
    let done = !any(&[Running]);
    let first = |table: &[(bool, Verdict)]| {
        table.iter().find(|(holds, _)| *holds).map_or(Verdict::Wait, |(_, verdict)| *verdict)
    };
    use Verdict::{Run, Skip, UpstreamFail};
    match rule {
        _ if states.is_empty() => Run,
        TriggerRule::Always => Run,
        TriggerRule::AllSuccess => first(&[
            (all(&[Success, Removed]), Run),
            (any(&[Failed, UpstreamFailed]), UpstreamFail),
            (any(&[Skipped]), Skip),
        ]),
        TriggerRule::AllFailed => {
            first(&[(all(&[Failed, UpstreamFailed, Removed]), Run), (any(&[Success, Skipped]), Skip)])
        }
        TriggerRule::AllDone | TriggerRule::AllDoneSetupSuccess => first(&[(done, Run)]),
        TriggerRule::OneSuccess => first(&[
            (any(&[Success]), Run),
            (done && any(&[Skipped]) && all(&[Skipped, Removed]), Skip),
            (done, UpstreamFail),
        ]),
        TriggerRule::OneFailed => first(&[(any(&[Failed, UpstreamFailed]), Run), (done, Skip)]),
        TriggerRule::OneDone => first(&[(any(&[Success, Failed]), Run), (done, Skip)]),
        TriggerRule::NoneFailed => {
            first(&[(all(&[Success, Skipped, Removed]), Run), (any(&[Failed, UpstreamFailed]), UpstreamFail)])
        }
        TriggerRule::NoneFailedMinOneSuccess => first(&[
            (any(&[Failed, UpstreamFailed]), UpstreamFail),
            (all(&[Success, Skipped, Removed]) && any(&[Success]), Run),
            (all(&[Skipped]), Skip),
            (done, UpstreamFail),
        ]),
        TriggerRule::NoneSkipped => first(&[(any(&[Skipped]), Skip), (done, Run)]),
        TriggerRule::AllSkipped => {
            first(&[(all(&[Skipped]), Run), (any(&[Success, Failed, UpstreamFailed]), Skip), (done, Skip)])
        }
        TriggerRule::AllDoneMinOneSuccess => {
            first(&[(any(&[Skipped]), Skip), (done && any(&[Success]), Run), (done, UpstreamFail)])
        }
    }
}

#[test]
fn every_rule_follows_the_table_for_up_to_three_upstreams() {
    let mut checked = 0;
    for upstreams in 0..=3 {
        for states in combinations(upstreams) {
            for rule in TriggerRule::ALL {
                let verdict = rule.verdict(&Tally::of(states.iter().copied()));
                assert_eq!(verdict, as_documented(rule, &states), "{} with {states:?}", rule.as_str());
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 13 * (1 + 6 + 36 + 216));
}

#[test]
fn no_rule_waits_once_every_upstream_is_done() {
    for states in combinations(3).iter().filter(|states| !states.contains(&TaskState::Running)) {
        for rule in TriggerRule::ALL {
            assert_ne!(
                rule.verdict(&Tally::of(states.iter().copied())),
                Verdict::Wait,
                "{rule:?} {states:?}"
            );
        }
    }
}

#[test]
fn a_verdict_once_given_is_not_taken_back_by_later_outcomes() {
    // Scheduling acts as soon as a verdict is there, so more news must not contradict it. The rules
    // that fire on the first success or failure are the exception by design: they stay with `Run`.
    for states in combinations(3).iter().filter(|states| states.contains(&TaskState::Running)) {
        for rule in TriggerRule::ALL {
            let early = rule.verdict(&Tally::of(states.iter().copied()));
            if early == Verdict::Wait {
                continue;
            }
            for outcome in [TaskState::Success, TaskState::Removed] {
                let later = states.iter().map(|s| if *s == TaskState::Running { outcome } else { *s });
                assert_eq!(rule.verdict(&Tally::of(later)), early, "{rule:?} {states:?} then {outcome}");
            }
        }
    }
}
