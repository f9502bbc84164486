//! Goal: owners of different shards share one server without getting into each other's way, and never divide more
//! between them than there is. Method: transactions parked on real locks.

mod common;

use std::sync::Arc;

use common::{
    bound, change, claim_of, client, dags_of_shards, leader, load, now, parked, pass, register, sharded, user,
};
use tenure_lease::{Scope, Tenure};
use tenure_model::{Ack, Resources, ShardId, TaskState};
use tenure_store::{Bid, Common, IntentStore, PoolRecord, SchedulingStore, Share, StoreError};
use tenure_store_postgres::PostgresStore;
use tenure_testkit::Postgres;

fn scope(shard: u16) -> Scope {
    Scope::new(ShardId(shard).scope())
}

async fn pool(store: &PostgresStore, slots: u32) {
    let pool = PoolRecord { name: "gpu".into(), slots, description: String::new() };
    store.put_pool(&user(), &pool).await.expect("put");
}

fn bid(slots: u64) -> Bid {
    let wish = Resources::default().with(PoolRecord::SLOTS, slots * 1_000);
    Bid { of: Common::Pool("gpu".into()), wish, least: Resources::default() }
}

/// In a task of its own.
fn bidding(
    store: &Arc<PostgresStore>,
    tenure: &Tenure,
    slots: u64,
) -> tokio::task::JoinHandle<Result<Vec<Share>, StoreError>> {
    let (store, tenure) = (Arc::clone(store), tenure.clone());
    tokio::spawn(async move { store.trade_shares(&tenure.guard().expect("leads"), &[bid(slots)]).await })
}

/// At every isolation level that a URL may ask for.
#[tokio::test]
async fn two_owners_that_bid_at_the_same_moment_get_no_more_than_there_is() {
    for level in ["read\\ committed", "repeatable\\ read", "serializable"] {
        let database = Postgres::shared().database().await;
        let options = format!("-c default_transaction_isolation={level}");
        let encoded = options.replace('\\', "%5C").replace(' ', "%20").replace('=', "%3D");
        let url = format!("{}?options={encoded}", database.url);
        let (ours, theirs) = (sharded(&url, 2, 2).await, sharded(&url, 2, 2).await);
        pool(&ours, 8).await;
        let (_one, first) = leader(&ours, scope(0)).await;
        let (_two, second) = leader(&theirs, scope(1)).await;

        let mut blocker = client(&database.url).await;
        let lock = blocker.transaction().await.unwrap();
        lock.execute("SELECT 1 FROM pools WHERE name = 'gpu' FOR UPDATE", &[]).await.unwrap();
        let bids = [bidding(&ours, &first, 6), bidding(&theirs, &second, 6)];
        let observer = client(&database.url).await;
        let both = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() \
            AND wait_event_type = 'Lock' AND query LIKE 'SELECT name, slots%' OFFSET 1";
        tenure_testkit::wait_for("both to wait", common::SOON, || async {
            observer.query_opt(both, &[]).await.expect("answered")
        })
        .await;
        lock.commit().await.unwrap();
        let mut had = vec![];
        for bid in bids {
            let shares = bid.await.expect("no panic").expect("traded");
            had.push(shares[0].amount.get(PoolRecord::SLOTS) / 1_000);
        }
        had.sort_unstable();
        assert_eq!(had, [2, 6], "{level}");
    }
}

#[tokio::test]
async fn a_pool_does_not_shrink_under_a_bid_that_is_being_met() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 2, 4).await;
    pool(&ours, 8).await;
    let (_standing, tenure) = leader(&ours, scope(0)).await;
    let mut blocker = client(&database.url).await;
    let shrink = blocker.transaction().await.unwrap();
    shrink.execute("UPDATE pools SET slots = 3 WHERE name = 'gpu'", &[]).await.unwrap();
    let bid = bidding(&ours, &tenure, 8);
    parked(&client(&database.url).await, "SELECT name, slots").await;
    shrink.commit().await.unwrap();
    let share = bid.await.unwrap().expect("traded").remove(0);
    assert_eq!(share.amount.get(PoolRecord::SLOTS), 3_000);
}

/// Somebody's session that has locked a run of the first shard, and takes its time.
#[tokio::test]
async fn a_slow_transaction_in_one_shard_does_not_hold_up_the_others() {
    let database = Postgres::shared().database().await;
    // Whoever meets the lock waits longer than the rest may take.
    let url = format!("{}?options=-c%20lock_timeout%3D30s", database.url);
    let ours = sharded(&url, 2, 4).await;
    let dags = dags_of_shards(2);
    let mut runs = vec![];
    let mut owners = vec![];
    for (shard, dag) in (0..).zip(&dags) {
        register(&ours, dag, 2).await;
        let owner = leader(&ours, scope(shard)).await;
        runs.push(bound(&ours, &owner.1, dag, "r1").await);
        owners.push(owner);
    }
    pool(&ours, 8).await;
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs WHERE key = $1 FOR UPDATE", &[&runs[0].header.key.0]).await.unwrap();
    let move_on =
        |run: &tenure_store::RunSnapshot| pass(vec![change(run, TaskState::Queued, TaskState::Running)]);
    // The owner of the first shard meets the lock.
    let stuck = tokio::spawn({
        let (ours, tenure, pass) = (Arc::clone(&ours), owners[0].1.clone(), move_on(&runs[0]));
        async move { ours.commit_pass(&tenure.guard().expect("leads"), &pass).await }
    });
    parked(&client(&database.url).await, "UPDATE runs").await;

    let others = async {
        let guard = owners[1].1.guard().expect("leads");
        let committed = ours.commit_pass(&guard, &move_on(&runs[1])).await.expect("committed");
        assert_eq!(committed.conflicts, vec![]);
        assert_eq!(ours.trade_shares(&guard, &[bid(3)]).await.expect("traded").len(), 1);
        let claim = claim_of(&load(&ours, runs[1].header.key).await, 0);
        assert_eq!(ours.record_reports(&[claim], now()).await.expect("recorded"), [Ack::Accepted]);
        ours.create_run(&user(), &common::new_run(&dags[1], "r2")).await.expect("created");
        ours.create_run(&user(), &common::new_run(&dags[0], "r2"))
            .await
            .expect("also beside the one that is held");
        ours.shard_snapshot(ShardId(0)).await.expect("readers wait for nobody");
    };
    tokio::time::timeout(common::SOON, others).await.expect("they do not wait");
    assert!(!stuck.is_finished(), "it was there all the time");
    lock.commit().await.unwrap();
    assert_eq!(stuck.await.unwrap().expect("the lock is gone").conflicts, vec![]);
}

#[tokio::test]
async fn nobody_waits_for_a_lock_for_ever() {
    let database = Postgres::shared().database().await;
    let ours = sharded(&database.url, 1, 2).await;
    register(&ours, "etl", 1).await;
    let (_standing, tenure) = leader(&ours, scope(0)).await;
    let run = bound(&ours, &tenure, "etl", "r1").await;
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs FOR UPDATE", &[]).await.unwrap();
    let change = pass(vec![change(&run, TaskState::Queued, TaskState::Running)]);
    let guard = tenure.guard().expect("leads");
    let gave_up = ours.commit_pass(&guard, &change).await.expect_err("it is locked");
    assert!(matches!(gave_up, StoreError::Unavailable { .. }), "nothing was changed: {gave_up:?}");
    drop(lock);
    tenure_testkit::wait_for("the next one", common::SOON, || async {
        ours.commit_pass(&guard, &change).await.ok()
    })
    .await;
}
