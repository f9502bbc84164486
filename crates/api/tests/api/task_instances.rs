//! Task instances: reading, tries, clearing, marking, results.

use axum::http::StatusCode;
use expect_test::expect;
use serde_json::{Value, json};

use crate::harness::{Server, each, pretty, spec};

const TASKS: &str = "/api/v2/dags/etl/dagRuns/r1/taskInstances";
const CLEAR: &str = "/api/v2/dags/etl/clearTaskInstances";

/// `a` has failed once, was tried again and succeeded.
async fn retried() -> Server {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=scheduled").await;
    server.drive("etl", "r1", "a=running").await;
    server.later(3);
    server.drive("etl", "r1", "a=up_for_retry").await;
    server.drive("etl", "r1", "a=scheduled").await;
    server.drive("etl", "r1", "a=running").await;
    server.later(4);
    server.drive_with("etl", "r1", "a=success", Some(json!({ "rows": 7 }))).await;
    server
}

async fn states(server: &Server) -> Vec<String> {
    each(&server.get(TASKS).await["task_instances"], "state")
}

#[tokio::test]
async fn a_task_instance_has_the_shape_of_airflow() {
    let server = retried().await;
    let task = server.get(&format!("{TASKS}/a")).await;
    expect![[r#"
        {
          "id": "<uuid>",
          "logical_date": null,
          "run_after": "2026-01-01T12:00:00Z",
          "task_id": "a",
          "task_display_name": "a",
          "dag_id": "etl",
          "dag_display_name": "etl",
          "dag_run_id": "r1",
          "map_index": -1,
          "state": "success",
          "try_number": 2,
          "max_tries": 1,
          "scheduled_when": "2026-01-01T12:00:03Z",
          "queued_when": "2026-01-01T12:00:03Z",
          "start_date": "2026-01-01T12:00:03Z",
          "end_date": "2026-01-01T12:00:07Z",
          "duration": 4.0,
          "hostname": "n1",
          "unixname": null,
          "pid": null,
          "pool": "default_pool",
          "pool_slots": 1,
          "queue": null,
          "priority_weight": 1,
          "operator": "bash",
          "operator_name": "bash",
          "executor": null,
          "executor_config": "{}",
          "dag_version": {
            "id": "<uuid>",
            "version_number": 1,
            "dag_id": "etl",
            "dag_display_name": "etl",
            "bundle_name": "dags-folder",
            "bundle_version": "<hash>",
            "bundle_url": null,
            "created_at": "2026-01-01T12:00:00Z"
          },
          "reason": null,
          "attempt_id": "<uuid>",
          "note": null,
          "rendered_map_index": null,
          "rendered_fields": {},
          "trigger": null,
          "triggerer_job": null
        }"#]]
    .assert_eq(&pretty(&task));
    assert_eq!(server.get(&format!("{TASKS}/a/-1")).await, task);
    assert_eq!(
        server.refused("GET", &format!("{TASKS}/a/3"), None).await,
        "404 The Task Instance with dag_id: `etl`, run_id: `r1`, task_id: `a` and map_index: `3` was not found"
    );
}

#[tokio::test]
async fn every_try_stays_readable() {
    let server = retried().await;
    let tries = server.get(&format!("{TASKS}/a/tries")).await;
    assert_eq!(each(&tries["task_instances"], "try_number"), ["1", "2"]);
    assert_eq!(each(&tries["task_instances"], "duration"), ["3.0", "4.0"]);
    assert_eq!(server.get(&format!("{TASKS}/a/tries/1")).await, tries["task_instances"][0]);
    assert_eq!(server.get(&format!("{TASKS}/a/-1/tries")).await, tries);
    assert_eq!(server.get(&format!("{TASKS}/a/-1/tries/2")).await, tries["task_instances"][1]);
    let refused = server.refused("GET", &format!("{TASKS}/a/tries/9"), None).await;
    assert!(refused.starts_with("404 ") && refused.contains("try_number: `9`"), "{refused}");
}

#[tokio::test]
async fn task_instances_are_filtered_also_across_runs_and_dags() {
    let server = Server::with_run().await;
    server.register(spec("other", "c")).await;
    server.ok("POST", "/api/v2/dags/etl/dagRuns", json!({ "dag_run_id": "r2" })).await;
    server.ok("POST", "/api/v2/dags/other/dagRuns", json!({ "dag_run_id": "r3" })).await;
    server.drive("etl", "r1", "run=running a=running").await;
    for (path, expected) in [
        ("etl/dagRuns/r1/taskInstances", vec!["a", "b"]),
        ("etl/dagRuns/~/taskInstances", vec!["a", "b", "a", "b"]),
        ("~/dagRuns/~/taskInstances", vec!["a", "b", "a", "b", "c"]),
        ("~/dagRuns/~/taskInstances?state=running", vec!["a"]),
        ("etl/dagRuns/r1/taskInstances?state=none", vec!["b"]),
        ("etl/dagRuns/r1/taskInstances?state=no_status", vec!["b"]),
        ("etl/dagRuns/~/taskInstances?task_id=b", vec!["b", "b"]),
        ("etl/dagRuns/r1/taskInstances?pool=nope", vec![]),
        ("etl/dagRuns/r1/taskInstances?order_by=-task_id", vec!["b", "a"]),
        ("etl/dagRuns/r1/taskInstances?limit=1&offset=1", vec!["b"]),
        ("etl/dagRuns/r1/taskInstances?map_index=0", vec![]),
    ] {
        let tasks = server.get(&format!("/api/v2/dags/{path}")).await;
        assert_eq!(each(&tasks["task_instances"], "task_id"), expected, "{path}");
    }
    assert_eq!(
        server.refused("GET", "/api/v2/dags/~/dagRuns/r1/taskInstances", None).await,
        "400 A run is named within a dag: with dag `~` the run must be `~`."
    );
    let unknown = server.refused("GET", &format!("{TASKS}?state=asleep"), None).await;
    assert!(
        unknown.starts_with("422 query.state: unknown variant `asleep`, expected one of `no_status`, `none`"),
        "{unknown}"
    );
}

#[tokio::test]
async fn clearing_takes_the_defaults_of_airflow() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    server.drive("etl", "r1", "run=failed a=success b=failed").await;
    let rehearsal = server.ok("POST", CLEAR, json!({ "dag_run_id": "r1" })).await;
    assert_eq!(each(&rehearsal["task_instances"], "task_id"), ["b"], "only failed ones");
    assert_eq!(states(&server).await, ["success", "failed"], "a dry run changes nothing");
    server.ok("POST", CLEAR, json!({ "dag_run_id": "r1", "dry_run": false })).await;
    assert_eq!(states(&server).await, ["success", "null"]);
    assert_eq!(server.get("/api/v2/dags/etl/dagRuns/r1").await["state"], "queued");
}

#[tokio::test]
async fn clearing_follows_the_graph_when_asked() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=success a=success b=success").await;
    let body = |extra: Value| {
        let mut body = json!({ "dag_run_id": "r1", "only_failed": false, "task_ids": ["a"] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (extra, expected) in [
        (json!({}), vec!["a"]),
        (json!({ "include_downstream": true }), vec!["a", "b"]),
        (json!({ "task_ids": [["b", -1]], "include_upstream": true }), vec!["a", "b"]),
        (json!({ "task_ids": null }), vec!["a", "b"]),
    ] {
        let tasks = server.ok("POST", CLEAR, body(extra)).await;
        assert_eq!(each(&tasks["task_instances"], "task_id"), expected);
    }
}

#[tokio::test]
async fn what_cannot_be_cleared_is_refused() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    for (body, expected) in [
        (json!({}), "422 body.dag_run_id: required: which run should be cleared?"),
        (json!({ "dag_run_id": "r9" }), "404 The DagRun with dag_id: `etl` and run_id: `r9` was not found"),
        (
            json!({ "dag_run_id": "r1", "only_running": true }),
            "400 only_failed and only_running exclude each other.",
        ),
        (
            json!({ "dag_run_id": "r1", "task_ids": [["a", 3]] }),
            "422 body.task_ids: single map indexes cannot be cleared; name the task alone",
        ),
        (
            json!({ "start_date": "2026-01-01T00:00:00Z" }),
            "400 `start_date` is not supported: name a run with dag_run_id; include_past and include_future widen it.",
        ),
        (
            json!({ "dag_run_id": "r1", "only_failed": false, "dry_run": false, "prevent_running_task": true }),
            "409 Task `a` of run `r1` is running, and prevent_running_task was asked for; nothing was cleared.",
        ),
    ] {
        assert_eq!(server.refused("POST", CLEAR, Some(body)).await, expected);
    }
    assert_eq!(states(&server).await, ["running", "null"]);
}

#[tokio::test]
async fn marking_is_rehearsed_and_done() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    let both = json!({ "new_state": "success", "include_downstream": true });
    let rehearsal = server.ok("PATCH", &format!("{TASKS}/a/dry_run"), both).await;
    assert_eq!(each(&rehearsal["task_instances"], "task_id"), ["a", "b"]);
    assert_eq!(states(&server).await, ["running", "null"]);
    let marked = server
        .ok("PATCH", &format!("{TASKS}/a?update_mask=new_state"), json!({ "new_state": "failed" }))
        .await;
    assert_eq!(marked["total_entries"], 1);
    assert_eq!(states(&server).await[0], "failed");
    server.ok("PATCH", &format!("{TASKS}/b/-1"), json!({ "new_state": "skipped" })).await;
    assert_eq!(states(&server).await, ["failed", "skipped"]);
    server.ok("PATCH", &format!("{TASKS}/b/-1/dry_run"), json!({ "new_state": "success" })).await;
    assert_eq!(states(&server).await, ["failed", "skipped"]);
    for (path, body, expected) in [
        ("a", json!({}), "422 body.new_state: required: success, failed or skipped"),
        (
            "a",
            json!({ "new_state": "running" }),
            "422 body.new_state: unknown variant `running`, expected one of `success`, `failed`, `skipped`",
        ),
        (
            "a",
            json!({ "note": "x" }),
            "400 `note` is not supported: task instances have no notes; runs have.",
        ),
        ("a?update_mask=pool", json!({}), "400 update_mask: \"pool\" cannot be changed; use new_state."),
        (
            "nope",
            json!({ "new_state": "failed" }),
            "404 The Task Instance with dag_id: `etl`, run_id: `r1`, task_id: `nope` and map_index: `-1` was not found",
        ),
    ] {
        assert_eq!(server.refused("PATCH", &format!("{TASKS}/{path}"), Some(body)).await, expected);
    }
}

#[tokio::test]
async fn a_returned_value_is_an_xcom() {
    let server = retried().await;
    let entry = server.get(&format!("{TASKS}/a/xcomEntries/return_value?deserialize=true")).await;
    expect![[r#"
        {
          "key": "return_value",
          "timestamp": "2026-01-01T12:00:07Z",
          "logical_date": null,
          "map_index": -1,
          "task_id": "a",
          "task_display_name": "a",
          "dag_id": "etl",
          "dag_display_name": "etl",
          "run_id": "r1",
          "run_after": "2026-01-01T12:00:00Z",
          "value": {
            "rows": 7
          }
        }"#]]
    .assert_eq(&pretty(&entry));
    let text = server.get(&format!("{TASKS}/a/xcomEntries/return_value?stringify=true")).await;
    assert_eq!(text["value"], r#"{"rows":7}"#);
    for key in ["return_value", "other"] {
        let answer = server.call("GET", &format!("{TASKS}/b/xcomEntries/{key}"), None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(answer.refusal(), format!("404 XCom entry with key: `{key}` not found"));
    }
}
