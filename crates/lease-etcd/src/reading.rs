//! Reading leases: one, many, and what was before.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tenure_lease::{LeaseError, LeaseRecord, PastTerm, Scope};

use crate::keys::KeyRange;
use crate::protocol::{KeyValue, RangeRequest, get, range, range_request::SortOrder, read_range, reading};
use crate::records::{LatestTerm, Renewal, Seen, StoredLease};
use crate::store::{EtcdLeases, ROUNDS};
use crate::wire::{TimeToLive, in_order};

/// etcd takes 128 operations in a transaction unless it is told otherwise.
pub(crate) const OPERATIONS: usize = 120;
/// Keys of a page: half a megabyte when notes are short.
const PAGE: i64 = 500;

/// All that is known about a scope, read at one revision.
pub(crate) struct Seat {
    pub(crate) lease: Option<Seen<StoredLease>>,
    pub(crate) latest: Option<Seen<LatestTerm>>,
}

impl Seat {
    /// The lease, unless somebody has written its key by hand: a key that hangs on no etcd lease never ends, so
    /// it counts as one that has.
    pub(crate) fn held(&self) -> Option<&Seen<StoredLease>> {
        self.lease.as_ref().filter(|lease| lease.etcd_lease != 0)
    }

    fn shown_as_free(&self, scope: &Scope) -> Option<LeaseRecord> {
        let latest = self.latest.as_ref().map(|latest| latest.value.shown(scope, latest.revision));
        let by_hand =
            self.lease.as_ref().map(|lease| lease.value.shown(scope, lease.revision, Duration::ZERO));
        by_hand.or(latest)
    }
}

/// How a held lease stands right now.
pub(crate) struct Standing {
    pub(crate) record: LeaseRecord,
    /// Of the session's mark; zero when there is none.
    pub(crate) renewal_revision: i64,
}

impl EtcdLeases {
    pub(crate) async fn seat(&self, scope: &Scope) -> Result<Seat, LeaseError> {
        let keys = vec![self.keys.lease(scope), self.keys.latest(scope)];
        let [lease, latest] = &self.read_keys(keys).await?[..] else { unreachable!("two keys were read") };
        Ok(Seat { lease: read_one(lease)?, latest: read_one(latest)? })
    }

    /// The values of many keys, in order. Keys of one chunk are read at one revision.
    pub(crate) async fn read_keys(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<KeyValue>>, LeaseError> {
        let chunks = keys.chunks(OPERATIONS).map(|chunk| reading(chunk.iter().cloned().map(get).collect()));
        let answers = in_order(chunks.map(|txn| self.wire.read(txn)).collect()).await?;
        Ok(answers.into_iter().flat_map(|answer| answer.ranges()).map(|mut range| range.kvs.pop()).collect())
    }

    /// `None`: the lease has ended since it was read.
    pub(crate) async fn standing(
        &self,
        scope: &Scope,
        seen: &Seen<StoredLease>,
    ) -> Result<Option<Standing>, LeaseError> {
        let renewal = self.read_keys(vec![self.keys.renewal(seen.value.holder.session)]);
        let (renewal, left) = tokio::try_join!(renewal, self.wire.time_to_live(seen.etcd_lease))?;
        let Some(left) = left else { return Ok(None) };
        let renewal = read_one(&renewal[0])?;
        Ok(Some(stands(scope, seen, renewal.as_ref(), &left)))
    }

    pub(crate) async fn find(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.keys.check(scope)?;
        for _ in 0..ROUNDS {
            let seat = self.seat(scope).await?;
            let Some(lease) = seat.held() else { return Ok(seat.shown_as_free(scope)) };
            if let Some(standing) = self.standing(scope, lease).await? {
                return Ok(Some(standing.record));
            }
        }
        Err(LeaseError::Unavailable(format!("{scope} changes faster than it can be read").into()))
    }

    /// Not one moment but a few milliseconds: what changes meanwhile may show or not.
    pub(crate) async fn list(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        let mut leases = vec![];
        for range in self.keys.leases(under) {
            leases.extend(self.read_range(range).await?);
        }
        let (latest, renewals) = tokio::try_join!(
            self.read_range(self.keys.latest_terms(under)),
            self.read_range(self.keys.renewals())
        )?;
        let renewals: BTreeMap<Vec<u8>, Seen<Renewal>> =
            renewals.iter().filter_map(|kv| Some((kv.key.clone(), readable(kv)?))).collect();
        let held = leases.iter().filter_map(|kv| {
            let (scope, seen): (_, Seen<StoredLease>) = (self.keys.scope_of_lease(&kv.key)?, readable(kv)?);
            let renewal = renewals.get(&self.keys.renewal(seen.value.holder.session));
            Some(async move {
                let left = self.wire.time_to_live(seen.etcd_lease).await?;
                Ok(left.map(|left| stands(&scope, &seen, renewal, &left).record))
            })
        });
        let held = in_order(held.collect()).await?.into_iter().flatten();
        let mut listed: BTreeMap<Scope, LeaseRecord> = latest
            .iter()
            .filter_map(|kv| {
                let scope = self.keys.scope_of_latest(&kv.key)?;
                let latest: Seen<LatestTerm> = readable(kv)?;
                let record = latest.value.shown(&scope, latest.revision);
                Some((scope, record))
            })
            .collect();
        listed.extend(held.map(|record| (record.scope.clone(), record)));
        Ok(listed.into_values().collect())
    }

    pub(crate) async fn history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.keys.check(scope)?;
        if limit == 0 {
            return Ok(vec![]); // to etcd zero means all
        }
        let newest_first = RangeRequest {
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            sort_order: SortOrder::Descend.into(),
            ..range(self.keys.history(scope))
        };
        let answer = self.wire.read(reading(vec![read_range(newest_first)])).await?;
        let lines = answer.ranges().flat_map(|range| range.kvs);
        lines.map(|kv| Ok(Seen::read(&kv)?.value)).collect()
    }

    /// Page by page, all at the revision of the first.
    async fn read_range(&self, (mut start, end): KeyRange) -> Result<Vec<KeyValue>, LeaseError> {
        let (mut all, mut revision) = (vec![], 0);
        loop {
            let page = RangeRequest { limit: PAGE, revision, ..range((start, end.clone())) };
            let answer = self.wire.read(reading(vec![read_range(page)])).await?;
            if revision == 0 {
                revision = answer.revision();
            }
            let page = answer.ranges().next().unwrap_or_default();
            all.extend(page.kvs);
            match all.last() {
                // The smallest key after the last one.
                Some(last) if page.more => start = [&last.key[..], &[0]].concat(),
                _ => return Ok(all),
            }
        }
    }
}

/// A renewal shows in the record itself or in the mark of its session, whichever is newer.
fn stands(
    scope: &Scope,
    seen: &Seen<StoredLease>,
    renewal: Option<&Seen<Renewal>>,
    left: &TimeToLive,
) -> Standing {
    let renewal_revision = renewal.map_or(0, |renewal| renewal.revision);
    let record = seen.value.shown(scope, seen.revision.max(renewal_revision), remaining(&seen.value, left));
    let renewed_at =
        renewal.map_or(record.renewed_at, |renewal| renewal.value.renewed_at.max(record.renewed_at));
    Standing { record: LeaseRecord { renewed_at, ..record }, renewal_revision }
}

/// etcd tells whole seconds, rounded down, so the next one is when the lease is certain to have ended. A server that
/// has raised the time tells the truth; one that has only rounded it up does not confuse anybody.
fn remaining(lease: &StoredLease, left: &TimeToLive) -> Duration {
    let whole = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let remaining = whole((left.left + 1).min(left.granted));
    match left.granted == crate::records::seconds(lease.duration()) {
        true => remaining.min(lease.duration()),
        false => remaining,
    }
}

pub(crate) fn read_one<T: DeserializeOwned>(kv: &Option<KeyValue>) -> Result<Option<Seen<T>>, LeaseError> {
    kv.as_ref().map(Seen::read).transpose()
}

/// In a listing, somebody else's keys are passed over.
pub(crate) fn readable<T: DeserializeOwned>(kv: &KeyValue) -> Option<Seen<T>> {
    match Seen::read(kv) {
        Ok(seen) => Some(seen),
        Err(error) => {
            tracing::warn!(key = %String::from_utf8_lossy(&kv.key), %error, "passed over");
            None
        }
    }
}
