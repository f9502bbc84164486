//! More important tasks that find no room ask less important ones to leave. Off unless the settings say otherwise.
//!
//! Whoever leaves does so as from a node that is drained: what is not claimed is taken back, what runs is asked to stop
//! and placed again under a new id, on the same try. Nothing is reserved for whoever they leave for: room that falls
//! free goes to the most important first, as always.
//!
//! What counts is the priority that a task was given, not its weight: otherwise the first tasks of a long dag, which
//! weigh as much as all that follow, would throw out the last ones of another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::BootTime;
use tenure_model::{AttemptId, NodeId, TaskState, TiKey};
use tenure_placement::Occupant;

use crate::changes::PassBuilder;
use crate::departures::ASK_AGAIN_AFTER;
use crate::owner::ShardOwner;

/// Room is made for so many at a time; the rest wait for the next look.
const MOST_AT_ONCE: usize = 64;
/// Between two looks at who should leave: what was freed by the last one must have had time to be used.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Who has been asked to leave.
#[derive(Debug, Default)]
pub(crate) struct Preemption {
    leaving: BTreeMap<AttemptId, Leaving>,
    looked: Option<BootTime>,
}

#[derive(Clone, Debug)]
struct Leaving {
    ti: TiKey,
    node: NodeId,
    asked: BootTime,
}

impl ShardOwner {
    pub fn make_room(&mut self, builder: &mut PassBuilder, now: Timestamp) {
        if !self.deps.config.preemption {
            return;
        }
        let clock = self.deps.clock.boottime();
        let lately = |at: BootTime| clock.saturating_since(at) < LOOK_EVERY;
        self.remind_leaving(builder, clock);
        // Whoever is asked to leave makes room for somebody: who else has to is seen when they have left.
        if !self.preemption.leaving.is_empty() || self.preemption.looked.is_some_and(lately) {
            return;
        }
        let waiting = self.waiting_for_room();
        if waiting.is_empty() {
            return;
        }
        self.preemption.looked = Some(clock);
        for (ti, attempt, node) in self.who_leaves(&waiting) {
            let queued = self.state_of(ti) == Some(TaskState::Queued);
            tracing::info!(%attempt, %node, "asked to leave for a more important task");
            self.deps.metrics.preempted.inc();
            if queued {
                self.take_back(ti, attempt, &node, "it made room for a more important task", builder, now);
            } else {
                builder.stops.push((node.clone(), attempt));
                self.preemption.leaving.insert(attempt, Leaving { ti, node, asked: clock });
            }
        }
    }

    /// Forgets those that have left, and asks the others again now and then.
    fn remind_leaving(&mut self, builder: &mut PassBuilder, clock: BootTime) {
        let mut leaving = std::mem::take(&mut self.preemption.leaving);
        leaving.retain(|attempt, leaving| {
            let instance = self.runs.get(&leaving.ti.run).and_then(|run| run.plan.task(leaving.ti.task));
            instance.is_some_and(|instance| instance.attempt == Some(*attempt) && instance.state.is_bound())
        });
        for (attempt, leaving) in &mut leaving {
            if clock.saturating_since(leaving.asked) >= ASK_AGAIN_AFTER {
                builder.stops.push((leaving.node.clone(), *attempt));
                leaving.asked = clock;
            }
        }
        self.preemption.leaving = leaving;
    }

    /// Tasks that only a node with room is missing for, the most important first.
    fn waiting_for_room(&self) -> Vec<(i64, TiKey)> {
        let of_task = |(run, task)| {
            let priority = i64::from(self.runs.get(&run)?.plan.spec(task)?.priority);
            Some((priority, TiKey::unmapped(run, task)))
        };
        let waiting = self.ready.waiting_for_room(MOST_AT_ONCE);
        let mut waiting: Vec<(i64, TiKey)> = waiting
            .filter(|candidate| !self.dags.get(candidate.dag).is_paused())
            .filter_map(|candidate| of_task((candidate.run, candidate.task)))
            .filter(|(_, ti)| self.state_of(*ti) == Some(TaskState::Scheduled))
            .collect();
        waiting.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        waiting.truncate(MOST_AT_ONCE);
        waiting
    }

    fn who_leaves(&self, waiting: &[(i64, TiKey)]) -> Vec<(TiKey, AttemptId, NodeId)> {
        let highest = waiting.first().map_or(i64::MIN, |(priority, _)| *priority);
        let mut held: BTreeMap<AttemptId, TiKey> = BTreeMap::new();
        let mut occupants: BTreeMap<NodeId, Vec<Occupant>> = BTreeMap::new();
        for (ti, node, wish) in self.ledger.held() {
            let instance = self.runs.get(&ti.run).and_then(|run| run.plan.task(ti.task));
            let movable = |state| matches!(state, TaskState::Queued | TaskState::Running);
            let attempt = instance.filter(|instance| movable(instance.state)).and_then(|one| one.attempt);
            if let Some(attempt) = attempt.filter(|_| wish.priority < highest) {
                let occupant = Occupant { attempt, priority: wish.priority, request: wish.request.clone() };
                occupants.entry(node.clone()).or_default().push(occupant);
                held.insert(attempt, ti);
            }
        }
        if held.is_empty() {
            return vec![];
        }
        // Each makes its plans on what the ones before it leave.
        let mut after = self.ledger.cluster().clone();
        let mut leaving = vec![];
        let mut hopeless: BTreeSet<_> = BTreeSet::new();
        for (priority, ti) in waiting {
            let Some(request) = self.wish(ti.run, ti.task).map(|wish| wish.request) else { continue };
            if hopeless.contains(&request) {
                continue;
            }
            if let Some(node) = after.attainable(&request) {
                after.reserve(&node, &request);
                continue;
            }
            let Some(eviction) = after.evict_for(&request, *priority, &occupants) else {
                hopeless.insert(request);
                continue;
            };
            let there = occupants.get_mut(&eviction.node).expect("whoever leaves was there");
            for gone in there.extract_if(.., |one| eviction.attempts.contains(&one.attempt)) {
                after.release(&eviction.node, &gone.request);
                leaving.push((held[&gone.attempt], gone.attempt, eviction.node.clone()));
            }
            after.reserve(&eviction.node, &request);
        }
        leaving
    }

    fn state_of(&self, ti: TiKey) -> Option<TaskState> {
        Some(self.runs.get(&ti.run)?.plan.task(ti.task)?.state)
    }
}
