//! What the facts have in common: requests, claims, and waits with an end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, ExpiryClock, FenceStore, Holder, LeaseRecord, LeaseStore,
    ReleaseOutcome, RenewOutcome, Scope, Session, Takeover, Term, acquire_fenced,
};

use crate::Fresh;

/// Longer than any fact takes: nothing expires by accident.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// How late an expiry may come. etcd checks twice a second, rounds up to whole seconds and adds its election
/// timeout after a change of its leader.
const LATE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// One scope of a backend, and everything a candidate does there. Cloning shares the backend.
#[derive(Clone)]
pub(crate) struct Office {
    pub(crate) fresh: Arc<Fresh>,
    pub(crate) entropy: Entropy,
    pub(crate) scope: Scope,
}

impl Office {
    pub(crate) fn of(fresh: Fresh) -> Self {
        Self { fresh: Arc::new(fresh), entropy: Entropy::from_os(), scope: Scope::new("tests/one") }
    }

    /// The same backend, another scope.
    pub(crate) fn at(&self, scope: impl AsRef<str>) -> Self {
        Self { scope: Scope::new(scope), ..self.clone() }
    }

    pub(crate) fn leases(&self) -> &dyn LeaseStore {
        &*self.fresh.leases
    }

    pub(crate) fn fences(&self) -> &dyn FenceStore {
        &*self.fresh.fences
    }

    /// Short enough to wait for.
    pub(crate) fn short(&self) -> Duration {
        self.leases().capabilities().minimum_duration.max(Duration::from_millis(150))
    }

    /// Whether a renewal is a change of the record. Where the store counts elapsed time it need not be: no clock
    /// can be set back, so nobody takes a lease for stalled.
    pub(crate) fn renewals_show(&self) -> bool {
        self.leases().capabilities().clock != ExpiryClock::StoreElapsed
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.entropy.uuid(now()))
    }

    pub(crate) fn holder(&self, name: &str) -> Holder {
        Holder {
            name: name.into(),
            instance: format!("{name}'s folder"),
            session: Session(self.entropy.uuid(now())),
            address: Some("127.0.0.1:1".into()),
        }
    }

    pub(crate) fn request(&self, name: &str, duration: Duration) -> AcquireRequest {
        AcquireRequest {
            scope: self.scope.clone(),
            holder: self.holder(name),
            term: self.term(),
            duration,
            takeover: Takeover::IfFree,
            note: format!("{name}'s note"),
        }
    }

    pub(crate) fn taking(&self, name: &str, takeover: Takeover) -> AcquireRequest {
        AcquireRequest { takeover, ..self.request(name, LONG) }
    }

    pub(crate) async fn acquire(&self, request: &AcquireRequest) -> AcquireOutcome {
        acquire_fenced(self.leases(), self.fences(), request).await.expect("answered")
    }

    pub(crate) async fn granted(&self, request: &AcquireRequest) -> LeaseRecord {
        match self.acquire(request).await {
            AcquireOutcome::Granted(record) => record,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(crate) async fn held(&self, request: &AcquireRequest) -> LeaseRecord {
        match self.acquire(request).await {
            AcquireOutcome::Held(record) => record,
            other => panic!("not held by another: {other:?}"),
        }
    }

    /// Somebody called `name` takes it for long.
    pub(crate) async fn taken(&self, name: &str) -> LeaseRecord {
        self.granted(&self.request(name, LONG)).await
    }

    /// Somebody called `name` takes it and lets it run out.
    pub(crate) async fn taken_and_expired(&self, name: &str) -> LeaseRecord {
        let record = self.granted(&self.request(name, self.short())).await;
        self.expired().await;
        record
    }

    /// Waits until nobody holds it.
    pub(crate) async fn expired(&self) {
        let looking = wait_for("the lease to run out", LATE, async || {
            let found = self.found().await;
            (!found.is_some_and(|record| record.is_held())).then_some(())
        });
        looking.await;
    }

    pub(crate) async fn renew(&self, record: &LeaseRecord) -> RenewOutcome {
        self.renew_claim(claim(record)).await
    }

    pub(crate) async fn renew_claim(&self, claim: Claim) -> RenewOutcome {
        let mut outcomes = self.leases().renew(&[claim]).await.expect("answered");
        assert_eq!(outcomes.len(), 1, "one claim, one answer");
        outcomes.remove(0)
    }

    pub(crate) async fn release(&self, record: &LeaseRecord) -> ReleaseOutcome {
        self.leases().release(&claim(record)).await.expect("answered")
    }

    pub(crate) async fn found(&self) -> Option<LeaseRecord> {
        self.leases().find_lease(&self.scope).await.expect("answered")
    }

    /// What the backend says of a lease that somebody holds.
    pub(crate) async fn shown(&self) -> LeaseRecord {
        self.found().await.expect("a record")
    }

    pub(crate) async fn fence(&self) -> Option<(Epoch, Term)> {
        self.fences().fence(&self.scope).await.expect("answered")
    }

    pub(crate) async fn install(&self, term: Term, floor: u64) -> Epoch {
        self.fences().install_fence(&self.scope, term, Epoch(floor)).await.expect("installed")
    }
}

pub(crate) fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Asks again every few milliseconds until there is an answer.
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(
    what: &str,
    timeout: Duration,
    mut ask: impl FnMut() -> F,
) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    match tokio::time::timeout(timeout, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited {timeout:?} in vain for {what}"),
    }
}
