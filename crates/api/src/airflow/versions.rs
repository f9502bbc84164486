//! The immutable versions of a dag, and the text each was made from.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure_model::DagId;
use utoipa::{IntoParams, ToSchema};

use super::DagPath;
use super::shapes::VersionShape;
use crate::error::{ApiResult, Refusals};
use crate::input::{PathArgs, Query, paging, wants_text};
use crate::state::ApiState;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VersionsQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGVersionCollectionResponse)]
pub struct VersionsShape {
    dag_versions: Vec<VersionShape>,
    total_entries: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct VersionPath {
    dag_id: String,
    version_number: u32,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SourceQuery {
    /// The version in force without it.
    version_number: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGSourceResponse)]
pub struct SourceShape {
    content: String,
    dag_id: String,
    dag_display_name: String,
    version_number: u32,
}

/// All versions of a dag, newest first.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagVersions", tag = "versions", params(DagPath, VersionsQuery),
    responses((status = 200, body = VersionsShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    Query(query): Query<VersionsQuery>,
) -> ApiResult<Json<VersionsShape>> {
    let dag = state.require_dag(&path.dag_id).await?;
    let paging = paging(query.limit, query.offset, &[], &[])?;
    let page = state.store.list_versions(&state.tenant(), &DagId::new(dag.dag.as_str()), &paging).await?;
    let dag_versions = page.items.iter().map(VersionShape::of).collect();
    Ok(Json(VersionsShape { dag_versions, total_entries: page.total }))
}

/// One version of a dag.
#[utoipa::path(get, path = "/api/v2/dags/{dag_id}/dagVersions/{version_number}", tag = "versions",
    params(VersionPath), responses((status = 200, body = VersionShape), Refusals))]
pub async fn get(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<VersionPath>,
) -> ApiResult<Json<VersionShape>> {
    let version = state.require_version(&path.dag_id, Some(path.version_number)).await?;
    Ok(Json(VersionShape::of(&version)))
}

/// The text of a dag file, as JSON or, with `Accept: text/plain`, as it is.
#[utoipa::path(get, path = "/api/v2/dagSources/{dag_id}", tag = "versions", params(DagPath, SourceQuery),
    responses((status = 200, content((SourceShape = "application/json"), (String = "text/plain"))), Refusals))]
pub async fn source(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<DagPath>,
    Query(query): Query<SourceQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let version = state.require_version(&path.dag_id, query.version_number).await?;
    if wants_text(&headers) {
        return Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], version.source).into_response());
    }
    let shape = SourceShape {
        content: version.source,
        dag_id: path.dag_id.clone(),
        dag_display_name: path.dag_id,
        version_number: version.version,
    };
    Ok(Json(shape).into_response())
}
