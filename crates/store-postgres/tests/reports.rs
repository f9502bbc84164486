//! Goal: a batch of reports costs one transaction, and no report costs another one its answer. Method: rows are
//! locked or spoiled behind the store's back while a batch is recorded.

mod common;

use common::wire::{Cut, Wire};
use common::{SOON, bound, claim_of, client, end_of, load, now, owner, register, store};
use tenure_model::{Ack, Report, TaskState};
use tenure_store::{Attention, IntentStore, SchedulingStore};
use tenure_testkit::{Postgres, wait_for};

#[tokio::test]
async fn a_batch_is_one_transaction_of_three_round_trips_whatever_its_size() {
    let database = Postgres::shared().database().await;
    let wire = Wire::to(&database.url, Cut::Never).await;
    // One connection for everything, and nothing of leases on this wire.
    let (ours, theirs) = (store(&database.url, 4).await, store(&wire.url, 1).await);
    let (_standing, tenure) = owner(&ours).await;
    register(&ours, "etl", 10).await;
    let mut runs = vec![];
    for number in 0..10 {
        runs.push(bound(&ours, &tenure, "etl", &format!("r{number}")).await);
    }
    let of_task = |task: usize| -> Vec<Report> {
        runs.iter().flat_map(|run| [claim_of(run, task), end_of(run, task)]).collect()
    };
    // The first time, statements are prepared.
    assert_eq!(theirs.record_reports(&of_task(0), now()).await.unwrap(), [Ack::Accepted; 20]);
    // Listeners ask from time to time whether the server is there: the least of several is the truth.
    let mut least = usize::MAX;
    for task in 1..4 {
        let before = wire.round_trips();
        assert_eq!(theirs.record_reports(&of_task(task), now()).await.unwrap(), [Ack::Accepted; 20]);
        least = least.min(wire.round_trips() - before);
    }
    assert_eq!(least, 3);
    let run = load(&ours, runs[0].header.key).await;
    assert!(run.tis[..4].iter().all(|cached| cached.ti.state == TaskState::Success));
    assert_eq!(run.header.revision, runs[0].header.revision + 8, "a revision for each report");
    assert_eq!(ours.results(run.header.key).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_run_that_somebody_holds_does_not_hold_up_the_others() {
    let database = Postgres::shared().database().await;
    // Whoever waits for the lock waits longer than this test looks.
    let ours = store(&format!("{}?options=-c%20lock_timeout%3D30s", database.url), 4).await;
    let (_standing, tenure) = owner(&ours).await;
    register(&ours, "etl", 2).await;
    let (held, free) = (bound(&ours, &tenure, "etl", "r1").await, bound(&ours, &tenure, "etl", "r2").await);
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs WHERE key = $1 FOR UPDATE", &[&held.header.key.0]).await.unwrap();
    let reports = [claim_of(&held, 0), claim_of(&free, 0), claim_of(&held, 1), claim_of(&free, 1)];
    let recording = tokio::spawn({
        let ours = ours.clone();
        async move { ours.record_reports(&reports, now()).await }
    });
    wait_for("the free run to be committed", SOON, || async {
        let run = load(&ours, free.header.key).await;
        run.tis.iter().all(|cached| cached.ti.state == TaskState::Running).then_some(())
    })
    .await;
    assert!(!recording.is_finished(), "the other one is waited for");
    lock.commit().await.unwrap();
    assert_eq!(recording.await.unwrap().unwrap(), [Ack::Accepted; 4]);
}

#[tokio::test]
async fn a_report_of_a_run_that_stays_locked_is_asked_for_again() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    register(&ours, "etl", 1).await;
    let (held, free) = (bound(&ours, &tenure, "etl", "r1").await, bound(&ours, &tenure, "etl", "r2").await);
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs WHERE key = $1 FOR UPDATE", &[&held.header.key.0]).await.unwrap();
    let reports = [claim_of(&held, 0), claim_of(&free, 0)];
    assert_eq!(ours.record_reports(&reports, now()).await.unwrap(), [Ack::Retry, Ack::Accepted]);
    drop(lock);
    assert_eq!(ours.record_reports(&reports, now()).await.unwrap(), [Ack::Accepted; 2]);
}

#[tokio::test]
async fn a_run_that_an_owner_holds_for_a_moment_is_waited_for() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    register(&ours, "etl", 1).await;
    let run = bound(&ours, &tenure, "etl", "r1").await;
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM runs FOR UPDATE", &[]).await.unwrap();
    let claim = claim_of(&run, 0);
    let recording = tokio::spawn({
        let ours = ours.clone();
        async move { ours.record_reports(&[claim], now()).await }
    });
    common::parked(&client(&database.url).await, "SELECT r.key").await;
    lock.commit().await.unwrap();
    assert_eq!(recording.await.unwrap().unwrap(), [Ack::Accepted]);
}

/// A lock on one of its rows, a value that a trigger refuses: whatever makes the statement for all of them fail.
#[tokio::test]
async fn a_row_that_cannot_be_written_costs_its_own_run_only() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    let (_standing, tenure) = owner(&ours).await;
    register(&ours, "etl", 1).await;
    let mut runs = vec![];
    for number in 0..3 {
        runs.push(bound(&ours, &tenure, "etl", &format!("r{number}")).await);
    }
    let refuse = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'this row is special'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON task_instances FOR EACH ROW WHEN (new.run = {}) EXECUTE FUNCTION refuse()",
        runs[1].header.key.0
    );
    let admin = client(&database.url).await;
    admin.batch_execute(&refuse).await.unwrap();
    let claims: Vec<Report> = runs.iter().map(|run| claim_of(run, 0)).collect();
    let acks = ours.record_reports(&claims, now()).await.unwrap();
    assert_eq!(acks, [Ack::Accepted, Ack::Retry, Ack::Accepted]);
    let unchanged = load(&ours, runs[1].header.key).await;
    assert_eq!(unchanged.header.revision, runs[1].header.revision, "whole or not at all");
    admin.batch_execute("DROP TRIGGER refuse ON task_instances").await.unwrap();
    assert_eq!(ours.record_reports(&claims, now()).await.unwrap(), [Ack::Accepted; 3]);
}

#[tokio::test]
async fn attention_that_this_release_does_not_know_keeps_nobody_from_the_rest() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 2).await;
    let sql =
        "INSERT INTO attention (shard, what) VALUES (0, '{\"type\":\"from_the_future\"}'), (0, 'nonsense'),
        (0, '{\"type\":\"limits\"}'),
        (0, '{\"type\":\"run\",\"run\":7}')";
    client(&database.url).await.batch_execute(sql).await.unwrap();
    let items = ours.attention(tenure_model::ShardId(0), 10).await.unwrap().items;
    let what: Vec<_> = items.into_iter().map(|item| item.what).collect();
    let run = Attention::Run { run: tenure_model::RunKey(7) };
    assert_eq!(what, [Attention::Unknown, Attention::Unknown, Attention::Unknown, run]);
}
