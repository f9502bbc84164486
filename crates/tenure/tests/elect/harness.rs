//! Candidates as real processes, commands that leave traces, and a hand of the test's own in the lease store.
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, FenceStore, Holder, LeaseRecord, LeaseStore, Scope, Session,
    Takeover, Term, acquire_fenced,
};
use tenure_store_postgres::{PostgresLeaseOptions, PostgresLeases};
use tenure_store_sqlite::SqliteLeases;
use tenure_testkit::{Postgres, TestDatabase};
use tokio::runtime::Runtime;

pub const BINARY: &str = env!("CARGO_BIN_EXE_tenure");
/// Room for a busy machine; nothing here is expected to take as long.
pub const SOON: Duration = Duration::from_secs(15);
pub const SCOPE: &str = "reports/leader";

/// Where the leases are kept, and a folder for traces.
pub struct Arena {
    pub folder: TempDir,
    pub backend: String,
    pub lease: &'static str,
    pub token: String,
    names: Cell<u32>,
    _database: Option<TestDatabase>,
    runtime: Runtime,
}

impl Arena {
    pub fn sqlite() -> Self {
        let folder = tenure_testkit::temp_dir();
        let backend = format!("sqlite:{}", folder.path().join("leases.db").display());
        Self::at(folder, backend, "1500ms", None)
    }

    pub fn postgres() -> Self {
        let database = Runtime::new().unwrap().block_on(Postgres::shared().database());
        Self::at(tenure_testkit::temp_dir(), database.url.clone(), "1500ms", Some(database))
    }

    pub fn on(backend: &str, lease: &'static str) -> Self {
        Self::at(tenure_testkit::temp_dir(), backend.to_owned(), lease, None)
    }

    fn at(folder: TempDir, backend: String, lease: &'static str, database: Option<TestDatabase>) -> Self {
        let runtime = Runtime::new().unwrap();
        Self {
            folder,
            backend,
            lease,
            token: String::new(),
            names: Cell::new(0),
            _database: database,
            runtime,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn trace(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `tenure elect` with the usual options; `$T` in the script is the folder of traces.
    pub fn elect(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["elect", SCOPE, "--backend", &self.backend]).args(options);
        if !options.contains(&"--lease-duration") {
            command.args(["--lease-duration", self.lease]);
        }
        command
            .args(["--", "sh", "-c", script])
            .env("T", self.folder.path())
            .env("TENURE_TOKEN", &self.token)
            .env_remove("TENURE_LEASE_DURATION")
            .stdin(Stdio::null())
            // As a shell that minds its jobs would start it.
            .process_group(0);
        command
    }

    /// Starts a candidate whose command says that it runs, and then does what the script says.
    pub fn candidate(&self, options: &[&str], script: &str) -> Candidate<'_> {
        let number = self.names.get();
        self.names.set(number + 1);
        let name = format!("c{number}");
        let script = format!("echo $$ >>$T/{name}.pids; echo $TENURE_EPOCH >>$T/{name}.epoch; {script}");
        let script = script.replace("$NAME", &format!("$T/{name}"));
        let log = std::fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let options = [options, &["--name", &name]].concat();
        let mut command = self.elect(&options, &script);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Candidate { arena: self, name, child }
    }

    /// A command that runs for ever, with a child in its group, one in a session of its own, and one that
    /// has lost its parent.
    pub fn endless(&self, options: &[&str]) -> Candidate<'_> {
        self.candidate(
            options,
            "sleep 1000 & echo $! >>$NAME.pids; \
             setsid sleep 1000 & echo $! >>$NAME.pids; \
             (setsid sh -c 'echo $$ >>$NAME.pids; echo ready >$NAME.ready; exec sleep 1000' &); while :; do sleep 0.1; done",
        )
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { tokio::time::timeout(SOON, work).await.expect("the store answers in time") })
    }

    /// The lease store, as the test's own hand in it.
    pub fn store(&self) -> Store {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        match self.backend.strip_prefix("sqlite:") {
            Some(file) => {
                let store = Arc::new(SqliteLeases::open(file.as_ref(), clock).unwrap());
                Store { leases: store.clone(), fences: store }
            }
            None => {
                let (entropy, options) = (Entropy::from_os(), PostgresLeaseOptions::default());
                let store =
                    Arc::new(self.run(PostgresLeases::connect(&self.backend, options, &entropy)).unwrap());
                Store { leases: store.clone(), fences: store }
            }
        }
    }

    pub fn record(&self, store: &Store) -> LeaseRecord {
        self.run(store.leases.find_lease(&Scope::new(SCOPE))).unwrap().expect("somebody has held it")
    }

    /// Takes the lease away from whoever has it.
    pub fn take_away(&self, store: &Store) -> LeaseRecord {
        let entropy = Entropy::from_os();
        let uuid = || entropy.uuid(SystemClock.now());
        let request = AcquireRequest {
            scope: Scope::new(SCOPE),
            holder: Holder {
                name: "usurper".into(),
                instance: "test".into(),
                session: Session(uuid()),
                address: None,
            },
            term: Term(uuid()),
            duration: Duration::from_secs(60),
            takeover: Takeover::OfDead(self.record(store).term),
            note: String::new(),
        };
        match self.run(acquire_fenced(&*store.leases, &*store.fences, &request)).unwrap() {
            AcquireOutcome::Granted(record) => record,
            other => panic!("{other:?}"),
        }
    }

    pub fn give_back(&self, store: &Store, record: &LeaseRecord) {
        let LeaseRecord { scope, term, epoch, duration, .. } = record.clone();
        self.run(store.leases.release(&Claim { scope, term, epoch, duration })).unwrap();
    }
}

pub struct Store {
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
}

pub struct Candidate<'a> {
    arena: &'a Arena,
    pub name: String,
    child: Child,
}

impl Candidate<'_> {
    pub fn log(&self) -> String {
        self.arena.trace(&format!("{}.log", self.name))
    }

    pub fn trace(&self, what: &str) -> String {
        self.arena.trace(&format!("{}.{what}", self.name))
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The epoch that its command runs under.
    #[track_caller]
    pub fn runs(&self) -> u64 {
        self.runs_for_the(1)
    }

    #[track_caller]
    pub fn runs_for_the(&self, time: usize) -> u64 {
        let whole = |line: &str| line.strip_suffix('\n').and_then(|line| line.parse().ok());
        let epochs = || self.trace("epoch").split_inclusive('\n').nth(time - 1).and_then(whole);
        wait(&format!("{} to run its command: {}", self.name, self.log()), SOON, epochs)
    }

    /// All that its script starts has been started.
    #[track_caller]
    pub fn is_ready(&self) {
        self.traces("ready", "ready");
    }

    /// Its command has left this word there.
    #[track_caller]
    pub fn traces(&self, what: &str, word: &str) {
        wait(&format!("{:?} in {} of {}: {}", word, what, self.name, self.log()), SOON, || {
            self.trace(what).contains(word).then_some(())
        });
    }

    #[track_caller]
    pub fn logs(&self, words: &str) {
        wait(&format!("{words:?} in the log"), SOON, || self.log().contains(words).then_some(()));
    }

    pub fn is_waiting(&self) -> bool {
        self.trace("epoch").is_empty()
    }

    /// Every process that its command has told about.
    pub fn processes(&self) -> BTreeSet<i32> {
        self.trace("pids").lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// Waits until none of them is alive.
    #[track_caller]
    pub fn command_dies(&self, within: Duration) -> Duration {
        let started = Instant::now();
        let processes = self.processes();
        assert!(!processes.is_empty(), "{}", self.log());
        wait(&format!("the end of {processes:?}: {}", self.log()), within, || {
            processes.iter().all(|pid| !is_alive(*pid)).then_some(())
        });
        started.elapsed()
    }

    #[track_caller]
    pub fn command_lives(&self) {
        let dead: Vec<i32> = self.processes().into_iter().filter(|pid| !is_alive(*pid)).collect();
        assert!(dead.is_empty(), "{dead:?} have died: {}", self.log());
    }

    #[track_caller]
    pub fn exit_code(&mut self) -> i32 {
        self.exits_within(SOON)
    }

    #[track_caller]
    pub fn exits_within(&mut self, within: Duration) -> i32 {
        let log = self.log();
        let status = wait(&format!("{} to end: {log}", self.name), within, || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| panic!("{} was killed: {status}", self.name))
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn is_stopped(&self) -> bool {
        state(self.child.id() as i32).as_deref() == Some("T")
    }

    /// kill -9, and nothing else.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The wrapper's only child.
    #[track_caller]
    pub fn keeper(&self) -> i32 {
        let pid = self.child.id();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let files =
            threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        let children: Vec<i32> = files
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect();
        assert_eq!(children.len(), 1, "the wrapper has one child");
        children[0]
    }
}

impl Drop for Candidate<'_> {
    /// Whatever a failed test has left: the keeper ends the command when its wrapper dies.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A terminal with a shell in it.
pub struct Terminal<'a> {
    arena: &'a Arena,
    screen: Child,
    keys: ChildStdin,
}

impl<'a> Terminal<'a> {
    pub fn running(arena: &'a Arena, line: &str) -> Self {
        let mut screen = Command::new("script")
            .args(["-qefc", line, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env_remove("TENURE_LEASE_DURATION")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(arena.path("screen")).unwrap())
            .spawn()
            .unwrap();
        let keys = screen.stdin.take().unwrap();
        Self { arena, screen, keys }
    }

    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    #[track_caller]
    pub fn shows(&self, words: &str) {
        let shown = || self.arena.trace("screen").contains(words).then_some(());
        wait(&format!("{words:?} on the screen of {}", self.arena.folder.path().display()), SOON, shown);
    }
}

impl Drop for Terminal<'_> {
    /// Hangs up: the kernel tells everybody in it.
    fn drop(&mut self) {
        let _ = self.screen.kill();
        let _ = self.screen.wait();
    }
}

pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
}

fn state(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_whitespace().next().map(str::to_owned)
}

#[track_caller]
pub fn wait<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() <= within, "waited {within:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
