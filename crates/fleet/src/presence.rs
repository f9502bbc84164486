//! Tells the other replicas, through the database, which nodes are heard here: a node that has lost its way to the
//! owner of its work, and to it alone, is not dead.

use std::sync::Arc;
use std::time::Duration;

use tenure_model::NodeId;
use tokio::time::MissedTickBehavior;

use crate::fleet::Shared;

const RECORD_EVERY: Duration = Duration::from_secs(5);
/// Three heartbeats of an agent.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

pub(crate) async fn record(fleet: Arc<Shared>) {
    let mut ticks = tokio::time::interval(RECORD_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    while fleet.closing.run_until_cancelled(ticks.tick()).await.is_some() {
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
