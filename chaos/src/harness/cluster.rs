//! The cluster under test: a Postgres of its own, perhaps an etcd, three replicas, three agents, and a wire that can
//! be broken between any two of them.
//!
//! Everything lives in one scratch folder on free ports. All of it ends with its handle; should this process be
//! killed first, a reaper that waits for that ends the rest.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tenure_clock::Entropy;
use tenure_testkit::{Etcd, OwnEtcd, OwnPostgres, Postgres, Settings, TempDir, free_port};
use tokio::runtime::{Handle, Runtime};

use super::api::Api;
use super::process::{Process, Recipe, kill_all_of};
use super::proxy::Proxy;
use super::wait_until;
use tenure_judge::history::Hit;

pub const SHARDS: u16 = 8;
const REPLICAS: usize = 3;
const NODES: usize = 3;
/// Short, so that frozen owners are replaced while somebody watches; long enough for a machine that is busy with
/// ten processes.
pub const LEASE: Duration = Duration::from_secs(4);
/// The shortest that a server accepts is just above this.
pub const SILENCE: Duration = Duration::from_secs(16);
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(90);

/// Where the leases are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Wiring {
    Postgres,
    Etcd,
}

#[derive(Debug)]
pub struct Cluster {
    // In the order in which they end.
    pub replicas: Vec<Replica>,
    pub nodes: Vec<Node>,
    reaper: Child,
    pub api: Api,
    pub etcd: Option<OwnEtcd>,
    pub postgres: OwnPostgres,
    runtime: Runtime,
    binary: PathBuf,
    token: String,
    folder: TempDir,
}

#[derive(Debug)]
pub struct Replica {
    pub process: Process,
    pub url: String,
    /// To Postgres.
    pub database: Proxy,
    /// To etcd, where there is one.
    pub leases: Option<Proxy>,
    /// From the agents.
    pub front: Proxy,
    recipe: Recipe,
}

#[derive(Debug)]
pub struct Node {
    pub process: Process,
    folder: PathBuf,
}

impl Cluster {
    pub fn start(binary: &Path, wiring: Wiring, entropy: &Entropy) -> Result<Self> {
        let folder = tenure_testkit::temp_dir();
        std::fs::create_dir(folder.path().join("effects"))?;
        let reaper = Command::new(std::env::current_exe()?)
            .arg("reap")
            .arg(folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .context("the reaper could not be started")?;
        let bytes: [u8; 16] = entropy.bytes();
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = Settings {
            fsync: false,
            extra: vec!["track_commit_timestamp=on".into(), "max_connections=300".into()],
        };
        let mut cluster = Self {
            replicas: vec![],
            nodes: vec![],
            reaper,
            api: Api::new(&token),
            etcd: (wiring == Wiring::Etcd).then(Etcd::start),
            postgres: Postgres::own(settings),
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
            binary: binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?,
            token,
            folder,
        };
        for number in 1..=REPLICAS {
            let replica = cluster.start_replica(number)?;
            cluster.replicas.push(replica);
            // The first one creates the tables.
            cluster.wait_ready(number - 1, START)?;
        }
        for number in 1..=NODES {
            let node = cluster.start_node(number)?;
            cluster.nodes.push(node);
        }
        let known = wait_until(START, || {
            let (_, nodes) = cluster.api.get(&cluster.replicas[0].url, "/api/tenure/nodes")?;
            (nodes["total_entries"].as_u64()? == NODES as u64).then_some(())
        });
        ensure!(known.is_some(), "not every agent came up:\n{}", cluster.state());
        cluster.wait_whole(START).context("the cluster did not come up")?;
        Ok(cluster)
    }

    pub fn effects(&self) -> PathBuf {
        self.folder.path().join("effects")
    }

    pub fn urls(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.url.clone()).collect()
    }

    pub fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// A replica beside the others that calls itself what another one does, on a port of its own.
    pub fn start_twin(&self, of: usize) -> Result<Process> {
        let mut recipe = self.replicas[of].recipe.clone();
        let port = free_port();
        set(&mut recipe.args, "--listen", format!("127.0.0.1:{port}"));
        set(&mut recipe.args, "--data", self.text("twin"));
        Process::start("twin", recipe)
    }

    /// SIGKILL for the agent and for everything it has started: what a power cut leaves of a machine.
    pub fn crash_node(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.process.kill();
        kill_all_of(&node.folder);
    }

    /// What a replica leads, as it says itself.
    pub fn led_by(&self, replica: usize) -> Vec<Hit> {
        let Some((200, health)) = self.api.get(&self.replicas[replica].url, "/health") else { return vec![] };
        let scopes = health["scopes"].as_array().cloned().unwrap_or_default();
        let led = scopes.iter().filter(|scope| scope["leading"] == true);
        led.filter_map(|scope| {
            let name = scope["scope"].as_str()?.to_owned();
            Some(Hit { scope: name, epoch: scope["epoch"].as_u64()?, deposed: false })
        })
        .collect()
    }

    pub fn led_by_all(&self) -> Vec<Hit> {
        (0..self.replicas.len()).flat_map(|at| self.led_by(at)).collect()
    }

    /// Every replica is ready, and every shard is led.
    pub fn is_whole(&self) -> bool {
        let ready = |replica: &Replica| matches!(self.api.get(&replica.url, "/health/ready"), Some((200, _)));
        let led: std::collections::BTreeSet<String> =
            self.led_by_all().into_iter().map(|hit| hit.scope).collect();
        self.replicas.iter().all(ready) && led.len() == usize::from(SHARDS)
    }

    pub fn wait_whole(&self, within: Duration) -> Result<()> {
        match wait_until(within, || self.is_whole().then_some(())) {
            Some(()) => Ok(()),
            None => {
                bail!("not every replica was ready and every shard led within {within:?}\n{}", self.state())
            }
        }
    }

    pub fn wait_ready(&mut self, at: usize, within: Duration) -> Result<()> {
        let url = self.replicas[at].url.clone();
        let ready = wait_until(within, || {
            let ended = self.replicas[at].process.has_ended();
            let ready = matches!(self.api.get(&url, "/health/ready"), Some((200, _)));
            (ready || ended.is_some()).then_some(ended)
        });
        match ready {
            Some(None) => Ok(()),
            Some(Some(status)) => {
                bail!("a replica ended ({status}):\n{}", self.replicas[at].process.log_tail(30))
            }
            None => bail!("a replica was not ready in time:\n{}", self.replicas[at].process.log_tail(30)),
        }
    }

    /// What each process says of itself, for whoever looks for a fault.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for replica in &self.replicas {
            let health = self.api.get(&replica.url, "/health").map_or(Value::Null, |(_, health)| health);
            let (status, reason) = (&health["status"], &health["reason"]);
            text += &format!("{}: {status} {reason} shards {}\n", replica.process.name, health["shards"]);
            text += &format!("{}\n", replica.process.log_tail(5));
        }
        for node in &self.nodes {
            text += &format!("{}:\n{}\n", node.process.name, node.process.log_tail(5));
        }
        text
    }

    /// Keeps the logs of all processes.
    pub fn save_logs(&self, folder: &Path) -> Result<()> {
        for path in self.logs()? {
            let name = path.file_name().expect("a log has a name");
            std::fs::copy(&path, folder.join(name))?;
        }
        Ok(())
    }

    /// What processes have said of panics. They are built to survive them; each is a defect all the same.
    pub fn panics(&self) -> Result<Vec<String>> {
        let mut found = vec![];
        for path in self.logs()? {
            let text = std::fs::read(&path)?;
            let text = String::from_utf8_lossy(&text);
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let lines = text.lines().filter(|line| line.contains("panicked"));
            found.extend(lines.map(|line| format!("{name}: {line}")));
        }
        Ok(found)
    }

    fn logs(&self) -> Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(self.folder.path())?.collect::<std::io::Result<Vec<_>>>()?;
        let files = files.into_iter().map(|entry| entry.path());
        Ok(files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect())
    }

    fn start_replica(&self, number: usize) -> Result<Replica> {
        let handle = self.runtime.handle();
        let database = Proxy::start(handle, address(&self.postgres.url())?)?;
        let leases =
            self.etcd.as_ref().map(|etcd| Proxy::start(handle, etcd.endpoint().parse()?)).transpose()?;
        let port = free_port();
        let front = Proxy::start(handle, SocketAddr::from(([127, 0, 0, 1], port)))?;
        let url = format!("http://127.0.0.1:{port}");
        let where_leases =
            leases.as_ref().map_or("postgres".into(), |proxy| format!("etcd://127.0.0.1:{}", proxy.port));
        let name = format!("replica-{number}");
        let args: Vec<String> = [
            ("--database-url", format!("postgres://tenure@127.0.0.1:{}/postgres", database.port)),
            ("--listen", format!("127.0.0.1:{port}")),
            ("--advertise", format!("http://127.0.0.1:{}", front.port)), // what agents are told
            ("--leases", where_leases),
            ("--shards", SHARDS.to_string()),
            ("--data", self.text(&name)),
            ("--logs", self.text("logs")),
            ("--lease-duration", seconds(LEASE)),
            ("--claim-timeout", seconds(CLAIM_TIMEOUT)),
            ("--heartbeat-threshold", seconds(SILENCE)),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        let recipe = Recipe {
            program: self.binary.clone(),
            args: [vec!["server".to_owned()], args].concat(),
            env: vec![("TENURE_BOOTSTRAP_TOKEN".into(), self.token.clone())],
            folder: self.folder.path().to_owned(),
        };
        let process = Process::start(&name, recipe.clone())?;
        Ok(Replica { process, url, database, leases, front, recipe })
    }

    fn start_node(&self, number: usize) -> Result<Node> {
        let name = format!("node-{number}");
        let folder = self.folder.path().join(&name);
        let fronts: Vec<String> =
            self.replicas.iter().map(|replica| format!("http://127.0.0.1:{}", replica.front.port)).collect();
        let args = [
            ("--server", fronts.join(",")),
            ("--token", self.token.clone()),
            ("--name", name.clone()),
            ("--data", folder.display().to_string()),
            // Enough for all the work on two of them, and so little that shards have to trade their shares.
            ("--capacity", format!("tasks={}", 6 + 3 * number)),
        ];
        let args = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let recipe = Recipe {
            program: self.binary.clone(),
            args: [vec!["agent".to_owned()], args].concat(),
            env: vec![],
            folder: self.folder.path().to_owned(),
        };
        Ok(Node { process: Process::start(&name, recipe)?, folder })
    }

    fn text(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.process.kill());
        self.nodes.iter_mut().for_each(|node| node.process.kill());
        // Supervisors and tasks, and the reaper too: there is nothing left for it to do.
        kill_all_of(self.folder.path());
        let _ = self.reaper.wait();
    }
}

/// What the reaper does: wait for the harness to end, however it ends, and end what it has left behind.
pub fn reap(folder: &Path) -> Result<()> {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    while kill_all_of(folder) > 0 {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))
}

/// The address in `postgres://user@host:port/database`.
fn address(url: &str) -> Result<SocketAddr> {
    let place = url.rsplit('@').next().and_then(|rest| rest.split('/').next());
    place.and_then(|place| place.parse().ok()).with_context(|| format!("no address in {url:?}"))
}

fn set(args: &mut [String], flag: &str, value: String) {
    let at = args.iter().position(|arg| arg == flag).expect("the flag is there");
    args[at + 1] = value;
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}
