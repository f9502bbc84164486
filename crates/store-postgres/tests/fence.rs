//! Goal: after an epoch has moved, nothing with an older one commits. Method: transactions are parked with
//! row locks before and after the fence check while the epoch moves; the weaker checks are shown to fail.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    SOON, change, client, granted, load, owner, parked, pass, register, request, scope, store, takeover,
    trigger,
};
use tenure_lease::{AcquireOutcome, FenceStore, LeaseError, LeaseRecord, LeaseStore, Takeover};
use tenure_model::TaskState;
use tenure_store::{SchedulingStore, StoreError};
use tenure_testkit::{Postgres, wait_for};
use tokio_postgres::{Client, IsolationLevel};

/// Long enough for something that does not wait to be over.
const A_WHILE: Duration = Duration::from_millis(300);

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// The store's transactions run at this level unless they say otherwise.
fn at_level(url: &str, level: IsolationLevel) -> String {
    let name = match level {
        IsolationLevel::RepeatableRead => "repeatable%5C%20read",
        IsolationLevel::Serializable => "serializable",
        _ => "read%5C%20committed",
    };
    format!("{url}?options=-c%20default_transaction_isolation%3D{name}")
}

#[tokio::test]
async fn a_takeover_waits_for_the_write_that_passed_the_fence_before_it() {
    for level in LEVELS {
        let database = Postgres::shared().database().await;
        let url = at_level(&database.url, level);
        let (ours, theirs) = (store(&url, 4).await, store(&url, 4).await);
        register(&ours, "etl", 1).await;
        let run = trigger(&ours, "etl", "r1").await;
        let (_standing, tenure) = owner(&ours).await;
        let late_guard = tenure.guard().expect("leads");
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
        parked(&observer, TAKING).await;
        tokio::time::sleep(A_WHILE).await;
        assert!(!taking.is_finished() && !writing.is_finished(), "{level:?}");

        lock.commit().await.unwrap();
        let committed = writing.await.unwrap().expect("it was there first");
        assert_eq!(committed.conflicts, vec![], "{level:?}");
        let AcquireOutcome::Granted(heir) = taking.await.unwrap().expect("granted") else { panic!("held") };
        let late = pass(vec![change(&load(&ours, run.key).await, TaskState::Scheduled, TaskState::Skipped)]);
        match ours.commit_pass(&late_guard, &late).await {
            Err(StoreError::Fenced { ours, current }) => {
                assert_eq!((ours, current), (tenure.epoch(), Some(heir.epoch)), "{level:?}")
            }
            other => panic!("the old epoch wrote at {level:?}: {other:?}"),
        }
    }
}

/// The statement of an acquire that waits for the fence.
const TAKING: &str = "WITH seen AS MATERIALIZED";

#[tokio::test]
async fn a_write_waits_for_the_takeover_that_came_first_and_is_refused() {
    for level in LEVELS {
        let database = Postgres::shared().database().await;
        let ours = store(&at_level(&database.url, level), 4).await;
        register(&ours, "etl", 1).await;
        let run = trigger(&ours, "etl", "r1").await;
        let (_standing, tenure) = owner(&ours).await;
        let snapshot = load(&ours, run.key).await;

        let mut other = client(&database.url).await;
        let bump = other.transaction().await.unwrap();
        bump.execute("UPDATE fences SET epoch = epoch + 1, term = gen_random_uuid()", &[]).await.unwrap();
        let stale = pass(vec![change(&snapshot, TaskState::None, TaskState::Scheduled)]);
        let writing = tokio::spawn({
            let (ours, tenure, stale) = (Arc::clone(&ours), tenure.clone(), stale.clone());
            async move { ours.commit_pass(&tenure.guard().expect("leads"), &stale).await }
        });
        parked(&client(&database.url).await, "SELECT f.epoch, f.term").await;
        bump.commit().await.unwrap();
        let refused = writing.await.unwrap().expect_err("the epoch has moved");
        match level {
            IsolationLevel::ReadCommitted => {
                assert!(matches!(refused, StoreError::Fenced { .. }), "{refused:?}")
            }
            // «Could not serialize»: nothing is known but that nothing was written.
            _ => assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused:?}"),
        }
        let again = ours.commit_pass(&tenure.guard().expect("believes to lead"), &stale).await;
        assert!(matches!(again, Err(StoreError::Fenced { .. })), "{level:?}: {again:?}");
        assert_eq!(load(&ours, run.key).await.tis[0].ti.state, TaskState::None, "{level:?}");
    }
}

#[tokio::test]
async fn the_same_epoch_under_another_term_is_fenced() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    client(&database.url).await.execute("UPDATE fences SET term = gen_random_uuid()", &[]).await.unwrap();
    let refused = ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![])).await;
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_missing_fence_is_told_apart_from_a_newer_one() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    client(&database.url).await.execute("DELETE FROM fences", &[]).await.unwrap();
    let refused = ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![])).await;
    assert!(matches!(refused, Err(StoreError::Fenced { current: None, .. })), "{refused:?}");
}

/// An owner that stops for good inside a transaction holds up its successor for a bounded time only.
#[tokio::test]
async fn a_writer_that_sleeps_in_its_transaction_is_ended_by_the_server() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    let sleeper = client(&database.url).await;
    sleeper.batch_execute("SET idle_in_transaction_session_timeout = '2s'; BEGIN").await.unwrap();
    sleeper.execute("SELECT 1 FROM fences FOR SHARE", &[]).await.unwrap();
    let request = takeover(&tenure);
    let granted = wait_for("the takeover", SOON, || async {
        match ours.acquire(&request).await {
            Ok(AcquireOutcome::Granted(record)) => Some(record),
            Ok(other) => panic!("{other:?}"),
            Err(LeaseError::Unavailable(_)) => None,
            Err(error) => panic!("{error}"),
        }
    });
    assert!(granted.await.epoch > tenure.epoch());
}

/// Where the stale write stands when the epoch moves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Parked {
    /// In a transaction that has begun to read, and has not looked at the fence.
    BeforeTheCheck,
    AfterTheCheck,
}

#[derive(Debug, PartialEq)]
enum Ending {
    /// A write of the old epoch was committed after the new one was there: what a fence is to prevent.
    StaleWrite,
    /// The takeover waited until the write was over.
    TakeoverWaited,
    Refused,
}

/// A write that checks its fence in this way, at this level, and is overtaken.
async fn overtaken(check: &str, level: IsolationLevel, at: Parked) -> Ending {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let scope = scope();
    let old = granted(&*ours, &request(&scope, Takeover::IfFree)).await;
    let observer = client(&database.url).await;
    observer.batch_execute("CREATE TABLE effects (epoch bigint)").await.unwrap();

    let mut stale = client(&database.url).await;
    let write = stale.build_transaction().isolation_level(level).start().await.unwrap();
    write.execute("SELECT 1 FROM effects", &[]).await.unwrap();
    let sql = format!("SELECT 1 FROM fences WHERE scope = $1 AND epoch = $2 AND term = $3 {check}");
    let epoch = old.epoch.0 as i64;
    let passes = async || write.query(&sql, &[&scope.as_str(), &epoch, &old.term.0]).await;
    if at == Parked::AfterTheCheck {
        assert_eq!(passes().await.unwrap().len(), 1, "it leads");
    }
    let heir = request(&scope, Takeover::OfDead(old.term));
    let mut taking = tokio::spawn({
        let ours = Arc::clone(&ours);
        async move { granted(&*ours, &heir).await }
    });
    if tokio::time::timeout(A_WHILE, &mut taking).await.is_err() {
        write.execute("INSERT INTO effects VALUES ($1)", &[&epoch]).await.unwrap();
        write.commit().await.unwrap();
        assert!(taking.await.expect("no panic").epoch > old.epoch);
        return Ending::TakeoverWaited;
    }
    if at == Parked::BeforeTheCheck && !passes().await.is_ok_and(|rows| rows.len() == 1) {
        return Ending::Refused;
    }
    assert_effect_after_takeover(write, &observer, &old, ours.fence(&scope).await.unwrap().unwrap().0.0)
        .await;
    Ending::StaleWrite
}

async fn assert_effect_after_takeover(
    write: tokio_postgres::Transaction<'_>,
    observer: &Client,
    old: &LeaseRecord,
    current: u64,
) {
    assert!(current > old.epoch.0, "the epoch has moved");
    write.execute("INSERT INTO effects VALUES ($1)", &[&(old.epoch.0 as i64)]).await.unwrap();
    write.commit().await.unwrap();
    assert_eq!(observer.query("SELECT 1 FROM effects", &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_share_lock_keeps_every_stale_write_out_at_every_level() {
    for level in LEVELS {
        assert_eq!(overtaken("FOR SHARE", level, Parked::AfterTheCheck).await, Ending::TakeoverWaited);
        assert_eq!(overtaken("FOR SHARE", level, Parked::BeforeTheCheck).await, Ending::Refused);
    }
}

/// Why the check is FOR SHARE.
#[tokio::test]
async fn a_plain_read_of_the_fence_lets_a_stale_write_commit_after_the_takeover() {
    for level in LEVELS {
        assert_eq!(overtaken("", level, Parked::AfterTheCheck).await, Ending::StaleWrite, "{level:?}");
    }
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let ending = overtaken("", level, Parked::BeforeTheCheck).await;
        assert_eq!(ending, Ending::StaleWrite, "{level:?} reads the fence as it was when it began");
    }
}

#[tokio::test]
async fn a_key_share_lock_lets_a_stale_write_commit_after_the_takeover() {
    for level in LEVELS {
        let ending = overtaken("FOR KEY SHARE", level, Parked::AfterTheCheck).await;
        assert_eq!(ending, Ending::StaleWrite, "{level:?}");
    }
}
