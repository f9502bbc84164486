//! Goal: every acknowledged trigger gives exactly one run.

use jiff::Timestamp;
use serde_json::json;
use tenure_model::{NewRun, RunState, RunType, TaskInstance, TiKey};
use tenure_store::{CreateRunOutcome, NewRunOutcome, Pass, RunHeader, Trigger};

use crate::Fresh;
use crate::harness::{
    World, assert_conflict, assert_not_found, day_of_january, due_run, new_run, spec, states, tenant, user,
};

pub async fn a_created_run_is_queued_with_untouched_tasks(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b<a")).await;
    let asked = NewRun { conf: json!({"n": [1, null]}), note: Some("please".into()), ..due_run("etl", 3) };
    let header = world.create(&asked).await;
    assert_eq!((header.state, header.revision, header.version), (RunState::Queued, 0, 1));
    assert_eq!((&header.run_id, header.run_type, &header.conf), (&asked.run_id, asked.run_type, &asked.conf));
    assert_eq!((header.logical_date, header.data_interval), (asked.logical_date, asked.data_interval));
    assert_eq!((header.run_after, header.started_at), (asked.run_after, None));
    let loaded = world.load(header.key).await;
    assert_eq!(loaded.header, header);
    for (position, cached) in loaded.tis.iter().enumerate() {
        assert_eq!((cached.task.index(), cached.map_index), (position, TiKey::UNMAPPED));
        assert_eq!(cached.ti, TaskInstance::untouched(1));
    }
    assert_eq!(states(&loaded), "a=none b=none");
    let view =
        world.store.get_run(&tenant(), &"etl".into(), &asked.run_id).await.expect("read").expect("there");
    assert_eq!(
        (view.key, view.note.as_deref(), view.triggered_by.as_str()),
        (header.key, Some("please"), "timetable")
    );
    assert_eq!(world.trail("etl", asked.run_id.as_str()).await, ["run:created >queued"]);
}

pub async fn an_answer_says_what_was_kept(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let finer_than_kept: Timestamp = "2026-01-01T00:00:00.123456789Z".parse().expect("an instant");
    let trigger = Trigger { at: finer_than_kept, ..user() };
    let asked =
        NewRun { run_after: finer_than_kept, logical_date: Some(finer_than_kept), ..new_run("etl", "r1") };
    let outcome = world.store.create_run(&trigger, &asked).await.expect("created");
    let CreateRunOutcome::Created(header) = outcome else { panic!("a new run was asked for") };
    assert_eq!(world.load(header.key).await.header, header);
    let owner = world.owner_of("etl").await;
    let due = NewRun { run_id: "r2".into(), logical_date: None, ..asked };
    let pass = Pass { new_runs: vec![due], ..Pass::new(finer_than_kept, "owner") };
    let created = world.commit_whole(&owner, &pass).await.created;
    let [NewRunOutcome::Created(header)] = &created[..] else { panic!("{created:?}") };
    assert_eq!(world.load(header.key).await.header, **header);
}

async fn create(world: &World, run: &NewRun) -> (bool, RunHeader) {
    match world.store.create_run(&user(), run).await.expect("answered") {
        CreateRunOutcome::Created(header) => (true, header),
        CreateRunOutcome::Replayed(header) => (false, header),
    }
}

pub async fn the_same_key_with_the_same_request_is_replayed(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    world.register(&spec("other", "a")).await;
    let asked = NewRun { idempotency_key: Some("k1".into()), ..new_run("etl", "r1") };
    let (made, first) = create(&world, &asked).await;
    let (made_again, replayed) = create(&world, &asked).await;
    assert_eq!((made, made_again, first.key), (true, false, replayed.key));
    let owner = world.owner_of("etl").await;
    world.drive(&owner, first.key, "run=running").await;
    assert_eq!(
        create(&world, &asked).await.1.state,
        RunState::Running,
        "a replay shows the run as it is now"
    );
    let elsewhere = NewRun { dag: "other".into(), ..asked };
    assert!(create(&world, &elsewhere).await.0, "a key belongs to its dag");
}

pub async fn a_retry_with_another_clock_is_the_same_request(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let at = |run_after| NewRun {
        idempotency_key: Some("k1".into()),
        run_after,
        ..new_run("etl", RunType::Manual.run_id(run_after).as_str())
    };
    let (_, first) = create(&world, &at(day_of_january(1))).await;
    let (made, again) = create(&world, &at(day_of_january(2))).await;
    assert_eq!((made, again.key), (false, first.key));
}

pub async fn the_same_key_with_another_request_is_a_conflict(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let asked = NewRun { idempotency_key: Some("k1".into()), ..new_run("etl", "r1") };
    create(&world, &asked).await;
    let other = NewRun { conf: json!({"other": true}), ..asked.clone() };
    assert_conflict(world.store.create_run(&user(), &other).await, "k1");
    let other = NewRun { run_id: "r2".into(), ..asked };
    assert_conflict(world.store.create_run(&user(), &other).await, "k1");
}

pub async fn the_same_run_id_is_a_conflict(fresh: Fresh) {
    let world = World::of(fresh);
    let first = world.run_of("etl", "a").await;
    assert_conflict(world.store.create_run(&user(), &new_run("etl", "r1")).await, "r1");
    world.register(&spec("other", "a")).await;
    assert_ne!(world.trigger("other", "r1").await.key, first.key, "run ids belong to their dag");
}

pub async fn the_same_logical_date_is_a_conflict(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    world.create(&due_run("etl", 1)).await;
    let same_date = NewRun { run_id: "mine".into(), ..due_run("etl", 1) };
    assert_conflict(world.store.create_run(&user(), &same_date).await, "2026-01-01");
    world.create(&due_run("etl", 2)).await;
}

pub async fn runs_without_a_logical_date_do_not_collide(fresh: Fresh) {
    let world = World::of(fresh);
    world.run_of("etl", "a").await;
    world.trigger("etl", "r2").await;
}

pub async fn a_run_of_an_unknown_dag_is_not_found(fresh: Fresh) {
    let world = World::of(fresh);
    assert_not_found(world.store.create_run(&user(), &new_run("nope", "r1")).await, "nope");
}

pub async fn a_run_keeps_the_version_it_was_created_from(fresh: Fresh) {
    let world = World::of(fresh);
    let first = world.run_of("etl", "a").await;
    world.register(&spec("etl", "a b")).await;
    let second = world.trigger("etl", "r2").await;
    assert_eq!((first.version, second.version), (1, 2));
    assert_eq!(states(&world.load(first.key).await), "a=none");
    assert_eq!(states(&world.load(second.key).await), "a=none b=none");
}

pub async fn run_keys_are_never_reused(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "a=success run=success").await;
    world.store.delete_run(&user(), &"etl".into(), &"r1".into()).await.expect("deleted");
    assert!(world.trigger("etl", "r1").await.key > run.key);
}

pub async fn only_a_finished_run_is_deleted(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    assert_conflict(world.store.delete_run(&user(), &"etl".into(), &"r1".into()).await, "r1");
    assert_not_found(world.store.delete_run(&user(), &"etl".into(), &"r9".into()).await, "r9");
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "a=success run=success").await;
    world.store.delete_run(&user(), &"etl".into(), &"r1".into()).await.expect("deleted");
    assert!(world.store.load_runs(&[run.key]).await.expect("answered").runs.is_empty());
    assert_eq!(world.store.get_run(&tenant(), &"etl".into(), &"r1".into()).await.expect("answered"), None);
    let trail = world.trail("etl", "r1").await;
    assert_eq!(trail.last().expect("a trail"), "run:deleted success>");
}

pub async fn a_note_changes_nothing_else(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let before = world.load(run.key).await;
    let (dag, run_id) = ("etl".into(), "r1".into());
    let view = world.store.set_run_note(&user(), &dag, &run_id, Some("look here")).await.expect("noted");
    assert_eq!(view.note.as_deref(), Some("look here"));
    assert_eq!(
        world.load(run.key).await.header,
        before.header,
        "not even the revision: no owner reads notes"
    );
    let view = world.store.set_run_note(&user(), &dag, &run_id, None).await.expect("noted");
    assert_eq!(view.note, None);
    assert_not_found(world.store.set_run_note(&user(), &dag, &"r9".into(), None).await, "r9");
}
