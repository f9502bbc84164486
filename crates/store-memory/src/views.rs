//! Reads for screens. They look at everything there is: nothing in the simulator waits for them.

mod listing;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tenure_model::{DagId, RunId, RunState, TaskId, TaskState, TenantId, TiKey};
use tenure_store::{
    AuditQuery, AuditView, DagActivity, DagQuery, DagView, NodeRecord, Occupancy, Page, Paging, PoolRecord,
    PresenceView, Quota, RunQuery, RunView, StoreError, TiQuery, TiView, TryView, VersionView, Views,
    Waiting,
};

use crate::MemoryStore;
use crate::limits::{self, back};
use crate::tables::{Run, Tables, Ti, place};

#[async_trait]
impl Views for MemoryStore {
    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_dags(&self, query: &DagQuery) -> Result<Page<DagView>, StoreError> {
        self.read(|tables| listing::dags(tables, query))
    }

    async fn get_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagView>, StoreError> {
        Ok(self.read(|tables| tables.dag(tenant, dag).ok().map(|dag| listing::dag_view(tenant, dag))))
    }

    async fn list_versions(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        paging: &Paging,
    ) -> Result<Page<VersionView>, StoreError> {
        self.read(|tables| listing::versions(tables, tenant, dag, paging))
    }

    async fn get_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: Option<u32>,
    ) -> Result<Option<VersionView>, StoreError> {
        Ok(self.read(|tables| {
            let dag = tables.dag(tenant, dag).ok()?;
            dag.numbered(version.unwrap_or(dag.version())).cloned()
        }))
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunView>, StoreError> {
        self.read(|tables| listing::runs(tables, query))
    }

    async fn get_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
    ) -> Result<Option<RunView>, StoreError> {
        Ok(self
            .read(|tables| tables.run_key(tenant, dag, run).ok().map(|key| tables.runs[&key].view.clone())))
    }

    async fn list_tis(&self, query: &TiQuery) -> Result<Page<TiView>, StoreError> {
        self.read(|tables| listing::tis(tables, query))
    }

    async fn list_tries(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
        task: &TaskId,
        map_index: i32,
    ) -> Result<Vec<TryView>, StoreError> {
        Ok(self
            .read(|tables| {
                let key = tables.run_key(tenant, dag, run).ok()?;
                tries(&tables.runs[&key], task, map_index)
            })
            .unwrap_or_default())
    }

    async fn get_result(&self, ti: TiKey) -> Result<Option<Value>, StoreError> {
        Ok(self.read(|tables| tables.runs.get(&ti.run)?.results.get(&place(ti)).cloned()))
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<Page<AuditView>, StoreError> {
        self.read(|tables| listing::audit(tables, query))
    }

    async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        Ok(self.read(|tables| limits::pools(tables)))
    }

    async fn list_quotas(&self) -> Result<Vec<Quota>, StoreError> {
        Ok(self.read(|tables| limits::quotas(tables)))
    }

    async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        Ok(self.read(|tables| limits::nodes(tables)))
    }

    async fn occupancy(&self) -> Result<Vec<Occupancy>, StoreError> {
        Ok(self.read(|tables| occupancy(tables)))
    }

    async fn waiting(&self) -> Result<Vec<Waiting>, StoreError> {
        Ok(self.read(|tables| waiting(tables)))
    }

    async fn dag_activity(&self, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, StoreError> {
        let mut dags = dags.to_vec();
        dags.sort();
        Ok(self.read(|tables| dags.into_iter().filter_map(|name| activity(tables, name)).collect()))
    }

    async fn list_presence(&self, within: Duration) -> Result<Vec<PresenceView>, StoreError> {
        let since = back(self.clock.now(), within);
        Ok(self.read(|tables| {
            let heard = tables.presence.iter().filter(|(_, (at, _))| *at >= since);
            heard
                .map(|(replica, (at, nodes))| PresenceView {
                    replica: replica.clone(),
                    at: *at,
                    nodes: nodes.clone(),
                })
                .collect()
        }))
    }
}

/// Past tries and the current one, oldest first.
fn tries(run: &Run, task: &TaskId, map_index: i32) -> Option<Vec<TryView>> {
    let (place, row) =
        run.tis.iter().find(|((_, index), row)| row.task_id == *task && *index == map_index)?;
    let (number, _) = *place;
    let key = TiKey { run: run.view.key, task: number, map_index };
    let view = |instance: &tenure_model::TaskInstance, current| TryView {
        key,
        task_id: task.clone(),
        instance: instance.clone(),
        current,
    };
    let kept = run.tries.range((number, map_index, 0)..=(number, map_index, u32::MAX));
    let mut tries: Vec<TryView> = kept.map(|(_, instance)| view(instance, false)).collect();
    // After a clear the row carries the number of the try in history until the next one begins.
    if tries.last().is_none_or(|last| last.instance.try_number != row.ti.try_number) {
        tries.push(view(&row.ti, true));
    }
    Some(tries)
}

fn active(tables: &Tables) -> impl Iterator<Item = (&RunView, &Ti)> {
    let runs = tables.unfinished(None).map(|key| &tables.runs[&key]);
    runs.flat_map(|run| run.tis.values().map(move |row| (&run.view, row)))
}

fn occupancy(tables: &Tables) -> Vec<Occupancy> {
    let mut counts: BTreeMap<Vec<String>, Occupancy> = BTreeMap::new();
    for (run, row) in active(tables).filter(|(_, row)| row.ti.state.is_bound()) {
        let Some(node) = &row.ti.node else { continue };
        let one = Occupancy {
            node: node.clone(),
            tenant: run.tenant.clone(),
            dag: run.dag.clone(),
            version: run.version,
            task: row.task_id.clone(),
            state: row.ti.state,
            count: 0,
        };
        let version = format!("{:010}", run.version);
        let key = [node.as_str(), run.tenant.as_str(), run.dag.as_str(), &version, row.task_id.as_str()];
        let key = key.into_iter().chain([row.ti.state.as_str()]).map(str::to_owned).collect();
        counts.entry(key).or_insert(one).count += 1;
    }
    counts.into_values().collect()
}

fn waiting(tables: &Tables) -> Vec<Waiting> {
    let mut counts: BTreeMap<(TenantId, DagId, u32, TaskId), u32> = BTreeMap::new();
    for (run, row) in active(tables) {
        if run.state == RunState::Running && row.ti.state == TaskState::Scheduled {
            let key = (run.tenant.clone(), run.dag.clone(), run.version, row.task_id.clone());
            *counts.entry(key).or_default() += 1;
        }
    }
    let waiting = |((tenant, dag, version, task), count)| Waiting { tenant, dag, version, task, count };
    counts.into_iter().map(waiting).collect()
}

fn activity(tables: &Tables, (tenant, dag): (TenantId, DagId)) -> Option<DagActivity> {
    let known = tables.dag(&tenant, &dag).ok()?;
    let runs = tables.unfinished(Some(known.shard)).map(|key| &tables.runs[&key].view);
    let running = runs.filter(|run| (&run.tenant, &run.dag, run.state) == (&tenant, &dag, RunState::Running));
    Some(DagActivity { paused: known.paused, running_runs: running.count() as u32, tenant, dag })
}
