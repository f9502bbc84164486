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
    /// The kernel killed it for using more memory than its task asked for.
    OutOfMemory {
        limit_bytes: u64,
    },
    TimedOut {
        after_ms: u64,
    },
    /// Stopped because the control plane asked for it.
    Stopped,
    /// Stopped by its own node, which had heard of no replica for so long: its task asks for that.
    CutOff {
        silent_ms: u64,
    },
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
            Self::OutOfMemory { limit_bytes } => {
                write!(f, "killed: out of memory (limit {})", binary_size(*limit_bytes))
            }
            Self::TimedOut { after_ms } => {
                let after = crate::duration::format(std::time::Duration::from_millis(*after_ms));
                write!(f, "timed out after {after}")
            }
            Self::Stopped => f.write_str("stopped on request"),
            Self::CutOff { silent_ms } => {
                let silent = crate::duration::format(std::time::Duration::from_millis(*silent_ms));
                write!(f, "stopped by its node: no replica was heard for {silent} (on_disconnect: stop)")
            }
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

/// In the largest unit that leaves a number in front of the point.
fn binary_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.checked_ilog2().unwrap_or(0) / 10).min(UNITS.len() as u32);
    let Some(unit) = power.checked_sub(1).map(|index| UNITS[index as usize]) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        tenth => format!("{}.{tenth} {unit}", tenths / 10),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_unit_that_people_wrote() {
        let mebi = 1024 * 1024;
        for (bytes, told) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (2048, "2 KiB"),
            (256 * mebi, "256 MiB"),
            (mebi + mebi / 2, "1.5 MiB"),
            (8 * 1024 * mebi, "8 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            let reason = FailReason::OutOfMemory { limit_bytes: bytes };
            assert_eq!(reason.to_string(), format!("killed: out of memory (limit {told})"));
        }
    }
}
