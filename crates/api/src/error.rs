//! What a refused or failed request answers. Always JSON, always `{"detail": …}`, as Airflow's API does,
//! so that its clients show the text.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use tenure_lease::LeaseError;
use tenure_logs::LogError;
use tenure_store::StoreError;
use utoipa::ToSchema;

use crate::state::Diagnostic;

/// Long enough for a database failover to make progress, short enough for a person who waits.
const RETRY_AFTER_SECONDS: &str = "1";

#[derive(Debug)]
pub enum ApiError {
    BadRequest(String),
    Unauthorized(&'static str),
    /// Understood, and not for the one who asks.
    Forbidden(String),
    NotFound(String),
    MethodNotAllowed(String),
    Conflict(String),
    TooLarge(String),
    /// A part of the request does not fit: which part, which field, and why.
    Invalid {
        place: &'static str,
        field: Option<String>,
        message: String,
    },
    /// A dag file that cannot be accepted.
    BadDag(Vec<Diagnostic>),
    /// Nothing wrong with the request: try it again.
    Unavailable(String),
    /// It may or may not have been done.
    Ambiguous(String),
    Internal(String),
}

pub type ApiResult<T> = Result<T, ApiError>;

/// The shape of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// A text, or (422) a list of `{loc, msg, type}`, or (a refused dag file) `{message, diagnostics}`.
    detail: Value,
    /// Only with 504: whether it was done is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    ambiguous: bool,
}

/// What every protected route may answer instead of what was asked for.
#[derive(Debug, utoipa::IntoResponses)]
#[allow(dead_code, reason = "only its documentation is used")]
pub enum Refusals {
    /// The request contradicts itself, or asks for something that does not exist here.
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// No token, or a wrong one.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// What the path names does not exist.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The state of things forbids it; nothing was changed.
    #[response(status = 409)]
    Conflict(ErrorBody),
    /// A field of the request cannot be read; it is named.
    #[response(status = 422)]
    Invalid(ErrorBody),
    /// The database cannot be reached, or its answer was lost; see `Retry-After`.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

impl ApiError {
    pub fn body(message: impl Into<String>) -> Self {
        Self::Invalid { place: "body", field: None, message: message.into() }
    }

    pub fn field(place: &'static str, field: &str, message: impl Into<String>) -> Self {
        Self::Invalid { place, field: Some(field.to_owned()), message: message.into() }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Invalid { .. } | Self::BadDag(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Ambiguous(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn detail(self) -> Value {
        match self {
            Self::Unauthorized(text) => text.into(),
            Self::BadRequest(text)
            | Self::Forbidden(text)
            | Self::NotFound(text)
            | Self::MethodNotAllowed(text)
            | Self::Conflict(text)
            | Self::TooLarge(text)
            | Self::Unavailable(text)
            | Self::Ambiguous(text)
            | Self::Internal(text) => text.into(),
            Self::Invalid { place, field, message } => {
                let loc: Vec<_> = [Some(place.to_owned()), field].into_iter().flatten().collect();
                json!([{ "type": "value_error", "loc": loc, "msg": message }])
            }
            Self::BadDag(diagnostics) => {
                let lines: Vec<_> = diagnostics.iter().map(Diagnostic::to_string).collect();
                json!({ "message": lines.join("\n"), "diagnostics": diagnostics })
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let ambiguous = matches!(self, Self::Ambiguous(_));
        let mut response = (status, Json(ErrorBody { detail: self.detail(), ambiguous })).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tenure\""));
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"tenure\""));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(text) => Self::NotFound(text),
            StoreError::Conflict(text) => Self::Conflict(text),
            StoreError::Unavailable { doing, source } => {
                tracing::warn!(doing, error = %source, "the database is unavailable");
                Self::Unavailable(format!(
                    "The database is unavailable (while {doing}); nothing was changed."
                ))
            }
            StoreError::Unknown { doing, source } => {
                tracing::warn!(doing, error = %source, "the database's answer was lost");
                Self::Unavailable(format!(
                    "The database's answer was lost while {doing}: it may or may not have been done. Read it \
                     again before you repeat it."
                ))
            }
            // Nothing here writes under a fence, so an owner's failure has come out at the wrong door.
            StoreError::Fenced { ours, current } => {
                tracing::error!(%ours, ?current, "a request without authority was fenced");
                Self::Internal("The write was fenced.".into())
            }
            StoreError::Corrupt { what, source } => {
                tracing::error!(what, error = %source, "a row cannot be read");
                Self::Internal(format!("{what} in the database cannot be read: {source}"))
            }
        }
    }
}

impl From<LeaseError> for ApiError {
    fn from(error: LeaseError) -> Self {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        match error {
            LeaseError::Refused(text) => Self::BadRequest(format!("The lease store refuses: {text}.")),
            LeaseError::Unavailable(_) => {
                tracing::warn!(cause, "the lease store is unavailable");
                Self::Unavailable("The lease store is unavailable; nothing was changed.".into())
            }
            LeaseError::Ambiguous(_) => {
                tracing::warn!(cause, "the lease store's answer was lost");
                Self::Ambiguous(
                    "The lease store's answer was lost: it may or may not have been done. Repeat the request with \
                     the same term, and do not count on more time than you had before."
                        .into(),
                )
            }
        }
    }
}

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(%error, cause, "a log cannot be read");
        Self::Unavailable(format!("The log cannot be read: {error}."))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: whatever the store says, a client learns whether to repeat its request.

    use tenure_lease::Epoch;

    use super::*;

    fn answer(error: StoreError) -> (u16, Option<String>) {
        let response = ApiError::from(error).into_response();
        let retry =
            response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), retry)
    }

    #[test]
    fn every_failure_of_the_lease_store_says_whether_to_repeat() {
        let source = || "no route to host".into();
        let answer = |error: LeaseError| {
            let error = ApiError::from(error);
            let retry = matches!(error, ApiError::Unavailable(_));
            (error.status().as_u16(), retry, matches!(error, ApiError::Ambiguous(_)))
        };
        assert_eq!(answer(LeaseError::Refused("x".into())), (400, false, false));
        assert_eq!(answer(LeaseError::Unavailable(source())), (503, true, false));
        assert_eq!(answer(LeaseError::Ambiguous(source())), (504, false, true));
    }

    #[test]
    fn every_failure_of_the_store_has_its_status() {
        let source = || "no route to host".into();
        let again = Some("1".to_owned());
        assert_eq!(answer(StoreError::NotFound("x".into())), (404, None));
        assert_eq!(answer(StoreError::Conflict("x".into())), (409, None));
        assert_eq!(
            answer(StoreError::Unavailable { doing: "reading", source: source() }),
            (503, again.clone())
        );
        assert_eq!(answer(StoreError::Unknown { doing: "writing", source: source() }), (503, again));
        assert_eq!(answer(StoreError::Corrupt { what: "run 7".into(), source: source() }), (500, None));
        assert_eq!(answer(StoreError::Fenced { ours: Epoch(1), current: None }), (500, None));
    }
}
