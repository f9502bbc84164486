//! Is it alive, can it do its part, who owns what; and the metrics. Public, except for the metrics.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::airflow::monitor::HealthInfo;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::state::{ApiState, SchedulerHealth, ScopeHealth};

/// A database that needs longer than this for nothing is not one to schedule on.
const PING_WITHIN: Duration = Duration::from_secs(2);
const GRPC: &str = "application/grpc";
const GRPC_UNAVAILABLE: &str = "14";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Serialize, ToSchema)]
pub struct HealthResponse {
    /// `healthy`, or `unhealthy` when it cannot do its part.
    status: &'static str,
    version: &'static str,
    /// Why it is unhealthy.
    reason: Option<String>,
    database: DatabaseHealth,
    /// Of all shards that this process owns.
    last_pass_at: Option<Timestamp>,
    shards: ShardsHealth,
    /// Who does the chores of the whole database.
    controller: Option<ScopeHealth>,
    /// Every shard, whoever owns it.
    scopes: Vec<ScopeHealth>,
    #[serde(flatten)]
    airflow: HealthInfo,
}

/// How the shards are shared out, as far as this process knows.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShardsHealth {
    total: usize,
    /// By this process, which may act in them now.
    owned: usize,
    /// By others.
    elsewhere: usize,
    /// Nobody is known to hold these.
    ownerless: usize,
}

impl ShardsHealth {
    fn of(scopes: &[ScopeHealth]) -> Self {
        let owned = scopes.iter().filter(|scope| scope.leading).count();
        let ownerless = scopes.iter().filter(|scope| !scope.leading && scope.owner.is_none()).count();
        Self { total: scopes.len(), owned, elsewhere: scopes.len() - owned - ownerless, ownerless }
    }
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

/// The process can do its part: the database answers, and every shard it owns goes round. One that owns none serves
/// the API and stands by, and is ready.
#[utoipa::path(get, path = "/health/ready", tag = "health", security(()), responses(
    (status = 200, body = HealthResponse),
    (status = 503, description = "Not (yet) able to do its part, with the reason", body = ErrorBody),
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
    let airflow = HealthInfo::of(&database, &scheduler);
    let SchedulerHealth { ready, last_pass_at, scopes, controller } = scheduler;
    let reason = match (&database.error, ready) {
        (Some(error), _) => Some(error.clone()),
        (None, Err(reason)) => Some(reason),
        (None, Ok(())) => None,
    };
    HealthResponse {
        status: if reason.is_none() { "healthy" } else { "unhealthy" },
        version: env!("CARGO_PKG_VERSION"),
        reason,
        database,
        last_pass_at,
        shards: ShardsHealth::of(&scopes),
        controller,
        scopes,
        airflow,
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

/// What a process answers that has no database yet: it lives, and it waits for this.
#[derive(Clone, Debug)]
pub(crate) struct Waiting(pub watch::Receiver<String>);

/// As `/health`, as far as there is anything to say.
pub(crate) async fn waiting(State(Waiting(why)): State<Waiting>) -> Json<Value> {
    let (why, version) = (why.borrow().clone(), env!("CARGO_PKG_VERSION"));
    Json(json!({
        "status": "unhealthy", "version": version, "reason": why, "database": { "ok": false, "error": why },
        "metadatabase": { "status": "unhealthy" }, "scheduler": { "status": "unhealthy" },
    }))
}

/// Anything else, until everything is there. Agents hear it in their own language, and come back.
pub(crate) async fn not_yet(State(Waiting(why)): State<Waiting>, headers: HeaderMap) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.starts_with(GRPC) {
        true => {
            [("content-type", GRPC), ("grpc-status", GRPC_UNAVAILABLE), ("grpc-message", "not ready yet")]
                .into_response()
        }
        false => ApiError::Unavailable(why.borrow().clone()).into_response(),
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
