//! Reads for screens, each one job for a reader.

mod audit;
mod dags;
mod nodes;
mod query;
mod runs;
mod tis;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tenure_model::{DagId, RunId, TaskId, TenantId, TiKey};
use tenure_store::{
    AuditQuery, AuditView, DagActivity, DagQuery, DagView, NodeRecord, Occupancy, Page, Paging, PoolRecord,
    PresenceView, Quota, RunQuery, RunView, StoreError, TiQuery, TiView, TryView, VersionView, Views,
    Waiting,
};

use crate::{SqliteStore, limits};

#[async_trait]
impl Views for SqliteStore {
    async fn ping(&self) -> Result<(), StoreError> {
        self.read("pinging", |conn, _| Ok(conn.query_row("SELECT 1", [], |_| Ok(()))?)).await
    }

    async fn list_dags(&self, query: &DagQuery) -> Result<Page<DagView>, StoreError> {
        let query = query.clone();
        self.read("listing dags", move |conn, office| dags::list(conn, &office.specs, &query)).await
    }

    async fn get_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagView>, StoreError> {
        let (tenant, dag) = (tenant.clone(), dag.clone());
        self.read("reading a dag", move |conn, office| dags::get(conn, &office.specs, &tenant, &dag)).await
    }

    async fn list_versions(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        paging: &Paging,
    ) -> Result<Page<VersionView>, StoreError> {
        let (tenant, dag, paging) = (tenant.clone(), dag.clone(), paging.clone());
        self.read("listing versions", move |conn, _| dags::list_versions(conn, &tenant, &dag, &paging)).await
    }

    async fn get_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: Option<u32>,
    ) -> Result<Option<VersionView>, StoreError> {
        let (tenant, dag) = (tenant.clone(), dag.clone());
        self.read("reading a version", move |conn, _| dags::get_version(conn, &tenant, &dag, version)).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunView>, StoreError> {
        let query = query.clone();
        self.read("listing runs", move |conn, _| runs::list(conn, &query)).await
    }

    async fn get_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
    ) -> Result<Option<RunView>, StoreError> {
        let (tenant, dag, run) = (tenant.clone(), dag.clone(), run.clone());
        self.read("reading a run", move |conn, _| crate::runs::view(conn, &tenant, &dag, &run)).await
    }

    async fn list_tis(&self, query: &TiQuery) -> Result<Page<TiView>, StoreError> {
        let query = query.clone();
        self.read("listing task instances", move |conn, _| tis::list(conn, &query)).await
    }

    async fn list_tries(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
        task: &TaskId,
        map_index: i32,
    ) -> Result<Vec<TryView>, StoreError> {
        let (tenant, dag, run, task) = (tenant.clone(), dag.clone(), run.clone(), task.clone());
        let doing = "listing tries";
        self.read(doing, move |conn, _| tis::list_tries(conn, &tenant, &dag, &run, &task, map_index)).await
    }

    async fn get_result(&self, ti: TiKey) -> Result<Option<Value>, StoreError> {
        self.read("reading a result", move |conn, _| tis::result(conn, ti)).await
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<Page<AuditView>, StoreError> {
        let query = query.clone();
        self.read("listing audit", move |conn, _| audit::list(conn, &query)).await
    }

    async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        self.read("listing pools", |conn, _| limits::pools(conn)).await
    }

    async fn list_quotas(&self) -> Result<Vec<Quota>, StoreError> {
        self.read("listing quotas", |conn, _| limits::quotas(conn)).await
    }

    async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.read("listing nodes", |conn, _| limits::nodes(conn)).await
    }

    async fn occupancy(&self) -> Result<Vec<Occupancy>, StoreError> {
        self.read("counting what is bound", |conn, _| nodes::occupancy(conn)).await
    }

    async fn waiting(&self) -> Result<Vec<Waiting>, StoreError> {
        self.read("counting what waits", |conn, _| nodes::waiting(conn)).await
    }

    async fn dag_activity(&self, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, StoreError> {
        let dags = dags.to_vec();
        self.read("looking at how busy dags are", move |conn, _| nodes::activity(conn, &dags)).await
    }

    async fn list_presence(&self, within: Duration) -> Result<Vec<PresenceView>, StoreError> {
        self.read("listing presence", move |conn, office| nodes::presence(conn, office, within)).await
    }
}
