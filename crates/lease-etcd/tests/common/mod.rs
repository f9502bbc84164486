//! What the tests of this crate share: candidates, and a network that can be made to fail.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod proxy;

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, FenceStore, Hint, Holder, LeaseRecord, LeaseStore, Scope, Session,
    Takeover, Term, acquire_fenced,
};
use tenure_lease_etcd::{EtcdLeases, EtcdOptions};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Nothing expires by accident.
pub const LONG: Duration = Duration::from_secs(600);
/// As short as etcd allows.
pub const SHORT: Duration = Duration::from_secs(2);
/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn leases_at(url: &str) -> EtcdLeases {
    leases_with(url.parse().expect("an address"))
}

pub fn leases_with(options: EtcdOptions) -> EtcdLeases {
    EtcdLeases::open(options, Arc::new(SystemClock)).expect("good options")
}

pub fn request(scope: &str, duration: Duration) -> AcquireRequest {
    let (entropy, now) = (Entropy::from_os(), SystemClock.now());
    let holder = Holder {
        name: "host:1".into(),
        instance: "folder".into(),
        session: Session(entropy.uuid(now)),
        address: None,
    };
    AcquireRequest {
        scope: Scope::new(scope),
        holder,
        term: Term(entropy.uuid(now)),
        duration,
        takeover: Takeover::IfFree,
        note: String::new(),
    }
}

pub async fn granted(leases: &EtcdLeases, request: &AcquireRequest) -> LeaseRecord {
    granted_with(leases, leases, request).await
}

pub async fn granted_with(
    leases: &EtcdLeases,
    fences: &dyn FenceStore,
    request: &AcquireRequest,
) -> LeaseRecord {
    match acquire_fenced(leases, fences, request).await {
        Ok(AcquireOutcome::Granted(record)) => record,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

pub async fn renew(leases: &EtcdLeases, record: &LeaseRecord) -> tenure_lease::RenewOutcome {
    leases.renew(&[claim(record)]).await.expect("answered").remove(0)
}

/// Waits for a hint of this kind and passes over all others.
pub async fn heard(hints: &mut Receiver<Hint>, wanted: Hint) {
    let hearing = async {
        loop {
            match hints.recv().await {
                Ok(hint) if hint == wanted => return,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => panic!("no more hints while the backend is in use"),
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, hearing).await;
    heard.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for {wanted:?}"));
}

/// How many etcd leases there are, marks of sessions included.
pub fn etcd_leases(list: &str) -> usize {
    list.lines().filter(|line| !line.is_empty() && !line.starts_with("found")).count()
}
