//! What agents say, taken into the plans of their runs. Nothing is acknowledged here: that follows the commit.

use jiff::Timestamp;
use tenure_model::{Ack, ReportBody, RunKey, TaskState};
use tenure_planner::{ClaimVerdict, EndVerdict};

use crate::changes::PassBuilder;
use crate::inbox::Envelope;
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
        let Some(run) = self.runs.get_mut(&key) else {
            // The database was asked and does not know the run as active here.
            return if self.unreadable.contains_key(&key) { Ack::Retry } else { Ack::Superseded };
        };
        self.touched.insert(key);
        match report {
            ReportBody::Claim { attempt, ti } => match run.plan.claim(ti.task, *attempt, now) {
                ClaimVerdict::Granted => Ack::Accepted,
                // The agent starts on this word, so memory alone cannot give it: the fence and the revision have to agree.
                ClaimVerdict::Repeated => {
                    builder.touch(key, run.header.revision);
                    Ack::Accepted
                }
                ClaimVerdict::Superseded => Ack::Superseded,
            },
            ReportBody::End { attempt, ti, outcome, ended_at, result } => {
                let revision = run.header.revision;
                match run.plan.end(ti.task, *attempt, outcome, (*ended_at).min(now)) {
                    EndVerdict::Applied => {
                        let succeeded =
                            run.plan.task(ti.task).is_some_and(|ti| ti.state == TaskState::Success);
                        if let (true, Some(value)) = (succeeded, result) {
                            builder.add_result(key, revision, *ti, value.clone());
                        }
                        Ack::Accepted
                    }
                    EndVerdict::Superseded => Ack::Superseded,
                }
            }
            ReportBody::Undelivered { attempt, ti, failure, at } => {
                match run.plan.undelivered(ti.task, *attempt, failure.as_ref(), (*at).min(now)) {
                    EndVerdict::Applied => Ack::Accepted,
                    EndVerdict::Superseded => Ack::Superseded,
                }
            }
        }
    }

    /// `queued` is never immortal.
    pub fn withdraw_unclaimed(&mut self, builder: &mut PassBuilder, now: Timestamp) {
        while let Some((due, ti, attempt)) = self.claims_due.first().copied().filter(|(due, ..)| *due <= now)
        {
            self.claims_due.remove(&(due, ti, attempt));
            let Some(run) = self.runs.get_mut(&ti.run) else { continue };
            let Some(instance) = run.plan.task(ti.task) else { continue };
            if instance.state == TaskState::Queued && instance.attempt == Some(attempt) {
                builder.stops.extend(instance.node.clone().map(|node| (node, attempt)));
                run.plan.withdraw(ti.task, "not claimed in time", now);
                self.deps.metrics.withdrawn.inc();
                self.touched.insert(ti.run);
            }
        }
    }
}
