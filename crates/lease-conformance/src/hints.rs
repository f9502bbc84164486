//! Goal: whoever watches looks sooner. Hints may be lost, so each is given several chances.

use std::time::Duration;

use tenure_lease::{Hint, Scope, Session};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::Fresh;
use crate::harness::{Office, now};

/// Far more than a hint takes, far less than it takes to lose patience with all chances.
const CHANCE: Duration = Duration::from_secs(5);
const CHANCES: usize = 5;

pub async fn watchers_hear_of_an_acquire_and_of_a_release(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut hints = office.leases().watch();
    for chance in 0..CHANCES {
        let office = office.at(format!("tests/hint-{chance}"));
        let record = office.taken("a").await;
        // Waiting for the first hint also keeps it from being taken for the second.
        if !heard(&mut hints, &office.scope).await {
            continue;
        }
        office.release(&record).await;
        if heard(&mut hints, &office.scope).await {
            return;
        }
    }
    panic!("{CHANCES} times nobody said that a lease was taken and given back");
}

async fn heard(hints: &mut Receiver<Hint>, scope: &Scope) -> bool {
    let hearing = async {
        loop {
            match hints.recv().await {
                Ok(Hint::Changed(changed)) if changed == *scope => return true,
                Ok(Hint::Resync) | Err(RecvError::Lagged(_)) => return true,
                Ok(Hint::Changed(_) | Hint::Crashed(_)) => {}
                Err(RecvError::Closed) => panic!("the backend stopped telling while it was in use"),
            }
        }
    };
    tokio::time::timeout(CHANCE, hearing).await.unwrap_or(false)
}

pub async fn only_a_backend_with_crash_hints_has_lifelines(fresh: Fresh) {
    let office = Office::of(fresh);
    let session = Session(office.entropy.uuid(now()));
    let lifeline = office.leases().attach(session).await.expect("answered");
    assert_eq!(lifeline.is_some(), office.leases().capabilities().crash_hints);
    if let Some(lifeline) = lifeline {
        lifeline.watch_peers(&[Session(office.entropy.uuid(now()))]);
        lifeline.watch_peers(&[]);
        assert!(!lifeline.cut().is_cancelled());
    }
}
