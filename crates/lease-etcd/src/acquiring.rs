//! Taking a lease: create the key if it is absent, or replace it if the takeover names its term.

use tenure_lease::{AcquireOutcome, AcquireRequest, LeaseError, LeaseRecord, Succession, Takeover};

use crate::protocol::{TxnRequest, delete, put, unchanged};
use crate::reading::{Seat, Standing};
use crate::records::{LatestTerm, StoredLease, revision_of, seconds, written};
use crate::store::{EtcdLeases, ROUNDS};
use crate::wire::Effect;

impl EtcdLeases {
    pub(crate) async fn take(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.check(&request.scope, request.duration)?;
        let lasts = seconds(request.duration);
        let etcd_lease = self.keys.etcd_lease(&request.scope, request.term, lasts);
        let mut granted = false;
        for _ in 0..ROUNDS {
            let seat = self.seat(&request.scope).await?;
            let standing = match seat.held() {
                None => None,
                Some(lease) => match self.standing(&request.scope, lease).await? {
                    Some(standing) => Some((lease, standing)),
                    None => continue, // it has just run out
                },
            };
            if let Some((lease, Standing { record, .. })) = &standing {
                if record.term == request.term {
                    return Ok(match lease.value.confirmed {
                        true => AcquireOutcome::Granted(record.clone()),
                        false => AcquireOutcome::Won(record.clone()),
                    });
                }
                if !request.takeover.covers(record.term, record.resource_version) {
                    if granted {
                        self.wire.revoke(etcd_lease).await;
                    }
                    return Ok(AcquireOutcome::Held(record.clone()));
                }
            }
            self.wire.grant(etcd_lease, lasts).await?;
            granted = true;
            if let Some(record) =
                self.replace(request, &seat, standing.map(|(_, standing)| standing), etcd_lease).await?
            {
                // Its key hangs on the new lease now, so ending the old one deletes nothing.
                if let Some(old) = seat.lease {
                    self.wire.revoke(old.etcd_lease).await;
                }
                return Ok(AcquireOutcome::Won(record));
            }
        }
        self.wire.revoke(etcd_lease).await;
        Err(LeaseError::Unavailable(format!("too many candidates for {} at once", request.scope).into()))
    }

    /// `None`: something has changed since the seat was read.
    async fn replace(
        &self,
        request: &AcquireRequest,
        seat: &Seat,
        standing: Option<Standing>,
        etcd_lease: i64,
    ) -> Result<Option<LeaseRecord>, LeaseError> {
        let (scope, now) = (&request.scope, self.clock.now());
        let latest = seat.latest.as_ref().map(|latest| &latest.value);
        let previous = seat.lease.as_ref().map(|lease| &lease.value).or(latest.map(|latest| &latest.lease));
        let released = latest.is_some_and(|latest| latest.released_at.is_some());
        let succession = match (&standing, request.takeover) {
            (Some(_), Takeover::OfStalled { .. }) => Succession::Stalled,
            (Some(_), _) => Succession::Crashed,
            (None, _) if previous.is_none() => Succession::First,
            (None, _) if released => Succession::Released,
            (None, _) => Succession::Expired,
        };
        let lease = StoredLease::won(request, previous, succession, now);

        let mut compare = vec![
            unchanged(self.keys.lease(scope), revision_of(&seat.lease)),
            unchanged(self.keys.latest(scope), revision_of(&seat.latest)),
        ];
        if let (Takeover::OfStalled { .. }, Some(standing)) = (request.takeover, &standing) {
            // Stalled means that nothing has moved: neither the record nor the mark of its session.
            let mark = self.keys.renewal(standing.record.holder.session);
            compare.push(unchanged(mark, standing.renewal_revision));
        }
        let mut success = vec![
            put(self.keys.lease(scope), written(&lease), etcd_lease),
            put(self.keys.latest(scope), written(&LatestTerm { lease: lease.clone(), released_at: None }), 0),
            put(self.keys.past(scope, lease.transitions), written(&lease.past(scope, None)), 0),
        ];
        if let Some(previous) = previous
            && !(released && seat.lease.is_none())
        {
            // When it ended exactly, nobody knows: it had ended when its successor came.
            let line = previous.past(scope, Some((now, succession)));
            success.push(put(self.keys.past(scope, previous.transitions), written(&line), 0));
        }
        success.extend(self.keys.forgotten(scope, lease.transitions).map(delete));
        let txn = TxnRequest { compare, success, ..TxnRequest::default() };
        match self.wire.txn(Effect::Writes, txn).await {
            Ok(answer) if answer.succeeded => {
                Ok(Some(lease.shown(scope, answer.revision(), request.duration)))
            }
            Ok(_) => Ok(None),
            // Somebody has revoked the lease that was just granted: once more from the start.
            Err(failure) if failure.is_missing_lease() => Ok(None),
            Err(failure) => Err(failure.of(Effect::Writes)),
        }
    }
}
