//! Where the other replicas are, so that agents which know one of them find all.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{LeaseRecord, LeaseStore, Scope, with_causes};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Seats are renewed every few seconds; a peer that is gone costs an agent a connection attempt now and then.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Replicas that schedule sit here.
const COMPONENT: &str = "scheduler";

/// Until it is told to stop. While the leases cannot be read, what was known last stands.
pub async fn watch(
    leases: Arc<dyn LeaseStore>,
    own: String,
    peers: watch::Sender<Vec<String>>,
    stop: CancellationToken,
) {
    loop {
        match leases.list_leases(&Scope::members_of(COMPONENT)).await {
            Ok(seats) => {
                let found = addresses(&seats, &own);
                peers.send_if_modified(|known| {
                    let news = *known != found;
                    *known = found;
                    news
                });
            }
            Err(error) => tracing::debug!(error = %with_causes(&error), "peers cannot be read"),
        }
        if stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_none() {
            return;
        }
    }
}

fn addresses(seats: &[LeaseRecord], own: &str) -> Vec<String> {
    let taken = seats.iter().filter(|seat| seat.is_held());
    let mut found: Vec<String> = taken.filter_map(|seat| seat.holder.address.clone()).collect();
    found.retain(|address| address != own);
    found.sort();
    found.dedup();
    found
}
