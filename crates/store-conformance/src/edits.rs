//! Goal: a user's clear, mark or cancel is applied whole, noticed by the owner, and kept in history.

use tenure_model::state::Mark;
use tenure_model::{NewRun, RunState, TaskState};
use tenure_store::{Attention, ClearRequest, MarkRequest, RunSnapshot};

use crate::Fresh;
use crate::harness::{
    World, assert_conflict, assert_not_found, clear_of, due_run, key_of, pass_of, spec, states, tenant, ti,
    user, value,
};

async fn clear(world: &World, request: &ClearRequest) -> Vec<String> {
    let cleared = world.store.clear(&user(), request).await.expect("cleared");
    cleared
        .tis
        .iter()
        .map(|view| format!("{}:{}={}", view.run_id, view.task_id, view.instance.state))
        .collect()
}

fn mark_of(dag: &str, run: &str, task: &str, mark: Mark) -> MarkRequest {
    MarkRequest {
        dag: dag.into(),
        run: run.into(),
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

pub async fn a_clear_sends_a_finished_run_round_again(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a c").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=running").await;
    let before = world.drive(&owner, run.key, "a=failed b=upstream_failed c=success run=failed").await;

    let request = ClearRequest { only_failed: true, ..clear_of("etl", "r1", &[]) };
    assert_eq!(clear(&world, &request).await, ["r1:a=failed", "r1:b=upstream_failed"], "as they were before");
    let after = world.load(run.key).await;
    assert_eq!((states(&after).as_str(), after.header.state), ("a=none b=none c=success", RunState::Queued));
    assert_eq!(after.header.revision, before.header.revision + 1);
    assert_eq!(after.header.started_at, None);
    let a = &ti(&after, "a").ti;
    assert_eq!((a.try_number, a.max_tries, a.attempt, a.ended_at), (1, 2, None, None));
    let view =
        world.store.get_run(&tenant(), &"etl".into(), &"r1".into()).await.expect("read").expect("there");
    assert_eq!((view.ended_at, view.reason), (None, None));
    let trail = world.trail("etl", "r1").await;
    for expected in ["a:cleared failed>none", "b:cleared upstream_failed>none", "run:cleared failed>queued"] {
        assert!(trail.contains(&expected.to_owned()), "{expected} is not in {trail:?}");
    }
}

pub async fn a_clear_stops_what_runs_and_keeps_its_attempt(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=running b=queued").await;
    let before = world.load(run.key).await;
    world.attend(&owner, "etl").await;
    assert_eq!(clear(&world, &clear_of("etl", "r1", &[])).await, ["r1:a=running", "r1:b=queued"]);
    let after = world.load(run.key).await;
    assert_eq!(states(&after), "a=restarting b=none");
    assert_eq!(ti(&after, "a").ti.attempt, ti(&before, "a").ti.attempt);
    assert_eq!(after.header.state, RunState::Running);
    let stop = |task: &str| {
        let cached = ti(&before, task);
        Attention::Stop {
            node: cached.ti.node.clone().expect("bound"),
            attempt: cached.ti.attempt.expect("bound"),
        }
    };
    let attention = world.attention_of("etl").await;
    for expected in [stop("a"), stop("b"), Attention::Run { run: run.key }] {
        assert!(attention.contains(&expected), "{expected:?} is not in {attention:?}");
    }
}

pub async fn a_clear_forgets_what_the_task_returned(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    let snapshot = world.load(run.key).await;
    let mut change = world.change(&snapshot, "a=success b=success run=success");
    let keys = ["a", "b"].map(|task| key_of(run.key, ti(&snapshot, task)));
    change.results = keys.iter().map(|key| (*key, value(1))).collect();
    world.commit_whole(&owner, &pass_of(vec![change])).await;
    clear(&world, &clear_of("etl", "r1", &["a"])).await;
    assert_eq!(world.store.get_result(keys[0]).await.expect("read"), None);
    assert_eq!(world.store.get_result(keys[1]).await.expect("read"), Some(value(1)));
}

pub async fn a_dry_run_says_what_it_would_do_and_does_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "a=success b=failed run=failed").await;
    world.attend(&owner, "etl").await;
    let before = snapshot_and_trail(&world, &run.key).await;
    let request = ClearRequest { dry_run: true, ..clear_of("etl", "r1", &[]) };
    assert_eq!(clear(&world, &request).await, ["r1:a=success", "r1:b=failed"]);
    let mark = MarkRequest { dry_run: true, ..mark_of("etl", "r1", "b", Mark::Success) };
    let marked = world.store.mark(&user(), &mark).await.expect("answered");
    assert_eq!(marked.len(), 1);
    assert_eq!(snapshot_and_trail(&world, &run.key).await, before);
    assert_eq!(world.attention_of("etl").await, vec![]);
}

async fn snapshot_and_trail(world: &World, run: &tenure_model::RunKey) -> String {
    let RunSnapshot { header, tis } = world.load(*run).await;
    format!("{header:?} {tis:?} {:?}", world.trail("etl", "r1").await)
}

pub async fn a_clear_can_follow_the_latest_version(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a c<b").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=failed").await;
    world.register(&spec("etl", "d c<d a")).await;

    clear(&world, &clear_of("etl", "r1", &["a"])).await;
    assert_eq!(world.load(run.key).await.header.version, 1, "only when asked to");
    let request = ClearRequest { latest_version: true, ..clear_of("etl", "r1", &[]) };
    clear(&world, &request).await;
    let after = world.load(run.key).await;
    assert_eq!(after.header.version, 2);
    assert_eq!(states(&after), "a=none b=removed c=none d=none");
    assert_eq!(ti(&after, "d").task.0, 3, "the next free number");
    let trail = world.trail("etl", "r1").await;
    for expected in ["run:version v1>v2", "b:removed none>removed", "d:added >none"] {
        assert!(trail.contains(&expected.to_owned()), "{expected} is not in {trail:?}");
    }
    let view =
        world.store.get_run(&tenant(), &"etl".into(), &"r1".into()).await.expect("read").expect("there");
    assert_eq!(view.version, 2);
}

/// Runs of 1, 2 and 3 January plus one without a date, all finished.
async fn three_days(world: &World) -> Vec<String> {
    world.register(&spec("etl", "a b<a")).await;
    let owner = world.owner_of("etl").await;
    let undated = NewRun { logical_date: None, run_id: "undated".into(), ..due_run("etl", 9) };
    let runs = [due_run("etl", 1), due_run("etl", 2), due_run("etl", 3), undated];
    for run in &runs {
        let header = world.create(run).await;
        world.drive(&owner, header.key, "a=success b=failed run=failed").await;
    }
    runs.iter().map(|run| run.run_id.to_string()).collect()
}

pub async fn a_clear_reaches_into_past_and_future_runs(fresh: Fresh) {
    let world = World::of(fresh);
    let days = three_days(&world).await;
    let from = |past, future| ClearRequest { past, future, ..clear_of("etl", &days[1], &["b"]) };
    let mut cleared = clear(&world, &ClearRequest { dry_run: true, ..from(true, true) }).await;
    cleared.sort();
    assert_eq!(cleared, [0, 1, 2].map(|day| format!("{}:b=failed", days[day])));
    let mut cleared = clear(&world, &from(false, true)).await;
    cleared.sort();
    assert_eq!(cleared, [1, 2].map(|day| format!("{}:b=failed", days[day])));
    let run = |day: usize| {
        let (store, id) = (world.store.clone(), days[day].as_str().into());
        async move { store.get_run(&tenant(), &"etl".into(), &id).await.expect("read").expect("there").state }
    };
    assert_eq!((run(0).await, run(1).await), (RunState::Failed, RunState::Queued));
    assert_eq!((run(2).await, run(3).await), (RunState::Queued, RunState::Failed));
}

pub async fn a_clear_of_nothing_changes_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    world.attend(&owner, "etl").await;
    let before = snapshot_and_trail(&world, &run.key).await;
    assert!(clear(&world, &clear_of("etl", "r1", &[])).await.is_empty());
    assert_eq!(snapshot_and_trail(&world, &run.key).await, before);
    assert_eq!(world.attention_of("etl").await, vec![]);
}

pub async fn a_mark_is_the_users_word(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=running").await;
    let before = world.load(run.key).await;
    let request = MarkRequest { downstream: true, ..mark_of("etl", "r1", "a", Mark::Skipped) };
    let marked = world.store.mark(&user(), &request).await.expect("marked");
    let shown: Vec<_> = marked.iter().map(|view| (view.task_id.as_str(), view.instance.state)).collect();
    assert_eq!(shown, [("a", TaskState::Skipped), ("b", TaskState::Skipped)], "as they are now");
    let after = world.load(run.key).await;
    assert_eq!(states(&after), "a=skipped b=skipped");
    assert_eq!(ti(&after, "a").ti.reason.as_deref(), Some("marked skipped by ada"));
    assert_eq!(after.header.revision, before.header.revision + 1);
    let stops =
        world.attention_of("etl").await.into_iter().filter(|what| matches!(what, Attention::Stop { .. }));
    assert_eq!(stops.count(), 1);
}

pub async fn a_mark_in_a_failed_run_lets_it_go_on_from_there(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a c<b d").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=failed b=upstream_failed c=upstream_failed d=failed").await;
    world.drive(&owner, run.key, "run=failed").await;
    let marked = world.store.mark(&user(), &mark_of("etl", "r1", "a", Mark::Success)).await.expect("marked");
    assert_eq!(marked.len(), 3);
    let after = world.load(run.key).await;
    assert_eq!(states(&after), "a=success b=none c=none d=failed", "what is beside it is left alone");
    assert_eq!(after.header.state, RunState::Queued);
}

pub async fn a_mark_reaches_into_past_and_future_runs(fresh: Fresh) {
    let world = World::of(fresh);
    let days = three_days(&world).await;
    let request = MarkRequest { past: true, ..mark_of("etl", &days[1], "b", Mark::Success) };
    let marked = world.store.mark(&user(), &request).await.expect("marked");
    let mut runs: Vec<_> = marked.iter().map(|view| view.run_id.to_string()).collect();
    runs.sort();
    assert_eq!(runs, days[..2]);
}

pub async fn an_ended_run_stops_what_runs_and_skips_what_waits(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b c d").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=success b=running c=queued").await;
    world.attend(&owner, "etl").await;
    let (dag, run_id) = ("etl".into(), "r1".into());
    let view = world.store.set_run_state(&user(), &dag, &run_id, RunState::Failed).await.expect("ended");
    assert_eq!((view.state, view.reason.as_deref()), (RunState::Failed, Some("marked failed by ada")));
    assert!(view.ended_at.is_some());
    assert_eq!(states(&world.load(run.key).await), "a=success b=failed c=skipped d=skipped");
    let attention = world.attention_of("etl").await;
    assert_eq!(attention.iter().filter(|what| matches!(what, Attention::Stop { .. })).count(), 2);
    assert!(attention.contains(&Attention::Run { run: run.key }));
    assert_conflict(world.store.set_run_state(&user(), &dag, &run_id, RunState::Running).await, "running");
}

pub async fn a_queued_again_run_starts_over(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "a=success b=failed run=failed").await;
    let (dag, run_id) = ("etl".into(), "r1".into());
    let view = world.store.set_run_state(&user(), &dag, &run_id, RunState::Queued).await.expect("queued");
    assert_eq!((view.state, view.ended_at, view.started_at), (RunState::Queued, None, None));
    assert_eq!(states(&world.load(run.key).await), "a=none b=none");
}

pub async fn what_is_not_there_is_not_found(fresh: Fresh) {
    let world = World::of(fresh);
    world.run_of("etl", "a").await;
    assert_not_found(world.store.clear(&user(), &clear_of("etl", "r9", &[])).await, "r9");
    assert_not_found(world.store.clear(&user(), &clear_of("nope", "r1", &[])).await, "nope");
    assert_not_found(world.store.clear(&user(), &clear_of("etl", "r1", &["zz"])).await, "zz");
    assert_not_found(world.store.mark(&user(), &mark_of("etl", "r9", "a", Mark::Failed)).await, "r9");
    assert_not_found(world.store.mark(&user(), &mark_of("etl", "r1", "zz", Mark::Failed)).await, "zz");
    let ended = world.store.set_run_state(&user(), &"etl".into(), &"r9".into(), RunState::Failed).await;
    assert_not_found(ended, "r9");
}

pub async fn an_owner_that_missed_an_edit_conflicts(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    let cached = world.drive(&owner, run.key, "run=running a=running").await;
    clear(&world, &clear_of("etl", "r1", &["a"])).await;
    let late = world.change(&cached, "a=success b=scheduled");
    let committed = world.commit(&owner, &pass_of(vec![late])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![run.key]);
    assert_eq!(states(&world.load(run.key).await), "a=restarting b=none");
}
