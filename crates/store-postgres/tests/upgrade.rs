//! Goal: a database that an earlier release has filled is brought up to date in place, and its tables are made for
//! churn. Method: the migrations of that release, by hand, with what a short life leaves behind.

mod common;

use common::{bound, change, claim_of, client, end_of, load, now, owner, pass, register, sharded, store};
use tenure_model::{Ack, QueueName, RunState, ShardId, TaskState};
use tenure_store::{IntentStore, RunChange, SchedulingStore, StateChange, Views};
use tenure_testkit::{Postgres, Settings, wait_for};

const FIRST: &str = include_str!("../migrations/0001_start.sql");
const SECOND: &str = include_str!("../migrations/0002_lease_history.sql");

/// As the release before left it: two versions, two shards, a finished, a running and a queued run, a lease.
const LIFE: &str = r#"
    CREATE TABLE schema_version (version integer PRIMARY KEY, name text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
    INSERT INTO schema_version (version, name) VALUES (1, 'start'), (2, 'lease_history');
    INSERT INTO meta VALUES ('shards', '2');
    INSERT INTO dags SELECT 'default', 'etl', 1, 1, false, '', '{}', now(), now();
    INSERT INTO dag_versions SELECT 'default', 'etl', 1, '', '{"id":"etl","tasks":[]}', '', '', now(),
        '{t0}', '{0}', '{default_pool}';
    INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, run_after, queued_at,
            started_at, ended_at, updated_at, conf, triggered_by)
        SELECT 'default', 'etl', state, 1, 1, state, 2, 'manual', now(), now(), now(),
            CASE WHEN state = 'success' THEN now() END, now(), '{}', 'ada'
        FROM unnest(ARRAY['success', 'running', 'queued']) AS state;
    INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
        SELECT key, 0, -1, 'default', 't0', 'default_pool', 'none', 0, 0 FROM runs;
    INSERT INTO attention (shard, what) VALUES (1, '{"type":"limits"}'), (1, '{"type":"run","run":1}');
    INSERT INTO nodes VALUES ('n1', '{"cpu":4000}', '{}', '0.1.0', now(), false);
    INSERT INTO leases (scope, holder_name, holder_instance, term, epoch, duration_ms, acquired_at, renewed_at,
            expires_at, released, resource_version, transitions, note)
        VALUES ('scheduler/shard-01', 'old', 'x', gen_random_uuid(), 7, 1000, now(), now(), now(), true, 3, 0, '');
    INSERT INTO fences VALUES ('scheduler/shard-01', 7, gen_random_uuid());
"#;

#[tokio::test]
async fn a_database_of_the_release_before_is_upgraded_in_place() {
    let database = Postgres::shared().database().await;
    let old = client(&database.url).await;
    for sql in [FIRST, SECOND, LIFE] {
        old.batch_execute(sql).await.unwrap();
    }
    // Whatever this one asks for: the database keeps the number it has.
    let ours = sharded(&database.url, 16, 4).await;
    assert_eq!(ours.shard_count().await.unwrap(), 2);
    let snapshot = ours.shard_snapshot(ShardId(1)).await.unwrap();
    assert_eq!((snapshot.running.len(), snapshot.queued.len(), snapshot.unreadable.len()), (1, 1, 0));
    assert_eq!((snapshot.dags.len(), snapshot.shares.len()), (1, 0));
    let (look, limits) = (ours.attention(ShardId(1), 10).await.unwrap(), ours.limits().await.unwrap());
    assert_eq!(
        (look.items.len(), limits.nodes.len()),
        (1, 1),
        "what it said of limits is said by their version"
    );
    assert_eq!(look.limits, limits.version);
    let orphans = ours.orphans(ShardId(1), now() + jiff::SignedDuration::from_hours(1), 10).await.unwrap();
    assert_eq!(orphans, [snapshot.running[0].header.key]);
    let nodes = ours.list_nodes().await.unwrap();
    assert_eq!((nodes.len(), nodes[0].taints.len()), (1, 0));
    assert_eq!(
        nodes[0].queues,
        [QueueName::default()].into(),
        "what is older than queues serves the default one"
    );
    ours.record_presence("replica-1", &["n1".into()]).await.unwrap();

    let (_standing, tenure) = common::leader(&ours, tenure_lease::Scope::new(ShardId(1).scope())).await;
    assert_eq!(tenure.epoch().0, 8, "epochs go on");
    let next = pass(vec![change(&snapshot.running[0], TaskState::None, TaskState::Success)]);
    assert_eq!(ours.commit_pass(&tenure.guard().unwrap(), &next).await.unwrap().conflicts, vec![]);

    let again = sharded(&database.url, 1, 1).await;
    assert_eq!(again.shard_count().await.unwrap(), 2, "once is enough");
    let applied = old.query("SELECT name FROM schema_version ORDER BY version", &[]).await.unwrap();
    let names: Vec<String> = applied.iter().map(|row| row.get(0)).collect();
    assert_eq!(names[..4], ["start", "lease_history", "cluster", "taints"]);
}

/// An update that is not HOT writes every index anew, and leaves dead entries in all of them.
#[tokio::test]
async fn a_step_of_a_task_touches_no_index_and_a_run_only_when_it_starts_and_ends() {
    // More than one page of them.
    const TASKS: usize = 200;
    // A transaction of somebody else's, even in another database, would put off the pruning of dead versions.
    let server = Postgres::own(Settings::default());
    let observer = client(&server.url()).await;
    let ours = store(&server.url(), 1).await;
    register(&ours, "etl", TASKS).await;
    let (standing, tenure) = owner(&ours).await;
    let run = bound(&ours, &tenure, "etl", "r1").await; // starts it
    let tasks: Vec<usize> = (0..TASKS).collect();
    for report in [claim_of, end_of] {
        for some in tasks.chunks(20) {
            let reports: Vec<_> = some.iter().map(|task| report(&run, *task)).collect();
            assert_eq!(ours.record_reports(&reports, now()).await.unwrap(), [Ack::Accepted; 20]);
        }
    }
    let run = load(&ours, run.header.key).await;
    let end = StateChange { from: RunState::Running, to: RunState::Success, at: now(), reason: None };
    let over = RunChange { state: Some(end), ..change(&run, TaskState::None, TaskState::None) };
    ours.commit_pass(&tenure.guard().unwrap(), &pass(vec![over])).await.unwrap();
    // Sessions hand in their counters when they end.
    drop(tenure);
    standing.stop().await;
    drop((standing, ours));
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1";
    let updates = async |table: &str| {
        observer.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        let row = observer.query_one(sql, &[&table]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    wait_for("the counters", common::SOON, || async {
        (updates("task_instances").await.0 == 3 * TASKS as i64).then_some(())
    })
    .await;
    let (all, hot) = updates("task_instances").await;
    assert!(hot * 100 >= all * 98, "{hot} of {all}");
    assert_eq!(updates("runs").await, (22, 20), "its start and its end move it between indexes");
}
