//! Dags as Airflow shows them: `DAGResponse`, `DAGDetailsResponse`, `TaskResponse`.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenure_model::timetable::{DueRun, ScheduleProgress, Timetable};
use tenure_model::{DagId, DagSpec, RunState, Schedule, TaskId, TaskSpec, WeightRule};
use tenure_store::{DagQuery, DagView, Paging, RunQuery};
use utoipa::{IntoParams, ToSchema};

use super::DagPath;
use super::shapes::{VersionShape, bundle};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs, Query, paging};
use crate::state::ApiState;

const ORDERS: &[(&str, &str)] = &[
    ("dag_id", "dag_id"),
    ("dag_display_name", "dag_id"),
    ("next_dagrun", "next_run_at"),
    ("next_dagrun_run_after", "next_run_at"),
    ("is_paused", "is_paused"),
];

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DagsQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
    /// `dag_id`, `next_dagrun` or `is_paused`, with a leading `-` for descending.
    order_by: Vec<String>,
    /// One of these tags.
    tags: Vec<String>,
    /// One of these owners.
    owners: Vec<String>,
    /// Part of the id, in any case; `%` stands for any text, `_` for any character.
    dag_id_pattern: Option<String>,
    /// Beginning of the id.
    dag_id_prefix_pattern: Option<String>,
    paused: Option<bool>,
    /// Accepted and without effect: a dag is there or it is not.
    #[allow(dead_code, reason = "Airflow's clients send it")]
    exclude_stale: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGCollectionResponse)]
pub struct DagsShape {
    dags: Vec<DagShape>,
    total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGResponse)]
pub struct DagShape {
    dag_id: String,
    dag_display_name: String,
    is_paused: bool,
    is_stale: bool,
    last_parsed_time: Option<Timestamp>,
    last_parse_duration: Option<f64>,
    last_expired: Option<Timestamp>,
    bundle_name: Option<String>,
    /// The content hash of the version in force.
    bundle_version: Option<String>,
    relative_fileloc: Option<String>,
    fileloc: String,
    file_token: String,
    description: Option<String>,
    timetable_summary: Option<String>,
    timetable_description: Option<String>,
    timetable_partitioned: bool,
    timetable_periodic: bool,
    tags: Vec<TagShape>,
    max_active_tasks: u32,
    max_active_runs: Option<u32>,
    max_consecutive_failed_dag_runs: u32,
    has_task_concurrency_limits: bool,
    has_import_errors: bool,
    is_backfillable: bool,
    allowed_run_types: Option<Vec<String>>,
    next_dagrun_logical_date: Option<Timestamp>,
    next_dagrun_data_interval_start: Option<Timestamp>,
    next_dagrun_data_interval_end: Option<Timestamp>,
    next_dagrun_run_after: Option<Timestamp>,
    owners: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DagTagResponse)]
pub struct TagShape {
    name: String,
    dag_id: String,
    dag_display_name: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGDetailsResponse)]
pub struct DagDetailsShape {
    #[serde(flatten)]
    dag: DagShape,
    catchup: bool,
    dag_run_timeout: Option<String>,
    asset_expression: Option<Value>,
    doc_md: Option<String>,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
    is_paused_upon_creation: Option<bool>,
    params: Map<String, Value>,
    render_template_as_native_obj: bool,
    rerun_with_latest_version: Option<bool>,
    template_search_path: Option<Vec<String>>,
    timezone: String,
    last_parsed: Option<Timestamp>,
    default_args: Option<Value>,
    owner_links: Option<Value>,
    is_favorite: bool,
    active_runs_count: u64,
    concurrency: u32,
    latest_dag_version: Option<VersionShape>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DAGPatchBody)]
pub struct PatchBody {
    is_paused: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PatchQuery {
    /// Only `is_paused` can be changed.
    update_mask: Vec<String>,
}

/// List dags.
#[utoipa::path(get, path = "/api/v2/dags", tag = "dags", params(DagsQuery),
    responses((status = 200, body = DagsShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    Query(query): Query<DagsQuery>,
) -> ApiResult<Json<DagsShape>> {
    let dag_query = DagQuery {
        tenant: state.tenant(),
        id_pattern: match (query.dag_id_pattern, query.dag_id_prefix_pattern) {
            (Some(_), Some(_)) => {
                let text = "dag_id_pattern and dag_id_prefix_pattern exclude each other.";
                return Err(ApiError::BadRequest(text.into()));
            }
            (Some(part), None) if part == super::ANY => None,
            (Some(part), None) => Some(format!("%{part}%")),
            (None, Some(beginning)) => Some(format!("{beginning}%")),
            (None, None) => None,
        },
        tags: query.tags,
        owners: query.owners,
        paused: query.paused,
        paging: paging(query.limit, query.offset, &query.order_by, ORDERS)?,
    };
    let page = state.store.list_dags(&dag_query).await?;
    let dags = page.items.iter().map(|dag| DagShape::of(&state, dag)).collect();
    Ok(Json(DagsShape { dags, total_entries: page.total }))
}

/// One dag.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}", tag = "dags", params(DagPath),
    responses((status = 200, body = DagShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
) -> ApiResult<Json<DagShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    Ok(Json(DagShape::of(&state, &dag)))
}

/// Pause or unpause a dag.
#[utoipa::path(patch, path = "/api/v2/dags/{dag_id}", tag = "dags", params(DagPath, PatchQuery),
    request_body = PatchBody, responses((status = 200, body = DagShape), Refusals))]
pub async fn patch(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    Query(query): Query<PatchQuery>,
    JsonBody(body): JsonBody<PatchBody>,
) -> ApiResult<Json<DagShape>> {
    if query.update_mask.iter().any(|field| field != "is_paused") {
        return Err(ApiError::BadRequest(
            "Only `is_paused` field can be updated through the REST API".into(),
        ));
    }
    state.require_dag(&path.dag_id).await?;
    state.store.set_paused(&state.trigger(), &DagId::new(&path.dag_id), body.is_paused).await?;
    let dag = state.require_dag(&path.dag_id).await?;
    Ok(Json(DagShape::of(&state, &dag)))
}

/// Forget a dag with its versions, runs and task instances. Refused while a run is active.
#[utoipa::path(delete, path = "/api/v2/dags/{dag_id}", tag = "dags", params(DagPath),
    responses((status = 204, description = "Deleted"), Refusals))]
pub async fn delete(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
) -> ApiResult<StatusCode> {
    state.require_dag(&path.dag_id).await?;
    state.store.delete_dag(&state.trigger(), &DagId::new(&path.dag_id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// One dag with its parameters, limits and version in force.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/details", tag = "dags", params(DagPath),
    responses((status = 200, body = DagDetailsShape), Refusals))]
pub async fn details(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
) -> ApiResult<Json<DagDetailsShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    let version = state.store.get_version(&state.tenant(), &dag.dag, Some(dag.version)).await?;
    let mut active = RunQuery::of(state.tenant(), Some(dag.dag.clone()));
    active.states = vec![RunState::Queued, RunState::Running];
    active.paging = Paging { limit: 1, ..Paging::default() };
    let active_runs_count = state.store.list_runs(&active).await?.total;

    let spec = &dag.spec;
    Ok(Json(DagDetailsShape {
        dag: DagShape::of(&state, &dag),
        catchup: spec.catchup,
        dag_run_timeout: spec.run_timeout.map(iso_duration),
        asset_expression: None,
        doc_md: None,
        start_date: spec.start_date,
        end_date: spec.end_date,
        is_paused_upon_creation: None,
        params: params(spec),
        render_template_as_native_obj: false,
        rerun_with_latest_version: None,
        template_search_path: None,
        timezone: spec.timezone.clone(),
        last_parsed: Some(dag.updated_at),
        default_args: None,
        owner_links: None,
        is_favorite: false,
        active_runs_count,
        concurrency: spec.max_active_tasks,
        latest_dag_version: version.as_ref().map(VersionShape::of),
    }))
}

impl DagShape {
    fn of(state: &ApiState, dag: &DagView) -> Self {
        let id = dag.dag.to_string();
        let spec = &dag.spec;
        let next = next_run(dag, state.clock.now());
        let errors = state.import_errors.read().expect("nobody panics while writing import errors");
        let tag =
            |name: &String| TagShape { name: name.clone(), dag_id: id.clone(), dag_display_name: id.clone() };
        Self {
            dag_id: id.clone(),
            dag_display_name: id.clone(),
            is_paused: dag.paused,
            is_stale: false,
            last_parsed_time: Some(dag.updated_at),
            last_parse_duration: None,
            last_expired: None,
            bundle_name: Some(bundle(&dag.origin).into()),
            bundle_version: Some(dag.hash.to_string()),
            relative_fileloc: Some(dag.origin.clone()),
            fileloc: dag.origin.clone(),
            file_token: dag.hash.to_string(),
            description: spec.description.clone(),
            timetable_summary: spec.schedule.summary(),
            timetable_description: Some(describe(spec)),
            timetable_partitioned: false,
            timetable_periodic: matches!(spec.schedule, Schedule::Cron { .. } | Schedule::Every { .. }),
            tags: spec.tags.iter().map(tag).collect(),
            max_active_tasks: spec.max_active_tasks,
            max_active_runs: Some(spec.max_active_runs),
            max_consecutive_failed_dag_runs: 0,
            has_task_concurrency_limits: spec.tasks.iter().any(has_limits),
            has_import_errors: errors.iter().any(|error| error.file == dag.origin),
            is_backfillable: matches!(spec.schedule, Schedule::Cron { .. } | Schedule::Every { .. }),
            allowed_run_types: None,
            next_dagrun_logical_date: next.map(|run| run.logical_date),
            next_dagrun_data_interval_start: next.map(|run| run.data_interval.start),
            next_dagrun_data_interval_end: next.map(|run| run.data_interval.end),
            next_dagrun_run_after: next.map(|run| run.run_after),
            owners: vec![spec.owner.clone()],
        }
    }
}

/// What the timetable wants next. A continuous one wants «now, once the last has ended», which is no date.
fn next_run(dag: &DagView, now: Timestamp) -> Option<DueRun> {
    if dag.spec.schedule == Schedule::Continuous {
        return None;
    }
    let progress = ScheduleProgress { anchor: Some(dag.registered_at), last_tick: dag.last_tick };
    Timetable::new(&dag.spec).ok()?.next(progress, now)
}

fn describe(spec: &DagSpec) -> String {
    match &spec.schedule {
        Schedule::None => "Never, external triggers only".into(),
        Schedule::Once => "Once, as soon as possible".into(),
        Schedule::Continuous => "As soon as the last run has ended".into(),
        Schedule::Cron { expression } => format!("At {expression} in {}", spec.timezone),
        Schedule::Every { interval } => format!("Every {}", tenure_model::duration::format(*interval)),
    }
}

fn has_limits(task: &TaskSpec) -> bool {
    task.max_active_per_dag.is_some() || task.max_active_per_run.is_some()
}

/// Parameters as Airflow serialises its `Param`s.
fn params(spec: &DagSpec) -> Map<String, Value> {
    let shapes = spec.params.iter().map(|(name, param)| {
        let shape =
            json!({ "value": param.default, "description": param.description, "schema": param.schema });
        (name.clone(), shape)
    });
    shapes.collect()
}

/// `PT1H30M`-like; whole seconds are enough for a timeout.
fn iso_duration(duration: Duration) -> String {
    format!("PT{}S", duration.as_secs())
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TasksQuery {
    /// `task_id`, with a leading `-` for descending; without it, in the order of the dag file.
    order_by: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct DagTaskPath {
    dag_id: String,
    task_id: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskCollectionResponse)]
pub struct TasksShape {
    tasks: Vec<TaskShape>,
    total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskResponse)]
pub struct TaskShape {
    task_id: String,
    task_display_name: String,
    owner: String,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
    trigger_rule: &'static str,
    depends_on_past: bool,
    wait_for_downstream: bool,
    retries: u32,
    queue: Option<String>,
    pool: String,
    pool_slots: u32,
    execution_timeout: Option<TimeDelta>,
    retry_delay: TimeDelta,
    /// 0 for a fixed delay, otherwise the multiplier.
    retry_exponential_backoff: f64,
    priority_weight: i32,
    weight_rule: &'static str,
    ui_color: Option<String>,
    ui_fgcolor: Option<String>,
    template_fields: Vec<String>,
    downstream_task_ids: Vec<String>,
    doc_md: Option<String>,
    /// The kind of task: `bash`, `exec`, `python`, `http`, `empty`.
    operator_name: &'static str,
    params: Map<String, Value>,
    class_ref: Map<String, Value>,
    is_mapped: bool,
    extra_links: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TimeDelta {
    #[serde(rename = "__type")]
    kind: &'static str,
    days: u64,
    seconds: u64,
    microseconds: u32,
}

impl From<Duration> for TimeDelta {
    fn from(duration: Duration) -> Self {
        let (days, seconds) = (duration.as_secs() / 86_400, duration.as_secs() % 86_400);
        Self { kind: "TimeDelta", days, seconds, microseconds: duration.subsec_micros() }
    }
}

/// The tasks of the version in force.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/tasks", tag = "tasks", params(DagPath, TasksQuery),
    responses((status = 200, body = TasksShape), Refusals))]
pub async fn tasks(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    Query(query): Query<TasksQuery>,
) -> ApiResult<Json<TasksShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    let mut tasks: Vec<_> = dag.spec.tasks.iter().collect();
    match query.order_by.as_deref() {
        None => {}
        Some("task_id") => tasks.sort_by(|a, b| a.id.cmp(&b.id)),
        Some("-task_id") => tasks.sort_by(|a, b| b.id.cmp(&a.id)),
        Some(other) => {
            let text = format!("Ordering by {other:?} is not possible; use task_id or -task_id.");
            return Err(ApiError::BadRequest(text));
        }
    }
    let downstream = Downstream::of(&dag.spec);
    let tasks: Vec<_> = tasks.into_iter().map(|task| TaskShape::of(&dag.spec, task, &downstream)).collect();
    Ok(Json(TasksShape { total_entries: tasks.len() as u64, tasks }))
}

/// One task of the version in force.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/tasks/{task_id}", tag = "tasks", params(DagTaskPath),
    responses((status = 200, body = TaskShape), Refusals))]
pub async fn task(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagTaskPath>,
) -> ApiResult<Json<TaskShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    let Some(task) = dag.spec.task(&TaskId::new(&path.task_id)) else {
        return Err(ApiError::NotFound(format!("Task with id {} was not found", path.task_id)));
    };
    Ok(Json(TaskShape::of(&dag.spec, task, &Downstream::of(&dag.spec))))
}

/// Who needs whom, turned round once: asking per task would be quadratic.
struct Downstream<'a>(std::collections::BTreeMap<&'a TaskId, Vec<String>>);

impl<'a> Downstream<'a> {
    fn of(spec: &'a DagSpec) -> Self {
        let mut downstream = std::collections::BTreeMap::<_, Vec<String>>::new();
        for task in &spec.tasks {
            for upstream in &task.needs {
                downstream.entry(upstream).or_default().push(task.id.to_string());
            }
        }
        downstream.values_mut().for_each(|tasks| tasks.sort());
        Self(downstream)
    }
}

impl TaskShape {
    fn of(dag: &DagSpec, task: &TaskSpec, downstream: &Downstream<'_>) -> Self {
        let class = json!({ "module_path": "tenure", "class_name": task.kind.name() });
        Self {
            task_id: task.id.to_string(),
            task_display_name: task.id.to_string(),
            owner: dag.owner.clone(),
            start_date: dag.start_date,
            end_date: dag.end_date,
            trigger_rule: task.trigger_rule.as_str(),
            depends_on_past: task.depends_on_past,
            wait_for_downstream: task.wait_for_downstream,
            retries: task.retries,
            queue: None,
            pool: task.pool.to_string(),
            pool_slots: task.pool_slots,
            execution_timeout: task.timeout.map(TimeDelta::from),
            retry_delay: task.retry_delay.into(),
            retry_exponential_backoff: task.retry_backoff.unwrap_or(0.0),
            priority_weight: task.priority,
            weight_rule: match task.weight_rule {
                WeightRule::Downstream => "downstream",
                WeightRule::Upstream => "upstream",
                WeightRule::Absolute => "absolute",
            },
            ui_color: None,
            ui_fgcolor: None,
            template_fields: vec![],
            downstream_task_ids: downstream.0.get(&task.id).cloned().unwrap_or_default(),
            doc_md: task.description.clone(),
            operator_name: task.kind.name(),
            params: Map::new(),
            class_ref: class.as_object().cloned().unwrap_or_default(),
            is_mapped: false,
            extra_links: vec![],
        }
    }
}
