//! The document lists every route, and what it says about access is true.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use expect_test::expect;
use serde_json::{Value, json};

use crate::harness::Server;

/// (method, path, needs the token), as the document has it.
fn table(document: &Value) -> Vec<(String, String, bool)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods =
            item.as_object().unwrap().iter().filter(|(_, operation)| operation["responses"].is_object());
        methods.map(move |(method, operation)| {
            let open = operation["security"] == json!([{}]);
            (method.to_uppercase(), path.clone(), !open)
        })
    });
    let mut table: Vec<_> = operations.collect();
    table.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    table
}

#[tokio::test]
async fn every_route_is_in_the_document() {
    let document = Server::start().await.get("/api/openapi.json").await;
    let lines: Vec<_> = table(&document)
        .into_iter()
        .map(|(method, path, guarded)| format!("{method} {path}{}", if guarded { "" } else { " (open)" }))
        .collect();
    expect![[r#"
        GET / (open)
        GET /api/leases
        POST /api/leases/acquire
        GET /api/leases/fence
        GET /api/leases/history
        GET /api/leases/members
        GET /api/leases/record
        POST /api/leases/release
        POST /api/leases/renew
        GET /api/leases/watch
        GET /api/openapi.json (open)
        GET /api/tenure/audit
        POST /api/tenure/dags
        GET /api/tenure/dags/errors
        POST /api/tenure/dags/validate
        GET /api/tenure/dags/{dag_id}/runs/{run_id}/progress
        GET /api/tenure/info
        GET /api/tenure/join-tokens
        POST /api/tenure/join-tokens
        DELETE /api/tenure/join-tokens/{token_id}
        GET /api/tenure/nodes
        DELETE /api/tenure/nodes/{node}
        GET /api/tenure/nodes/{node}
        POST /api/tenure/nodes/{node}/drain
        POST /api/tenure/nodes/{node}/undrain
        POST /api/tenure/placement/preview
        GET /api/tenure/quotas
        DELETE /api/tenure/quotas/{tenant}
        PUT /api/tenure/quotas/{tenant}
        GET /api/v2/dagSources/{dag_id}
        GET /api/v2/dags
        DELETE /api/v2/dags/{dag_id}
        GET /api/v2/dags/{dag_id}
        PATCH /api/v2/dags/{dag_id}
        POST /api/v2/dags/{dag_id}/clearTaskInstances
        GET /api/v2/dags/{dag_id}/dagRuns
        POST /api/v2/dags/{dag_id}/dagRuns
        DELETE /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}
        PATCH /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}
        POST /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/clear
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}
        PATCH /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}
        PATCH /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/dry_run
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/logs/{try_number}
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/tries
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/tries/{task_try_number}
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/xcomEntries/{xcom_key}
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}
        PATCH /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}
        PATCH /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/dry_run
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/tries
        GET /api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/tries/{task_try_number}
        GET /api/v2/dags/{dag_id}/dagVersions
        GET /api/v2/dags/{dag_id}/dagVersions/{version_number}
        GET /api/v2/dags/{dag_id}/details
        GET /api/v2/dags/{dag_id}/tasks
        GET /api/v2/dags/{dag_id}/tasks/{task_id}
        GET /api/v2/eventLogs
        GET /api/v2/monitor/health (open)
        GET /api/v2/pools
        POST /api/v2/pools
        DELETE /api/v2/pools/{pool_name}
        GET /api/v2/pools/{pool_name}
        PATCH /api/v2/pools/{pool_name}
        GET /api/v2/version (open)
        POST /auth/token (open)
        GET /health (open)
        GET /health/live (open)
        GET /health/ready (open)
        GET /metrics"#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn every_documented_route_exists_and_is_as_open_as_it_says() {
    let server = Server::start().await;
    for (method, path, guarded) in table(&server.get("/api/openapi.json").await) {
        let concrete = path.replace(['{', '}'], "").replace("map_index", "0").replace("_number", "");
        let request = Request::builder().method(method.as_str()).uri(&concrete).body(Body::empty()).unwrap();
        let status = server.send(request).await.status;
        match guarded {
            true => assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {concrete}"),
            false => assert!(
                status != StatusCode::UNAUTHORIZED || path == "/auth/token",
                "{method} {concrete} is {status}"
            ),
        }
        assert!(
            status != StatusCode::NOT_FOUND && status != StatusCode::METHOD_NOT_ALLOWED,
            "{method} {concrete}"
        );
    }
}

#[tokio::test]
async fn every_reference_in_the_document_leads_somewhere() {
    let document = Server::start().await.get("/api/openapi.json").await;
    let text = document.to_string();
    let names =
        text.split("\"$ref\":\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut count = 0;
    for name in names {
        assert!(document["components"]["schemas"][name].is_object(), "{name} is not defined");
        count += 1;
    }
    assert!(count > 50, "only {count} references");
}
