//! What operators see of the scheduler.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tenure_model::ShardId;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabel {
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ShardLabel {
    pub shard: u16,
}

impl ShardLabel {
    pub fn of(shard: ShardId) -> Self {
        Self { shard: shard.0 }
    }
}

#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    pub(crate) passes: Counter,
    pub(crate) pass_seconds: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) failed_passes: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) poison_runs: Counter,
    pub(crate) timetable_panics: Counter,
    pub(crate) loop_panics: Counter,
    pub(crate) task_transitions: Family<StateLabel, Counter>,
    pub(crate) runs_finished: Family<StateLabel, Counter>,
    pub(crate) agent_lost_tasks: Counter,
    pub(crate) withdrawn: Counter,
    pub(crate) preempted: Counter,
    pub(crate) lateness_seconds: Histogram,
    pub(crate) active_runs: Family<ShardLabel, Gauge>,
    pub(crate) waiting_tasks: Family<ShardLabel, Gauge>,
    pub(crate) reports_recorded: Counter,
    pub(crate) report_panics: Counter,
    pub(crate) orphans_reaped: Counter,
    pub(crate) orphan_reap_errors: Counter,
    pub(crate) orphan_list_errors: Counter,
    pub(crate) orphan_panics: Counter,
}

impl SchedulerMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        // 0.1 ms … 1.6 s in steps of four, and for lateness 1 ms … 65 s.
        let short = || Histogram::new(exponential_buckets(0.0001, 4.0, 8));
        let metrics = Self {
            passes: Counter::default(),
            pass_seconds: short(),
            commit_seconds: short(),
            failed_passes: Counter::default(),
            conflicts: Counter::default(),
            poison_runs: Counter::default(),
            timetable_panics: Counter::default(),
            loop_panics: Counter::default(),
            task_transitions: Family::default(),
            runs_finished: Family::default(),
            agent_lost_tasks: Counter::default(),
            withdrawn: Counter::default(),
            preempted: Counter::default(),
            lateness_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 9)),
            active_runs: Family::default(),
            waiting_tasks: Family::default(),
            reports_recorded: Counter::default(),
            report_panics: Counter::default(),
            orphans_reaped: Counter::default(),
            orphan_reap_errors: Counter::default(),
            orphan_list_errors: Counter::default(),
            orphan_panics: Counter::default(),
        };
        let m = metrics.clone();
        registry.register("tenure_passes", "Scheduling passes", m.passes);
        registry.register("tenure_pass_seconds", "Time of a scheduling pass", m.pass_seconds);
        registry.register("tenure_commit_seconds", "Time of a pass's transaction", m.commit_seconds);
        registry.register("tenure_failed_passes", "Passes that could not be committed", m.failed_passes);
        registry.register(
            "tenure_conflicts",
            "Runs reloaded because somebody else changed them",
            m.conflicts,
        );
        registry.register(
            "tenure_poison_runs",
            "Runs that made no sense or panicked: failed or parked",
            m.poison_runs,
        );
        registry.register(
            "tenure_timetable_panics",
            "Timetables that panicked; their dags make no more runs by themselves",
            m.timetable_panics,
        );
        registry.register("tenure_scheduler_panics", "Panics of the scheduler's loop itself", m.loop_panics);
        registry.register("tenure_task_transitions", "Task instances by state entered", m.task_transitions);
        registry.register("tenure_runs_finished", "Runs by final state", m.runs_finished);
        registry.register(
            "tenure_agent_lost_tasks",
            "Running attempts that their node no longer has, or whose node fell silent",
            m.agent_lost_tasks,
        );
        registry.register(
            "tenure_attempts_preempted",
            "Attempts asked to leave for more important ones",
            m.preempted,
        );
        registry.register("tenure_attempts_withdrawn", "Attempts not claimed in time", m.withdrawn);
        registry.register(
            "tenure_due_lateness_seconds",
            "From a tick to the creation of its run",
            m.lateness_seconds,
        );
        registry.register("tenure_active_runs", "Runs that are running", m.active_runs);
        registry.register("tenure_waiting_tasks", "Scheduled tasks that a limit holds back", m.waiting_tasks);
        registry.register(
            "tenure_reports_recorded",
            "Reports written for runs whose owner is another process",
            m.reports_recorded,
        );
        registry.register(
            "tenure_report_panics",
            "Panics while recording reports whose owner is another process",
            m.report_panics,
        );
        registry.register(
            "tenure_orphan_reaped",
            "Runs ended because nothing in them could move any more",
            m.orphans_reaped,
        );
        registry.register(
            "tenure_orphan_reap_error",
            "Orphans that could not be ended",
            m.orphan_reap_errors,
        );
        registry.register(
            "tenure_orphan_list_error",
            "Searches for orphans that failed",
            m.orphan_list_errors,
        );
        registry.register("tenure_orphan_panic", "Panics while judging one orphan", m.orphan_panics);
        metrics
    }

    /// This process no longer owns the shard.
    pub(crate) fn forget_shard(&self, shard: ShardId) {
        let label = ShardLabel::of(shard);
        self.active_runs.remove(&label);
        self.waiting_tasks.remove(&label);
    }
}
