//! A real server in a scratch folder, driven over HTTP.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Often enough to see the end when it comes, seldom enough not to disturb what is measured.
const ASK_EVERY: Duration = Duration::from_millis(4);

pub struct Server {
    child: Child,
    folder: TempDir,
    pub api: Api,
}

/// A server's API, whoever has started it.
pub struct Api {
    agent: ureq::Agent,
    url: String,
    token: String,
    runs: usize,
}

impl Server {
    pub fn start(binary: &Path, dags: &[(String, String)], database_url: Option<&str>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("dags"))?;
        for (name, text) in dags {
            std::fs::write(folder.path().join("dags").join(format!("{name}.yaml")), text)?;
        }
        let log = std::fs::File::create(folder.path().join("server.log"))?;
        let binary = binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?;
        let mut command = Command::new(&binary);
        command.current_dir(folder.path()).args(["up", "--listen", "127.0.0.1:0", "--dags", "dags"]);
        if let Some(url) = database_url {
            command.args(["--database-url", url]);
        }
        let child = command
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut server = Self { child, folder, api: Api::new("", "") };
        server.wait_ready()?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let data = self.folder.path().join("tenure-data");
        let deadline = Instant::now() + Duration::from_secs(120);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended ({status}):\n{}", self.log());
            }
            if let Ok(pointer) = std::fs::read_to_string(data.join("server.json")) {
                let pointer: Value = serde_json::from_str(&pointer)?;
                let url = pointer["url"].as_str().context("server.json has a url")?;
                self.api = Api::new(url, std::fs::read_to_string(data.join("admin-token"))?.trim());
                if self.api.get("/health/ready").is_ok() {
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server was not ready in time:\n{}", self.log())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far, by the server itself.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.child.id())
    }

    /// Resident memory in megabytes.
    pub fn memory(&self) -> Result<f64> {
        memory_of(self.child.id())
    }
}

impl Api {
    pub fn new(url: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60)));
        Self { agent: config.build().into(), url: url.to_owned(), token: token.to_owned(), runs: 0 }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        let request = self.agent.get(format!("{}{path}", self.url));
        Ok(request
            .header("authorization", format!("Bearer {}", self.token))
            .call()?
            .body_mut()
            .read_json()?)
    }

    /// From just before the trigger is sent until a client that asks every few milliseconds sees the run ended.
    pub fn run(&mut self, dag: &str) -> Result<Duration> {
        self.run_within(dag, Duration::from_secs(60), ASK_EVERY)
    }

    /// The same of whoever speaks this API, for those that need more time and should be asked less often.
    pub fn run_within(&mut self, dag: &str, bound: Duration, ask_every: Duration) -> Result<Duration> {
        self.runs += 1;
        let run_id = format!("bench-{}", self.runs);
        let body = json!({"dag_run_id": run_id, "logical_date": null});
        let sent = Instant::now();
        self.agent
            .post(format!("{}/api/v2/dags/{dag}/dagRuns", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .send_json(&body)?;
        loop {
            let run = self.get(&format!("/api/v2/dags/{dag}/dagRuns/{run_id}"))?;
            match run["state"].as_str() {
                Some("success") => return Ok(sent.elapsed()),
                Some("failed") => bail!("a run of {dag} failed: {run}"),
                _ => std::thread::sleep(ask_every),
            }
            ensure!(sent.elapsed() < bound, "a run of {dag} does not end within {} s", bound.as_secs());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// Resident memory of a process in megabytes.
pub fn memory_of(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a status has VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1.024 / 1_000.0)
}

/// Processor time that a process has used so far.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    Ok(Stat::of(pid)?.own)
}

/// What the kernel counts of a process.
pub struct Stat {
    pub parent: u32,
    pub session: u32,
    /// It has ended, and its parent has not asked how.
    pub defunct: bool,
    pub own: Duration,
    /// Of children that have ended.
    pub children: Duration,
}

impl Stat {
    pub fn of(pid: u32) -> Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after_name = stat.rsplit_once(')').context("a stat line names its process")?.1;
        let words: Vec<&str> = after_name.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let time = |at: usize| {
            let ticks = number(at).zip(number(at + 1)).context("a stat line has user and system time")?;
            anyhow::Ok(Duration::from_millis(
                (ticks.0 + ticks.1) * 1_000 / rustix::param::clock_ticks_per_second(),
            ))
        };
        let parent = number(1).context("a process has a parent")? as u32;
        let session = number(3).context("a process has a session")? as u32;
        let defunct = words.first() == Some(&"Z");
        Ok(Self { parent, session, defunct, own: time(11)?, children: time(13)? })
    }
}
