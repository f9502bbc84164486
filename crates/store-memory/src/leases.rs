//! Leases and fences are those of `tenure_lease::MemoryLeases`.

use async_trait::async_trait;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, FenceStore, Hint, LeaseError, LeaseRecord,
    LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tokio::sync::broadcast;

use crate::MemoryStore;

#[async_trait]
impl LeaseStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        self.leases.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.leases.acquire(request).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.leases.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.leases.release(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.leases.list_leases(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.leases.find_lease(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.leases.lease_history(scope, limit).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.leases.watch()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.leases.attach(session).await
    }
}

#[async_trait]
impl FenceStore for MemoryStore {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.leases.install_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.leases.fence(scope).await
    }
}
