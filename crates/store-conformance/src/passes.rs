//! Goal: a pass is written whole under a live epoch, run by run, or not at all.

use tenure_lease::{Claim, Epoch, LossReason, ReleaseOutcome, RenewOutcome, Scope};
use tenure_model::{RunKey, RunState, TaskState};
use tenure_store::{
    NewRunOutcome, Pass, RunQuery, RunSnapshot, ScheduleChange, StateChange, StoreError, TryRecord,
};

use crate::Fresh;
use crate::harness::{World, day_of_january, due_run, key_of, now, pass_of, states, tenant, term, ti, value};

pub async fn a_pass_writes_rows_results_tries_and_audit(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a").await;
    let owner = world.owner_of("etl").await;
    let before = world.drive(&owner, run.key, "run=running a=running").await;

    let mut change = world.change(&before, "a=up_for_retry b=scheduled");
    let a = ti(&before, "a");
    change.past_tries = vec![TryRecord {
        ti: key_of(run.key, a),
        task_id: a.task_id.clone(),
        instance: change.tis[0].to.clone(),
    }];
    change.results = vec![(key_of(run.key, a), value(7))];
    let expected = change.clone();
    world.commit_whole(&owner, &pass_of(vec![change])).await;

    let after = world.load(run.key).await;
    assert_eq!(after.header.revision, before.header.revision + 1);
    assert_eq!(ti(&after, "a").ti, expected.tis[0].to);
    assert_eq!(ti(&after, "b").ti, expected.tis[1].to);
    assert_eq!(
        world.store.results(run.key).await.expect("results"),
        vec![("a".into(), tenure_model::TiKey::UNMAPPED, value(7))]
    );
    let a_key = key_of(run.key, a);
    assert_eq!(world.store.get_result(a_key).await.expect("a result"), Some(value(7)));
    let rows = world.audit("etl", Some("r1")).await;
    let last = rows.last().expect("a row for the pass");
    assert_eq!(last.entries, expected.audit);
    assert_eq!((last.actor.as_str(), last.epoch), ("owner", Some(owner.epoch().0)));
    assert_eq!(last.scope.as_deref(), Some(owner.scope().as_str()));
    assert_eq!(last.run_id.as_ref().map(|id| id.as_str()), Some("r1"));
}

pub async fn a_stale_revision_leaves_that_run_alone_and_commits_the_others(fresh: Fresh) {
    let world = World::of(fresh);
    let first = world.run_of("etl", "a b").await;
    let second = world.trigger("etl", "r2").await;
    let third = world.trigger("etl", "r3").await;
    let owner = world.owner_of("etl").await;
    let stale = world.load(second.key).await;
    world.drive(&owner, second.key, "run=running").await;
    let trail = world.trail("etl", "r2").await;

    // Every row it touches is as it expects: the revision alone tells that the run has moved.
    let mut behind = world.change(&stale, "a=scheduled b=skipped");
    behind.results = vec![(key_of(second.key, ti(&stale, "a")), value(1))];
    let changes = vec![
        world.change(&world.load(first.key).await, "a=scheduled"),
        behind,
        world.change(&world.load(third.key).await, "b=skipped"),
    ];
    let committed = world.commit(&owner, &pass_of(changes)).await.expect("committed");

    assert_eq!(committed.conflicts, vec![second.key]);
    assert_eq!(states(&world.load(first.key).await), "a=scheduled b=none");
    assert_eq!(states(&world.load(third.key).await), "a=none b=skipped");
    let untouched = world.load(second.key).await;
    assert_eq!((states(&untouched).as_str(), untouched.header.state), ("a=none b=none", RunState::Running));
    assert_eq!(untouched.header.revision, 1);
    assert_eq!(world.store.results(second.key).await.expect("results"), vec![]);
    assert_eq!(world.trail("etl", "r2").await, trail, "a conflict leaves no trace in the audit");
}

pub async fn who_takes_what_a_conflicting_run_would_have_given_back_falls_with_it(fresh: Fresh) {
    let world = World::of(fresh);
    let ending = world.run_of("etl", "a b").await;
    let binding = world.trigger("etl", "r2").await;
    let planned = world.trigger("etl", "r3").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, ending.key, "run=running a=running").await;
    world.drive(&owner, binding.key, "run=running a=running").await;
    world.drive(&owner, planned.key, "run=running").await;
    let stale = world.load(ending.key).await;
    world.drive(&owner, ending.key, "b=skipped").await;

    // The first comes last: it is not the order of the runs that decides.
    let changes = |of: [&RunSnapshot; 3]| {
        let texts = ["a=success", "a=success b=queued", "a=scheduled"];
        let mut changes: Vec<_> = of.iter().zip(texts).map(|(run, text)| world.change(run, text)).collect();
        changes.rotate_left(1);
        changes
    };
    let (second, third) = (world.load(binding.key).await, world.load(planned.key).await);
    let committed =
        world.commit(&owner, &pass_of(changes([&stale, &second, &third]))).await.expect("committed");
    assert_eq!(committed.conflicts, vec![binding.key, ending.key]);
    assert_eq!(states(&world.load(binding.key).await), "a=running b=none");
    assert_eq!(states(&world.load(planned.key).await), "a=scheduled b=none", "it takes nothing");

    // Who gives nothing back takes nobody along.
    let (first, second) = (world.load(ending.key).await, world.load(binding.key).await);
    let idle = world.change(&stale, "b=scheduled");
    let changes = vec![world.change(&second, "a=success b=queued"), idle];
    let committed = world.commit(&owner, &pass_of(changes)).await.expect("committed");
    assert_eq!(committed.conflicts, vec![first.header.key]);
    assert_eq!(states(&world.load(binding.key).await), "a=success b=queued");
}

pub async fn a_row_that_is_not_as_expected_is_a_conflict_of_its_whole_run(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let other = world.trigger("etl", "r2").await;
    let owner = world.owner_of("etl").await;
    let snapshot = world.load(run.key).await;
    let mut wrong = world.change(&snapshot, "a=scheduled b=skipped run=running");
    wrong.tis[1].from = TaskState::Running;
    let right = world.change(&world.load(other.key).await, "a=scheduled");

    let committed = world.commit(&owner, &pass_of(vec![wrong, right])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![run.key]);
    let after = world.load(run.key).await;
    assert_eq!((states(&after).as_str(), after.header.state), ("a=none b=none", RunState::Queued));
    assert_eq!(after.header.revision, snapshot.header.revision);
    assert_eq!(states(&world.load(other.key).await), "a=scheduled b=none");

    let mut wrong_attempt = world.change(&after, "a=scheduled");
    wrong_attempt.tis[0].from_attempt = Some(tenure_model::AttemptId(world.entropy.uuid(now())));
    let committed = world.commit(&owner, &pass_of(vec![wrong_attempt])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![run.key]);
    let mut wrong_state = world.change(&after, "");
    wrong_state.state =
        Some(StateChange { from: RunState::Running, to: RunState::Failed, at: now(), reason: None });
    let committed = world.commit(&owner, &pass_of(vec![wrong_state])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![run.key]);
    assert_eq!(world.load(run.key).await.header, after.header);
}

pub async fn a_run_that_is_gone_is_a_conflict(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let mut change = world.change(&world.load(run.key).await, "a=scheduled");
    change.run = RunKey(run.key.0 + 1_000);
    change.tis[0].ti.run = change.run;
    let committed = world.commit(&owner, &pass_of(vec![change])).await.expect("committed");
    assert_eq!(committed.conflicts, vec![RunKey(run.key.0 + 1_000)]);
}

pub async fn a_deposed_owner_is_fenced_and_writes_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let paused = world.owner_of("etl").await;
    let guard = paused.guard().expect("it leads");
    let heir = world.heir_of(&paused).await;
    let before = world.load(run.key).await;
    let trail = world.trail("etl", "r1").await;
    let attention = world.attention(world.shard_of("etl").await).await;

    let pass = Pass {
        runs: vec![world.change(&before, "a=scheduled run=running")],
        new_runs: vec![due_run("etl", 1)],
        schedules: vec![ScheduleChange {
            tenant: tenant(),
            dag: "etl".into(),
            last_tick: day_of_january(1),
            next_tick: None,
        }],
        attended: attention.iter().map(|item| item.seq).collect(),
        ..Pass::new(now(), "owner")
    };
    match world.store.commit_pass(&guard, &pass).await {
        Err(StoreError::Fenced { ours, current }) => {
            assert_eq!((ours, current), (paused.epoch(), Some(heir.epoch)));
        }
        other => panic!("the old epoch wrote: {other:?}"),
    }
    let after = world.load(run.key).await;
    assert_eq!((after.header, after.tis), (before.header, before.tis));
    assert_eq!(world.trail("etl", "r1").await, trail);
    assert_eq!(world.attention(world.shard_of("etl").await).await, attention);
    let runs = world.store.list_runs(&RunQuery::of(tenant(), None)).await.expect("listed");
    assert_eq!(runs.total, 1);
    let dag = world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("it exists");
    assert_eq!(dag.progress.last_tick, None);
}

pub async fn the_write_at_1842_is_refused_after_1843_has_taken_over(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let scope = Scope::new(world.shard_of("etl").await.scope());
    let long_ago = world.store.install_fence(&scope, term(&world.entropy), Epoch(1840)).await;
    assert_eq!(long_ago.expect("installed"), Epoch(1841));

    let paused = world.owner_of("etl").await;
    assert_eq!(paused.epoch(), Epoch(1842));
    let begun = world.drive(&paused, run.key, "run=running a=scheduled").await;
    let guard = paused.guard().expect("it leads");
    // Here 1842 is paused, and its successor comes.
    let heir = world.heir_of(&paused).await;
    assert_eq!(heir.epoch, Epoch(1843));
    assert_eq!(world.store.fence(&scope).await.expect("answered"), Some((Epoch(1843), heir.term)));

    // It wakes up, still believes to lead, and goes on where it was.
    let late = pass_of(vec![world.change(&begun, "a=queued")]);
    match world.store.commit_pass(&guard, &late).await {
        Err(StoreError::Fenced { ours, current }) => {
            assert_eq!((ours, current), (Epoch(1842), Some(Epoch(1843))));
        }
        other => panic!("the write at 1842 was not fenced: {other:?}"),
    }
    let after = world.load(run.key).await;
    assert_eq!((after.header, after.tis), (begun.header, begun.tis), "nothing of it was written");
    let claim = Claim {
        scope: scope.clone(),
        term: paused.term(),
        epoch: paused.epoch(),
        duration: paused.record().duration,
    };
    let renewed = world.store.renew(std::slice::from_ref(&claim)).await.expect("answered");
    let by = LossReason::Superseded { holder: heir.holder.clone(), epoch: Epoch(1843) };
    assert_eq!(renewed, [RenewOutcome::Lost(by)]);
    assert_eq!(world.store.release(&claim).await.expect("answered"), ReleaseOutcome::NotApplied);
    assert_eq!(world.store.fence(&scope).await.expect("answered"), Some((Epoch(1843), heir.term)));
}

pub async fn a_guard_covers_only_its_own_shard(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let home = world.shard_of("etl").await;
    let mut others = (0..100).map(|number| format!("other-{number}"));
    let stranger = loop {
        let name = others.next().expect("a hundred names meet every shard");
        if world.shard_of(&name).await != home {
            break name;
        }
    };
    let owner = world.owner_of(&stranger).await;
    let change = world.change(&world.load(run.key).await, "a=scheduled");
    let refused = world.commit(&owner, &pass_of(vec![change])).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    assert_eq!(states(&world.load(run.key).await), "a=none");
}

pub async fn a_due_run_is_made_exactly_once(fresh: Fresh) {
    let world = World::of(fresh);
    world.run_of("etl", "a b<a").await;
    let owner = world.owner_of("etl").await;
    let due = due_run("etl", 1);
    let same_date = tenure_model::NewRun { run_id: "by-another-name".into(), ..due.clone() };
    let pass = Pass {
        new_runs: vec![due.clone(), due.clone(), same_date, due_run("etl", 2)],
        ..Pass::new(now(), "owner")
    };
    let created = world.commit_whole(&owner, &pass).await.created;

    let [
        NewRunOutcome::Created(first),
        NewRunOutcome::Exists,
        NewRunOutcome::Exists,
        NewRunOutcome::Created(second),
    ] = &created[..]
    else {
        panic!("{created:?}")
    };
    assert_ne!(first.key, second.key);
    assert_eq!((first.state, first.revision, first.version), (RunState::Queued, 0, 1));
    assert_eq!((first.logical_date, &first.run_id), (due.logical_date, &due.run_id));
    assert_eq!(first.shard, world.shard_of("etl").await);
    let loaded = world.load(first.key).await;
    assert_eq!(&loaded.header, &**first);
    assert_eq!(states(&loaded), "a=none b=none");

    let again = world.commit_whole(&owner, &pass).await.created;
    assert_eq!(again, vec![NewRunOutcome::Exists; 4]);
    let runs = world.store.list_runs(&RunQuery::of(tenant(), None)).await.expect("listed");
    assert_eq!(runs.total, 3);
    let rows = world.audit("etl", Some(due.run_id.as_str())).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((rows[0].entries[0].event.as_str(), rows[0].epoch), ("created", Some(owner.epoch().0)));
}

pub async fn a_due_run_of_a_dag_that_is_gone_is_not_made(fresh: Fresh) {
    let world = World::of(fresh);
    let owner = world.owner_of("gone").await;
    let pass = Pass { new_runs: vec![due_run("gone", 1)], ..Pass::new(now(), "owner") };
    assert_eq!(world.commit_whole(&owner, &pass).await.created, vec![NewRunOutcome::NoDag]);
}

pub async fn a_run_that_starts_and_ends_keeps_its_times(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let started = world.drive(&owner, run.key, "run=running").await.header.started_at;
    assert!(started.is_some());
    let mut change = world.change(&world.load(run.key).await, "a=failed run=failed");
    let ended = now();
    let state = change.state.as_mut().expect("the run ends");
    (state.at, state.reason) = (ended, Some("run timeout".into()));
    world.commit_whole(&owner, &pass_of(vec![change])).await;

    let view =
        world.store.get_run(&tenant(), &"etl".into(), &"r1".into()).await.expect("read").expect("there");
    assert_eq!((view.state, view.started_at, view.ended_at), (RunState::Failed, started, Some(ended)));
    assert_eq!(view.reason.as_deref(), Some("run timeout"));
    assert!(view.updated_at >= view.queued_at);
}

pub async fn a_run_that_starts_and_ends_in_one_pass_has_both_times(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let mut change = world.change(&world.load(run.key).await, "a=success");
    let at = now();
    change.state = Some(StateChange { from: RunState::Queued, to: RunState::Success, at, reason: None });
    world.commit_whole(&owner, &pass_of(vec![change])).await;
    let view =
        world.store.get_run(&tenant(), &"etl".into(), &"r1".into()).await.expect("read").expect("there");
    assert_eq!((view.started_at, view.ended_at), (Some(at), Some(at)));
}

pub async fn schedule_progress_is_remembered(fresh: Fresh) {
    let world = World::of(fresh);
    world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let (last_tick, next_tick) = (day_of_january(1), Some(day_of_january(2)));
    let schedules = vec![ScheduleChange { tenant: tenant(), dag: "etl".into(), last_tick, next_tick }];
    world.commit_whole(&owner, &Pass { schedules, ..Pass::new(now(), "owner") }).await;
    let dag = world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("it exists");
    assert_eq!(dag.progress.last_tick, Some(last_tick));
    let view = world.store.get_dag(&tenant(), &"etl".into()).await.expect("read").expect("there");
    assert_eq!((view.last_tick, view.next_tick), (Some(last_tick), next_tick));
}

pub async fn attended_items_vanish_with_the_pass_and_only_then(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    world.trigger("etl", "r2").await;
    let owner = world.owner_of("etl").await;
    let shard = world.shard_of("etl").await;
    let items = world.attention(shard).await;
    assert!(items.len() >= 3, "a registration and two runs: {items:?}");
    let change = world.change(&world.load(run.key).await, "a=scheduled");
    let pass = Pass { attended: vec![items[0].seq, items[1].seq], ..pass_of(vec![change]) };
    world.commit_whole(&owner, &pass).await;
    assert_eq!(world.attention(shard).await, items[2..]);
    assert_eq!(world.commit(&owner, &pass).await.expect("committed").conflicts, vec![run.key]);
    assert_eq!(world.attention(shard).await, items[2..], "attending twice does no harm");
}

pub async fn an_empty_pass_is_legal(fresh: Fresh) {
    let world = World::of(fresh);
    let owner = world.owner_of("etl").await;
    let committed = world.commit_whole(&owner, &Pass::new(now(), "owner")).await;
    assert!(committed.created.is_empty());
}
