//! What users change about runs and task instances that exist: clear and mark.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_model::state::Mark;
use tenure_model::{DagId, RunId, TaskId, TaskState, TiKey};
use tenure_store::{ClearRequest, ClearSelection, MarkRequest, TiView};
use utoipa::{IntoParams, ToSchema};

use super::runs::checked_note;
use super::shapes::{RunShape, TaskInstancesShape};
use super::{DagPath, MappedTaskPath, RunPath, TaskPath};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs, Query, unsupported};
use crate::state::ApiState;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = DAGRunClearBody)]
pub struct ClearRunBody {
    /// Say what would be cleared and change nothing. True unless said otherwise, as in Airflow.
    dry_run: bool,
    only_failed: bool,
    only_new: bool,
    /// Follow the newest version of the dag instead of the one the run was made from.
    run_on_latest_version: Option<bool>,
    /// Becomes the run's note.
    note: Option<String>,
}

impl Default for ClearRunBody {
    fn default() -> Self {
        Self { dry_run: true, only_failed: false, only_new: false, run_on_latest_version: None, note: None }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ClearTaskInstancesBody)]
pub struct ClearBody {
    /// Say what would be cleared and change nothing. True unless said otherwise, as in Airflow.
    dry_run: bool,
    dag_run_id: Option<String>,
    /// All tasks without it.
    task_ids: Option<Vec<TaskRef>>,
    /// True unless said otherwise, as in Airflow.
    only_failed: bool,
    only_running: bool,
    include_upstream: bool,
    include_downstream: bool,
    include_future: bool,
    include_past: bool,
    /// Send finished runs round again.
    reset_dag_runs: bool,
    run_on_latest_version: Option<bool>,
    /// Refuse when one of them is running.
    prevent_running_task: bool,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
    note: Option<String>,
}

impl Default for ClearBody {
    fn default() -> Self {
        Self {
            dry_run: true,
            dag_run_id: None,
            task_ids: None,
            only_failed: true,
            only_running: false,
            include_upstream: false,
            include_downstream: false,
            include_future: false,
            include_past: false,
            reset_dag_runs: true,
            run_on_latest_version: None,
            prevent_running_task: false,
            start_date: None,
            end_date: None,
            note: None,
        }
    }
}

/// A task, or a task and a map index.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskRef {
    Task(String),
    Mapped(String, i32),
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = PatchTaskInstanceBody)]
pub struct MarkBody {
    new_state: Option<MarkName>,
    include_upstream: bool,
    include_downstream: bool,
    include_future: bool,
    include_past: bool,
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MarkName {
    Success,
    Failed,
    Skipped,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MarkQuery {
    /// Only `new_state` can be changed.
    update_mask: Vec<String>,
    /// Every map index without it.
    map_index: Option<i32>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MarkMappedQuery {
    /// Only `new_state` can be changed.
    update_mask: Vec<String>,
}

/// Send a run round again. A dry run answers with what would be cleared, otherwise the answer is the run.
#[utoipa::path(post, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/clear", tag = "runs", params(RunPath),
    request_body = ClearRunBody,
    responses((status = 200, description = "The run; for a dry run, task instances", body = RunShape), Refusals))]
pub async fn clear_run(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<RunPath>,
    JsonBody(body): JsonBody<ClearRunBody>,
) -> ApiResult<Response> {
    if body.only_new {
        return Err(unsupported("only_new", "clear with run_on_latest_version, which adds new tasks"));
    }
    let note = checked_note(body.note)?;
    let run = state.require_run(&path.dag_id, &path.dag_run_id).await?;
    let request = ClearRequest {
        only_failed: body.only_failed,
        latest_version: body.run_on_latest_version.unwrap_or(false),
        dry_run: body.dry_run,
        ..whole_run(run.dag.clone(), run.run_id.clone())
    };
    let cleared = state.store.clear(&state.trigger(), &request).await?;
    if body.dry_run {
        return Ok(collection(&state, &cleared.tis).await?.into_response());
    }
    if let Some(note) = note {
        state.store.set_run_note(&state.trigger(), &run.dag, &run.run_id, Some(&note)).await?;
    }
    let run = state.require_run(&path.dag_id, &path.dag_run_id).await?;
    Ok(Json(state.versions().run(&run).await?).into_response())
}

/// Send task instances of a run (and, if asked for, of its past or future runs) round again.
#[utoipa::path(post, path = "/api/v2/dags/{dag_id}/clearTaskInstances", tag = "task instances", params(DagPath),
    request_body = ClearBody, responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn clear_task_instances(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    JsonBody(body): JsonBody<ClearBody>,
) -> ApiResult<Json<TaskInstancesShape>> {
    if body.start_date.is_some() || body.end_date.is_some() {
        return Err(unsupported(
            "start_date",
            "name a run with dag_run_id; include_past and include_future widen it",
        ));
    }
    if body.note.is_some() {
        return Err(unsupported("note", "task instances have no notes; runs have"));
    }
    let prevent_running = body.prevent_running_task && !body.dry_run;
    let request = clear_request(&state, &path.dag_id, body).await?;
    if prevent_running {
        refuse_running(&state, &request).await?;
    }
    let cleared = state.store.clear(&state.trigger(), &request).await?;
    collection(&state, &cleared.tis).await
}

async fn clear_request(state: &ApiState, dag_id: &str, body: ClearBody) -> ApiResult<ClearRequest> {
    let dag = state.require_dag(dag_id).await?;
    let Some(run) = body.dag_run_id else {
        return Err(ApiError::field("body", "dag_run_id", "required: which run should be cleared?"));
    };
    let run = state.require_run(dag_id, &run).await?;
    if body.only_failed && body.only_running {
        return Err(ApiError::BadRequest("only_failed and only_running exclude each other.".into()));
    }
    Ok(ClearRequest {
        selection: match body.task_ids {
            None => ClearSelection::All,
            Some(tasks) => ClearSelection::Tasks(tasks.into_iter().map(unmapped).collect::<Result<_, _>>()?),
        },
        only_failed: body.only_failed,
        only_running: body.only_running,
        upstream: body.include_upstream,
        downstream: body.include_downstream,
        past: body.include_past,
        future: body.include_future,
        reset_runs: body.reset_dag_runs,
        latest_version: body.run_on_latest_version.unwrap_or(false),
        dry_run: body.dry_run,
        ..whole_run(dag.dag, run.run_id)
    })
}

fn whole_run(dag: DagId, run: RunId) -> ClearRequest {
    ClearRequest {
        dag,
        run,
        selection: ClearSelection::All,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        reset_runs: true,
        latest_version: false,
        dry_run: false,
    }
}

fn unmapped(task: TaskRef) -> ApiResult<TaskId> {
    match task {
        TaskRef::Task(id) | TaskRef::Mapped(id, TiKey::UNMAPPED) => Ok(TaskId::from(id)),
        TaskRef::Mapped(_, _) => Err(ApiError::field(
            "body",
            "task_ids",
            "single map indexes cannot be cleared; name the task alone",
        )),
    }
}

async fn refuse_running(state: &ApiState, request: &ClearRequest) -> ApiResult<()> {
    let rehearsal = ClearRequest { dry_run: true, ..request.clone() };
    let would_clear = state.store.clear(&state.trigger(), &rehearsal).await?.tis;
    match would_clear.iter().find(|ti| ti.instance.state == TaskState::Running) {
        Some(ti) => Err(ApiError::Conflict(format!(
            "Task `{}` of run `{}` is running, and prevent_running_task was asked for; nothing was cleared.",
            ti.task_id, ti.run_id
        ))),
        None => Ok(()),
    }
}

/// Declare a task instance to be a success, failed or skipped. If it runs, it is stopped.
#[utoipa::path(patch, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}",
    tag = "task instances", params(TaskPath, MarkQuery), request_body = MarkBody,
    responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn mark(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TaskPath>,
    Query(query): Query<MarkQuery>,
    JsonBody(body): JsonBody<MarkBody>,
) -> ApiResult<Json<TaskInstancesShape>> {
    check_mask(&query.update_mask)?;
    apply(&state, path, query.map_index, body, false).await
}

/// What marking would change.
#[utoipa::path(patch, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/dry_run",
    tag = "task instances", params(TaskPath, MarkQuery), request_body = MarkBody,
    responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn mark_dry_run(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TaskPath>,
    Query(query): Query<MarkQuery>,
    JsonBody(body): JsonBody<MarkBody>,
) -> ApiResult<Json<TaskInstancesShape>> {
    check_mask(&query.update_mask)?;
    apply(&state, path, query.map_index, body, true).await
}

/// Mark one instance of a mapped task.
#[utoipa::path(patch, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}",
    tag = "task instances", params(MappedTaskPath, MarkMappedQuery), request_body = MarkBody,
    responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn mark_mapped(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<MappedTaskPath>,
    Query(query): Query<MarkMappedQuery>,
    JsonBody(body): JsonBody<MarkBody>,
) -> ApiResult<Json<TaskInstancesShape>> {
    check_mask(&query.update_mask)?;
    let MappedTaskPath { dag_id, dag_run_id, task_id, map_index } = path;
    apply(&state, TaskPath { dag_id, dag_run_id, task_id }, Some(map_index), body, false).await
}

/// What marking one instance of a mapped task would change.
#[utoipa::path(patch,
    path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/dry_run",
    tag = "task instances", params(MappedTaskPath, MarkMappedQuery), request_body = MarkBody,
    responses((status = 200, body = TaskInstancesShape), Refusals))]
pub async fn mark_mapped_dry_run(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<MappedTaskPath>,
    Query(query): Query<MarkMappedQuery>,
    JsonBody(body): JsonBody<MarkBody>,
) -> ApiResult<Json<TaskInstancesShape>> {
    check_mask(&query.update_mask)?;
    let MappedTaskPath { dag_id, dag_run_id, task_id, map_index } = path;
    apply(&state, TaskPath { dag_id, dag_run_id, task_id }, Some(map_index), body, true).await
}

fn check_mask(mask: &[String]) -> ApiResult<()> {
    match mask.iter().find(|field| *field != "new_state") {
        Some(field) => {
            Err(ApiError::BadRequest(format!("update_mask: {field:?} cannot be changed; use new_state.")))
        }
        None => Ok(()),
    }
}

async fn apply(
    state: &ApiState,
    path: TaskPath,
    map_index: Option<i32>,
    body: MarkBody,
    dry_run: bool,
) -> ApiResult<Json<TaskInstancesShape>> {
    if body.note.is_some() {
        return Err(unsupported("note", "task instances have no notes; runs have"));
    }
    let Some(new_state) = body.new_state else {
        return Err(ApiError::field("body", "new_state", "required: success, failed or skipped"));
    };
    let request = MarkRequest {
        dag: DagId::new(&path.dag_id),
        run: RunId::new(&path.dag_run_id),
        task: TaskId::new(&path.task_id),
        map_index,
        mark: match new_state {
            MarkName::Success => Mark::Success,
            MarkName::Failed => Mark::Failed,
            MarkName::Skipped => Mark::Skipped,
        },
        upstream: body.include_upstream,
        downstream: body.include_downstream,
        past: body.include_past,
        future: body.include_future,
        dry_run,
    };
    state.require_ti(&path.at(map_index)).await?;
    let marked = state.store.mark(&state.trigger(), &request).await?;
    collection(state, &marked).await
}

async fn collection(state: &ApiState, tis: &[TiView]) -> ApiResult<Json<TaskInstancesShape>> {
    let task_instances = state.versions().tis(tis).await?;
    Ok(Json(TaskInstancesShape { total_entries: task_instances.len() as u64, task_instances }))
}
