//! One admin token guards everything that is not public. It is taken as a bearer token, or as the password
//! of HTTP basic under any user name, because scripts written for Airflow log in that way.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::input::JsonBody;
use crate::state::{ApiState, TokenDigest};

/// Lets a request through when it carries the token.
pub async fn require_token(State(ours): State<TokenDigest>, request: Request, next: Next) -> Response {
    match presented(request.headers()) {
        Some(token) if ours.matches(&token) => next.run(request).await,
        Some(_) => ApiError::Unauthorized("The token is not the one of this server.").into_response(),
        None => {
            ApiError::Unauthorized("Not authenticated: send the token as `Authorization: Bearer <token>`.")
                .into_response()
        }
    }
}

/// What the client claims to be the token.
fn presented(headers: &HeaderMap) -> Option<String> {
    let (scheme, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.to_owned());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let decoded = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
        return decoded.split_once(':').map(|(_user, password)| password.to_owned());
    }
    None
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// Anything, until there are users.
    #[serde(default)]
    #[allow(dead_code, reason = "part of the shape; read once there are users")]
    username: String,
    /// The admin token.
    password: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LoginResponse {
    access_token: String,
}

/// Log in as Airflow's clients do: the answer is the token to send from then on.
#[utoipa::path(post, path = "/auth/token", tag = "login", security(()), request_body = LoginBody, responses(
    (status = 201, body = LoginResponse),
    (status = 401, description = "Wrong password", body = ErrorBody),
    (status = 422, description = "Unreadable body", body = ErrorBody),
))]
pub async fn log_in(
    State(state): State<ApiState>,
    JsonBody(login): JsonBody<LoginBody>,
) -> ApiResult<Response> {
    if !state.token.matches(&login.password) {
        return Err(ApiError::Unauthorized("The password is not the token of this server."));
    }
    Ok((StatusCode::CREATED, Json(LoginResponse { access_token: login.password })).into_response())
}
