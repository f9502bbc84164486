//! Tells the other replicas, through the database, which nodes are heard here: a node that has lost its way to the
//! owner of its work, and to it alone, is not dead.

use std::sync::Arc;
use std::time::Duration;

use tenure_model::NodeId;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::fleet::Shared;

const RECORD_EVERY: Duration = Duration::from_secs(5);
/// After nodes came or went; however many do, at most so often.
const SOONEST: Duration = Duration::from_secs(1);
/// Three heartbeats of an agent.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

pub(crate) async fn record(fleet: Arc<Shared>) {
    let mut ticks = tokio::time::interval(RECORD_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    let mut links = fleet.changes();
    loop {
        // A node that comes is named soon, because people look for it; one that goes is not named any longer than it
        // has to be, because others wait for that before they move its work.
        let due = async {
            tokio::select! {
                _ = ticks.tick() => {}
                () = changed(&mut links) => ticks.reset(),
            }
        };
        if fleet.closing.run_until_cancelled(due).await.is_none() {
            return;
        }
        let nodes = heard(&fleet);
        let parts = &fleet.parts;
        let recording = parts.roster.record_presence(&parts.replica, &nodes);
        let error = match tokio::time::timeout(RECORD_EVERY, recording).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {RECORD_EVERY:?}")),
        };
        // Said once for each outage.
        if let (Some(error), false) = (&error, failing) {
            tracing::warn!(error, "which nodes are heard here cannot be recorded; trying again");
        }
        failing = error.is_some();
    }
}

async fn changed(links: &mut watch::Receiver<u64>) {
    links.changed().await.expect("the sender is in the fleet itself");
    tokio::time::sleep(SOONEST).await;
}

fn heard(fleet: &Shared) -> Vec<NodeId> {
    let now = fleet.parts.clock.boottime();
    let mut nodes: Vec<NodeId> = fleet
        .all()
        .iter()
        .filter(|link| now.saturating_since(link.heard()) <= HEARD_WITHIN)
        .map(|link| link.node.clone())
        .collect();
    nodes.sort();
    nodes
}
