//! The owner's verbs, each one job for a reader or for the writer.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use serde_json::Value;
use tenure_lease::EpochGuard;
use tenure_model::{DagId, NodeId, RunKey, ShardId, TaskId, TenantId};
use tenure_store::{
    Bid, Committed, DagSchedule, DagVersion, DagVersionName, Limits, LoadedRuns, Look, Pass, PastRun,
    SchedulingStore, ShardSnapshot, Share, StoreError,
};
use tokio::sync::watch;

use crate::SqliteStore;
use crate::commit_pass::{self, PassWrite};
use crate::leases::Authority;
use crate::{limits, presence, shares, snapshot};

#[async_trait]
impl SchedulingStore for SqliteStore {
    async fn shard_count(&self) -> Result<u16, StoreError> {
        Ok(self.office.shards)
    }

    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError> {
        self.read("reading a shard", move |conn, _| snapshot::shard(conn, shard)).await
    }

    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Look, StoreError> {
        self.read("reading attention", move |conn, _| snapshot::look(conn, shard, limit)).await
    }

    async fn limits(&self) -> Result<Limits, StoreError> {
        self.read("reading limits", |conn, _| limits::limits(conn)).await
    }

    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
        let runs = runs.to_vec();
        self.read("loading runs", move |conn, _| snapshot::load(conn, &runs)).await
    }

    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError> {
        let work = move |conn: &Connection| snapshot::orphans(conn, shard, untouched_since, limit);
        self.read("looking for orphans", move |conn, _| work(conn)).await
    }

    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        let (authority, bids) = (Authority::from(guard), bids.to_vec());
        self.write("trading shares", move |tx, office| shares::trade(tx, office, &authority, &bids)).await
    }

    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        let (replica, nodes) = (replica.to_owned(), nodes.to_vec());
        self.write("recording presence", move |tx, office| presence::record(tx, office, &replica, &nodes))
            .await
    }

    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError> {
        let nodes = nodes.to_vec();
        self.read("reading presence", move |conn, office| presence::present(conn, office, &nodes, within))
            .await
    }

    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        let (tenant, dag) = (tenant.clone(), dag.clone());
        self.read("loading a dag", move |conn, _| snapshot::dag(conn, &tenant, &dag)).await
    }

    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
        let (wanted, doing) = (wanted.to_vec(), "reading dag versions");
        self.read(doing, move |conn, office| {
            let version = |name| snapshot::version(conn, office, name).map_err(|fail| fail.told(doing));
            Ok(wanted.iter().map(version).collect())
        })
        .await
    }

    async fn read_ahead(&self) -> Result<usize, StoreError> {
        Ok(0) // whoever owns this database is the only process, and has read what it needs
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

    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        self.read("reading results", move |conn, _| snapshot::results(conn, run)).await
    }

    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
        let pass = PassWrite::of(Authority::from(guard), pass);
        self.write("committing a pass", move |tx, office| commit_pass::commit(tx, office, &pass)).await
    }

    fn wakes(&self, shard: ShardId) -> watch::Receiver<u64> {
        self.wakes.of(shard)
    }
}
