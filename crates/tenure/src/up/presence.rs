//! Tells other replicas of the same database, where there are any, that this process hears from its own node.

use std::time::Duration;

use tenure_lease::with_causes;
use tenure_model::NodeId;
use tenure_store::SharedStore;
use tokio_util::sync::CancellationToken;

/// As often as a replica with remote agents says it.
const EVERY: Duration = Duration::from_secs(5);

/// Until it is told to stop. What cannot be said now is said a moment later.
pub(super) async fn tell(store: SharedStore, replica: String, node: NodeId, stop: CancellationToken) {
    let mut failing = false;
    loop {
        let recorded = store.record_presence(&replica, std::slice::from_ref(&node)).await;
        if let (Err(error), false) = (&recorded, failing) {
            tracing::warn!(error = %with_causes(error), "that this node is here cannot be recorded; trying again");
        }
        failing = recorded.is_err();
        if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
            return;
        }
    }
}
