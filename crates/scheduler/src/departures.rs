//! Attempts that have to leave their node: an operator empties it, or it is gone before they were claimed.
//!
//! Two ways out. What has not been claimed is taken back at once and placed elsewhere under a new id: whoever still
//! claims the old one is refused. What runs is asked to stop, and goes elsewhere when its node says that it has:
//! two attempts of one task never run side by side.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::BootTime;
use tenure_model::{AttemptId, NodeId, TiKey};
use tenure_store::{DrainStage, StoreError};

use crate::changes::PassBuilder;
use crate::isolation::Step;
use crate::owner::ShardOwner;

/// A request to stop may be lost with a link; saying it twice is harmless.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A link that breaks and comes back at once is no reason to move anything.
const GRACE: Duration = Duration::from_secs(1);
/// Replicas that hear a node say so every five seconds: whoever has not been named for so long is heard by nobody.
const HEARD_WITHIN: Duration = Duration::from_secs(11);

/// What an owner knows of nodes that its attempts should leave.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// Nodes that are being emptied, and how far that is.
    drains: BTreeMap<NodeId, DrainStage>,
    /// When each attempt was last asked to stop.
    asked: BTreeMap<AttemptId, BootTime>,
    /// Nodes that cannot be reached and hold something unclaimed, and when to see whether anybody else hears them.
    missing: BTreeMap<NodeId, BootTime>,
}

impl Departures {
    pub fn set_drains(&mut self, drains: &BTreeMap<NodeId, DrainStage>) {
        self.drains.clone_from(drains);
    }
}

impl ShardOwner {
    pub fn empty_drained(&mut self, builder: &mut PassBuilder, now: Timestamp) {
        if self.departures.drains.is_empty() {
            self.departures.asked.clear();
            return;
        }
        let clock = self.deps.clock.boottime();
        let before = std::mem::take(&mut self.departures.asked);
        let drains = self.departures.drains.clone();
        for (node, stage) in drains {
            for (ti, attempt) in self.queued_on(&node) {
                self.take_back(ti, attempt, &node, "its node is being drained", builder, now);
            }
            if stage < DrainStage::Stopping {
                continue;
            }
            for (_, attempt) in self.running_on(&node) {
                let asked = before.get(&attempt).copied();
                let asked = asked.filter(|at| clock.saturating_since(*at) < ASK_AGAIN_AFTER);
                if asked.is_none() {
                    builder.stops.push((node.clone(), attempt));
                }
                self.departures.asked.insert(attempt, asked.unwrap_or(clock));
            }
        }
    }

    /// Unclaimed attempts on nodes that nobody hears need not wait for their claim's deadline. A node that this owner
    /// has not met yet gets the time in which any replica would have named it; and so does everybody after a break.
    pub async fn leave_missing(
        &mut self,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let clock = self.deps.clock.boottime();
        let missing = self.missing_with_unclaimed();
        let patience = |node: &NodeId| match self.watch.has_met(node) {
            true => clock + GRACE,
            false => self.watch.watching_since() + HEARD_WITHIN,
        };
        let before = std::mem::take(&mut self.departures.missing);
        // Many nodes may go at once: not all of their work should move in the same moment.
        let due = |node: &NodeId| {
            before.get(node).copied().unwrap_or_else(|| patience(node) + self.deps.entropy.jitter(GRACE))
        };
        let missing: BTreeMap<NodeId, BootTime> =
            missing.into_iter().map(|node| (node.clone(), due(&node))).collect();
        let asked: Vec<NodeId> =
            missing.iter().filter(|(_, due)| **due <= clock).map(|(node, _)| node.clone()).collect();
        self.departures.missing = missing;
        if asked.is_empty() {
            return Ok(());
        }
        // Another replica may hear what this one does not; then the claim's deadline decides, as always.
        let present = self.deps.store.present(&asked, HEARD_WITHIN).await?;
        for node in asked.into_iter().filter(|node| !present.contains(node)) {
            let queued = self.queued_on(&node);
            tracing::info!(%node, attempts = queued.len(), "no replica hears this node; placing elsewhere");
            for (ti, attempt) in queued {
                self.take_back(ti, attempt, &node, "its node is not connected", builder, now);
            }
        }
        Ok(())
    }

    fn missing_with_unclaimed(&self) -> Vec<NodeId> {
        let executor = self.deps.dispatch.executor();
        let missing = self.ledger.nodes_in_use().filter(|node| executor.link(node).is_none());
        missing.filter(|node| !self.queued_on(node).is_empty()).cloned().collect()
    }

    pub(crate) fn take_back(
        &mut self,
        ti: TiKey,
        attempt: AttemptId,
        node: &NodeId,
        why: &str,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) {
        if self.with_plan(ti.run, Step::Withdraw, |plan| plan.withdraw(ti.task, why, now)).is_some() {
            builder.stops.push((node.clone(), attempt));
            self.deps.metrics.withdrawn.inc();
            self.touched.insert(ti.run);
        }
    }
}
