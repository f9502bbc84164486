//! Leases in memory: for tests and for the simulator. Its clock is the one it is given.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{BootTime, Clock};

use crate::store::{
    AcquireOutcome, AcquireRequest, Claim, LeaseError, LeaseStore, LossReason, ReleaseOutcome, RenewOutcome,
    Takeover,
};
use crate::{Epoch, LeaseRecord, Scope};

#[derive(Debug)]
pub struct MemoryLeases {
    clock: Arc<dyn Clock>,
    /// Record and when it expires. Records are never removed, so epochs never start over.
    leases: Mutex<BTreeMap<Scope, (LeaseRecord, BootTime)>>,
}

impl MemoryLeases {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, leases: Mutex::default() }
    }

    fn shown(&self, record: &LeaseRecord, expires: BootTime) -> LeaseRecord {
        let remaining =
            if record.released { Duration::ZERO } else { expires.saturating_since(self.clock.boottime()) };
        LeaseRecord { remaining, ..record.clone() }
    }
}

#[async_trait]
impl LeaseStore for MemoryLeases {
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let mut leases = self.leases.lock().expect("no panic while holding the leases");
        let (now, boot) = (self.clock.now(), self.clock.boottime());
        let previous = leases.get(&request.scope).map(|(record, expires)| self.shown(record, *expires));
        if let Some(previous) = &previous {
            let free = previous.remaining.is_zero() || request.takeover == Takeover::OfDead(previous.term);
            if previous.term == request.term && !previous.remaining.is_zero() {
                return Ok(AcquireOutcome::Granted(previous.clone()));
            }
            if !free {
                return Ok(AcquireOutcome::Held(previous.clone()));
            }
        }
        let record = LeaseRecord {
            scope: request.scope.clone(),
            holder: request.holder.clone(),
            term: request.term,
            epoch: Epoch(previous.as_ref().map_or(1, |record| record.epoch.0 + 1)),
            duration: request.duration,
            acquired_at: now,
            renewed_at: now,
            released: false,
            remaining: request.duration,
            resource_version: previous.as_ref().map_or(1, |record| record.resource_version + 1),
            transitions: previous.as_ref().map_or(0, |record| record.transitions + 1),
            note: request.note.clone(),
        };
        leases.insert(request.scope.clone(), (record.clone(), boot + request.duration));
        Ok(AcquireOutcome::Granted(record))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let mut leases = self.leases.lock().expect("no panic while holding the leases");
        let (now, boot) = (self.clock.now(), self.clock.boottime());
        let outcomes = claims.iter().map(|claim| {
            let Some((record, expires)) = leases.get_mut(&claim.scope) else {
                return RenewOutcome::Lost(LossReason::Gone);
            };
            if record.term != claim.term || record.epoch != claim.epoch {
                let (holder, epoch) = (record.holder.clone(), record.epoch);
                return RenewOutcome::Lost(LossReason::Superseded { holder, epoch });
            }
            if record.released || *expires <= boot {
                return RenewOutcome::Lost(LossReason::Expired);
            }
            record.renewed_at = now;
            record.duration = claim.duration;
            record.resource_version += 1;
            *expires = boot + claim.duration;
            RenewOutcome::Renewed
        });
        Ok(outcomes.collect())
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let mut leases = self.leases.lock().expect("no panic while holding the leases");
        match leases.get_mut(&claim.scope) {
            Some((record, _))
                if record.term == claim.term && record.epoch == claim.epoch && !record.released =>
            {
                record.released = true;
                record.resource_version += 1;
                Ok(ReleaseOutcome::Released)
            }
            _ => Ok(ReleaseOutcome::NotApplied),
        }
    }

    async fn list_leases(&self) -> Result<Vec<LeaseRecord>, LeaseError> {
        let leases = self.leases.lock().expect("no panic while holding the leases");
        Ok(leases.values().map(|(record, expires)| self.shown(record, *expires)).collect())
    }
}
