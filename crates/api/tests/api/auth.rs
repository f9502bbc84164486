//! Who gets in.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::harness::{Server, TOKEN};

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

async fn knock(server: &Server, path: &str, credentials: Option<&str>) -> StatusCode {
    let mut request = Request::builder().uri(path);
    if let Some(credentials) = credentials {
        request = request.header("authorization", credentials);
    }
    server.send(request.body(Body::empty()).unwrap()).await.status
}

#[tokio::test]
async fn only_the_token_opens_as_bearer_or_as_a_basic_password() {
    let server = Server::start().await;
    let good =
        [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}"), basic("anyone", TOKEN), basic("", TOKEN)];
    let bad = [
        "Bearer wrong".to_owned(),
        "Bearer ".to_owned(),
        TOKEN.to_owned(),
        format!("Bearer {TOKEN}x"),
        format!("Token {TOKEN}"),
        basic(TOKEN, "wrong"),
        basic("anyone", ""),
        "Basic %%%".to_owned(),
        format!("Basic {}", STANDARD.encode(TOKEN)),
    ];
    for credentials in &good {
        assert_eq!(knock(&server, "/api/v2/dags", Some(credentials)).await, StatusCode::OK, "{credentials}");
    }
    for credentials in &bad {
        assert_eq!(
            knock(&server, "/api/v2/dags", Some(credentials)).await,
            StatusCode::UNAUTHORIZED,
            "{credentials}"
        );
    }
    assert_eq!(knock(&server, "/api/v2/dags", None).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_refusal_says_how_to_log_in() {
    let server = Server::start().await;
    let answer = server.send(Request::get("/metrics").body(Body::empty()).unwrap()).await;
    let offers: Vec<_> = answer.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(offers, ["Bearer realm=\"tenure\"", "Basic realm=\"tenure\""]);
    assert_eq!(answer.refusal(), "401 Not authenticated: send the token as `Authorization: Bearer <token>`.");
}

#[tokio::test]
async fn logging_in_as_airflow_clients_do_gives_the_token() {
    let server = Server::start().await;
    let answer =
        server.call("POST", "/auth/token", Some(json!({ "username": "me", "password": TOKEN }))).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::CREATED, json!({ "access_token": TOKEN })));
    let wrong =
        server.refused("POST", "/auth/token", Some(json!({ "username": "me", "password": "guess" }))).await;
    assert_eq!(wrong, "401 The password is not the token of this server.");
    let empty = server.refused("POST", "/auth/token", None).await;
    assert_eq!(empty, "422 body.password: Field required");
}
