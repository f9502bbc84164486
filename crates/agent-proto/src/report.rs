//! Reports, their answers, inventories and refusals on the wire.

use tenure_model::{Ack, AttemptId, FailReason, Held, NodeId, Outcome, Report, ReportBody, TiKey};

use crate::convert::{Nonsense, attempt, instant, name, ti};
use crate::wire;
use crate::wire::end::Outcome as WireOutcome;
use crate::wire::numbered_report::Body;
use crate::wire::refusal::Why as WireWhy;

impl wire::NumberedReport {
    pub fn new(number: u64, report: Report) -> Self {
        let (attempt, ti) = (report.body.attempt(), report.body.ti());
        let body = match report.body {
            ReportBody::Claim { .. } => Body::Claim(wire::Claim {}),
            ReportBody::End { outcome, ended_at, result, .. } => Body::End(wire::End {
                ended_at: Some(ended_at.into()),
                result_json: result.map(|value| value.to_string()),
                outcome: Some(outcome.into()),
            }),
            ReportBody::Undelivered { .. } => unreachable!("agents speak of what was delivered to them"),
        };
        Self {
            number,
            attempt: Some(attempt.into()),
            ti: Some(ti.into()),
            scope: report.scope,
            body: Some(body),
        }
    }

    /// What the node on this stream reports.
    pub fn read(self, node: NodeId) -> Result<Report, Nonsense> {
        let (attempt, ti) = (attempt(self.attempt)?, ti(self.ti)?);
        let body = match self.body.ok_or_else(|| Nonsense::missing("body"))? {
            Body::Claim(wire::Claim {}) => ReportBody::Claim { attempt, ti },
            Body::End(end) => ReportBody::End {
                attempt,
                ti,
                outcome: end.outcome.ok_or_else(|| Nonsense::missing("end.outcome"))?.into(),
                ended_at: instant("end.ended_at", end.ended_at)?,
                result: end.result_json.map(|text| result(&text)).transpose()?,
            },
        };
        Ok(Report { node, scope: name("scope", self.scope)?, body })
    }
}

fn result(text: &str) -> Result<serde_json::Value, Nonsense> {
    let wrong = |error| Nonsense::new("end.result_json", format!("is no JSON: {error}"));
    serde_json::from_str(text).map_err(wrong)
}

impl From<Outcome> for WireOutcome {
    fn from(outcome: Outcome) -> Self {
        let nothing = wire::Nothing {};
        let reason = match outcome {
            Outcome::Success => return Self::Success(nothing),
            Outcome::Skipped => return Self::Skipped(nothing),
            Outcome::NeverStarted => return Self::NeverStarted(nothing),
            Outcome::Failed { reason } => reason,
        };
        match reason {
            FailReason::Exit { code } => Self::ExitCode(code),
            FailReason::Signal { name } => Self::Signal(name),
            FailReason::TimedOut { after_ms } => Self::TimedOutAfterMs(after_ms),
            FailReason::Stopped => Self::Stopped(nothing),
            FailReason::OutOfMemory { limit_bytes } => Self::OutOfMemoryLimit(limit_bytes),
            FailReason::CutOff { silent_ms } => Self::CutOffSilentMs(silent_ms),
            FailReason::Lost => Self::Lost(nothing),
            FailReason::AgentLost { silent_ms } => Self::AgentLostSilentMs(silent_ms),
            FailReason::CannotStart { error } => Self::CannotStart(error),
            FailReason::BadResult { error } => Self::BadResult(error),
        }
    }
}

impl From<WireOutcome> for Outcome {
    fn from(outcome: WireOutcome) -> Self {
        let reason = match outcome {
            WireOutcome::Success(_) => return Self::Success,
            WireOutcome::Skipped(_) => return Self::Skipped,
            WireOutcome::NeverStarted(_) => return Self::NeverStarted,
            WireOutcome::ExitCode(code) => FailReason::Exit { code },
            WireOutcome::Signal(name) => FailReason::Signal { name },
            WireOutcome::TimedOutAfterMs(after_ms) => FailReason::TimedOut { after_ms },
            WireOutcome::Stopped(_) => FailReason::Stopped,
            WireOutcome::OutOfMemoryLimit(limit_bytes) => FailReason::OutOfMemory { limit_bytes },
            WireOutcome::CutOffSilentMs(silent_ms) => FailReason::CutOff { silent_ms },
            WireOutcome::Lost(_) => FailReason::Lost,
            WireOutcome::AgentLostSilentMs(silent_ms) => FailReason::AgentLost { silent_ms },
            WireOutcome::CannotStart(error) => FailReason::CannotStart { error },
            WireOutcome::BadResult(error) => FailReason::BadResult { error },
        };
        Self::Failed { reason }
    }
}

impl wire::ToAgent {
    pub fn add_ack(&mut self, number: u64, ack: Ack) {
        match ack {
            Ack::Accepted => self.accepted.push(number),
            Ack::Superseded => self.superseded.push(number),
            Ack::Retry => self.retry.push(number),
        }
    }

    /// The answers to reports, each with the number of its report.
    pub fn acks(&self) -> impl Iterator<Item = (u64, Ack)> {
        let with = |ack: Ack| move |number: &u64| (*number, ack);
        let accepted = self.accepted.iter().map(with(Ack::Accepted));
        let superseded = self.superseded.iter().map(with(Ack::Superseded));
        accepted.chain(superseded).chain(self.retry.iter().map(with(Ack::Retry)))
    }
}

impl From<Held> for wire::Held {
    fn from(held: Held) -> Self {
        Self { attempt: Some(held.attempt.into()), ti: Some(held.ti.into()), scope: held.scope }
    }
}

impl TryFrom<wire::Held> for Held {
    type Error = Nonsense;

    fn try_from(held: wire::Held) -> Result<Self, Nonsense> {
        Ok(Self { attempt: attempt(held.attempt)?, ti: ti(held.ti)?, scope: name("scope", held.scope)? })
    }
}

/// An assignment that was delivered and not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub attempt: AttemptId,
    pub ti: TiKey,
    pub scope: String,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The node has seen this higher epoch of the scope.
    StaleEpoch { highest: u64 },
    /// It may be placed elsewhere, or there again.
    NotTaken { reason: String },
    /// It made no sense to the node, and would make none elsewhere.
    Unreadable { reason: String },
}

impl From<Why> for WireWhy {
    fn from(why: Why) -> Self {
        match why {
            Why::StaleEpoch { highest } => Self::StaleEpoch(highest),
            Why::NotTaken { reason } => Self::NotTaken(reason),
            Why::Unreadable { reason } => Self::Unreadable(reason),
        }
    }
}

impl From<Refusal> for wire::Refusal {
    fn from(refusal: Refusal) -> Self {
        let (attempt, ti) = (Some(refusal.attempt.into()), Some(refusal.ti.into()));
        Self { attempt, ti, scope: refusal.scope, why: Some(refusal.why.into()) }
    }
}

impl TryFrom<wire::Refusal> for Refusal {
    type Error = Nonsense;

    fn try_from(refusal: wire::Refusal) -> Result<Self, Nonsense> {
        let why = match refusal.why.ok_or_else(|| Nonsense::missing("why"))? {
            WireWhy::StaleEpoch(highest) => Why::StaleEpoch { highest },
            WireWhy::NotTaken(reason) => Why::NotTaken { reason },
            WireWhy::Unreadable(reason) => Why::Unreadable { reason },
        };
        Ok(Self {
            attempt: attempt(refusal.attempt)?,
            ti: ti(refusal.ti)?,
            scope: name("scope", refusal.scope)?,
            why,
        })
    }
}
