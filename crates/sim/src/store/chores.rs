//! What the controller does, and what comes over the API.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_lease::EpochGuard;
use tenure_model::NodeId;
use tenure_store::{
    AuditEntry, ChoreStore, DrainStage, IdentityStore, Join, JoinTokenRecord, NewJoinToken, NodeIdentity,
    RemovedNode, Renewal, StoreError, Trigger,
};
use tenure_store_memory::{Authority, MemoryStore};

use super::{RemoteStore, remote};

#[async_trait]
impl ChoreStore for RemoteStore {
    async fn delete_old_runs(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.gate.pass().await;
        self.world.store.delete_old_runs(guard, before, limit).await
    }
    async fn delete_old_audit(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.gate.pass().await;
        self.world.store.delete_old_audit(guard, before, limit).await
    }
    async fn advance_drain(
        &self,
        guard: &EpochGuard<'_>,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError> {
        let (authority, node) = (Authority::from(guard), node.clone());
        let work = move |store: Arc<MemoryStore>| async move {
            store.advance_drain_as(&authority, &node, since, to)
        };
        self.call("advance_drain", work).await
    }
    async fn tell_signals(
        &self,
        guard: &EpochGuard<'_>,
        at: Timestamp,
        entries: &[AuditEntry],
        open: &str,
    ) -> Result<(), StoreError> {
        self.gate.pass().await;
        self.world.store.tell_signals(guard, at, entries, open).await
    }
    async fn open_signals(&self) -> Result<Option<String>, StoreError> {
        remote!(self, look "open_signals", |store| => store.open_signals())
    }
    async fn delete_old_members(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.gate.pass().await;
        self.world.store.delete_old_members(guard, before, limit).await
    }
}

/// Nodes join over the API, which is not part of this world.
#[async_trait]
impl IdentityStore for RemoteStore {
    async fn add_join_token(
        &self,
        by: &Trigger,
        token: &NewJoinToken,
    ) -> Result<JoinTokenRecord, StoreError> {
        self.world.store.add_join_token(by, token).await
    }
    async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, StoreError> {
        self.world.store.join_tokens().await
    }
    async fn revoke_join_token(&self, by: &Trigger, id: &str) -> Result<(), StoreError> {
        self.world.store.revoke_join_token(by, id).await
    }
    async fn join_node(&self, join: &Join) -> Result<Timestamp, StoreError> {
        self.world.store.join_node(join).await
    }
    async fn renew_node(&self, renewal: &Renewal) -> Result<Timestamp, StoreError> {
        self.world.store.renew_node(renewal).await
    }
    async fn node_identity(&self, digest: &str) -> Result<Option<NodeIdentity>, StoreError> {
        self.world.store.node_identity(digest).await
    }
    async fn identified_until(&self, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.world.store.identified_until(node, at).await
    }
    async fn revoked_identities(&self, at: Timestamp) -> Result<Vec<String>, StoreError> {
        self.world.store.revoked_identities(at).await
    }
    async fn remove_node(&self, by: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
        self.world.store.remove_node(by, node).await
    }
}
