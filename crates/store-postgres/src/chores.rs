//! Tidying up, a little at a time, under the controller's fence, and telling of what its leader has seen. Each verb that
//! deletes starts from an index that has the oldest
//! first, and stops at its limit: what it costs does not grow with what stays.

use async_trait::async_trait;
use futures::try_join;
use jiff::Timestamp;
use tenure_lease::EpochGuard;
use tenure_model::{NodeId, TenantId};
use tenure_store::{AuditEntry, CONTROLLER_SCOPE, ChoreStore, DrainStage, StoreError, drain_scope};
use tokio_postgres::types::ToSql;

use crate::fence::FENCE;
use crate::intent::fleet;
use crate::rows;
use crate::session::{READ_WRITE, Session};
use crate::{PostgresStore, batch};

/// A run may have ten thousand tasks: beyond this many, the rest waits for the next time.
const MOST_TASKS: i64 = 20_000;

/// The newest run of a dag, and the one with its latest logical date, have none after them. What somebody holds is
/// left for the next time; a dag's row is locked too, so that nobody deletes the dag meanwhile.
pub(crate) const OLD_RUNS: &str = "SELECT r.key, coalesce(cardinality(v.task_ids), 0)::bigint
    FROM runs r JOIN dags d ON d.tenant = r.tenant AND d.dag_id = r.dag_id
    LEFT JOIN dag_versions v ON v.tenant = r.tenant AND v.dag_id = r.dag_id AND v.version = r.version
    WHERE r.state IN ('success', 'failed') AND r.ended_at < $1
        AND EXISTS (SELECT FROM runs n WHERE n.tenant = r.tenant AND n.dag_id = r.dag_id AND n.key > r.key)
        AND (r.logical_date IS NULL OR EXISTS (SELECT FROM runs n WHERE n.tenant = r.tenant
            AND n.dag_id = r.dag_id AND n.logical_date > r.logical_date))
    ORDER BY r.ended_at LIMIT $2 FOR UPDATE OF r SKIP LOCKED FOR KEY SHARE OF d SKIP LOCKED";
const TELL: &str = "INSERT INTO audit (at, tenant, dag_id, run_id, actor, scope, epoch, entries)
    SELECT clock_timestamp(), r.tenant, r.dag_id, r.run_id, $2, $3, $4, replace($5, '$state', r.state)
    FROM runs r WHERE r.key = ANY($1) ORDER BY r.key";
/// From the leaves to the root.
const FORGET_RUNS: [&str; 4] = [
    "DELETE FROM results WHERE run = ANY($1)",
    "DELETE FROM tries WHERE run = ANY($1)",
    "DELETE FROM task_instances WHERE run = ANY($1)",
    "DELETE FROM runs WHERE key = ANY($1)",
];

/// Rows are written nearly in the order of time: the oldest are at one end. Clocks of replicas differ a little, so
/// that a few more are looked at than may go.
pub(crate) const OLD_AUDIT: &str = "DELETE FROM audit WHERE seq = ANY(ARRAY(
        SELECT o.seq FROM (SELECT seq, at FROM audit ORDER BY seq LIMIT $2::bigint + 1000) AS o
        WHERE o.at < $1 ORDER BY o.seq LIMIT $2::bigint))";

/// Seats of members (`members/…`) and nothing else: other leases are few, and people look at them. The epoch lives
/// on in the fence.
pub(crate) const OLD_SEATS: &str = "WITH gone AS (
        DELETE FROM leases WHERE scope = ANY(ARRAY(
            SELECT l.scope FROM leases l WHERE l.scope >= 'members/' AND l.scope < 'members0'
                AND l.expires_at < $1 AND l.expires_at < clock_timestamp()
            ORDER BY l.scope LIMIT $2 FOR UPDATE SKIP LOCKED))
        RETURNING scope
    ), terms AS (
        DELETE FROM lease_terms t USING gone WHERE t.scope = gone.scope
    ) SELECT count(*) FROM gone";
pub(crate) const OLD_PRESENCE: &str = "DELETE FROM presence WHERE replica = ANY(ARRAY(
        SELECT replica FROM presence WHERE at < $1 ORDER BY replica LIMIT $2 FOR UPDATE SKIP LOCKED))";

const TELL_SIGNALS: &str = "INSERT INTO audit (at, tenant, actor, scope, epoch, entries)
    VALUES ($1, $2, $3, $4, $5, $6)";
const KEEP_SIGNALS: &str = "INSERT INTO meta (name, value) VALUES ('signals', $1)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";
const OPEN_SIGNALS: &str = "SELECT value FROM meta WHERE name = 'signals'";

#[async_trait]
impl ChoreStore for PostgresStore {
    async fn delete_old_runs(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let session = self.chore(guard, "deleting old runs").await?;
        let outcome = delete_runs(&session, guard, before, limit).await;
        session.finish(outcome).await
    }

    async fn delete_old_audit(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let session = self.chore(guard, "deleting old audit rows").await?;
        let outcome = session.execute(OLD_AUDIT, &[&before, &i64::from(limit)]).await;
        session.finish(outcome).await
    }

    async fn advance_drain(
        &self,
        guard: &EpochGuard<'_>,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError> {
        let (scope, wanted) = (guard.scope(), drain_scope(node));
        if *scope != wanted {
            let text = format!("{scope} has no authority over the drain of {node}; {wanted} has");
            return Err(StoreError::Conflict(text));
        }
        let deed = self.deed_on(self.fenced(guard, "moving a drain on").await?);
        let outcome = fleet::advance_drain(&deed, node, since, to).await;
        self.done(deed, outcome).await
    }

    async fn delete_old_members(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let session = self.chore(guard, "forgetting members that are gone").await?;
        let outcome = delete_members(&session, before, limit).await;
        session.finish(outcome).await
    }

    async fn tell_signals(
        &self,
        guard: &EpochGuard<'_>,
        at: Timestamp,
        entries: &[AuditEntry],
        open: &str,
    ) -> Result<(), StoreError> {
        let session = self.chore(guard, "telling of signals").await?;
        let outcome = tell_signals(&session, guard, at, entries, open).await;
        session.finish(outcome).await
    }

    async fn open_signals(&self) -> Result<Option<String>, StoreError> {
        let kept = Session::once(&self.pool, "reading which signals are open", OPEN_SIGNALS, &[]).await?;
        Ok(rows::all(&kept, |cells| cells.take())?.pop())
    }
}

impl PostgresStore {
    /// A transaction that has passed the controller's fence.
    async fn chore(&self, guard: &EpochGuard<'_>, doing: &'static str) -> Result<Session, StoreError> {
        let scope = guard.scope().as_str();
        if scope != CONTROLLER_SCOPE {
            return Err(StoreError::Conflict(format!(
                "chores are for whoever leads {CONTROLLER_SCOPE}, not for {scope}"
            )));
        }
        self.fenced(guard, doing).await
    }

    /// A transaction that has passed the fence of the guard's scope, whatever that is.
    async fn fenced(&self, guard: &EpochGuard<'_>, doing: &'static str) -> Result<Session, StoreError> {
        let session = Session::borrow(&self.pool, doing).await?;
        session.prepare(&[FENCE]).await?;
        let scope: [&(dyn ToSql + Sync); 1] = [&guard.scope().as_str()];
        let (_, fence) = try_join!(session.batch(READ_WRITE), session.rows(FENCE, &scope))?;
        match self.check_fence(&fence, guard) {
            Ok(()) => Ok(session),
            Err(refused) => session.finish(Err(refused)).await,
        }
    }
}

async fn delete_runs(
    session: &Session,
    guard: &EpochGuard<'_>,
    before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    let found = session.rows(OLD_RUNS, &[&before, &i64::from(limit)]).await?;
    let mut tasks_before = 0;
    let fits = |(_, tasks): &(i64, i64)| {
        let fits = tasks_before < MOST_TASKS;
        tasks_before += tasks;
        fits
    };
    let found = rows::all(&found, |cells| Ok((cells.take()?, cells.take()?)))?;
    let keys: Vec<i64> = found.into_iter().take_while(fits).map(|(key, _)| key).collect();
    if keys.is_empty() {
        return Ok(0);
    }
    let entry = AuditEntry { from: "$state".into(), ..batch::entry("deleted") };
    let (scope, epoch) = (guard.scope().as_str(), guard.epoch().0 as i64);
    let told: [&(dyn ToSql + Sync); 5] =
        [&keys, &"retention", &scope, &epoch, &batch::entries_text(&[entry])];
    session.execute(TELL, &told).await?;
    for sql in FORGET_RUNS {
        session.execute(sql, &[&keys]).await?;
    }
    Ok(keys.len() as u64)
}

async fn tell_signals(
    session: &Session,
    guard: &EpochGuard<'_>,
    at: Timestamp,
    entries: &[AuditEntry],
    open: &str,
) -> Result<(), StoreError> {
    let tenant = TenantId::default_tenant();
    let (scope, epoch) = (guard.scope().as_str(), guard.epoch().0 as i64);
    let entries = batch::entries_text(entries);
    let told: [&(dyn ToSql + Sync); 6] = [&at, &tenant.as_str(), &"controller", &scope, &epoch, &entries];
    session.execute(TELL_SIGNALS, &told).await?;
    session.execute(KEEP_SIGNALS, &[&open]).await?;
    Ok(())
}

async fn delete_members(session: &Session, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
    let limit = i64::from(limit);
    let seats = session.row(OLD_SEATS, &[&before, &limit]).await?;
    let seats: i64 = seats.expect("an aggregate has one row").get(0);
    let replicas = session.execute(OLD_PRESENCE, &[&before, &(limit - seats)]).await?;
    Ok(seats as u64 + replicas)
}
