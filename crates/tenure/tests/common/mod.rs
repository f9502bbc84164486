//! A real `tenure up` in a scratch folder, or two servers and an agent, and the command line beside it.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

pub mod cluster;
pub mod patient;
pub mod worker;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tenure_testkit::{Postgres, TestDatabase};

/// Opens the API of a cluster's replicas.
pub const TOKEN: &str = "a-token-that-nobody-guesses";
pub const BINARY: &str = env!("CARGO_BIN_EXE_tenure");
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How it is wired: the same facts must hold on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// `tenure up`.
    Sqlite,
    /// `tenure up` on Postgres.
    Postgres,
    /// Two of `tenure server` and one `tenure agent`, on Postgres.
    Cluster,
}

/// A scratch installation that outlives its servers.
pub struct Site {
    folder: TempDir,
    database_url: Option<String>,
    /// Where replicas listen; none with `tenure up`.
    ports: Vec<u16>,
    _database: Option<TestDatabase>,
}

impl Site {
    pub fn new(wiring: Wiring) -> Self {
        let database = (wiring != Wiring::Sqlite).then(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(Postgres::shared().database())
        });
        let url = database.as_ref().map(|database| database.url.clone());
        let replicas = if wiring == Wiring::Cluster { 2 } else { 0 };
        let ports = (0..replicas).map(|_| tenure_testkit::free_port()).collect();
        Self { _database: database, ports, ..Self::on(url) }
    }

    /// On a database of the test's own.
    pub fn on(database_url: Option<String>) -> Self {
        let folder = tenure_testkit::temp_dir();
        for name in ["dags", "effects", "runtime"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder, database_url, ports: vec![], _database: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Writes a dag file; `EFFECTS` in it becomes the folder where tasks leave traces.
    pub fn dag(&self, name: &str, text: &str) {
        let text = text.replace("EFFECTS", &self.path("effects").display().to_string());
        std::fs::write(self.path("dags").join(name), text).unwrap();
    }

    pub fn effect(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path("effects").join(name)).ok()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("runtime"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("TENURE_SECRET_DB", "s3cr3t-value")
            .stdin(Stdio::null());
        // The last one, so that calls go to a replica that need not be the owner.
        if let Some(port) = self.ports.last() {
            command.env("TENURE_SERVER", format!("http://127.0.0.1:{port}")).env("TENURE_TOKEN", TOKEN);
        }
        command
    }

    /// Everything that runs when the site does.
    fn processes(&self) -> Vec<Command> {
        if self.ports.is_empty() {
            return vec![self.up()];
        }
        let url = self.database_url.as_ref().expect("a cluster has a database");
        let server = |port: &u16| {
            let mut command = self.command();
            command.env("TENURE_BOOTSTRAP_TOKEN", TOKEN);
            command.args([
                "server",
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--data",
                &format!("data-{port}"),
            ]);
            command.args(["--database-url", url, "--logs", "logs", "--dags", "dags", "--shards", "4"]);
            command
        };
        // One is enough to begin with: the other is learned from it.
        let mut agent = self.command();
        agent.args(["agent", "--server", &format!("http://127.0.0.1:{}", self.ports[0])]);
        agent.args(["--name", "worker", "--data", "agent"]);
        self.ports.iter().map(server).chain([agent]).collect()
    }

    /// The arguments of `tenure up` for this site.
    fn up(&self) -> Command {
        let mut command = self.command();
        command.args(["up", "--listen", "127.0.0.1:0", "--data", "data", "--dags", "dags"]);
        if let Some(url) = &self.database_url {
            command.args(["--database-url", url]);
        }
        command
    }

    /// Runs `tenure up` to its end, for starts that must fail.
    pub fn up_fails(&self) -> Output {
        self.up().output().unwrap()
    }

    pub fn start(&self) -> Server<'_> {
        let server = self.spawn();
        server.wait_ready();
        server
    }

    /// Starts without waiting for anything.
    pub fn spawn(&self) -> Server<'_> {
        let log = std::fs::File::options().create(true).append(true).open(self.path("server.log")).unwrap();
        let spawn = |mut command: Command| {
            command.stdout(log.try_clone().unwrap()).stderr(log.try_clone().unwrap()).spawn().unwrap()
        };
        Server { site: self, children: self.processes().into_iter().map(spawn).collect() }
    }

    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    pub fn cli(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Runs a command that must succeed; answers with its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "tenure {args:?}: {}\n{out}\n{err}\n{}",
            output.status,
            self.server_log()
        );
        out
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.ok(&[args, &["--output", "json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?} printed {out:?}: {error}"))
    }

    /// Triggers, waits, and answers with the run's JSON, whatever its outcome.
    pub fn run(&self, dag: &str, more: &[&str]) -> Value {
        let args =
            [&["run", "trigger", dag, "--wait", "--timeout", "60s", "--output", "json"], more].concat();
        let output = self.cli(&args);
        serde_json::from_str(&text(&output.stdout)).unwrap_or_else(|error| {
            panic!(
                "{args:?}: {error}\n{}\n{}\n{}",
                text(&output.stdout),
                text(&output.stderr),
                self.server_log()
            )
        })
    }
}

/// `id:state` of every task, in the dag's order.
pub fn tasks(run: &Value) -> String {
    let tasks = run["tasks"].as_array().unwrap().iter();
    let word = |task: &Value| {
        format!("{}:{}", task["id"].as_str().unwrap(), task["state"].as_str().unwrap_or("none"))
    };
    tasks.map(word).collect::<Vec<_>>().join(" ")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All processes of a site.
pub struct Server<'a> {
    site: &'a Site,
    children: Vec<Child>,
}

impl Server<'_> {
    /// Of the first process, which is the only one with `tenure up`.
    pub fn pid(&self) -> u32 {
        self.children[0].id()
    }

    pub fn wait_ready(&self) {
        wait_until("the server to be ready", START_TIMEOUT, || {
            self.site.cli(&["health"]).status.success().then_some(())
        })
        .unwrap_or_else(|| panic!("not ready in time:\n{}", self.site.server_log()));
    }

    /// SIGKILL: no goodbye of any kind.
    pub fn kill(mut self) {
        self.kill_all();
    }

    fn kill_all(&mut self) {
        for mut child in std::mem::take(&mut self.children) {
            // What has ended already cannot be killed, and is waited for all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and the exit code: 0 if all of them say so.
    pub fn stop(mut self) -> Option<i32> {
        let children = std::mem::take(&mut self.children);
        children.iter().for_each(terminate);
        let codes: Vec<Option<i32>> = children.into_iter().map(wait_end).collect();
        codes.into_iter().find(|code| *code != Some(0)).unwrap_or(Some(0))
    }
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

/// SIGTERM, and the exit code.
fn stop(child: Child) -> Option<i32> {
    terminate(&child);
    wait_end(child)
}

fn wait_end(mut child: Child) -> Option<i32> {
    let ended = wait_until("the process to stop", Duration::from_secs(20), || child.try_wait().unwrap());
    match ended {
        Some(status) => status.code(),
        None => {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the process did not stop")
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.kill_all();
    }
}

pub fn wait_until<T>(_what: &str, timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if started.elapsed() > timeout {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The HTTP API of a site's server, for what the command line does not do fast enough.
pub struct Api {
    pub url: String,
    token: String,
    agent: ureq::Agent,
}

impl Api {
    /// `None` while the server has not published its address (or the one published is gone).
    pub fn of(site: &Site, pid: u32) -> Option<Self> {
        let pointer: Value = serde_json::from_str(&read(&site.data().join("server.json"))?).ok()?;
        if pointer["pid"].as_u64() != Some(u64::from(pid)) {
            return None;
        }
        let token = read(&site.data().join("admin-token"))?;
        Some(Self::at(pointer["url"].as_str()?, token.trim()))
    }

    pub fn at(url: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(5)))
            .http_status_as_error(false);
        Self { url: url.to_owned(), token: token.to_owned(), agent: config.build().into() }
    }

    pub fn get(&self, path: &str) -> Option<(u16, Value)> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let mut answer = request.header("authorization", format!("Bearer {}", self.token)).call().ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_json().ok()?))
    }

    pub fn get_text(&self, path: &str) -> Option<(u16, String)> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let mut answer = request.header("authorization", format!("Bearer {}", self.token)).call().ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_to_string().ok()?))
    }

    pub fn post(&self, path: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let mut request = self.agent.post(format!("{}{path}", self.url));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let mut answer =
            request.header("authorization", format!("Bearer {}", self.token)).send_json(body).ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_json().ok()?))
    }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}
