//! What agents say, taken into the plans of their runs. Nothing is acknowledged here: that follows the commit.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tenure_model::{
    Ack, AttemptId, FailReason, NodeId, Outcome, Report, ReportBody, RunKey, TaskState, TiKey,
};
use tenure_planner::{ClaimVerdict, EndVerdict};

use crate::changes::PassBuilder;
use crate::inbox::Envelope;
use crate::owner::ShardOwner;

impl ShardOwner {
    /// A report about a run that is not in memory may still be right: ask the database first.
    pub fn load_reported(&mut self, envelopes: &[Envelope]) {
        for envelope in envelopes {
            if let ReportBody::Claim { ti, .. } | ReportBody::End { ti, .. } = &envelope.report.body
                && !self.runs.contains_key(&ti.run)
                && !self.unreadable.contains_key(&ti.run)
            {
                self.stale.insert(ti.run);
            }
        }
    }

    pub fn apply_reports(
        &mut self,
        envelopes: Vec<Envelope>,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Vec<(Envelope, Ack, Option<RunKey>)> {
        envelopes
            .into_iter()
            .map(|envelope| {
                let (ack, run) = self.apply_report(&envelope.report, builder, now);
                (envelope, ack, run)
            })
            .collect()
    }

    fn apply_report(
        &mut self,
        report: &Report,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> (Ack, Option<RunKey>) {
        match &report.body {
            ReportBody::Claim { attempt, ti } => {
                let Some(run) = self.runs.get_mut(&ti.run) else { return (self.ack_unknown(*ti), None) };
                self.touched.insert(ti.run);
                match run.plan.claim(ti.task, *attempt, now) {
                    ClaimVerdict::Granted | ClaimVerdict::Repeated => (Ack::Accepted, Some(ti.run)),
                    ClaimVerdict::Superseded => (Ack::Superseded, Some(ti.run)),
                }
            }
            ReportBody::End { attempt, ti, outcome, ended_at, result } => {
                let Some(run) = self.runs.get_mut(&ti.run) else { return (self.ack_unknown(*ti), None) };
                self.touched.insert(ti.run);
                let revision = run.header.revision;
                match run.plan.end(ti.task, *attempt, outcome, (*ended_at).min(now)) {
                    EndVerdict::Applied => {
                        let succeeded =
                            run.plan.task(ti.task).is_some_and(|ti| ti.state == TaskState::Success);
                        if let (true, Some(value)) = (succeeded, result) {
                            builder.add_result(ti.run, revision, *ti, value.clone());
                        }
                        (Ack::Accepted, Some(ti.run))
                    }
                    EndVerdict::Superseded => (Ack::Superseded, Some(ti.run)),
                }
            }
            ReportBody::Inventory { attempts } => {
                self.compare_inventory(&report.node, attempts, builder, now);
                (Ack::Accepted, None)
            }
        }
    }

    /// The database was asked and does not know the run as active here.
    fn ack_unknown(&self, ti: TiKey) -> Ack {
        if self.unreadable.contains_key(&ti.run) { Ack::Retry } else { Ack::Superseded }
    }

    /// What we believe to run on a node and it does not have is positively gone; what it has and we do
    /// not want is to be stopped.
    fn compare_inventory(
        &mut self,
        node: &NodeId,
        attempts: &[(AttemptId, TiKey)],
        builder: &mut PassBuilder,
        now: Timestamp,
    ) {
        let has: BTreeSet<_> = attempts.iter().map(|(attempt, _)| *attempt).collect();
        let mut wanted = BTreeSet::new();
        let keys: Vec<RunKey> = self.runs.keys().copied().collect();
        for key in keys {
            let run = self.runs.get_mut(&key).expect("the key was just listed");
            let here: Vec<_> = run
                .plan
                .tasks()
                .filter(|(_, ti)| ti.state.is_bound() && ti.node.as_ref() == Some(node))
                .filter_map(|(task, ti)| ti.attempt.map(|attempt| (task, ti.state, attempt)))
                .collect();
            for (task, state, attempt) in here {
                wanted.insert(attempt);
                // A queued one may still be on its way; its claim deadline looks after it.
                if state != TaskState::Queued && !has.contains(&attempt) {
                    let lost = Outcome::Failed { reason: FailReason::Lost };
                    run.plan.end(task, attempt, &lost, now);
                    self.deps.metrics.agent_lost_tasks.inc();
                    self.touched.insert(key);
                }
            }
        }
        // Of a run that cannot be read nobody knows what is wanted.
        let unknown = |ti: &TiKey| self.unreadable.contains_key(&ti.run);
        let unwanted = attempts.iter().filter(|(attempt, ti)| !wanted.contains(attempt) && !unknown(ti));
        builder.stops.extend(unwanted.map(|(attempt, _)| (node.clone(), *attempt)));
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
