//! Runs: listing, reading, ending, noting, forgetting.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_model::{DagId, RunId, RunState, RunType};
use tenure_store::RunQuery;
use utoipa::{IntoParams, ToSchema};

use super::shapes::{RunShape, RunsShape};
use super::{ANY, DagPath, RunPath};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs, Query, paging};
use crate::state::ApiState;

const ORDERS: &[(&str, &str)] = &[
    ("id", "id"),
    ("state", "state"),
    ("dag_id", "dag_id"),
    ("dag_run_id", "run_id"),
    ("run_id", "run_id"),
    ("logical_date", "logical_date"),
    ("run_after", "run_after"),
    ("start_date", "start_date"),
    ("end_date", "end_date"),
    ("queued_at", "queued_at"),
];

/// As in Airflow.
const LONGEST_NOTE: usize = 1000;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunsQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
    /// `id` (order of creation, the default), `state`, `dag_id`, `run_id`, `logical_date`, `run_after`,
    /// `start_date`, `end_date` or `queued_at`, with a leading `-` for descending.
    order_by: Vec<String>,
    #[param(value_type = Vec<String>)]
    state: Vec<RunState>,
    #[param(value_type = Vec<String>)]
    run_type: Vec<RunType>,
    /// Part of the run id; `%` stands for any text, `_` for any character.
    run_id_pattern: Option<String>,
    run_after_gte: Option<Timestamp>,
    run_after_lte: Option<Timestamp>,
    logical_date_gte: Option<Timestamp>,
    logical_date_lte: Option<Timestamp>,
    start_date_gte: Option<Timestamp>,
    start_date_lte: Option<Timestamp>,
    end_date_gte: Option<Timestamp>,
    end_date_lte: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PatchQuery {
    /// `state`, `note`: only these fields of the body count.
    update_mask: Vec<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = DAGRunPatchBody)]
pub struct PatchBody {
    /// `queued` sends it round again; `success` and `failed` end it.
    state: Option<PatchState>,
    /// At most 1000 characters. `null` removes the note when `update_mask` names it.
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatchState {
    Queued,
    Success,
    Failed,
}

/// Runs of a dag, or of all dags (`~`).
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns", tag = "runs", params(DagPath, RunsQuery),
    responses((status = 200, body = RunsShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    Query(query): Query<RunsQuery>,
) -> ApiResult<Json<RunsShape>> {
    let dag = match path.dag_id.as_str() {
        ANY => None,
        dag => Some(state.require_dag(dag).await?.dag),
    };
    let query = RunQuery {
        states: query.state,
        run_types: query.run_type,
        run_id_pattern: query.run_id_pattern.filter(|part| part != ANY).map(|part| format!("%{part}%")),
        logical_date_gte: query.logical_date_gte,
        logical_date_lte: query.logical_date_lte,
        run_after_gte: query.run_after_gte,
        run_after_lte: query.run_after_lte,
        started_at_gte: query.start_date_gte,
        started_at_lte: query.start_date_lte,
        ended_at_gte: query.end_date_gte,
        ended_at_lte: query.end_date_lte,
        paging: paging(query.limit, query.offset, &query.order_by, ORDERS)?,
        ..RunQuery::of(state.tenant(), dag)
    };
    let page = state.store.list_runs(&query).await?;
    let dag_runs = state.versions().runs(&page.items).await?;
    Ok(Json(RunsShape { dag_runs, total_entries: page.total }))
}

/// One run.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}", tag = "runs", params(RunPath),
    responses((status = 200, body = RunShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<RunPath>,
) -> ApiResult<Json<RunShape>> {
    let run = state.require_run(&path.dag_id, &path.dag_run_id).await?;
    Ok(Json(state.versions().run(&run).await?))
}

/// End a run (its running tasks are stopped, pending ones skipped), send it round again, or note something.
#[utoipa::path(patch, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}", tag = "runs",
    params(RunPath, PatchQuery), request_body = PatchBody, responses((status = 200, body = RunShape), Refusals))]
pub async fn patch(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<RunPath>,
    Query(query): Query<PatchQuery>,
    JsonBody(body): JsonBody<PatchBody>,
) -> ApiResult<Json<RunShape>> {
    let mask = Mask::of(&query.update_mask)?;
    let mut run = state.require_run(&path.dag_id, &path.dag_run_id).await?;
    let note = checked_note(body.note)?;
    let (dag, run_id) = (DagId::new(&path.dag_id), RunId::new(&path.dag_run_id));

    if let Some(wanted) = body.state.filter(|_| mask.state) {
        let wanted = match wanted {
            PatchState::Queued => RunState::Queued,
            PatchState::Success => RunState::Success,
            PatchState::Failed => RunState::Failed,
        };
        run = state.store.set_run_state(&state.trigger(), &dag, &run_id, wanted).await?;
    }
    if mask.note_even_if_null || note.is_some() && mask.note {
        run = state.store.set_run_note(&state.trigger(), &dag, &run_id, note.as_deref()).await?;
    }
    Ok(Json(state.versions().run(&run).await?))
}

struct Mask {
    state: bool,
    note: bool,
    note_even_if_null: bool,
}

impl Mask {
    fn of(fields: &[String]) -> ApiResult<Self> {
        if let Some(unknown) = fields.iter().find(|field| !matches!(field.as_str(), "state" | "note")) {
            let text = format!("update_mask: {unknown:?} cannot be changed; use state or note.");
            return Err(ApiError::BadRequest(text));
        }
        let named = |name: &str| fields.iter().any(|field| field == name);
        let all = fields.is_empty();
        Ok(Self {
            state: all || named("state"),
            note: all || named("note"),
            note_even_if_null: named("note"),
        })
    }
}

pub fn checked_note(note: Option<String>) -> ApiResult<Option<String>> {
    match note {
        Some(note) if note.chars().count() > LONGEST_NOTE => {
            Err(ApiError::field("body", "note", format!("longer than {LONGEST_NOTE} characters")))
        }
        note => Ok(note),
    }
}

/// Forget a finished run.
#[utoipa::path(delete, path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}", tag = "runs", params(RunPath),
    responses((status = 204, description = "Deleted"), Refusals))]
pub async fn delete(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<RunPath>,
) -> ApiResult<StatusCode> {
    state.require_run(&path.dag_id, &path.dag_run_id).await?;
    let (dag, run) = (DagId::new(&path.dag_id), RunId::new(&path.dag_run_id));
    state.store.delete_run(&state.trigger(), &dag, &run).await?;
    Ok(StatusCode::NO_CONTENT)
}
