//! Airflow's REST API, version 2: paths, parameters and JSON as Airflow 3 has them, for the notions that
//! Tenure shares with it. What Airflow knows and Tenure does not is refused by name, never ignored.

mod dags;
mod event_logs;
mod logs;
mod marks;
pub(crate) mod monitor;
mod pools;
mod runs;
mod shapes;
mod task_instances;
mod triggers;
mod versions;
mod xcoms;

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use tenure_model::{DagId, RunId, TaskId, TiKey};
use tenure_store::{DagView, RunView, TiQuery, TiView, VersionView};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{ApiError, ApiResult};
use crate::state::ApiState;

pub(crate) use shapes::PUSHED;
use shapes::{RunShape, TaskInstanceShape};

/// «Of all dags», «of all runs», in a path.
const ANY: &str = "~";

pub fn public_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(monitor::version)).routes(routes!(monitor::health))
}

pub fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(dags::list))
        .routes(routes!(dags::get, dags::patch, dags::delete))
        .routes(routes!(dags::details))
        .routes(routes!(dags::tasks))
        .routes(routes!(dags::task))
        .routes(routes!(versions::list))
        .routes(routes!(versions::get))
        .routes(routes!(versions::source))
        .routes(routes!(runs::list, triggers::trigger))
        .routes(routes!(runs::get, runs::patch, runs::delete))
        .routes(routes!(marks::clear_run))
        .routes(routes!(marks::clear_task_instances))
        .routes(routes!(task_instances::list))
        .routes(routes!(task_instances::get, marks::mark))
        .routes(routes!(task_instances::get_mapped, marks::mark_mapped))
        .routes(routes!(marks::mark_dry_run))
        .routes(routes!(marks::mark_mapped_dry_run))
        .routes(routes!(task_instances::tries))
        .routes(routes!(task_instances::get_try))
        .routes(routes!(task_instances::mapped_tries))
        .routes(routes!(task_instances::get_mapped_try))
        .routes(routes!(logs::log))
        .routes(routes!(xcoms::get))
        .routes(routes!(pools::list, pools::create))
        .routes(routes!(pools::get, pools::patch, pools::delete))
        .routes(routes!(event_logs::list))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct DagPath {
    dag_id: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct RunPath {
    dag_id: String,
    dag_run_id: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct TaskPath {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct MappedTaskPath {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
    /// −1 for a task that is not mapped.
    map_index: i32,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MapIndexQuery {
    /// −1, the default, for a task that is not mapped.
    map_index: Option<i32>,
}

impl TaskPath {
    fn at(self, map_index: Option<i32>) -> MappedTaskPath {
        let Self { dag_id, dag_run_id, task_id } = self;
        MappedTaskPath { dag_id, dag_run_id, task_id, map_index: map_index.unwrap_or(TiKey::UNMAPPED) }
    }
}

impl ApiState {
    async fn require_dag(&self, dag: &str) -> ApiResult<DagView> {
        let found = self.store.get_dag(&self.tenant(), &DagId::new(dag)).await?;
        found.ok_or_else(|| ApiError::NotFound(format!("The Dag with ID: `{dag}` was not found")))
    }

    /// `None` for `number`: the version in force.
    async fn require_version(&self, dag: &str, number: Option<u32>) -> ApiResult<VersionView> {
        let found = self.store.get_version(&self.tenant(), &DagId::new(dag), number).await?;
        found.ok_or_else(|| match number {
            Some(number) => ApiError::NotFound(format!(
                "The DagVersion with dag_id: `{dag}` and version_number: `{number}` was not found"
            )),
            None => ApiError::NotFound(format!("The Dag with ID: `{dag}` was not found")),
        })
    }

    pub(crate) async fn require_run(&self, dag: &str, run: &str) -> ApiResult<RunView> {
        let found = self.store.get_run(&self.tenant(), &DagId::new(dag), &RunId::new(run)).await?;
        found.ok_or_else(|| {
            ApiError::NotFound(format!("The DagRun with dag_id: `{dag}` and run_id: `{run}` was not found"))
        })
    }

    async fn require_ti(&self, path: &MappedTaskPath) -> ApiResult<TiView> {
        let mut query =
            TiQuery::of_run(self.tenant(), DagId::new(&path.dag_id), RunId::new(&path.dag_run_id));
        query.task = Some(TaskId::new(&path.task_id));
        query.map_index = Some(path.map_index);
        let found = self.store.list_tis(&query).await?.items.into_iter().next();
        found.ok_or_else(|| {
            ApiError::NotFound(format!(
                "The Task Instance with dag_id: `{}`, run_id: `{}`, task_id: `{}` and map_index: `{}` was not found",
                path.dag_id, path.dag_run_id, path.task_id, path.map_index
            ))
        })
    }

    pub(crate) fn versions(&self) -> Versions<'_> {
        Versions { state: self, known: HashMap::new() }
    }
}

/// The dag versions that one answer mentions, each read once. Not kept for longer: a dag that is deleted
/// and pushed again starts its numbers anew.
pub(crate) struct Versions<'a> {
    state: &'a ApiState,
    known: HashMap<(DagId, u32), Option<Arc<VersionView>>>,
}

impl Versions<'_> {
    async fn get(&mut self, dag: &DagId, number: u32) -> ApiResult<Option<Arc<VersionView>>> {
        let key = (dag.clone(), number);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let found =
            self.state.store.get_version(&self.state.tenant(), dag, Some(number)).await?.map(Arc::new);
        self.known.insert(key, found.clone());
        Ok(found)
    }

    pub(crate) async fn run(&mut self, run: &RunView) -> ApiResult<RunShape> {
        let version = self.get(&run.dag, run.version).await?;
        Ok(RunShape::of(run, version.as_deref()))
    }

    pub(crate) async fn runs(&mut self, runs: &[RunView]) -> ApiResult<Vec<RunShape>> {
        let mut shapes = Vec::with_capacity(runs.len());
        for run in runs {
            shapes.push(self.run(run).await?);
        }
        Ok(shapes)
    }

    pub(crate) async fn ti(&mut self, ti: &TiView) -> ApiResult<TaskInstanceShape> {
        let version = self.get(&ti.dag, ti.version).await?;
        Ok(TaskInstanceShape::of(ti, version.as_deref()))
    }

    pub(crate) async fn tis(&mut self, tis: &[TiView]) -> ApiResult<Vec<TaskInstanceShape>> {
        let mut shapes = Vec::with_capacity(tis.len());
        for ti in tis {
            shapes.push(self.ti(ti).await?);
        }
        Ok(shapes)
    }
}
