//! What an agent's report does to a run that its hearer does not own.

use jiff::Timestamp;
use tenure_model::{Ack, AttemptVerdict, Report, ReportBody, TaskState};

use super::RunEdit;
use crate::{CachedTi, RunHeader, TryRecord};

/// Who wrote it, for the audit row.
pub fn reporter(report: &Report) -> String {
    format!("node {}", report.node)
}

/// Takes what a report says into the row of its task instance (`None`: the run has no such row), and no further:
/// what follows from it is for the owner to plan, who finds the run in its attention.
/// The answer may be given once the edit is committed.
pub fn report(run: &RunHeader, cached: Option<&CachedTi>, report: &Report, at: Timestamp) -> (RunEdit, Ack) {
    let mut edit = RunEdit::of(run);
    let Some(cached) = cached.filter(|_| !run.state.is_finished()) else { return (edit, Ack::Superseded) };
    let told = match &report.body {
        ReportBody::Claim { attempt, .. } => cached.ti.claim(*attempt, at),
        // An agent's clock may be ahead of ours.
        ReportBody::End { attempt, outcome, ended_at, .. } => {
            cached.ti.end(*attempt, outcome, (*ended_at).min(at))
        }
        ReportBody::Undelivered { attempt, failure, at: told_at, .. } => {
            cached.ti.undelivered(*attempt, failure.as_ref(), (*told_at).min(at))
        }
    };
    if let Some(step) = told.step {
        let ti = edit.key_of(cached);
        let past = step.past_try;
        edit.past_tries.extend(past.map(|instance| TryRecord {
            ti,
            task_id: cached.task_id.clone(),
            instance,
        }));
        if let (TaskState::Success, ReportBody::End { result: Some(value), .. }) =
            (step.to.state, &report.body)
        {
            edit.results.push((ti, value.clone()));
        }
        edit.change_ti(cached, step.event.past_tense(), step.to);
    }
    // The agent is about to start what somebody may be about to give up, for want of any sign of it: an owner whose plan
    // is older than this answer has to look again.
    edit.touched = told.verdict == AttemptVerdict::Repeated;
    (edit, told.verdict.ack())
}
