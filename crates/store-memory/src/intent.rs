//! The users' and the agents' verbs.

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{Ack, DagId, NewRun, NodeId, PoolName, Report, RunId, RunState, TenantId};
use tenure_store::{
    ClearRequest, Cleared, CreateRunOutcome, DagRegistration, IntentStore, MarkRequest, NodeRecord,
    NodeRegistration, PoolRecord, Quota, Registered, RunView, StoreError, TiView, Trigger,
};

use crate::{Flaw, MemoryStore, dags, edits, limits, runs};

/// Runs, for a store that loses some.
const LOST_EVERY: i64 = 20;

#[async_trait]
impl IntentStore for MemoryStore {
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError> {
        self.write(|tables| dags::register(tables, registration))
    }

    async fn set_paused(&self, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), StoreError> {
        self.write(|tables| dags::set_paused(tables, trigger, dag, paused))
    }

    async fn delete_dag(&self, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
        self.write(|tables| dags::delete(tables, trigger, dag))
    }

    async fn create_run(&self, trigger: &Trigger, run: &NewRun) -> Result<CreateRunOutcome, StoreError> {
        self.write(|tables| {
            let outcome = runs::create(tables, trigger, run)?;
            if let (Some(Flaw::LosesRuns), CreateRunOutcome::Created(run)) = (self.flaw, &outcome)
                && run.key.0 % LOST_EVERY == 0
            {
                tables.forget_run(run.key);
            }
            Ok(outcome)
        })
    }

    async fn delete_run(&self, trigger: &Trigger, dag: &DagId, run: &RunId) -> Result<(), StoreError> {
        self.write(|tables| runs::delete(tables, trigger, dag, run))
    }

    async fn set_run_state(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        state: RunState,
    ) -> Result<RunView, StoreError> {
        self.write(|tables| edits::set_run_state(tables, trigger, dag, run, state))
    }

    async fn set_run_note(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        note: Option<&str>,
    ) -> Result<RunView, StoreError> {
        self.write(|tables| runs::set_note(tables, trigger, dag, run, note))
    }

    async fn clear(&self, trigger: &Trigger, request: &ClearRequest) -> Result<Cleared, StoreError> {
        self.write(|tables| edits::clear(tables, trigger, request))
    }

    async fn mark(&self, trigger: &Trigger, request: &MarkRequest) -> Result<Vec<TiView>, StoreError> {
        self.write(|tables| edits::mark(tables, trigger, request))
    }

    async fn put_pool(&self, trigger: &Trigger, pool: &PoolRecord) -> Result<(), StoreError> {
        self.write(|tables| {
            limits::put_pool(tables, trigger, pool);
            Ok(())
        })
    }

    async fn put_quota(&self, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError> {
        self.write(|tables| {
            limits::put_quota(tables, trigger, quota);
            Ok(())
        })
    }

    async fn delete_quota(&self, trigger: &Trigger, tenant: &TenantId) -> Result<(), StoreError> {
        self.write(|tables| limits::delete_quota(tables, trigger, tenant))
    }

    async fn delete_pool(&self, trigger: &Trigger, pool: &PoolName) -> Result<(), StoreError> {
        self.write(|tables| limits::delete_pool(tables, trigger, pool))
    }

    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError> {
        self.write(|tables| Ok(limits::register_node(tables, node, at)))
    }

    async fn drain_node(
        &self,
        trigger: &Trigger,
        node: &NodeId,
        deadline: Timestamp,
    ) -> Result<NodeRecord, StoreError> {
        self.write(|tables| limits::drain_node(tables, trigger, node, deadline))
    }

    async fn undrain_node(&self, trigger: &Trigger, node: &NodeId) -> Result<NodeRecord, StoreError> {
        self.write(|tables| limits::undrain_node(tables, trigger, node))
    }

    async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError> {
        self.write(|tables| Ok(edits::record(tables, reports, at, self.flaw)))
    }

    async fn admin_token(&self, offered: Option<&str>) -> Result<Option<String>, StoreError> {
        Ok(self.read(|tables| {
            if let (None, Some(offered)) = (&tables.admin_token, offered) {
                tables.admin_token = Some(offered.to_owned());
            }
            tables.admin_token.clone()
        }))
    }
}
