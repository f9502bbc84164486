//! Goal: no epoch ever comes back, whatever an operator, a backup or a failover does to the tables.

mod common;

use common::{client, granted, leases, request};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{FenceStore, LeaseStore, Scope, Takeover};
use tenure_store_postgres::{EpochMint, PostgresLeaseOptions, PostgresLeases};
use tenure_testkit::Postgres;

fn scope() -> Scope {
    Scope::new("tests/one")
}

/// Takes the lease, from whoever has it.
async fn next_epoch(ours: &PostgresLeases) -> u64 {
    let takeover = match ours.find_lease(&scope()).await.unwrap() {
        Some(record) => Takeover::OfDead(record.term),
        None => Takeover::IfFree,
    };
    let record = granted(ours, &request(&scope(), takeover)).await;
    assert_eq!(ours.fence(&scope()).await.unwrap(), Some((record.epoch, record.term)));
    record.epoch.0
}

#[tokio::test]
async fn rows_that_are_deleted_or_restored_never_lower_an_epoch() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let operator = client(&database.url).await;
    next_epoch(&ours).await;
    operator.batch_execute("CREATE TABLE backup AS TABLE leases").await.unwrap();
    let mut latest = next_epoch(&ours).await;
    for damage in [
        "DELETE FROM leases",
        "DELETE FROM leases; INSERT INTO leases TABLE backup",
        "UPDATE fences SET epoch = 0",
        "DELETE FROM fences",
        "DELETE FROM lease_terms",
        "DELETE FROM leases; DELETE FROM lease_terms",
        "DELETE FROM fences; DELETE FROM lease_terms",
        "DELETE FROM leases; INSERT INTO leases TABLE backup; UPDATE fences SET epoch = 1",
        "DELETE FROM leases; DELETE FROM fences",
    ] {
        operator.batch_execute(damage).await.unwrap();
        let epoch = next_epoch(&ours).await;
        assert!(epoch > latest, "{epoch} after {latest}, after {damage}");
        latest = epoch;
    }
}

#[tokio::test]
async fn a_lease_from_a_backup_belongs_to_nobody_who_could_renew_it_twice() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let operator = client(&database.url).await;
    let old = granted(&*ours, &request(&scope(), Takeover::IfFree)).await;
    operator.batch_execute("CREATE TABLE backup AS TABLE leases").await.unwrap();
    let new = granted(&*ours, &request(&scope(), Takeover::OfDead(old.term))).await;
    operator.batch_execute("DELETE FROM leases; INSERT INTO leases TABLE backup").await.unwrap();
    // The old holder may renew its record again, and is fenced all the same.
    let renewed = ours.renew(&[common::claim(&old), common::claim(&new)]).await.unwrap();
    assert!(matches!(renewed[1], tenure_lease::RenewOutcome::Lost(_)), "{renewed:?}");
    assert_eq!(ours.fence(&scope()).await.unwrap(), Some((new.epoch, new.term)));
}

async fn by_clock(url: &str) -> PostgresLeases {
    let options = PostgresLeaseOptions { epochs: EpochMint::Clock, ..PostgresLeaseOptions::default() };
    PostgresLeases::connect(url, options, &Entropy::from_os()).await.expect("connected")
}

#[tokio::test]
async fn an_epoch_that_a_failover_has_lost_is_not_handed_out_again_by_the_clock() {
    let database = Postgres::shared().database().await;
    let ours = by_clock(&database.url).await;
    let operator = client(&database.url).await;
    let before = SystemClock.now().as_millisecond() as u64;
    let first = next_epoch(&ours).await;
    // A database on another machine has a clock of its own: near is enough.
    assert!(first > before - 3_600_000, "{first}");
    let tables = ["leases", "fences", "lease_terms"];
    for table in tables {
        operator.batch_execute(&format!("CREATE TABLE old_{table} AS TABLE {table}")).await.unwrap();
    }
    let lost = next_epoch(&ours).await;
    assert!(lost > first);
    for table in tables {
        let restore = format!("DELETE FROM {table}; INSERT INTO {table} TABLE old_{table}");
        operator.batch_execute(&restore).await.unwrap();
    }
    assert!(next_epoch(&ours).await > lost, "the lost epoch came back");
}

#[tokio::test]
async fn an_epoch_by_the_clock_is_one_more_where_the_clock_was_set_back() {
    let database = Postgres::shared().database().await;
    let ours = by_clock(&database.url).await;
    let far = 9_000_000_000_000; // milliseconds: in the year 2255
    let term = common::term();
    assert_eq!(ours.install_fence(&scope(), term, tenure_lease::Epoch(far)).await.unwrap().0, far + 1);
    assert_eq!(next_epoch(&ours).await, far + 2);
    assert_eq!(
        ours.install_fence(&scope(), common::term(), tenure_lease::Epoch(0)).await.unwrap().0,
        far + 3
    );
}
