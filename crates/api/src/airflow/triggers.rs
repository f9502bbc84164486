//! Makes manual runs.
//!
//! Promises: a run that was answered for exists; the same `Idempotency-Key` with the same request gives the
//! same run however often it is sent. A run of a paused dag is made and waits, as in Airflow 3.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use jiff::{Timestamp, ToSpan};
use serde::Deserialize;
use serde_json::{Map, Value};
use tenure_model::{DagId, DataInterval, NewRun, RunId, RunType, params};
use tenure_store::{CreateRunOutcome, DagView, StoreError};
use utoipa::ToSchema;

use super::DagPath;
use super::runs::checked_note;
use super::shapes::RunShape;
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs, unsupported};
use crate::state::ApiState;

const LONGEST_RUN_ID: usize = 250;
const LONGEST_KEY: usize = 250;
/// Triggers without a name that come in the same microsecond are told apart by moving them on.
const NAMES_TO_TRY: u32 = 20;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = TriggerDAGRunPostBody)]
pub struct TriggerBody {
    /// `manual__<run_after>` without it.
    dag_run_id: Option<String>,
    /// Unique per dag where given.
    logical_date: Option<Timestamp>,
    data_interval_start: Option<Timestamp>,
    data_interval_end: Option<Timestamp>,
    /// The run does not start before this.
    run_after: Option<Timestamp>,
    /// Parameters of the dag, and whatever else templates should see.
    conf: Option<Map<String, Value>>,
    note: Option<String>,
    partition_key: Option<String>,
}

/// Trigger a run.
#[utoipa::path(post, path = "/api/v2/dags/{dag_id}/dagRuns", tag = "runs",
    params(DagPath, ("Idempotency-Key" = Option<String>, Header,
        description = "The same key with the same request gives the same run; with another request it is a conflict")),
    request_body = TriggerBody, responses((status = 200, body = RunShape), Refusals))]
pub async fn trigger(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<TriggerBody>,
) -> ApiResult<Json<RunShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    let key = idempotency_key(&headers)?;
    let named = body.dag_run_id.is_some();
    let run = new_run(&state, &dag, body, key)?;
    let run_id = create(&state, run, named).await?;
    let run = state.require_run(&path.dag_id, run_id.as_str()).await?;
    Ok(Json(state.versions().run(&run).await?))
}

fn new_run(state: &ApiState, dag: &DagView, body: TriggerBody, key: Option<String>) -> ApiResult<NewRun> {
    if body.partition_key.is_some() {
        return Err(unsupported("partition_key", "there are no partitions"));
    }
    let conf = Value::Object(body.conf.unwrap_or_default());
    if let Err(errors) = params::validate(&dag.spec, &conf) {
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        return Err(ApiError::field("body", "conf", texts.join("; ")));
    }
    let run_after = microseconds(body.run_after.unwrap_or_else(|| state.clock.now()));
    let logical_date = body.logical_date.map(microseconds);
    Ok(NewRun {
        tenant: state.tenant(),
        dag: DagId::new(dag.dag.as_str()),
        run_id: match body.dag_run_id {
            Some(id) => checked_run_id(id)?,
            None => RunType::Manual.run_id(run_after),
        },
        run_type: RunType::Manual,
        logical_date,
        data_interval: interval(body.data_interval_start, body.data_interval_end, logical_date)?,
        run_after,
        conf,
        note: checked_note(body.note)?,
        triggered_by: ApiState::ADMIN.into(),
        idempotency_key: key,
    })
}

async fn create(state: &ApiState, mut run: NewRun, named: bool) -> ApiResult<RunId> {
    let mut names_left = NAMES_TO_TRY;
    loop {
        let text = match state.store.create_run(&state.trigger(), &run).await {
            Ok(CreateRunOutcome::Created(header) | CreateRunOutcome::Replayed(header)) => {
                return Ok(header.run_id);
            }
            Err(StoreError::Conflict(text)) => text,
            Err(error) => return Err(error.into()),
        };
        names_left -= 1;
        let taken = !named && state.store.get_run(&run.tenant, &run.dag, &run.run_id).await?.is_some();
        let later = run.run_after.checked_add(1.microsecond()).ok();
        match later.filter(|_| taken && names_left > 0) {
            Some(later) => (run.run_after, run.run_id) = (later, RunType::Manual.run_id(later)),
            None => return Err(ApiError::Conflict(text)),
        }
    }
}

fn checked_run_id(id: String) -> ApiResult<RunId> {
    let problem = if id.trim().is_empty() {
        "must not be empty".to_owned()
    } else if id.len() > LONGEST_RUN_ID {
        format!("longer than {LONGEST_RUN_ID} bytes")
    } else if id == super::ANY || id.chars().any(char::is_control) {
        "must be a name without control characters, and not ~".to_owned()
    } else {
        return Ok(RunId::from(id));
    };
    Err(ApiError::field("body", "dag_run_id", problem))
}

fn interval(
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    logical_date: Option<Timestamp>,
) -> ApiResult<Option<DataInterval>> {
    match (start.map(microseconds), end.map(microseconds)) {
        (Some(start), Some(end)) if start <= end => Ok(Some(DataInterval { start, end })),
        (Some(_), Some(_)) => Err(ApiError::field("body", "data_interval_end", "before data_interval_start")),
        (None, None) => Ok(logical_date.map(|date| DataInterval { start: date, end: date })),
        (Some(_), None) | (None, Some(_)) => {
            let text =
                "Either both data_interval_start and data_interval_end must be provided or both must be None";
            Err(ApiError::body(text))
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= LONGEST_KEY => Ok(Some(key.to_owned())),
        _ => {
            let text = format!("must be 1 to {LONGEST_KEY} printable ASCII characters");
            Err(ApiError::field("header", "Idempotency-Key", text))
        }
    }
}

/// The precision that every store keeps.
fn microseconds(instant: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(instant.as_microsecond()).expect("rounding towards zero stays in range")
}
