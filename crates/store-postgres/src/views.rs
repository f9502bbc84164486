//! Reads for screens. Each page and its total come from one state of the database.

mod listing;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tenure_model::{DagId, RunId, TaskId, TaskState, TenantId, TiKey};
use tenure_store::{
    AuditQuery, AuditView, DagActivity, DagQuery, DagView, NodeRecord, Occupancy, Page, Paging, PoolRecord,
    PresenceView, Quota, RunQuery, RunView, StoreError, TiQuery, TiView, TryView, VersionView, Views,
    Waiting,
};
use tokio_postgres::types::Type;

use crate::PostgresStore;
use crate::presence;
use crate::rows;
use crate::session::{Params, Session};
use listing::Listing;

const GET_DAG: &str = concat!(
    "SELECT ",
    rows::dag_view_columns!(),
    " FROM dags d JOIN dag_versions v USING (tenant, dag_id, version) WHERE d.tenant = $1 AND d.dag_id = $2"
);
const GET_VERSION: &str = concat!(
    "SELECT ",
    rows::version_columns!(),
    " FROM dag_versions v JOIN dags d USING (tenant, dag_id)
    WHERE v.tenant = $1 AND v.dag_id = $2 AND v.version = coalesce($3, d.version)"
);
const GET_RUN: &str = concat!(
    "SELECT ",
    rows::run_view_columns!(),
    " FROM runs r WHERE r.tenant = $1 AND r.dag_id = $2 AND r.run_id = $3"
);
/// After a clear the row carries the number of a try that is in history already, until the next one begins.
const LIST_TRIES: &str = concat!(
    "SELECT * FROM (SELECT ",
    rows::try_columns!(),
    ", false AS current FROM runs r JOIN tries t ON t.run = r.key
        WHERE r.tenant = $1 AND r.dag_id = $2 AND r.run_id = $3 AND t.task_id = $4 AND t.map_index = $5
    UNION ALL SELECT ",
    rows::try_columns!(),
    ", true FROM runs r JOIN task_instances t ON t.run = r.key
        WHERE r.tenant = $1 AND r.dag_id = $2 AND r.run_id = $3 AND t.task_id = $4 AND t.map_index = $5
            AND NOT EXISTS (SELECT FROM tries x WHERE x.run = t.run AND x.task_no = t.task_no
                AND x.map_index = t.map_index AND x.try_number = t.try_number)
    ) AS every_try ORDER BY try_number"
);
/// Unfinished runs have an index of their own: history is not passed by.
pub(crate) const OCCUPANCY: &str = "SELECT t.node, r.tenant, r.dag_id, r.version, t.task_id, t.state, count(*)::integer
    FROM runs r JOIN task_instances t ON t.run = r.key
    WHERE r.state IN ('queued', 'running') AND t.state IN ('queued', 'running', 'restarting') AND t.node IS NOT NULL
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6";
const WAITING: &str = "SELECT r.tenant, r.dag_id, r.version, t.task_id, count(*)::integer
    FROM runs r JOIN task_instances t ON t.run = r.key
    WHERE r.state = 'running' AND t.state = 'scheduled'
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4";
const ACTIVITY: &str = "SELECT d.tenant, d.dag_id, d.paused, coalesce(a.running, 0)::integer
    FROM dags d JOIN unnest($1::text[], $2::text[]) AS w(tenant, dag_id)
        ON w.tenant = d.tenant AND w.dag_id = d.dag_id
    LEFT JOIN (SELECT r.tenant, r.dag_id, count(*) AS running FROM runs r WHERE r.state = 'running' GROUP BY 1, 2) AS a
        ON a.tenant = d.tenant AND a.dag_id = d.dag_id
    ORDER BY 1, 2";
const GET_RESULT: &str = "SELECT value FROM results WHERE run = $1 AND task_no = $2 AND map_index = $3";

#[async_trait]
impl Views for PostgresStore {
    async fn ping(&self) -> Result<(), StoreError> {
        self.read("asking whether it answers", "SELECT 1", &[]).await.map(drop)
    }

    async fn list_dags(&self, query: &DagQuery) -> Result<Page<DagView>, StoreError> {
        let columns = rows::dag_view_columns!();
        let mut listing = Listing::new(columns, "dags d JOIN dag_versions v USING (tenant, dag_id, version)");
        listing.equal("d.tenant", query.tenant.to_string(), Type::TEXT);
        listing.like("d.dag_id", query.id_pattern.as_deref());
        listing.any_of("d.owner", &query.owners);
        if !query.tags.is_empty() {
            listing.compare("d.tags", "&&", query.tags.clone(), Type::TEXT_ARRAY);
        }
        if let Some(paused) = query.paused {
            listing.equal("d.paused", paused, Type::BOOL);
        }
        listing.order(
            &query.paging,
            &[("dag_id", &["d.dag_id"]), ("next_run_at", &["d.next_tick"]), ("is_paused", &["d.paused"])],
            &["d.dag_id"],
        )?;
        self.page("listing dags", listing, rows::dag_view).await
    }

    async fn get_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagView>, StoreError> {
        let rows = self.read("reading a dag", GET_DAG, &[&tenant.as_str(), &dag.as_str()]).await?;
        Ok(rows::all(&rows, rows::dag_view)?.pop())
    }

    async fn list_versions(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        paging: &Paging,
    ) -> Result<Page<VersionView>, StoreError> {
        let mut listing = Listing::new(rows::version_columns!(), "dag_versions v");
        listing.equal("v.tenant", tenant.to_string(), Type::TEXT);
        listing.equal("v.dag_id", dag.to_string(), Type::TEXT);
        let newest_first =
            Paging { order_by: paging.order_by.clone().or(Some("-version".into())), ..*paging };
        listing.order(&newest_first, &[("version", &["v.version"])], &["v.version"])?;
        self.page("listing dag versions", listing, rows::version_view).await
    }

    async fn get_version(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        version: Option<u32>,
    ) -> Result<Option<VersionView>, StoreError> {
        let (tenant, dag, version) = (tenant.as_str(), dag.as_str(), version.map(|version| version as i32));
        let rows = self.read("reading a dag version", GET_VERSION, &[&tenant, &dag, &version]).await?;
        Ok(rows::all(&rows, rows::version_view)?.pop())
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunView>, StoreError> {
        let mut listing = Listing::new(rows::run_view_columns!(), "runs r");
        listing.equal("r.tenant", query.tenant.to_string(), Type::TEXT);
        if let Some(dag) = &query.dag {
            listing.equal("r.dag_id", dag.to_string(), Type::TEXT);
        }
        listing.any_of("r.state", &query.states);
        listing.any_of("r.run_type", &query.run_types.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
        listing.like("r.run_id", query.run_id_pattern.as_deref());
        listing.between("r.logical_date", query.logical_date_gte, query.logical_date_lte);
        listing.between("r.run_after", query.run_after_gte, query.run_after_lte);
        listing.between("r.started_at", query.started_at_gte, query.started_at_lte);
        listing.between("r.ended_at", query.ended_at_gte, query.ended_at_lte);
        listing.order(
            &query.paging,
            &[
                ("id", &["r.key"]),
                ("state", &["r.state"]),
                ("dag_id", &["r.dag_id"]),
                ("run_id", &["r.run_id"]),
                ("logical_date", &["r.logical_date"]),
                ("run_after", &["r.run_after"]),
                ("start_date", &["r.started_at"]),
                ("end_date", &["r.ended_at"]),
                ("queued_at", &["r.queued_at"]),
            ],
            &["r.key"],
        )?;
        self.page("listing runs", listing, rows::run_view).await
    }

    async fn get_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
    ) -> Result<Option<RunView>, StoreError> {
        let names = (tenant.as_str(), dag.as_str(), run.as_str());
        let rows = self.read("reading a run", GET_RUN, &[&names.0, &names.1, &names.2]).await?;
        Ok(rows::all(&rows, rows::run_view)?.pop())
    }

    async fn list_tis(&self, query: &TiQuery) -> Result<Page<TiView>, StoreError> {
        let mut listing =
            Listing::new(rows::ti_view_columns!(), "runs r JOIN task_instances t ON t.run = r.key");
        listing.equal("r.tenant", query.tenant.to_string(), Type::TEXT);
        if let Some(dag) = &query.dag {
            listing.equal("r.dag_id", dag.to_string(), Type::TEXT);
        }
        if let Some(run) = &query.run {
            listing.equal("r.run_id", run.to_string(), Type::TEXT);
        }
        if let Some(task) = &query.task {
            listing.equal("t.task_id", task.to_string(), Type::TEXT);
        }
        if let Some(map_index) = query.map_index {
            listing.equal("t.map_index", map_index, Type::INT4);
        }
        listing.any_of("t.state", &query.states);
        listing.any_of("t.pool", &query.pools);
        if let Some(node) = &query.bound_to {
            // Unfinished runs have an index of their own.
            listing.equal(
                "r.state IN ('queued', 'running') AND t.state IN ('queued', 'running', 'restarting') AND t.node",
                node.to_string(),
                Type::TEXT,
            );
        }
        let natural = ["t.run", "t.task_no", "t.map_index"];
        listing.order(
            &query.paging,
            &[
                ("id", &natural),
                ("task_id", &["t.task_id"]),
                ("state", &["t.state"]),
                ("start_date", &["t.started_at"]),
                ("end_date", &["t.ended_at"]),
            ],
            &natural,
        )?;
        self.page("listing task instances", listing, rows::ti_view).await
    }

    async fn list_tries(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        run: &RunId,
        task: &TaskId,
        map_index: i32,
    ) -> Result<Vec<TryView>, StoreError> {
        let names = (tenant.as_str(), dag.as_str(), run.as_str(), task.as_str());
        let rows = self
            .read("listing tries", LIST_TRIES, &[&names.0, &names.1, &names.2, &names.3, &map_index])
            .await?;
        rows::all(&rows, rows::try_view)
    }

    async fn get_result(&self, ti: TiKey) -> Result<Option<Value>, StoreError> {
        let (run, task) = (ti.run.0, ti.task.0 as i32);
        let rows = self.read("reading a result", GET_RESULT, &[&run, &task, &ti.map_index]).await?;
        Ok(rows::all(&rows, |cells| cells.json("a result"))?.pop())
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<Page<AuditView>, StoreError> {
        let mut listing = Listing::new(rows::AUDIT_COLUMNS, "audit a");
        listing.equal("a.tenant", query.tenant.to_string(), Type::TEXT);
        if let Some(dag) = &query.dag {
            listing.equal("a.dag_id", dag.to_string(), Type::TEXT);
        }
        if let Some(run) = &query.run {
            listing.equal("a.run_id", run.to_string(), Type::TEXT);
        }
        if let Some(seq) = query.after_seq {
            listing.compare("a.seq", ">", seq, Type::INT8);
        }
        listing.order(&query.paging, &[("id", &["a.seq"])], &["a.seq"])?;
        self.page("listing the audit trail", listing, rows::audit_view).await
    }

    async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        rows::all(&self.read("listing pools", rows::POOLS, &[]).await?, rows::pool)
    }

    async fn list_quotas(&self) -> Result<Vec<Quota>, StoreError> {
        rows::all(&self.read("listing quotas", rows::QUOTAS, &[]).await?, rows::quota)
    }

    async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        rows::all(&self.read("listing nodes", rows::NODES, &[]).await?, rows::node)
    }

    async fn occupancy(&self) -> Result<Vec<Occupancy>, StoreError> {
        rows::all(&self.read("counting what is bound", OCCUPANCY, &[]).await?, |cells| {
            Ok(Occupancy {
                node: cells.text()?,
                tenant: cells.text()?,
                dag: cells.text()?,
                version: cells.number()?,
                task: cells.text()?,
                state: cells.parsed("the state of a task instance", TaskState::parse)?,
                count: cells.number()?,
            })
        })
    }

    async fn waiting(&self) -> Result<Vec<Waiting>, StoreError> {
        rows::all(&self.read("counting what waits", WAITING, &[]).await?, |cells| {
            Ok(Waiting {
                tenant: cells.text()?,
                dag: cells.text()?,
                version: cells.number()?,
                task: cells.text()?,
                count: cells.number()?,
            })
        })
    }

    async fn dag_activity(&self, dags: &[(TenantId, DagId)]) -> Result<Vec<DagActivity>, StoreError> {
        let tenants: Vec<&str> = dags.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let names: Vec<&str> = dags.iter().map(|(_, dag)| dag.as_str()).collect();
        rows::all(&self.read("looking at how busy dags are", ACTIVITY, &[&tenants, &names]).await?, |cells| {
            Ok(DagActivity {
                tenant: cells.text()?,
                dag: cells.text()?,
                paused: cells.take()?,
                running_runs: cells.number()?,
            })
        })
    }

    async fn list_presence(&self, within: Duration) -> Result<Vec<PresenceView>, StoreError> {
        presence::list(&self.pool, within).await
    }
}

impl PostgresStore {
    async fn read(
        &self,
        doing: &'static str,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        Session::once(&self.pool, doing, sql, params).await
    }
}
