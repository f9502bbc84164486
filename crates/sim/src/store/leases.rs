//! Leases and fences, over the same network as everything else.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, FenceStore, Hint, LeaseError, LeaseRecord,
    LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tenure_store_memory::MemoryStore;
use tokio::sync::broadcast;

use super::{RemoteStore, remote};

#[async_trait]
impl LeaseStore for RemoteStore {
    fn capabilities(&self) -> Capabilities {
        self.world.store.capabilities()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        remote!(self, "acquire", |store| request => store.acquire(&request))
    }
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        remote!(self, "renew", |store| claims => store.renew(&claims))
    }
    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        remote!(self, "release", |store| claim => store.release(&claim))
    }
    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        remote!(self, look "list_leases", |store| => store.list_leases(under))
    }
    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        remote!(self, look "find_lease", |store| => store.find_lease(scope))
    }
    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        remote!(self, look "lease_history", |store| => store.lease_history(scope, limit))
    }
    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }
    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        remote!(self, "attach", |store| => store.attach(session))
    }
}

#[async_trait]
impl FenceStore for RemoteStore {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        let (world, scope) = (Arc::clone(&self.world), scope.clone());
        let install = move |store: Arc<MemoryStore>| async move {
            let epoch = store.install_fence(&scope, term, floor).await?;
            world.fences().insert((scope, epoch, term));
            Ok(epoch)
        };
        self.call("install_fence", install).await
    }
    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        remote!(self, look "fence", |store| => store.fence(scope))
    }
}
