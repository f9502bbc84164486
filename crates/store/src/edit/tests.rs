//! Goal: what a user's word does to a run is right whatever state the run is in, and every step is legal.
//! Method: a small run drawn as text (`task=state`), one request, the new states as text.

use serde_json::{Value, json};
use tenure_model::{Ack, DagId, Outcome, Report, ReportBody, RunId, RunType, ShardId, TaskKind, TenantId};
use uuid::Uuid;

use super::*;
use crate::RunHeader;

const AT: Timestamp = Timestamp::UNIX_EPOCH;

/// extract → transform → load, and a lonely `report`; two retries each.
fn spec() -> DagSpec {
    spec_of(&[("extract", &[]), ("transform", &["extract"]), ("load", &["transform"]), ("report", &[])])
}

fn spec_of(tasks: &[(&str, &[&str])]) -> DagSpec {
    let task = |(id, needs): &(&str, &[&str])| {
        TaskSpec { retries: 2, ..TaskSpec::new(id, TaskKind::Empty) }.needs(needs)
    };
    DagSpec::new("etl", tasks.iter().map(task).collect())
}

fn attempt(number: u32) -> AttemptId {
    AttemptId(Uuid::from_u128(u128::from(number)))
}

/// Bound task instances have an attempt on node `n1`; whatever has been scheduled is in its first try.
fn run(state: RunState, tis: &str) -> RunSnapshot {
    let tis = tis.split_whitespace().enumerate().map(|(number, text)| {
        let (task_id, state) = text.split_once('=').expect("task=state");
        let state = TaskState::parse(state).expect("a state");
        let tried = !matches!(state, TaskState::None | TaskState::UpstreamFailed | TaskState::Removed);
        let ti = TaskInstance {
            state,
            try_number: u32::from(tried),
            attempt: tried.then(|| attempt(number as u32)),
            node: tried.then(|| NodeId::new("n1")),
            ended_at: state.is_finished().then_some(AT),
            ..TaskInstance::untouched(2)
        };
        CachedTi { task: TaskNo(number as u32), map_index: TiKey::UNMAPPED, task_id: task_id.into(), ti }
    });
    let header = RunHeader {
        key: RunKey(7),
        tenant: TenantId::default_tenant(),
        dag: DagId::new("etl"),
        run_id: RunId::new("r1"),
        version: 1,
        shard: ShardId(0),
        state,
        revision: 3,
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: AT,
        queued_at: AT,
        started_at: None,
        conf: Value::Null,
    };
    RunSnapshot { header, tis: tis.collect() }
}

fn clear_of(selection: ClearSelection) -> ClearRequest {
    ClearRequest {
        dag: "etl".into(),
        run: "r1".into(),
        selection,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        reset_runs: true,
        latest_version: false,
        dry_run: false,
    }
}

fn tasks(ids: &[&str]) -> ClearSelection {
    ClearSelection::Tasks(ids.iter().map(TaskId::new).collect())
}

fn mark_of(task: &str, mark: Mark) -> MarkRequest {
    MarkRequest {
        dag: "etl".into(),
        run: "r1".into(),
        task: task.into(),
        map_index: None,
        mark,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        dry_run: false,
    }
}

/// The edit as text; also checks what must hold for every edit.
fn shown(run: &RunSnapshot, edit: &RunEdit) -> String {
    let names: HashMap<TaskNo, &TaskId> =
        run.tis.iter().map(|cached| (cached.task, &cached.task_id)).collect();
    let mut parts: Vec<String> = edit
        .tis
        .iter()
        .map(|change| {
            let old = run.tis.iter().find(|cached| cached.task == change.ti.task).expect("a row of the run");
            assert_eq!((change.from, change.from_attempt), (old.ti.state, old.ti.attempt));
            assert!(
                edit.audit.iter().any(|entry| entry.task.as_ref() == Some(&old.task_id)
                    && entry.from == change.from.as_str()
                    && entry.to == change.to.state.as_str()),
                "{} has no audit entry",
                old.task_id
            );
            format!("{}:{}>{}", names[&change.ti.task], change.from, change.to.state)
        })
        .collect();
    parts.extend(edit.added.iter().map(|cached| format!("{}#{} added", cached.task_id, cached.task.0)));
    parts.extend(edit.stops.iter().map(|(node, attempt)| format!("stop {}@{node}", attempt.0.as_u128())));
    parts.extend(
        edit.past_tries.iter().map(|past| format!("keep {}#{}", past.task_id, past.instance.try_number)),
    );
    parts.extend(edit.version.map(|version| format!("v{version}")));
    parts.extend(edit.state.as_ref().map(|change| format!("run:{}>{}", change.from, change.to)));
    parts.join(" ")
}

#[track_caller]
fn check_clear(state: RunState, tis: &str, request: &ClearRequest, expected: &str) {
    let run = run(state, tis);
    let edit = clear(&run, 1, &spec(), request, AT).expect("legal");
    assert_eq!(shown(&run, &edit), expected);
}

#[test]
fn clearing_a_finished_run_keeps_its_tries_and_queues_it() {
    check_clear(
        RunState::Failed,
        "extract=success transform=failed load=upstream_failed report=success",
        &clear_of(ClearSelection::All),
        "extract:success>none transform:failed>none load:upstream_failed>none report:success>none \
         keep extract#1 keep transform#1 keep report#1 run:failed>queued",
    );
}

#[test]
fn a_cleared_task_may_be_tried_as_often_as_a_fresh_one() {
    let run = run(RunState::Failed, "extract=failed transform=none load=none report=none");
    let edit = clear(&run, 1, &spec(), &clear_of(tasks(&["extract"])), AT).expect("legal");
    let to = &edit.tis[0].to;
    assert_eq!((to.try_number, to.max_tries, to.attempt), (1, 3, None));
}

#[test]
fn only_failed_and_only_running_keep_what_they_say() {
    let tis = "extract=running transform=failed load=upstream_failed report=success";
    let failed = ClearRequest { only_failed: true, ..clear_of(ClearSelection::All) };
    let running = ClearRequest { only_running: true, ..clear_of(ClearSelection::All) };
    check_clear(
        RunState::Running,
        tis,
        &failed,
        "transform:failed>none load:upstream_failed>none keep transform#1",
    );
    check_clear(RunState::Running, tis, &running, "extract:running>restarting stop 0@n1");
}

#[test]
fn upstream_and_downstream_follow_the_graph() {
    let tis = "extract=success transform=success load=success report=success";
    let up = ClearRequest { upstream: true, ..clear_of(tasks(&["transform"])) };
    let down = ClearRequest { downstream: true, ..clear_of(tasks(&["transform"])) };
    check_clear(
        RunState::Running,
        tis,
        &up,
        "extract:success>none transform:success>none keep extract#1 keep transform#1",
    );
    check_clear(
        RunState::Running,
        tis,
        &down,
        "transform:success>none load:success>none keep transform#1 keep load#1",
    );
}

#[test]
fn a_running_task_keeps_its_attempt_until_its_process_has_ended() {
    let run = run(RunState::Running, "extract=running transform=none load=none report=none");
    let edit = clear(&run, 1, &spec(), &clear_of(ClearSelection::All), AT).expect("legal");
    assert_eq!(shown(&run, &edit), "extract:running>restarting stop 0@n1");
    assert_eq!(edit.tis[0].to.attempt, Some(attempt(0)));
    assert_eq!(edit.tis[0].to.max_tries, 3);
}

#[test]
fn a_bound_but_unclaimed_task_is_withdrawn_at_once() {
    check_clear(
        RunState::Running,
        "extract=queued transform=scheduled load=up_for_retry report=restarting",
        &clear_of(ClearSelection::All),
        "extract:queued>none transform:scheduled>none load:up_for_retry>none report:restarting>restarting \
         stop 0@n1 stop 3@n1 keep extract#1 keep transform#1 keep load#1",
    );
}

#[test]
fn clearing_what_is_untouched_changes_nothing() {
    check_clear(
        RunState::Queued,
        "extract=none transform=none load=none report=none",
        &clear_of(ClearSelection::All),
        "",
    );
}

#[test]
fn without_reset_runs_the_run_keeps_its_state() {
    let request = ClearRequest { reset_runs: false, ..clear_of(tasks(&["report"])) };
    check_clear(
        RunState::Success,
        "extract=success transform=success load=success report=success",
        &request,
        "report:success>none keep report#1",
    );
}

#[test]
fn an_unknown_task_is_not_found_in_the_named_run_and_passed_over_in_others() {
    let run = run(RunState::Success, "extract=success transform=success load=success report=success");
    let request = clear_of(tasks(&["extrct"]));
    let error = clear(&run, 1, &spec(), &request, AT).expect_err("no such task");
    assert!(
        matches!(&error, StoreError::NotFound(text) if text == "run r1 of dag etl has no task extrct"),
        "{error}"
    );
    let from_another = ClearRequest { run: "r2".into(), ..request };
    assert!(clear(&run, 1, &spec(), &from_another, AT).expect("passed over").is_empty());
    assert!(mark(&run, &spec(), &mark_of("extrct", Mark::Failed), AT, "admin").is_err());
}

#[test]
fn the_latest_version_removes_and_adds_tasks_and_numbers_stay_with_their_tasks() {
    let run = run(RunState::Running, "extract=success transform=running load=none report=queued");
    let newer = spec_of(&[("check", &[]), ("load", &["check"]), ("extract", &[]), ("publish", &["load"])]);
    let request = ClearRequest { latest_version: true, ..clear_of(tasks(&["extract"])) };
    let edit = clear(&run, 2, &newer, &request, AT).expect("legal");
    assert_eq!(
        shown(&run, &edit),
        "extract:success>none transform:running>removed report:queued>removed check#4 added publish#5 added \
         stop 1@n1 stop 3@n1 keep extract#1 keep transform#1 keep report#1 v2"
    );
}

#[test]
fn finished_tasks_that_the_latest_version_lacks_stay_as_they_are() {
    let run = run(RunState::Success, "extract=success transform=success load=success report=success");
    let newer = spec_of(&[("extract", &[])]);
    let request = ClearRequest { latest_version: true, ..clear_of(ClearSelection::All) };
    let edit = clear(&run, 2, &newer, &request, AT).expect("legal");
    assert_eq!(shown(&run, &edit), "extract:success>none keep extract#1 v2 run:success>queued");
}

#[test]
fn a_run_in_which_nothing_matches_keeps_its_version() {
    let run = run(RunState::Success, "extract=success transform=success load=success report=success");
    let newer = spec_of(&[("extract", &[])]);
    let request = ClearRequest { latest_version: true, only_failed: true, ..clear_of(ClearSelection::All) };
    assert!(clear(&run, 2, &newer, &request, AT).expect("legal").is_empty());
}

#[test]
fn a_marked_task_takes_the_state_and_is_stopped() {
    let run = run(RunState::Running, "extract=running transform=none load=none report=success");
    let edit = mark(&run, &spec(), &mark_of("extract", Mark::Failed), AT, "admin").expect("legal");
    assert_eq!(shown(&run, &edit), "extract:running>failed stop 0@n1");
    assert_eq!(edit.tis[0].to.reason.as_deref(), Some("marked failed by admin"));
    assert_eq!(edit.tis[0].to.ended_at, Some(AT));
    let again = mark(&run, &spec(), &mark_of("report", Mark::Success), AT, "admin").expect("legal");
    assert!(again.is_empty(), "it is success already");
}

#[test]
fn a_mark_reaches_downstream_but_not_what_is_removed() {
    let run = run(RunState::Running, "extract=none transform=removed load=none report=none");
    let request = MarkRequest { downstream: true, ..mark_of("extract", Mark::Skipped) };
    let edit = mark(&run, &spec(), &request, AT, "admin").expect("legal");
    assert_eq!(shown(&run, &edit), "extract:none>skipped load:none>skipped");
}

#[test]
fn ending_a_run_stops_what_runs_and_skips_what_waits() {
    let run = run(RunState::Running, "extract=success transform=running load=queued report=none");
    let edit = set_run_state(&run, &spec(), RunState::Failed, AT, "admin").expect("legal");
    assert_eq!(
        shown(&run, &edit),
        "transform:running>failed load:queued>skipped report:none>skipped stop 1@n1 stop 2@n1 run:running>failed"
    );
    assert_eq!(edit.state.and_then(|change| change.reason).as_deref(), Some("marked failed by admin"));
}

#[test]
fn a_run_that_has_the_state_already_is_left_alone() {
    let run =
        run(RunState::Failed, "extract=failed transform=upstream_failed load=upstream_failed report=success");
    assert!(set_run_state(&run, &spec(), RunState::Failed, AT, "admin").expect("legal").is_empty());
    let edit = set_run_state(&run, &spec(), RunState::Success, AT, "admin").expect("legal");
    assert_eq!(shown(&run, &edit), "run:failed>success");
}

#[test]
fn queueing_a_run_clears_all_of_it_and_running_cannot_be_asked_for() {
    let finished = run(RunState::Success, "extract=success transform=skipped load=none report=none");
    let edit = set_run_state(&finished, &spec(), RunState::Queued, AT, "admin").expect("legal");
    assert_eq!(
        shown(&finished, &edit),
        "extract:success>none transform:skipped>none keep extract#1 keep transform#1 run:success>queued"
    );
    let empty = run(RunState::Success, "");
    let edit = set_run_state(&empty, &spec(), RunState::Queued, AT, "admin").expect("legal");
    assert_eq!(shown(&empty, &edit), "run:success>queued");
    let refused = set_run_state(&empty, &spec(), RunState::Running, AT, "admin");
    assert!(matches!(refused, Err(StoreError::Conflict(_))));
}

#[test]
fn every_edit_is_legal_from_every_state() {
    let shorter = spec_of(&[("extract", &[])]);
    for state in TaskState::ALL {
        let run =
            run(RunState::Running, &format!("extract={state} transform={state} load={state} report={state}"));
        let request = ClearRequest { latest_version: true, ..clear_of(ClearSelection::All) };
        shown(&run, &clear(&run, 2, &shorter, &request, AT).expect("legal"));
        for mark_as in [Mark::Success, Mark::Failed, Mark::Skipped] {
            shown(&run, &mark(&run, &spec(), &mark_of("extract", mark_as), AT, "admin").expect("legal"));
        }
        for end in [RunState::Success, RunState::Failed, RunState::Queued] {
            shown(&run, &set_run_state(&run, &spec(), end, AT, "admin").expect("legal"));
        }
    }
}

/// What the first task's agent says, with its current attempt unless told otherwise.
fn told(run: &RunSnapshot, from: u32, body: impl FnOnce(AttemptId, TiKey) -> ReportBody) -> (RunEdit, Ack) {
    let ti = TiKey { run: run.header.key, task: TaskNo(0), map_index: TiKey::UNMAPPED };
    let said =
        Report { node: "n1".into(), scope: "scheduler/shard-00".into(), body: body(attempt(from), ti) };
    report(&run.header, run.tis.first(), &said, AT)
}

fn success(attempt: AttemptId, ti: TiKey) -> ReportBody {
    let late = "2100-01-01T00:00:00Z".parse().expect("an instant");
    ReportBody::End { attempt, ti, outcome: Outcome::Success, ended_at: late, result: Some(json!(7)) }
}

#[test]
fn a_report_moves_its_own_task_and_plans_nothing_further() {
    let queued = run(RunState::Running, "extract=queued transform=none");
    let (edit, ack) = told(&queued, 0, |attempt, ti| ReportBody::Claim { attempt, ti });
    assert_eq!((shown(&queued, &edit).as_str(), ack), ("extract:queued>running", Ack::Accepted));
    let running = run(RunState::Running, "extract=running transform=none");
    let (edit, ack) = told(&running, 0, success);
    assert_eq!((shown(&running, &edit).as_str(), ack), ("extract:running>success", Ack::Accepted));
    assert_eq!(edit.results, [(edit.tis[0].ti, json!(7))]);
    assert_eq!(edit.tis[0].to.ended_at, Some(AT), "an agent's clock that is ahead of ours does not count");
    assert_eq!(edit.audit[0].event, "succeeded");
}

#[test]
fn what_was_cleared_while_it_ran_returns_nothing_and_keeps_its_history() {
    let restarting = run(RunState::Running, "extract=restarting");
    let (edit, ack) = told(&restarting, 0, success);
    assert_eq!(
        (shown(&restarting, &edit).as_str(), ack),
        ("extract:restarting>none keep extract#1", Ack::Accepted)
    );
    assert!(edit.results.is_empty());
    assert_eq!(edit.forgotten_results().count(), 1);
}

#[test]
fn what_is_not_current_is_superseded_and_changes_nothing() {
    let check = |run: &RunSnapshot, from: u32| {
        let (edit, ack) = told(run, from, success);
        assert!(edit.is_empty());
        assert_eq!(ack, Ack::Superseded);
    };
    check(&run(RunState::Running, "extract=running"), 9);
    check(&run(RunState::Running, "extract=success"), 0);
    check(&run(RunState::Running, ""), 0);
    check(&run(RunState::Failed, "extract=running"), 0);
}

#[test]
fn a_repeated_claim_is_accepted_and_moves_the_revision_alone() {
    let running = run(RunState::Running, "extract=running");
    let (edit, ack) = told(&running, 0, |attempt, ti| ReportBody::Claim { attempt, ti });
    assert!(edit.touched && !edit.is_empty());
    assert!(edit.tis.is_empty() && edit.audit.is_empty());
    assert_eq!(ack, Ack::Accepted);
}
