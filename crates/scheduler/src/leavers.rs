//! Attempts that a user has ended while they ran. Their row has moved on and their process may not have: the next attempt of
//! the same task waits until the old one's node says that it is gone.
//!
//! Kept in memory only: an owner that takes over in between does not know of them. What it finds out of place on a node it
//! stops as well, but does not wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_clock::BootTime;
use tenure_model::{AttemptId, NodeId, TiKey};
use tenure_store::{RunSnapshot, StoreError};

use crate::changes::PassBuilder;
use crate::departures::ASK_AGAIN_AFTER;
use crate::ledger::Limit;
use crate::owner::ShardOwner;

#[derive(Debug, Default)]
pub(crate) struct Leavers(BTreeMap<TiKey, Leaver>);

#[derive(Debug)]
struct Leaver {
    attempt: AttemptId,
    node: NodeId,
    since: BootTime,
    asked: BootTime,
}

/// A node that somebody hears, but not this owner, may hold a task up for so many thresholds of silence, and no longer.
const PATIENCE: u32 = 2;

impl Leavers {
    pub fn holds_up(&self, ti: TiKey) -> bool {
        self.0.contains_key(&ti)
    }

    /// Where they are; a node may come several times.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.0.values().map(|leaver| &leaver.node)
    }

    pub fn are_on(&self, node: &NodeId) -> bool {
        self.nodes().any(|of| of == node)
    }
}

impl ShardOwner {
    /// A user's word has ended this attempt; its process is asked to stop.
    pub fn ended_by_user(&mut self, node: NodeId, attempt: AttemptId) {
        let now = self.deps.clock.boottime();
        if let Some(ti) = self.bound_as(&node, attempt) {
            self.leavers.0.insert(ti, Leaver { attempt, node: node.clone(), since: now, asked: now });
        }
        self.deps.dispatch.stop(node, attempt);
    }

    /// Its node has said how the attempt ended, or that it does not have it.
    pub fn has_left(&mut self, ti: TiKey, attempt: AttemptId) {
        if self.leavers.0.get(&ti).is_some_and(|leaver| leaver.attempt == attempt) {
            self.leavers.0.remove(&ti);
            self.ready.free(Limit::Leaving(ti));
        }
    }

    /// A row that still names the attempt waits for its end by itself.
    pub fn is_named(&mut self, snapshot: &RunSnapshot) {
        for cached in snapshot.tis.iter().filter(|cached| cached.ti.state.is_bound()) {
            if let Some(attempt) = cached.ti.attempt {
                self.has_left(TiKey::unmapped(snapshot.header.key, cached.task), attempt);
            }
        }
    }

    /// The node holds these attempts and no others.
    pub fn have_left(&mut self, node: &NodeId, held: impl Fn(AttemptId) -> bool) {
        let gone: Vec<(TiKey, AttemptId)> = self
            .leavers
            .0
            .iter()
            .filter(|(_, leaver)| leaver.node == *node && !held(leaver.attempt))
            .map(|(ti, leaver)| (*ti, leaver.attempt))
            .collect();
        gone.into_iter().for_each(|(ti, attempt)| self.has_left(ti, attempt));
    }

    /// Asks again, and asks the nodes what they hold. A node that nobody hears for as long as would end what runs there is
    /// waited for no longer.
    pub async fn see_leavers_off(&mut self, builder: &mut PassBuilder) -> Result<(), StoreError> {
        if self.leavers.0.is_empty() {
            return Ok(());
        }
        let (now, threshold) = (self.deps.clock.boottime(), self.deps.config.heartbeat_threshold);
        let executor = self.deps.dispatch.executor();
        for leaver in self.leavers.0.values_mut() {
            if now.saturating_since(leaver.asked) >= ASK_AGAIN_AFTER && executor.link(&leaver.node).is_some()
            {
                leaver.asked = now;
                builder.stops.push((leaver.node.clone(), leaver.attempt));
                self.watch.ask_again(&leaver.node);
            }
        }
        let waited = |leaver: &Leaver| now.saturating_since(leaver.since);
        let unheard: Vec<NodeId> = self
            .leavers
            .0
            .values()
            .filter(|leaver| waited(leaver) > threshold && executor.link(&leaver.node).is_none())
            .map(|leaver| leaver.node.clone())
            .collect();
        let present = match unheard.is_empty() {
            true => vec![],
            false => self.deps.store.present(&unheard, threshold).await?,
        };
        let lost = |leaver: &Leaver| unheard.contains(&leaver.node) && !present.contains(&leaver.node);
        let longest: Duration = threshold * PATIENCE;
        let given_up: Vec<(TiKey, AttemptId)> = self
            .leavers
            .0
            .iter()
            .filter(|(_, leaver)| lost(leaver) || waited(leaver) > longest)
            .map(|(ti, leaver)| (*ti, leaver.attempt))
            .collect();
        given_up.into_iter().for_each(|(ti, attempt)| self.has_left(ti, attempt));
        Ok(())
    }

    /// The task instance that is bound as this attempt, as far as this owner knows.
    fn bound_as(&self, node: &NodeId, attempt: AttemptId) -> Option<TiKey> {
        let bound = |ti: &TiKey| self.runs.get(&ti.run)?.plan.task(ti.task)?.attempt;
        self.ledger.held_on(node).find(|ti| bound(ti) == Some(attempt))
    }
}
