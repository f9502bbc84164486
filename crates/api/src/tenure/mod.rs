//! What Airflow's API has no notion of: pushing dags, live progress, the whole audit trail, nodes,
//! what placement would do.

mod dags;
mod joining;
mod nodes;
mod placement;
mod progress;
mod quotas;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenure_model::{DagId, RunId};
use tenure_store::{AuditQuery, AuditView};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{ApiResult, Refusals};
use crate::input::{Query, paging};
use crate::state::ApiState;

pub fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(dags::push))
        .routes(routes!(dags::validate))
        .routes(routes!(dags::errors))
        .routes(routes!(progress::progress))
        .routes(routes!(audit))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show))
        .routes(routes!(nodes::drain))
        .routes(routes!(nodes::undrain))
        .routes(routes!(placement::preview))
        .routes(routes!(joining::remove))
        .routes(routes!(joining::make_token, joining::tokens))
        .routes(routes!(joining::revoke_token))
        .routes(routes!(quotas::list))
        .routes(routes!(quotas::put, quotas::delete))
        .routes(routes!(info))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditParams {
    dag_id: Option<String>,
    run_id: Option<String>,
    /// Only what came after this row: follow the trail by sending the last `seq` seen.
    after_seq: Option<i64>,
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AuditTrail {
    /// Oldest first: who (actor, scope, epoch), when, and every step that one transaction took in one run.
    #[schema(value_type = Vec<Object>)]
    audit: Vec<AuditView>,
    total_entries: u64,
}

/// The audit trail, with every single transition and the authority it was made under.
#[utoipa::path(get, path = "/api/tenure/audit", tag = "audit", params(AuditParams),
    responses((status = 200, body = AuditTrail), Refusals))]
pub async fn audit(
    State(state): State<ApiState>,
    Query(query): Query<AuditParams>,
) -> ApiResult<Json<AuditTrail>> {
    let query = AuditQuery {
        tenant: state.tenant(),
        dag: query.dag_id.map(DagId::from),
        run: query.run_id.map(RunId::from),
        after_seq: query.after_seq,
        paging: paging(query.limit, query.offset, &[], &[])?,
    };
    let page = state.store.list_audit(&query).await?;
    Ok(Json(AuditTrail { audit: page.items, total_entries: page.total }))
}

/// This server: its version, where its data is, how it was started.
#[utoipa::path(get, path = "/api/tenure/info", tag = "cluster",
    responses((status = 200, body = Object), Refusals))]
pub async fn info(State(state): State<ApiState>) -> Json<Map<String, Value>> {
    let mut info = Map::from_iter([("version".to_owned(), json!(env!("CARGO_PKG_VERSION")))]);
    match state.info {
        Value::Object(fields) => info.extend(fields),
        Value::Null => {}
        other => {
            info.insert("info".into(), other);
        }
    }
    Json(info)
}
