//! Why tasks wait, for the tasks of a few runs at a time.
//!
//! Nothing of this is stored: a million waiting tasks are a million rows that would change with every slot that falls
//! free. What is asked for is computed, from a handful of reads however many tasks are on the page.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tenure_model::retry::{self, TryName};
use tenure_model::{DagSpec, RunKey, RunState, TaskId, TaskInstance, TaskSpec, TaskState, TiKey};
use tenure_placement::{Cluster, Holdup, Policy};
use tenure_store::{CachedTi, DagActivity, RunHeader, RunSnapshot, Store, StoreError};

use crate::picture::{Picture, specs_of};

/// More names than this do not fit into a line.
const MOST_NAMES: usize = 3;

#[derive(Debug, Default)]
pub struct Reasons {
    /// Of task instances that are not finished and not bound to a node.
    pub tasks: BTreeMap<TiKey, String>,
    /// Of runs that have not begun.
    pub runs: BTreeMap<RunKey, String>,
}

impl Reasons {
    /// Why the tasks of these runs wait. At most eight reads.
    pub async fn of(
        store: &(impl Store + ?Sized),
        runs: &[RunSnapshot],
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let waits = |run: &&RunSnapshot| {
            !run.header.state.is_finished() && run.tis.iter().any(|cached| is_pending(cached.ti.state))
        };
        let runs: Vec<&RunSnapshot> = runs.iter().filter(waits).collect();
        if runs.is_empty() {
            return Ok(Self::default());
        }
        let dags: BTreeSet<_> =
            runs.iter().map(|run| (run.header.tenant.clone(), run.header.dag.clone())).collect();
        let dags: Vec<_> = dags.into_iter().collect();
        let versions = runs.iter().map(|run| (&run.header.tenant, &run.header.dag, run.header.version));
        let (picture, specs, activity) =
            futures::try_join!(Picture::read(store), specs_of(store, versions), store.dag_activity(&dags),)?;
        let cluster = picture.cluster(Policy::default());
        let mut reasons = Self::default();
        for run in runs {
            let header = &run.header;
            let activity = activity.iter().find(|dag| dag.tenant == header.tenant && dag.dag == header.dag);
            let version = (header.tenant.clone(), header.dag.clone(), header.version);
            let (Some(activity), Some(spec)) = (activity, specs.get(&version)) else { continue };
            let scene = Scene { picture: &picture, cluster: &cluster, activity, spec, run, now };
            scene.tell(&mut reasons);
        }
        Ok(reasons)
    }
}

fn is_pending(state: TaskState) -> bool {
    !state.is_finished() && !state.is_bound()
}

/// Why a run has not begun.
pub fn why_run_waits(
    header: &RunHeader,
    spec: &DagSpec,
    activity: &DagActivity,
    now: Timestamp,
) -> Option<String> {
    match header.state {
        RunState::Queued if activity.paused => Some("its dag is paused".into()),
        RunState::Queued if header.run_after > now => Some(format!("starts at {}", header.run_after)),
        RunState::Queued => {
            Some(runs_are_full(spec, activity).unwrap_or_else(|| "it is about to start".into()))
        }
        RunState::Running | RunState::Success | RunState::Failed => None,
    }
}

/// Why a dag's next run would not begin.
pub(crate) fn runs_are_full(spec: &DagSpec, activity: &DagActivity) -> Option<String> {
    let most = spec.max_active_runs;
    (activity.running_runs >= most).then(|| format!("its dag has max_active_runs ({most}) running"))
}

/// One run and all that may hold its tasks up.
struct Scene<'a> {
    picture: &'a Picture,
    cluster: &'a Cluster,
    activity: &'a DagActivity,
    spec: &'a DagSpec,
    run: &'a RunSnapshot,
    now: Timestamp,
}

impl Scene<'_> {
    fn tell(&self, reasons: &mut Reasons) {
        let waits = why_run_waits(&self.run.header, self.spec, self.activity, self.now);
        let states: BTreeMap<&TaskId, TaskState> =
            self.run.tis.iter().map(|cached| (&cached.task_id, cached.ti.state)).collect();
        let specs: BTreeMap<&TaskId, &TaskSpec> =
            self.spec.tasks.iter().map(|task| (&task.id, task)).collect();
        let active = self.run.tis.iter().filter(|cached| cached.ti.state.is_bound()).count() as u32;
        // Tasks of one kind ask for the same: what holds one up holds up all of them.
        let mut known: BTreeMap<&TaskId, String> = BTreeMap::new();
        for cached in self.run.tis.iter().filter(|cached| is_pending(cached.ti.state)) {
            let reason = match (&waits, cached.ti.state) {
                (Some(waits), _) => format!("its run waits: {waits}"),
                (None, TaskState::Scheduled) => match specs.get(&cached.task_id) {
                    Some(spec) => known
                        .entry(&cached.task_id)
                        .or_insert_with(|| self.why_ready_waits(spec, active))
                        .clone(),
                    None => continue,
                },
                (None, TaskState::UpForRetry) => match specs.get(&cached.task_id) {
                    Some(spec) => self.next_try(cached, spec),
                    None => continue,
                },
                (None, _) => match specs.get(&cached.task_id) {
                    Some(spec) => upstream(spec, &states, &cached.ti),
                    None => continue,
                },
            };
            let key = TiKey { run: self.run.header.key, task: cached.task, map_index: cached.map_index };
            reasons.tasks.insert(key, reason);
        }
        reasons.runs.extend(waits.map(|waits| (self.run.header.key, waits)));
    }

    fn why_ready_waits(&self, spec: &TaskSpec, active: u32) -> String {
        let RunHeader { tenant, dag, .. } = &self.run.header;
        let of_task = |cached: &&CachedTi| cached.task_id == spec.id && cached.ti.state.is_bound();
        let in_run = self.run.tis.iter().filter(of_task).count() as u32;
        let most = self.spec.max_active_tasks;
        let holdup = if self.activity.paused {
            Some(Holdup::Paused)
        } else if active >= most {
            Some(Holdup::Run { most: Some(most) })
        } else if spec.max_active_per_run.is_some_and(|most| in_run >= most) {
            Some(Holdup::TaskInRun { task: spec.id.clone() })
        } else {
            self.picture.holdup(self.cluster, tenant, dag, spec)
        };
        // An owner may still be about to get its share of what is free.
        holdup.map_or_else(|| "there is room: it is about to be placed".into(), |holdup| holdup.to_string())
    }

    fn next_try(&self, cached: &CachedTi, spec: &TaskSpec) -> String {
        let header = &self.run.header;
        let name = TryName {
            dag: &header.dag,
            run: &header.run_id,
            logical_date: header.logical_date,
            try_number: cached.ti.try_number,
        };
        let due = cached.ti.ended_at.and_then(|ended| ended.checked_add(retry::delay(spec, name)).ok());
        let because = cached.ti.reason.as_ref().map_or_else(String::new, |why| format!("{why}; "));
        match due {
            Some(due) => format!("{because}next try at {}", due.round(jiff::Unit::Second).unwrap_or(due)),
            None => format!("{because}another try follows"),
        }
    }
}

/// `waits for 2 of 3 upstream tasks: extract, check`.
fn upstream(spec: &TaskSpec, states: &BTreeMap<&TaskId, TaskState>, ti: &TaskInstance) -> String {
    let unfinished = |need: &&TaskId| states.get(need).is_some_and(|state| !state.is_finished());
    let waiting: Vec<&str> = spec.needs.iter().filter(unfinished).map(TaskId::as_str).collect();
    if waiting.is_empty() {
        return match spec.depends_on_past || spec.wait_for_downstream {
            true => "waits for the same task in the run before".into(),
            false => ti.reason.clone().unwrap_or_else(|| "it is about to be looked at".into()),
        };
    }
    let (count, all) = (waiting.len(), spec.needs.len());
    let plural = if all == 1 { "" } else { "s" };
    let names = waiting.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
    let more = if count > MOST_NAMES { ", …" } else { "" };
    format!("waits for {count} of {all} upstream task{plural}: {names}{more}")
}

#[cfg(test)]
pub(crate) mod tests;
