//! The door that nodes come in by: tokens that let machines join, and the removal of nodes.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use tenure_model::credential::{JOIN_TOKEN, digest, secret};
use tenure_model::{NodeId, duration};
use tenure_store::{JoinTokenRecord, LONGEST_JOIN_TOKEN, NewJoinToken, RemovedNode};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs};
use crate::state::ApiState;

const EXPIRES: Duration = Duration::from_secs(3600);
const MOST_USES: u32 = 10_000;
const LONGEST_NAME: usize = 256;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JoinTokenBody {
    /// Only a node of this name may use it. Without it, any node may whose name has no valid identity.
    node: Option<String>,
    /// How many nodes may join with it: 1 unless said otherwise.
    uses: Option<u32>,
    /// For how long it can be used, like `30m` or `12h`: `1h` unless said otherwise, `30d` at the most.
    expires: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct NewToken {
    /// What the agent shows. It is told here and never again.
    token: String,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    record: JoinTokenRecord,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct JoinTokens {
    #[schema(value_type = Vec<Object>)]
    join_tokens: Vec<JoinTokenRecord>,
    total_entries: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TokenPath {
    token_id: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct NodePath {
    node: String,
}

/// Make a join token: an agent that shows it gets an identity of its own.
#[utoipa::path(post, path = "/api/tenure/join-tokens", tag = "cluster", request_body = JoinTokenBody,
    responses((status = 201, body = NewToken), Refusals))]
pub async fn make_token(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<JoinTokenBody>,
) -> ApiResult<(StatusCode, Json<NewToken>)> {
    let wrong = |field: &str, message: String| ApiError::Invalid {
        place: "body",
        field: Some(field.into()),
        message,
    };
    let expires = match &body.expires {
        Some(text) => duration::parse(text).map_err(|_| {
            wrong("expires", format!("{text:?} is no duration (write it like 30m, 12h or 7d)"))
        })?,
        None => EXPIRES,
    };
    if expires.is_zero() || expires > LONGEST_JOIN_TOKEN {
        return Err(wrong("expires", "a join token lasts for a while, and for 30 days at the most".into()));
    }
    let uses = body.uses.unwrap_or(1);
    if uses == 0 || uses > MOST_USES {
        return Err(wrong("uses", format!("a join token is good for 1 to {MOST_USES} nodes")));
    }
    let node = match body.node {
        Some(name) if name.is_empty() || name.len() > LONGEST_NAME => {
            return Err(wrong("node", format!("a node's name has 1 to {LONGEST_NAME} characters")));
        }
        name => name.map(NodeId::from),
    };
    let trigger = state.trigger();
    let token = secret(JOIN_TOKEN, &state.entropy.bytes::<32>());
    let lasts = SignedDuration::try_from(expires).expect("a month at the most");
    let new = NewJoinToken {
        id: state.entropy.bytes::<5>().iter().map(|byte| format!("{byte:02x}")).collect(),
        digest: digest(&token),
        node,
        uses,
        expires_at: trigger.at + lasts,
    };
    let record = state.store.add_join_token(&trigger, &new).await?;
    Ok((StatusCode::CREATED, Json(NewToken { token, record })))
}

/// The join tokens, the newest first; not what they are shown as.
#[utoipa::path(get, path = "/api/tenure/join-tokens", tag = "cluster",
    responses((status = 200, body = JoinTokens), Refusals))]
pub async fn tokens(State(state): State<ApiState>) -> ApiResult<Json<JoinTokens>> {
    let join_tokens = state.store.join_tokens().await?;
    Ok(Json(JoinTokens { total_entries: join_tokens.len() as u64, join_tokens }))
}

/// Revoke a join token: it lets nobody in any more. Nodes that have joined with it stay.
#[utoipa::path(delete, path = "/api/tenure/join-tokens/{token_id}", tag = "cluster", params(TokenPath),
    responses((status = 204, description = "Revoked"), Refusals))]
pub async fn revoke_token(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<TokenPath>,
) -> ApiResult<StatusCode> {
    state.store.revoke_join_token(&state.trigger(), &path.token_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a node: its identity is refused from now on, and its connections are cut within seconds. It stays listed, and
/// gets no work, while it holds something.
#[utoipa::path(delete, path = "/api/tenure/nodes/{node}", tag = "cluster", params(NodePath),
    responses((status = 200, body = Object), Refusals))]
pub async fn remove(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<NodePath>,
) -> ApiResult<Json<RemovedNode>> {
    Ok(Json(state.store.remove_node(&state.trigger(), &NodeId::from(path.node)).await?))
}
