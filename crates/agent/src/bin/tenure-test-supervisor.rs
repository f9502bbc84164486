//! For this crate's tests only: the supervisor's program, and an agent in a process that can be killed.
//!
//! `host DATA LOGS REPORTS ASSIGNMENT...` runs an agent on a data folder, appends every report as one JSON
//! line to REPORTS, accepts it, and takes the assignments from files. With `TEST_SILENT_AFTER_CLAIM` set it
//! never answers a claim, which leaves the attempt between claim and start. `TEST_BARE_GROUPS` and
//! `TEST_FENCE_AFTER_MS` set up the agent.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::local::LocalFileSystem;
use tenure_agent::{Agent, AgentConfig, ControlPlane};
use tenure_clock::{Entropy, SystemClock};
use tenure_model::{Ack, NodeId, Report, ReportBody};

fn main() -> ExitCode {
    if let Some(code) = tenure_agent::run_hidden_subcommand() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [mode, data, logs, reports, assignments @ ..] if mode == "host" => {
            host(data, logs, reports, assignments)
        }
        _ => {
            eprintln!("for tests only: host DATA LOGS REPORTS ASSIGNMENT...");
            ExitCode::from(2)
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn host(data: &str, logs: &str, reports: &str, assignments: &[String]) -> ExitCode {
    let store = Arc::new(LocalFileSystem::new_with_prefix(logs).expect("the folder of logs exists"));
    let executable = std::env::current_exe().expect("this program has a path");
    let mut config = AgentConfig::new(NodeId::new("n1"), data.into(), executable, store);
    config.log_flush_every = std::time::Duration::from_millis(20);
    config.bare_groups = std::env::var_os("TEST_BARE_GROUPS").is_some();
    if let Some(millis) = std::env::var("TEST_FENCE_AFTER_MS").ok().and_then(|text| text.parse().ok()) {
        config.fence_after = std::time::Duration::from_millis(millis);
    }
    let silent_after_claim = std::env::var_os("TEST_SILENT_AFTER_CLAIM").is_some();
    let control = Arc::new(WriteDown { path: reports.to_owned(), silent_after_claim });
    let agent = Agent::start(config, control, Arc::new(SystemClock), Entropy::from_os()).await;
    let agent = agent.expect("the agent starts");
    for path in assignments {
        let bytes = std::fs::read(path).expect("the assignment was written by the test");
        let assignment = serde_json::from_slice(&bytes).expect("the assignment was written by the test");
        agent.assign(assignment).await.expect("the assignment is fresh");
    }
    std::future::pending().await
}

struct WriteDown {
    path: String,
    silent_after_claim: bool,
}

#[async_trait]
impl ControlPlane for WriteDown {
    async fn submit(&self, report: Report) -> Ack {
        let mut line = serde_json::to_vec(&report).expect("a report is JSON");
        line.push(b'\n');
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(&self.path).expect("the test made the folder");
        file.write_all(&line).expect("the disk has room");
        if self.silent_after_claim && matches!(report.body, ReportBody::Claim { .. }) {
            std::future::pending().await
        }
        Ack::Accepted
    }
}
