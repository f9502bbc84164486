//! One run, or one dag's timetable, that makes the code panic costs itself alone.
//!
//! Whatever is done with a single plan is done through here. What the runs of a shard share (ledger, ready queue,
//! agenda) is never changed inside, so a panic leaves it whole; a panic anywhere else ends the term.
//!
//! A poisoned run leaves memory at once and is failed by the same pass, or by the next one, from what the database has.
//! Where even that panics it is parked until somebody changes it, and its audit trail says why.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::Timestamp;
use tenure_model::{RunKey, RunState};
use tenure_planner::RunPlan;
use tenure_store::{DagSchedule, RunHeader};

use crate::changes::PassBuilder;
use crate::owner::ShardOwner;
use crate::pass::PassError;

/// What is about to be done, and with what.
#[derive(Debug)]
pub enum Work<'a> {
    /// A run is taken into memory.
    Read(&'a RunHeader),
    /// Something is done with its plan.
    Step(Step, &'a RunPlan),
    /// A timetable is asked for its next tick.
    Tick(&'a DagSchedule),
}

/// What is done with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start,
    /// A report of an agent, or about a dispatch that came to nothing.
    Report,
    Withdraw,
    /// An attempt is given up with its node.
    Lose,
    /// Is it an orphan?
    Judge,
    Plan,
    Bind,
    /// It is ended because another step has panicked.
    Fail,
}

impl Step {
    fn doing(self) -> &'static str {
        match self {
            Self::Start => "starting",
            Self::Report => "hearing a report about",
            Self::Withdraw => "taking an attempt back from",
            Self::Lose => "giving up an attempt of",
            Self::Judge => "judging",
            Self::Plan => "planning",
            Self::Bind => "placing a task of",
            Self::Fail => "failing",
        }
    }
}

/// Called before each piece of isolated work, inside its isolation: tests plant what panics.
pub type Trap = fn(&Work<'_>);

/// The work's result, or the words of its panic.
pub(crate) fn isolated<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

impl ShardOwner {
    /// Does one thing with the plan of one run. `None`: the run is not here, or no longer, since this has poisoned it.
    pub fn with_plan<T>(
        &mut self,
        key: RunKey,
        step: Step,
        work: impl FnOnce(&mut RunPlan) -> T,
    ) -> Option<T> {
        match self.try_with_plan(key, step, work)? {
            Ok(done) => Some(done),
            Err(why) => {
                tracing::error!(run = key.0, why, "the run is failed");
                self.deps.metrics.poison_runs.inc();
                self.evict(key);
                self.poisoned.insert(key, why);
                None
            }
        }
    }

    /// The error is what users read.
    fn try_with_plan<T>(
        &mut self,
        key: RunKey,
        step: Step,
        work: impl FnOnce(&mut RunPlan) -> T,
    ) -> Option<Result<T, String>> {
        let trap = self.deps.config.trap;
        let plan = &mut self.runs.get_mut(&key)?.plan;
        let done = isolated(|| {
            trap(&Work::Step(step, plan));
            work(plan)
        });
        Some(done.map_err(|panic| format!("the scheduler panicked while {} this run: {panic}", step.doing())))
    }

    /// Ends a poisoned run as the database has it: what was in memory may be half changed. What reports had changed in
    /// it is lost with the plan, so they are to be sent again.
    pub(crate) async fn fail_poisoned(
        &mut self,
        key: RunKey,
        why: &str,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Result<(), PassError> {
        self.failed.insert(key);
        builder.forget(key);
        self.evict(key);
        let loaded = self.deps.store.load_runs(&[key]).await?;
        for (run, what) in loaded.unreadable {
            self.park_unreadable(run, what);
        }
        for snapshot in loaded.runs {
            let header = snapshot.header.clone();
            let number = self.dags.number(&header.tenant, &header.dag);
            self.dags.forget_run(number, key);
            if header.state.is_finished() || header.shard != self.shard {
                continue;
            }
            self.install(snapshot).await?;
            self.touched.remove(&key);
            let failed = self.try_with_plan(key, Step::Fail, |plan| plan.abandon(RunState::Failed, now, why));
            if let Some(Err(also)) = failed {
                self.evict(key);
                self.park(&header, format!("{why}; {also}"));
                self.dags.reschedule(number, now);
            }
        }
        self.absorb(key, builder);
        self.set_wake(key);
        Ok(())
    }

    /// A run that nothing can be done with is left as it is until somebody changes it, or a newer release reads it.
    pub(crate) fn park(&mut self, header: &RunHeader, why: String) {
        tracing::error!(run = %header.run_id, dag = %header.dag, why, "parked");
        self.parked.push((header.key, header.revision, header.state, why.clone()));
        self.unreadable.insert(header.key, why);
    }

    /// Users find in the run's audit trail why it does not move.
    pub(crate) fn tell_parked(&mut self, builder: &mut PassBuilder) {
        for (run, revision, state, why) in std::mem::take(&mut self.parked) {
            builder.parked(run, revision, state, why);
        }
    }
}
