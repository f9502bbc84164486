//! Goal: tidying up takes a little at a time, and gets into nobody's way.

mod common;

use common::{change, client, leader, load, now, owner, pass, register, store, trigger, user};
use jiff::SignedDuration;
use tenure_lease::{Scope, Tenure};
use tenure_model::{RunState, TaskState};
use tenure_store::{
    CONTROLLER_SCOPE, ChoreStore, IntentStore, RunChange, RunQuery, SchedulingStore, StateChange, Views,
};
use tenure_store_postgres::PostgresStore;
use tenure_testkit::Postgres;

/// Runs that are over.
async fn finished(store: &PostgresStore, tenure: &Tenure, dag: &str, runs: usize) {
    for number in 0..runs {
        let run = load(store, trigger(store, dag, &format!("r{number}")).await.key).await;
        let start = pass(vec![RunChange { tis: vec![], ..change(&run, TaskState::None, TaskState::None) }]);
        store.commit_pass(&tenure.guard().expect("leads"), &start).await.expect("committed");
        let run = load(store, run.header.key).await;
        let end = StateChange { from: RunState::Running, to: RunState::Success, at: now(), reason: None };
        let over =
            RunChange { state: Some(end), tis: vec![], ..change(&run, TaskState::None, TaskState::None) };
        store.commit_pass(&tenure.guard().expect("leads"), &pass(vec![over])).await.expect("committed");
    }
}

async fn left(store: &PostgresStore) -> u64 {
    store.list_runs(&RunQuery::of(user().tenant, None)).await.expect("listed").total
}

#[tokio::test]
async fn what_somebody_holds_is_left_for_the_next_time() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    register(&ours, "etl", 2).await;
    register(&ours, "held", 1).await;
    let (_standing, tenure) = owner(&ours).await;
    let (_controller, controller) = leader(&ours, Scope::new(CONTROLLER_SCOPE)).await;
    finished(&ours, &tenure, "etl", 4).await;
    finished(&ours, &tenure, "held", 3).await;
    let later = now() + SignedDuration::from_hours(1);
    let mut blocker = client(&database.url).await;
    let lock = blocker.transaction().await.unwrap();
    // A run that a user clears, and a dag that a user deletes.
    lock.batch_execute(
        "SELECT 1 FROM runs WHERE dag_id = 'etl' AND run_id = 'r0' FOR NO KEY UPDATE;
        SELECT 1 FROM dags WHERE dag_id = 'held' FOR UPDATE",
    )
    .await
    .unwrap();
    let guard = controller.guard().expect("leads");
    assert_eq!(ours.delete_old_runs(&guard, later, 100).await.expect("nobody is waited for"), 2);
    lock.commit().await.unwrap();
    assert_eq!(ours.delete_old_runs(&guard, later, 100).await.expect("deleted"), 3);
    assert_eq!(left(&ours).await, 2, "the newest of each");
    let leaves =
        "SELECT count(*) FROM task_instances t WHERE NOT EXISTS (SELECT FROM runs r WHERE r.key = t.run)";
    let orphaned: i64 = client(&database.url).await.query_one(leaves, &[]).await.unwrap().get(0);
    assert_eq!(orphaned, 0);
}

#[tokio::test]
async fn runs_of_very_many_tasks_go_a_few_at_a_time() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 4).await;
    register(&ours, "wide", 10_000).await;
    let (_standing, tenure) = owner(&ours).await;
    let (_controller, controller) = leader(&ours, Scope::new(CONTROLLER_SCOPE)).await;
    finished(&ours, &tenure, "wide", 4).await;
    let later = now() + SignedDuration::from_hours(1);
    let guard = controller.guard().expect("leads");
    assert_eq!(ours.delete_old_runs(&guard, later, 100).await.expect("deleted"), 2, "twenty thousand tasks");
    assert_eq!(ours.delete_old_runs(&guard, later, 100).await.expect("deleted"), 1);
    assert_eq!(left(&ours).await, 1);
}

/// Both come by at the same moment, from different ends.
#[tokio::test]
async fn retention_and_the_deletion_of_a_dag_do_not_wait_for_each_other_in_a_circle() {
    let database = Postgres::shared().database().await;
    let ours = store(&database.url, 6).await;
    let (_standing, tenure) = owner(&ours).await;
    let (_controller, controller) = leader(&ours, Scope::new(CONTROLLER_SCOPE)).await;
    let later = now() + SignedDuration::from_hours(1);
    for round in 0..5 {
        let dag = format!("dag-{round}");
        register(&ours, &dag, 3).await;
        finished(&ours, &tenure, &dag, 6).await;
        let deleting = tokio::spawn({
            let (ours, dag) = (ours.clone(), dag.clone());
            async move { ours.delete_dag(&user(), &dag.as_str().into()).await }
        });
        let guard = controller.guard().expect("leads");
        ours.delete_old_runs(&guard, later, 100).await.expect("no deadlock");
        deleting.await.expect("no panic").expect("no deadlock");
    }
    assert_eq!(left(&ours).await, 0);
}
