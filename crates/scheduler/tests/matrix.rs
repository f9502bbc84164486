//! Goal: the nine rows of the failure matrix end as they should.
//! Method: the real scheduler on a real Postgres; processes die as whole runtimes, the database is made to
//! stumble by locks, triggers and ended connections.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rig::faulty::{Faulty, in_doubt, unavailable};
use rig::{Options, Rig, exec, failed, wait, whole_second};
use tenure_clock::Entropy;
use tenure_dispatch::PoolSize;
use tenure_model::{
    Ack, DagSpec, Outcome, ReportBody, RunState, Schedule, TaskKind, TaskSpec, TaskState, TenantId,
};
use tenure_scheduler::{OwnerConfig, Step, Work};
use tenure_store::{IntentStore, RunQuery};
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::{Postgres, TestDatabase};
use tokio_postgres::{Client, NoTls};

struct Bench {
    rig: Rig,
    database: TestDatabase,
}

impl Bench {
    async fn new() -> Self {
        let database = Postgres::shared().database().await;
        let options = PostgresOptions::default();
        let store = PostgresStore::connect(&database.url, options, &Entropy::from_os()).await.unwrap();
        Self { rig: Rig::on(Arc::new(store), 1).await, database }
    }

    /// The same database, as another process knows it.
    async fn another_process(&self) -> PostgresStore {
        let options = PostgresOptions::default();
        PostgresStore::connect(&self.database.url, options, &Entropy::from_os()).await.unwrap()
    }

    /// A connection of the test's own.
    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.database.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Holds every run's row until the answer is dropped: whoever wants to write one waits.
    async fn hold_runs(&self) -> Client {
        let client = self.client().await;
        client.batch_execute("BEGIN; SELECT * FROM runs FOR UPDATE").await.unwrap();
        client
    }

    /// A statement of the scheduler waits for a lock.
    async fn wait_blocked(&self) {
        let client = self.client().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND application_name = 'tenure'";
        let seen = async {
            while client.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(rig::PATIENCE, seen).await.expect("a statement that waits");
    }

    /// Everything is done in every run, left `running` by an owner that never came to finish it.
    async fn orphan_all(&self) {
        let orphan = "UPDATE task_instances SET state = 'success';
            UPDATE runs SET state = 'running', started_at = now() - interval '1 hour',
                updated_at = now() - interval '1 hour', revision = revision + 1";
        self.client().await.batch_execute(orphan).await.unwrap();
    }

    async fn runs(&self, dag: &str) -> usize {
        let query = RunQuery::of(TenantId::default_tenant(), Some(dag.into()));
        self.rig.store.list_runs(&query).await.unwrap().items.len()
    }
}

/// Long enough that one round of it is not mistaken for two.
const DEAD_AFTER: Duration = Duration::from_secs(3);
/// What a loaded machine may add to what the clock asks for. Also what planning may take, whatever an executor does.
const DELAYS: Duration = Duration::from_secs(2);

fn quick() -> OwnerConfig {
    Options::default().config
}

#[tokio::test(flavor = "multi_thread")]
async fn row_1_a_crash_in_the_middle_of_a_pass_loses_nothing_and_doubles_nothing() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a"), TaskSpec { needs: vec!["a".into()], ..exec("b") }])).await;
    let mut first = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let a = first.next().await;
    let held = bench.hold_runs().await;
    let (desk, report) = (first.desk.clone(), a.clone());
    let claiming = tokio::spawn(async move { rig::claim_through(&desk, &report).await });
    bench.wait_blocked().await;
    first.kill();
    drop(held);
    assert_eq!(claiming.await.unwrap(), Ack::Retry, "nobody said that it was committed");
    let mut second = rig.owner(Options::default());
    let again = second.next().await;
    assert_eq!(again.attempt, a.attempt, "what was bound is offered again");
    assert_eq!(second.claim(&again).await, Ack::Accepted);
    assert_eq!(second.end(&again, Outcome::Success).await, Ack::Accepted);
    second.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    assert_eq!(rig.tis("d", "r").await.iter().map(|ti| ti.instance.try_number).max(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_2_a_crash_while_a_run_is_finished_is_finished_by_the_next_owner() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut first = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let a = first.next().await;
    assert_eq!(first.claim(&a).await, Ack::Accepted);
    let held = bench.hold_runs().await;
    let (desk, ended) = (first.desk.clone(), a.clone());
    let ending = tokio::spawn(async move { rig::end_through(&desk, &ended, Outcome::Success).await });
    bench.wait_blocked().await;
    first.kill();
    drop(held);
    assert_eq!(ending.await.unwrap(), Ack::Retry);
    let second = rig.owner(Options::default());
    wait("the shard is taken over", || second.status().ready).await;
    assert_eq!(second.end(&a, Outcome::Success).await, Ack::Accepted, "the agent says it again");
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    let trail = rig.trail("d", "r").await;
    let finished = trail.iter().flat_map(|row| &row.entries).filter(|entry| entry.event == "finished");
    assert_eq!(finished.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_3_the_tasks_of_a_dead_agent_are_given_up_once() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let config = OwnerConfig { heartbeat_threshold: DEAD_AFTER, ..quick() };
    let tick = config.tick;
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("d", "r").await;
    let a = owner.next().await;
    assert_eq!(owner.claim(&a).await, Ack::Accepted);
    owner.hands.disconnect("n");
    let cut = rig.clock.boottime();
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Failed);
    let took = rig.clock.boottime().saturating_since(cut);
    // It may have been heard for the last time a tick before it went.
    let within = DEAD_AFTER - tick..=DEAD_AFTER + tick + DELAYS;
    assert!(within.contains(&took), "given up after {took:?}, not within {within:?}");
    assert_eq!(owner.metric("tenure_agent_lost_tasks_total"), 1.0);
    assert_eq!(owner.end(&a, Outcome::Success).await, Ack::Superseded, "too late");
    assert_eq!(rig.run("d", "r").await.state, RunState::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_4_a_slow_executor_does_not_hold_up_planning() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    let after = TaskSpec { needs: vec!["a".into()], ..exec("b") };
    rig.register(DagSpec::new("chain", vec![exec("a"), after])).await;
    rig.register(DagSpec::new("many", (0..50).map(|n| exec(&format!("t{n}"))).collect())).await;
    rig.register(DagSpec::new("light", vec![TaskSpec::new("x", TaskKind::Empty)])).await;
    let mut owner = rig.owner(Options { pool: PoolSize { workers: 1, queue: 4 }, ..Options::default() });
    rig.trigger("chain", "r").await;
    let a = owner.next().await;
    assert_eq!(owner.claim(&a).await, Ack::Accepted);
    owner.hands.slow_down(Duration::from_secs(30));
    rig.trigger("many", "r").await;
    wait("the pool is full", || owner.metric("tenure_dispatch_at_capacity_total") > 0.0).await;

    // A run that needs no executor is begun, planned and finished, again and again.
    for number in 0..20 {
        let (run, begun) = (format!("r{number}"), rig.clock.boottime());
        rig.trigger("light", &run).await;
        assert_eq!(rig.wait_end("light", &run).await.state, RunState::Success);
        let took = rig.clock.boottime().saturating_since(begun);
        assert!(took <= DELAYS, "planning took {took:?}");
    }
    // One that was on its way goes on as far as it can.
    assert_eq!(owner.end(&a, Outcome::Success).await, Ack::Accepted);
    rig.wait_states("chain", "r", "success scheduled").await;
    let tis = rig.tis("many", "r").await;
    let count = |state| tis.iter().filter(|ti| ti.instance.state == state).count();
    assert!(count(TaskState::Scheduled) > 40, "a full pool leaves them scheduled");
    assert!(count(TaskState::Queued) <= 10);
    assert!(owner.nothing_yet(), "the executor still has the first one in hand");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_5_a_database_that_refuses_due_runs_stops_neither_the_reaper_nor_other_runs() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    let client = bench.client().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let config = OwnerConfig { orphan_threshold: Duration::from_millis(400), ..quick() };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("d", "orphan").await;
    rig.wait_states("d", "orphan", "queued").await;
    client
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'a hiccup' USING ERRCODE = 'disk_full'; END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON runs FOR EACH ROW WHEN (NEW.run_type = 'scheduled')
                EXECUTE FUNCTION refuse();",
        )
        .await
        .unwrap();
    let start = whole_second(rig.clock.now()) - Duration::from_secs(60);
    let due = DagSpec {
        schedule: Schedule::Every { interval: Duration::from_secs(3600) },
        start_date: Some(start - Duration::from_secs(3600)),
        catchup: true,
        ..DagSpec::new("due", vec![exec("a")])
    };
    rig.register(due).await;
    wait("a pass has failed", || owner.metric("tenure_failed_passes_total") > 0.0).await;
    // Whoever should have finished this run did not.
    client.batch_execute("UPDATE task_instances SET state = 'success'").await.unwrap();
    client
        .batch_execute("UPDATE runs SET revision = revision + 1, updated_at = now() - interval '1 hour'")
        .await
        .unwrap();
    assert_eq!(rig.wait_end("d", "orphan").await.state, RunState::Success);
    rig.trigger("d", "other").await;
    loop {
        // The orphan's attempt was handed out before it was orphaned.
        let assignment = owner.next().await;
        if assignment.run_id.as_str() == "other" {
            assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
            assert_eq!(owner.end(&assignment, Outcome::Success).await, Ack::Accepted);
            break;
        }
    }
    assert_eq!(rig.wait_end("d", "other").await.state, RunState::Success);
    assert_eq!(bench.runs("due").await, 0);
    client.batch_execute("DROP TRIGGER refuse ON runs").await.unwrap();
    for _ in 0..2 {
        owner.play(Outcome::Success).await;
    }
    assert_eq!(bench.runs("due").await, 2, "one for each of the two ticks");
}

fn poison(work: &Work<'_>) {
    if let Work::Step(Step::Plan, plan) = work {
        assert!(!plan.facts().run_id.as_str().starts_with("poison"), "poison");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_6_a_run_that_panics_the_planner_fails_alone() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let config = OwnerConfig { trap: poison, ..quick() };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    rig.trigger("d", "poison").await;
    rig.trigger("d", "good").await;
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "good").await.state, RunState::Success);
    assert_eq!(rig.wait_end("d", "poison").await.state, RunState::Failed);
    assert_eq!(owner.metric("tenure_poison_runs_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_7_an_orphan_that_cannot_be_judged_costs_no_other() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    for run in ["poison", "good"] {
        rig.trigger("d", run).await;
    }
    let config =
        OwnerConfig { orphan_threshold: Duration::from_millis(200), trap: poisoned_orphan, ..quick() };
    let owner = rig.owner(Options { config, ..Options::default() });
    wait("the shard is read", || owner.status().ready).await;
    bench.orphan_all().await;
    assert_eq!(rig.wait_end("d", "good").await.state, RunState::Success);
    wait("the other one is counted", || owner.metric("tenure_orphan_panic_total") == 1.0).await;
    wait("the good one is counted", || owner.metric("tenure_orphan_reaped_total") == 1.0).await;
    let poisoned = rig.wait_end("d", "poison").await;
    assert_eq!(poisoned.state, RunState::Failed);
    assert!(poisoned.reason.unwrap().contains("panicked while judging this run: poison"));
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_that_cannot_be_listed_or_ended_are_ended_later_and_stop_nothing_else() {
    let bench = Bench::new().await;
    // The first search fails, and then the first commit that would end the orphan: after how many searches each was made.
    let (searched, commits) = (AtomicU32::new(0), Arc::new(Mutex::new(vec![])));
    let made = Arc::clone(&commits);
    let store = Faulty::before(bench.rig.store.clone(), move |call| {
        let fails = match call {
            "orphans" => searched.fetch_add(1, Ordering::SeqCst) == 0,
            commit if commit.starts_with("commit_pass") && commit.contains("to: Success") => {
                let mut made = made.lock().unwrap();
                made.push(searched.load(Ordering::SeqCst));
                made.len() == 1
            }
            _ => false,
        };
        if fails { Err(unavailable()) } else { Ok(()) }
    });
    let rig = &Rig::on(store, 1).await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    rig.trigger("d", "r").await;
    // It is looked for orphans once a second.
    let config = OwnerConfig { orphan_threshold: Duration::from_secs(2), ..quick() };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    owner.next().await;
    wait("the search fails", || owner.metric("tenure_orphan_list_error_total") == 1.0).await;
    bench.orphan_all().await;
    wait("the end fails", || owner.metric("tenure_orphan_reap_error_total") == 1.0).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    let commits = commits.lock().unwrap().clone();
    assert!(
        commits.len() == 2 && commits[0] == commits[1],
        "read again at once, not after {commits:?} searches"
    );
    assert_eq!(owner.metric("tenure_failed_passes_total"), 0.0);
    rig.trigger("d", "next").await;
    assert_eq!(owner.play(Outcome::Success).await.epoch, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_whose_end_may_or_may_not_be_written_is_left_to_the_next_term() {
    let bench = Bench::new().await;
    let lost = AtomicBool::new(false);
    let store = Faulty::before(bench.rig.store.clone(), move |call| {
        let ends = call.starts_with("commit_pass") && call.contains("to: Success");
        if ends && !lost.swap(true, Ordering::SeqCst) { Err(in_doubt()) } else { Ok(()) }
    });
    let rig = &Rig::on(store, 1).await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    rig.trigger("d", "r").await;
    let config = OwnerConfig { orphan_threshold: Duration::from_millis(400), ..quick() };
    let mut owner = rig.owner(Options { config, ..Options::default() });
    owner.next().await;
    bench.orphan_all().await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
    assert_eq!(rig.trail("d", "r").await.last().unwrap().epoch, Some(2));
}

fn poisoned_orphan(work: &Work<'_>) {
    if let Work::Step(Step::Judge, plan) = work {
        assert!(plan.facts().run_id.as_str() != "poison", "poison");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_8_a_connection_that_breaks_costs_neither_the_term_nor_a_task() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", vec![exec("a"), TaskSpec { needs: vec!["a".into()], ..exec("b") }])).await;
    let mut owner = rig.owner(Options::default());
    rig.trigger("d", "r").await;
    let a = owner.next().await;
    let epoch = a.epoch;
    assert_eq!(owner.claim(&a).await, Ack::Accepted);
    let end_all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(bench.client().await.query_one(end_all, &[]).await.unwrap().get::<_, i64>(0) > 0);
    let said = async {
        while rig::end_through(&owner.desk, &a, Outcome::Success).await == Ack::Retry {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(rig::PATIENCE, said).await.expect("it is heard in the end");
    let b = owner.play(Outcome::Success).await;
    assert_eq!(b.epoch, epoch, "the term outlives its connections");
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_9_two_owners_of_one_shard_make_one_execution_of_each_attempt() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    rig.register(DagSpec::new("d", (0..20).map(|n| exec(&format!("t{n}"))).collect())).await;
    let mut first = rig.owner(Options { restarted: false, deaf: true, ..Options::default() });
    rig.trigger("d", "r").await;
    let mut offers = vec![];
    for _ in 0..10 {
        offers.push(first.next().await);
    }
    // The second one is forced into the office while the first believes to be in it.
    let mut second = rig.owner(Options::default());
    let mut again = vec![];
    for _ in 0..16 {
        again.push(second.next().await);
    }
    // Both agents ask, each through the replica that gave the attempt to it, and through the other one.
    for (number, assignment) in offers.iter().chain(&again).enumerate() {
        let owner = if number % 2 == 0 { &first } else { &second };
        assert_eq!(owner.claim(assignment).await, Ack::Accepted, "{number}");
    }
    for assignment in &again {
        assert_eq!(second.end(assignment, Outcome::Success).await, Ack::Accepted);
    }
    let ended = || async { rig.run("d", "r").await.state.is_finished() };
    while !ended().await {
        // What was read anew is offered anew; an agent that has it already starts nothing.
        let assignment = second.next().await;
        if second.claim(&assignment).await == Ack::Accepted {
            assert_eq!(second.end(&assignment, failed()).await, Ack::Accepted);
        }
    }
    let epochs: Vec<u64> = rig.trail("d", "r").await.iter().filter_map(|row| row.epoch).collect();
    assert!(epochs.is_sorted(), "nothing of the first epoch after the second: {epochs:?}");
    let trail = rig.trail("d", "r").await;
    let claimed = trail.iter().flat_map(|row| &row.entries).filter(|entry| entry.event == "claimed");
    let mut attempts: Vec<_> = claimed.map(|entry| entry.attempt).collect();
    let all = attempts.len();
    attempts.sort();
    attempts.dedup();
    assert_eq!((all, attempts.len()), (20, 20), "one claim for each task, one for each attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_counts_although_the_owner_has_not_heard_yet_that_another_process_took_the_claim() {
    let bench = Bench::new().await;
    let rig = &bench.rig;
    let elsewhere = bench.another_process().await;
    rig.register(DagSpec::new("d", vec![exec("a")])).await;
    let mut owner = rig.owner(Options::default());
    for number in 0..40 {
        let run = format!("r{number}");
        rig.trigger("d", &run).await;
        let a = owner.next().await;
        let claim = rig::report(&a, ReportBody::Claim { attempt: a.attempt, ti: a.ti });
        assert_eq!(elsewhere.record_reports(&[claim], rig.clock.now()).await.unwrap(), [Ack::Accepted]);
        // The wake is still on its way, more often than not.
        assert_eq!(owner.end(&a, Outcome::Success).await, Ack::Accepted, "{run}");
        assert_eq!(rig.wait_end("d", &run).await.state, RunState::Success);
    }
}
