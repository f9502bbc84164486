//! Where the other replicas are, so that agents which know one of them find all.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{Hint, LeaseRecord, LeaseStore, Scope, with_causes};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

/// Hints may be lost; a peer that is gone costs an agent a connection attempt now and then.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Replicas that come together are read together.
const SETTLE: Duration = Duration::from_millis(100);
/// Replicas that schedule sit here.
const COMPONENT: &str = "scheduler";

/// Until it is told to stop. While the leases cannot be read, what was known last stands.
pub async fn watch(
    leases: Arc<dyn LeaseStore>,
    own: String,
    peers: watch::Sender<Vec<String>>,
    stop: CancellationToken,
) {
    let mut hints = leases.watch();
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
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = a_seat_changed(&mut hints) => tokio::time::sleep(SETTLE).await,
        }
    }
}

/// Never, where there are no hints.
async fn a_seat_changed(hints: &mut broadcast::Receiver<Hint>) {
    loop {
        match hints.recv().await {
            Ok(Hint::Changed(scope)) if scope.as_member().is_none_or(|(of, _)| of != COMPONENT) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use tenure_clock::{Clock, Entropy, SystemClock};
    use tenure_lease::{AcquireRequest, Holder, MemoryLeases, Session, Takeover, Term};

    use super::*;

    fn seat(name: &str, address: &str) -> AcquireRequest {
        let id = || Entropy::from_os().uuid(SystemClock.now());
        AcquireRequest {
            scope: Scope::new(format!("{}{name}", Scope::members_of(COMPONENT))),
            holder: Holder {
                name: name.into(),
                instance: name.into(),
                session: Session(id()),
                address: Some(address.into()),
            },
            term: Term(id()),
            duration: Duration::from_secs(60),
            note: String::new(),
            takeover: Takeover::IfFree,
        }
    }

    #[tokio::test]
    async fn who_takes_a_seat_is_known_to_the_others_before_they_would_look() {
        let leases: Arc<dyn LeaseStore> = Arc::new(MemoryLeases::new(Arc::new(SystemClock)));
        leases.acquire(&seat("me", "http://me")).await.unwrap();
        leases.acquire(&seat("b", "http://b")).await.unwrap();
        let (found, mut known) = watch::channel(vec![]);
        let stop = CancellationToken::new();
        tokio::spawn(watch(Arc::clone(&leases), "http://me".into(), found, stop.clone()));
        let mut wait = async |wanted: &[&str]| {
            let found = known.wait_for(|known| known.as_slice() == wanted);
            tokio::time::timeout(LOOK_EVERY / 2, found).await.expect("in time").expect("still watching");
        };
        wait(&["http://b"]).await;
        leases.acquire(&seat("a", "http://a")).await.unwrap();
        wait(&["http://a", "http://b"]).await;
        stop.cancel();
    }
}
