//! Throughput with a lot in the database: tasks that wait, and tasks that have long ended.

use anyhow::Result;

use super::Bench;
use super::site::Site;
use super::throughput::{Flow, SETTINGS, TASKS_PER_RUN, flow, parallel, processors, trigger};
use crate::report::{Figure, Statistic};
use crate::server::memory_of;

const WAITING_RUNS: usize = 10_000;
const WAITING_DAGS: usize = 20;
const FINISHED_RUNS: usize = 100_000;

/// A million tasks wait: in runs that are queued behind their dag's limit, and then in runs that are active, with
/// every task scheduled and behind a full pool.
pub fn queued(bench: &mut Bench<'_>, empty: &Flow) -> Result<()> {
    let tasks = WAITING_RUNS * TASKS_PER_RUN;
    for (what, active) in [("queued in runs that wait", 1), ("scheduled behind a full pool", WAITING_RUNS)] {
        eprintln!("one replica, {tasks} tasks {what}");
        let site = Site::open(bench.options.binary, &bench.postgres, 1, &SETTINGS)?;
        site.client.pool("full", 0)?;
        let dags: Vec<String> = (0..WAITING_DAGS).map(|number| format!("waiting-{number:02}")).collect();
        for dag in &dags {
            site.client.register(&parallel(dag, "full", active), false)?;
        }
        trigger(&site, &dags, WAITING_RUNS / WAITING_DAGS)?;
        let scheduled = WAITING_DAGS * active.min(WAITING_RUNS / WAITING_DAGS) * TASKS_PER_RUN;
        until_scheduled(&site, scheduled)?;
        let memory = memory_of(site.replicas[0].pid().expect("it was started"))?;
        bench.figures.push(
            Figure::one(format!("1,000,000 tasks {what}: memory"), "MB", memory)
                .at_most(Statistic::P50, 300.0),
        );
        let flow = flow(bench.options, &site, "noop")?;
        report(bench, &format!("1,000,000 tasks {what}"), &flow, empty, 0.8);
    }
    Ok(())
}

fn until_scheduled(site: &Site, tasks: usize) -> Result<()> {
    let deadline = std::time::Instant::now() + super::site::PATIENCE * 5;
    loop {
        let scheduled =
            site.database.count("SELECT count(*) FROM task_instances WHERE state = 'scheduled'")?;
        if scheduled == tasks as i64 {
            return Ok(());
        }
        anyhow::ensure!(std::time::Instant::now() < deadline, "{scheduled} of {tasks} tasks are scheduled");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}

/// Ten million tasks have ended, with their audit trail.
pub fn history(bench: &mut Bench<'_>, empty: &Flow) -> Result<()> {
    let tasks = FINISHED_RUNS * TASKS_PER_RUN;
    eprintln!("one replica, {tasks} finished tasks in the tables");
    let site = Site::open(bench.options.binary, &bench.postgres, 1, &SETTINGS)?;
    site.client.register(&parallel("past", "default_pool", 16), true)?;
    load_history(&site)?;
    let flow = flow(bench.options, &site, "noop")?;
    report(bench, "10,000,000 finished tasks", &flow, empty, 0.9);
    Ok(())
}

fn report(bench: &mut Bench<'_>, what: &str, flow: &Flow, empty: &Flow, goal: f64) {
    bench.figures.push(Figure::one(format!("{what}: tasks through"), "/s", flow.rate()));
    processors(bench, what, flow);
    let ratio = flow.rate() / empty.rate();
    bench.figures.push(
        Figure::one(format!("{what}, of the empty case"), "ratio", ratio).at_least(Statistic::P50, goal),
    );
}

/// In pieces, so that no transaction is huge.
fn load_history(site: &Site) -> Result<()> {
    const PIECE: usize = 5_000;
    for first in (0..FINISHED_RUNS).step_by(PIECE) {
        let last = first + PIECE - 1;
        site.database.execute(&format!(
            "WITH past AS (
                INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, run_after,
                    queued_at, started_at, ended_at, updated_at, conf, triggered_by)
                SELECT 'default', 'past', 'past-' || n, 1, dags.shard, 'success', 203, 'manual',
                    at, at, at, at + interval '1 minute', at + interval '1 minute', '{{}}', 'bench'
                FROM generate_series({first}, {last}) n, dags,
                    LATERAL (SELECT now() - interval '1 day' - n * interval '5 seconds' AS at) times
                WHERE dags.dag_id = 'past'
                RETURNING key, run_id, queued_at
            ), trail AS (
                INSERT INTO audit (at, tenant, dag_id, run_id, actor, scope, epoch, entries)
                SELECT queued_at, 'default', 'past', run_id, 'bench', 'scheduler/shard-00', 1,
                    '[{{\"event\":\"task\",\"task\":\"t00\",\"from\":\"running\",\"to\":\"success\"}}]'
                FROM past, generate_series(1, 20)
            )
            INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries,
                attempt, node, scheduled_at, queued_at, started_at, ended_at)
            SELECT key, n, -1, 'default', 't' || lpad(n::text, 2, '0'), 'default_pool', 'success', 1, 0,
                gen_random_uuid(), 'node-00', queued_at, queued_at, queued_at, queued_at + interval '1 minute'
            FROM past, generate_series(0, {}) n",
            TASKS_PER_RUN - 1
        ))?;
        eprintln!("  {} runs", last + 1);
    }
    Ok(())
}
