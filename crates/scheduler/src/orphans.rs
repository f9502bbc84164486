//! The safety net behind the pass: runs that are `running` and in which nothing moves or can. The pass ends its
//! runs itself; what is found here is the trace of a defect, and is ended carefully, one run at a time.

use std::time::Duration;

use jiff::Timestamp;
use tenure_lease::with_causes;
use tenure_model::{RunKey, RunState, TaskState};
use tenure_planner::RunPlan;
use tenure_store::StoreError;

use crate::changes::PassBuilder;
use crate::isolation::Step;
use crate::owner::ShardOwner;
use crate::pass::PassError;

/// Ended in one go, at most.
const LIMIT: u32 = 100;
/// How often it is looked for orphans, at most.
const EVERY: Duration = Duration::from_secs(60);

impl ShardOwner {
    /// A search that fails is counted and tried again; it stops nothing else. Only a lost fence ends the term, and a
    /// commit whose answer is lost.
    pub async fn reap_orphans(&mut self, now: Timestamp) -> Result<(), PassError> {
        let threshold = self.deps.config.orphan_threshold;
        let clock = self.deps.clock.boottime();
        if clock.saturating_since(self.carried.orphans_sought) < EVERY.min(threshold / 2) {
            return Ok(());
        }
        self.carried.orphans_sought = clock;
        let orphans = match self.deps.store.orphans(self.shard, now - threshold, LIMIT).await {
            Ok(orphans) => orphans,
            Err(error) => {
                self.deps.metrics.orphan_list_errors.inc();
                tracing::warn!(error = %with_causes(&error), "orphans could not be listed");
                return Ok(());
            }
        };
        for run in orphans {
            if self.unreadable.contains_key(&run) || self.poisoned.contains_key(&run) {
                continue;
            }
            match self.reap_orphan(run, now).await {
                Ok(true) => self.deps.metrics.orphans_reaped.inc(),
                Ok(false) => 0,
                Err(PassError::Store(error))
                    if !matches!(error, StoreError::Fenced { .. } | StoreError::Unknown { .. }) =>
                {
                    tracing::warn!(run = run.0, error = %with_causes(&error), "an orphan could not be ended");
                    // Memory is ahead of the database now.
                    self.evict(run);
                    self.stale.insert(run);
                    self.deps.metrics.orphan_reap_errors.inc()
                }
                Err(other) => return Err(other),
            };
        }
        Ok(())
    }

    /// Judges one run as it is in the database, in a transaction of its own. False: it is no orphan after all.
    async fn reap_orphan(&mut self, key: RunKey, now: Timestamp) -> Result<bool, PassError> {
        self.evict(key);
        self.stale.insert(key);
        self.load_stale(now).await?;
        self.touched.remove(&key);
        if !self.runs.contains_key(&key) {
            return Ok(false);
        }
        let Some(ended) = self.with_plan(key, Step::Judge, |plan| judge(plan, now)) else {
            self.deps.metrics.orphan_panics.inc();
            return Ok(false);
        };
        let mut builder = PassBuilder::new(now, &self.deps.config.actor);
        self.absorb(key, &mut builder);
        self.set_wake(key);
        let mut again = false;
        self.commit(&mut builder, vec![], now, &mut again).await?;
        Ok(ended && !self.stale.contains(&key)) // or somebody else has changed it meanwhile
    }
}

/// Ends the run if it is an orphan. True: it has ended, this way or by its plan.
fn judge(plan: &mut RunPlan, now: Timestamp) -> bool {
    plan.plan(now);
    // What planning has set in motion is no orphan; what it leaves as it was will never move.
    let moves = plan.tasks().any(|(_, ti)| ti.state != TaskState::None && !ti.state.is_finished());
    if plan.state() == RunState::Running && !moves && plan.next_wake().is_none() {
        plan.abandon(RunState::Failed, now, "orphaned: nothing in this run could move any more");
    }
    plan.state().is_finished()
}
