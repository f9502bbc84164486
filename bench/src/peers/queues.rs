//! Job queues on Postgres, which know no dags: how many no-op jobs a second go through one worker process.
//!
//! Each queues its jobs first, which is not counted, then works as fast as it can, batched as far as it offers that. The
//! time ends when its tables say that every job has.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::install::Scratch;
use super::process::{Talk, counted};
use super::{Bench, JOBS, Outcome, RUN_WITHIN, START_WITHIN, Workload};
use crate::cluster::database::Database;

const ASK_EVERY: Duration = Duration::from_millis(5);

pub struct Queue {
    pub name: &'static str,
    made: Made,
    /// Counts the jobs that have not ended.
    left: &'static str,
}

enum Made {
    Node { folder: &'static str, package: &'static str, script: &'static str },
    Rust { folder: &'static str, manifest: &'static str, main: &'static str, program: &'static str },
}

pub const GRAPHILE_WORKER: Queue = Queue {
    name: "graphile-worker 0.17.3",
    made: Made::Node {
        folder: "graphile-worker",
        package: "graphile-worker@0.17.3",
        script: include_str!("graphile.mjs"),
    },
    left: "SELECT count(*) FROM graphile_worker._private_jobs",
};

pub const PG_BOSS: Queue = Queue {
    name: "pg-boss 10.4.2",
    made: Made::Node { folder: "pg-boss", package: "pg-boss@10.4.2", script: include_str!("pg_boss.mjs") },
    left: "SELECT count(*) FROM pgboss.job WHERE state <> 'completed'",
};

pub const APALIS: Queue = Queue {
    name: "apalis-postgres 1.0.0",
    made: Made::Rust {
        folder: "apalis",
        manifest: include_str!("apalis.toml"),
        main: include_str!("apalis.rs.txt"),
        program: "target/release/apalis-worker",
    },
    left: "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'",
};

impl Queue {
    pub fn install(&self, scratch: &Scratch) -> Result<PathBuf> {
        match self.made {
            Made::Node { folder, package, script } => scratch.node(folder, package, script),
            Made::Rust { folder, manifest, main, .. } => scratch.rust(folder, manifest, main),
        }
    }

    pub fn measure(&self, bench: &Bench<'_>, installed: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let database = Database::create(&bench.postgres.url())?;
        let mut worker = Talk::start(&self.worker(installed, &database.url), &installed.join("worker.log"))?;
        worker.hear("ready", START_WITHIN)?;
        let queued = database.count(self.left)?;
        ensure!(queued == JOBS as i64, "{queued} of {JOBS} jobs are queued");
        database.settle()?;
        let pid = worker.pid();
        let (took, usage) = counted(&[pid], &database, || self.work(&mut worker, &database))?;
        outcomes.push(Outcome {
            workload: Workload::Jobs,
            who: self.name,
            took: vec![took],
            tasks_per_run: JOBS,
            usage: Some(usage),
        });
        Ok(())
    }

    fn worker(&self, installed: &Path, database: &str) -> Command {
        let mut command = match self.made {
            Made::Node { .. } => {
                let mut node = Command::new("node");
                node.arg("worker.mjs");
                node
            }
            Made::Rust { program, .. } => Command::new(installed.join(program)),
        };
        command.current_dir(installed).env("DATABASE_URL", database).env("JOBS", JOBS.to_string());
        command
    }

    /// The tables are asked only after each job has run: counting them costs something.
    fn work(&self, worker: &mut Talk, database: &Database) -> Result<Duration> {
        let began = Instant::now();
        worker.say("go")?;
        worker.hear("done", RUN_WITHIN)?;
        loop {
            let left = database.count(self.left)?;
            if left == 0 {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < RUN_WITHIN, "{left} of {JOBS} jobs are left after {RUN_WITHIN:?}");
            std::thread::sleep(ASK_EVERY);
        }
    }
}
