//! The model with one rule left out.

/// Each is a mistake that somebody has made somewhere, or that this code has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A pass is written without looking at the fence.
    NoFence,
    /// The fence compares epochs and not terms.
    FenceWithoutTerm,
    /// What was withdrawn is placed again under the same attempt id.
    SameAttemptAgain,
    /// A claim counts for the task, whichever attempt it names.
    ClaimIgnoresAttempt,
    /// A successor gives up what ran under its predecessor, whose lease ran out.
    ReapOnLeaseExpiry,
    /// The holder counts from when it was answered.
    DeadlineFromAnswer,
    /// A release blanks the record, whoever holds it.
    ReleaseWithoutCompare,
    /// The fence goes with the lease that somebody deletes.
    EpochResetOnDeletion,
    /// The agent starts what it was ordered to, and claims it along the way.
    StartBeforeAnswer,
    /// A pass is written over a run that has changed since it was read.
    NoRevision,
    /// A repeated claim is answered, and leaves no trace in the run.
    RepeatedClaimUnrecorded,
    /// An end counts although the task has moved on.
    EndIgnoresState,
    /// A task runs on although its node has lost contact.
    NoSelfFence,
    /// An answer from before a loss of contact is heard after it.
    AnswerCrossesGap,
    /// A recovered agent starts what its predecessor had asked for.
    RecoveredStarts,
}

impl Mutant {
    pub const ALL: [Self; 15] = [
        Self::NoFence,
        Self::FenceWithoutTerm,
        Self::SameAttemptAgain,
        Self::ClaimIgnoresAttempt,
        Self::ReapOnLeaseExpiry,
        Self::DeadlineFromAnswer,
        Self::ReleaseWithoutCompare,
        Self::EpochResetOnDeletion,
        Self::StartBeforeAnswer,
        Self::NoRevision,
        Self::RepeatedClaimUnrecorded,
        Self::EndIgnoresState,
        Self::NoSelfFence,
        Self::AnswerCrossesGap,
        Self::RecoveredStarts,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoFence => "no fence",
            Self::FenceWithoutTerm => "fence without term",
            Self::SameAttemptAgain => "re-place without a new attempt id",
            Self::ClaimIgnoresAttempt => "claim ignores the attempt",
            Self::ReapOnLeaseExpiry => "reap on lease expiry",
            Self::DeadlineFromAnswer => "deadline from the answer",
            Self::ReleaseWithoutCompare => "release without compare",
            Self::EpochResetOnDeletion => "epoch reset on deletion",
            Self::StartBeforeAnswer => "start before the answer",
            Self::NoRevision => "pass without revision",
            Self::RepeatedClaimUnrecorded => "repeated claim unrecorded",
            Self::EndIgnoresState => "end ignores the state",
            Self::NoSelfFence => "no self-fence on the node",
            Self::AnswerCrossesGap => "answer crosses a loss of contact",
            Self::RecoveredStarts => "a recovered attempt starts",
        }
    }
}
