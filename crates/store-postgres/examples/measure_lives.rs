//! What the life of a task costs the store: `cargo run --release -p tenure-store-postgres --example measure_lives
//! [passes]`. Runs of a hundred tasks are created, bound, claimed and ended by passes of some hundred changes each,
//! on a server of its own with fsync on. Time on the clock depends on what else the machine does; processor time,
//! bytes of log and the share of HOT updates hardly do.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;

use common::{client, load, new_run, now, owner, pass, register, store};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::Tenure;
use tenure_model::{AttemptId, RunKey, RunState, TaskInstance, TaskState, TiKey};
use tenure_store::{
    AuditEntry, NewRunOutcome, Pass, RunChange, RunSnapshot, SchedulingStore, StateChange, TiChange,
};
use tenure_store_postgres::PostgresStore;
use tenure_testkit::{Postgres, Settings};
use tokio_postgres::Client;

const TASKS: usize = 100;
/// Runs in flight, and how many tasks of each are bound (and claimed, and ended) in one pass.
const RUNS: usize = 10;
const STEP: usize = 20;

#[tokio::main]
async fn main() {
    let passes: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(700);
    let extra = vec!["shared_buffers=256MB".into(), "max_wal_size=4GB".into()];
    let server = Postgres::own(Settings { fsync: true, extra });
    let ours = store(&server.url(), 4).await;
    let observer = client(&server.url()).await;
    let (_elector, tenure) = owner(&ours).await;
    register(&ours, "etl", TASKS).await;
    let mut work = Work { runs: vec![], made: 0, entropy: Entropy::from_os() };
    work.go(&ours, &tenure, 70).await; // warm
    let before = Spent::by_now(&observer).await;
    let ended = work.go(&ours, &tenure, passes).await as f64;
    let after = Spent::by_now(&observer).await;
    let micros = |seconds: f64| seconds * 1e6 / ended;
    let wall = after.wall - before.wall;
    println!(
        "{ended} tasks: {:.0} tasks/s; a task: {:.1} µs here, {:.1} µs in the server ({:.1} µs of it in backends), {:.0} bytes of log",
        ended / wall,
        micros(after.client - before.client),
        micros(after.server - before.server),
        micros(after.backends - before.backends),
        (after.log - before.log) as f64 / ended,
    );
    drop(ours);
    println!("{}", tables(&observer).await);
}

struct Work {
    runs: Vec<(RunSnapshot, usize)>,
    made: usize,
    entropy: Entropy,
}

impl Work {
    /// How many tasks have ended.
    async fn go(&mut self, ours: &PostgresStore, tenure: &Tenure, passes: usize) -> usize {
        let mut ended = 0;
        for _ in 0..passes {
            let mut next = self.pass();
            let guard = tenure.guard().expect("leads");
            // Runs begin one after the other, so that each pass has a bit of everything.
            if self.runs.len() < RUNS {
                self.made += 1;
                next.new_runs.push(new_run("etl", &format!("r{}", self.made)));
            }
            let committed = ours.commit_pass(&guard, &next).await.expect("committed");
            assert_eq!(committed.conflicts, vec![]);
            ended += next.runs.iter().flat_map(|run| &run.tis).filter(|ti| ti.to.ended_at.is_some()).count();
            for outcome in committed.created {
                let NewRunOutcome::Created(header) = outcome else { panic!("a new run") };
                self.runs.push((load(ours, header.key).await, 0));
            }
            self.runs.retain(|(run, _)| run.header.state != RunState::Success);
        }
        ended
    }

    fn pass(&mut self) -> Pass {
        let entropy = self.entropy.clone();
        pass(self.runs.iter_mut().map(|(run, step)| advance(run, step, &entropy)).collect())
    }
}

/// Binds the next tasks of a run, claims those of the pass before, ends those of the one before that.
fn advance(run: &mut RunSnapshot, step: &mut usize, entropy: &Entropy) -> RunChange {
    let key = run.header.key;
    let mut change = RunChange {
        run: key,
        revision: run.header.revision,
        state: None,
        tis: vec![],
        past_tries: vec![],
        results: vec![],
        audit: vec![],
    };
    let mut state = |run: &mut RunSnapshot, to| {
        let from = std::mem::replace(&mut run.header.state, to);
        change.state = Some(StateChange { from, to, at: now(), reason: None });
    };
    if *step == 0 {
        state(run, RunState::Running);
    }
    if *step == TASKS / STEP + 1 {
        state(run, RunState::Success);
    }
    let at = *step * STEP;
    let groups = [
        (at, TaskState::Queued),
        (at.wrapping_sub(STEP), TaskState::Running),
        (at.wrapping_sub(2 * STEP), TaskState::Success),
    ];
    for (first, to) in groups {
        for task in first..first.saturating_add(STEP) {
            if task < TASKS {
                step_task(&mut change, run, task, to, entropy);
            }
        }
    }
    *step += 1;
    run.header.revision += 1;
    change
}

fn step_task(
    change: &mut RunChange,
    run: &mut RunSnapshot,
    task: usize,
    state: TaskState,
    entropy: &Entropy,
) {
    let key = run.header.key;
    let cached = &mut run.tis[task];
    let from = cached.ti.clone();
    let mut to = TaskInstance { state, ..from.clone() };
    let entry = |event: &str, from: TaskState, to: &TaskInstance| AuditEntry {
        task: Some(cached.task_id.clone()),
        map_index: None,
        event: event.into(),
        from: from.to_string(),
        to: to.state.to_string(),
        try_number: Some(1),
        attempt: to.attempt,
        node: to.node.clone(),
        reason: None,
    };
    match state {
        TaskState::Queued => {
            (to.try_number, to.scheduled_at, to.queued_at) = (1, Some(now()), Some(now()));
            let scheduled = TaskInstance { state: TaskState::Scheduled, ..to.clone() };
            change.audit.push(entry("scheduled", from.state, &scheduled));
            (to.attempt, to.node) = (Some(AttemptId(entropy.uuid(now()))), Some("node-17.example".into()));
            change.audit.push(entry("bound", TaskState::Scheduled, &to));
        }
        TaskState::Running => {
            to.started_at = Some(now());
            change.audit.push(entry("claimed", from.state, &to));
        }
        _ => {
            to.ended_at = Some(now());
            change.audit.push(entry("succeeded", from.state, &to));
        }
    }
    cached.ti = to.clone();
    let ti = TiKey::unmapped(RunKey(key.0), cached.task);
    change.tis.push(TiChange { ti, from: from.state, from_attempt: from.attempt, to });
}

/// Processor time in seconds, and bytes of log.
struct Spent {
    wall: f64,
    client: f64,
    server: f64,
    backends: f64,
    log: i64,
}

impl Spent {
    async fn by_now(observer: &Client) -> Self {
        let sql = "SELECT pg_backend_pid(), (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let row = observer.query_one(sql, &[]).await.expect("answered");
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'";
        let backends = observer.query(sql, &[]).await.expect("answered");
        let backends: Vec<i32> = backends.iter().map(|row| row.get(0)).collect();
        let parent = stat(row.get(0)).expect("our own backend").parent;
        let processes = fs::read_dir("/proc").expect("proc").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_server =
            pids.filter_map(|pid: i32| Some((pid, stat(pid)?))).filter(|(_, stat)| stat.parent == parent);
        let (mut server, mut of_backends) = (0.0, 0.0);
        for (pid, stat) in of_server {
            server += stat.seconds;
            of_backends += if backends.contains(&pid) { stat.seconds } else { 0.0 };
        }
        let client = stat(std::process::id() as i32).expect("ourselves").seconds;
        let wall = SystemClock
            .boottime()
            .saturating_since(tenure_clock::BootTime::since_boot(std::time::Duration::ZERO))
            .as_secs_f64();
        Self { wall, client, server, backends: of_backends, log: row.get(1) }
    }
}

struct Stat {
    parent: i32,
    seconds: f64,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
    Some(Stat { parent: fields[1].parse().ok()?, seconds: ticks / 100.0 })
}

async fn tables(observer: &Client) -> String {
    let sql = "SELECT relname::text, n_tup_upd, n_tup_hot_upd, pg_total_relation_size(relid), n_live_tup
        FROM pg_stat_user_tables WHERE relname IN ('runs', 'task_instances', 'audit') ORDER BY 1";
    // Counters arrive a little late.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let rows = observer.query(sql, &[]).await.expect("answered");
    let line = |row: &tokio_postgres::Row| {
        let (updates, hot): (i64, i64) = (row.get(1), row.get(2));
        format!(
            "{:>15}: {} of {updates} updates were HOT, {} MB for {} rows",
            row.get::<_, String>(0),
            hot,
            row.get::<_, i64>(3) / 1_000_000,
            row.get::<_, i64>(4)
        )
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
