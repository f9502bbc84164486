//! Are the nodes that run something of this shard still there? Two ways to know that they are not, and both do no
//! harm: the node itself says that it no longer holds an attempt, or nobody has heard from it for long enough, and
//! this owner has been watching all the while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::BootTime;
use tenure_dispatch::Binding;
use tenure_model::{AttemptId, FailReason, Held, NodeId, Outcome, RunState, TaskState, TiKey};
use tenure_store::StoreError;

use crate::changes::PassBuilder;
use crate::inbox::Inventory;
use crate::isolation::Step;
use crate::owner::ShardOwner;

/// What an owner has seen of the nodes.
#[derive(Debug)]
pub(crate) struct NodeWatch {
    /// Watching without a break since then: what was silent before is not held against anybody.
    since: BootTime,
    last_look: BootTime,
    /// The link on which each node that runs something was last met.
    met: BTreeMap<NodeId, Met>,
    /// Somebody may have come, or has still to answer: without that a look costs nothing, however many nodes there are.
    meeting_due: bool,
    /// Links have changed since the last round.
    round_due: bool,
    /// When this replica, or another one, last heard of each node that runs something: also of one whose link is gone.
    heard: BTreeMap<NodeId, BootTime>,
}

impl NodeWatch {
    pub fn since(now: BootTime) -> Self {
        let (met, heard) = (BTreeMap::new(), BTreeMap::new());
        Self { since: now, last_look: now, met, meeting_due: true, round_due: true, heard }
    }

    /// Since when this owner has been watching without a break.
    pub fn watching_since(&self) -> BootTime {
        self.since
    }

    /// Links have changed.
    pub fn links_changed(&mut self) {
        self.meeting_due = true;
        self.round_due = true;
    }

    /// Whether it is time to see who is silent and who is missing: once a tick, whatever else there is to look at, and when
    /// somebody has come or gone.
    pub fn is_round_due(&mut self, now: BootTime, tick: Duration) -> bool {
        std::mem::take(&mut self.round_due) || now.saturating_since(self.last_look) >= tick / 2
    }

    /// What the node holds is to be asked for once more.
    pub fn ask_again(&mut self, node: &NodeId) {
        if let Some(met) = self.met.get_mut(node) {
            met.asked = false;
        }
        self.meeting_due = true;
    }

    /// This owner has had a link to the node while it had something there.
    pub fn has_met(&self, node: &NodeId) -> bool {
        self.met.contains_key(node)
    }

    /// Something of this shard comes to the node, on this link. What it holds already need not be asked for: nothing of this
    /// shard that anybody knows of.
    pub fn use_node(&mut self, node: &NodeId, link: u64) {
        if !self.met.contains_key(node) {
            self.met.insert(node.clone(), Met { link, asked: true });
        }
    }

    pub fn hear(&mut self, node: &NodeId, at: BootTime) {
        let heard = self.heard.entry(node.clone()).or_insert(at);
        *heard = at.max(*heard);
    }

    /// For how long nobody has heard of the node, as far as this owner has watched.
    fn silence(&self, node: &NodeId, now: BootTime) -> Duration {
        let heard = self.heard.get(node).map_or(self.since, |heard| self.since.max(*heard));
        now.saturating_since(heard)
    }

    /// A process that was frozen or starved has heard nobody, which says nothing about them.
    fn look(&mut self, now: BootTime, at_most: Duration) {
        if now.saturating_since(self.last_look) > at_most {
            self.since = now;
        }
        self.last_look = now;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Met {
    link: u64,
    /// It was asked for its inventory, and has answered or still may.
    asked: bool,
}

/// An owner that goes round this much later than it should was not watching.
const BREAK: Duration = Duration::from_secs(5);

impl ShardOwner {
    /// Every node of this shard's that has come or come back is offered what nobody has claimed there, since whoever was to
    /// deliver it may have died, or its connection; delivering twice is harmless. And it is asked what it holds: the answer
    /// comes by mail. The others are asked for all shards of this process together (`muster.rs`).
    pub fn meet_nodes(&mut self) {
        if !std::mem::take(&mut self.watch.meeting_due) {
            return;
        }
        let executor = Arc::clone(self.deps.dispatch.executor());
        let (ledger, leavers) = (&self.ledger, &self.leavers);
        self.watch.met.retain(|node, _| ledger.is_in_use(node) || leavers.are_on(node));
        let ours = self.ledger.nodes_in_use().chain(self.leavers.nodes());
        let ours: BTreeSet<NodeId> = ours.cloned().collect();
        for node in ours {
            let Some(link) = executor.link(&node) else { continue };
            let met = self.watch.met.insert(node.clone(), Met { link: link.id, asked: true });
            let met = met.filter(|met| met.link == link.id);
            if met.is_none() {
                let queued = self.queued_on(&node).into_iter();
                let again: Vec<Binding> =
                    queued.filter_map(|(ti, _)| self.binding(ti.run, ti.task)).collect();
                self.reoffer.extend(again);
            }
            if met.is_some_and(|met| met.asked) {
                continue;
            }
            let (ran, inbox) = (self.running_on(&node), self.inbox.clone());
            let executor = Arc::clone(&executor);
            tokio::spawn(async move {
                let held = executor.inventory(&node).await;
                inbox.put_inventory(Inventory { node, ran, held });
            });
        }
    }

    /// What ran there when the node was asked and it does not hold is positively gone.
    pub async fn compare_inventory(
        &mut self,
        inventory: Inventory,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Inventory { node, ran, held } = inventory;
        let Some(held) = held else {
            if let Some(met) = self.watch.met.get_mut(&node) {
                met.asked = false; // until the next look
                self.watch.meeting_due = true;
            }
            return Ok(());
        };
        let has: BTreeSet<AttemptId> = held.iter().map(|held| held.attempt).collect();
        self.have_left(&node, |attempt| has.contains(&attempt));
        for (ti, attempt) in ran {
            if !has.contains(&attempt) {
                self.lose(ti, attempt, &FailReason::Lost, now);
            }
        }
        let ours = held.into_iter().filter(|held| held.scope == self.tenure.scope().as_str()).collect();
        self.stop_unwanted(node, ours, builder).await
    }

    /// What a node holds of this shard and nobody wants is to be stopped.
    pub async fn stop_unwanted(
        &mut self,
        node: NodeId,
        held: Vec<Held>,
        builder: &mut PassBuilder,
    ) -> Result<(), StoreError> {
        let mut unknown = vec![];
        for held in held {
            match self.runs.get(&held.ti.run) {
                Some(run) => {
                    let wanted = run.plan.task(held.ti.task);
                    if wanted.is_none_or(|ti| ti.attempt != Some(held.attempt) || !ti.state.is_bound()) {
                        builder.stops.push((node.clone(), held.attempt));
                    }
                }
                None if self.unreadable.contains_key(&held.ti.run) => {} // nobody knows what is wanted
                None => unknown.push(held),
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        // Most likely the run has ended. But the database may have been divided anew since.
        let keys: Vec<_> = unknown.iter().map(|held| held.ti.run).collect();
        let loaded = self.deps.store.load_runs(&keys).await?;
        let elsewhere = |held: &Held| {
            let header = loaded.runs.iter().map(|run| &run.header).find(|header| header.key == held.ti.run);
            header.is_some_and(|header| header.shard != self.shard || header.state == RunState::Running)
                || loaded.unreadable.iter().any(|(run, _)| *run == held.ti.run)
        };
        let unwanted = unknown.iter().filter(|held| !elsewhere(held));
        builder.stops.extend(unwanted.map(|held| (node.clone(), held.attempt)));
        Ok(())
    }

    /// Ends what ran on nodes that nobody has heard for longer than the threshold.
    pub async fn reap_silent(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let (clock, threshold) = (self.deps.clock.boottime(), self.deps.config.heartbeat_threshold);
        self.watch.look(clock, self.deps.config.tick + BREAK);
        let ledger = &self.ledger;
        self.watch.heard.retain(|node, _| ledger.is_in_use(node));
        for node in ledger.nodes_in_use() {
            if let Some(link) = self.deps.dispatch.executor().link(node) {
                self.watch.hear(node, link.heard);
            }
        }
        // Another replica may hear what this one does not. It is asked long before the threshold, because afterwards
        // nobody remembers when it last did.
        let quiet = |node: &NodeId| self.watch.silence(node, clock) > threshold / 3;
        let quiet: Vec<NodeId> = ledger.nodes_in_use().filter(|node| quiet(node)).cloned().collect();
        if quiet.is_empty() {
            return Ok(());
        }
        for node in self.deps.store.present(&quiet, threshold).await? {
            self.watch.hear(&node, clock);
        }
        let silence = |node: NodeId| (self.watch.silence(&node, clock), node);
        let silent: Vec<(Duration, NodeId)> =
            quiet.into_iter().map(silence).filter(|(silent, _)| *silent > threshold).collect();
        for (silent, node) in silent {
            tracing::warn!(%node, ?silent, "its agent is silent; what ran there is lost");
            let reason = FailReason::AgentLost { silent_ms: silent.as_millis() as u64 };
            for (ti, attempt) in self.running_on(&node) {
                self.lose(ti, attempt, &reason, now);
            }
        }
        Ok(())
    }

    /// Attempts that began on the node and have not ended. A queued one may still be on its way there; its claim's
    /// deadline looks after it.
    pub fn running_on(&self, node: &NodeId) -> Vec<(TiKey, AttemptId)> {
        self.bound_on(node, |state| matches!(state, TaskState::Running | TaskState::Restarting))
    }

    pub fn queued_on(&self, node: &NodeId) -> Vec<(TiKey, AttemptId)> {
        self.bound_on(node, |state| state == TaskState::Queued)
    }

    fn bound_on(&self, node: &NodeId, fits: impl Fn(TaskState) -> bool) -> Vec<(TiKey, AttemptId)> {
        let on_node = |ti: &TiKey| {
            let instance = self.runs.get(&ti.run)?.plan.task(ti.task)?;
            instance.attempt.filter(|_| fits(instance.state))
        };
        self.ledger.held_on(node).filter_map(|ti| on_node(&ti).map(|attempt| (ti, attempt))).collect()
    }

    /// Each attempt by itself: one that makes the plan panic costs its own run.
    fn lose(&mut self, ti: TiKey, attempt: AttemptId, reason: &FailReason, now: Timestamp) {
        let instance = self.runs.get(&ti.run).and_then(|run| run.plan.task(ti.task));
        let current = instance.is_some_and(|instance| {
            instance.attempt == Some(attempt)
                && matches!(instance.state, TaskState::Running | TaskState::Restarting)
        });
        if !current {
            return; // it has ended since, or somebody has cleared it
        }
        let lost = Outcome::Failed { reason: reason.clone() };
        if self.with_plan(ti.run, Step::Lose, |plan| plan.end(ti.task, attempt, &lost, now)).is_some() {
            self.deps.metrics.agent_lost_tasks.inc();
            self.touched.insert(ti.run);
        } else {
            self.deps.metrics.orphan_panics.inc();
        }
    }
}
