//! A task instance as the owner of its shard knows it: the columns that scheduling reads and writes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AttemptId, NodeId, TaskState};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInstance {
    pub state: TaskState,
    /// 0 until the first try is scheduled; grows by one with every try, cleared or retried.
    pub try_number: u32,
    /// A try that fails with `try_number <= max_tries` is retried.
    pub max_tries: u32,
    pub attempt: Option<AttemptId>,
    pub node: Option<NodeId>,
    pub scheduled_at: Option<Timestamp>,
    pub queued_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Why it is in this state, for people: `exit code 3`, `killed by SIGKILL`, `marked by admin`.
    pub reason: Option<String>,
}

impl TaskInstance {
    /// A task nothing has happened to yet.
    pub fn untouched(retries: u32) -> Self {
        Self {
            state: TaskState::None,
            try_number: 0,
            max_tries: retries,
            attempt: None,
            node: None,
            scheduled_at: None,
            queued_at: None,
            started_at: None,
            ended_at: None,
            reason: None,
        }
    }

    /// What a clear leaves behind: ready for another `1 + retries` tries, numbered after the past ones.
    pub fn cleared(&self, retries: u32) -> Self {
        Self { try_number: self.try_number, ..Self::untouched(self.try_number + retries) }
    }
}
