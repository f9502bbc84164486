//! Everything an agent needs to run one attempt. All templates are rendered, all files are inside.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AttemptId, DagId, NodeId, OnDisconnect, Resources, RunId, TaskId, TenantId, TiKey};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub attempt: AttemptId,
    pub ti: TiKey,
    pub node: NodeId,
    /// Under which authority it was bound: an agent refuses a lower epoch than it has seen for a scope.
    pub scope: String,
    pub epoch: u64,
    pub tenant: TenantId,
    pub dag: DagId,
    pub run_id: RunId,
    pub task: TaskId,
    pub try_number: u32,
    pub program: Program,
    /// Added to the clean environment the agent provides.
    pub env: BTreeMap<String, String>,
    /// Written into the run's working folder before the start.
    pub files: BTreeMap<String, EmbeddedFile>,
    #[serde(with = "crate::duration::optional_text")]
    pub timeout: Option<Duration>,
    /// Between SIGTERM and SIGKILL.
    #[serde(with = "crate::duration::text")]
    pub grace: Duration,
    /// Texts that never appear in a log.
    pub secrets: Vec<String>,
    /// What it asked for. The agent makes limits of `cpu` and `memory` where its machine can.
    #[serde(default)]
    pub resources: Resources,
    /// Another user of the node than the agent's own.
    #[serde(default)]
    pub run_as: Option<String>,
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Program {
    Process { argv: Vec<String> },
    Http { request: HttpRequest },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpRequest {
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: Option<String>,
    /// Empty means any 2xx.
    #[serde(default)]
    pub expected_status: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddedFile {
    pub content: String,
    #[serde(default)]
    pub executable: bool,
}
