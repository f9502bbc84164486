//! What a measurement stands on: a database of its own on a real Postgres, replicas that are real processes, and a
//! client that asks whichever replica answers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_model::{DagId, ShardId, TenantId};
use tenure_testkit::{OwnPostgres, Postgres, Settings, free_port};

use super::agents::{Agents, AgentsConfig};
use super::database::Database;
use crate::server::{cpu_of, memory_of};

/// What one waits for at most, where nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const TOKEN: &str = "bench";
/// As `tenure server` divides a new database.
pub const SHARDS: u16 = 16;

/// For a machine with a few gigabytes to spare; durable, as in production.
pub fn postgres(statements: bool) -> OwnPostgres {
    let mut extra =
        vec!["max_connections=300", "shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=15min"];
    if statements {
        extra.extend(["shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all"]);
    }
    let extra = extra.into_iter().map(str::to_owned).collect();
    Postgres::own(Settings { fsync: true, extra })
}

pub struct Site {
    pub database: Database,
    pub replicas: Vec<Replica>,
    pub client: Client,
    _folder: TempDir,
}

impl Site {
    /// A new database, and this many replicas, which share its shards out.
    pub fn open(binary: &Path, server: &OwnPostgres, replicas: usize, settings: &[&str]) -> Result<Self> {
        let database = Database::create(&server.url())?;
        let folder = tempfile::tempdir()?;
        let binary = binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?;
        let replica = |number: usize| -> Replica {
            let port = free_port();
            Replica {
                binary: binary.clone(),
                folder: folder.path().join(format!("replica-{number}")),
                logs: folder.path().join("logs"),
                database: database.url.clone(),
                url: format!("http://127.0.0.1:{port}"),
                port,
                settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
                child: None,
            }
        };
        let replicas: Vec<Replica> = (0..replicas).map(replica).collect();
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60)));
        let urls = replicas.iter().map(|replica| replica.url.clone()).collect();
        let client = Client { agent: config.build().into(), replicas: urls };
        let mut site = Self { database, replicas, client, _folder: folder };
        for number in 0..site.replicas.len() {
            site.replicas[number].start()?;
            if number == 0 {
                site.wait_ready(0)?; // it makes the tables
            }
        }
        site.wait_balanced()?;
        Ok(site)
    }

    /// Nodes that are connected to every replica, with more room than anybody needs.
    pub fn agents(&self, nodes: usize, hold: Duration) -> Result<Agents> {
        Agents::start(&AgentsConfig {
            replicas: self.replicas.iter().map(|replica| replica.url.clone()).collect(),
            token: TOKEN.into(),
            nodes,
            capacity: 100_000,
            hold,
        })
    }

    pub fn wait_ready(&self, replica: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let url = format!("{}/health/ready", self.replicas[replica].url);
        while self.client.agent.get(&url).call().is_err() {
            ensure!(
                Instant::now() < deadline,
                "replica {replica} is not ready in time:\n{}",
                self.replicas[replica].log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Until every replica that runs is ready and holds its share of the shards.
    pub fn wait_balanced(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let running = self.replicas.iter().filter(|replica| replica.child.is_some());
            let owned: Vec<Option<u64>> = running.map(|replica| self.owned(replica)).collect();
            let (count, shards) = (owned.len() as u64, u64::from(SHARDS));
            let fair = shards / count..=shards.div_ceil(count);
            let even = owned.iter().all(|owned| owned.is_some_and(|owned| fair.contains(&owned)));
            if even && owned.iter().flatten().sum::<u64>() == shards {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the shards are not shared out in time: {owned:?}");
            std::thread::sleep(Duration::from_millis(100)); // each look costs every replica something
        }
    }

    /// How many shards a replica works on. Absent: it is not ready.
    fn owned(&self, replica: &Replica) -> Option<u64> {
        let mut answer = self.client.agent.get(format!("{}/health/ready", replica.url)).call().ok()?;
        answer.body_mut().read_json::<Value>().ok()?["shards"]["owned"].as_u64()
    }

    /// Which replica works on the shard, and under which epoch.
    pub fn owner_of(&self, shard: ShardId) -> Result<(usize, u64)> {
        let deadline = Instant::now() + PATIENCE;
        let scope = shard.scope();
        loop {
            for (number, replica) in self.replicas.iter().enumerate() {
                let Ok(mut answer) = self.client.agent.get(format!("{}/health", replica.url)).call() else {
                    continue;
                };
                let health: Value = answer.body_mut().read_json()?;
                let scopes = health["scopes"].as_array().context("health lists scopes")?;
                let leads = |entry: &&Value| entry["scope"] == *scope && entry["leading"] == true;
                if let Some(entry) = scopes.iter().find(leads) {
                    return Ok((number, entry["epoch"].as_u64().context("an epoch is a number")?));
                }
            }
            ensure!(Instant::now() < deadline, "nobody leads {scope}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn metrics(&self, replica: usize) -> Result<String> {
        let request = self.client.agent.get(format!("{}/metrics", self.replicas[replica].url));
        let mut answer = request.header("authorization", format!("Bearer {TOKEN}")).call()?;
        Ok(answer.body_mut().read_to_string()?)
    }

    /// Processor time of all replicas that run.
    pub fn servers_cpu(&self) -> Result<Duration> {
        self.replicas.iter().filter_map(Replica::pid).map(cpu_of).sum()
    }

    pub fn servers_memory(&self) -> Result<f64> {
        self.replicas.iter().filter_map(Replica::pid).map(memory_of).sum()
    }
}

/// Asks whichever replica answers.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    replicas: Vec<String>,
}

impl Client {
    fn send(&self, method: &str, path: &str, body: &Value, again_is_fine: bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = anyhow!("there is no replica");
        while Instant::now() < deadline {
            for replica in &self.replicas {
                let url = format!("{replica}{path}");
                let request = match method {
                    "PATCH" => self.agent.patch(url),
                    _ => self.agent.post(url),
                };
                match request.header("authorization", format!("Bearer {TOKEN}")).send_json(body) {
                    Ok(_) => return Ok(()),
                    // What was sent to a replica that died: it was done, or it is done now.
                    Err(ureq::Error::StatusCode(409)) if again_is_fine => return Ok(()),
                    Err(ureq::Error::StatusCode(code)) if code < 500 => {
                        bail!("{path} was refused with {code}")
                    }
                    Err(error) => last = anyhow!(error).context(path.to_owned()),
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(last)
    }

    pub fn register(&self, yaml: &str, paused: bool) -> Result<()> {
        let path = format!("/api/tenure/dags?paused={paused}");
        self.send("POST", &path, &json!({ "source": yaml }), false)
    }

    pub fn trigger(&self, dag: &str, run_id: &str) -> Result<()> {
        let body = json!({ "dag_run_id": run_id, "logical_date": null });
        self.send("POST", &format!("/api/v2/dags/{dag}/dagRuns"), &body, true)
    }

    pub fn unpause(&self, dag: &str) -> Result<()> {
        self.send("PATCH", &format!("/api/v2/dags/{dag}"), &json!({ "is_paused": false }), false)
    }

    pub fn pool(&self, name: &str, slots: i64) -> Result<()> {
        if name == "default_pool" {
            let body = json!({ "slots": slots });
            return self.send("PATCH", &format!("/api/v2/pools/{name}"), &body, false);
        }
        self.send("POST", "/api/v2/pools", &json!({ "name": name, "slots": slots }), true)
    }
}

/// The shard of a dag.
pub fn shard_of(dag: &str) -> ShardId {
    ShardId::of(&TenantId::default_tenant(), &DagId::new(dag), SHARDS)
}

/// Names of dags that all belong to different shards.
pub fn dags_apart(prefix: &str, count: usize) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    for name in (0..).map(|number| format!("{prefix}-{number}")) {
        if found.len() == count {
            break;
        }
        if found.iter().all(|other| shard_of(other) != shard_of(&name)) {
            found.push(name);
        }
    }
    found
}

/// A `tenure server`, running or not.
pub struct Replica {
    binary: PathBuf,
    folder: PathBuf,
    logs: PathBuf,
    database: String,
    pub url: String,
    port: u16,
    settings: Vec<String>,
    child: Option<Child>,
}

impl Replica {
    /// Starts it, and does not wait until it is ready.
    pub fn start(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let log = File::options().create(true).append(true).open(self.folder.join("server.log"))?;
        let child = Command::new(&self.binary)
            .current_dir(&self.folder)
            .args(["server", "--database-url", &self.database])
            .args(["--listen", &format!("127.0.0.1:{}", self.port), "--advertise", &self.url])
            .args(["--shards", &SHARDS.to_string(), "--data", "data"])
            .arg("--logs")
            .arg(&self.logs)
            .args(&self.settings)
            .env("TENURE_BOOTSTRAP_TOKEN", TOKEN)
            .env("XDG_RUNTIME_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid as i32)).context("the replica runs")?;
        Ok(kill_process(pid, signal)?)
    }

    pub fn wait_gone(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the replica runs")?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                child.kill()?;
                bail!("the replica does not end:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }
}
