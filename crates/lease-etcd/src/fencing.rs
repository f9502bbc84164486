//! Epochs minted in etcd, for those who have no state database.
//!
//! There is nothing here that a privileged write would be checked against, so there are no writes to wait for:
//! whoever uses these epochs hands them on to something that remembers the highest one it has seen.

use tenure_lease::{Epoch, LeaseError, Scope, Term};

use crate::protocol::{TxnRequest, get, put, unchanged};
use crate::reading::read_one;
use crate::records::{Seen, StoredFence, revision_of, written};
use crate::store::{EtcdLeases, ROUNDS};
use crate::wire::Effect;

impl EtcdLeases {
    pub(crate) async fn raise_fence(
        &self,
        scope: &Scope,
        term: Term,
        floor: Epoch,
    ) -> Result<Epoch, LeaseError> {
        self.keys.check(scope)?;
        let key = self.keys.fence(scope);
        let mut known = self.stored_fence(scope).await?;
        for _ in 0..ROUNDS {
            if let Some(Seen { value, .. }) = &known
                && value.term == term
            {
                return Ok(value.epoch);
            }
            let before = known.as_ref().map_or(0, |known| known.value.epoch.0).max(floor.0);
            // Wall-clock time, so that epochs grow even when all of etcd's data is lost.
            let millis = u64::try_from(self.clock.now().as_millisecond()).unwrap_or(0);
            let fence = StoredFence { epoch: Epoch((before + 1).max(millis)), term };
            let txn = TxnRequest {
                compare: vec![unchanged(key.clone(), revision_of(&known))],
                success: vec![put(key.clone(), written(&fence), 0)],
                failure: vec![get(key.clone())],
            };
            let answer =
                self.wire.txn(Effect::Writes, txn).await.map_err(|failure| failure.of(Effect::Writes))?;
            if answer.succeeded {
                return Ok(fence.epoch);
            }
            known = read_one(&answer.ranges().next().and_then(|mut range| range.kvs.pop()))?;
        }
        Err(LeaseError::Unavailable(format!("too many terms of {scope} want an epoch at once").into()))
    }

    pub(crate) async fn current_fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.keys.check(scope)?;
        Ok(self.stored_fence(scope).await?.map(|fence| (fence.value.epoch, fence.value.term)))
    }

    async fn stored_fence(&self, scope: &Scope) -> Result<Option<Seen<StoredFence>>, LeaseError> {
        let found = self.read_keys(vec![self.keys.fence(scope)]).await?;
        read_one(&found[0])
    }
}
