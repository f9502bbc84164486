//! Goal: a call that is cancelled, cut off or refused leaves the truth intact, and says what it knows.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::wire::{Cut, Wire};
use common::{SOON, change, client, load, new_run, owner, parked, pass, register, store, trigger, user};
use tenure_clock::Entropy;
use tenure_model::{NewRun, TaskState};
use tenure_store::{CreateRunOutcome, IntentStore, SchedulingStore, StoreError, Views};
use tenure_store_postgres::{ConnectError, PostgresOptions, PostgresStore};
use tenure_testkit::{Postgres, Settings, free_port, wait_for};

#[tokio::test]
async fn a_cancelled_pass_leaves_the_next_borrower_a_clean_connection() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 1).await;
    register(&ours, "etl", 1).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    let snapshot = load(&ours, run.key).await;

    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs FOR UPDATE", &[]).await.unwrap();
    let doomed = tokio::spawn({
        let (ours, tenure, snapshot) = (Arc::clone(&ours), tenure.clone(), snapshot.clone());
        async move {
            let pass = pass(vec![change(&snapshot, TaskState::None, TaskState::Skipped)]);
            ours.commit_pass(&tenure.guard().expect("leads"), &pass).await
        }
    });
    parked(&client(&database.url).await, "UPDATE runs").await;
    doomed.abort();
    assert!(doomed.await.unwrap_err().is_cancelled());

    // The only connection of the pool is not stuck behind the lock that the cancelled call waits for.
    tokio::time::timeout(Duration::from_secs(1), ours.ping()).await.expect("at once").expect("answered");
    lock.commit().await.unwrap();
    let pass = pass(vec![change(&snapshot, TaskState::None, TaskState::Scheduled)]);
    let committed = ours.commit_pass(&tenure.guard().unwrap(), &pass).await.expect("committed");
    assert_eq!(committed.conflicts, vec![], "the cancelled pass has not moved the revision");
    // Seen from elsewhere: it was a transaction of its own, not a part of the cancelled one.
    let other = store(&database.url, 1).await;
    assert_eq!(load(&other, run.key).await.tis[0].ti.state, TaskState::Scheduled);
}

/// Every point at which a caller may give up: polled a few times, then dropped.
#[tokio::test]
async fn calls_dropped_at_any_point_do_no_harm() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 2).await;
    register(&ours, "etl", 3).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    for number in 0..60u32 {
        let snapshot = load(&ours, run.key).await;
        let from = snapshot.tis[0].ti.state;
        let to = if from == TaskState::None { TaskState::Scheduled } else { TaskState::None };
        let pass = pass(vec![change(&snapshot, from, to)]);
        let guard = tenure.guard().unwrap();
        let commit = ours.commit_pass(&guard, &pass);
        let patience = Duration::from_micros(u64::from(number) * 50);
        let outcome = tokio::time::timeout(patience, commit).await;
        if let Ok(committed) = outcome {
            assert_eq!(committed.expect("committed").conflicts, vec![]);
        }
        // Whole or not at all: the three rows move together, with the revision.
        let after = load(&ours, run.key).await;
        let moved = after.tis.iter().filter(|cached| cached.ti.state == to).count();
        assert_eq!(moved, if after.header.revision == snapshot.header.revision { 0 } else { 3 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_is_survived_by_the_same_store() {
    let server = Postgres::own(Settings { fsync: true, ..Settings::default() });
    let ours = store(&server.url(), 4).await;
    register(&ours, "etl", 1).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    let first = pass(vec![change(&load(&ours, run.key).await, TaskState::None, TaskState::Scheduled)]);
    ours.commit_pass(&tenure.guard().unwrap(), &first).await.expect("committed");
    let busy = tokio::spawn(trigger_through_an_outage(Arc::clone(&ours)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.restart_immediately();

    for failure in tokio::time::timeout(SOON, busy).await.expect("it works again").expect("no panic") {
        let honest = matches!(failure, StoreError::Unavailable { .. } | StoreError::Unknown { .. });
        assert!(honest, "{failure:?}");
    }
    let kept =
        wait_for("a read", SOON, || async { ours.load_runs(&[run.key]).await.ok() }).await.runs.remove(0);
    assert_eq!(kept.tis[0].ti.state, TaskState::Scheduled, "acknowledged and kept");
    let next = pass(vec![change(&kept, TaskState::Scheduled, TaskState::Skipped)]);
    let guard = tenure.guard().expect("the lease outlived the restart");
    let again = wait_for("a commit", SOON, || async { ours.commit_pass(&guard, &next).await.ok() }).await;
    assert_eq!(again.conflicts, vec![]);
}

/// What went wrong until it went well again.
async fn trigger_through_an_outage(ours: Arc<PostgresStore>) -> Vec<StoreError> {
    let mut failures = vec![];
    for number in 0.. {
        match ours.create_run(&user(), &new_run("etl", &format!("busy-{number}"))).await {
            Ok(_) if !failures.is_empty() => break,
            Ok(_) => {}
            Err(error) => failures.push(error),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    failures
}

/// How a keyed trigger ends when the wire breaks, and what a repetition says.
async fn trigger_over(cut: Cut) -> (StoreError, CreateRunOutcome) {
    let database = Postgres::shared().database().await;
    let wire = Wire::to(&database.url, cut).await;
    let ours = store(&wire.url, 1).await;
    register(&ours, "etl", 1).await;
    let asked = NewRun { idempotency_key: Some("k".into()), ..new_run("etl", "r1") };
    wire.arm();
    let error = ours.create_run(&user(), &asked).await.expect_err("the wire broke");
    (error, ours.create_run(&user(), &asked).await.expect("a second try"))
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_is_unknown_and_repeating_is_safe() {
    let (error, again) = trigger_over(Cut::After(b"COMMIT\0")).await;
    assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
    assert!(matches!(again, CreateRunOutcome::Replayed(_)), "it was committed: {again:?}");
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_unknown_too() {
    let (error, again) = trigger_over(Cut::Before(b"COMMIT\0")).await;
    assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
    assert!(matches!(again, CreateRunOutcome::Created(_)), "it was not committed: {again:?}");
}

#[tokio::test]
async fn a_wire_that_breaks_before_the_commit_changes_nothing_for_certain() {
    let (error, again) = trigger_over(Cut::Before(b"BEGIN")).await;
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(matches!(again, CreateRunOutcome::Created(_)), "{again:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_without_the_password() {
    let port = free_port();
    let url = format!("postgres://ada:secret@127.0.0.1:{port}/tenure");
    let error =
        PostgresStore::connect(&url, PostgresOptions::default(), &Entropy::from_os()).await.unwrap_err();
    let whole = format!("{error} {error:?}");
    assert!(whole.contains(&format!("127.0.0.1:{port}, database tenure")), "{whole}");
    assert!(!whole.contains("secret"), "{whole}");
}

#[tokio::test]
async fn a_schema_from_the_future_is_refused() {
    let database = Postgres::shared().database().await;
    drop(store(&database.url, 1).await);
    let sql = "INSERT INTO schema_version (version, name) VALUES (99, 'future')";
    client(&database.url).await.execute(sql, &[]).await.unwrap();
    let refused =
        PostgresStore::connect(&database.url, PostgresOptions::default(), &Entropy::from_os()).await;
    match refused {
        Err(error @ ConnectError::NewerSchema { found: 99, .. }) => {
            assert!(error.to_string().contains("version 99"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn replicas_that_start_together_migrate_once_and_agree_on_the_shards() {
    let database = Postgres::shared().database().await;
    let start = |shards| {
        let url = database.url.clone();
        tokio::spawn(async move {
            let options = PostgresOptions { shards, ..PostgresOptions::default() };
            let store = PostgresStore::connect(&url, options, &Entropy::from_os()).await.expect("connected");
            store.shard_count().await.expect("a count")
        })
    };
    let starts: Vec<_> = (1..=6).map(start).collect();
    let mut counts = vec![];
    for start in starts {
        counts.push(start.await.expect("no panic"));
    }
    counts.dedup();
    assert_eq!(counts.len(), 1, "{counts:?}");
}

#[tokio::test]
async fn a_name_that_cannot_be_stored_is_the_callers_conflict() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 1).await;
    register(&ours, "etl", 1).await;
    let refused = ours.create_run(&user(), &new_run("etl", "r\0")).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    let noted = NewRun { note: Some("a\0b".into()), ..new_run("etl", "r1") };
    ours.create_run(&user(), &noted).await.expect("free-form texts are made storable");
}
