//! The value a task returned, under the name Airflow gives it.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::TaskPath;
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{PathArgs, Query};
use crate::state::ApiState;

const RETURN_VALUE: &str = "return_value";

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct XComPath {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
    /// Only `return_value` exists.
    xcom_key: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct XComQuery {
    map_index: Option<i32>,
    /// Without effect: values are JSON.
    #[allow(dead_code, reason = "Airflow's clients send it")]
    deserialize: Option<bool>,
    /// The value as JSON text instead of JSON.
    stringify: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = XComResponseNative)]
pub struct XComShape {
    key: &'static str,
    timestamp: Timestamp,
    logical_date: Option<Timestamp>,
    map_index: i32,
    task_id: String,
    task_display_name: String,
    dag_id: String,
    dag_display_name: String,
    run_id: String,
    run_after: Timestamp,
    value: Value,
}

/// What a task returned.
#[utoipa::path(get,
    path = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/xcomEntries/{xcom_key}",
    tag = "task instances", params(XComPath, XComQuery), responses((status = 200, body = XComShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<XComPath>,
    Query(query): Query<XComQuery>,
) -> ApiResult<Json<XComShape>> {
    let XComPath { dag_id, dag_run_id, task_id, xcom_key } = path;
    let ti = state.require_ti(&TaskPath { dag_id, dag_run_id, task_id }.at(query.map_index)).await?;
    let value = match xcom_key.as_str() {
        RETURN_VALUE => state.store.get_result(ti.key).await?,
        _ => None,
    };
    let Some(value) = value else {
        return Err(ApiError::NotFound(format!("XCom entry with key: `{xcom_key}` not found")));
    };
    Ok(Json(XComShape {
        key: RETURN_VALUE,
        timestamp: ti.instance.ended_at.or(ti.instance.started_at).unwrap_or(ti.run_after),
        logical_date: ti.logical_date,
        map_index: ti.key.map_index,
        task_id: ti.task_id.to_string(),
        task_display_name: ti.task_id.to_string(),
        dag_id: ti.dag.to_string(),
        dag_display_name: ti.dag.to_string(),
        run_id: ti.run_id.to_string(),
        run_after: ti.run_after,
        value: if query.stringify { Value::String(value.to_string()) } else { value },
    }))
}
