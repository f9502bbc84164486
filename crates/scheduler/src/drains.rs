//! Drains of nodes, seen through by whoever leads the controller, each under a lease of its own: `node/<id>/drain`.
//!
//! The drain itself stands in the node's row, and every owner of a shard obeys it from the moment it was asked for.
//! What is decided here is its next stage: «time is up» when the deadline has passed, «drained» when nothing is bound
//! there any more. Each is written once, under the fence of the drain's scope; whoever takes over reads the row and
//! goes on. While another program holds the scope, a drain stays where it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::Clock;
use tenure_lease::{Campaign, Elector, Tenure, with_causes};
use tenure_model::{NodeId, ShardId};
use tenure_store::{Drain, DrainStage, SharedStore, StoreError, drain_scope};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::controller::ControllerParts;

const COMPONENT: &str = "drain";
/// Between two looks while nodes are being emptied, and while none is.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(5);
/// A wake is about anything at all; the rows are not read more often than this.
const AT_MOST_EVERY: Duration = Duration::from_millis(250);
/// By then every owner has seen that the node takes nothing more.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// A drain, and how many attempts are still bound there.
#[derive(Clone, Debug, PartialEq)]
struct Standing {
    drain: Drain,
    left: u32,
}

/// What comes next in a drain.
#[derive(Debug, PartialEq)]
enum Next {
    Stage(DrainStage),
    /// Nothing before then, unless something changes.
    Wait(Duration),
}

impl Standing {
    fn next(&self, now: Timestamp) -> Next {
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let settled = until(self.drain.since + SETTLED_AFTER);
        match self.drain.stage {
            DrainStage::Finishing | DrainStage::Stopping if self.left == 0 && settled.is_zero() => {
                Next::Stage(DrainStage::Drained)
            }
            DrainStage::Finishing if self.left == 0 => Next::Wait(settled),
            DrainStage::Finishing if self.drain.deadline <= now => Next::Stage(DrainStage::Stopping),
            DrainStage::Finishing => Next::Wait(until(self.drain.deadline)),
            DrainStage::Stopping | DrainStage::Drained => Next::Wait(BUSY),
        }
    }
}

/// A drain that this process sees through. Dropping it gives its scope back.
struct Going {
    news: watch::Sender<Standing>,
    task: AbortOnDropHandle<()>,
}

/// Never ends by itself; dropped when the controller's term is over.
pub(crate) async fn carry_out(parts: &ControllerParts) {
    let mut going: BTreeMap<NodeId, Going> = BTreeMap::new();
    let mut wakes = parts.store.wakes(ShardId(0));
    loop {
        wakes.mark_unchanged();
        match survey(&parts.store).await {
            Ok(drains) => follow(parts, &mut going, drains),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "drains cannot be read; trying again");
            }
        }
        let pause = if going.is_empty() { IDLE } else { BUSY };
        tokio::time::sleep(AT_MOST_EVERY).await;
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => {}
            Ok(()) = wakes.changed() => {}
        }
    }
}

/// Drains that are not over.
async fn survey(store: &SharedStore) -> Result<BTreeMap<NodeId, Standing>, StoreError> {
    let going = |drain: &Drain| drain.stage != DrainStage::Drained;
    let mut drains: BTreeMap<NodeId, Standing> = BTreeMap::new();
    for node in store.list_nodes().await? {
        if let Some(drain) = node.drain.filter(going) {
            drains.insert(node.node, Standing { drain, left: 0 });
        }
    }
    if drains.is_empty() {
        return Ok(drains);
    }
    for bound in store.occupancy().await? {
        if let Some(standing) = drains.get_mut(&bound.node) {
            standing.left += bound.count;
        }
    }
    Ok(drains)
}

fn follow(parts: &ControllerParts, going: &mut BTreeMap<NodeId, Going>, drains: BTreeMap<NodeId, Standing>) {
    // One that has panicked begins again with the next look.
    going.retain(|node, going| drains.contains_key(node) && !going.task.is_finished());
    for (node, standing) in drains {
        match going.get(&node) {
            Some(known) => {
                known.news.send_if_modified(|last| std::mem::replace(last, standing.clone()) != standing);
            }
            None => {
                let going_on = begin(parts, node.clone(), standing);
                going.insert(node, going_on);
            }
        }
    }
}

fn begin(parts: &ControllerParts, node: NodeId, standing: Standing) -> Going {
    let carrier = Carrier {
        store: Arc::clone(&parts.store),
        elector: Arc::clone(&parts.elector),
        clock: Arc::clone(&parts.clock),
        sole_instance: parts.sole_instance,
        node,
    };
    let (news, told) = watch::channel(standing);
    Going { news, task: AbortOnDropHandle::new(tokio::spawn(carrier.carry(told))) }
}

/// Whoever sees one drain through.
struct Carrier {
    store: SharedStore,
    elector: Arc<Elector>,
    clock: Arc<dyn Clock>,
    sole_instance: bool,
    node: NodeId,
}

impl Carrier {
    async fn carry(self, mut news: watch::Receiver<Standing>) {
        let mut candidacy = self.elector.campaign(Campaign {
            component: COMPONENT.into(),
            scopes: vec![drain_scope(&self.node)],
            note: format!("emptying {}", self.node),
            sole_instance: self.sole_instance,
        });
        while let Some(tenure) = candidacy.elected().await {
            tracing::info!(node = %self.node, epoch = %tenure.epoch(), "seeing its drain through");
            tokio::select! {
                biased;
                () = tenure.lost().cancelled() => {}
                () = tenure.asked_back().cancelled() => {}
                () = self.work(&tenure, &mut news) => {}
            }
            tenure.resign().await;
        }
    }

    /// Until the fence says that somebody else does it now, or the drain is over and nobody sends news any more.
    async fn work(&self, tenure: &Tenure, news: &mut watch::Receiver<Standing>) {
        loop {
            let standing = news.borrow_and_update().clone();
            let pause = match standing.next(self.clock.now()) {
                Next::Wait(pause) => pause,
                Next::Stage(stage) => {
                    let Ok(guard) = tenure.guard() else { return };
                    let moved = self.store.advance_drain(&guard, &self.node, standing.drain.since, stage);
                    match moved.await {
                        Ok(true) => {
                            let left = standing.left;
                            tracing::info!(node = %self.node, stage = stage.as_str(), left, "its drain moves on");
                        }
                        Ok(false) => {} // somebody has changed it; the news is on its way
                        Err(StoreError::Fenced { .. }) => return tenure.fenced(),
                        Err(error) => {
                            let error = with_causes(&error);
                            tracing::warn!(node = %self.node, error, "its drain cannot be moved on; trying again");
                        }
                    }
                    BUSY
                }
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                changed = news.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: tasks get all the time they were promised, and no node counts as drained while something is bound there.

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn next(stage: DrainStage, left: u32, now: i64) -> Next {
        let drain = Drain { since: at(0), deadline: at(60), by: "ada".into(), stage };
        Standing { drain, left }.next(at(now))
    }

    #[test]
    fn tasks_may_finish_until_the_deadline_and_are_stopped_then() {
        assert_eq!(next(DrainStage::Finishing, 3, 10), Next::Wait(Duration::from_secs(50)));
        assert_eq!(next(DrainStage::Finishing, 3, 60), Next::Stage(DrainStage::Stopping));
        assert_eq!(next(DrainStage::Stopping, 3, 61), Next::Wait(BUSY));
    }

    #[test]
    fn an_empty_node_is_drained_once_every_owner_has_seen_that_it_takes_nothing() {
        assert_eq!(next(DrainStage::Finishing, 0, 1), Next::Wait(Duration::from_secs(1)));
        assert_eq!(next(DrainStage::Finishing, 0, 2), Next::Stage(DrainStage::Drained));
        assert_eq!(next(DrainStage::Stopping, 0, 70), Next::Stage(DrainStage::Drained));
        assert_eq!(next(DrainStage::Drained, 0, 99), Next::Wait(BUSY));
    }
}
