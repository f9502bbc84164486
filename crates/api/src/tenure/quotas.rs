//! Quotas: what the tasks of a tenant may take of all nodes together, and what they do take.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure_model::{Resources, TenantId};
use tenure_outlook::Picture;
use tenure_store::Quota;
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs};
use crate::state::ApiState;

#[derive(Debug, Serialize, ToSchema)]
pub struct Quotas {
    quotas: Vec<QuotaShape>,
    total_entries: u64,
}

/// Amounts count thousandths of a unit.
#[derive(Debug, Serialize, ToSchema)]
pub struct QuotaShape {
    tenant: String,
    /// Of what is not named there is no limit.
    #[schema(value_type = Object)]
    most: Resources,
    /// What attempts that are bound take, of everything.
    #[schema(value_type = Object)]
    used: Resources,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TenantPath {
    tenant: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaBody {
    /// In thousandths of a unit: `{"gpu": 2000, "tasks": 50000}`. Of what is not named there is no limit.
    #[schema(value_type = Object)]
    most: Resources,
}

/// What tenants may take, and what they do take.
#[utoipa::path(get, path = "/api/tenure/quotas", tag = "cluster",
    responses((status = 200, body = Quotas), Refusals))]
pub async fn list(State(state): State<ApiState>) -> ApiResult<Json<Quotas>> {
    let (picture, quotas) = futures::try_join!(Picture::read(&*state.store), state.store.list_quotas())?;
    let shape = |Quota { tenant, most }: Quota| QuotaShape {
        used: picture.taken(&tenant),
        tenant: tenant.to_string(),
        most,
    };
    let quotas: Vec<QuotaShape> = quotas.into_iter().map(shape).collect();
    Ok(Json(Quotas { total_entries: quotas.len() as u64, quotas }))
}

/// Sets a tenant's quota. What runs already goes on, even if it is more than that.
#[utoipa::path(put, path = "/api/tenure/quotas/{tenant}", tag = "cluster", params(TenantPath),
    request_body = QuotaBody, responses((status = 200, body = QuotaShape), Refusals))]
pub async fn put(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TenantPath>,
    JsonBody(QuotaBody { most }): JsonBody<QuotaBody>,
) -> ApiResult<Json<QuotaShape>> {
    if most.is_empty() {
        let what = "A quota without amounts limits nothing: name some, or delete the quota.";
        return Err(ApiError::field("body", "most", what));
    }
    let quota = Quota { tenant: TenantId::new(&path.tenant), most };
    state.store.put_quota(&state.trigger(), &quota).await?;
    let used = Picture::read(&*state.store).await?.taken(&quota.tenant);
    Ok(Json(QuotaShape { tenant: path.tenant, most: quota.most, used }))
}

/// Takes a tenant's quota away: nothing limits it any more.
#[utoipa::path(delete, path = "/api/tenure/quotas/{tenant}", tag = "cluster", params(TenantPath),
    responses((status = 204, description = "It is gone"), Refusals))]
pub async fn delete(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TenantPath>,
) -> ApiResult<StatusCode> {
    state.store.delete_quota(&state.trigger(), &TenantId::new(&path.tenant)).await?;
    Ok(StatusCode::NO_CONTENT)
}
