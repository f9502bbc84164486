//! What agents say, taken into the plans of their runs. Nothing is acknowledged here: that follows the commit.

use jiff::Timestamp;
use tenure_model::{Ack, ReportBody, RunKey, TaskState};
use tenure_planner::{ClaimVerdict, EndVerdict, RunPlan};

use crate::changes::PassBuilder;
use crate::inbox::Envelope;
use crate::isolation::Step;
use crate::owner::ShardOwner;

/// What a report will be told, if the run it is about is written.
pub(crate) struct Answer {
    pub envelope: Envelope,
    pub ack: Ack,
    pub run: RunKey,
}

impl ShardOwner {
    /// A report about a run that is not in memory may still be right: ask the database first.
    pub fn load_reported(&mut self, envelopes: &[Envelope]) {
        for envelope in envelopes {
            let run = envelope.report.body.ti().run;
            if !self.runs.contains_key(&run) && !self.unreadable.contains_key(&run) {
                self.stale.insert(run);
            }
        }
    }

    pub fn apply_reports(
        &mut self,
        envelopes: Vec<Envelope>,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Vec<Answer> {
        let elsewhere = std::mem::take(&mut self.elsewhere);
        let mut answers = vec![];
        for mut envelope in envelopes {
            let run = envelope.report.body.ti().run;
            if elsewhere.contains(&run) {
                continue; // dropped: whoever waits writes it to the database itself
            }
            // Also of one whose link has broken since: what it asks for is not given up in the same breath.
            self.watch.hear(&envelope.report.node, self.deps.clock.boottime());
            if let ReportBody::End { attempt, ti, .. } = &envelope.report.body {
                self.has_left(*ti, *attempt);
            }
            let ack = self.apply_report(&envelope.report.body, builder, now);
            if ack == Ack::Superseded && !envelope.checked {
                // Another replica may have recorded what this cache has not seen yet, the claim of an end for one.
                // An agent forgets what is superseded, so the database has to say so.
                envelope.checked = true;
                self.stale.insert(run);
                self.doubted.push(envelope);
                continue;
            }
            answers.push(Answer { envelope, ack, run });
        }
        answers
    }

    fn apply_report(&mut self, report: &ReportBody, builder: &mut PassBuilder, now: Timestamp) -> Ack {
        let key = report.ti().run;
        let Some(revision) = self.runs.get(&key).map(|run| run.header.revision) else {
            // The database was asked and does not know the run as active here; or it was not asked.
            let unclear = self.unreadable.contains_key(&key) || self.poisoned.contains_key(&key);
            return if unclear { Ack::Retry } else { Ack::Superseded };
        };
        self.touched.insert(key);
        let Some(heard) = self.with_plan(key, Step::Report, |plan| hear(plan, report, now)) else {
            return Ack::Retry; // by then the run has been failed
        };
        match (heard, report) {
            // The agent starts on this word, so memory alone cannot give it: the fence and the revision have to agree.
            (Heard::Repeated, _) => builder.touch(key, revision),
            (Heard::Succeeded, ReportBody::End { ti, result: Some(value), .. }) => {
                builder.add_result(key, revision, *ti, value.clone());
            }
            (Heard::Superseded, _) => return Ack::Superseded,
            (Heard::Applied | Heard::Succeeded, _) => {}
        }
        Ack::Accepted
    }

    /// `queued` is never immortal.
    pub fn withdraw_unclaimed(&mut self, builder: &mut PassBuilder, now: Timestamp) {
        while let Some((due, ti, attempt)) = self.claims_due.first().copied().filter(|(due, ..)| *due <= now)
        {
            self.claims_due.remove(&(due, ti, attempt));
            let Some(instance) = self.runs.get(&ti.run).and_then(|run| run.plan.task(ti.task)) else {
                continue;
            };
            if instance.state == TaskState::Queued
                && instance.attempt == Some(attempt)
                && let Some(node) = instance.node.clone()
            {
                self.take_back(ti, attempt, &node, "not claimed in time", builder, now);
            }
        }
    }
}

/// What a plan makes of a report.
enum Heard {
    Applied,
    /// Applied, and the task is done.
    Succeeded,
    Repeated,
    Superseded,
}

fn hear(plan: &mut RunPlan, report: &ReportBody, now: Timestamp) -> Heard {
    let verdict = match report {
        ReportBody::Claim { attempt, ti } => {
            return match plan.claim(ti.task, *attempt, now) {
                ClaimVerdict::Granted => Heard::Applied,
                ClaimVerdict::Repeated => Heard::Repeated,
                ClaimVerdict::Superseded => Heard::Superseded,
            };
        }
        ReportBody::End { attempt, ti, outcome, ended_at, .. } => {
            plan.end(ti.task, *attempt, outcome, (*ended_at).min(now))
        }
        ReportBody::Undelivered { attempt, ti, failure, at } => {
            plan.undelivered(ti.task, *attempt, failure.as_ref(), (*at).min(now))
        }
    };
    match verdict {
        EndVerdict::Superseded => Heard::Superseded,
        EndVerdict::Applied
            if plan.task(report.ti().task).is_some_and(|ti| ti.state == TaskState::Success) =>
        {
            Heard::Succeeded
        }
        EndVerdict::Applied => Heard::Applied,
    }
}
