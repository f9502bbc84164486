//! Renewing: read the keys, then keep the etcd leases alive that they hang on.
//!
//! In this order an answer «alive» is also about the key: it was there with our term, attached to that lease, and
//! only the end of that lease takes it away (or somebody's hand, which the next renewal sees). A lease that had run
//! out in between answers «not found», so nothing is revived.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use tenure_lease::{Claim, LeaseError, LossReason, RenewOutcome, Session};

use crate::protocol::{RequestOp, TxnRequest, nested, put, reading, unchanged};
use crate::reading::{OPERATIONS, readable};
use crate::records::{LatestTerm, Renewal, Seen, StoredLease, millis, seconds, written};
use crate::store::{EtcdLeases, ROUNDS};
use crate::wire::{Effect, in_order};

/// A nested transaction has three writes, and etcd counts those on top of the outer operations.
const NESTED: usize = OPERATIONS - 20;
/// A third of what etcd takes as one request.
const LARGEST_REQUEST: usize = 512 << 10;
/// A session's mark outlives its leases, so that it never goes away under a living one.
const SHORTEST_MARK_SECONDS: i64 = 60;

/// A claim, by its position in the batch.
type Open<'a> = (usize, &'a Claim);
type Settled = (usize, RenewOutcome);

/// A claim that was right when its key was read.
struct Ours<'a> {
    position: usize,
    claim: &'a Claim,
    seen: Seen<StoredLease>,
}

impl EtcdLeases {
    pub(crate) async fn renew_all(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        claims.iter().try_for_each(|claim| self.check(&claim.scope, claim.duration))?;
        let mut outcomes: Vec<Option<RenewOutcome>> = vec![None; claims.len()];
        for _ in 0..ROUNDS {
            let open: Vec<Open<'_>> =
                claims.iter().enumerate().filter(|(position, _)| outcomes[*position].is_none()).collect();
            if open.is_empty() {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            for (position, outcome) in self.renew_round(&open).await? {
                outcomes[position] = Some(outcome);
            }
        }
        Err(LeaseError::Unavailable("leases change faster than they can be renewed".into()))
    }

    /// What stays unsettled has changed meanwhile, and is looked at again.
    async fn renew_round(&self, open: &[Open<'_>]) -> Result<Vec<Settled>, LeaseError> {
        let found =
            self.read_keys(open.iter().map(|(_, claim)| self.keys.lease(&claim.scope)).collect()).await?;
        let (mut settled, mut absent, mut ours) = (vec![], vec![], vec![]);
        for (&(position, claim), kv) in open.iter().zip(&found) {
            match kv.as_ref().and_then(readable::<StoredLease>) {
                None => absent.push((position, claim)),
                Some(seen) if seen.value.is_claimed_by(claim) => ours.push(Ours { position, claim, seen }),
                Some(seen) => settled.push((position, superseded(&seen.value))),
            }
        }
        settled.extend(self.why_absent(&absent).await?);
        settled.extend(self.keep(ours).await?);
        Ok(settled)
    }

    async fn keep(&self, ours: Vec<Ours<'_>>) -> Result<Vec<Settled>, LeaseError> {
        let marks: BTreeSet<Session> =
            ours.iter().filter(|one| one.is_on_record()).map(Ours::session).collect();
        let marks = marks.into_iter().map(|session| self.keys.etcd_lease_of_renewal(session));
        let etcd_leases: Vec<i64> = ours.iter().map(|one| one.seen.etcd_lease).chain(marks).collect();
        let alive = self.wire.keep_alive(&etcd_leases).await?;
        let lives = |etcd_lease: i64| alive.get(&etcd_lease) == Some(&true);

        let (mut settled, mut rewrites, mut sessions) = (vec![], vec![], BTreeMap::new());
        for one in ours {
            if !lives(one.seen.etcd_lease) {
                settled.push((one.position, RenewOutcome::Lost(LossReason::Expired)));
            } else if one.is_on_record() {
                let longest = sessions.entry(one.session()).or_insert(0);
                *longest = seconds(one.claim.duration).max(*longest);
                settled.push((one.position, RenewOutcome::Renewed));
            } else {
                rewrites.push(one);
            }
        }
        let marking = self.mark(&sessions, |session| lives(self.keys.etcd_lease_of_renewal(session)));
        let ((), rewritten) = tokio::try_join!(marking, self.rewrite(rewrites))?;
        settled.extend(rewritten);
        Ok(settled)
    }

    /// Moves the marks of these sessions, so that everybody sees that they renew.
    async fn mark(
        &self,
        sessions: &BTreeMap<Session, i64>,
        lives: impl Fn(Session) -> bool,
    ) -> Result<(), LeaseError> {
        let value = written(&Renewal { renewed_at: self.clock.now() });
        let sessions: Vec<(Session, i64)> =
            sessions.iter().map(|(session, longest)| (*session, *longest)).collect();
        for chunk in sessions.chunks(OPERATIONS) {
            let mut missing: Vec<_> = chunk.iter().filter(|(session, _)| !lives(*session)).copied().collect();
            // A mark's lease may end between the look and the write; then all of them are granted once more.
            for last in [false, true] {
                let grants = missing.iter().map(|(session, longest)| {
                    let lasts = longest.saturating_mul(2).max(SHORTEST_MARK_SECONDS);
                    self.wire.grant(self.keys.etcd_lease_of_renewal(*session), lasts)
                });
                in_order(grants.collect()).await?;
                let puts = chunk.iter().map(|(session, _)| {
                    let etcd_lease = self.keys.etcd_lease_of_renewal(*session);
                    put(self.keys.renewal(*session), value.clone(), etcd_lease)
                });
                match self.wire.txn(Effect::Writes, reading(puts.collect())).await {
                    Ok(_) => break,
                    Err(failure) if failure.is_missing_lease() && !last => missing = chunk.to_vec(),
                    Err(failure) => return Err(failure.of(Effect::Writes)),
                }
            }
        }
        Ok(())
    }

    /// Writes epochs that are not on record yet, and durations that have changed.
    async fn rewrite(&self, mut ours: Vec<Ours<'_>>) -> Result<Vec<Settled>, LeaseError> {
        // A scope that is claimed twice in one batch has its turn twice.
        let mut scopes = BTreeSet::new();
        ours.retain(|one| scopes.insert(one.claim.scope.clone()));
        let latest =
            self.read_keys(ours.iter().map(|one| self.keys.latest(&one.claim.scope)).collect()).await?;
        let revisions = latest.iter().map(|kv| kv.as_ref().map_or(0, |kv| kv.mod_revision));
        let rewrites = ours.iter().zip(revisions).map(async |(one, revision)| {
            let etcd_lease = self.etcd_lease_for(one).await?;
            let txn = nested(self.rewriting(one, revision, etcd_lease));
            let replaced = (etcd_lease != one.seen.etcd_lease).then_some(one.seen.etcd_lease);
            Ok((txn, (one.position, replaced)))
        });
        let chunks = in_chunks(in_order(rewrites.collect()).await?);
        let written = in_order(chunks.into_iter().map(|chunk| self.write_chunk(chunk)).collect()).await?;
        Ok(written.into_iter().flatten().collect())
    }

    /// The one it hangs on, or one that lasts as long as is now asked for.
    async fn etcd_lease_for(&self, one: &Ours<'_>) -> Result<i64, LeaseError> {
        let lasts = seconds(one.claim.duration);
        if lasts == seconds(one.seen.value.duration()) {
            return Ok(one.seen.etcd_lease);
        }
        let etcd_lease = self.keys.etcd_lease(&one.claim.scope, one.claim.term, lasts);
        self.wire.grant(etcd_lease, lasts).await?;
        Ok(etcd_lease)
    }

    fn rewriting(&self, one: &Ours<'_>, latest_revision: i64, etcd_lease: i64) -> TxnRequest {
        let (scope, keys) = (&one.claim.scope, &self.keys);
        let lease = StoredLease {
            epoch: one.claim.epoch,
            confirmed: true,
            duration_ms: millis(one.claim.duration),
            renewed_at: self.clock.now(),
            ..one.seen.value.clone()
        };
        let line = lease.past(scope, None);
        TxnRequest {
            compare: vec![
                unchanged(keys.lease(scope), one.seen.revision),
                unchanged(keys.latest(scope), latest_revision),
            ],
            success: vec![
                put(keys.lease(scope), written(&lease), etcd_lease),
                put(keys.past(scope, lease.transitions), written(&line), 0),
                put(keys.latest(scope), written(&LatestTerm { lease, released_at: None }), 0),
            ],
            failure: vec![],
        }
    }

    async fn write_chunk(&self, chunk: Vec<Rewrite>) -> Result<Vec<Settled>, LeaseError> {
        let (transactions, writes): (Vec<_>, Vec<_>) = chunk.into_iter().unzip();
        let answer = match self.wire.txn(Effect::Writes, reading(transactions)).await {
            Ok(answer) => answer,
            // One of them has just run out; all of them are looked at again.
            Err(failure) if failure.is_missing_lease() => return Ok(vec![]),
            Err(failure) => return Err(failure.of(Effect::Writes)),
        };
        let done = writes.into_iter().zip(answer.successes()).filter(|(_, success)| *success);
        let done: Vec<_> = done.map(|(write, _)| write).collect();
        for (_, replaced) in &done {
            if let Some(old) = replaced {
                self.wire.revoke(*old).await;
            }
        }
        Ok(done.into_iter().map(|(position, _)| (position, RenewOutcome::Renewed)).collect())
    }

    /// The key is not there: the latest term knows more.
    async fn why_absent(&self, absent: &[Open<'_>]) -> Result<Vec<Settled>, LeaseError> {
        let keys = absent.iter().map(|(_, claim)| self.keys.latest(&claim.scope)).collect();
        let latest = self.read_keys(keys).await?;
        let latest = latest.iter().map(|kv| kv.as_ref().and_then(readable::<LatestTerm>));
        let reasons = absent.iter().zip(latest).map(async |(&(position, claim), latest)| {
            let orphaned = self.end_orphan(claim).await?;
            let outcome = match latest.map(|latest| latest.value) {
                None => RenewOutcome::Lost(LossReason::Gone),
                Some(latest) if !latest.lease.is_claimed_by(claim) => superseded(&latest.lease),
                // Its etcd lease was still running: somebody has deleted the key.
                Some(latest) if latest.released_at.is_none() && orphaned => {
                    RenewOutcome::Lost(LossReason::Gone)
                }
                Some(_) => RenewOutcome::Lost(LossReason::Expired),
            };
            Ok((position, outcome))
        });
        in_order(reasons.collect()).await
    }

    /// Ends the etcd lease of a term whose key is gone; answers whether it was still running.
    async fn end_orphan(&self, claim: &Claim) -> Result<bool, LeaseError> {
        let etcd_lease = self.keys.etcd_lease(&claim.scope, claim.term, seconds(claim.duration));
        let running = self.wire.time_to_live(etcd_lease).await?.is_some();
        if running {
            self.wire.revoke(etcd_lease).await;
        }
        Ok(running)
    }
}

impl Ours<'_> {
    /// Nothing has to be written but the mark.
    fn is_on_record(&self) -> bool {
        self.seen.value.says_all_of(self.claim)
    }

    fn session(&self) -> Session {
        self.seen.value.holder.session
    }
}

/// A nested transaction; the claim it settles, and the etcd lease that is of no more use afterwards.
type Rewrite = (RequestOp, (usize, Option<i64>));

/// As many as etcd takes at once, by number and by size.
fn in_chunks(rewrites: Vec<Rewrite>) -> Vec<Vec<Rewrite>> {
    let (mut chunks, mut size) = (vec![], LARGEST_REQUEST);
    for rewrite in rewrites {
        size += rewrite.0.encoded_len();
        match chunks.last_mut() {
            Some(chunk) if size <= LARGEST_REQUEST && Vec::len(chunk) < NESTED => chunk.push(rewrite),
            _ => {
                size = rewrite.0.encoded_len();
                chunks.push(vec![rewrite]);
            }
        }
    }
    chunks
}

fn superseded(by: &StoredLease) -> RenewOutcome {
    RenewOutcome::Lost(LossReason::Superseded { holder: by.holder.clone(), epoch: by.epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(bytes: usize) -> Rewrite {
        (put(b"key".to_vec(), vec![0; bytes], 0), (0, None))
    }

    #[test]
    fn a_request_is_never_too_large_for_etcd() {
        let sizes = |rewrites: Vec<Rewrite>| in_chunks(rewrites).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes((0..250).map(|_| rewrite(1_000)).collect()), [100, 100, 50]);
        assert_eq!(sizes((0..5).map(|_| rewrite(200 << 10)).collect()), [2, 2, 1]);
        assert_eq!(
            sizes(vec![rewrite(2 << 20), rewrite(1)]),
            [1, 1],
            "what is too large is etcd's to refuse"
        );
        assert_eq!(sizes(vec![]), [0_usize; 0]);
    }
}
