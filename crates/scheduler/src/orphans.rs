//! The safety net behind the pass: runs that are `running` and in which nothing moves or can. The pass ends its
//! runs itself; what is found here is the trace of a defect, and is ended carefully, one run at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use jiff::Timestamp;
use tenure_lease::with_causes;
use tenure_model::{RunKey, RunState, TaskState};
use tenure_store::StoreError;

use crate::changes::PassBuilder;
use crate::owner::ShardOwner;
use crate::pass::{PassError, panic_text};

/// Ended in one go, at most.
const LIMIT: u32 = 100;
/// How often it is looked for orphans, at most.
const EVERY: Duration = Duration::from_secs(60);

impl ShardOwner {
    /// A search that fails is counted and tried again; it stops nothing else. Only a lost fence ends the term.
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
            if self.unreadable.contains_key(&run) {
                continue;
            }
            match self.reap_orphan(run, now).await {
                Ok(true) => self.deps.metrics.orphans_reaped.inc(),
                Ok(false) => 0,
                Err(PassError::Store(error)) if !matches!(error, StoreError::Fenced { .. }) => {
                    tracing::warn!(run = run.0, error = %with_causes(&error), "an orphan could not be ended");
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
        let Some(run) = self.runs.get_mut(&key) else { return Ok(false) };
        let planner = self.deps.config.planner;
        let judged = catch_unwind(AssertUnwindSafe(|| {
            planner(&mut run.plan, now);
            // What planning has set in motion is no orphan; what it leaves as it was will never move.
            let moves =
                run.plan.tasks().any(|(_, ti)| ti.state != TaskState::None && !ti.state.is_finished());
            if run.plan.state() == RunState::Running && !moves && run.plan.next_wake().is_none() {
                run.plan.abandon(RunState::Failed, now, "orphaned: nothing in this run could move any more");
            }
            run.plan.state().is_finished()
        }));
        let ended = match judged {
            Ok(ended) => ended,
            Err(panic) => {
                tracing::error!(
                    run = key.0,
                    panic = panic_text(&*panic),
                    "judging an orphan panicked; parked"
                );
                self.deps.metrics.orphan_panics.inc();
                self.evict(key);
                self.unreadable.insert(key, "judging it as an orphan panicked".into());
                return Ok(false);
            }
        };
        let mut builder = PassBuilder::new(now, &self.deps.config.actor);
        self.absorb(key, &mut builder);
        self.set_wake(key);
        let mut again = false;
        self.commit(&mut builder, vec![], now, &mut again).await?;
        Ok(ended)
    }
}
