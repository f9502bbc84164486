//! Pools: how many tasks of a kind may be in flight at once, and how many are.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure_model::{PoolName, TaskState};
use tenure_store::{Paging, PoolRecord, TiQuery};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs, Query, paging, unsupported};
use crate::state::ApiState;

/// `-1` in the API.
const UNLIMITED: u32 = u32::MAX;
const LONGEST_NAME: usize = 256;
/// Task instances in flight are read in pages of this size to add up their slots.
const COUNTED_AT_ONCE: u32 = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct PoolPath {
    pool_name: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PoolsQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
    /// Part of the name.
    pool_name_pattern: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PatchQuery {
    /// `slots`, `description`: only these fields of the body count.
    update_mask: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PoolCollectionResponse)]
pub struct PoolsShape {
    pools: Vec<PoolShape>,
    total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PoolResponse)]
pub struct PoolShape {
    name: String,
    /// −1 for unlimited.
    slots: i64,
    description: Option<String>,
    include_deferred: bool,
    occupied_slots: u64,
    running_slots: u64,
    queued_slots: u64,
    /// Task instances that wait for a slot or a place, each counted once.
    scheduled_slots: u64,
    /// −1 for unlimited.
    open_slots: i64,
    deferred_slots: u64,
    team_name: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PoolBody)]
pub struct CreateBody {
    name: String,
    /// −1 for unlimited.
    slots: i64,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    include_deferred: bool,
    #[serde(default)]
    team_name: Option<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = PoolPatchBody)]
pub struct PatchBody {
    /// A pool cannot be renamed: the same name, or nothing.
    #[serde(alias = "name")]
    pool: Option<String>,
    /// −1 for unlimited.
    slots: Option<i64>,
    description: Option<String>,
    include_deferred: Option<bool>,
    team_name: Option<String>,
}

/// List pools by name.
#[utoipa::path(get, path = "/api/v2/pools", tag = "pools", params(PoolsQuery),
    responses((status = 200, body = PoolsShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    Query(query): Query<PoolsQuery>,
) -> ApiResult<Json<PoolsShape>> {
    let Paging { limit, offset, .. } = paging(query.limit, query.offset, &[], &[])?;
    let part = query.pool_name_pattern.unwrap_or_default();
    let mut records = state.store.list_pools().await?;
    records.retain(|pool| pool.name.as_str().contains(&part));
    records.sort_by(|a, b| a.name.cmp(&b.name));
    let total_entries = records.len() as u64;
    let mut pools = vec![];
    for record in records.iter().skip(offset as usize).take(limit as usize) {
        pools.push(shape(&state, record).await?);
    }
    Ok(Json(PoolsShape { pools, total_entries }))
}

/// One pool.
#[utoipa::path(get, path = "/api/v2/pools/{pool_name}", tag = "pools", params(PoolPath),
    responses((status = 200, body = PoolShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<PoolPath>,
) -> ApiResult<Json<PoolShape>> {
    let record = require(&state, &path.pool_name).await?;
    Ok(Json(shape(&state, &record).await?))
}

/// Create a pool.
#[utoipa::path(post, path = "/api/v2/pools", tag = "pools", request_body = CreateBody,
    responses((status = 201, body = PoolShape), Refusals))]
pub async fn create(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<CreateBody>,
) -> ApiResult<(StatusCode, Json<PoolShape>)> {
    refuse_unknown_notions(body.include_deferred, &body.team_name)?;
    let name = body.name.trim();
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(ApiError::field("body", "name", format!("must have 1 to {LONGEST_NAME} characters")));
    }
    if find(&state, name).await?.is_some() {
        return Err(ApiError::Conflict(format!("Pool with name: `{name}` already exists")));
    }
    let record = PoolRecord {
        name: PoolName::new(name),
        slots: slots(body.slots)?,
        description: body.description.unwrap_or_default(),
    };
    state.store.put_pool(&state.trigger(), &record).await?;
    Ok((StatusCode::CREATED, Json(shape(&state, &record).await?)))
}

/// Change a pool's slots or description.
#[utoipa::path(patch, path = "/api/v2/pools/{pool_name}", tag = "pools", params(PoolPath, PatchQuery),
    request_body = PatchBody, responses((status = 200, body = PoolShape), Refusals))]
pub async fn patch(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<PoolPath>,
    Query(query): Query<PatchQuery>,
    JsonBody(body): JsonBody<PatchBody>,
) -> ApiResult<Json<PoolShape>> {
    refuse_unknown_notions(body.include_deferred.unwrap_or(false), &body.team_name)?;
    if body.pool.is_some_and(|name| name != path.pool_name) {
        return Err(ApiError::field("body", "pool", "a pool cannot be renamed; create another one"));
    }
    const FIELDS: [&str; 5] = ["slots", "description", "pool", "name", "include_deferred"];
    if let Some(unknown) = query.update_mask.iter().find(|field| !FIELDS.contains(&field.as_str())) {
        let text = format!("update_mask: {unknown:?} cannot be changed; use slots or description.");
        return Err(ApiError::BadRequest(text));
    }
    let named =
        |name: &str| query.update_mask.is_empty() || query.update_mask.iter().any(|field| field == name);
    let mut record = require(&state, &path.pool_name).await?;
    if let Some(wanted) = body.slots.filter(|_| named("slots")) {
        record.slots = slots(wanted)?;
    }
    if let Some(description) = body.description.filter(|_| named("description")) {
        record.description = description;
    }
    state.store.put_pool(&state.trigger(), &record).await?;
    Ok(Json(shape(&state, &record).await?))
}

/// Delete a pool. Tasks that name it wait until it is there again.
#[utoipa::path(delete, path = "/api/v2/pools/{pool_name}", tag = "pools", params(PoolPath),
    responses((status = 204, description = "Deleted"), Refusals))]
pub async fn delete(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<PoolPath>,
) -> ApiResult<StatusCode> {
    if path.pool_name == PoolName::DEFAULT {
        return Err(ApiError::BadRequest("Default Pool can't be deleted".into()));
    }
    let record = require(&state, &path.pool_name).await?;
    state.store.delete_pool(&state.trigger(), &record.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(state: &ApiState, name: &str) -> ApiResult<Option<PoolRecord>> {
    Ok(state.store.list_pools().await?.into_iter().find(|pool| pool.name.as_str() == name))
}

async fn require(state: &ApiState, name: &str) -> ApiResult<PoolRecord> {
    let found = find(state, name).await?;
    found.ok_or_else(|| ApiError::NotFound(format!("The Pool with name: `{name}` was not found")))
}

fn slots(wanted: i64) -> ApiResult<u32> {
    match wanted {
        -1 => Ok(UNLIMITED),
        _ => u32::try_from(wanted)
            .map_err(|_| ApiError::field("body", "slots", "must be -1 (unlimited) or more")),
    }
}

fn refuse_unknown_notions(include_deferred: bool, team: &Option<String>) -> ApiResult<()> {
    if include_deferred {
        return Err(unsupported("include_deferred", "no task is ever deferred"));
    }
    match team {
        Some(_) => Err(unsupported("team_name", "there are no teams")),
        None => Ok(()),
    }
}

async fn shape(state: &ApiState, pool: &PoolRecord) -> ApiResult<PoolShape> {
    let running = slots_in(state, pool, &[TaskState::Running, TaskState::Restarting]).await?;
    let queued = slots_in(state, pool, &[TaskState::Queued]).await?;
    let occupied = running + queued;
    Ok(PoolShape {
        name: pool.name.to_string(),
        slots: if pool.slots == UNLIMITED { -1 } else { pool.slots.into() },
        description: Some(pool.description.clone()),
        include_deferred: false,
        occupied_slots: occupied,
        running_slots: running,
        queued_slots: queued,
        scheduled_slots: state
            .store
            .list_tis(&query(state, pool, &[TaskState::Scheduled], 0, 1))
            .await?
            .total,
        open_slots: if pool.slots == UNLIMITED { -1 } else { i64::from(pool.slots) - occupied as i64 },
        deferred_slots: 0,
        team_name: None,
    })
}

/// The pool itself bounds how many there are, so counting them one by one is affordable.
async fn slots_in(state: &ApiState, pool: &PoolRecord, states: &[TaskState]) -> ApiResult<u64> {
    let mut versions = state.versions();
    let (mut offset, mut sum) = (0, 0);
    loop {
        let page = state.store.list_tis(&query(state, pool, states, offset, COUNTED_AT_ONCE)).await?;
        for ti in &page.items {
            let version = versions.get(&ti.dag, ti.version).await?;
            let spec = version.as_ref().and_then(|version| version.spec.task(&ti.task_id));
            sum += u64::from(spec.map_or(1, |spec| spec.pool_slots));
        }
        offset += COUNTED_AT_ONCE;
        if page.items.is_empty() || u64::from(offset) >= page.total {
            return Ok(sum);
        }
    }
}

fn query(state: &ApiState, pool: &PoolRecord, states: &[TaskState], offset: u32, limit: u32) -> TiQuery {
    TiQuery {
        tenant: state.tenant(),
        dag: None,
        run: None,
        task: None,
        map_index: None,
        states: states.to_vec(),
        pools: vec![pool.name.to_string()],
        bound_to: None,
        paging: Paging { limit, offset, order_by: None },
    }
}
