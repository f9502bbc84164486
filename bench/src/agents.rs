//! Nodes beyond the server's own process: what a fleet that does nothing costs, and what the way over gRPC adds to a
//! chain and to a fan-out.
//!
//! The fleet is played by this process through the real interface of agents. The chain and the fan-out run on one real
//! `tenure agent`, and on the agent inside `tenure up` for comparison: both on the same Postgres, in turns.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster::site::{self, PATIENCE, Site, TOKEN};
use crate::report::{Figure, Machine, Report, Statistic};
use crate::server::{Api, Server, cpu_of, memory_of};
use crate::skeleton::workload_dags;

const FLEET: usize = 500;
/// Until what starting and connecting have left to do is done.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
const IDLE_FOR: Duration = Duration::from_secs(30);

pub fn measure(binary: &Path, samples: usize) -> Result<Report> {
    let machine = Machine::here();
    let mut figures = vec![];
    measure_idle_fleet(binary, &mut figures)?;
    measure_distance(binary, samples, &mut figures)?;
    Ok(Report { family: "agents".into(), machine, figures, skipped: vec![] })
}

fn measure_idle_fleet(binary: &Path, figures: &mut Vec<Figure>) -> Result<()> {
    eprintln!("{FLEET} nodes with nothing to do");
    let postgres = site::postgres(false);
    let site = Site::open(binary, &postgres, 1, &[])?;
    std::thread::sleep(SETTLED_AFTER);
    let alone = idle(&site)?;
    let fleet = site.agents(FLEET, Duration::ZERO)?;
    std::thread::sleep(SETTLED_AFTER);
    let with_fleet = idle(&site)?;
    drop(fleet);
    let name = |what: &str| format!("{FLEET} idle nodes: {what}");
    figures.push(Figure::one("no nodes: server, of one core", "%", alone.server));
    figures
        .push(Figure::one(name("server, of one core"), "%", with_fleet.server).at_most(Statistic::P50, 20.0));
    figures.push(Figure::one(name("Postgres, of one core"), "%", with_fleet.postgres));
    figures.push(Figure::one("no nodes: rows written", "/s", alone.rows));
    figures.push(Figure::one(name("rows written"), "/s", with_fleet.rows));
    figures.push(Figure::one(name("server's memory"), "MB", site.servers_memory()?));
    Ok(())
}

struct Idle {
    server: f64,
    postgres: f64,
    rows: f64,
}

fn idle(site: &Site) -> Result<Idle> {
    // What a backend has written shows when its session has been idle for a second, or at its next report.
    let written = || -> Result<i64> {
        site.database.count(
            "SELECT (tup_inserted + tup_updated + tup_deleted)::bigint FROM pg_stat_database
             WHERE datname = current_database()",
        )
    };
    let used = || -> Result<(Duration, Duration)> { Ok((site.servers_cpu()?, site.database.cpu()?)) };
    let ((server, postgres), rows, began) = (used()?, written()?, Instant::now());
    std::thread::sleep(IDLE_FOR);
    let ((server_after, postgres_after), rows_after) = (used()?, written()?);
    let seconds = began.elapsed().as_secs_f64();
    let share = |before: Duration, after: Duration| (after - before).as_secs_f64() / seconds * 100.0;
    Ok(Idle {
        server: share(server, server_after),
        postgres: share(postgres, postgres_after),
        rows: (rows_after - rows) as f64 / seconds,
    })
}

fn measure_distance(binary: &Path, samples: usize, figures: &mut Vec<Figure>) -> Result<()> {
    eprintln!("a chain of 40 and 200 in parallel, in one process and over gRPC");
    let postgres = site::postgres(false);
    let dags = workload_dags();
    let mut inside = Server::start(binary, &dags, Some(&postgres.url()))?;
    let site = Site::open(binary, &postgres, 1, &[])?;
    for (_, yaml) in &dags {
        site.client.register(yaml, false)?;
    }
    let worker = Worker::start(binary, &site.replicas[0].url)?;
    let mut outside = Api::new(&site.replicas[0].url, TOKEN);
    for (dag, name, tasks) in
        [("chain40", "chain of 40 exec [true]", 40), ("parallel200", "200 parallel exec [true]", 200)]
    {
        inside.api.run(dag)?; // the first ones pay for caches and connections
        outside.run(dag)?;
        let used = |inside: &Server| -> Result<[Duration; 3]> {
            Ok([inside.cpu()?, site.servers_cpu()?, worker.cpu()?])
        };
        let before = used(&inside)?;
        let (mut near, mut far) = (vec![], vec![]);
        for _ in 0..samples {
            near.push(inside.api.run(dag)?);
            far.push(outside.run(dag)?);
        }
        let (near, far) = (
            Figure::millis(format!("{name}, in process"), &near, None),
            Figure::millis(format!("{name}, over gRPC"), &far, None),
        );
        let ratio = far.p50 / near.p50;
        let rates = [&near, &far]
            .map(|took| Figure::rate(format!("{}: tasks through", took.name), "tasks/s", tasks, took));
        figures.extend([near, far]);
        figures.extend(rates);
        figures.push(
            Figure::one(format!("{name}, over gRPC of in process"), "ratio", ratio)
                .at_most(Statistic::P50, 1.5),
        );
        let who = ["server and agent, in process", "server, over gRPC", "agent, over gRPC"];
        for ((who, before), after) in who.into_iter().zip(before).zip(used(&inside)?) {
            let name = format!("{name}: processor of {who}");
            figures.push(Figure::processor(name, "µs/task", after - before, tasks * samples));
        }
    }
    figures.push(Figure::one("memory afterwards: server and agent in process", "MB", inside.memory()?));
    figures.push(Figure::one("memory afterwards: server", "MB", site.servers_memory()?));
    figures.push(Figure::one("memory afterwards: agent", "MB", memory_of(worker.child.id())?));
    Ok(())
}

/// A `tenure agent` in a folder of its own.
struct Worker {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Worker {
    fn start(binary: &Path, server: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let binary: PathBuf = binary.canonicalize()?;
        let log = std::fs::File::create(folder.path().join("agent.log"))?;
        let child = Command::new(&binary)
            .current_dir(folder.path())
            .args(["agent", "--server", server, "--token", TOKEN, "--name", "worker", "--data", "data"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let worker = Self { child, _folder: folder };
        worker.wait_heard(server)?;
        Ok(worker)
    }

    fn cpu(&self) -> Result<Duration> {
        cpu_of(self.child.id())
    }

    fn wait_heard(&self, server: &str) -> Result<()> {
        let api = Api::new(server, TOKEN);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let nodes = api.get("/api/tenure/nodes")?;
            let heard = |node: &Value| node["heard_by"].as_array().is_some_and(|by| !by.is_empty());
            if nodes["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(heard)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the agent is not heard in time: {nodes}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
