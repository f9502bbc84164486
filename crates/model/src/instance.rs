//! A task instance as the owner of its shard knows it: the columns that scheduling reads and writes, and what
//! a report about one of its attempts makes of them.
//!
//! An owner decides from its memory and a store from the row, both here: whoever hears an agent first, the task
//! instance goes on alike.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Ack, AttemptId, FailReason, NodeId, Outcome, TaskEvent, TaskState};

/// Why an attempt that ran was taken back: somebody asked for it, and the same try goes on elsewhere.
const STOPPED_TO_MOVE: &str = "stopped on request, to be placed again";

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

    /// An agent asks whether it may start this attempt.
    pub fn claim(&self, attempt: AttemptId, at: Timestamp) -> Told {
        if self.attempt != Some(attempt) {
            return Told::superseded();
        }
        match self.state {
            TaskState::Queued => {
                let to = TaskInstance { started_at: Some(at), reason: None, ..self.clone() };
                Told::applied(self.step(TaskEvent::Claim, to))
            }
            TaskState::Running => Told { verdict: AttemptVerdict::Repeated, step: None },
            // Cleared before the agent heard that it may start: then it never will.
            TaskState::Restarting => {
                let step = Some(self.restarted(TaskEvent::Withdraw, at));
                Told { verdict: AttemptVerdict::Superseded, step }
            }
            TaskState::None
            | TaskState::Scheduled
            | TaskState::Success
            | TaskState::Failed
            | TaskState::Skipped
            | TaskState::UpstreamFailed
            | TaskState::UpForRetry
            | TaskState::UpForReschedule
            | TaskState::Deferred
            | TaskState::Removed => Told::superseded(),
        }
    }

    /// An attempt will never run again, and this is how it ended. Said twice, the second time is superseded.
    pub fn end(&self, attempt: AttemptId, outcome: &Outcome, ended_at: Timestamp) -> Told {
        if self.attempt != Some(attempt) || !self.state.is_bound() {
            return Told::superseded();
        }
        // An agent's clock may be behind ours; a task still does not end before it began.
        let ended_at = self.started_at.map_or(ended_at, |started| ended_at.max(started));
        let (event, reason) = match outcome {
            Outcome::NeverStarted => {
                return Told::applied(self.withdrawn("the attempt never started", ended_at));
            }
            // Asked to stop, and nobody has decided anything else about it: its node was to be emptied, or somebody
            // more important needed the place. That is no failed try.
            Outcome::Failed { reason: FailReason::Stopped } if self.state != TaskState::Restarting => {
                return Told::applied(self.withdrawn(STOPPED_TO_MOVE, ended_at));
            }
            // Only what was claimed can have run.
            Outcome::Success | Outcome::Skipped if self.state == TaskState::Queued => {
                return Told::superseded();
            }
            Outcome::Success => (TaskEvent::Succeed, None),
            Outcome::Skipped => (TaskEvent::SkipItself, Some("asked to be skipped".to_owned())),
            Outcome::Failed { reason } => {
                (TaskEvent::Fail { retry: self.try_number <= self.max_tries }, Some(reason.to_string()))
            }
        };
        if self.state == TaskState::Restarting {
            return Told::applied(self.restarted(event, ended_at));
        }
        let to = TaskInstance { ended_at: Some(ended_at), reason, ..self.clone() };
        Told::applied(self.step(event, to))
    }

    /// An attempt could not be handed to its node, and has failed for this reason if there is one.
    pub fn undelivered(&self, attempt: AttemptId, failure: Option<&FailReason>, at: Timestamp) -> Told {
        if self.state != TaskState::Queued {
            return Told::superseded();
        }
        let outcome = match failure {
            Some(reason) => Outcome::Failed { reason: reason.clone() },
            None => Outcome::NeverStarted,
        };
        self.end(attempt, &outcome, at)
    }

    /// A bound attempt is taken back; the same try is placed again under a new attempt id.
    pub fn withdrawn(&self, reason: &str, at: Timestamp) -> TiStep {
        if self.state == TaskState::Restarting {
            return self.restarted(TaskEvent::Withdraw, at);
        }
        let to = TaskInstance {
            attempt: None,
            node: None,
            queued_at: None,
            started_at: None,
            reason: Some(reason.to_owned()),
            ..self.clone()
        };
        self.step(TaskEvent::Withdraw, to)
    }

    /// The process of a cleared task has ended: now it is as if it had never run, but for its history.
    /// The clear has already granted the tries that follow.
    fn restarted(&self, event: TaskEvent, ended_at: Timestamp) -> TiStep {
        let cleared = TaskInstance {
            try_number: self.try_number,
            reason: Some("cleared while running".to_owned()),
            ..Self::untouched(self.max_tries)
        };
        let past = TaskInstance { state: TaskState::Failed, ended_at: Some(ended_at), ..self.clone() };
        TiStep { past_try: Some(past), ..self.step(event, cleared) }
    }

    fn step(&self, event: TaskEvent, to: TaskInstance) -> TiStep {
        let state = self.state.apply(event).expect("only steps that are legal from this state are taken");
        TiStep { event, to: TaskInstance { state, ..to }, past_try: None }
    }
}

/// What a report about an attempt comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub verdict: AttemptVerdict,
    /// How the task instance goes on. None: it stays as it is.
    pub step: Option<TiStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptVerdict {
    Applied,
    /// The same came before; a repeated answer is all the agent needs.
    Repeated,
    /// Not the current attempt, or known already: the agent may forget it.
    Superseded,
}

impl AttemptVerdict {
    /// The answer, once what was decided is committed.
    pub fn ack(self) -> Ack {
        match self {
            Self::Applied | Self::Repeated => Ack::Accepted,
            Self::Superseded => Ack::Superseded,
        }
    }
}

/// One legal step of a task instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiStep {
    pub event: TaskEvent,
    pub to: TaskInstance,
    /// A try that goes to history with this step.
    pub past_try: Option<TaskInstance>,
}

impl Told {
    fn applied(step: TiStep) -> Self {
        Self { verdict: AttemptVerdict::Applied, step: Some(step) }
    }

    fn superseded() -> Self {
        Self { verdict: AttemptVerdict::Superseded, step: None }
    }
}

#[cfg(test)]
mod tests;
