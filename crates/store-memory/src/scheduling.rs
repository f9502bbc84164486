//! The owner's verbs.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tenure_lease::EpochGuard;
use tenure_model::{DagId, NodeId, RunKey, RunState, ShardId, TaskId, TaskState, TenantId, TiKey};
use tenure_store::{
    AttentionItem, Bid, Committed, DagSchedule, DagVersion, DagVersionName, Limits, LoadedRuns, Look, Pass,
    PastRun, SchedulingStore, ShardSnapshot, Share, StoreError,
};
use tokio::sync::watch;

use crate::tables::Tables;
use crate::{Authority, Flaw, MemoryStore, limits, pass, shares};

#[async_trait]
impl SchedulingStore for MemoryStore {
    async fn shard_count(&self) -> Result<u16, StoreError> {
        Ok(self.read(|tables| tables.shards))
    }

    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError> {
        Ok(self.read(|tables| snapshot(tables, shard)))
    }

    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Look, StoreError> {
        Ok(self.read(|tables| {
            let rows = tables.attention.range((shard, i64::MIN)..=(shard, i64::MAX)).take(limit as usize);
            let items = rows.map(|((_, seq), what)| AttentionItem { seq: *seq, what: what.clone() });
            Look { items: items.collect(), limits: tables.limits_version }
        }))
    }

    async fn limits(&self) -> Result<Limits, StoreError> {
        Ok(self.read(|tables| limits::limits(tables)))
    }

    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
        Ok(self.read(|tables| {
            let mut loaded = LoadedRuns::default();
            for key in runs {
                match tables.snapshot(*key) {
                    Some(Ok(run)) => loaded.runs.push(run),
                    Some(Err(error)) => loaded.unreadable.push((*key, error.to_string())),
                    None => {}
                }
            }
            loaded
        }))
    }

    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError> {
        Ok(self.read(|tables| orphans(tables, shard, untouched_since, limit)))
    }

    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        self.trade_shares_as(&Authority::from(guard), bids)
    }

    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.read(|tables| tables.presence.insert(replica.to_owned(), (now, nodes.to_vec())));
        Ok(())
    }

    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError> {
        let now = self.clock.now();
        Ok(self.read(|tables| limits::present(tables, now, nodes, within)))
    }

    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        Ok(self.read(|tables| tables.dag(tenant, dag).ok().map(|dag| dag.schedule(tenant))))
    }

    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
        Ok(self.read(|tables| wanted.iter().map(|name| version(tables, name)).collect()))
    }

    async fn read_ahead(&self) -> Result<usize, StoreError> {
        Ok(0) // it is all in memory
    }

    async fn past_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        before: Timestamp,
    ) -> Result<Option<PastRun>, StoreError> {
        Ok(self.read(|tables| {
            let key = *tables.dag(tenant, dag).ok()?.by_date.range(..before).next_back()?.1;
            let run = &tables.runs[&key];
            let tasks = run.tis.values().map(|row| (row.task_id.clone(), row.ti.state)).collect();
            Some(PastRun { key, state: run.view.state, tasks })
        }))
    }

    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        Ok(self.read(|tables| {
            let Some(run) = tables.runs.get(&run) else { return vec![] };
            let named = |(place, value): (&_, &Value)| {
                let row = run.tis.get(place)?;
                let (_, map_index) = *place;
                Some((row.task_id.clone(), map_index, value.clone()))
            };
            run.results.iter().filter_map(named).collect()
        }))
    }

    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
        self.commit_pass_as(&Authority::from(guard), pass)
    }

    fn wakes(&self, shard: ShardId) -> watch::Receiver<u64> {
        let shards = self.bells.len();
        let bell = self.bells.get(usize::from(shard.0));
        bell.unwrap_or_else(|| panic!("there are {shards} shards, and no {shard}")).listen()
    }
}

/// The owner's writes by the word of a guard that may be gone by now.
impl MemoryStore {
    pub fn trade_shares_as(&self, authority: &Authority, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        let shard = shares::trader(authority, self.bells.len() as u16)?;
        let trade =
            |tables: &mut Tables| Ok(bids.iter().map(|bid| shares::trade(tables, shard, bid)).collect());
        match self.flaw {
            Some(Flaw::UnfencedTrades) => self.write(trade),
            _ => self.fenced(authority, trade),
        }
    }

    pub fn commit_pass_as(&self, authority: &Authority, pass: &Pass) -> Result<Committed, StoreError> {
        self.fenced(authority, |tables| pass::commit(tables, authority, pass, self.flaw))
    }
}

fn snapshot(tables: &Tables, shard: ShardId) -> ShardSnapshot {
    let dags = tables.dags.iter().filter(|(_, dag)| dag.shard == shard);
    let mut snapshot = ShardSnapshot {
        dags: dags.map(|((tenant, _), dag)| dag.schedule(tenant)).collect(),
        running: vec![],
        queued: vec![],
        unreadable: vec![],
        shares: shares::of_shard(tables, shard),
    };
    for key in tables.unfinished(Some(shard)) {
        let run = &tables.runs[&key];
        match (run.view.state, tables.readable(key)) {
            (RunState::Queued, Ok(())) => snapshot.queued.push(run.header()),
            (_, Ok(())) => snapshot.running.push(run.snapshot()),
            (_, Err(error)) => snapshot.unreadable.push((key, error.to_string())),
        }
    }
    snapshot
}

fn orphans(tables: &Tables, shard: ShardId, untouched_since: Timestamp, limit: u32) -> Vec<RunKey> {
    let idle = |run: RunKey| {
        let rows = tables.runs[&run].tis.iter();
        // A state that this release does not know is no reason to think that nothing goes on.
        rows.map(|((task, map_index), row)| (TiKey { run, task: *task, map_index: *map_index }, row)).all(
            |(ti, row)| {
                (row.ti.state == TaskState::None || row.ti.state.is_finished())
                    && !tables.spoiled_tasks.contains(&ti)
            },
        )
    };
    let mut found: Vec<(Timestamp, RunKey)> = tables
        .unfinished(Some(shard))
        .map(|key| (tables.runs[&key].view.updated_at, key))
        .filter(|(updated_at, key)| {
            tables.runs[key].view.state == RunState::Running && *updated_at < untouched_since && idle(*key)
        })
        .collect();
    found.sort();
    found.into_iter().take(limit as usize).map(|(_, key)| key).collect()
}

fn version(tables: &Tables, name: &DagVersionName) -> Result<DagVersion, StoreError> {
    let DagVersionName { tenant, dag, version } = name.clone();
    let missing = || StoreError::NotFound(format!("dag {dag} has no version {version}"));
    let known = tables.dags.get(&(tenant.clone(), dag.clone())).ok_or_else(missing)?;
    let spec = known.spec(version)?;
    Ok(DagVersion { tenant, dag, version, spec })
}
