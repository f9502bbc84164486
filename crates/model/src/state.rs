//! The life of a run and of a task instance: one `apply` each says which steps are legal.
//! Pure: the stores save exactly what is decided here, under a guard on the state it was decided from.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Queued,
    Running,
    Success,
    Failed,
}

impl RunState {
    pub const ALL: [RunState; 4] = [Self::Queued, Self::Running, Self::Success, Self::Failed];

    pub fn is_finished(self) -> bool {
        matches!(self, Self::Success | Self::Failed)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Clearing sends a finished run back to `queued`; a mark or a cancel may end it from anywhere.
    pub fn can_become(self, next: RunState) -> bool {
        match (self, next) {
            (Self::Queued, Self::Running | Self::Success | Self::Failed) => true,
            (Self::Running, Self::Success | Self::Failed | Self::Queued) => true,
            (Self::Success | Self::Failed, Self::Queued | Self::Success | Self::Failed) => true,
            (Self::Success | Self::Failed, Self::Running) => false,
            (Self::Queued, Self::Queued) | (Self::Running, Self::Running) => false,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Untouched: dependencies not met yet.
    None,
    /// Dependencies met; waits for a slot or a place.
    Scheduled,
    /// Bound to a node under an attempt id; not claimed yet.
    Queued,
    /// Claimed by an agent.
    Running,
    Success,
    Failed,
    Skipped,
    UpstreamFailed,
    UpForRetry,
    UpForReschedule,
    Deferred,
    /// Cleared while running: its process is being stopped, then it becomes `none`.
    Restarting,
    /// The dag version in force no longer has this task.
    Removed,
}

impl TaskState {
    pub const ALL: [TaskState; 13] = [
        Self::None,
        Self::Scheduled,
        Self::Queued,
        Self::Running,
        Self::Success,
        Self::Failed,
        Self::Skipped,
        Self::UpstreamFailed,
        Self::UpForRetry,
        Self::UpForReschedule,
        Self::Deferred,
        Self::Restarting,
        Self::Removed,
    ];

    pub fn is_finished(self) -> bool {
        match self {
            Self::Success | Self::Failed | Self::Skipped | Self::UpstreamFailed | Self::Removed => true,
            Self::None
            | Self::Scheduled
            | Self::Queued
            | Self::Running
            | Self::UpForRetry
            | Self::UpForReschedule
            | Self::Deferred
            | Self::Restarting => false,
        }
    }

    /// An attempt exists that an agent may hold.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::Queued | Self::Running | Self::Restarting)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpForRetry => "up_for_retry",
            Self::UpForReschedule => "up_for_reschedule",
            Self::Deferred => "deferred",
            Self::Restarting => "restarting",
            Self::Removed => "removed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub fn apply(self, event: TaskEvent) -> Result<Self, IllegalTransition> {
        use TaskEvent as E;
        use TaskState as S;
        let illegal = Err(IllegalTransition { from: self, event });
        match (self, event) {
            // A clear restarts what runs and forgets what is not running.
            (S::Running, E::Clear) => Ok(S::Restarting),
            (S::Restarting, E::Clear) => Ok(S::Restarting),
            (_, E::Clear) => Ok(S::None),

            // A mark is the user's word; only a task that no longer exists cannot take it.
            (S::Removed, E::Mark(_)) => illegal,
            (_, E::Mark(mark)) => Ok(mark.state()),

            (S::None, E::DependenciesMet) => Ok(S::Scheduled),
            (S::None, E::CompleteEmpty) => Ok(S::Success),
            (S::None, E::Skip) => Ok(S::Skipped),
            (S::None, E::UpstreamFail) => Ok(S::UpstreamFailed),
            (S::None | S::Scheduled | S::UpForRetry | S::UpForReschedule | S::Deferred, E::Remove) => {
                Ok(S::Removed)
            }
            (S::None | S::Scheduled | S::UpForRetry | S::UpForReschedule, E::RunEnded) => Ok(S::Skipped),
            (S::Queued | S::Running | S::Restarting | S::Deferred, E::RunEnded) => Ok(S::Skipped),

            (S::Scheduled, E::Bind) => Ok(S::Queued),
            (S::Queued, E::Claim) => Ok(S::Running),
            // The attempt never began, or was stopped to make room: the try stays, the next placement gets a new
            // attempt id.
            (S::Queued | S::Running, E::Withdraw) => Ok(S::Scheduled),
            // A task can fail before it is claimed, when it cannot even be prepared.
            (S::Queued | S::Running, E::Fail { retry: true }) => Ok(S::UpForRetry),
            (S::Queued | S::Running, E::Fail { retry: false }) => Ok(S::Failed),
            (S::Running, E::Succeed) => Ok(S::Success),
            (S::Running, E::SkipItself) => Ok(S::Skipped),
            (S::Restarting, E::Withdraw | E::Fail { .. } | E::Succeed | E::SkipItself) => Ok(S::None),
            (S::UpForRetry, E::RetryDue) => Ok(S::Scheduled),

            (S::None, E::Bind | E::Claim | E::Withdraw | E::Succeed | E::SkipItself | E::Fail { .. } | E::RetryDue)
            | (
                S::Scheduled,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Claim
                | E::Withdraw
                | E::Succeed
                | E::SkipItself
                | E::Fail { .. }
                | E::RetryDue,
            )
            | (
                S::Queued,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Remove
                | E::Bind
                | E::Succeed
                | E::SkipItself
                | E::RetryDue,
            )
            | (
                S::Running,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Remove
                | E::Bind
                | E::Claim
                | E::RetryDue,
            )
            | (
                S::Restarting,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Remove
                | E::Bind
                | E::Claim
                | E::RetryDue,
            )
            | (
                S::UpForRetry,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Bind
                | E::Claim
                | E::Withdraw
                | E::Succeed
                | E::SkipItself
                | E::Fail { .. },
            )
            // Deferral and rescheduling have no events yet.
            | (
                S::UpForReschedule | S::Deferred,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Bind
                | E::Claim
                | E::Withdraw
                | E::Succeed
                | E::SkipItself
                | E::Fail { .. }
                | E::RetryDue,
            )
            // Terminal is final except by an explicit clear or mark.
            | (
                S::Success | S::Failed | S::Skipped | S::UpstreamFailed | S::Removed,
                E::DependenciesMet
                | E::CompleteEmpty
                | E::Skip
                | E::UpstreamFail
                | E::Remove
                | E::RunEnded
                | E::Bind
                | E::Claim
                | E::Withdraw
                | E::Succeed
                | E::SkipItself
                | E::Fail { .. }
                | E::RetryDue,
            ) => illegal,
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEvent {
    /// The trigger rule is met.
    DependenciesMet,
    /// The trigger rule is met and there is nothing to run.
    CompleteEmpty,
    /// The trigger rule can no longer be met because of skipped upstreams.
    Skip,
    /// The trigger rule can no longer be met because of failed upstreams.
    UpstreamFail,
    /// The dag version that the run now follows does not have this task.
    Remove,
    /// The run timed out or was ended by a user while this task was pending.
    RunEnded,
    Bind,
    Claim,
    Withdraw,
    Succeed,
    /// The task itself asked to be skipped.
    SkipItself,
    Fail {
        retry: bool,
    },
    RetryDue,
    Clear,
    Mark(Mark),
}

impl TaskEvent {
    /// As the audit trail tells it.
    pub fn past_tense(self) -> &'static str {
        match self {
            Self::DependenciesMet => "scheduled",
            Self::CompleteEmpty => "completed",
            Self::Skip | Self::SkipItself => "skipped",
            Self::UpstreamFail => "upstream_failed",
            Self::Remove => "removed",
            Self::RunEnded => "run_ended",
            Self::Bind => "bound",
            Self::Claim => "claimed",
            Self::Withdraw => "withdrawn",
            Self::Succeed => "succeeded",
            Self::Fail { .. } => "failed",
            Self::RetryDue => "retried",
            Self::Clear => "cleared",
            Self::Mark(_) => "marked",
        }
    }
}

/// What a user may declare a task instance, or a whole run, to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    Success,
    Failed,
    Skipped,
}

impl Mark {
    pub fn state(self) -> TaskState {
        match self {
            Self::Success => TaskState::Success,
            Self::Failed => TaskState::Failed,
            Self::Skipped => TaskState::Skipped,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task instance that is {from} cannot take {event:?}")]
pub struct IllegalTransition {
    pub from: TaskState,
    pub event: TaskEvent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_back_from_its_name() {
        for state in TaskState::ALL {
            assert_eq!(TaskState::parse(state.as_str()), Some(state));
        }
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
        }
    }

    #[test]
    fn terminal_is_final_except_by_clear_or_mark() {
        let events = [
            TaskEvent::DependenciesMet,
            TaskEvent::CompleteEmpty,
            TaskEvent::Skip,
            TaskEvent::UpstreamFail,
            TaskEvent::Remove,
            TaskEvent::RunEnded,
            TaskEvent::Bind,
            TaskEvent::Claim,
            TaskEvent::Withdraw,
            TaskEvent::Succeed,
            TaskEvent::SkipItself,
            TaskEvent::Fail { retry: true },
            TaskEvent::Fail { retry: false },
            TaskEvent::RetryDue,
        ];
        for state in TaskState::ALL.into_iter().filter(|state| state.is_finished()) {
            for event in events {
                assert!(state.apply(event).is_err(), "{state} took {event:?}");
            }
            assert_eq!(state.apply(TaskEvent::Clear), Ok(TaskState::None));
        }
    }
}
