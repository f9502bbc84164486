//! Trigger rules: what the outcomes of a task's direct upstreams mean for it.

use serde::{Deserialize, Serialize};

use crate::TaskState;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    #[default]
    AllSuccess,
    AllFailed,
    AllDone,
    OneSuccess,
    OneFailed,
    OneDone,
    NoneFailed,
    NoneFailedMinOneSuccess,
    NoneSkipped,
    AllSkipped,
    AllDoneMinOneSuccess,
    AllDoneSetupSuccess,
    Always,
}

impl TriggerRule {
    pub const ALL: [TriggerRule; 13] = [
        Self::AllSuccess,
        Self::AllFailed,
        Self::AllDone,
        Self::OneSuccess,
        Self::OneFailed,
        Self::OneDone,
        Self::NoneFailed,
        Self::NoneFailedMinOneSuccess,
        Self::NoneSkipped,
        Self::AllSkipped,
        Self::AllDoneMinOneSuccess,
        Self::AllDoneSetupSuccess,
        Self::Always,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllSuccess => "all_success",
            Self::AllFailed => "all_failed",
            Self::AllDone => "all_done",
            Self::OneSuccess => "one_success",
            Self::OneFailed => "one_failed",
            Self::OneDone => "one_done",
            Self::NoneFailed => "none_failed",
            Self::NoneFailedMinOneSuccess => "none_failed_min_one_success",
            Self::NoneSkipped => "none_skipped",
            Self::AllSkipped => "all_skipped",
            Self::AllDoneMinOneSuccess => "all_done_min_one_success",
            Self::AllDoneSetupSuccess => "all_done_setup_success",
            Self::Always => "always",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text)
    }

    /// What a task with this rule should do, given the outcomes of its upstreams so far.
    pub fn verdict(self, tally: &Tally) -> Verdict {
        use Verdict::{Run, Skip, UpstreamFail, Wait};
        let Tally { upstreams: n, success: s, failed: f, upstream_failed: uf, skipped: sk, removed: r } =
            *tally;
        let done = s + f + uf + sk + r == n;
        let bad = f + uf;
        if n == 0 {
            return Run; // No upstream, nothing to wait for: Airflow does not even evaluate the rule.
        }
        match self {
            Self::Always => Run,
            Self::AllSuccess if s + r == n => Run,
            Self::AllSuccess if bad > 0 => UpstreamFail,
            Self::AllSuccess if sk > 0 => Skip,
            Self::AllFailed if bad + r == n => Run,
            Self::AllFailed if s + sk > 0 => Skip,
            Self::AllDone if done => Run,
            Self::OneSuccess if s > 0 => Run,
            Self::OneSuccess if done && sk + r == n && sk > 0 => Skip,
            Self::OneSuccess if done => UpstreamFail,
            Self::OneFailed if bad > 0 => Run,
            Self::OneFailed if done => Skip,
            Self::OneDone if s + f > 0 => Run,
            Self::OneDone if done => Skip,
            Self::NoneFailed if bad > 0 => UpstreamFail,
            Self::NoneFailed if done => Run,
            Self::NoneFailedMinOneSuccess if bad > 0 => UpstreamFail,
            Self::NoneFailedMinOneSuccess if done && s > 0 => Run,
            Self::NoneFailedMinOneSuccess if done && sk == n => Skip,
            Self::NoneFailedMinOneSuccess if done => UpstreamFail,
            Self::NoneSkipped if sk > 0 => Skip,
            Self::NoneSkipped if done => Run,
            Self::AllSkipped if sk == n => Run,
            Self::AllSkipped if s + bad > 0 => Skip,
            // A removed upstream neither skips nor runs anything, yet nothing more will come.
            Self::AllSkipped if done => Skip,
            Self::AllDoneMinOneSuccess if sk > 0 => Skip,
            Self::AllDoneMinOneSuccess if done && s > 0 => Run,
            Self::AllDoneMinOneSuccess if done => UpstreamFail,
            // Setup tasks do not exist yet, so no upstream is one and none has succeeded. With no
            // setup to wait for, the rule is «all done», as Airflow treats it.
            Self::AllDoneSetupSuccess if done => Run,
            Self::AllSuccess
            | Self::AllFailed
            | Self::AllDone
            | Self::OneSuccess
            | Self::OneFailed
            | Self::OneDone
            | Self::NoneFailed
            | Self::NoneFailedMinOneSuccess
            | Self::NoneSkipped
            | Self::AllSkipped
            | Self::AllDoneMinOneSuccess
            | Self::AllDoneSetupSuccess => Wait,
        }
    }
}

/// Outcomes of a task's direct upstreams, counted as they finish so that a fan-in of thousands
/// costs one addition per upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub upstreams: u32,
    pub success: u32,
    pub failed: u32,
    pub upstream_failed: u32,
    pub skipped: u32,
    pub removed: u32,
}

impl Tally {
    pub fn of(states: impl IntoIterator<Item = TaskState>) -> Self {
        let mut tally = Self::default();
        for state in states {
            tally.upstreams += 1;
            tally.enter(state);
        }
        tally
    }

    /// An upstream has come into this state.
    pub fn enter(&mut self, state: TaskState) {
        if let Some(count) = self.count_of(state) {
            *count += 1;
        }
    }

    /// An upstream has left this state.
    pub fn leave(&mut self, state: TaskState) {
        if let Some(count) = self.count_of(state) {
            *count = count.checked_sub(1).expect("an upstream leaves a state it was counted in");
        }
    }

    fn count_of(&mut self, state: TaskState) -> Option<&mut u32> {
        match state {
            TaskState::Success => Some(&mut self.success),
            TaskState::Failed => Some(&mut self.failed),
            TaskState::UpstreamFailed => Some(&mut self.upstream_failed),
            TaskState::Skipped => Some(&mut self.skipped),
            TaskState::Removed => Some(&mut self.removed),
            TaskState::None
            | TaskState::Scheduled
            | TaskState::Queued
            | TaskState::Running
            | TaskState::UpForRetry
            | TaskState::UpForReschedule
            | TaskState::Deferred
            | TaskState::Restarting => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Run,
    Wait,
    Skip,
    UpstreamFail,
}

#[cfg(test)]
mod tests;
