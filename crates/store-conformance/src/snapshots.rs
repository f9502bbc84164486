//! Goal: an owner that takes over sees all that is unfinished in its shard, as it was written, and no more.

use tenure_model::{NewRun, PoolName, RunKey, RunState, ShardId, TaskState};
use tenure_store::PoolRecord;

use crate::harness::{
    World, assert_not_found, day_of_january, due_run, key_of, new_run, spec, states, tenant,
};
use crate::{Fresh, SHARDS, Spoiled};

pub async fn a_shard_sees_its_own_dags_and_unfinished_runs_only(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(world.store.shard_count().await.expect("a count"), SHARDS);
    let dags: Vec<String> = (0..12).map(|number| format!("dag-{number}")).collect();
    for dag in &dags {
        world.register(&spec(dag, "a b<a")).await;
        world.trigger(dag, "queued").await;
        let owner = world.owner_of(dag).await;
        let running = world.trigger(dag, "running").await;
        world.drive(&owner, running.key, "run=running a=running").await;
        let finished = world.trigger(dag, "finished").await;
        world.drive(&owner, finished.key, "a=success b=success run=success").await;
        drop(owner);
    }
    let mut seen = vec![];
    for shard in (0..SHARDS).map(ShardId) {
        let snapshot = world.store.shard_snapshot(shard).await.expect("a snapshot");
        for dag in &snapshot.dags {
            assert_eq!(dag.shard, shard);
            assert_eq!(dag.shard, world.shard_of(dag.dag.as_str()).await);
            seen.push(dag.dag.to_string());
        }
        assert_eq!(snapshot.queued.len(), snapshot.dags.len());
        assert!(snapshot.queued.iter().all(|run| run.run_id.as_str() == "queued" && run.shard == shard));
        assert_eq!(snapshot.running.len(), snapshot.dags.len());
        for run in &snapshot.running {
            assert_eq!((run.header.run_id.as_str(), run.header.state), ("running", RunState::Running));
            assert_eq!(states(run), "a=running b=none");
            let loaded = world.load(run.header.key).await;
            assert_eq!((&loaded.header, &loaded.tis), (&run.header, &run.tis));
        }
    }
    seen.sort();
    let mut expected = dags;
    expected.sort();
    assert_eq!(seen, expected, "every dag is in exactly one shard");
}

pub async fn a_loaded_run_is_what_was_written(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    let mut change = world.change(&world.load(run.key).await, "a=running b=failed run=running");
    for (number, ti) in change.tis.iter_mut().enumerate() {
        ti.to.try_number = 3 + number as u32;
        ti.to.max_tries = 9;
        ti.to.reason = Some("exit code 3 — «äöü» \u{1F980}".into());
        ti.to.scheduled_at = Some(day_of_january(1));
        ti.to.queued_at = Some(day_of_january(2));
        ti.to.started_at = Some("1969-12-31T23:59:59.999999Z".parse().expect("an instant"));
        ti.to.ended_at = Some("2026-01-04T00:00:00.000001Z".parse().expect("an instant"));
    }
    let expected: Vec<_> = change.tis.iter().map(|ti| ti.to.clone()).collect();
    world.commit_whole(&owner, &crate::harness::pass_of(vec![change])).await;
    let loaded: Vec<_> = world.load(run.key).await.tis.into_iter().map(|cached| cached.ti).collect();
    assert_eq!(loaded, expected, "to the microsecond");
}

pub async fn missing_runs_are_left_out(fresh: Fresh) {
    let world = World::of(fresh);
    let first = world.run_of("etl", "a").await;
    let second = world.trigger("etl", "r2").await;
    let asked = [second.key, RunKey(first.key.0 + 1_000), first.key];
    let loaded = world.store.load_runs(&asked).await.expect("loaded").runs;
    let mut loaded: Vec<_> = loaded.into_iter().map(|run| run.header.key).collect();
    loaded.sort();
    assert_eq!(loaded, [first.key, second.key]);
    assert!(world.store.load_runs(&[]).await.expect("loaded").runs.is_empty());
}

pub async fn a_row_that_makes_no_sense_costs_its_own_run_and_no_other(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b")).await;
    let owner = world.owner_of("etl").await;
    let mut running = vec![];
    for number in 0..3 {
        let run = world.trigger("etl", &format!("running-{number}")).await;
        running.push(world.drive(&owner, run.key, "run=running a=running").await);
    }
    let (queued, good) = (world.trigger("etl", "bad").await, world.trigger("etl", "good").await);
    world.spoil(Spoiled::Task(key_of(running[0].header.key, &running[0].tis[1]))).await;
    world.spoil(Spoiled::Run(running[1].header.key)).await;
    world.spoil(Spoiled::Run(queued.key)).await;

    let bad = [running[0].header.key, running[1].header.key, queued.key];
    let keys = |unreadable: &[(RunKey, String)]| {
        assert!(unreadable.iter().all(|(_, why)| !why.is_empty()), "{unreadable:?}");
        let mut keys: Vec<RunKey> = unreadable.iter().map(|(key, _)| *key).collect();
        keys.sort();
        keys
    };
    let snapshot = world.store.shard_snapshot(world.shard_of("etl").await).await.expect("a snapshot");
    assert_eq!(keys(&snapshot.unreadable), bad);
    assert_eq!(snapshot.running.len(), 1);
    assert_eq!(
        (&snapshot.running[0].header, &snapshot.running[0].tis),
        (&running[2].header, &running[2].tis)
    );
    assert_eq!(snapshot.queued.iter().map(|run| run.key).collect::<Vec<_>>(), [good.key]);

    let asked = [bad[0], running[2].header.key, bad[1], bad[2], RunKey(good.key.0 + 1_000)];
    let loaded = world.store.load_runs(&asked).await.expect("loaded");
    assert_eq!(keys(&loaded.unreadable), bad);
    assert_eq!(loaded.runs.iter().map(|run| run.header.key).collect::<Vec<_>>(), [running[2].header.key]);
}

pub async fn the_past_run_is_the_latest_one_before(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b")).await;
    let owner = world.owner_of("etl").await;
    for day in [1, 2, 4] {
        world.create(&due_run("etl", day)).await;
    }
    world.create(&new_run("etl", "undated")).await;
    world.register(&spec("other", "a")).await;
    world.create(&NewRun { dag: "other".into(), ..due_run("other", 3) }).await;
    let past = |day| {
        let store = world.store.clone();
        async move { store.past_run(&tenant(), &"etl".into(), day_of_january(day)).await.expect("answered") }
    };
    assert_eq!(past(1).await, None);
    let second = past(4).await.expect("the second");
    world.drive(&owner, second.key, "a=success run=running").await;
    let second = past(3).await.expect("the second");
    assert_eq!(second.state, RunState::Running);
    assert_eq!(second.tasks, vec![("a".into(), TaskState::Success), ("b".into(), TaskState::None)]);
    assert_eq!(world.load(second.key).await.header.logical_date, Some(day_of_january(2)));
}

pub async fn a_version_can_be_read_and_a_missing_one_is_not_found(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a b<a")).await;
    let version = world.store.dag_version(&tenant(), &"etl".into(), 1).await.expect("there");
    assert_eq!((version.version, &*version.spec), (1, &spec("etl", "a b<a")));
    assert_not_found(world.store.dag_version(&tenant(), &"etl".into(), 2).await, "etl");
    assert_not_found(world.store.dag_version(&tenant(), &"nope".into(), 1).await, "nope");
}

pub async fn the_default_pool_is_there_from_the_start(fresh: Fresh) {
    let world = World::of(fresh);
    let pools = world.store.limits().await.expect("limits").pools;
    let [PoolRecord { name, slots, .. }] = &pools[..] else { panic!("{pools:?}") };
    assert_eq!((name, *slots), (&PoolName::default_pool(), PoolName::DEFAULT_SLOTS));
}
