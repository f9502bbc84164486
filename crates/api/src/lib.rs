//! The HTTP API: Airflow's REST API v2 where Airflow has the notion, Tenure's own beside it, leases for any
//! component, health, metrics and the OpenAPI document.
//!
//! Promises: it writes intents only, through the store's verbs, and holds no state of its own, so any number
//! of processes may serve it. Every error is JSON with a `detail` that names the thing and the way out. A
//! panic, a slow client or a huge body costs its own request and nothing else.

mod airflow;
mod auth;
mod error;
mod health;
mod input;
mod leases;
mod openapi;
mod serve;
mod state;
mod tenure;

use std::any::Any;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::trace::TraceLayer;
use tracing::Span;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use error::ApiError;
use input::LARGEST_BODY;

pub use leases::LeaseApi;
pub use serve::{Door, ServeLimits, serve, serve_within};
pub use state::{
    ApiState, Attachments, DagParser, Diagnostic, HealthSource, ImportError, SchedulerHealth, ScopeHealth,
    TokenDigest,
};

/// No request takes longer, bodies that are streamed out excepted.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);

/// Everything that is served.
pub fn router(state: ApiState) -> Router {
    let (router, document) = table(&state).split_for_parts();
    finished(router.with_state(state), &document)
}

/// The lease API alone, with its part of the document: for a process that offers elections and nothing else.
pub fn lease_router(api: LeaseApi, token: TokenDigest) -> Router {
    let guarded = leases::routes().route_layer(middleware::from_fn_with_state(token, auth::require_token));
    let public = OpenApiRouter::new().routes(routes!(openapi::document)).routes(routes!(health::live));
    let table = OpenApiRouter::with_openapi(openapi::Document::openapi()).merge(public).merge(guarded);
    let (router, document) = table.split_for_parts();
    finished(router.with_state(api), &document)
}

/// For a process that waits for its database: probes hear that it lives, and why it is not ready. The reason may
/// change.
pub fn waiting_router(why: watch::Receiver<String>) -> Router {
    Router::new()
        .route("/health", get(health::waiting))
        .route("/health/live", get(health::live))
        .fallback(health::not_yet)
        .with_state(health::Waiting(why))
}

/// Puts around the routes what holds for all of them.
fn finished(router: Router, document: &utoipa::openapi::OpenApi) -> Router {
    let document = document.to_json().expect("the document is plain data");
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(openapi::DocumentText(document.into())))
        .layer(Extension(leases::Watchers::default()))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(middleware::from_fn(within_time))
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(TraceLayer::new_for_http().on_failure(tell_failure))
}

/// «Not now» is an answer: whoever probes a process that waits for its database hears nothing else for as long.
fn tell_failure(failure: ServerErrorsFailureClass, latency: Duration, _span: &Span) {
    match failure {
        ServerErrorsFailureClass::StatusCode(StatusCode::SERVICE_UNAVAILABLE) => {
            tracing::debug!(%failure, ?latency, "a request was turned away");
        }
        failure => tracing::error!(%failure, ?latency, "a request failed"),
    }
}

/// The one table of routes: for the router and for the document.
fn table(state: &ApiState) -> OpenApiRouter<ApiState> {
    let public = OpenApiRouter::new()
        .routes(routes!(openapi::front_page))
        .routes(routes!(openapi::document))
        .routes(routes!(health::health))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(auth::log_in))
        .merge(airflow::public_routes());
    let guarded = airflow::routes()
        .merge(tenure::routes())
        .merge(leases::routes())
        .routes(routes!(health::metrics))
        .route_layer(middleware::from_fn_with_state(state.token, auth::require_token));
    OpenApiRouter::with_openapi(openapi::Document::openapi()).merge(public).merge(guarded)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::NotFound(format!(
        "There is nothing at {}; see /api/openapi.json for what there is.",
        uri.path()
    ))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed(format!("{} does not take {method}.", uri.path()))
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_WITHIN, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = format!(
                "No answer within {REQUEST_WITHIN:?}. If this was to change something, it may or may not have been \
                 done: read it again before you repeat it."
            );
            ApiError::Unavailable(text).into_response()
        }
    }
}

fn answer_panic(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    tracing::error!(panic = text, "a request handler panicked");
    ApiError::Internal("The server failed on this request; its log has the reason.".into()).into_response()
}
