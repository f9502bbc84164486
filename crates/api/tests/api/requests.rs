//! Requests that cannot be read, and servers that cannot answer, get one shape of answer.

use axum::body::Body;
use serde_json::json;

use crate::harness::{Server, request, spec};

#[tokio::test]
async fn an_unknown_path_and_a_wrong_method_are_refused_in_json() {
    let server = Server::start().await;
    assert_eq!(
        server.refused("GET", "/api/v2/nothing", None).await,
        "404 There is nothing at /api/v2/nothing; see /api/openapi.json for what there is."
    );
    assert_eq!(server.refused("PUT", "/api/v2/dags", None).await, "405 /api/v2/dags does not take PUT.");
}

#[tokio::test]
async fn an_unknown_query_parameter_is_refused_with_the_known_ones() {
    let server = Server::start().await;
    assert_eq!(
        server.refused("GET", "/api/v2/eventLogs?owner=me", None).await,
        "422 query.owner: not known here; known are limit, offset, dag_id, run_id"
    );
}

#[tokio::test]
async fn a_query_value_that_does_not_fit_is_named() {
    let server = Server::start().await;
    for (query, expected) in [
        ("limit=many", "422 query.limit: \"many\" is not a whole number that fits here"),
        ("limit=-1", "422 query.limit: \"-1\" is not a whole number that fits here"),
        ("limit=1&limit=2", "422 query.limit: given more than once"),
        (
            "state=sleeping",
            "422 query.state: unknown variant `sleeping`, expected one of `queued`, `running`, `success`, `failed`",
        ),
        (
            "order_by=colour",
            "400 Ordering by \"colour\" is not possible; use one of id, state, dag_id, dag_run_id, \
            run_id, logical_date, run_after, start_date, end_date, queued_at (with a leading - for descending).",
        ),
        ("order_by=id&order_by=state", "400 order_by takes one field only."),
    ] {
        assert_eq!(server.refused("GET", &format!("/api/v2/dags/~/dagRuns?{query}"), None).await, expected);
    }
    let paused = server.refused("GET", "/api/v2/dags?paused=perhaps", None).await;
    assert_eq!(paused, "422 query.paused: \"perhaps\" is neither true nor false");
    let date = server.refused("GET", "/api/v2/dags/~/dagRuns?run_after_gte=yesterday", None).await;
    assert!(date.starts_with("422 query.run_after_gte: "), "{date}");
}

#[tokio::test]
async fn an_instant_whose_plus_was_not_escaped_is_understood() {
    let server = Server::with_run().await;
    for (query, found) in [("2026-01-01T13:00:00+01:00", 1), ("2026-01-01T13:00:00.1+01:00", 0)] {
        let runs = server.get(&format!("/api/v2/dags/etl/dagRuns?run_after_gte={query}")).await;
        assert_eq!(runs["total_entries"], found, "{query}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_fit_is_refused_with_its_field() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    for (body, expected) in [
        ("{", "422 body: not valid JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "422 body: must be a JSON object"),
        ("{}", "422 body.is_paused: Field required"),
        (r#"{"is_paused": "yes"}"#, "422 body.is_paused: invalid type: string \"yes\", expected a boolean"),
        (r#"{"is_paused": true, "x": 1}"#, "422 body.x: not known here; known are is_paused"),
    ] {
        let answer = server.send(request("PATCH", "/api/v2/dags/etl").body(Body::from(body)).unwrap()).await;
        assert_eq!(answer.refusal(), expected);
    }
}

#[tokio::test]
async fn a_body_beyond_8_mib_is_refused() {
    let server = Server::start().await;
    let body = Body::from(vec![b'x'; 8 * 1024 * 1024 + 1]);
    let answer = server.send(request("POST", "/api/tenure/dags").body(body).unwrap()).await;
    assert_eq!(answer.refusal(), "413 The body is larger than 8 MiB.");
}

#[tokio::test]
async fn a_path_that_does_not_fit_is_refused() {
    let server = Server::with_run().await;
    let path = "/api/v2/dags/etl/dagRuns/r1/taskInstances/a/first";
    let refused = server.refused("GET", path, None).await;
    assert!(refused.starts_with("422 path: ") && refused.contains("first"), "{refused}");
}

#[tokio::test]
async fn a_panic_costs_its_own_request_only() {
    let server = Server::start().await;
    server.ready.set(Err("panic"));
    let answer = server.call("GET", "/health", None).await;
    assert_eq!(answer.refusal(), "500 The server failed on this request; its log has the reason.");
    assert_eq!(server.get("/api/v2/version").await["git_version"], json!(null));
}

#[tokio::test]
async fn limits_are_capped_and_zero_means_the_default() {
    let server = Server::start().await;
    for n in 0..55 {
        server.register(spec(&format!("dag{n:02}"), "a")).await;
    }
    for (query, shown) in
        [("", 50), ("?limit=0", 50), ("?limit=3", 3), ("?limit=4000000000", 55), ("?offset=54", 1)]
    {
        let dags = server.get(&format!("/api/v2/dags{query}")).await;
        assert_eq!(
            (dags["dags"].as_array().unwrap().len(), &dags["total_entries"]),
            (shown, &json!(55)),
            "{query}"
        );
    }
}
