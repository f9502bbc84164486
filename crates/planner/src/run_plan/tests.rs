//! Goal: a run always ends as its tasks' outcomes and rules say, and planning is idempotent.
//! Method: facts about small runs, then random dags played to the end with random outcomes.

use proptest::prelude::*;
use std::time::Duration;
use tenure_model::{DagSpec, FailReason, TriggerRule};
use uuid::Uuid;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn attempt(number: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(number))
}

fn exec(id: &str) -> TaskSpec {
    TaskSpec::new(id, TaskKind::Exec { argv: vec!["true".into()] })
}

/// Of a run that is under way.
fn facts(spec: &DagSpec) -> RunFacts {
    RunFacts {
        dag: spec.id.clone(),
        run_id: RunId::new("r"),
        logical_date: None,
        state: RunState::Running,
        started_at: Some(at(0)),
        read_at: at(0),
    }
}

fn running(spec: DagSpec) -> RunPlan {
    let tis =
        spec.tasks.iter().map(|task| (task.id.clone(), TaskInstance::untouched(task.retries))).collect();
    let facts = RunFacts { state: RunState::Queued, started_at: None, ..facts(&spec) };
    let mut plan = RunPlan::new(facts, Arc::new(DagGraph::new(Arc::new(spec))), tis);
    plan.start(at(0));
    plan
}

fn states(plan: &RunPlan) -> String {
    plan.tasks().map(|(_, ti)| ti.state.as_str()).collect::<Vec<_>>().join(" ")
}

/// Binds and claims a scheduled task, then ends it.
fn play(plan: &mut RunPlan, task: u32, outcome: Outcome, now: Timestamp) {
    let id = attempt(u128::from(task) + 1000 * u128::from(plan.task(TaskNo(task)).unwrap().try_number));
    plan.bind(TaskNo(task), id, NodeId::new("n"), now);
    assert_eq!(plan.claim(TaskNo(task), id, now), ClaimVerdict::Granted);
    assert_eq!(plan.end(TaskNo(task), id, &outcome, now), EndVerdict::Applied);
}

fn failed() -> Outcome {
    Outcome::Failed { reason: FailReason::Exit { code: 1 } }
}

#[test]
fn a_chain_advances_one_task_at_a_time_and_ends_in_success() {
    let mut plan = running(DagSpec::new("d", vec![exec("a"), exec("b").needs(&["a"])]));
    plan.plan(at(1));
    assert_eq!(states(&plan), "scheduled none");
    play(&mut plan, 0, Outcome::Success, at(2));
    plan.plan(at(2));
    assert_eq!(states(&plan), "success scheduled");
    play(&mut plan, 1, Outcome::Success, at(3));
    plan.plan(at(3));
    assert_eq!((states(&plan).as_str(), plan.state()), ("success success", RunState::Success));
}

#[test]
fn a_failed_leaf_fails_the_run_and_a_handled_failure_does_not() {
    let recover = TaskSpec { trigger_rule: TriggerRule::OneFailed, ..exec("recover").needs(&["a"]) };
    let mut plan = running(DagSpec::new("d", vec![exec("a"), recover, exec("c").needs(&["a"])]));
    plan.plan(at(1));
    play(&mut plan, 0, failed(), at(2));
    plan.plan(at(2));
    assert_eq!(states(&plan), "failed scheduled upstream_failed");
    play(&mut plan, 1, Outcome::Success, at(3));
    plan.plan(at(3));
    assert_eq!(plan.state(), RunState::Failed, "c is a leaf and upstream_failed");

    let recover = TaskSpec { trigger_rule: TriggerRule::OneFailed, ..exec("recover").needs(&["a"]) };
    let mut plan = running(DagSpec::new("d", vec![exec("a"), recover]));
    plan.plan(at(1));
    play(&mut plan, 0, failed(), at(2));
    plan.plan(at(2));
    play(&mut plan, 1, Outcome::Success, at(3));
    plan.plan(at(3));
    assert_eq!(plan.state(), RunState::Success);
}

#[test]
fn a_failed_try_waits_its_delay_and_keeps_its_history() {
    let task = TaskSpec { retries: 1, retry_delay: Duration::from_secs(60), ..exec("a") };
    let mut plan = running(DagSpec::new("d", vec![task]));
    plan.plan(at(1));
    play(&mut plan, 0, failed(), at(10));
    plan.plan(at(10));
    assert_eq!((states(&plan).as_str(), plan.next_wake()), ("up_for_retry", Some(at(70))));
    plan.plan(at(69));
    assert_eq!(states(&plan), "up_for_retry");
    plan.take_changes();
    plan.plan(at(70));
    assert_eq!(states(&plan), "scheduled");
    let changes = plan.take_changes();
    assert_eq!(changes.past_tries.len(), 1);
    assert_eq!(changes.past_tries[0].1.reason.as_deref(), Some("exit code 1"));
    assert_eq!(plan.task(TaskNo(0)).unwrap().try_number, 2);
    play(&mut plan, 0, failed(), at(80));
    plan.plan(at(80));
    assert_eq!((states(&plan).as_str(), plan.state()), ("failed", RunState::Failed));
}

#[test]
fn empty_tasks_succeed_in_one_planning_however_deep() {
    let tasks = (0..1_000).map(|n| {
        let task = TaskSpec::new(format!("t{n}"), TaskKind::Empty);
        if n == 0 { task } else { task.needs(&[&format!("t{}", n - 1)]) }
    });
    let mut plan = running(DagSpec::new("d", tasks.collect()));
    plan.plan(at(1));
    assert_eq!(plan.state(), RunState::Success);
    assert_eq!(plan.take_changes().touched.len(), 1_000);
}

#[test]
fn a_run_past_its_timeout_fails_and_skips_what_is_unfinished() {
    let spec = DagSpec {
        run_timeout: Some(Duration::from_secs(30)),
        ..DagSpec::new("d", vec![exec("a"), exec("b")])
    };
    let mut plan = running(spec);
    plan.plan(at(1));
    play(&mut plan, 0, Outcome::Success, at(2));
    assert_eq!(plan.next_wake(), Some(at(30)));
    plan.plan(at(30));
    assert_eq!((states(&plan).as_str(), plan.state()), ("success skipped", RunState::Failed));
    assert_eq!(plan.take_changes().run.last().unwrap().reason.as_deref(), Some("run timed out after 30s"));
}

#[test]
fn a_stale_attempt_is_superseded_everywhere() {
    let mut plan = running(DagSpec::new("d", vec![exec("a")]));
    plan.plan(at(1));
    plan.bind(TaskNo(0), attempt(1), NodeId::new("n"), at(1));
    plan.withdraw(TaskNo(0), "not claimed in time", at(2));
    plan.bind(TaskNo(0), attempt(2), NodeId::new("n"), at(2));
    assert_eq!(plan.claim(TaskNo(0), attempt(1), at(3)), ClaimVerdict::Superseded);
    assert_eq!(plan.end(TaskNo(0), attempt(1), &Outcome::Success, at(3)), EndVerdict::Superseded);
    assert_eq!(plan.claim(TaskNo(0), attempt(2), at(3)), ClaimVerdict::Granted);
    assert_eq!(plan.claim(TaskNo(0), attempt(2), at(4)), ClaimVerdict::Repeated);
    assert_eq!(plan.task(TaskNo(0)).unwrap().try_number, 1, "a withdrawn attempt costs no try");
}

#[test]
fn an_unclaimed_attempt_cannot_succeed() {
    let mut plan = running(DagSpec::new("d", vec![exec("a")]));
    plan.plan(at(1));
    plan.bind(TaskNo(0), attempt(1), NodeId::new("n"), at(1));
    assert_eq!(plan.end(TaskNo(0), attempt(1), &Outcome::Success, at(2)), EndVerdict::Superseded);
    assert_eq!(states(&plan), "queued");
}

#[test]
fn a_task_cleared_while_running_starts_over_once_its_process_has_ended() {
    let spec = DagSpec::new("d", vec![TaskSpec { retries: 2, ..exec("a") }]);
    let ti = TaskInstance {
        state: TaskState::Restarting,
        try_number: 2,
        attempt: Some(attempt(7)),
        node: Some(NodeId::new("n")),
        ..TaskInstance::untouched(4) // two more, as the clear has granted
    };
    let facts = facts(&spec);
    let mut plan = RunPlan::new(facts, Arc::new(DagGraph::new(Arc::new(spec))), vec![(TaskId::new("a"), ti)]);
    plan.plan(at(1));
    assert_eq!(states(&plan), "restarting");
    plan.end(TaskNo(0), attempt(7), &Outcome::Failed { reason: FailReason::Stopped }, at(2));
    plan.plan(at(2));
    let ti = plan.task(TaskNo(0)).unwrap();
    assert_eq!((ti.state, ti.try_number, ti.max_tries), (TaskState::Scheduled, 3, 4));
    let tries = plan.take_changes().past_tries;
    assert_eq!((tries[0].1.state, tries[0].1.ended_at), (TaskState::Failed, Some(at(2))));
}

#[test]
fn a_retry_waits_its_delay_and_not_until_a_clock_that_was_ahead_has_come_true() {
    let task = TaskSpec { retries: 1, retry_delay: std::time::Duration::from_secs(5), ..exec("a") };
    let spec = DagSpec::new("d", vec![task]);
    let ti = TaskInstance {
        state: TaskState::UpForRetry,
        try_number: 1,
        ended_at: Some(at(3_600)),
        ..TaskInstance::untouched(1)
    };
    let facts = RunFacts { read_at: at(10), ..facts(&spec) };
    let mut plan = RunPlan::new(facts, Arc::new(DagGraph::new(Arc::new(spec))), vec![(TaskId::new("a"), ti)]);
    plan.plan(at(14));
    assert_eq!((states(&plan).as_str(), plan.next_wake()), ("up_for_retry", Some(at(15))));
    plan.plan(at(15));
    assert_eq!(states(&plan), "scheduled");
}

#[test]
fn a_claim_that_was_cleared_before_its_answer_arrived_starts_nothing() {
    let mut plan = running(DagSpec::new("d", vec![exec("a")]));
    plan.plan(at(1));
    plan.bind(TaskNo(0), attempt(1), NodeId::new("n"), at(1));
    plan.claim(TaskNo(0), attempt(1), at(1));
    Arc::make_mut(&mut plan.slots[0].ti).state = TaskState::Restarting; // as the user's clear has left it
    assert_eq!(plan.claim(TaskNo(0), attempt(1), at(2)), ClaimVerdict::Superseded);
    plan.plan(at(2));
    assert_eq!(states(&plan), "scheduled", "nobody holds it up");
}

#[test]
fn a_task_that_depends_on_the_past_waits_for_it_and_no_deadlock_is_declared() {
    let task = TaskSpec { depends_on_past: true, ..exec("a") };
    let mut plan = running(DagSpec::new("d", vec![task]));
    let past = |state| Past::Run([(TaskId::new("a"), state)].into());
    plan.set_past(past(TaskState::Failed));
    plan.plan(at(1));
    assert_eq!((states(&plan).as_str(), plan.state()), ("none", RunState::Running));
    plan.set_past(past(TaskState::Success));
    plan.plan(at(2));
    assert_eq!(states(&plan), "scheduled");
}

#[test]
fn waiting_for_downstream_also_waits_for_the_past_tasks_below() {
    let task = TaskSpec { wait_for_downstream: true, ..exec("a") };
    let mut plan = running(DagSpec::new("d", vec![task, exec("b").needs(&["a"])]));
    let past = |b| Past::Run([(TaskId::new("a"), TaskState::Success), (TaskId::new("b"), b)].into());
    plan.set_past(past(TaskState::Running));
    plan.plan(at(1));
    assert_eq!(states(&plan), "none none");
    plan.set_past(past(TaskState::Skipped));
    plan.plan(at(2));
    assert_eq!(states(&plan), "scheduled none");
}

#[test]
fn a_run_that_follows_a_newer_version_drops_removed_tasks_and_maps_the_rest_by_name() {
    // The run was made from [old, a]; the version it follows now is [a, b needs a].
    let spec = DagSpec::new("d", vec![exec("a"), exec("b").needs(&["a"])]);
    let tis = ["old", "a", "b"].map(|id| (TaskId::new(id), TaskInstance::untouched(0)));
    let facts = facts(&spec);
    let mut plan = RunPlan::new(facts, Arc::new(DagGraph::new(Arc::new(spec))), tis.to_vec());
    plan.plan(at(1));
    assert_eq!(states(&plan), "removed scheduled none");
    play(&mut plan, 1, Outcome::Success, at(2));
    plan.plan(at(2));
    play(&mut plan, 2, Outcome::Success, at(3));
    plan.plan(at(3));
    assert_eq!(plan.state(), RunState::Success);
}

#[derive(Debug, Clone)]
struct RandomTask {
    needs: Vec<prop::sample::Index>,
    rule: TriggerRule,
    empty: bool,
    retries: u32,
}

fn random_task() -> impl Strategy<Value = RandomTask> {
    let needs = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let rule = prop::sample::select(TriggerRule::ALL.to_vec());
    (needs, rule, any::<bool>(), 0..3u32).prop_map(|(needs, rule, empty, retries)| RandomTask {
        needs,
        rule,
        empty,
        retries,
    })
}

fn dag(tasks: &[RandomTask]) -> DagSpec {
    let specs = tasks.iter().enumerate().map(|(at, task)| {
        let needs: BTreeSet<String> = if at == 0 {
            BTreeSet::new()
        } else {
            task.needs.iter().map(|up| format!("t{}", up.index(at))).collect()
        };
        let kind = if task.empty { TaskKind::Empty } else { TaskKind::Exec { argv: vec!["x".into()] } };
        TaskSpec {
            trigger_rule: task.rule,
            retries: task.retries,
            retry_delay: Duration::from_secs(5),
            needs: needs.iter().map(TaskId::new).collect(),
            ..TaskSpec::new(format!("t{at}"), kind)
        }
    });
    DagSpec::new("random", specs.collect())
}

proptest! {
    #[test]
    fn every_run_ends_and_planning_again_plans_nothing(
        tasks in prop::collection::vec(random_task(), 1..12),
        mut choices in prop::collection::vec((any::<prop::sample::Index>(), 0..6u8), 200),
    ) {
        let mut plan = running(dag(&tasks));
        let mut now = at(0);
        let mut next_attempt = 0;
        for _ in 0..1_000 {
            plan.plan(now);
            plan.take_changes();
            plan.plan(now);
            prop_assert_eq!(plan.take_changes(), Changes::default(), "planned twice at one instant");
            check_tallies(&plan);
            if plan.state().is_finished() {
                break;
            }
            let open: Vec<TaskNo> = plan
                .tasks()
                .filter(|(_, ti)| matches!(ti.state, TaskState::Scheduled | TaskState::Queued | TaskState::Running))
                .map(|(task, _)| task)
                .collect();
            if open.is_empty() {
                let wake = plan.next_wake();
                prop_assert!(wake.is_some(), "nothing open, nothing to wait for: {}", states(&plan));
                now = wake.unwrap();
                continue;
            }
            let (task, what) = choices.pop().map_or((open[0], 5), |(pick, what)| (*pick.get(&open), what));
            let ti = plan.task(task).unwrap().clone();
            match (ti.state, what) {
                (TaskState::Scheduled, _) => {
                    next_attempt += 1;
                    plan.bind(task, attempt(next_attempt), NodeId::new("n"), now);
                }
                (TaskState::Queued, 0) => plan.withdraw(task, "test", now),
                (TaskState::Queued, _) => {
                    plan.claim(task, ti.attempt.unwrap(), now);
                }
                (_, 1 | 2) => { plan.end(task, ti.attempt.unwrap(), &failed(), now); }
                (_, 3) => { plan.end(task, ti.attempt.unwrap(), &Outcome::Skipped, now); }
                (_, 4) => { plan.end(task, ti.attempt.unwrap(), &Outcome::NeverStarted, now); }
                _ => { plan.end(task, ti.attempt.unwrap(), &Outcome::Success, now); }
            }
        }
        prop_assert!(plan.state().is_finished(), "the run did not end: {}", states(&plan));
        for (task, ti) in plan.tasks() {
            prop_assert!(ti.state.is_finished());
            prop_assert!(ti.try_number <= plan.spec(task).unwrap().retries + 1);
        }
    }
}

/// The running counts are what counting afresh would give.
fn check_tallies(plan: &RunPlan) {
    for slot in &plan.slots {
        let upstream = plan.graph.upstream(slot.spec.unwrap());
        let recount = Tally::of(upstream.iter().map(|up| plan.slots[*up as usize].ti.state));
        assert_eq!(slot.tally, recount, "{}", slot.task_id);
    }
    assert_eq!(plan.unfinished, plan.slots.iter().filter(|slot| !slot.ti.state.is_finished()).count());
    assert_eq!(plan.active, plan.slots.iter().filter(|slot| is_active(slot.ti.state)).count());
}

#[test]
fn tasks_that_wait_alike_share_what_they_are_until_one_moves() {
    let spec = DagSpec::new("d", (0..50).map(|number| exec(&format!("t{number}"))).collect());
    let mut plan = running(spec);
    let shared =
        |plan: &RunPlan| plan.slots.iter().filter(|slot| Arc::ptr_eq(&slot.ti, &plan.slots[9].ti)).count();
    assert_eq!(shared(&plan), 50, "as they are read");
    plan.plan(at(1));
    plan.take_changes();
    assert_eq!((shared(&plan), states(&plan).matches("scheduled").count()), (50, 50));
    plan.bind(TaskNo(0), attempt(1), NodeId::new("n"), at(2));
    plan.take_changes();
    assert_eq!((shared(&plan), states(&plan).matches("scheduled").count()), (49, 49));
}

#[test]
fn a_task_knows_where_what_it_needs_has_ended() {
    let join =
        TaskSpec { trigger_rule: TriggerRule::AllDone, ..exec("join").needs(&["a", "b", "c", "light"]) };
    let light = TaskSpec::new("light", TaskKind::Empty);
    let mut plan = running(DagSpec::new("d", vec![exec("a"), exec("b"), exec("c"), light, join]));
    plan.plan(at(1));
    let ended = |plan: &RunPlan| plan.upstream_on(TaskNo(4)).into_iter().collect::<Vec<_>>();
    assert_eq!((ended(&plan), plan.upstream_on(TaskNo(0)).len()), (vec![], 0));
    play(&mut plan, 0, Outcome::Success, at(2));
    play(&mut plan, 1, failed(), at(2));
    plan.bind(TaskNo(2), attempt(9), NodeId::new("m"), at(2));
    assert_eq!(ended(&plan), [(NodeId::new("n"), 2)], "one is under way, and one never had a node");
    plan.claim(TaskNo(2), attempt(9), at(3));
    plan.end(TaskNo(2), attempt(9), &Outcome::Success, at(3));
    plan.plan(at(3));
    assert_eq!(ended(&plan), [(NodeId::new("m"), 1), (NodeId::new("n"), 2)]);
}

#[test]
fn a_task_knows_where_its_last_attempt_came_to_nothing_until_it_has_another() {
    let task = TaskSpec { retries: 1, retry_delay: Duration::ZERO, ..exec("a") };
    let mut plan = running(DagSpec::new("d", vec![task]));
    plan.plan(at(1));
    assert_eq!(plan.failed_on(TaskNo(0)), None);
    plan.bind(TaskNo(0), attempt(1), NodeId::new("idle"), at(1));
    plan.withdraw(TaskNo(0), "nobody has claimed it", at(2));
    assert_eq!(plan.failed_on(TaskNo(0)), Some(&NodeId::new("idle")));
    play(&mut plan, 0, failed(), at(3));
    assert_eq!(plan.failed_on(TaskNo(0)), None);
    plan.plan(at(4));
    assert_eq!((states(&plan).as_str(), plan.failed_on(TaskNo(0))), ("scheduled", Some(&NodeId::new("n"))));
}
