//! Apache Airflow: its API server, scheduler and dag processor as it comes, with the LocalExecutor on Postgres.
//!
//! Every setting that bears on speed is its default, save how many tasks of one dag may run at once. A time runs as
//! Tenure's does, over the same REST API. One run of each dag, after one of a single task.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use tenure_testkit::free_port;

use super::install::Scratch;
use super::process::{self, Process, counted};
use super::{Bench, Outcome, RUN_WITHIN, START_WITHIN, Workload};
use crate::cluster::database::Database;
use crate::server::Api;

pub const NAME: &str = "Airflow 3.3.2";
const PACKAGES: [&str; 3] = ["apache-airflow==3.3.2", "psycopg2-binary", "asyncpg"];
const DAGS: &str = include_str!("airflow_dags.py");
const SERVICES: [&str; 3] = ["api-server", "scheduler", "dag-processor"];
/// Its answers are no cheaper than its tasks.
const ASK_EVERY: Duration = Duration::from_millis(250);

pub fn install(scratch: &Scratch) -> Result<PathBuf> {
    scratch.python("airflow", &PACKAGES)
}

pub fn measure(bench: &Bench<'_>, installed: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let database = Database::create(&bench.postgres.url())?;
    let mut site = Site::open(installed, &database)?;
    site.api.run_within("warm", RUN_WITHIN, ASK_EVERY)?;
    for (workload, dag, tasks_per_run) in Workload::DAGS {
        let pids = site.pids();
        let run = || site.api.run_within(dag, RUN_WITHIN, ASK_EVERY);
        let (took, usage) = counted(&pids, &database, run)?;
        eprintln!("  {dag}: {:.1} s", took.as_secs_f64());
        outcomes.push(Outcome { workload, who: NAME, took: vec![took], tasks_per_run, usage: Some(usage) });
    }
    Ok(())
}

struct Site {
    services: Vec<Process>,
    api: Api,
    _home: tempfile::TempDir,
}

impl Site {
    fn open(installed: &Path, database: &Database) -> Result<Self> {
        let home = tempfile::tempdir()?;
        std::fs::create_dir(home.path().join("dags"))?;
        std::fs::write(home.path().join("dags/workloads.py"), DAGS)?;
        let (port, log_port) = (free_port(), free_port());
        let airflow = |arguments: &[&str]| {
            let mut command = Command::new(installed.join("venv/bin/airflow"));
            command.args(arguments).envs(settings(home.path(), &database.url, port, log_port));
            command
        };
        let log = |name: &str| home.path().join(format!("{name}.log"));
        process::run("airflow db migrate", &airflow(&["db", "migrate"]), &log("migrate"), START_WITHIN)?;
        let start = |name: &&str| Process::start(&airflow(&[name]), &log(name));
        let services = SERVICES.iter().map(start).collect::<Result<Vec<_>>>()?;
        let url = format!("http://127.0.0.1:{port}");
        let mut site = Self { services, api: Api::new(&url, ""), _home: home };
        site.wait_ready(&url)?;
        Ok(site)
    }

    /// Until its scheduler is well and it knows the dags.
    fn wait_ready(&mut self, url: &str) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        while !self.is_ready(url) {
            for (name, service) in SERVICES.iter().zip(&mut self.services) {
                service.ensure_alive(name)?;
            }
            let said = || self.services.iter().map(Process::last_lines).collect::<Vec<_>>().join("\n");
            ensure!(Instant::now() < deadline, "not ready within {} s:\n{}", START_WITHIN.as_secs(), said());
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    fn is_ready(&mut self, url: &str) -> bool {
        let Ok(token) = self.api.get("/auth/token") else { return false };
        self.api = Api::new(url, token["access_token"].as_str().unwrap_or_default());
        let healthy = |health: Value| health["scheduler"]["status"] == "healthy";
        let known = |dags: Value| dags["total_entries"].as_u64() >= Some(3);
        self.api.get("/api/v2/monitor/health").is_ok_and(healthy)
            && self.api.get("/api/v2/dags").is_ok_and(known)
    }

    fn pids(&self) -> Vec<u32> {
        self.services.iter().map(Process::pid).collect()
    }
}

fn settings(home: &Path, database: &str, port: u16, log_port: u16) -> Vec<(&'static str, String)> {
    let url = format!("http://127.0.0.1:{port}");
    let database = database.replacen("postgres://", "postgresql+psycopg2://", 1);
    vec![
        ("AIRFLOW_HOME", home.to_string_lossy().into_owned()),
        ("AIRFLOW__CORE__EXECUTOR", "LocalExecutor".into()),
        ("AIRFLOW__CORE__LOAD_EXAMPLES", "False".into()),
        ("AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION", "False".into()),
        ("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True".into()),
        ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", format!("{url}/execution/")),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", database),
        ("AIRFLOW__API__HOST", "127.0.0.1".into()),
        ("AIRFLOW__API__PORT", port.to_string()),
        ("AIRFLOW__API__BASE_URL", url),
        // Its parts sign what they tell each other with it.
        (
            "AIRFLOW__API_AUTH__JWT_SECRET",
            "one machine, one run, nobody else listens, nothing to hide; long enough".into(),
        ),
        ("AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT", log_port.to_string()),
        ("AIRFLOW__USAGE_DATA_COLLECTION__ENABLED", "False".into()),
    ]
}
