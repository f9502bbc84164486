//! Version and health in Airflow's shapes. Public, as they are there.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::health::{DatabaseHealth, ping};
use crate::state::{ApiState, SchedulerHealth};

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VersionInfo)]
pub struct VersionInfo {
    version: &'static str,
    git_version: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HealthInfoResponse)]
pub struct HealthInfo {
    metadatabase: Status,
    scheduler: SchedulerStatus,
    triggerer: TriggererStatus,
    dag_processor: DagProcessorStatus,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SchedulerStatus {
    status: &'static str,
    latest_scheduler_heartbeat: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TriggererStatus {
    status: Option<&'static str>,
    latest_triggerer_heartbeat: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DagProcessorStatus {
    status: Option<&'static str>,
    latest_dag_processor_heartbeat: Option<String>,
}

/// Tenure's version (not a version of Airflow).
#[utoipa::path(get, path = "/api/v2/version", tag = "health", security(()),
    responses((status = 200, body = VersionInfo)))]
pub async fn version() -> Json<VersionInfo> {
    Json(VersionInfo { version: env!("CARGO_PKG_VERSION"), git_version: None })
}

/// Health as Airflow's monitors read it.
#[utoipa::path(get, path = "/api/v2/monitor/health", tag = "health", security(()),
    responses((status = 200, body = HealthInfo)))]
pub async fn health(State(state): State<ApiState>) -> Json<HealthInfo> {
    let database = ping(&state).await;
    Json(HealthInfo::of(&database, &state.health.health()))
}

impl HealthInfo {
    pub(crate) fn of(database: &DatabaseHealth, scheduler: &SchedulerHealth) -> Self {
        Self {
            metadatabase: Status { status: status(database.is_ok()) },
            scheduler: SchedulerStatus {
                status: status(scheduler.ready.is_ok()),
                latest_scheduler_heartbeat: scheduler.last_pass_at.map(|at| at.to_string()),
            },
            triggerer: TriggererStatus { status: None, latest_triggerer_heartbeat: None },
            dag_processor: DagProcessorStatus { status: None, latest_dag_processor_heartbeat: None },
        }
    }
}

fn status(healthy: bool) -> &'static str {
    if healthy { "healthy" } else { "unhealthy" }
}
