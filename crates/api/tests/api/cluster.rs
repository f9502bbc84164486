//! Health, metrics, audit, nodes, leases, info.

use axum::http::StatusCode;
use expect_test::expect;
use serde_json::{Value, json};
use tenure_api::ScopeHealth;
use tenure_model::Resources;
use tenure_store::NodeRegistration;
use tower::ServiceExt;

use crate::harness::{Server, at, each, pretty};

#[tokio::test]
async fn health_shows_who_owns_what() {
    let server = Server::start().await;
    expect![[r#"
        {
          "status": "healthy",
          "version": "<version>",
          "reason": null,
          "database": {
            "ok": true,
            "error": null
          },
          "last_pass_at": "2026-01-01T12:00:00Z",
          "shards": {
            "total": 1,
            "owned": 1,
            "elsewhere": 0,
            "ownerless": 0
          },
          "controller": null,
          "scopes": [
            {
              "scope": "scheduler/shard-00",
              "owner": "host:1",
              "address": null,
              "epoch": 1,
              "leading": true,
              "last_renewal_succeeded": true,
              "renewed_at": "2026-01-01T12:00:00Z",
              "valid_for_ms": 86340000,
              "last_pass_at": null,
              "problem": null
            }
          ],
          "metadatabase": {
            "status": "healthy"
          },
          "scheduler": {
            "status": "healthy",
            "latest_scheduler_heartbeat": "2026-01-01T12:00:00Z"
          },
          "triggerer": {
            "status": null,
            "latest_triggerer_heartbeat": null
          },
          "dag_processor": {
            "status": null,
            "latest_dag_processor_heartbeat": null
          }
        }"#]]
    .assert_eq(&pretty(&server.get("/health").await));
    let live = server.call("GET", "/health/live", None).await;
    assert_eq!((live.status, live.text.as_str()), (StatusCode::OK, "ok"));
}

#[tokio::test]
async fn a_process_without_a_database_says_that_it_lives_and_waits() {
    let (said, why) = tokio::sync::watch::channel("waiting for the database: no route".to_owned());
    let router = tenure_api::waiting_router(why);
    let ask = async |path: &str| {
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask("/health/live").await, (200, "ok".into()));
    let (status, ready) = ask("/health/ready").await;
    assert!(status == 503 && ready.contains("no route"), "{status} {ready}");
    said.send_replace("waiting for the database: refused".into());
    let (status, health) = ask("/health").await;
    assert!(status == 200 && health.contains("unhealthy") && health.contains("refused"), "{health}");
    assert_eq!(ask("/api/v2/dags").await.0, 503);
    let call = axum::http::Request::post("/tenure.agent.v1.Agents/Connect")
        .header("content-type", "application/grpc");
    let answer = router.clone().oneshot(call.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
}

#[tokio::test]
async fn a_standby_is_told_from_an_owner_and_from_nobody() {
    let server = Server::start().await;
    let shards = server.get("/health").await["shards"].clone();
    assert_eq!(shards, json!({ "total": 1, "owned": 1, "elsewhere": 0, "ownerless": 0 }));
    server.ready.scopes(vec![
        ScopeHealth { owner: Some("other:1".into()), ..ScopeHealth::campaigning("scheduler/shard-00") },
        ScopeHealth::campaigning("scheduler/shard-01"),
    ]);
    let health = server.get("/health").await;
    assert_eq!(health["shards"], json!({ "total": 2, "owned": 0, "elsewhere": 1, "ownerless": 1 }));
    assert_eq!(health["status"], "healthy", "it serves the API");
}

#[tokio::test]
async fn ready_says_why_not() {
    let server = Server::start().await;
    assert_eq!(server.call("GET", "/health/ready", None).await.status, StatusCode::OK);
    server.ready.set(Err("no lease on scheduler/shard-00 yet"));
    let answer = server.call("GET", "/health/ready", None).await;
    assert_eq!(answer.refusal(), "503 no lease on scheduler/shard-00 yet");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(server.get("/health").await["status"], "unhealthy", "and yet it is alive");
    let monitor = server.get("/api/v2/monitor/health").await;
    expect![[r#"
        {
          "metadatabase": {
            "status": "healthy"
          },
          "scheduler": {
            "status": "unhealthy",
            "latest_scheduler_heartbeat": "2026-01-01T12:00:00Z"
          },
          "triggerer": {
            "status": null,
            "latest_triggerer_heartbeat": null
          },
          "dag_processor": {
            "status": null,
            "latest_dag_processor_heartbeat": null
          }
        }"#]]
    .assert_eq(&pretty(&monitor));
}

#[tokio::test]
async fn metrics_are_open_metrics() {
    let answer = Server::start().await.call("GET", "/metrics", None).await;
    assert_eq!(answer.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    expect![[r#"
        # HELP passes Passes committed.
        # TYPE passes counter
        passes_total 1
        # EOF
    "#]]
    .assert_eq(&answer.text);
}

#[tokio::test]
async fn version_info_and_front_page_answer() {
    let server = Server::start().await;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(server.get("/api/v2/version").await, json!({ "version": version, "git_version": null }));
    assert_eq!(
        server.get("/api/tenure/info").await,
        json!({ "version": version, "data": "./tenure-data", "profile": "lite" })
    );
    assert_eq!(server.get("/").await["api"], "/api/openapi.json");
}

#[tokio::test]
async fn the_audit_trail_is_followed_by_its_sequence() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    let all = server.get("/api/tenure/audit?dag_id=etl&run_id=r1").await;
    let last = all["audit"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["actor"], &last["scope"], &last["epoch"]),
        (&json!("owner"), &json!("scheduler/shard-00"), &json!(1))
    );
    assert_eq!(each(&last["entries"], "to"), ["running", "running"]);
    server.drive("etl", "r1", "a=success").await;
    let news = server.get(&format!("/api/tenure/audit?after_seq={}", last["seq"])).await;
    assert_eq!(each(&news["audit"][0]["entries"], "to"), ["success"]);

    let events = server.get("/api/v2/eventLogs?dag_id=etl&run_id=r1").await;
    let event = events["event_logs"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&event["event"], &event["task_id"], &event["owner"], &event["when"]),
        (&json!("moved"), &json!("a"), &json!("owner"), &json!("2026-01-01T12:00:00Z"))
    );
    assert_eq!(events["total_entries"], json!(events["event_logs"].as_array().unwrap().len()));
}

#[tokio::test]
async fn nodes_and_leases_are_listed() {
    let server = Server::start().await;
    let node = NodeRegistration {
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        taints: ["gpu=a100".parse().unwrap()].into(),
        ..NodeRegistration::new("n1".into(), Resources::default().with("cpu", 2000), "1.2.3")
    };
    server.store.register_node(&node, at("2026-01-01T11:00:00Z")).await.unwrap();
    expect![[r#"
        {
          "nodes": [
            {
              "node": "n1",
              "capacity": {
                "cpu": 2000
              },
              "labels": {
                "zone": "a"
              },
              "taints": [
                "gpu=a100"
              ],
              "queues": [
                "default"
              ],
              "version": "1.2.3",
              "registered_at": "2026-01-01T11:00:00Z",
              "drain": null,
              "removed": false,
              "draining": false,
              "used": {},
              "tasks": 0,
              "heard_by": []
            }
          ],
          "total_entries": 1
        }"#]]
    .assert_eq(&pretty(&server.get("/api/tenure/nodes").await));
    expect![[r#"
        {
          "leases": [
            {
              "scope": "scheduler/shard-00",
              "held": true,
              "holder": "host:1",
              "instance": "test",
              "session": "<uuid>",
              "address": null,
              "term": "<uuid>",
              "epoch": 1,
              "duration_ms": 86400000,
              "remaining_ms": 86400000,
              "acquired_at": "2026-01-01T12:00:00Z",
              "renewed_at": "2026-01-01T12:00:00Z",
              "released": false,
              "resource_version": 1,
              "transitions": 0,
              "succession": "first",
              "note": "a note"
            }
          ],
          "total_entries": 1
        }"#]]
    .assert_eq(&pretty(&server.get("/api/leases?under=scheduler/").await));
}

#[tokio::test]
async fn a_node_is_drained_and_taken_back_and_shows_what_runs_there() {
    let server = Server::with_run().await;
    let node = NodeRegistration::new("n1".into(), Resources::default().with("cpu", 2000), "1.2.3");
    server.store.register_node(&node, at("2026-01-01T11:00:00Z")).await.unwrap();
    server.store.record_presence("replica-1", &["n1".into()]).await.unwrap();
    server.drive("etl", "r1", "run=running a=running").await;

    let drained = server.ok("POST", "/api/tenure/nodes/n1/drain", json!({ "deadline": "30m" })).await;
    assert_eq!((&drained["draining"], &drained["tasks"]), (&json!(true), &json!(1)));
    assert_eq!(
        drained["drain"],
        json!({ "since": "2026-01-01T12:00:00Z", "deadline": "2026-01-01T12:30:00Z", "by": "admin", "stage": "finishing" })
    );
    let shown = server.get("/api/tenure/nodes/n1").await;
    assert_eq!(shown["used"]["tasks"], 1000);
    assert_eq!(each(&shown["heard_by"], "replica"), ["replica-1"]);
    assert_eq!(each(&shown["running"], "task_id"), ["a"]);
    assert_eq!(shown["drain_holder"], Value::Null, "nobody leads the controller here");
    let taken_back = server.ok("POST", "/api/tenure/nodes/n1/undrain", json!({})).await;
    assert_eq!((&taken_back["draining"], &taken_back["drain"]), (&json!(false), &Value::Null));

    for (path, body, status, said) in [
        ("/api/tenure/nodes/nope/drain", json!({}), "404", "nope"),
        ("/api/tenure/nodes/nope/undrain", json!({}), "404", "nope"),
        ("/api/tenure/nodes/n1/drain", json!({ "deadline": "soon" }), "422", "deadline"),
        ("/api/tenure/nodes/n1/drain", json!({ "deadline": "999d" }), "422", "year"),
    ] {
        let refused = server.refused("POST", path, Some(body)).await;
        assert!(refused.starts_with(status) && refused.contains(said), "{refused}");
    }
}

#[tokio::test]
async fn join_tokens_are_told_once_listed_and_revoked() {
    let server = Server::start().await;
    let made =
        server.ok("POST", "/api/tenure/join-tokens", json!({ "node": "gpu-7", "expires": "2h" })).await;
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert!(token.starts_with("tenure-join-") && token.len() == 76, "{made}");
    assert_eq!((&made["node"], &made["uses"], &made["used"]), (&json!("gpu-7"), &json!(1), &json!(0)));
    assert_eq!(made["expires_at"], "2026-01-01T14:00:00Z");
    let listed = server.get("/api/tenure/join-tokens").await;
    assert_eq!((&listed["total_entries"], &listed["join_tokens"][0]["id"]), (&json!(1), &json!(id)));
    assert!(!listed.to_string().contains(token), "{listed}");
    let path = format!("/api/tenure/join-tokens/{id}");
    assert_eq!(server.call("DELETE", &path, None).await.status, StatusCode::NO_CONTENT);
    let listed = server.get("/api/tenure/join-tokens").await;
    assert_eq!(listed["join_tokens"][0]["revoked_at"], "2026-01-01T12:00:00Z");
    for (body, word) in [
        (json!({ "expires": "31d" }), "30 days"),
        (json!({ "expires": "soon" }), "no duration"),
        (json!({ "uses": 0 }), "1 to"),
        (json!({ "node": "" }), "name"),
    ] {
        let refused = server.refused("POST", "/api/tenure/join-tokens", Some(body)).await;
        assert!(refused.starts_with("422") && refused.contains(word), "{refused}");
    }
    let refused = server.refused("DELETE", "/api/tenure/nodes/nobody", None).await;
    assert!(refused.starts_with("404") && refused.contains("nobody"), "{refused}");
}
