//! The users' verbs, each one job for the writer.

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{Ack, DagId, NewRun, NodeId, PoolName, Report, RunId, RunState, TenantId};
use tenure_store::{
    ClearRequest, Cleared, CreateRunOutcome, DagRegistration, IntentStore, MarkRequest, NodeRecord,
    NodeRegistration, PoolRecord, Quota, Registered, RunView, StoreError, TiView, Trigger,
};

use crate::rows::kept;
use crate::writer::Tx;
use crate::{Office, SqliteStore, edits, limits, registration, reports, runs};

#[async_trait]
impl IntentStore for SqliteStore {
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError> {
        let trigger = kept_trigger(&registration.trigger);
        let (request, canonical) =
            (DagRegistration { trigger, ..registration.clone() }, registration.spec.canonical_json());
        let doing = "registering a dag";
        self.write(doing, move |tx, office| registration::register(tx, office, &request, &canonical)).await
    }

    async fn set_paused(&self, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), StoreError> {
        let (trigger, dag) = (kept_trigger(trigger), dag.clone());
        self.write("pausing a dag", move |tx, _| registration::set_paused(tx, &trigger, &dag, paused)).await
    }

    async fn delete_dag(&self, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
        let (trigger, dag) = (kept_trigger(trigger), dag.clone());
        self.write("deleting a dag", move |tx, _| registration::delete(tx, &trigger, &dag)).await
    }

    async fn create_run(&self, trigger: &Trigger, run: &NewRun) -> Result<CreateRunOutcome, StoreError> {
        let (trigger, run) = (kept_trigger(trigger), run.clone());
        self.write("creating a run", move |tx, office| runs::create(tx, office, &trigger, &run)).await
    }

    async fn delete_run(&self, trigger: &Trigger, dag: &DagId, run: &RunId) -> Result<(), StoreError> {
        let (trigger, dag, run) = (kept_trigger(trigger), dag.clone(), run.clone());
        self.write("deleting a run", move |tx, _| runs::delete(tx, &trigger, &dag, &run)).await
    }

    async fn set_run_state(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        state: RunState,
    ) -> Result<RunView, StoreError> {
        let (trigger, dag, run) = (kept_trigger(trigger), dag.clone(), run.clone());
        let doing = "setting a run's state";
        self.write(doing, move |tx, office| edits::set_run_state(tx, office, &trigger, &dag, &run, state))
            .await
    }

    async fn set_run_note(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        note: Option<&str>,
    ) -> Result<RunView, StoreError> {
        let (trigger, dag, run, note) =
            (kept_trigger(trigger), dag.clone(), run.clone(), note.map(str::to_owned));
        self.write("noting a run", move |tx, _| runs::set_note(tx, &trigger, &dag, &run, note.as_deref()))
            .await
    }

    async fn clear(&self, trigger: &Trigger, request: &ClearRequest) -> Result<Cleared, StoreError> {
        let (trigger, request) = (kept_trigger(trigger), request.clone());
        self.write("clearing tasks", move |tx, office| edits::clear(tx, office, &trigger, &request)).await
    }

    async fn mark(&self, trigger: &Trigger, request: &MarkRequest) -> Result<Vec<TiView>, StoreError> {
        let (trigger, request) = (kept_trigger(trigger), request.clone());
        self.write("marking tasks", move |tx, office| edits::mark(tx, office, &trigger, &request)).await
    }

    async fn put_pool(&self, trigger: &Trigger, pool: &PoolRecord) -> Result<(), StoreError> {
        let (trigger, pool) = (kept_trigger(trigger), pool.clone());
        self.write("setting a pool", move |tx, office| limits::put_pool(tx, office, &trigger, &pool)).await
    }

    async fn put_quota(&self, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError> {
        let (trigger, quota) = (kept_trigger(trigger), quota.clone());
        self.write("setting a quota", move |tx, office| limits::put_quota(tx, office, &trigger, &quota)).await
    }

    async fn delete_quota(&self, trigger: &Trigger, tenant: &TenantId) -> Result<(), StoreError> {
        let (trigger, tenant) = (kept_trigger(trigger), tenant.clone());
        self.write("deleting a quota", move |tx, office| limits::delete_quota(tx, office, &trigger, &tenant))
            .await
    }

    async fn delete_pool(&self, trigger: &Trigger, pool: &PoolName) -> Result<(), StoreError> {
        let (trigger, pool) = (kept_trigger(trigger), pool.clone());
        self.write("deleting a pool", move |tx, office| limits::delete_pool(tx, office, &trigger, &pool))
            .await
    }

    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError> {
        let (node, at) = (node.clone(), kept(at));
        self.write("registering a node", move |tx, office| limits::register_node(tx, office, &node, at)).await
    }

    async fn drain_node(
        &self,
        trigger: &Trigger,
        node: &NodeId,
        deadline: Timestamp,
    ) -> Result<NodeRecord, StoreError> {
        let (trigger, node) = (kept_trigger(trigger), node.clone());
        let work =
            move |tx: &Tx<'_>, office: &Office| limits::drain_node(tx, office, &trigger, &node, deadline);
        self.write("draining a node", work).await
    }

    async fn undrain_node(&self, trigger: &Trigger, node: &NodeId) -> Result<NodeRecord, StoreError> {
        let (trigger, node) = (kept_trigger(trigger), node.clone());
        self.write("undraining a node", move |tx, office| limits::undrain_node(tx, office, &trigger, &node))
            .await
    }

    async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError> {
        let (reports, at) = (reports.to_vec(), kept(at));
        self.write("recording reports", move |tx, _| reports::record(tx, &reports, at)).await
    }

    async fn admin_token(&self, offered: Option<&str>) -> Result<Option<String>, StoreError> {
        let Some(offered) = offered.map(str::to_owned) else {
            return self.read("reading the admin token", |conn, _| registration::admin_token(conn)).await;
        };
        self.write("offering an admin token", move |tx, _| registration::offer_admin_token(tx, &offered))
            .await
    }
}

fn kept_trigger(trigger: &Trigger) -> Trigger {
    Trigger { at: kept(trigger.at), ..trigger.clone() }
}
