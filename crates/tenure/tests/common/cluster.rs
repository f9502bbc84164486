//! Real `tenure server` processes on one Postgres, agents beside them, and the command line.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure_testkit::{Postgres, TestDatabase};

use super::{Api, BINARY, read, stop, text, wait_until};

pub use super::TOKEN;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A database, and a folder for everything that runs on it.
pub struct Cluster {
    folder: TempDir,
    pub database_url: String,
    _database: Option<TestDatabase>,
}

impl Cluster {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let database = runtime.block_on(Postgres::shared().database());
        let url = database.url.clone();
        Self { _database: Some(database), ..Self::on(&url) }
    }

    pub fn on(database_url: &str) -> Self {
        let folder = tenure_testkit::temp_dir();
        for name in ["runtime", "logs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder, database_url: database_url.to_owned(), _database: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Without anything of this machine's environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("runtime"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .stdin(Stdio::null());
        command
    }

    pub fn server_command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = self.command();
        command
            .env("TENURE_LISTEN", "127.0.0.1:0")
            .args(["server", "--data", name, "--logs", "logs"])
            .args(["--database-url", &self.database_url])
            .args(more);
        command
    }

    /// Starts a replica and waits until it serves.
    pub fn server(&self, name: &str, more: &[&str]) -> Replica<'_> {
        let mut command = self.server_command(name, more);
        command.env("TENURE_BOOTSTRAP_TOKEN", TOKEN);
        let mut replica = self.spawn(name, command);
        replica.wait_ready();
        replica
    }

    /// Starts without waiting for anything.
    pub fn spawn(&self, name: &str, mut command: Command) -> Replica<'_> {
        let log = self.path(&format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Replica { cluster: self, name: name.to_owned(), child: Some(child), url: String::new() }
    }

    /// Runs what must not go on: how it ended, and all that was said.
    pub fn refused(&self, name: &str, command: Command) -> (Option<i32>, String) {
        let mut process = self.spawn(name, command);
        (process.wait_end(), process.log())
    }

    /// A command against this replica.
    pub fn cli(&self, replica: &Replica<'_>, args: &[&str]) -> Output {
        let mut command = self.command();
        command.env("TENURE_SERVER", &replica.url).env("TENURE_TOKEN", TOKEN);
        command.args(args).output().unwrap()
    }

    pub fn ok(&self, replica: &Replica<'_>, args: &[&str]) -> String {
        let output = self.cli(replica, args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "tenure {args:?}: {}\n{out}\n{err}\n{}",
            output.status,
            replica.log()
        );
        out
    }

    pub fn json(&self, replica: &Replica<'_>, args: &[&str]) -> Value {
        let out = self.ok(replica, &[args, &["--output", "json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?} printed {out:?}: {error}"))
    }
}

/// A `tenure server` that is killed with its handle.
pub struct Replica<'a> {
    cluster: &'a Cluster,
    name: String,
    child: Option<Child>,
    pub url: String,
}

impl Replica<'_> {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.path(&format!("{}.log", self.name))).unwrap_or_default()
    }

    pub fn api(&self) -> Api {
        Api::at(&self.url, TOKEN)
    }

    /// Until it has said where it is, which it does when it serves.
    pub fn wait_address(&mut self) {
        let said = wait_until("its address", PATIENCE, || {
            let pointer = read(&self.cluster.path(&self.name).join("server.json"))?;
            let pointer: Value = serde_json::from_str(&pointer).ok()?;
            if pointer["pid"].as_u64() != Some(u64::from(self.pid())) {
                return None;
            }
            self.url = pointer["url"].as_str()?.to_owned();
            Some(())
        });
        assert!(said.is_some(), "{} is not there in time:\n{}", self.name, self.log());
    }

    pub fn wait_ready(&mut self) {
        self.wait_address();
        let ready =
            wait_until("the replica", PATIENCE, || (self.api().get("/health/ready")?.0 == 200).then_some(()));
        assert!(ready.is_some(), "{} is not ready in time:\n{}", self.name, self.log());
    }

    /// The shards that it owns and goes round in.
    pub fn owned(&self) -> Vec<String> {
        let Some((_, health)) = self.api().get("/health") else { return vec![] };
        let scopes = health["scopes"].as_array().map_or(&[][..], Vec::as_slice);
        let owned =
            scopes.iter().filter(|scope| scope["leading"] == true && !scope["last_pass_at"].is_null());
        owned.map(|scope| scope["scope"].as_str().unwrap().to_owned()).collect()
    }

    /// SIGKILL: no goodbye of any kind.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and the exit code.
    pub fn stop(mut self) -> Option<i32> {
        stop(self.child.take().unwrap())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child.as_ref().unwrap());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// How it ended, once it has.
    pub fn wait_end(&mut self) -> Option<i32> {
        let child = self.child.as_mut().unwrap();
        let ended = wait_until("its end", PATIENCE, || child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("{} goes on:\n{}", self.name, self.log())).code()
    }
}

impl Drop for Replica<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until each of these owns as many shards as it is told here, and none is owned twice.
pub fn wait_split(replicas: &[(&Replica<'_>, usize)]) {
    let split = wait_until("the split", PATIENCE, || {
        let owned: Vec<Vec<String>> = replicas.iter().map(|(replica, _)| replica.owned()).collect();
        let all: BTreeSet<&String> = owned.iter().flatten().collect();
        let even = owned.iter().zip(replicas).all(|(owned, (_, wanted))| owned.len() == *wanted);
        (even && all.len() == owned.iter().map(Vec::len).sum::<usize>()).then_some(())
    });
    let seen: Vec<_> = replicas.iter().map(|(replica, _)| replica.owned()).collect();
    assert!(split.is_some(), "{seen:?}\n{}", replicas[0].0.log());
}
