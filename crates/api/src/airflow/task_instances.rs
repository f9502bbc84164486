//! Task instances and their tries: reading only.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure_model::{DagId, RunId, TaskId, TaskState};
use tenure_store::TiQuery;
use utoipa::{IntoParams, ToSchema};

use super::shapes::{TaskInstanceShape, TaskInstancesShape, TriesShape, TryShape};
use super::{ANY, MapIndexQuery, MappedTaskPath, RunPath, TaskPath};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{PathArgs, Query, paging};
use crate::state::ApiState;

const ORDERS: &[(&str, &str)] = &[
    ("id", "id"),
    ("task_id", "task_id"),
    ("state", "state"),
    ("start_date", "start_date"),
    ("end_date", "end_date"),
];

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskInstancesQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
    /// `id` (run, then position in the dag; the default), `task_id`, `state`, `start_date` or `end_date`,
    /// with a leading `-` for descending.
    order_by: Vec<String>,
    task_id: Option<String>,
    /// `none` asks for those that nothing has happened to yet.
    #[param(value_type = Vec<String>)]
    state: Vec<TaskStateName>,
    pool: Vec<String>,
    map_index: Option<i32>,
}

/// Airflow also says `no_status` for `none`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStateName {
    #[serde(alias = "no_status")]
    None,
    Scheduled,
    Queued,
    Running,
    Success,
    Failed,
    Skipped,
    UpstreamFailed,
    UpForRetry,
    UpForReschedule,
    Deferred,
    Restarting,
    Removed,
}

impl From<TaskStateName> for TaskState {
    fn from(name: TaskStateName) -> Self {
        match name {
            TaskStateName::None => Self::None,
            TaskStateName::Scheduled => Self::Scheduled,
            TaskStateName::Queued => Self::Queued,
            TaskStateName::Running => Self::Running,
            TaskStateName::Success => Self::Success,
            TaskStateName::Failed => Self::Failed,
            TaskStateName::Skipped => Self::Skipped,
            TaskStateName::UpstreamFailed => Self::UpstreamFailed,
            TaskStateName::UpForRetry => Self::UpForRetry,
            TaskStateName::UpForReschedule => Self::UpForReschedule,
            TaskStateName::Deferred => Self::Deferred,
            TaskStateName::Restarting => Self::Restarting,
            TaskStateName::Removed => Self::Removed,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TryPath {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
    task_try_number: u32,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct MappedTryPath {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
    map_index: i32,
    task_try_number: u32,
}

/// Task instances of a run, of all runs of a dag (`dagRuns/~`), or of all dags (`dags/~/dagRuns/~`).
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances", tag = "task instances",
    params(RunPath, TaskInstancesQuery), responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<RunPath>,
    Query(query): Query<TaskInstancesQuery>,
) -> ApiResult<Json<TaskInstancesShape>> {
    let (dag, run) = match (path.dag_id.as_str(), path.dag_run_id.as_str()) {
        (ANY, ANY) => (None, None),
        (ANY, _) => {
            return Err(ApiError::BadRequest(
                "A run is named within a dag: with dag `~` the run must be `~`.".into(),
            ));
        }
        (dag, ANY) => (Some(state.require_dag(dag).await?.dag), None),
        (dag, run) => {
            let run = state.require_run(dag, run).await?;
            (Some(run.dag), Some(run.run_id))
        }
    };
    let query = TiQuery {
        tenant: state.tenant(),
        dag,
        run,
        task: query.task_id.map(TaskId::from),
        map_index: query.map_index,
        states: query.state.into_iter().map(TaskState::from).collect(),
        pools: query.pool,
        bound_to: None,
        paging: paging(query.limit, query.offset, &query.order_by, ORDERS)?,
    };
    let page = state.store.list_tis(&query).await?;
    let task_instances = state.versions().tis(&page.items).await?;
    Ok(Json(TaskInstancesShape { task_instances, total_entries: page.total }))
}

/// One task instance.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}",
    tag = "task instances", params(TaskPath), responses((status = 200, body = TaskInstanceShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TaskPath>,
) -> ApiResult<Json<TaskInstanceShape>> {
    one(&state, &path.at(None)).await
}

/// One task instance of a mapped task.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}",
    tag = "task instances", params(MappedTaskPath), responses((status = 200, body = TaskInstanceShape), Refusals))]
pub async fn get_mapped(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<MappedTaskPath>,
) -> ApiResult<Json<TaskInstanceShape>> {
    one(&state, &path).await
}

async fn one(state: &ApiState, path: &MappedTaskPath) -> ApiResult<Json<TaskInstanceShape>> {
    let ti = state.require_ti(path).await?;
    Ok(Json(state.versions().ti(&ti).await?))
}

/// All tries of a task instance, oldest first, the one in force included.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/tries",
    tag = "task instances", params(TaskPath, MapIndexQuery),
    responses((status = 200, body = TriesShape), Refusals))]
pub async fn tries(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TaskPath>,
    Query(query): Query<MapIndexQuery>,
) -> ApiResult<Json<TriesShape>> {
    all_tries(&state, &path.at(query.map_index)).await
}

/// All tries of an instance of a mapped task.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/tries",
    tag = "task instances", params(MappedTaskPath), responses((status = 200, body = TriesShape), Refusals))]
pub async fn mapped_tries(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<MappedTaskPath>,
) -> ApiResult<Json<TriesShape>> {
    all_tries(&state, &path).await
}

/// One try of a task instance.
#[utoipa::path(get,
    path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/tries/{task_try_number}",
    tag = "task instances", params(TryPath, MapIndexQuery), responses((status = 200, body = TryShape), Refusals))]
pub async fn get_try(
    State(state): State<ApiState>,
    PathArgs(TryPath { dag_id, dag_run_id, task_id, task_try_number }): PathArgs<TryPath>,
    Query(query): Query<MapIndexQuery>,
) -> ApiResult<Json<TryShape>> {
    one_try(&state, &TaskPath { dag_id, dag_run_id, task_id }.at(query.map_index), task_try_number).await
}

/// One try of an instance of a mapped task.
#[utoipa::path(get, path =
    "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/tries/{task_try_number}",
    tag = "task instances", params(MappedTryPath), responses((status = 200, body = TryShape), Refusals))]
pub async fn get_mapped_try(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<MappedTryPath>,
) -> ApiResult<Json<TryShape>> {
    let MappedTryPath { dag_id, dag_run_id, task_id, map_index, task_try_number } = path;
    one_try(&state, &MappedTaskPath { dag_id, dag_run_id, task_id, map_index }, task_try_number).await
}

async fn all_tries(state: &ApiState, path: &MappedTaskPath) -> ApiResult<Json<TriesShape>> {
    let task_instances: Vec<_> = tries_of(state, path).await?.into_iter().map(|(_, shape)| shape).collect();
    Ok(Json(TriesShape { total_entries: task_instances.len() as u64, task_instances }))
}

async fn one_try(state: &ApiState, path: &MappedTaskPath, number: u32) -> ApiResult<Json<TryShape>> {
    let found = tries_of(state, path).await?.into_iter().find(|(try_number, _)| *try_number == number);
    found.map(|(_, shape)| Json(shape)).ok_or_else(|| no_such_try(path, number))
}

pub(super) fn no_such_try(path: &MappedTaskPath, number: u32) -> ApiError {
    ApiError::NotFound(format!(
        "The Task Instance with dag_id: `{}`, run_id: `{}`, task_id: `{}`, try_number: `{number}` and map_index: `{}` \
         was not found",
        path.dag_id, path.dag_run_id, path.task_id, path.map_index
    ))
}

async fn tries_of(state: &ApiState, path: &MappedTaskPath) -> ApiResult<Vec<(u32, TryShape)>> {
    let ti = state.require_ti(path).await?;
    let version = state.versions().get(&ti.dag, ti.version).await?;
    let (dag, run) = (DagId::new(&path.dag_id), RunId::new(&path.dag_run_id));
    let tries = state.store.list_tries(&state.tenant(), &dag, &run, &ti.task_id, path.map_index).await?;
    // Number 0 is a task instance that waits for its first try.
    let tries = tries.iter().filter(|one| one.instance.try_number > 0);
    Ok(tries.map(|one| (one.instance.try_number, TryShape::of(&ti, one, version.as_deref()))).collect())
}
