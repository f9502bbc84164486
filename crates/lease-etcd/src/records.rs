//! What is written in etcd: JSON that a person can read with `etcdctl get`.

use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_lease::{
    AcquireRequest, Claim, Epoch, Holder, LeaseError, LeaseRecord, PastTerm, Scope, Succession, Term,
};

use crate::protocol::KeyValue;

/// A lease, under its own key while it is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredLease {
    pub(crate) holder: Holder,
    pub(crate) term: Term,
    pub(crate) epoch: Epoch,
    /// Whether `epoch` is this term's own. Until its first renewal it is the one that the term has to surpass.
    pub(crate) confirmed: bool,
    pub(crate) duration_ms: u64,
    pub(crate) acquired_at: Timestamp,
    /// When this was written. Renewals show in the session's [`Renewal`].
    pub(crate) renewed_at: Timestamp,
    pub(crate) transitions: u64,
    pub(crate) succession: Succession,
    pub(crate) note: String,
}

/// The latest term of a scope, which outlives its lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LatestTerm {
    #[serde(flatten)]
    pub(crate) lease: StoredLease,
    pub(crate) released_at: Option<Timestamp>,
}

/// When a holder's process last renewed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Renewal {
    pub(crate) renewed_at: Timestamp,
}

/// A scope's epoch, where etcd itself is the place that mints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredFence {
    pub(crate) epoch: Epoch,
    pub(crate) term: Term,
}

impl StoredLease {
    pub(crate) fn won(
        request: &AcquireRequest,
        previous: Option<&StoredLease>,
        succession: Succession,
        now: Timestamp,
    ) -> Self {
        Self {
            holder: request.holder.clone(),
            term: request.term,
            epoch: previous.map_or(Epoch(0), |previous| previous.epoch),
            confirmed: false,
            duration_ms: millis(request.duration),
            acquired_at: now,
            renewed_at: now,
            transitions: previous.map_or(0, |previous| previous.transitions + 1),
            succession,
            note: request.note.clone(),
        }
    }

    pub(crate) fn is_claimed_by(&self, claim: &Claim) -> bool {
        self.term == claim.term && (self.epoch == claim.epoch || !self.confirmed)
    }

    pub(crate) fn says_all_of(&self, claim: &Claim) -> bool {
        self.confirmed && self.duration_ms == millis(claim.duration)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }

    pub(crate) fn shown(&self, scope: &Scope, resource_version: i64, remaining: Duration) -> LeaseRecord {
        LeaseRecord {
            scope: scope.clone(),
            holder: self.holder.clone(),
            term: self.term,
            epoch: self.epoch,
            duration: self.duration(),
            acquired_at: self.acquired_at,
            renewed_at: self.renewed_at,
            released: false,
            remaining,
            resource_version: resource_version.unsigned_abs(),
            transitions: self.transitions,
            succession: self.succession,
            note: self.note.clone(),
        }
    }

    pub(crate) fn past(&self, scope: &Scope, ended: Option<(Timestamp, Succession)>) -> PastTerm {
        PastTerm {
            scope: scope.clone(),
            epoch: self.epoch,
            term: self.term,
            holder: self.holder.clone(),
            acquired_at: self.acquired_at,
            succession: self.succession,
            note: self.note.clone(),
            ended_at: ended.map(|(at, _)| at),
            end: ended.map(|(_, how)| how),
        }
    }
}

impl LatestTerm {
    /// As a lease that nobody holds any more.
    pub(crate) fn shown(&self, scope: &Scope, resource_version: i64) -> LeaseRecord {
        let record = self.lease.shown(scope, resource_version, Duration::ZERO);
        LeaseRecord { released: self.released_at.is_some(), ..record }
    }
}

/// A key as it was read, with what a compare-and-swap needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T> {
    pub(crate) value: T,
    /// Of the key's last change.
    pub(crate) revision: i64,
    pub(crate) etcd_lease: i64,
}

impl<T: DeserializeOwned> Seen<T> {
    pub(crate) fn read(kv: &KeyValue) -> Result<Self, LeaseError> {
        let value = serde_json::from_slice(&kv.value).map_err(|error| {
            let key = String::from_utf8_lossy(&kv.key);
            LeaseError::Refused(format!(
                "the etcd key {key} holds something else than a lease ({error}): use another prefix, or remove \
                 it with `etcdctl del {key}`"
            ))
        })?;
        Ok(Self { value, revision: kv.mod_revision, etcd_lease: kv.lease })
    }
}

/// Zero for a key that is not there, as etcd has it.
pub(crate) fn revision_of<T>(seen: &Option<Seen<T>>) -> i64 {
    seen.as_ref().map_or(0, |seen| seen.revision)
}

pub(crate) fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("our own records have text keys and finite numbers")
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// etcd counts whole seconds. Rounded up, so that a lease never ends before its holder expects it.
pub(crate) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etcd_lease_lasts_at_least_as_long_as_the_lease() {
        let cases = [(2_000, 2), (2_001, 3), (2_999, 3), (15_000, 15)];
        for (millis, expected) in cases {
            assert_eq!(seconds(Duration::from_millis(millis)), expected, "{millis} ms");
        }
    }
}
