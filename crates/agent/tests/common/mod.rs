//! A data folder, a control plane that the test can steer, and assignments to give.
#![allow(dead_code, reason = "each test file uses its own part of the bench")]

pub mod cluster;
pub mod host;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use object_store::local::LocalFileSystem;
use tenure_agent::{Agent, AgentConfig, AgentError, ControlPlane};
use tenure_clock::{BootTime, Clock, Entropy, SystemClock};
use tenure_logs::LogCursor;
use tenure_model::{
    Ack, Assignment, AttemptId, FailReason, NodeId, Outcome, Program, Report, ReportBody, RunKey, TaskNo,
    TenantId, TiKey,
};
use tokio::sync::Notify;

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const EXECUTABLE: &str = env!("CARGO_BIN_EXE_tenure-test-supervisor");

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub control: Arc<Recorder>,
    entropy: Entropy,
    adjust: fn(&mut AgentConfig),
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("logs")).unwrap();
        Self { folder, control: Arc::default(), entropy: Entropy::from_os(), adjust: |_| {} }
    }

    /// Whose agents are set up otherwise.
    pub fn with(adjust: fn(&mut AgentConfig)) -> Self {
        Self { adjust, ..Self::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self) -> AgentConfig {
        let mut config =
            AgentConfig::new(NodeId::new("n1"), self.path("data"), EXECUTABLE.into(), self.log_store());
        config.log_flush_every = Duration::from_millis(20);
        (self.adjust)(&mut config);
        config
    }

    pub async fn agent(&self) -> Agent {
        self.try_agent().await.unwrap()
    }

    pub async fn try_agent(&self) -> Result<Agent, AgentError> {
        Agent::start(self.config(), self.control.clone(), Arc::new(SystemClock), self.entropy.clone()).await
    }

    pub fn assignment(&self, argv: &[&str]) -> Assignment {
        self.program(Program::Process { argv: argv.iter().map(|word| word.to_string()).collect() })
    }

    pub fn bash(&self, script: &str) -> Assignment {
        self.assignment(&["bash", "-c", script])
    }

    pub fn program(&self, program: Program) -> Assignment {
        Assignment {
            attempt: AttemptId(self.entropy.uuid(SystemClock.now())),
            // Each a task instance of its own: attempts of one would wait for each other.
            ti: TiKey::unmapped(RunKey(1), TaskNo(u32::from_be_bytes(self.entropy.bytes()))),
            node: NodeId::new("n1"),
            scope: "scheduler/shard-00".into(),
            epoch: 1,
            tenant: TenantId::default_tenant(),
            dag: "etl".into(),
            run_id: "manual__2026-01-01T00:00:00Z".into(),
            task: "load".into(),
            try_number: 1,
            program,
            env: Default::default(),
            files: Default::default(),
            timeout: None,
            grace: Duration::from_secs(5),
            secrets: Vec::new(),
            resources: Default::default(),
            run_as: None,
            on_disconnect: Default::default(),
        }
    }

    /// Runs one attempt to its reported end and until its folder is gone.
    pub async fn run(&self, agent: &Agent, assignment: Assignment) -> Ended {
        let attempt = assignment.attempt;
        agent.assign(assignment).await.unwrap();
        let ended = self.control.end_of(attempt).await;
        self.gone(attempt).await;
        ended
    }

    pub fn folder_of(&self, attempt: AttemptId) -> PathBuf {
        self.path("data").join("attempts").join(attempt.to_string())
    }

    pub async fn gone(&self, attempt: AttemptId) {
        let folder = self.folder_of(attempt);
        eventually("the attempt's folder is deleted", || !folder.exists()).await;
    }

    pub fn log_store(&self) -> LocalFileSystem {
        LocalFileSystem::new_with_prefix(self.path("logs")).unwrap()
    }

    pub async fn log(&self) -> String {
        let sample = self.assignment(&[]);
        let prefix = tenure_logs::prefix(
            &sample.tenant,
            &sample.dag,
            &sample.run_id,
            &sample.task,
            -1,
            sample.try_number,
        );
        tenure_logs::read(&self.log_store(), &prefix, LogCursor::Start).await.unwrap().text
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub outcome: Outcome,
    pub result: Option<serde_json::Value>,
}

pub fn failed(reason: FailReason) -> Outcome {
    Outcome::Failed { reason }
}

/// Writes down every report; answers as the test has told it.
#[derive(Default)]
pub struct Recorder {
    reports: Mutex<Vec<Report>>,
    answers: Mutex<Answers>,
    changed: Notify,
}

#[derive(Default)]
pub struct Answers {
    pub refuse_claims: bool,
    pub hold_claims: bool,
    pub hold_ends: bool,
    /// So many reports, whatever they say, are answered `Retry` first.
    pub retries: u32,
    /// Nothing is heard any more since then.
    pub silent_since: Option<BootTime>,
}

impl Recorder {
    pub fn answer(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }

    pub fn bodies(&self) -> Vec<ReportBody> {
        self.reports.lock().unwrap().iter().map(|report| report.body.clone()).collect()
    }

    pub fn scopes_of(&self, wanted: AttemptId) -> Vec<String> {
        let reports = self.reports.lock().unwrap();
        reports
            .iter()
            .filter(|report| report.body.attempt() == wanted)
            .map(|report| report.scope.clone())
            .collect()
    }

    pub fn claims_of(&self, wanted: AttemptId) -> usize {
        self.bodies()
            .iter()
            .filter(|body| matches!(body, ReportBody::Claim { attempt, .. } if *attempt == wanted))
            .count()
    }

    pub fn ends_of(&self, wanted: AttemptId) -> Vec<Ended> {
        let ended = |report: &Report| match &report.body {
            ReportBody::End { attempt, outcome, result, .. } if *attempt == wanted => {
                Some(Ended { outcome: outcome.clone(), result: result.clone() })
            }
            _ => None,
        };
        self.reports.lock().unwrap().iter().filter_map(ended).collect()
    }

    pub async fn end_of(&self, attempt: AttemptId) -> Ended {
        self.wait_for("its end is reported", || self.ends_of(attempt).pop()).await
    }

    pub async fn claimed(&self, attempt: AttemptId) {
        self.wait_for("it is claimed", || (self.claims_of(attempt) > 0).then_some(())).await
    }

    async fn wait_for<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> T {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(found) = find() {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(found) => found,
            Err(_) => panic!("in vain waited until {what}; heard: {:#?}", self.bodies()),
        }
    }
}

#[async_trait]
impl ControlPlane for Recorder {
    async fn submit(&self, report: Report) -> Ack {
        let (is_claim, is_end) =
            (matches!(report.body, ReportBody::Claim { .. }), matches!(report.body, ReportBody::End { .. }));
        self.reports.lock().unwrap().push(report);
        self.changed.notify_waiters();
        let (answer, hold) = {
            let mut answers = self.answers.lock().unwrap();
            let hold = answers.hold_claims && is_claim || answers.hold_ends && is_end;
            if answers.retries > 0 {
                answers.retries -= 1;
                (Ack::Retry, hold)
            } else if answers.refuse_claims && is_claim {
                (Ack::Superseded, hold)
            } else {
                (Ack::Accepted, hold)
            }
        };
        if hold {
            std::future::pending::<()>().await;
        }
        answer
    }

    fn contact(&self, clock: &dyn Clock) -> Option<BootTime> {
        Some(self.answers.lock().unwrap().silent_since.unwrap_or_else(|| clock.boottime()))
    }
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("in vain waited until {what}");
    }
}

/// Whether a process with this word in its command line is alive.
pub fn alive(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.into_iter().any(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let own = entry.file_name().to_str() == Some(&std::process::id().to_string());
        !own && String::from_utf8_lossy(&command).split('\0').any(|argument| argument == word)
    })
}

/// A number of seconds for `sleep` that no other test uses, so that the process can be recognised.
pub fn unique_sleep() -> String {
    let number = u32::from_be_bytes(Entropy::from_os().bytes());
    format!("1000.{number:010}")
}
