//! The agent: runs attempts as processes on one machine and says truthfully how they ended.
//!
//! Each attempt runs under a small supervisor process of its own, which outlives a kill -9 of the agent and
//! of the server. What an attempt is and how far it got stands in its folder ([`folder`]), so a new agent
//! goes on where the last one was.
//!
//! Promises: a process starts only after its claim is accepted, and never twice under one attempt id. An
//! end is reported only when nothing of the attempt runs any more, and again until it is acknowledged.
//! Nothing here survives a power cut by fsync, because the control plane needs no more than the truth: after
//! a reboot, what has not been reported is `Lost`.
//!
//! Does not promise: that a process which leaves both its process group and its environment behind is found
//! after its supervisor was killed with SIGKILL, unless tasks have groups of their own ([`limits`]). While the
//! supervisor lives, nothing escapes it.

mod agent;
mod attempt;
mod bounded;
mod contact;
mod epochs;
mod folder;
mod http;
mod launch;
mod limits;
mod link;
mod log_store;
mod machine;
mod output;
mod processes;
mod redact;
mod spawn;
mod supervisor;
mod users;
mod verdict;
mod waking;
mod work;

use std::path::Path;
use std::process::ExitCode;

pub use agent::{Agent, AgentConfig, AgentError};
pub use limits::Limits;
pub use link::{Access, BadLinks, LinkState, Links, LinksConfig, RemoteLogs, Server, Trouble, Worker};
pub use log_store::{BoxError, LogStore};
pub use machine::capacity;
pub use tenure_agent_life::{AssignError, ControlPlane};

/// `<executable> __supervise <attempt folder>`: the process above one attempt.
const SUPERVISE: &str = "__supervise";
/// `<executable> __http <attempt folder>`: an http task, run as a process like any other.
const HTTP: &str = "__http";

/// `<executable> __as-user <attempt folder>`: becomes the task's user, and then its program.
const AS_USER: &str = "__as-user";

/// Runs the hidden subcommand this process was started for, if it was. To be called first thing in `main`,
/// before a runtime or a command-line parser exists: every attempt pays for what happens before it.
pub fn run_hidden_subcommand() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let subcommand = arguments.next()?;
    let body = match subcommand.to_str()? {
        SUPERVISE => supervisor::supervise,
        HTTP => http::http_task,
        AS_USER => launch::as_user,
        _ => return None,
    };
    let Some(folder) = arguments.next() else {
        eprintln!("tenure: {} is for the agent's own use", subcommand.display());
        return Some(ExitCode::from(2));
    };
    Some(body(Path::new(&folder)))
}
