//! Runs: triggering, listing, ending, clearing, deleting.

use axum::body::Body;
use axum::http::StatusCode;
use expect_test::expect;
use serde_json::{Value, json};
use tenure_model::ParamSpec;

use crate::harness::{Answer, Server, each, pretty, request, spec};

const RUNS: &str = "/api/v2/dags/etl/dagRuns";

async fn trigger_with_key(server: &Server, key: &str, body: Value) -> Answer {
    let request = request("POST", RUNS).header("idempotency-key", key);
    server.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_triggered_run_has_the_shape_of_airflow() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    let body = json!({
        "logical_date": "2026-01-01T00:00:00+01:00", "conf": { "x": 1 }, "note": "by hand",
    });
    let run = server.ok("POST", RUNS, body).await;
    expect![[r#"
        {
          "dag_run_id": "manual__2026-01-01T12:00:00Z",
          "dag_id": "etl",
          "dag_display_name": "etl",
          "logical_date": "2025-12-31T23:00:00Z",
          "queued_at": "2026-01-01T12:00:00Z",
          "start_date": null,
          "end_date": null,
          "duration": null,
          "data_interval_start": "2025-12-31T23:00:00Z",
          "data_interval_end": "2025-12-31T23:00:00Z",
          "run_after": "2026-01-01T12:00:00Z",
          "last_scheduling_decision": null,
          "run_type": "manual",
          "state": "queued",
          "triggered_by": "rest_api",
          "triggering_user_name": "admin",
          "conf": {
            "x": 1
          },
          "note": "by hand",
          "dag_versions": [
            {
              "id": "<uuid>",
              "version_number": 1,
              "dag_id": "etl",
              "dag_display_name": "etl",
              "bundle_name": "dags-folder",
              "bundle_version": "<hash>",
              "bundle_url": null,
              "created_at": "2026-01-01T12:00:00Z"
            }
          ],
          "bundle_version": "<hash>",
          "partition_key": null,
          "partition_date": null,
          "reason": null
        }"#]]
    .assert_eq(&pretty(&run));
    assert_eq!(server.get(&format!("{RUNS}/manual__2026-01-01T12:00:00Z")).await, run);
}

#[tokio::test]
async fn a_trigger_needs_no_body() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    let run = server.call("POST", RUNS, None).await.json();
    assert_eq!(
        (&run["logical_date"], &run["conf"], &run["state"]),
        (&json!(null), &json!({}), &json!("queued"))
    );
}

#[tokio::test]
async fn triggers_in_the_same_instant_make_different_runs() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    for _ in 0..3 {
        server.ok("POST", RUNS, json!({})).await;
    }
    let runs = server.get(RUNS).await;
    assert_eq!(
        each(&runs["dag_runs"], "dag_run_id"),
        [
            "manual__2026-01-01T12:00:00Z",
            "manual__2026-01-01T12:00:00.000001Z",
            "manual__2026-01-01T12:00:00.000002Z"
        ]
    );
}

#[tokio::test]
async fn a_repeated_key_gives_the_same_run_and_with_another_request_a_conflict() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    let first = trigger_with_key(&server, "k1", json!({ "conf": { "x": 1 } })).await;
    server.later(5);
    let again = trigger_with_key(&server, "k1", json!({ "conf": { "x": 1 } })).await;
    assert_eq!(
        (again.status, again.json()["dag_run_id"].clone()),
        (StatusCode::OK, first.json()["dag_run_id"].clone())
    );
    let other = trigger_with_key(&server, "k1", json!({ "conf": { "x": 2 } })).await;
    assert_eq!(other.status, StatusCode::CONFLICT);
    assert_eq!(server.get(RUNS).await["total_entries"], 1);
    let long = trigger_with_key(&server, &"k".repeat(251), json!({})).await;
    assert_eq!(long.refusal(), "422 header.Idempotency-Key: must be 1 to 250 printable ASCII characters");
}

#[tokio::test]
async fn what_a_trigger_cannot_be_is_refused() {
    let server = Server::start().await;
    let mut dag = spec("etl", "a");
    let schema = [("type".into(), json!("integer"))].into();
    dag.params.insert("n".into(), ParamSpec { default: None, description: None, schema });
    server.register(dag).await;
    server.ok("POST", RUNS, json!({ "dag_run_id": "r1", "conf": { "n": 1 } })).await;
    let good = json!({ "n": 1 });
    for (body, expected) in [
        (
            json!({ "conf": {} }),
            "422 body.conf: parameter \"n\" has no default: the trigger must set it in conf",
        ),
        (
            json!({ "conf": { "n": "x" } }),
            "422 body.conf: parameter \"n\" must be of type integer, not \"x\"",
        ),
        (json!({ "conf": [] }), "422 body.conf: invalid type: sequence, expected a map"),
        (json!({ "dag_run_id": " ", "conf": good }), "422 body.dag_run_id: must not be empty"),
        (
            json!({ "dag_run_id": "~", "conf": good }),
            "422 body.dag_run_id: must be a name without control characters, and not ~",
        ),
        (
            json!({ "data_interval_start": "2026-01-01T00:00:00Z", "conf": good }),
            "422 body: Either both data_interval_start and data_interval_end must be provided or both must be None",
        ),
        (
            json!({ "data_interval_start": "2026-01-02T00:00:00Z", "data_interval_end": "2026-01-01T00:00:00Z", "conf": good }),
            "422 body.data_interval_end: before data_interval_start",
        ),
        (
            json!({ "partition_key": "p", "conf": good }),
            "400 `partition_key` is not supported: there are no partitions.",
        ),
        (json!({ "note": "x".repeat(1001), "conf": good }), "422 body.note: longer than 1000 characters"),
        (
            json!({ "colour": "red" }),
            "422 body.colour: not known here; known are dag_run_id, logical_date, \
            data_interval_start, data_interval_end, run_after, conf, note, partition_key",
        ),
    ] {
        assert_eq!(server.refused("POST", RUNS, Some(body)).await, expected);
    }
    let taken = server.refused("POST", RUNS, Some(json!({ "dag_run_id": "r1", "conf": good }))).await;
    assert!(taken.starts_with("409 ") && taken.contains("r1"), "{taken}");
    let date = server.refused("POST", RUNS, Some(json!({ "logical_date": "soon", "conf": good }))).await;
    assert!(date.starts_with("422 body.logical_date: "), "{date}");
    assert_eq!(
        server.refused("POST", "/api/v2/dags/nope/dagRuns", None).await,
        "404 The Dag with ID: `nope` was not found"
    );
    assert_eq!(server.get(RUNS).await["total_entries"], 1);
}

#[tokio::test]
async fn a_paused_dag_can_be_triggered_and_its_run_waits() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    server.ok("PATCH", "/api/v2/dags/etl", json!({ "is_paused": true })).await;
    assert_eq!(server.ok("POST", RUNS, json!({})).await["state"], "queued");
}

#[tokio::test]
async fn run_ids_with_plus_colon_slash_and_blank_are_found() {
    let server = Server::start().await;
    server.register(spec("etl", "a")).await;
    for (id, escaped) in [
        ("manual__2026-01-01T00:00:00+00:00", "manual__2026-01-01T00:00:00+00:00"),
        ("manual__2026-01-02T00:00:00+00:00", "manual__2026-01-02T00%3A00%3A00%2B00%3A00"),
        ("a/b c", "a%2Fb%20c"),
        ("größe", "gr%C3%B6%C3%9Fe"),
    ] {
        server.ok("POST", RUNS, json!({ "dag_run_id": id })).await;
        assert_eq!(server.get(&format!("{RUNS}/{escaped}")).await["dag_run_id"], id);
    }
    assert_eq!(
        server.refused("GET", &format!("{RUNS}/r9"), None).await,
        "404 The DagRun with dag_id: `etl` and run_id: `r9` was not found"
    );
}

#[tokio::test]
async fn runs_are_filtered_and_ordered_also_across_dags() {
    let server = Server::with_run().await;
    server.register(spec("other", "a")).await;
    server.later(60);
    server.ok("POST", RUNS, json!({ "dag_run_id": "r2", "logical_date": "2026-01-01T00:00:00Z" })).await;
    server.ok("POST", "/api/v2/dags/other/dagRuns", json!({ "dag_run_id": "r3" })).await;
    server.drive("etl", "r1", "run=running").await;
    for (path, expected) in [
        ("etl/dagRuns", vec!["r1", "r2"]),
        ("~/dagRuns", vec!["r1", "r2", "r3"]),
        ("~/dagRuns?order_by=-id", vec!["r3", "r2", "r1"]),
        ("~/dagRuns?order_by=-dag_run_id&limit=2", vec!["r3", "r2"]),
        ("~/dagRuns?state=running", vec!["r1"]),
        ("~/dagRuns?state=running&state=queued", vec!["r1", "r2", "r3"]),
        ("~/dagRuns?run_type=scheduled", vec![]),
        ("~/dagRuns?run_id_pattern=3", vec!["r3"]),
        ("~/dagRuns?run_after_gte=2026-01-01T12:00:30Z", vec!["r2", "r3"]),
        ("~/dagRuns?run_after_lte=2026-01-01T12:00:30Z", vec!["r1"]),
        ("~/dagRuns?logical_date_gte=2026-01-01T00:00:00Z&logical_date_lte=2026-01-01T00:00:00Z", vec!["r2"]),
        ("~/dagRuns?start_date_gte=2026-01-01T12:00:00Z", vec!["r1"]),
        ("~/dagRuns?end_date_lte=2027-01-01T12:00:00Z", vec![]),
    ] {
        let runs = server.get(&format!("/api/v2/dags/{path}")).await;
        assert_eq!(each(&runs["dag_runs"], "dag_run_id"), expected, "{path}");
    }
    assert_eq!(
        server.refused("GET", "/api/v2/dags/nope/dagRuns", None).await,
        "404 The Dag with ID: `nope` was not found"
    );
}

#[tokio::test]
async fn a_run_is_ended_noted_and_sent_round_again() {
    let server = Server::with_run().await;
    let run = &format!("{RUNS}/r1");
    server.drive("etl", "r1", "run=running").await;
    server.later(2);
    let failed = server.ok("PATCH", run, json!({ "state": "failed", "note": "enough" })).await;
    assert_eq!(
        (&failed["state"], &failed["note"], &failed["duration"]),
        (&json!("failed"), &json!("enough"), &json!(2.0))
    );
    let noted = server
        .ok("PATCH", &format!("{run}?update_mask=note"), json!({ "state": "success", "note": null }))
        .await;
    assert_eq!(
        (&noted["state"], &noted["note"]),
        (&json!("failed"), &json!(null)),
        "the mask keeps the state"
    );
    let again = server.ok("PATCH", run, json!({ "state": "queued" })).await;
    assert_eq!(again["state"], "queued");
    assert_eq!(
        server.refused("PATCH", run, Some(json!({ "state": "running" }))).await,
        "422 body.state: unknown variant `running`, expected one of `queued`, `success`, `failed`"
    );
    assert_eq!(
        server.refused("PATCH", &format!("{run}?update_mask=conf"), Some(json!({}))).await,
        "400 update_mask: \"conf\" cannot be changed; use state or note."
    );
}

#[tokio::test]
async fn clearing_a_run_rehearses_first_and_then_sends_it_round_again() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    server.drive("etl", "r1", "run=failed a=failed b=upstream_failed").await;
    let clear = &format!("{RUNS}/r1/clear");
    let rehearsal = server.ok("POST", clear, json!({})).await;
    assert_eq!(each(&rehearsal["task_instances"], "task_id"), ["a", "b"]);
    assert_eq!(server.get(&format!("{RUNS}/r1")).await["state"], "failed", "a dry run changes nothing");
    let run = server.ok("POST", clear, json!({ "dry_run": false, "note": "again" })).await;
    assert_eq!((&run["state"], &run["note"]), (&json!("queued"), &json!("again")));
    let tasks = server.get(&format!("{RUNS}/r1/taskInstances")).await;
    assert_eq!(each(&tasks["task_instances"], "state"), ["null", "null"]);
    let only_new = server.refused("POST", clear, Some(json!({ "only_new": true }))).await;
    assert_eq!(
        only_new,
        "400 `only_new` is not supported: clear with run_on_latest_version, which adds new tasks."
    );
}

#[tokio::test]
async fn a_finished_run_is_deleted_an_active_one_is_not() {
    let server = Server::with_run().await;
    let run = &format!("{RUNS}/r1");
    let active = server.refused("DELETE", run, None).await;
    assert!(active.starts_with("409 "), "{active}");
    server.ok("PATCH", run, json!({ "state": "failed" })).await;
    assert_eq!(server.call("DELETE", run, None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.call("GET", run, None).await.status, StatusCode::NOT_FOUND);
}
