//! What an agent tells the control plane about an attempt, and what it hears back.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AttemptId, NodeId, TiKey};

/// Resent until it is acknowledged; saying the same twice changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub node: NodeId,
    /// The scope under which the attempt was bound: whose owner should hear of it first. A hint, and no more:
    /// the attempt id decides.
    pub scope: String,
    pub body: ReportBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ReportBody {
    /// May I start this? Only an `Accepted` answer permits it.
    Claim { attempt: AttemptId, ti: TiKey },
    /// This attempt will never run again on this node, and this is how it ended.
    End {
        attempt: AttemptId,
        ti: TiKey,
        outcome: Outcome,
        ended_at: Timestamp,
        /// What the task returned, for downstream tasks to read.
        result: Option<Value>,
    },
    /// The control plane's own word: the attempt could not be handed to its node, and would fail for this reason if
    /// there is one. Counts only while nobody has claimed it, because an earlier owner may have delivered it.
    Undelivered { attempt: AttemptId, ti: TiKey, failure: Option<FailReason>, at: Timestamp },
}

impl ReportBody {
    pub fn attempt(&self) -> AttemptId {
        match self {
            Self::Claim { attempt, .. } | Self::End { attempt, .. } | Self::Undelivered { attempt, .. } => {
                *attempt
            }
        }
    }

    pub fn ti(&self) -> TiKey {
        match self {
            Self::Claim { ti, .. } | Self::End { ti, .. } | Self::Undelivered { ti, .. } => *ti,
        }
    }
}

/// An attempt that a node has: being prepared, running, or ended and not yet heard of. What the control plane
/// believes to run there and the node does not hold is positively gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub attempt: AttemptId,
    pub ti: TiKey,
    /// As in [`Report::scope`].
    pub scope: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Outcome {
    Success,
    /// The task asked to be skipped (exit code 99, as Airflow users know it).
    Skipped,
    Failed {
        reason: FailReason,
    },
    /// The attempt was given up before its process began: it may be placed again without a new try.
    NeverStarted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FailReason {
    Exit {
        code: i32,
    },
    Signal {
        name: String,
    },
    TimedOut {
        after_ms: u64,
    },
    /// Stopped because the control plane asked for it.
    Stopped,
    /// It began, and the node cannot say how it ended: its supervisor is gone.
    Lost,
    /// Its agent has been silent for so long that nobody will hear how it ended.
    AgentLost {
        silent_ms: u64,
    },
    /// It could not be prepared or started: a template error, a missing program.
    CannotStart {
        error: String,
    },
    /// It ran to success, but what it returned cannot be accepted.
    BadResult {
        error: String,
    },
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit { code } => write!(f, "exit code {code}"),
            Self::Signal { name } => write!(f, "killed by {name}"),
            Self::TimedOut { after_ms } => {
                let after = crate::duration::format(std::time::Duration::from_millis(*after_ms));
                write!(f, "timed out after {after}")
            }
            Self::Stopped => f.write_str("stopped on request"),
            Self::Lost => f.write_str("lost: its supervisor is gone and left no exit code"),
            Self::AgentLost { silent_ms } => {
                let silent = crate::duration::format(std::time::Duration::from_millis(*silent_ms));
                write!(f, "agent lost: silent for {silent}")
            }
            Self::CannotStart { error } => write!(f, "could not start: {error}"),
            Self::BadResult { error } => write!(f, "bad result: {error}"),
        }
    }
}

/// The answer to one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ack {
    /// Committed. A claim may start its process; an end may be forgotten.
    Accepted,
    /// This attempt is not current any more: stop it if it runs, then forget it.
    Superseded,
    /// The outcome is unknown or nobody could take it: send it again.
    Retry,
}
