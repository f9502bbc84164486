//! What the owner of a shard reads, and its one write, as the trait wants it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use futures::try_join;
use jiff::Timestamp;
use serde_json::Value;
use tenure_lease::{EpochGuard, with_causes};
use tenure_model::{DagId, NodeId, RunKey, RunState, ShardId, TaskId, TaskState, TenantId};
use tenure_store::{
    Attention, AttentionItem, Bid, CachedTi, Committed, DagSchedule, DagVersion, DagVersionName, Limits,
    LoadedRuns, Look, Pass, PastRun, RunHeader, RunSnapshot, SchedulingStore, ShardSnapshot, Share,
    StoreError,
};
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::rows::{self, Cells};
use crate::session::{CLOSE, SNAPSHOT, Session};
use crate::versions;
use crate::{PostgresStore, errors, presence, shares};

pub(crate) const SHARD_DAGS: &str =
    concat!("SELECT ", rows::dag_columns!(), " FROM dags d WHERE d.shard = $1 ORDER BY d.tenant, d.dag_id");
pub(crate) const SHARD_RUNS: &str = concat!(
    "SELECT ",
    rows::run_columns!(),
    " FROM runs r WHERE r.shard = $1 AND r.state IN ('queued', 'running') ORDER BY r.key"
);
pub(crate) const SHARD_TIS: &str = concat!(
    "SELECT ",
    rows::ti_columns!(),
    " FROM runs r JOIN task_instances t ON t.run = r.key WHERE r.shard = $1 AND r.state = 'running'
    ORDER BY t.run, t.task_no, t.map_index"
);
/// The version of the limits, with each item or, where there are none, alone.
pub(crate) const LOOK: &str = "SELECT l.version, a.seq, a.what FROM limits l LEFT JOIN (
        SELECT seq, what FROM attention WHERE shard = $1 ORDER BY seq LIMIT $2
    ) a ON true WHERE l.id = 1 ORDER BY a.seq";
const LIMITS_VERSION: &str = "SELECT version FROM limits WHERE id = 1";
pub(crate) const RUNS: &str =
    concat!("SELECT ", rows::run_columns!(), " FROM runs r WHERE r.key = ANY($1) ORDER BY r.key");
pub(crate) const RUN_TIS: &str = concat!(
    "SELECT ",
    rows::ti_columns!(),
    " FROM task_instances t WHERE t.run = ANY($1) ORDER BY t.run, t.task_no, t.map_index"
);
/// Finished and untouched task instances are named, so that a state nobody knows yet counts as active.
pub(crate) const ORPHANS: &str = "SELECT r.key FROM runs r
    WHERE r.shard = $1 AND r.state = 'running' AND r.updated_at < $2 AND NOT EXISTS (
        SELECT FROM task_instances t WHERE t.run = r.key
            AND t.state NOT IN ('none', 'success', 'failed', 'skipped', 'upstream_failed', 'removed'))
    ORDER BY r.updated_at, r.key LIMIT $3";
const DAG: &str =
    concat!("SELECT ", rows::dag_columns!(), " FROM dags d WHERE d.tenant = $1 AND d.dag_id = $2");
pub(crate) const PAST_RUN: &str = "SELECT r.key, r.state FROM runs r
    WHERE r.tenant = $1 AND r.dag_id = $2 AND r.logical_date < $3 ORDER BY r.logical_date DESC LIMIT 1";
const TASK_STATES: &str =
    "SELECT task_id, state FROM task_instances WHERE run = $1 ORDER BY task_no, map_index";
const RESULTS: &str = "SELECT t.task_id, x.map_index, x.value
    FROM results x JOIN task_instances t USING (run, task_no, map_index)
    WHERE x.run = $1 ORDER BY x.task_no, x.map_index";

#[async_trait]
impl SchedulingStore for PostgresStore {
    async fn shard_count(&self) -> Result<u16, StoreError> {
        Ok(self.shards)
    }

    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError> {
        let session = Session::borrow(&self.pool, "reading a shard").await?;
        let snapshot = shard_snapshot(&session, i32::from(shard.0)).await?;
        session.give_back();
        Ok(snapshot)
    }

    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Look, StoreError> {
        let (shard, limit) = (i32::from(shard.0), i64::from(limit));
        let rows = Session::once(&self.pool, "reading attention", LOOK, &[&shard, &limit]).await?;
        look(&rows)
    }

    async fn limits(&self) -> Result<Limits, StoreError> {
        let session = Session::borrow(&self.pool, "reading limits").await?;
        let limits = limits(&session).await?;
        session.give_back();
        Ok(limits)
    }

    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
        let session = Session::borrow(&self.pool, "loading runs").await?;
        let runs = load_runs(&session, runs).await?;
        session.give_back();
        Ok(runs)
    }

    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError> {
        let (shard, limit) = (i32::from(shard.0), i64::from(limit));
        let params: [&(dyn ToSql + Sync); 3] = [&shard, &untouched_since, &limit];
        let rows = Session::once(&self.pool, "looking for orphans", ORPHANS, &params).await?;
        rows::all(&rows, |cells| cells.take().map(RunKey))
    }

    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        shares::trade(self, guard, bids).await
    }

    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        presence::record(&self.pool, replica, nodes).await
    }

    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError> {
        presence::present(&self.pool, nodes, within).await
    }

    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        let names = [tenant.as_str(), dag.as_str()];
        let rows = Session::once(&self.pool, "loading a dag", DAG, &[&names[0], &names[1]]).await?;
        Ok(rows::all(&rows, rows::dag_schedule)?.pop())
    }

    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
        versions::load(&self.pool, &self.specs, wanted).await
    }

    async fn read_ahead(&self) -> Result<usize, StoreError> {
        versions::read_ahead(&self.pool, &self.specs).await
    }

    async fn past_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        before: Timestamp,
    ) -> Result<Option<PastRun>, StoreError> {
        let session = Session::snapshot(&self.pool, "reading the past run").await?;
        let outcome = past_run(&session, tenant, dag, before).await;
        session.finish(outcome).await
    }

    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        let rows = Session::once(&self.pool, "reading results", RESULTS, &[&run.0]).await?;
        rows::all(&rows, |cells| Ok((cells.text()?, cells.take()?, cells.json("a result")?)))
    }

    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
        self.write_pass(guard, pass).await
    }

    fn wakes(&self, shard: ShardId) -> watch::Receiver<u64> {
        self.wakes.subscribe(shard)
    }
}

async fn shard_snapshot(session: &Session, shard: i32) -> Result<ShardSnapshot, StoreError> {
    let shared = [shares::POOLS_OF_SHARD, shares::QUOTAS_OF_SHARD, shares::NODES_OF_SHARD, shares::OF_SHARD];
    session.prepare(&[SHARD_DAGS, SHARD_RUNS, SHARD_TIS]).await?;
    session.prepare(&shared).await?;
    let of_shard: [&(dyn ToSql + Sync); 1] = [&shard];
    let (_, dags, runs, tis, pools, quotas, nodes, held, _) = try_join!(
        session.batch(SNAPSHOT),
        session.rows(SHARD_DAGS, &of_shard),
        session.rows(SHARD_RUNS, &of_shard),
        session.rows(SHARD_TIS, &of_shard),
        session.rows(shares::POOLS_OF_SHARD, &of_shard),
        session.rows(shares::QUOTAS_OF_SHARD, &of_shard),
        session.rows(shares::NODES_OF_SHARD, &of_shard),
        session.rows(shares::OF_SHARD, &of_shard),
        session.batch(CLOSE),
    )?;
    let (runs, mut unreadable) = rows::readable_of_runs(&runs, rows::run_header)?;
    let (running, queued): (Vec<RunHeader>, Vec<RunHeader>) =
        runs.into_iter().partition(|run| run.state == RunState::Running);
    let running = with_tis(running, &tis, &mut unreadable)?;
    let pools = rows::readable(&pools, "a pool", rows::pool);
    let quotas = rows::readable(&quotas, "a quota", rows::quota);
    let nodes = rows::readable(&nodes, "a node", rows::node);
    Ok(ShardSnapshot {
        dags: rows::readable(&dags, "a dag", rows::dag_schedule),
        running,
        queued,
        unreadable: unreadable.into_iter().collect(),
        shares: shares::of_shard(&held, ShardId(shard as u16), shares::totals(&pools, &quotas, &nodes)),
    })
}

fn look(rows: &[Row]) -> Result<Look, StoreError> {
    let item = |cells: &mut Cells<'_>| {
        let _version: i64 = cells.take()?;
        let Some(seq) = cells.take::<Option<i64>>()? else { return Ok(None) };
        // What this release does not know must not keep it from the rest, and has to go some day.
        let unknown = |error: &StoreError| tracing::warn!("attention {seq}: {}", with_causes(error));
        let what = cells.json("what it says").inspect_err(unknown).unwrap_or(Attention::Unknown);
        Ok(Some(AttentionItem { seq, what }))
    };
    let items = rows::all(rows, item)?.into_iter().flatten().collect();
    Ok(Look { items, limits: limits_version(rows)? })
}

fn limits_version(rows: &[Row]) -> Result<u64, StoreError> {
    let missing = || errors::corrupt("the version of the limits", "its row is missing");
    Cells::of(rows.first().ok_or_else(missing)?).big_number()
}

async fn limits(session: &Session) -> Result<Limits, StoreError> {
    session.prepare(&[LIMITS_VERSION, rows::POOLS, rows::QUOTAS, rows::NODES]).await?;
    let (_, version, pools, quotas, nodes, _) = try_join!(
        session.batch(SNAPSHOT),
        session.rows(LIMITS_VERSION, &[]),
        session.rows(rows::POOLS, &[]),
        session.rows(rows::QUOTAS, &[]),
        session.rows(rows::NODES, &[]),
        session.batch(CLOSE),
    )?;
    Ok(Limits {
        version: limits_version(&version)?,
        pools: rows::readable(&pools, "a pool", rows::pool),
        quotas: rows::readable(&quotas, "a quota", rows::quota),
        nodes: rows::readable(&nodes, "a node", rows::node),
    })
}

async fn load_runs(session: &Session, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
    session.prepare(&[RUNS, RUN_TIS]).await?;
    let keys: Vec<i64> = runs.iter().map(|run| run.0).collect();
    let keys: [&(dyn ToSql + Sync); 1] = [&keys];
    let (_, runs, tis, _) = try_join!(
        session.batch(SNAPSHOT),
        session.rows(RUNS, &keys),
        session.rows(RUN_TIS, &keys),
        session.batch(CLOSE),
    )?;
    let (runs, mut unreadable) = rows::readable_of_runs(&runs, rows::run_header)?;
    let runs = with_tis(runs, &tis, &mut unreadable)?;
    Ok(LoadedRuns { runs, unreadable: unreadable.into_iter().collect() })
}

/// A run with a row that makes no sense is not planned by halves: it goes to the unreadable ones.
fn with_tis(
    runs: Vec<RunHeader>,
    tis: &[Row],
    unreadable: &mut BTreeMap<RunKey, String>,
) -> Result<Vec<RunSnapshot>, StoreError> {
    let (tis, bad) = rows::readable_of_runs(tis, rows::ti)?;
    for (run, why) in bad {
        unreadable.entry(run).or_insert(why);
    }
    let mut of_run: HashMap<RunKey, Vec<CachedTi>> = HashMap::new();
    for ti in tis {
        of_run.entry(ti.run).or_default().push(ti.cached);
    }
    let with =
        |header: RunHeader| RunSnapshot { tis: of_run.remove(&header.key).unwrap_or_default(), header };
    let readable = runs.into_iter().filter(|header| !unreadable.contains_key(&header.key));
    Ok(readable.map(with).collect())
}

async fn past_run(
    session: &Session,
    tenant: &TenantId,
    dag: &DagId,
    before: Timestamp,
) -> Result<Option<PastRun>, StoreError> {
    let found = session.row(PAST_RUN, &[&tenant.as_str(), &dag.as_str(), &before]).await?;
    let Some(row) = found else { return Ok(None) };
    let mut cells = Cells::of(&row);
    let key = RunKey(cells.take()?);
    let state = cells.parsed("the state of a run", RunState::parse)?;
    let tasks = session.rows(TASK_STATES, &[&key.0]).await?;
    let tasks = rows::all(&tasks, |cells| {
        Ok((cells.text()?, cells.parsed("the state of a task instance", TaskState::parse)?))
    })?;
    Ok(Some(PastRun { key, state, tasks }))
}
