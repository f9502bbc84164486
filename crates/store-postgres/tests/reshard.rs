//! Goal: the number of shards can be changed while nothing runs, whatever happens in between, and nobody who still
//! has the old number in mind writes anything afterwards.

mod common;

use std::collections::BTreeSet;

use common::{bound, change, client, leader, load, owner, pass, register, sharded, trigger, user};
use tenure_clock::Entropy;
use tenure_lease::{FenceStore, LeaseStore, Scope};
use tenure_model::{DagId, ShardId, TaskState, TenantId};
use tenure_store::{DagRegistration, IntentStore, Pass, SchedulingStore, StoreError};
use tenure_store_postgres::{ConnectError, PostgresOptions, PostgresStore, ReshardError, Resharded, reshard};
use tenure_testkit::Postgres;
use tokio_postgres::Client;

const DAGS: usize = 40;

fn nothing(_: u64, _: u64) {}

fn shard_of(dag: &str, shards: u16) -> i32 {
    i32::from(ShardId::of(&TenantId::default_tenant(), &DagId::new(dag), shards).0)
}

/// Dags with a run each.
async fn filled(store: &PostgresStore) {
    for number in 0..DAGS {
        let dag = format!("dag-{number}");
        register(store, &dag, 1).await;
        trigger(store, &dag, "r1").await;
    }
}

/// How many dags and runs are not where they belong.
async fn misplaced(client: &Client, shards: u16) -> usize {
    let sql = "SELECT dag_id, shard FROM dags UNION ALL SELECT dag_id, shard FROM runs";
    let rows = client.query(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), 2 * DAGS);
    rows.iter().filter(|row| row.get::<_, i32>(1) != shard_of(row.get(0), shards)).count()
}

async fn connect(url: &str) -> Result<PostgresStore, ConnectError> {
    PostgresStore::connect(url, PostgresOptions::default(), &Entropy::from_os()).await
}

#[tokio::test]
async fn every_dag_and_every_run_finds_its_new_shard() {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    let before = sharded(&database.url, 4, 2).await;
    filled(&before).await;
    drop(before);
    let mut told = vec![];
    let done = reshard(&database.url, 16, |done, total| told.push((done, total))).await.expect("resharded");
    assert_eq!((done.from, done.to), (4, 16));
    let moves = |dag: &usize| {
        let dag = format!("dag-{dag}");
        shard_of(&dag, 4) != shard_of(&dag, 16)
    };
    let moved = (0..DAGS).filter(moves).count() as u64;
    assert!(moved > 0 && done.moved_dags == moved && done.moved_runs == moved, "{done:?}, not {moved}");
    assert_eq!((told.first(), told.last()), (Some(&(0, 80)), Some(&(80, 80))));
    assert_eq!(misplaced(&observer, 16).await, 0);
    assert!(observer.query("SELECT 1 FROM attention", &[]).await.unwrap().is_empty());

    // An owner finds all of it.
    let after = connect(&database.url).await.expect("it is finished");
    assert_eq!(after.shard_count().await.unwrap(), 16);
    let mut found = BTreeSet::new();
    for shard in 0..16 {
        let snapshot = after.shard_snapshot(ShardId(shard)).await.unwrap();
        found.extend(snapshot.queued.into_iter().map(|run| run.dag.to_string()));
    }
    assert_eq!(found.len(), DAGS);
    // And back, with fewer than before.
    drop(after);
    reshard(&database.url, 1, nothing).await.expect("resharded");
    assert_eq!(misplaced(&observer, 1).await, 0);
}

#[tokio::test]
async fn it_refuses_while_a_shard_is_led_and_names_who_leads_it() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 2, 2).await;
    filled(&ours).await;
    let observer = client(&database.url).await;
    let (standing, tenure) = leader(&ours, Scope::new(ShardId(1).scope())).await;
    match reshard(&database.url, 4, nothing).await {
        Err(error @ ReshardError::Led { .. }) => {
            let text = error.to_string();
            assert!(text.contains("scheduler/shard-01") && text.contains("owner (test)"), "{text}");
        }
        other => panic!("somebody leads: {other:?}"),
    }
    assert_eq!(misplaced(&observer, 2).await, 0, "nothing was changed");
    ours.commit_pass(&tenure.guard().expect("leads"), &pass(vec![])).await.expect("nobody was fenced off");
    assert!(connect(&database.url).await.is_ok(), "nothing has begun");
    drop(tenure);
    standing.stop().await;
    drop((standing, ours));
    reshard(&database.url, 4, nothing).await.expect("nobody leads any more");
}

#[tokio::test]
async fn a_change_that_was_killed_is_finished_by_the_same_command_and_nobody_starts_before() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 4, 2).await;
    filled(&ours).await;
    drop(ours);
    let observer = client(&database.url).await;
    // After the dags, before the runs.
    let url = database.url.clone();
    let killed = tokio::spawn(async move {
        let die = |done: u64, _| assert!(done < DAGS as u64, "killed");
        reshard(&url, 16, die).await
    });
    assert!(killed.await.unwrap_err().is_panic());
    assert!(misplaced(&observer, 16).await > 0, "half of it is done");
    match connect(&database.url).await {
        Err(error @ ConnectError::Resharding { .. }) => {
            assert!(error.to_string().contains("run the same command again"), "{error}");
        }
        other => panic!("nobody may start now: {other:?}"),
    }
    let done = reshard(&database.url, 16, nothing).await.expect("finished");
    let Resharded { moved_dags, moved_runs, .. } = done;
    assert!(moved_dags == 0 && moved_runs > 0, "only what was left: {done:?}");
    assert_eq!(misplaced(&observer, 16).await, 0);
    connect(&database.url).await.expect("it is finished");
}

/// A change to 16 in the middle of which another one, to 8, begins and ends in this way.
async fn overtaken_by(
    later: fn(u64, u64),
) -> (tenure_testkit::TestDatabase, Result<Resharded, ReshardError>) {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 4, 2).await;
    filled(&ours).await;
    drop(ours);
    let (url, runtime) = (database.url.clone(), tokio::runtime::Handle::current());
    let first = tokio::task::spawn_blocking(move || {
        let (mut second, handle) = (Some(url.clone()), runtime.clone());
        runtime.block_on(reshard(&url, 16, move |_, _| {
            if let Some(url) = second.take() {
                let work = handle.spawn(async move { reshard(&url, 8, later).await.map(drop) });
                // In a thread of its own: this one is inside a runtime.
                let handle = handle.clone();
                let waiting = std::thread::spawn(move || drop(handle.block_on(work)));
                waiting.join().expect("no panic");
            }
        }))
    });
    let outcome = first.await.expect("no panic");
    (database, outcome)
}

#[tokio::test]
async fn of_two_changes_the_one_that_began_later_goes_on() {
    let (database, first) = overtaken_by(nothing).await;
    assert!(matches!(first, Err(ReshardError::Overtaken)), "the later one has the word: {first:?}");
    assert_eq!(misplaced(&client(&database.url).await, 8).await, 0);
    assert_eq!(connect(&database.url).await.expect("finished").shard_count().await.unwrap(), 8);
}

#[tokio::test]
async fn a_change_that_was_overtaken_does_not_go_on_when_the_other_one_dies() {
    let (database, first) = overtaken_by(|_, _| panic!("killed")).await;
    assert!(matches!(first, Err(ReshardError::Overtaken)), "the later one has the word: {first:?}");
    assert!(
        matches!(connect(&database.url).await, Err(ConnectError::Resharding { .. })),
        "it is not finished"
    );
    reshard(&database.url, 8, nothing).await.expect("finished");
    assert_eq!(misplaced(&client(&database.url).await, 8).await, 0);
}

/// An owner whose lease ran out while it slept, and who wakes up afterwards.
#[tokio::test]
async fn a_stale_owner_that_comes_back_writes_nothing() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 2, 4).await;
    let dag = common::dags_of_shards(2).remove(0);
    register(&ours, &dag, 1).await;
    let (_standing, tenure) = owner(&ours).await;
    let run = bound(&ours, &tenure, &dag, "r1").await;
    let observer = client(&database.url).await;
    let expire = "UPDATE leases SET expires_at = clock_timestamp() - interval '1 second'";
    observer.batch_execute(expire).await.unwrap();
    let epochs = async || {
        let scopes = (0..4).map(|shard| Scope::new(ShardId(shard).scope()));
        let mut epochs = vec![];
        for scope in scopes {
            epochs.push(ours.fence(&scope).await.unwrap().map_or(0, |(epoch, _)| epoch.0));
        }
        epochs
    };
    let before = epochs().await;
    reshard(&database.url, 4, nothing).await.expect("nobody leads");
    let after = epochs().await;
    assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");

    let guard = tenure.guard().expect("it does not know yet");
    let late = pass(vec![change(&run, TaskState::Queued, TaskState::Running)]);
    match ours.commit_pass(&guard, &late).await {
        Err(StoreError::Fenced { current: Some(current), .. }) => assert_eq!(current.0, after[0]),
        other => panic!("its epoch is over: {other:?}"),
    }
    assert_eq!(load(&ours, run.header.key).await.tis[0].ti.state, TaskState::Queued);
}

/// It was never stopped, and campaigns again: it gets a new epoch, and still has the old number in mind.
#[tokio::test]
async fn a_server_with_the_old_number_in_mind_is_told_to_restart() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 2, 4).await;
    reshard(&database.url, 4, nothing).await.expect("nobody leads");
    let (_standing, tenure) = owner(&ours).await;
    let restart = |outcome: Result<(), StoreError>| match outcome {
        Err(StoreError::Conflict(text)) => {
            assert!(text.contains("4 shards now and had 2") && text.contains("restart"), "{text}");
        }
        other => panic!("it must not go on: {other:?}"),
    };
    let empty = Pass::new(common::now(), "owner");
    restart(ours.commit_pass(&tenure.guard().unwrap(), &empty).await.map(drop));
    restart(ours.trade_shares(&tenure.guard().unwrap(), &[]).await.map(drop));
    let registration = DagRegistration {
        trigger: user(),
        spec: tenure_model::DagSpec::new("etl", vec![]),
        source: String::new(),
        origin: "test".into(),
        paused_if_new: false,
    };
    restart(ours.register_dag(&registration).await.map(drop));
    assert!(ours.list_leases("scheduler/").await.is_ok(), "what is not about shards goes on");
}

#[tokio::test]
async fn no_shards_at_all_is_refused_before_anything_is_touched() {
    let refused = reshard("postgres://nowhere.invalid/none", 0, nothing).await;
    assert!(matches!(refused, Err(ReshardError::NoShards)), "{refused:?}");
}
