//! The owner's verbs, each one job for a reader or for the writer.

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tenure_lease::EpochGuard;
use tenure_model::{DagId, RunKey, ShardId, TaskId, TenantId};
use tenure_store::{
    AttentionItem, Committed, DagSchedule, DagVersion, NodeRecord, Pass, PastRun, PoolRecord, RunSnapshot,
    SchedulingStore, ShardSnapshot, StoreError,
};
use tokio::sync::watch;

use crate::SqliteStore;
use crate::commit_pass::{self, PassWrite};
use crate::leases::Authority;
use crate::{limits, snapshot};

#[async_trait]
impl SchedulingStore for SqliteStore {
    async fn shard_count(&self) -> Result<u16, StoreError> {
        Ok(self.office.shards)
    }

    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError> {
        self.read("reading a shard", move |conn, _| snapshot::shard(conn, shard)).await
    }

    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Vec<AttentionItem>, StoreError> {
        self.read("reading attention", move |conn, _| snapshot::attention(conn, shard, limit)).await
    }

    async fn load_runs(&self, runs: &[RunKey]) -> Result<Vec<RunSnapshot>, StoreError> {
        let runs = runs.to_vec();
        self.read("loading runs", move |conn, _| snapshot::runs(conn, &runs)).await
    }

    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        let (tenant, dag) = (tenant.clone(), dag.clone());
        self.read("loading a dag", move |conn, _| snapshot::dag(conn, &tenant, &dag)).await
    }

    async fn dag_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: u32,
    ) -> Result<DagVersion, StoreError> {
        let (tenant, dag) = (tenant.clone(), dag.clone());
        let doing = "reading a dag version";
        self.read(doing, move |conn, office| snapshot::version(conn, office, &tenant, &dag, version)).await
    }

    async fn past_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        before: Timestamp,
    ) -> Result<Option<PastRun>, StoreError> {
        let (tenant, dag, before) = (tenant.clone(), dag.clone(), before.as_microsecond());
        self.read("reading the past run", move |conn, _| snapshot::past_run(conn, &tenant, &dag, before))
            .await
    }

    async fn pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        self.read("reading pools", |conn, _| limits::pools(conn)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.read("reading nodes", |conn, _| limits::nodes(conn)).await
    }

    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        self.read("reading results", move |conn, _| snapshot::results(conn, run)).await
    }

    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
        let pass = PassWrite::of(Authority::from(guard), pass);
        self.write("committing a pass", move |tx, office| commit_pass::commit(tx, office, &pass)).await
    }

    fn wakes(&self) -> watch::Receiver<u64> {
        self.wakes.clone()
    }
}
