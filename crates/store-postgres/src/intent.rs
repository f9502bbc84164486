//! What users and agents ask for: guarded by the state it expects, never fenced, and followed by attention
//! for the owner of the shard in the same transaction.

mod dags;
mod edits;
pub(crate) mod fleet;
mod reports;
mod runs;
mod tokens;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{Ack, DagId, NewRun, NodeId, PoolName, Report, RunId, RunState, TenantId};
use tenure_store::{
    ClearRequest, Cleared, CreateRunOutcome, DagRegistration, IntentStore, MarkRequest, NodeRecord,
    NodeRegistration, PoolRecord, Quota, Registered, RunView, StoreError, TiView, Trigger,
};

use crate::PostgresStore;
use crate::deed::Deed;

#[async_trait]
impl IntentStore for PostgresStore {
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError> {
        // Before the transaction begins: a large dag takes a while, and the server ends sessions that keep it waiting.
        let canonical = dags::Canonical::of(registration);
        let deed = self.deed("registering a dag").await?;
        let outcome = dags::register(&deed, registration, canonical).await;
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

    async fn put_quota(&self, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError> {
        let deed = self.deed("setting a quota").await?;
        let outcome = fleet::put_quota(&deed, trigger, quota).await;
        self.done(deed, outcome).await
    }

    async fn delete_quota(&self, trigger: &Trigger, tenant: &TenantId) -> Result<(), StoreError> {
        let deed = self.deed("deleting a quota").await?;
        let outcome = fleet::delete_quota(&deed, trigger, tenant).await;
        self.done(deed, outcome).await
    }

    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError> {
        let deed = self.deed("registering a node").await?;
        let outcome = fleet::register_node(&deed, node, at).await;
        self.done(deed, outcome).await
    }

    async fn drain_node(
        &self,
        trigger: &Trigger,
        node: &NodeId,
        deadline: Timestamp,
    ) -> Result<NodeRecord, StoreError> {
        let deed = self.deed("draining a node").await?;
        let outcome = fleet::drain_node(&deed, trigger, node, deadline).await;
        self.done(deed, outcome).await
    }

    async fn undrain_node(&self, trigger: &Trigger, node: &NodeId) -> Result<NodeRecord, StoreError> {
        let deed = self.deed("undraining a node").await?;
        let outcome = fleet::undrain_node(&deed, trigger, node).await;
        self.done(deed, outcome).await
    }

    async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError> {
        reports::record(self, reports, at).await
    }

    async fn admin_token(&self, offered: Option<&str>) -> Result<Option<String>, StoreError> {
        tokens::admin_token(&self.pool, offered).await
    }
}

fn no_dag(dag: &DagId) -> StoreError {
    StoreError::NotFound(format!("there is no dag {dag}"))
}

fn no_run(dag: &DagId, run: &RunId) -> StoreError {
    StoreError::NotFound(format!("dag {dag} has no run {run}"))
}
