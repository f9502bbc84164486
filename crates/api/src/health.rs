//! Is it alive, can it schedule, who owns what; and the metrics. Public, except for the metrics.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::state::{ApiState, ScopeHealth};

/// A database that needs longer than this for nothing is not one to schedule on.
const PING_WITHIN: Duration = Duration::from_secs(2);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Serialize, ToSchema)]
pub struct HealthResponse {
    /// `healthy`, or `unhealthy` when it cannot schedule.
    status: &'static str,
    version: &'static str,
    /// Why it is unhealthy.
    reason: Option<String>,
    database: DatabaseHealth,
    last_pass_at: Option<Timestamp>,
    scopes: Vec<ScopeHealth>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DatabaseHealth {
    ok: bool,
    error: Option<String>,
}

/// Everything known about this process's health. 200 as long as the process answers.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses((status = 200, body = HealthResponse)))]
pub async fn health(State(state): State<ApiState>) -> Json<HealthResponse> {
    Json(examine(&state).await)
}

/// The process answers.
#[utoipa::path(get, path = "/health/live", tag = "health", security(()),
    responses((status = 200, description = "`ok`", body = String, content_type = "text/plain")))]
pub async fn live() -> &'static str {
    "ok"
}

/// The process can schedule: the database answers and the scheduler is at work.
#[utoipa::path(get, path = "/health/ready", tag = "health", security(()), responses(
    (status = 200, body = HealthResponse),
    (status = 503, description = "Not (yet) able to schedule, with the reason", body = ErrorBody),
))]
pub async fn ready(State(state): State<ApiState>) -> ApiResult<Json<HealthResponse>> {
    let health = examine(&state).await;
    match &health.reason {
        None => Ok(Json(health)),
        Some(reason) => Err(ApiError::Unavailable(reason.clone())),
    }
}

async fn examine(state: &ApiState) -> HealthResponse {
    let database = ping(state).await;
    let scheduler = state.health.health();
    let reason = match (&database.error, scheduler.ready) {
        (Some(error), _) => Some(error.clone()),
        (None, Err(reason)) => Some(reason),
        (None, Ok(())) => None,
    };
    HealthResponse {
        status: if reason.is_none() { "healthy" } else { "unhealthy" },
        version: env!("CARGO_PKG_VERSION"),
        reason,
        database,
        last_pass_at: scheduler.last_pass_at,
        scopes: scheduler.scopes,
    }
}

pub(crate) async fn ping(state: &ApiState) -> DatabaseHealth {
    let error = match tokio::time::timeout(PING_WITHIN, state.store.ping()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("the database does not answer within {PING_WITHIN:?}")),
    };
    DatabaseHealth { ok: error.is_none(), error }
}

impl DatabaseHealth {
    pub(crate) fn is_ok(&self) -> bool {
        self.ok
    }
}

/// Metrics in the OpenMetrics text format, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
    (status = 401, description = "No token, or a wrong one", body = ErrorBody),
))]
pub async fn metrics(State(state): State<ApiState>) -> ApiResult<Response> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &state.metrics)
        .map_err(|error| ApiError::Internal(format!("The metrics cannot be written: {error}.")))?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
