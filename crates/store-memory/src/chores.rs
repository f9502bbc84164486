//! What the controller's leader forgets (old runs, old audit rows, members that are gone) and what it tells.

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_lease::{EpochGuard, MEMBERS};
use tenure_model::{NodeId, RunKey, TenantId};
use tenure_store::{AuditEntry, CONTROLLER_SCOPE, ChoreStore, DrainStage, StoreError};

use crate::limits;
use crate::tables::Tables;
use crate::trail::{By, entry};
use crate::{Authority, MemoryStore};

#[async_trait]
impl ChoreStore for MemoryStore {
    async fn delete_old_runs(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = &Authority::from(guard);
        check_controller(authority)?;
        let at = self.clock.now();
        self.fenced(authority, |tables| Ok(delete_runs(tables, authority, before, limit, at)))
    }

    async fn delete_old_audit(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = &Authority::from(guard);
        check_controller(authority)?;
        self.fenced(authority, |tables| {
            // Rows come in the order of time but for the differences of clocks, so only the first ones need a look.
            let first = tables.audit.iter().take(limit as usize);
            let old: Vec<i64> = first.filter(|(_, row)| row.view.at < before).map(|(seq, _)| *seq).collect();
            old.iter().for_each(|seq| drop(tables.audit.remove(seq)));
            Ok(old.len() as u64)
        })
    }

    async fn advance_drain(
        &self,
        guard: &EpochGuard<'_>,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError> {
        self.advance_drain_as(&Authority::from(guard), node, since, to)
    }

    async fn delete_old_members(
        &self,
        guard: &EpochGuard<'_>,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let authority = &Authority::from(guard);
        check_controller(authority)?;
        // What still holds is kept, whatever time the caller thinks it is.
        let before = before.min(self.clock.now());
        // Seats carry no authority, so they may go after the rows that the fence guards.
        self.fenced(authority, |_| Ok(()))?;
        let seats = self.leases.forget_expired(MEMBERS, before, limit as usize) as u64;
        let left = limit as usize - seats as usize;
        let replicas = self.fenced(authority, |tables| {
            let mut old: Vec<(Timestamp, String)> = tables
                .presence
                .iter()
                .filter(|(_, (at, _))| *at < before)
                .map(|(replica, (at, _))| (*at, replica.clone()))
                .collect();
            old.sort();
            old.truncate(left);
            old.iter().for_each(|(_, replica)| drop(tables.presence.remove(replica)));
            Ok(old.len() as u64)
        })?;
        Ok(seats + replicas)
    }

    async fn tell_signals(
        &self,
        guard: &EpochGuard<'_>,
        at: Timestamp,
        entries: &[AuditEntry],
        open: &str,
    ) -> Result<(), StoreError> {
        let authority = &Authority::from(guard);
        check_controller(authority)?;
        self.fenced(authority, |tables| {
            let tenant = TenantId::default_tenant();
            let by = By { tenant: &tenant, actor: "controller", at, authority: Some(authority) };
            tables.audit(by, None, None, entries.to_vec());
            tables.open_signals = Some(open.to_owned());
            Ok(())
        })
    }

    async fn open_signals(&self) -> Result<Option<String>, StoreError> {
        Ok(self.read(|tables| tables.open_signals.clone()))
    }
}

impl MemoryStore {
    /// By the word of a guard that may be gone by now.
    pub fn advance_drain_as(
        &self,
        authority: &Authority,
        node: &NodeId,
        since: Timestamp,
        to: DrainStage,
    ) -> Result<bool, StoreError> {
        limits::check_drain(authority, node)?;
        self.fenced(authority, |tables| Ok(limits::advance_drain(tables, node, since, to)))
    }
}

fn check_controller(authority: &Authority) -> Result<(), StoreError> {
    let scope = authority.scope.as_str();
    if scope == CONTROLLER_SCOPE {
        return Ok(());
    }
    Err(StoreError::Conflict(format!("{scope} has no authority over chores; {CONTROLLER_SCOPE} has")))
}

/// Of a dag's runs the newest stays, and the one that the next may depend on.
fn delete_runs(
    tables: &mut Tables,
    authority: &Authority,
    before: Timestamp,
    limit: u32,
    at: Timestamp,
) -> u64 {
    let mut old: Vec<(Timestamp, RunKey)> = vec![];
    for dag in tables.dags.values() {
        let newest = dag.runs.values().max();
        let latest = dag.by_date.values().next_back();
        let expendable = dag.runs.values().filter(|key| Some(*key) != newest && Some(*key) != latest);
        for key in expendable {
            let view = &tables.runs[key].view;
            let ended = view.ended_at.filter(|ended| view.state.is_finished() && *ended < before);
            old.extend(ended.map(|ended| (ended, *key)));
        }
    }
    old.sort();
    old.truncate(limit as usize);
    for (_, key) in &old {
        let view = tables.runs[key].view.clone();
        tables.forget_run(*key);
        let by = By { tenant: &view.tenant, actor: "controller", at, authority: Some(authority) };
        let reason = Some(format!("finished before {before}"));
        let deleted = AuditEntry { reason, ..entry("deleted", view.state.as_str(), "") };
        tables.audit(by, Some(&view.dag), Some(&view.run_id), vec![deleted]);
    }
    old.len() as u64
}
