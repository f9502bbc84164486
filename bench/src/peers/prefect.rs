//! Prefect: its server on Postgres, and flows that a running Python process calls.
//!
//! That is its shortest way: nobody polls for a scheduled run, and no process is started for a flow. Two times are taken:
//! until the flow has ended, and until its server knows the end of every task, which it learns later by events.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure_testkit::free_port;

use super::install::Scratch;
use super::process::{Process, Talk, counted};
use super::{Bench, Outcome, RUN_WITHIN, START_WITHIN, Workload};
use crate::cluster::database::Database;
use crate::server::Api;

pub const NAME: &str = "Prefect 3.8.8";
const RECORDED: &str = "Prefect 3.8.8 (every task recorded)";
/// A newer FastAPI has no `min_items` any more, which this Prefect uses.
const PACKAGES: [&str; 2] = ["prefect==3.8.8", "fastapi==0.139.*"];
const FLOWS: &str = include_str!("prefect_flows.py");
const SAMPLES: usize = 5;
const ASK_EVERY: Duration = Duration::from_millis(50);

pub fn install(scratch: &Scratch) -> Result<PathBuf> {
    scratch.python("prefect", &PACKAGES)
}

pub fn measure(bench: &Bench<'_>, installed: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let database = Database::create(&bench.postgres.url())?;
    let home = tempfile::tempdir()?;
    let port = free_port();
    let settings = settings(home.path(), &database.url, port);
    let mut serve = Command::new(installed.join("venv/bin/prefect"));
    serve
        .args(["server", "start", "--host", "127.0.0.1", "--port", &port.to_string()])
        .envs(settings.clone());
    let mut server = Process::start(&serve, &home.path().join("server.log"))?;
    wait_ready(&mut server, port)?;
    std::fs::write(home.path().join("flows.py"), FLOWS)?;
    let mut python = Command::new(installed.join("venv/bin/python"));
    python.arg("flows.py").current_dir(home.path()).envs(settings);
    let mut flows = Talk::start(&python, &home.path().join("flows.log"))?;
    flows.hear("ready", START_WITHIN)?;
    let pids = [server.pid(), flows.pid()];

    let mut recorded = run(&mut flows, &database, "warm", 1)?.recorded;
    for (workload, dag, tasks_per_run) in Workload::DAGS {
        let (mut took, mut known) = (vec![], vec![]);
        let (_, usage) = counted(&pids, &database, || {
            for _ in 0..bench.options.samples.min(SAMPLES) {
                let run = run(&mut flows, &database, dag, recorded + tasks_per_run)?;
                recorded = run.recorded;
                took.push(run.ended_after);
                known.push(run.known_after);
            }
            Ok(())
        })?;
        let outcome = Outcome { workload, who: NAME, took, tasks_per_run, usage: Some(usage) };
        let later = Outcome { who: RECORDED, took: known, usage: None, ..outcome.clone() };
        outcomes.extend([outcome, later]);
    }
    Ok(())
}

struct Run {
    ended_after: Duration,
    known_after: Duration,
    /// Tasks of all runs so far.
    recorded: usize,
}

fn run(flows: &mut Talk, database: &Database, flow: &str, expected: usize) -> Result<Run> {
    let began = Instant::now();
    flows.say(flow)?;
    flows.hear("done", RUN_WITHIN)?;
    let ended_after = began.elapsed();
    loop {
        let recorded =
            database.count("SELECT count(*) FROM task_run WHERE state_type = 'COMPLETED'")? as usize;
        if recorded >= expected {
            return Ok(Run { ended_after, known_after: began.elapsed(), recorded });
        }
        ensure!(
            began.elapsed() < RUN_WITHIN,
            "{recorded} of {expected} tasks are recorded after {} s",
            RUN_WITHIN.as_secs()
        );
        std::thread::sleep(ASK_EVERY);
    }
}

fn wait_ready(server: &mut Process, port: u16) -> Result<()> {
    let api = Api::new(&format!("http://127.0.0.1:{port}"), "");
    let deadline = Instant::now() + START_WITHIN;
    while api.get("/api/health").is_err() {
        server.ensure_alive("prefect server")?;
        ensure!(
            Instant::now() < deadline,
            "not ready within {} s:\n{}",
            START_WITHIN.as_secs(),
            server.last_lines()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn settings(home: &Path, database: &str, port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("PREFECT_HOME", home.to_string_lossy().into_owned()),
        ("PREFECT_API_URL", format!("http://127.0.0.1:{port}/api")),
        ("PREFECT_API_DATABASE_CONNECTION_URL", database.replacen("postgres://", "postgresql+asyncpg://", 1)),
        ("PREFECT_SERVER_ANALYTICS_ENABLED", "false".into()),
        ("PREFECT_LOGGING_LEVEL", "WARNING".into()),
        ("DO_NOT_TRACK", "1".into()),
    ]
}
