//! Giving a lease back: delete the key if this very term still holds it, and say so in the latest term.

use tenure_lease::{Claim, LeaseError, ReleaseOutcome, Succession};

use crate::protocol::{TxnRequest, delete, put, unchanged};
use crate::records::{LatestTerm, revision_of, written};
use crate::store::{EtcdLeases, ROUNDS};
use crate::wire::Effect;

impl EtcdLeases {
    pub(crate) async fn give_back(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let scope = &claim.scope;
        self.keys.check(scope)?;
        for _ in 0..ROUNDS {
            let seat = self.seat(scope).await?;
            let lease = match &seat.lease {
                Some(lease) if lease.value.is_claimed_by(claim) => lease,
                _ => return Ok(ReleaseOutcome::NotApplied),
            };
            let now = self.clock.now();
            let latest = LatestTerm { lease: lease.value.clone(), released_at: Some(now) };
            let line = lease.value.past(scope, Some((now, Succession::Released)));
            let txn = TxnRequest {
                compare: vec![
                    unchanged(self.keys.lease(scope), lease.revision),
                    unchanged(self.keys.latest(scope), revision_of(&seat.latest)),
                ],
                success: vec![
                    delete(self.keys.lease(scope)),
                    put(self.keys.latest(scope), written(&latest), 0),
                    put(self.keys.past(scope, lease.value.transitions), written(&line), 0),
                ],
                ..TxnRequest::default()
            };
            let answer =
                self.wire.txn(Effect::Writes, txn).await.map_err(|failure| failure.of(Effect::Writes))?;
            if answer.succeeded {
                self.wire.revoke(lease.etcd_lease).await;
                return Ok(ReleaseOutcome::Released);
            }
        }
        Err(LeaseError::Unavailable(format!("{scope} changes faster than it can be given back").into()))
    }
}
