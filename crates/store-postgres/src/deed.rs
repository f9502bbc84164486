//! A transaction that may leave attention behind, or change the limits of all shards, and what follows it: whoever
//! owns the shards that it concerns is woken.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use futures::try_join;
use tenure_model::{DagId, RunId, ShardId};
use tenure_store::{Attention, AuditEntry, StoreError, Trigger};
use tokio_postgres::types::ToSql;

use crate::session::{CLOSE, READ_COMMITTED, Session};
use crate::{PostgresStore, batch, rows, wakes};

pub(crate) const LEAVE_ATTENTION: &str =
    "INSERT INTO attention (shard, what) SELECT * FROM unnest($1::integer[], $2::text[])";
const NEXT_LIMITS: &str = "UPDATE limits SET version = version + 1 WHERE id = 1";
pub(crate) const NOTIFY: &str = "SELECT pg_notify($1, $2)";
const LEAVE_TRAIL: &str = "INSERT INTO audit (at, tenant, dag_id, run_id, actor, entries)
    VALUES ($1, $2, $3, $4, $5, $6)";

pub(crate) struct Deed<'a> {
    pub(crate) session: Session,
    pub(crate) store: &'a PostgresStore,
    /// Shards that were left something.
    named: Mutex<BTreeSet<ShardId>>,
    /// What all shards draw from is not what it was.
    new_limits: AtomicBool,
}

impl PostgresStore {
    /// At this level those that change the limits at the same time wait for each other; at a higher one all but the
    /// first would be refused.
    pub(crate) async fn deed(&self, doing: &'static str) -> Result<Deed<'_>, StoreError> {
        let session = Session::borrow(&self.pool, doing).await?;
        session.batch(READ_COMMITTED).await?;
        Ok(self.deed_on(session))
    }

    /// On a connection on which the caller begins by itself.
    pub(crate) fn deed_on(&self, session: Session) -> Deed<'_> {
        Deed { session, store: self, named: Mutex::default(), new_limits: AtomicBool::default() }
    }

    pub(crate) async fn done<T>(
        &self,
        deed: Deed<'_>,
        outcome: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Deed { session, named, new_limits, .. } = deed;
        if outcome.is_ok() && new_limits.into_inner() {
            self.commit_new_limits(session).await?;
            self.wakes.wake_all();
            return outcome;
        }
        let value = session.finish(outcome).await?;
        self.wakes.wake(&named.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(value)
    }

    /// The new version leaves together with the COMMIT: whoever else changes the limits waits for its row, and should
    /// wait for the disk of the database and not for this process.
    async fn commit_new_limits(&self, session: Session) -> Result<(), StoreError> {
        session.prepare(&[NEXT_LIMITS, NOTIFY]).await?;
        let session = session.committing();
        let note = self.wakes.note_to_all();
        let notify: [&(dyn ToSql + Sync); 2] = [&wakes::CHANNEL, &note];
        // The order of sending: `try_join!` polls from top to bottom. After a refusal the COMMIT undoes everything.
        try_join!(session.execute(NEXT_LIMITS, &[]), session.execute(NOTIFY, &notify), session.batch(CLOSE))?;
        session.give_back();
        Ok(())
    }
}

impl Deed<'_> {
    /// Leaves rows for the owners, and wakes them once this is committed, here and in other processes.
    pub(crate) async fn attention(&self, items: &[(ShardId, Attention)]) -> Result<(), StoreError> {
        if items.is_empty() {
            return Ok(());
        }
        let shards: Vec<i32> = items.iter().map(|(shard, _)| i32::from(shard.0)).collect();
        let text = |what: &Attention| serde_json::to_string(what).expect("attention is plain data");
        let what: Vec<String> = items.iter().map(|(_, what)| text(what)).collect();
        let named: BTreeSet<ShardId> = items.iter().map(|(shard, _)| *shard).collect();
        let note = self.store.wakes.note(&named);
        let leave: [&(dyn ToSql + Sync); 2] = [&shards, &what];
        let notify: [&(dyn ToSql + Sync); 2] = [&wakes::CHANNEL, &note];
        try_join!(self.session.execute(LEAVE_ATTENTION, &leave), self.session.execute(NOTIFY, &notify))?;
        self.named.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        Ok(())
    }

    /// Gives the limits a new version with the commit, and wakes all owners after it, here and in other processes.
    pub(crate) fn limits_changed(&self) {
        self.new_limits.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn trail(
        &self,
        trigger: &Trigger,
        dag: Option<&DagId>,
        run: Option<&RunId>,
        entry: AuditEntry,
    ) -> Result<(), StoreError> {
        let (tenant, actor) = (trigger.tenant.as_str(), rows::storable(&trigger.actor));
        let (dag, run) = (dag.map(DagId::as_str), run.map(RunId::as_str));
        let entries = batch::entries_text(&[entry]);
        self.session.execute(LEAVE_TRAIL, &[&trigger.at, &tenant, &dag, &run, &actor, &entries]).await?;
        Ok(())
    }
}
