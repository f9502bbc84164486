//! Dags, their tasks, versions and sources; pushing them.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use expect_test::expect;
use serde_json::json;
use tenure_api::{Diagnostic, ImportError};
use tenure_model::{DagSpec, ParamSpec, Schedule};

use crate::harness::{Server, at, each, pretty, request, spec};

fn nightly() -> DagSpec {
    let mut dag = spec("nightly", "extract load<extract");
    dag.schedule = Schedule::Cron { expression: "0 5 * * *".into() };
    dag.timezone = "America/Sao_Paulo".into();
    dag.description = Some("orders".into());
    dag.tags = vec!["sales".into()];
    dag.owner = "ada".into();
    dag.run_timeout = Some(Duration::from_secs(3600));
    dag.params.insert(
        "region".into(),
        ParamSpec {
            default: Some(json!("eu")),
            description: None,
            schema: [("type".into(), json!("string"))].into(),
        },
    );
    dag.tasks[0].timeout = Some(Duration::from_secs(90));
    dag.tasks[0].retry_backoff = Some(2.0);
    dag
}

#[tokio::test]
async fn a_dag_has_the_shape_of_airflow() {
    let server = Server::start().await;
    server.register(nightly()).await;
    expect![[r#"
        {
          "dag_id": "nightly",
          "dag_display_name": "nightly",
          "is_paused": false,
          "is_stale": false,
          "last_parsed_time": "2026-01-01T12:00:00Z",
          "last_parse_duration": null,
          "last_expired": null,
          "bundle_name": "dags-folder",
          "bundle_version": "<hash>",
          "relative_fileloc": "nightly.yaml",
          "fileloc": "nightly.yaml",
          "file_token": "<hash>",
          "description": "orders",
          "timetable_summary": "0 5 * * *",
          "timetable_description": "At 0 5 * * * in America/Sao_Paulo",
          "timetable_partitioned": false,
          "timetable_periodic": true,
          "tags": [
            {
              "name": "sales",
              "dag_id": "nightly",
              "dag_display_name": "nightly"
            }
          ],
          "max_active_tasks": 16,
          "max_active_runs": 16,
          "max_consecutive_failed_dag_runs": 0,
          "has_task_concurrency_limits": false,
          "has_import_errors": false,
          "is_backfillable": true,
          "allowed_run_types": null,
          "next_dagrun_logical_date": "2026-01-02T08:00:00Z",
          "next_dagrun_data_interval_start": "2026-01-02T08:00:00Z",
          "next_dagrun_data_interval_end": "2026-01-02T08:00:00Z",
          "next_dagrun_run_after": "2026-01-02T08:00:00Z",
          "owners": [
            "ada"
          ]
        }"#]]
    .assert_eq(&pretty(&server.get("/api/v2/dags/nightly").await));
}

#[tokio::test]
async fn the_details_add_parameters_limits_and_the_version() {
    let server = Server::start().await;
    server.register(nightly()).await;
    server.ok("POST", "/api/v2/dags/nightly/dagRuns", json!({})).await;
    let details = server.get("/api/v2/dags/nightly/details").await;
    let dag = server.get("/api/v2/dags/nightly").await;
    let mut added = details.clone();
    for (field, value) in dag.as_object().unwrap() {
        assert_eq!(&details[field], value, "{field}");
        added.as_object_mut().unwrap().remove(field);
    }
    expect![[r#"
        {
          "latest_dag_version": {
            "id": "<uuid>",
            "version_number": 1,
            "dag_id": "nightly",
            "dag_display_name": "nightly",
            "bundle_name": "dags-folder",
            "bundle_version": "<hash>",
            "bundle_url": null,
            "created_at": "2026-01-01T12:00:00Z"
          },
          "concurrency": 16,
          "active_runs_count": 1,
          "is_favorite": false,
          "owner_links": null,
          "default_args": null,
          "last_parsed": "2026-01-01T12:00:00Z",
          "timezone": "America/Sao_Paulo",
          "template_search_path": null,
          "rerun_with_latest_version": null,
          "render_template_as_native_obj": false,
          "params": {
            "region": {
              "value": "eu",
              "description": null,
              "schema": {
                "type": "string"
              }
            }
          },
          "is_paused_upon_creation": null,
          "end_date": null,
          "start_date": null,
          "doc_md": null,
          "asset_expression": null,
          "dag_run_timeout": "PT3600S",
          "catchup": false
        }"#]]
    .assert_eq(&pretty(&added));
}

#[tokio::test]
async fn the_tasks_name_those_that_need_them() {
    let server = Server::start().await;
    server.register(nightly()).await;
    let tasks = server.get("/api/v2/dags/nightly/tasks").await;
    assert_eq!(each(&tasks["tasks"], "task_id"), ["extract", "load"]);
    let sorted = server.get("/api/v2/dags/nightly/tasks?order_by=-task_id").await;
    assert_eq!(each(&sorted["tasks"], "task_id"), ["load", "extract"]);
    expect![[r#"
        {
          "task_id": "extract",
          "task_display_name": "extract",
          "owner": "ada",
          "start_date": null,
          "end_date": null,
          "trigger_rule": "all_success",
          "depends_on_past": false,
          "wait_for_downstream": false,
          "retries": 1,
          "queue": null,
          "pool": "default_pool",
          "pool_slots": 1,
          "execution_timeout": {
            "__type": "TimeDelta",
            "days": 0,
            "seconds": 90,
            "microseconds": 0
          },
          "retry_delay": {
            "__type": "TimeDelta",
            "days": 0,
            "seconds": 300,
            "microseconds": 0
          },
          "retry_exponential_backoff": 2.0,
          "priority_weight": 1,
          "weight_rule": "downstream",
          "ui_color": null,
          "ui_fgcolor": null,
          "template_fields": [],
          "downstream_task_ids": [
            "load"
          ],
          "doc_md": null,
          "operator_name": "bash",
          "params": {},
          "class_ref": {
            "module_path": "tenure",
            "class_name": "bash"
          },
          "is_mapped": false,
          "extra_links": []
        }"#]]
    .assert_eq(&pretty(&server.get("/api/v2/dags/nightly/tasks/extract").await));
    assert_eq!(
        server.refused("GET", "/api/v2/dags/nightly/tasks/nope", None).await,
        "404 Task with id nope was not found"
    );
}

#[tokio::test]
async fn dags_are_filtered_ordered_and_counted() {
    let server = Server::start().await;
    server.register(nightly()).await;
    server.register(spec("etl_a", "a")).await;
    server.register(spec("etl_b", "a")).await;
    server.ok("PATCH", "/api/v2/dags/etl_b", json!({ "is_paused": true })).await;
    for (query, expected) in [
        ("", vec!["etl_a", "etl_b", "nightly"]),
        ("?order_by=-dag_id", vec!["nightly", "etl_b", "etl_a"]),
        ("?tags=sales&tags=other", vec!["nightly"]),
        ("?owners=ada", vec!["nightly"]),
        ("?owners=ada&owners=tenure", vec!["etl_a", "etl_b", "nightly"]),
        ("?dag_id_pattern=TL%25b", vec!["etl_b"]),
        ("?dag_id_pattern=ETL", vec!["etl_a", "etl_b"]),
        ("?dag_id_pattern=~", vec!["etl_a", "etl_b", "nightly"]),
        ("?dag_id_prefix_pattern=night", vec!["nightly"]),
        ("?paused=true", vec!["etl_b"]),
        ("?paused=false&exclude_stale=true", vec!["etl_a", "nightly"]),
        ("?limit=1&offset=1", vec!["etl_b"]),
    ] {
        let dags = server.get(&format!("/api/v2/dags{query}")).await;
        assert_eq!(each(&dags["dags"], "dag_id"), expected, "{query}");
    }
    let page = server.get("/api/v2/dags?limit=1").await;
    assert_eq!(page["total_entries"], 3);
}

#[tokio::test]
async fn pausing_is_seen_at_once() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    let paused =
        server.ok("PATCH", "/api/v2/dags/etl?update_mask=is_paused", json!({ "is_paused": true })).await;
    assert_eq!(paused["is_paused"], true);
    assert_eq!(server.get("/api/v2/dags/etl").await["is_paused"], true);
    assert_eq!(
        server.refused("PATCH", "/api/v2/dags/nope", Some(json!({ "is_paused": true }))).await,
        "404 The Dag with ID: `nope` was not found"
    );
    assert_eq!(
        server
            .refused("PATCH", "/api/v2/dags/etl?update_mask=owners", Some(json!({ "is_paused": true })))
            .await,
        "400 Only `is_paused` field can be updated through the REST API"
    );
}

#[tokio::test]
async fn a_dag_is_deleted_unless_a_run_is_active() {
    let server = Server::with_run().await;
    let active = server.refused("DELETE", "/api/v2/dags/etl", None).await;
    assert!(active.starts_with("409 "), "{active}");
    server.ok("PATCH", "/api/v2/dags/etl/dagRuns/r1", json!({ "state": "failed" })).await;
    assert_eq!(server.call("DELETE", "/api/v2/dags/etl", None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(
        server.refused("DELETE", "/api/v2/dags/etl", None).await,
        "404 The Dag with ID: `etl` was not found"
    );
}

#[tokio::test]
async fn versions_are_numbered_and_keep_their_source() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    server.register(spec("etl", "a b")).await;
    let versions = server.get("/api/v2/dags/etl/dagVersions").await;
    assert_eq!(each(&versions["dag_versions"], "version_number"), ["2", "1"]);
    let first = server.get("/api/v2/dags/etl/dagVersions/1").await;
    assert_eq!(first, versions["dag_versions"][1]);
    expect![[r#"
        {
          "id": "<uuid>",
          "version_number": 1,
          "dag_id": "etl",
          "dag_display_name": "etl",
          "bundle_name": "dags-folder",
          "bundle_version": "<hash>",
          "bundle_url": null,
          "created_at": "2026-01-01T12:00:00Z"
        }"#]]
    .assert_eq(&pretty(&first));
    assert_eq!(
        server.refused("GET", "/api/v2/dags/etl/dagVersions/9", None).await,
        "404 The DagVersion with dag_id: `etl` and version_number: `9` was not found"
    );

    let source = server.get("/api/v2/dagSources/etl").await;
    assert_eq!(
        source,
        json!({ "content": "id: etl\n", "dag_id": "etl", "dag_display_name": "etl", "version_number": 2 })
    );
    let text = server.get_text("/api/v2/dagSources/etl?version_number=1").await;
    assert_eq!((text.text.as_str(), text.header("content-type")), ("id: etl\n", "text/plain; charset=utf-8"));
}

#[tokio::test]
async fn a_pushed_dag_is_registered_paused_and_the_same_again_changes_nothing() {
    let server = Server::start().await;
    let push = |body: &'static str| request("POST", "/api/tenure/dags").body(Body::from(body)).unwrap();
    let first = server.send(push("id: pushed")).await;
    assert_eq!(first.status, StatusCode::CREATED);
    let mut shown = first.json();
    assert_eq!(shown["hash"].as_str().unwrap().len(), 64);
    shown["hash"] = json!("…");
    assert_eq!(
        shown,
        json!({ "dag_id": "pushed", "version_number": 1, "hash": "…", "changed": true, "new_dag": true, "is_paused": true })
    );
    let again = server.send(push("id: pushed")).await;
    assert_eq!((again.status, &again.json()["changed"]), (StatusCode::OK, &json!(false)));
    let dag = server.get("/api/v2/dags/pushed").await;
    assert_eq!((&dag["bundle_name"], &dag["fileloc"]), (&json!("api"), &json!("api")));

    let json = server
        .ok("POST", "/api/tenure/dags?paused=false", json!({ "source": "id: two", "file_name": "two.yaml" }))
        .await;
    assert_eq!((&json["dag_id"], &json["is_paused"]), (&json!("two"), &json!(false)));
}

#[tokio::test]
async fn a_broken_dag_file_is_refused_with_line_and_field() {
    let server = Server::start().await;
    for path in ["/api/tenure/dags", "/api/tenure/dags/validate"] {
        let answer =
            server.call("POST", path, Some(json!({ "source": "tasks:", "file_name": "etl.yaml" }))).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        let diagnostic = json!({ "file": "etl.yaml", "line": 1, "column": 1, "field": "id", "message": "a dag needs an id" });
        assert_eq!(
            answer.json()["detail"],
            json!({ "message": "etl.yaml:1: a dag needs an id", "diagnostics": [diagnostic] })
        );
    }
    let panic = server.refused("POST", "/api/tenure/dags", Some(json!({ "source": "panic" }))).await;
    assert_eq!(panic, "500 The dag file made the parser fail; this is a bug of the server.");
    let bytes = request("POST", "/api/tenure/dags").body(Body::from(vec![0xff, 0xfe])).unwrap();
    assert_eq!(server.send(bytes).await.refusal(), "422 body: not UTF-8 text");
}

#[tokio::test]
async fn validating_changes_nothing() {
    let server = Server::start().await;
    let valid = server.ok("POST", "/api/tenure/dags/validate", json!({ "source": "id: etl" })).await;
    assert_eq!((&valid["dag_id"], &valid["tasks"]), (&json!("etl"), &json!(1)));
    assert_eq!(server.get("/api/v2/dags").await["total_entries"], 0);
}

#[tokio::test]
async fn what_is_wrong_in_the_folder_is_shown_with_the_dag_it_concerns() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    assert_eq!(server.get("/api/v2/dags/etl").await["has_import_errors"], false);
    let problem = |line, message: &str| Diagnostic {
        file: "etl.yaml".into(),
        line,
        column: 3,
        field: "tasks".into(),
        message: message.into(),
    };
    *server.import_errors.write().unwrap() = vec![ImportError {
        file: "etl.yaml".into(),
        at: at("2026-01-01T11:00:00Z"),
        diagnostics: vec![problem(3, "one"), problem(7, "two")],
    }];
    let errors = server.get("/api/tenure/dags/errors").await;
    assert_eq!(errors["import_errors"][0]["message"], "etl.yaml:3: one\netl.yaml:7: two");
    assert_eq!(errors["import_errors"][0]["diagnostics"][1]["line"], 7);
    assert_eq!(server.get("/api/v2/dags/etl").await["has_import_errors"], true);
}
