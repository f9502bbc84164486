//! What the controller's leader forgets (old runs, old audit rows, members that are gone) and what it tells.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};
use tenure_lease::{EpochGuard, MEMBERS};
use tenure_model::{NodeId, RunId, RunKey, RunState, TenantId};
use tenure_store::{AuditEntry, CONTROLLER_SCOPE, ChoreStore, DrainStage, StoreError};

use crate::errors::Fail;
use crate::leases::{Authority, check_fence};
use crate::rows::{At, all, one};
use crate::trail::{self, By};
use crate::writer::Tx;
use crate::{Office, SqliteStore, limits};

#[async_trait]
impl ChoreStore for SqliteStore {
    async fn delete_old_runs(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = Authority::from(guard);
        let work =
            move |conn: &Connection, office: &Office| delete_runs(conn, office, &authority, before, limit);
        self.write("forgetting old runs", move |tx, office| work(tx, office)).await
    }

    async fn delete_old_audit(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = Authority::from(guard);
        self.write("forgetting old audit rows", move |tx, _| delete_audit(tx, &authority, before, limit))
            .await
    }

    async fn advance_drain(
        &self,
        guard: &EpochGuard<'_>,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError> {
        let (authority, node) = (Authority::from(guard), node.clone());
        let work = move |tx: &Tx<'_>, office: &Office| {
            limits::advance_drain(tx, office, &authority, &node, since, to)
        };
        self.write("moving a drain on", work).await
    }

    async fn delete_old_members(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = Authority::from(guard);
        let work = move |conn: &Connection, office: &Office| {
            // What still holds is kept, whatever time the caller thinks it is.
            delete_members(conn, &authority, before.min(office.clock.now()), limit)
        };
        self.write("forgetting members that are gone", move |tx, office| work(tx, office)).await
    }

    async fn tell_signals(
        &self,
        guard: &EpochGuard<'_>,
        at: Timestamp,
        entries: &[AuditEntry],
        open: &str,
    ) -> Result<(), StoreError> {
        let (authority, entries, open) = (Authority::from(guard), entries.to_vec(), open.to_owned());
        let work = move |conn: &Connection| tell_signals(conn, &authority, at, &entries, &open);
        self.write("telling of signals", move |tx, _| work(tx)).await
    }

    async fn open_signals(&self) -> Result<Option<String>, StoreError> {
        self.read("reading which signals are open", |conn, _| {
            one(&mut conn.prepare_cached(OPEN_SIGNALS)?, [], |cells| cells.take())
        })
        .await
    }
}

const OPEN_SIGNALS: &str = "SELECT value FROM meta WHERE name = 'signals'";

fn tell_signals(
    conn: &Connection,
    authority: &Authority,
    at: Timestamp,
    entries: &[AuditEntry],
    open: &str,
) -> Result<(), Fail> {
    check_controller(conn, authority)?;
    let tenant = TenantId::default_tenant();
    let authority = Some((authority.scope.as_str(), authority.epoch.0));
    trail::audit(conn, By { tenant: &tenant, actor: "controller", at, authority }, None, None, entries)?;
    let mut keep = conn.prepare_cached(
        "INSERT INTO meta (name, value) VALUES ('signals', ?1)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )?;
    keep.execute([open])?;
    Ok(())
}

fn check_controller(conn: &Connection, authority: &Authority) -> Result<(), Fail> {
    let scope = authority.scope.as_str();
    if scope != CONTROLLER_SCOPE {
        return Err(Fail::conflict(format!("{scope} has no authority over chores; {CONTROLLER_SCOPE} has")));
    }
    check_fence(conn, authority)
}

struct OldRun {
    key: RunKey,
    tenant: TenantId,
    dag: String,
    run_id: RunId,
    state: RunState,
}

/// Of a dag's runs the newest stays, and the one that the next may depend on.
pub(crate) const OLD_RUNS: &str = "SELECT key, tenant, dag_id, run_id, state FROM runs r
     WHERE state IN ('success', 'failed') AND ended_at < ?1
       AND EXISTS (SELECT 1 FROM runs n WHERE n.tenant = r.tenant AND n.dag_id = r.dag_id AND n.key > r.key)
       AND (logical_date IS NULL OR EXISTS
            (SELECT 1 FROM runs n WHERE n.tenant = r.tenant AND n.dag_id = r.dag_id
                AND n.logical_date IS NOT NULL AND n.logical_date > r.logical_date))
     ORDER BY ended_at LIMIT ?2";

/// Task instances, tries and results go with their run, by their references to it.
fn delete_runs(
    conn: &Connection,
    office: &Office,
    authority: &Authority,
    before: Timestamp,
    limit: u32,
) -> Result<u64, Fail> {
    check_controller(conn, authority)?;
    let old = all(&mut conn.prepare_cached(OLD_RUNS)?, params![At(before), limit], |cells| {
        let (key, tenant, dag) = (RunKey(cells.take()?), cells.text()?, cells.take()?);
        Ok(OldRun { key, tenant, dag, run_id: cells.text()?, state: cells.run_state()? })
    })?;
    let at = office.clock.now();
    for OldRun { key, tenant, dag, run_id, state } in &old {
        conn.prepare_cached("DELETE FROM runs WHERE key = ?1")?.execute([key.0])?;
        let authority = Some((authority.scope.as_str(), authority.epoch.0));
        let by = By { tenant, actor: "controller", at, authority };
        let reason = Some(format!("finished before {before}"));
        let entry = AuditEntry { reason, ..trail::entry("deleted", state.as_str(), "") };
        trail::audit(conn, by, Some(&dag.as_str().into()), Some(run_id), &[entry])?;
    }
    Ok(old.len() as u64)
}

/// Rows come in the order of time but for the differences of clocks, so only the first ones need a look.
pub(crate) const OLD_AUDIT: &str = "DELETE FROM audit WHERE seq IN
     (SELECT seq FROM (SELECT seq, at FROM audit ORDER BY seq LIMIT ?2) WHERE at < ?1)";

fn delete_audit(
    conn: &Connection,
    authority: &Authority,
    before: Timestamp,
    limit: u32,
) -> Result<u64, Fail> {
    check_controller(conn, authority)?;
    Ok(conn.prepare_cached(OLD_AUDIT)?.execute(params![At(before), limit])? as u64)
}

/// Fences stay: they are the floor under every epoch, also under that of a seat which is taken again.
fn delete_members(
    conn: &Connection,
    authority: &Authority,
    before: Timestamp,
    limit: u32,
) -> Result<u64, Fail> {
    check_controller(conn, authority)?;
    // Seats begin alike and are neighbours in the primary key; what comes after them begins with more.
    let mut seats = conn.prepare_cached(
        "SELECT scope FROM leases WHERE scope >= ?1 AND scope < ?1 || char(1114111) AND expires_at < ?2
         ORDER BY scope LIMIT ?3",
    )?;
    let seats = all(&mut seats, params![MEMBERS, At(before), limit], |cells| cells.take::<String>())?;
    for seat in &seats {
        conn.prepare_cached("DELETE FROM leases WHERE scope = ?1")?.execute([seat])?;
        conn.prepare_cached("DELETE FROM lease_terms WHERE scope = ?1")?.execute([seat])?;
    }
    let left = i64::from(limit) - seats.len() as i64;
    let mut replicas = conn.prepare_cached(
        "DELETE FROM presence WHERE replica IN
             (SELECT replica FROM presence WHERE at < ?1 ORDER BY at, replica LIMIT ?2)",
    )?;
    let replicas = replicas.execute(params![At(before), left])?;
    Ok((seats.len() + replicas) as u64)
}
