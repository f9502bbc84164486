//! Goal: after an epoch has moved, nothing with an older one commits. Method: transactions are parked with
//! row locks before and after the fence check while the epoch moves; the weaker checks are shown to fail.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{SOON, change, client, load, owner, parked, pass, register, scope, store, takeover, trigger};
use tenure_lease::{AcquireOutcome, LeaseError, LeaseStore};
use tenure_model::TaskState;
use tenure_store::{SchedulingStore, StoreError};
use tenure_testkit::{Postgres, wait_for};

/// Long enough for something that does not wait to be over.
const A_WHILE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_takeover_waits_for_the_write_that_passed_the_fence_before_it() {
    let database = Postgres::shared().database().await;
    let (ours, theirs) = (store(&database.url, 4).await, store(&database.url, 4).await);
    register(&ours, "etl", 1).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    let snapshot = load(&ours, run.key).await;

    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs FOR UPDATE", &[]).await.unwrap();
    let writing = tokio::spawn({
        let (ours, tenure, snapshot) = (Arc::clone(&ours), tenure.clone(), snapshot.clone());
        async move {
            let pass = pass(vec![change(&snapshot, TaskState::None, TaskState::Scheduled)]);
            ours.commit_pass(&tenure.guard().expect("leads"), &pass).await
        }
    });
    let observer = client(&database.url).await;
    parked(&observer, "UPDATE runs").await;
    let request = takeover(&tenure);
    let taking = tokio::spawn(async move { theirs.acquire(&request).await });
    parked(&observer, "INSERT INTO fences").await;
    tokio::time::sleep(A_WHILE).await;
    assert!(!taking.is_finished() && !writing.is_finished());

    lock.commit().await.unwrap();
    let committed = writing.await.unwrap().expect("it was there first");
    assert_eq!(committed.conflicts, vec![]);
    let AcquireOutcome::Granted(heir) = taking.await.unwrap().expect("granted") else { panic!("held") };
    let late = pass(vec![change(&load(&ours, run.key).await, TaskState::Scheduled, TaskState::Skipped)]);
    match ours.commit_pass(&tenure.guard().expect("still believes to lead"), &late).await {
        Err(StoreError::Fenced { ours, current }) => {
            assert_eq!((ours, current), (tenure.epoch(), Some(heir.epoch)))
        }
        other => panic!("the old epoch wrote: {other:?}"),
    }
}

#[tokio::test]
async fn a_write_waits_for_the_takeover_that_came_first_and_is_fenced() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    register(&ours, "etl", 1).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    let snapshot = load(&ours, run.key).await;

    let mut other = client(&database.url).await;
    let bump = other.transaction().await.unwrap();
    bump.execute("UPDATE fences SET epoch = epoch + 1, term = gen_random_uuid()", &[]).await.unwrap();
    let writing = tokio::spawn({
        let (ours, tenure) = (Arc::clone(&ours), tenure.clone());
        async move {
            let pass = pass(vec![change(&snapshot, TaskState::None, TaskState::Scheduled)]);
            ours.commit_pass(&tenure.guard().expect("leads"), &pass).await
        }
    });
    parked(&client(&database.url).await, "SELECT epoch, term FROM fences").await;
    bump.commit().await.unwrap();
    let refused = writing.await.unwrap();
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    assert_eq!(load(&ours, run.key).await.tis[0].ti.state, TaskState::None);
}

#[tokio::test]
async fn the_same_epoch_under_another_term_is_fenced() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_elector, tenure) = owner(&ours).await;
    client(&database.url).await.execute("UPDATE fences SET term = gen_random_uuid()", &[]).await.unwrap();
    let refused = ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![])).await;
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_missing_fence_is_told_apart_from_a_newer_one() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_elector, tenure) = owner(&ours).await;
    client(&database.url).await.execute("DELETE FROM fences", &[]).await.unwrap();
    let refused = ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![])).await;
    assert!(matches!(refused, Err(StoreError::Fenced { current: None, .. })), "{refused:?}");
}

#[tokio::test]
async fn a_restored_fence_or_a_deleted_one_never_lowers_an_epoch() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_elector, tenure) = owner(&ours).await;
    let mut latest = tenure.epoch();
    for damage in ["DELETE FROM leases", "UPDATE fences SET epoch = 0", "DELETE FROM fences"] {
        client(&database.url).await.execute(damage, &[]).await.unwrap();
        let request = tenure_lease::AcquireRequest {
            takeover: match ours.list_leases().await.unwrap().first() {
                Some(record) => tenure_lease::Takeover::OfDead(record.term),
                None => tenure_lease::Takeover::IfFree,
            },
            ..takeover(&tenure)
        };
        let AcquireOutcome::Granted(record) = ours.acquire(&request).await.unwrap() else { panic!("held") };
        assert!(record.epoch > latest, "{} after {latest}, after {damage}", record.epoch);
        latest = record.epoch;
    }
}

/// An owner that stops for good inside a transaction holds up its successor for a bounded time only.
#[tokio::test]
async fn a_writer_that_sleeps_in_its_transaction_is_ended_by_the_server() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_elector, tenure) = owner(&ours).await;
    let sleeper = client(&database.url).await;
    sleeper.batch_execute("SET idle_in_transaction_session_timeout = '2s'; BEGIN").await.unwrap();
    sleeper.execute("SELECT 1 FROM fences FOR SHARE", &[]).await.unwrap();
    let request = takeover(&tenure);
    let granted = wait_for("the takeover", SOON, || async {
        match ours.acquire(&request).await {
            Ok(AcquireOutcome::Granted(record)) => Some(record),
            Ok(AcquireOutcome::Held(record)) => panic!("held by {record:?}"),
            Err(LeaseError::Unavailable(_)) => None,
            Err(error) => panic!("{error}"),
        }
    });
    assert!(granted.await.epoch > tenure.epoch());
}

/// Why the check is FOR SHARE: with less, a write that was parked after it commits under an old epoch.
async fn takeover_waits_for(check: &str) -> bool {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    register(&ours, "etl", 1).await;
    let run = trigger(&ours, "etl", "r1").await;
    let (_elector, tenure) = owner(&ours).await;
    let mut stale = client(&database.url).await;
    let write = stale.transaction().await.unwrap();
    let sql = format!("SELECT 1 FROM fences WHERE scope = $1 AND epoch = $2 AND term = $3 {check}");
    let (scope, epoch) = (scope().to_string(), tenure.epoch().0 as i64);
    assert_eq!(write.execute(&sql, &[&scope, &epoch, &tenure.term().0]).await.unwrap(), 1, "it leads");
    write.execute("UPDATE task_instances SET state = 'scheduled'", &[]).await.unwrap();

    let request = takeover(&tenure);
    let mut taking = tokio::spawn({
        let ours = Arc::clone(&ours);
        async move { ours.acquire(&request).await.expect("answered") }
    });
    let waited = tokio::time::timeout(A_WHILE, &mut taking).await.is_err();
    let before = load(&ours, run.key).await.tis[0].ti.state;
    write.commit().await.unwrap();
    let after = load(&ours, run.key).await.tis[0].ti.state;
    assert_eq!((before, after), (TaskState::None, TaskState::Scheduled));
    if waited {
        taking.await.expect("no panic");
    }
    waited
}

#[tokio::test]
async fn a_plain_read_of_the_fence_lets_a_stale_write_commit_after_the_takeover() {
    assert!(!takeover_waits_for("").await);
}

#[tokio::test]
async fn a_key_share_lock_lets_a_stale_write_commit_after_the_takeover() {
    assert!(!takeover_waits_for("FOR KEY SHARE").await);
}

#[tokio::test]
async fn a_share_lock_makes_the_takeover_wait() {
    assert!(takeover_waits_for("FOR SHARE").await);
}
