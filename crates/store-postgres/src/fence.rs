//! The fence, as every privileged transaction checks it.

use tenure_lease::{Epoch, EpochGuard};
use tenure_model::ShardId;
use tenure_store::StoreError;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::PostgresStore;
use crate::rows::Cells;

/// Share mode: a takeover waits for this transaction, and this one for a takeover that came first. A plain
/// read, or FOR KEY SHARE, would let a stale write commit after the epoch has moved. Beside it the number of
/// shards: an owner that was started before it changed has another idea of what its shard is.
pub(crate) const FENCE: &str = "SELECT f.epoch, f.term, (SELECT value FROM meta WHERE name = 'shards')
    FROM fences f WHERE f.scope = $1 FOR SHARE OF f";

impl PostgresStore {
    pub(crate) fn guarded_shard(&self, guard: &EpochGuard<'_>) -> Result<ShardId, StoreError> {
        let scope = guard.scope().as_str();
        (0..self.shards).map(ShardId).find(|shard| shard.scope() == scope).ok_or_else(|| {
            StoreError::Conflict(format!("{scope} is no shard of this database, which has {}", self.shards))
        })
    }

    /// Of the answer to [`FENCE`].
    pub(crate) fn check_fence(&self, rows: &[Row], guard: &EpochGuard<'_>) -> Result<(), StoreError> {
        let ours = guard.epoch();
        let Some(row) = rows.first() else { return Err(StoreError::Fenced { ours, current: None }) };
        let mut cells = Cells::of(row);
        let (current, term) = (Epoch(cells.big_number()?), cells.take::<Uuid>()?);
        if current != ours || term != guard.term().0 {
            return Err(StoreError::Fenced { ours, current: Some(current) });
        }
        self.check_shards(cells.take()?)
    }

    /// What the database says now, against what it said when this process connected.
    pub(crate) fn check_shards(&self, now: Option<&str>) -> Result<(), StoreError> {
        let before = self.shards;
        match now {
            Some(now) if now.parse() == Ok(before) => Ok(()),
            now => Err(StoreError::Conflict(format!(
                "the database has {} shards now and had {before} when this process connected: restart it",
                now.unwrap_or("no")
            ))),
        }
    }
}
