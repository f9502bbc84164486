//! Reads for screens. The scheduler uses a few of them, which are boundaries like any other; nobody looks at the rest here.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tenure_model::{DagId, RunId, TaskId, TenantId, TiKey};
use tenure_store::{
    AuditQuery, AuditView, DagActivity, DagQuery, DagView, NodeRecord, Occupancy, Page, Paging, PoolRecord,
    PresenceView, Quota, RunQuery, RunView, StoreError, TiQuery, TiView, TryView, VersionView, Views,
    Waiting,
};

use super::{RemoteStore, remote};

#[async_trait]
impl Views for RemoteStore {
    async fn ping(&self) -> Result<(), StoreError> {
        remote!(self, look "ping", |store| => store.ping())
    }
    async fn occupancy(&self) -> Result<Vec<Occupancy>, StoreError> {
        remote!(self, look "occupancy", |store| => store.occupancy())
    }
    async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        remote!(self, look "list_nodes", |store| => store.list_nodes())
    }
    async fn waiting(&self) -> Result<Vec<Waiting>, StoreError> {
        remote!(self, look "waiting", |store| => store.waiting())
    }
    async fn list_dags(&self, query: &DagQuery) -> Result<Page<DagView>, StoreError> {
        self.world.store.list_dags(query).await
    }
    async fn get_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagView>, StoreError> {
        self.world.store.get_dag(tenant, dag).await
    }
    async fn list_versions(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        paging: &Paging,
    ) -> Result<Page<VersionView>, StoreError> {
        self.world.store.list_versions(tenant, dag, paging).await
    }
    async fn get_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: Option<u32>,
    ) -> Result<Option<VersionView>, StoreError> {
        self.world.store.get_version(tenant, dag, version).await
    }
    async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunView>, StoreError> {
        self.world.store.list_runs(query).await
    }
    async fn get_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
    ) -> Result<Option<RunView>, StoreError> {
        self.world.store.get_run(tenant, dag, run).await
    }
    async fn list_tis(&self, query: &TiQuery) -> Result<Page<TiView>, StoreError> {
        self.world.store.list_tis(query).await
    }
    async fn list_tries(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
        task: &TaskId,
        map_index: i32,
    ) -> Result<Vec<TryView>, StoreError> {
        self.world.store.list_tries(tenant, dag, run, task, map_index).await
    }
    async fn get_result(&self, ti: TiKey) -> Result<Option<Value>, StoreError> {
        self.world.store.get_result(ti).await
    }
    async fn list_audit(&self, query: &AuditQuery) -> Result<Page<AuditView>, StoreError> {
        self.world.store.list_audit(query).await
    }
    async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        self.world.store.list_pools().await
    }
    async fn list_quotas(&self) -> Result<Vec<Quota>, StoreError> {
        self.world.store.list_quotas().await
    }
    async fn dag_activity(&self, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, StoreError> {
        self.world.store.dag_activity(dags).await
    }
    async fn list_presence(&self, within: Duration) -> Result<Vec<PresenceView>, StoreError> {
        self.world.store.list_presence(within).await
    }
}
