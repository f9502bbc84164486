//! The OpenAPI document and the front page. The document is made from the same table as the router, so it
//! cannot leave a route out.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "A highly available workflow scheduler. Under `/api/v2`, paths and shapes follow Airflow's \
                       REST API v2; Tenure's own notions live under `/api/tenure`, and leases, for any component \
                       that elects a leader, under `/api/leases`. Every error is `{\"detail\": …}`."
    ),
    modifiers(&Schemes),
    security(("bearer" = []), ("basic" = [])),
    tags(
        (name = "dags"), (name = "tasks"), (name = "versions"), (name = "runs"), (name = "task instances"),
        (name = "pools"), (name = "audit"), (name = "cluster"),
        (name = "leases", description = crate::leases::RULES),
        (name = "health"), (name = "login")
    )
)]
pub struct Document;

struct Schemes;

impl Modify for Schemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = |scheme, text| {
            let mut http = Http::new(scheme);
            http.description = Some(String::from(text));
            SecurityScheme::Http(http)
        };
        components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer, "The admin token."));
        components.add_security_scheme(
            "basic",
            scheme(HttpAuthScheme::Basic, "Any user name, with the admin token as the password."),
        );
    }
}

/// The finished document, written once.
#[derive(Clone, Debug)]
pub struct DocumentText(pub Arc<str>);

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "health", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub async fn document(Extension(text): Extension<DocumentText>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.0.to_string()).into_response()
}

/// Where to find what.
#[utoipa::path(get, path = "/", tag = "health", security(()), responses((status = 200, body = Object)))]
pub async fn front_page() -> Json<Value> {
    Json(json!({
        "name": "Tenure",
        "version": env!("CARGO_PKG_VERSION"),
        "api": "/api/openapi.json",
        "health": "/health",
        "ready": "/health/ready",
        "metrics": "/metrics",
        "dags": "/api/v2/dags",
        "leases": "/api/leases",
    }))
}
