//! Goal: the cost of scheduling follows what changed, not how much history there is. Method: the verbs run
//! against tables with some thousand rows, often enough for the server to settle on its plans; then the
//! server's own counters say whether any of the big tables was read from end to end.

mod common;

use std::collections::BTreeMap;

use common::{
    SOON, bound, change, claim_of, client, end_of, leader, load, new_run, now, owner, pass, register, store,
    trigger, user,
};
use tenure_lease::{LeaseStore, Scope};
use tenure_model::{Ack, NewRun, PoolName, Resources, RunState, ShardId, TaskState, TenantId, TiKey};
use tenure_store::{
    AuditQuery, Bid, CONTROLLER_SCOPE, ChoreStore, ClearRequest, ClearSelection, Common, IntentStore,
    NewRunOutcome, Paging, Pass, PoolRecord, RunChange, RunQuery, ScheduleChange, SchedulingStore,
    StateChange, TiQuery, TryRecord, Views,
};
use tenure_store_postgres::PostgresStore;
use tenure_testkit::{Postgres, wait_for};
use tokio_postgres::Client;

const TABLES: [&str; 7] =
    ["runs", "task_instances", "tries", "results", "audit", "attention", "dag_versions"];

/// Finished runs with their tasks and audit rows, as months of work leave them.
const HISTORY: &str = "
    INSERT INTO dags SELECT 'default', 'old' || n, 0, 1, true, '', '{}', now(), now() FROM generate_series(1, 500) n;
    INSERT INTO dag_versions SELECT 'default', 'old' || n, 1, '', '{}', '', '', now(), '{}', '{}', '{}'
        FROM generate_series(1, 500) n;
    INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, logical_date, run_after,
            queued_at, ended_at, updated_at, conf, triggered_by)
        SELECT 'default', 'old' || n % 500, 'r' || n, 1, 0, 'success', 5, 'manual', '2020-01-01'::timestamptz
            + n * interval '1 hour', now(), now(), '2020-01-01'::timestamptz + n * interval '1 hour', now(), '{}', 'x'
        FROM generate_series(1, 5000) n;
    INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
        SELECT r.key, n, -1, 'default', 't' || n, 'default_pool', 'success', 1, 0 FROM runs r, generate_series(0, 3) n;
    INSERT INTO tries (run, task_no, map_index, try_number, tenant, task_id, state, max_tries)
        SELECT run, task_no, map_index, 1, tenant, task_id, 'failed', 1 FROM task_instances;
    INSERT INTO results SELECT run, task_no, map_index, tenant, '1' FROM task_instances;
    INSERT INTO audit (at, tenant, dag_id, run_id, actor, entries)
        SELECT ended_at, tenant, dag_id, run_id, 'x', '[]' FROM runs, generate_series(1, 3);
    INSERT INTO attention (shard, what) SELECT 1 + n % 7, '{\"type\":\"run\",\"run\":1}' FROM generate_series(1, 3000) n;
    ANALYZE";

#[tokio::test]
async fn scheduling_reads_no_table_from_end_to_end() {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    drop(store(&database.url, 1).await);
    client(&database.url).await.batch_execute(HISTORY).await.unwrap();
    alone(&observer).await;
    let before = scans(&observer).await;

    let ours = store(&database.url, 1).await;
    register(&ours, "etl", 4).await;
    let (standing, tenure) = owner(&ours).await;
    let (chair, controller) = leader(&ours, Scope::new(CONTROLLER_SCOPE)).await;
    // Ten times: after five, the server may settle on one plan for all parameters.
    for round in 0..10 {
        schedule(&ours, &tenure, round).await;
        hear(&ours, &tenure, round).await;
        tidy_up(&ours, &controller).await;
        look(&ours, round).await;
    }
    drop((tenure, controller));
    standing.stop().await;
    chair.stop().await;
    drop((standing, chair, ours));
    alone(&observer).await;
    assert_eq!(scans(&observer).await, before);
}

/// Rows as a busy hour adds them, before anything was analyzed.
const GROWTH: &str = "WITH r AS (
        INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, run_after, queued_at,
            ended_at, updated_at, conf, triggered_by)
        SELECT 'default', 'grown', 'r' || n, 1, 0, 'success', 5, 'manual', now(), now(), now(), now(), '{}', 'x'
        FROM generate_series(1, 3000) n RETURNING key
    ), t AS (
        INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
        SELECT r.key, n, -1, 'default', 't' || n, 'default_pool', 'success', 1, 0
        FROM r, generate_series(0, 3) n RETURNING run, task_no, map_index
    ), x AS (
        INSERT INTO results SELECT run, task_no, map_index, 'default', '1' FROM t
    ) INSERT INTO audit (at, tenant, dag_id, run_id, actor, entries)
        SELECT now(), 'default', 'grown', 'r' || key, 'x', '[]' FROM r";

#[tokio::test]
async fn a_plan_from_when_the_tables_were_empty_reads_none_of_them_later() {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    drop(store(&database.url, 1).await);
    alone(&observer).await;
    let before = scans(&observer).await;
    let ours = store(&database.url, 1).await;
    register(&ours, "etl", 4).await;
    let (standing, tenure) = owner(&ours).await;
    for round in 0..10 {
        if round == 7 {
            client(&database.url).await.batch_execute(GROWTH).await.unwrap();
        }
        schedule(&ours, &tenure, round).await;
        hear(&ours, &tenure, round).await;
    }
    drop(tenure);
    standing.stop().await;
    drop((standing, ours));
    alone(&observer).await;
    assert_eq!(scans(&observer).await, before);
}

#[tokio::test]
async fn a_listing_of_leases_reads_what_it_lists_and_no_more() {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    drop(common::leases(&database.url).await);
    let many = "INSERT INTO leases (scope, holder_name, holder_instance, term, epoch, duration_ms, acquired_at,
            renewed_at, expires_at, released, resource_version, transitions, note)
        SELECT 'shard/' || n % 100 || '/' || n, '', '', gen_random_uuid(), 1, 1, now(), now(), now(), true, 1, 0, ''
        FROM generate_series(1, 5000) n; ANALYZE";
    client(&database.url).await.batch_execute(many).await.unwrap();
    alone(&observer).await;
    let read = "SELECT idx_tup_read, (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'leases')
        FROM pg_stat_user_indexes WHERE indexrelname = 'leases_pkey'";
    let counters = async || {
        observer.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        let row = observer.query_one(read, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let before = counters().await;
    let ours = common::leases(&database.url).await;
    for _ in 0..10 {
        assert_eq!(ours.list_leases("shard/7/").await.unwrap().len(), 50);
    }
    drop(ours);
    alone(&observer).await;
    let after = counters().await;
    assert_eq!((after.0 - before.0, after.1), (500, before.1));
}

/// Sessions hand in their counters when they end.
async fn alone(observer: &Client) {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'";
    let others = || async { observer.query(sql, &[]).await.expect("answered").is_empty().then_some(()) };
    wait_for("all other sessions to end", SOON, others).await;
}

async fn scans(observer: &Client) -> BTreeMap<String, i64> {
    observer.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
    let sql = "SELECT relname::text, seq_scan FROM pg_stat_user_tables WHERE relname = ANY($1)";
    let rows = observer.query(sql, &[&&TABLES[..]]).await.unwrap();
    assert_eq!(rows.len(), TABLES.len());
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// A life of a run, through every verb of an owner and the edits of a user.
async fn schedule(ours: &PostgresStore, tenure: &tenure_lease::Tenure, round: i64) {
    let run = trigger(ours, "etl", &format!("r{round}")).await;
    ours.shard_snapshot(ShardId(0)).await.unwrap();
    ours.limits().await.unwrap();
    let attention = ours.attention(ShardId(0), 100).await.unwrap().items;
    let snapshot = load(ours, run.key).await;
    let date = now() + jiff::SignedDuration::from_hours(round);
    let due = NewRun { logical_date: Some(date), ..new_run("etl", &format!("due-{round}")) };
    let mut first = change(&snapshot, TaskState::None, TaskState::Scheduled);
    let key = TiKey::unmapped(run.key, snapshot.tis[0].task);
    first.results = vec![(key, serde_json::json!(1))];
    first.past_tries =
        vec![TryRecord { ti: key, task_id: "t0".into(), instance: snapshot.tis[0].ti.clone() }];
    let schedule = ScheduleChange {
        tenant: TenantId::default_tenant(),
        dag: "etl".into(),
        last_tick: date,
        next_tick: None,
    };
    let pass_with_all = Pass {
        new_runs: vec![due],
        schedules: vec![schedule],
        attended: attention.iter().map(|item| item.seq).collect(),
        ..pass(vec![first])
    };
    let committed = ours.commit_pass(&tenure.guard().unwrap(), &pass_with_all).await.unwrap();
    assert!(matches!(committed.created[..], [NewRunOutcome::Created(_)]) && committed.conflicts.is_empty());
    ours.past_run(&TenantId::default_tenant(), &"etl".into(), date).await.unwrap();
    assert_eq!(ours.results(run.key).await.unwrap().len(), 1);

    let running = load(ours, run.key).await;
    let end = StateChange { from: RunState::Running, to: RunState::Failed, at: now(), reason: None };
    let ended = RunChange { state: Some(end), ..change(&running, TaskState::Scheduled, TaskState::Failed) };
    ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![ended])).await.unwrap();
    ours.clear(&user(), &clear(&run.run_id)).await.unwrap();
    let marked = ours.set_run_state(&user(), &"etl".into(), &run.run_id, RunState::Failed).await.unwrap();
    assert_eq!(marked.state, RunState::Failed);
    if round % 2 == 0 {
        ours.delete_run(&user(), &"etl".into(), &run.run_id).await.unwrap();
    }
}

/// What a cluster adds: reports that another replica has taken, orphans, presence, shares.
async fn hear(ours: &PostgresStore, tenure: &tenure_lease::Tenure, round: i64) {
    let run = bound(ours, tenure, "etl", &format!("heard-{round}")).await;
    let reports: Vec<_> = (0..4).flat_map(|task| [claim_of(&run, task), end_of(&run, task)]).collect();
    assert_eq!(ours.record_reports(&reports, now()).await.unwrap(), [Ack::Accepted; 8]);
    let long_after = now() + jiff::SignedDuration::from_hours(1);
    assert!(ours.orphans(ShardId(0), long_after, 100).await.unwrap().contains(&run.header.key));
    ours.record_presence("replica-1", &["n1".into()]).await.unwrap();
    assert_eq!(ours.present(&["n1".into()], SOON).await.unwrap().len(), 1);
    let wish = Resources::default().with(PoolRecord::SLOTS, 1_000);
    let bid = Bid { of: Common::Pool(PoolName::default_pool()), wish, least: Resources::default() };
    assert_eq!(ours.trade_shares(&tenure.guard().unwrap(), &[bid]).await.unwrap().len(), 1);
}

/// Oldest first, a few of many.
async fn tidy_up(ours: &PostgresStore, controller: &tenure_lease::Tenure) {
    let guard = controller.guard().unwrap();
    let before = "2020-03-01T00:00:00Z".parse().unwrap();
    assert_eq!(ours.delete_old_runs(&guard, before, 5).await.unwrap(), 5);
    assert_eq!(ours.delete_old_audit(&guard, before, 5).await.unwrap(), 5);
    assert_eq!(ours.delete_old_members(&guard, before, 5).await.unwrap(), 0);
    let long_ago = "2019-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(ours.delete_old_runs(&guard, long_ago, 5).await.unwrap(), 0);
    assert_eq!(ours.delete_old_audit(&guard, long_ago, 5).await.unwrap(), 0);
}

fn clear(run: &tenure_model::RunId) -> ClearRequest {
    ClearRequest {
        dag: "etl".into(),
        run: run.clone(),
        selection: ClearSelection::All,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: true,
        future: false,
        reset_runs: true,
        latest_version: false,
        dry_run: false,
    }
}

/// The screens that are open all the time.
async fn look(ours: &PostgresStore, round: i64) {
    let (tenant, dag) = (TenantId::default_tenant(), "etl".into());
    let run = format!("due-{round}").as_str().into();
    ours.get_dag(&tenant, &dag).await.unwrap().expect("there");
    ours.get_run(&tenant, &dag, &run).await.unwrap().expect("there");
    ours.list_runs(&RunQuery::of(tenant.clone(), Some(dag.clone()))).await.unwrap();
    ours.list_tis(&TiQuery::of_run(tenant.clone(), dag.clone(), run)).await.unwrap();
    ours.list_tries(&tenant, &dag, &format!("due-{round}").as_str().into(), &"t0".into(), -1).await.unwrap();
    let run = Some(format!("due-{round}").as_str().into());
    let audit = AuditQuery { tenant, dag: Some(dag), run, after_seq: None, paging: Paging::default() };
    assert_eq!(ours.list_audit(&audit).await.unwrap().total, 1);
}

/// What was kept must not be looked at again each time.
#[tokio::test]
async fn retention_reads_what_it_deletes_and_no_history_beside_it() {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    drop(store(&database.url, 1).await);
    client(&database.url).await.batch_execute(HISTORY).await.unwrap();
    let read =
        "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE relname = 'runs'";
    let counter = async || {
        alone(&observer).await;
        observer.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        observer.query_one(read, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = counter().await;
    let ours = store(&database.url, 1).await;
    let (chair, controller) = leader(&ours, Scope::new(CONTROLLER_SCOPE)).await;
    let until = "2020-03-01T00:00:00Z".parse().unwrap();
    for _ in 0..10 {
        assert_eq!(ours.delete_old_runs(&controller.guard().unwrap(), until, 5).await.unwrap(), 5);
    }
    drop(controller);
    chair.stop().await;
    drop((chair, ours));
    let read = counter().await - before;
    // Fifty runs, each looked up a handful of times; the other 4950 are history.
    assert!(read < 50 * 20, "{read} index entries were read");
}
