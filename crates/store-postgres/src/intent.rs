//! What users and agents ask for: guarded by the state it expects, never fenced, and followed by attention
//! for the owner of the shard in the same transaction.

mod dags;
mod edits;
mod fleet;
mod runs;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{DagId, NewRun, PoolName, RunId, RunState, ShardId};
use tenure_store::{
    Attention, AuditEntry, ClearRequest, Cleared, CreateRunOutcome, DagRegistration, IntentStore,
    MarkRequest, NodeRecord, NodeRegistration, PoolRecord, Registered, RunView, StoreError, TiView, Trigger,
};

use crate::session::Session;
use crate::{PostgresStore, batch, rows, wakes};

const LEAVE_ATTENTION: &str =
    "INSERT INTO attention (shard, what) SELECT * FROM unnest($1::integer[], $2::text[])";
const NOTIFY: &str = "SELECT pg_notify($1, $2)";
const LEAVE_TRAIL: &str = "INSERT INTO audit (at, tenant, dag_id, run_id, actor, entries)
    VALUES ($1, $2, $3, $4, $5, $6)";

#[async_trait]
impl IntentStore for PostgresStore {
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError> {
        let deed = self.deed("registering a dag").await?;
        let outcome = dags::register(&deed, registration).await;
        self.done(deed, outcome).await
    }

    async fn set_paused(&self, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), StoreError> {
        let deed = self.deed("pausing a dag").await?;
        let outcome = dags::set_paused(&deed, trigger, dag, paused).await;
        self.done(deed, outcome).await
    }

    async fn delete_dag(&self, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
        let deed = self.deed("deleting a dag").await?;
        let outcome = dags::delete(&deed, trigger, dag).await;
        self.done(deed, outcome).await
    }

    async fn create_run(&self, trigger: &Trigger, run: &NewRun) -> Result<CreateRunOutcome, StoreError> {
        let deed = self.deed("creating a run").await?;
        let outcome = runs::create(&deed, trigger, run).await;
        self.done(deed, outcome).await
    }

    async fn delete_run(&self, trigger: &Trigger, dag: &DagId, run: &RunId) -> Result<(), StoreError> {
        let deed = self.deed("deleting a run").await?;
        let outcome = runs::delete(&deed, trigger, dag, run).await;
        self.done(deed, outcome).await
    }

    async fn set_run_state(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        state: RunState,
    ) -> Result<RunView, StoreError> {
        let deed = self.deed("changing the state of a run").await?;
        let outcome = edits::set_run_state(&deed, trigger, dag, run, state).await;
        self.done(deed, outcome).await
    }

    async fn set_run_note(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        note: Option<&str>,
    ) -> Result<RunView, StoreError> {
        let deed = self.deed("writing the note of a run").await?;
        let outcome = runs::set_note(&deed, trigger, dag, run, note).await;
        self.done(deed, outcome).await
    }

    async fn clear(&self, trigger: &Trigger, request: &ClearRequest) -> Result<Cleared, StoreError> {
        let deed = self.deed("clearing task instances").await?;
        let outcome = edits::clear(&deed, trigger, request).await;
        self.done(deed, outcome).await
    }

    async fn mark(&self, trigger: &Trigger, request: &MarkRequest) -> Result<Vec<TiView>, StoreError> {
        let deed = self.deed("marking task instances").await?;
        let outcome = edits::mark(&deed, trigger, request).await;
        self.done(deed, outcome).await
    }

    async fn put_pool(&self, trigger: &Trigger, pool: &PoolRecord) -> Result<(), StoreError> {
        let deed = self.deed("writing a pool").await?;
        let outcome = fleet::put_pool(&deed, trigger, pool).await;
        self.done(deed, outcome).await
    }

    async fn delete_pool(&self, trigger: &Trigger, pool: &PoolName) -> Result<(), StoreError> {
        let deed = self.deed("deleting a pool").await?;
        let outcome = fleet::delete_pool(&deed, trigger, pool).await;
        self.done(deed, outcome).await
    }

    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError> {
        let deed = self.deed("registering a node").await?;
        let outcome = fleet::register_node(&deed, node, at).await;
        self.done(deed, outcome).await
    }
}

impl PostgresStore {
    async fn deed(&self, doing: &'static str) -> Result<Deed<'_>, StoreError> {
        Ok(Deed { session: Session::begin(&self.pool, doing).await?, store: self })
    }

    async fn done<T>(&self, deed: Deed<'_>, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        let value = deed.session.finish(outcome).await?;
        self.wakes.wake();
        Ok(value)
    }
}

/// One intent on its way into the database.
struct Deed<'a> {
    session: Session,
    store: &'a PostgresStore,
}

impl Deed<'_> {
    /// Leaves rows for the owners, and wakes those in other processes once this is committed.
    async fn attention(&self, items: &[(ShardId, Attention)]) -> Result<(), StoreError> {
        if items.is_empty() {
            return Ok(());
        }
        let shards: Vec<i32> = items.iter().map(|(shard, _)| i32::from(shard.0)).collect();
        let text = |what: &Attention| serde_json::to_string(what).expect("attention is plain data");
        let what: Vec<String> = items.iter().map(|(_, what)| text(what)).collect();
        self.session.execute(LEAVE_ATTENTION, &[&shards, &what]).await?;
        self.session.execute(NOTIFY, &[&wakes::CHANNEL, &self.store.wakes.origin()]).await?;
        Ok(())
    }

    async fn attention_of_every_shard(&self, what: &Attention) -> Result<(), StoreError> {
        let items: Vec<_> = (0..self.store.shards).map(|shard| (ShardId(shard), what.clone())).collect();
        self.attention(&items).await
    }

    async fn trail(
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

fn no_dag(dag: &DagId) -> StoreError {
    StoreError::NotFound(format!("there is no dag {dag}"))
}

fn no_run(dag: &DagId, run: &RunId) -> StoreError {
    StoreError::NotFound(format!("dag {dag} has no run {run}"))
}
