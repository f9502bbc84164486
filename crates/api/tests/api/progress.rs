//! Long polling for the progress of a run.

use std::sync::Arc;
use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};

use crate::harness::{Server, each, pretty};

const PROGRESS: &str = "/api/tenure/dags/etl/runs/r1/progress";

fn waiting(server: &Arc<Server>, after: &Value, wait: &str) -> tokio::task::JoinHandle<Value> {
    let (server, path) = (Arc::clone(server), format!("{PROGRESS}?after_revision={after}&wait={wait}"));
    tokio::spawn(async move { server.get(&path).await })
}

async fn answer(poll: tokio::task::JoinHandle<Value>) -> Value {
    tokio::time::timeout(Duration::from_secs(20), poll).await.expect("an answer in time").unwrap()
}

#[tokio::test]
async fn without_a_revision_it_answers_at_once() {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=running").await;
    expect![[r#"
        {
          "dag_id": "etl",
          "run_id": "r1",
          "state": "running",
          "finished": false,
          "started_at": "2026-01-01T12:00:00Z",
          "ended_at": null,
          "reason": null,
          "revision": 1,
          "tasks": [
            {
              "id": "a",
              "map_index": -1,
              "state": "running",
              "try_number": 1,
              "started_at": "2026-01-01T12:00:00Z",
              "ended_at": null,
              "node": "n1",
              "reason": null
            },
            {
              "id": "b",
              "map_index": -1,
              "state": "none",
              "try_number": 0,
              "started_at": null,
              "ended_at": null,
              "node": null,
              "reason": null
            }
          ]
        }"#]]
    .assert_eq(&pretty(&server.get(PROGRESS).await));
}

#[tokio::test]
async fn a_watcher_is_answered_when_an_owner_has_committed() {
    let server = Arc::new(Server::with_run().await);
    let seen = server.get(PROGRESS).await;
    let poll = waiting(&server, &seen["revision"], "25s");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!poll.is_finished(), "nothing has changed yet");
    server.drive("etl", "r1", "run=running a=running").await;
    server.changes.send_modify(|count| *count += 1);
    let news = answer(poll).await;
    assert_eq!(
        (news["state"].as_str(), news["tasks"][0]["state"].as_str()),
        (Some("running"), Some("running"))
    );
    assert!(news["revision"].as_i64() > seen["revision"].as_i64());
}

#[tokio::test]
async fn a_watcher_learns_of_other_processes_too() {
    let server = Arc::new(Server::with_run().await);
    let seen = server.get(PROGRESS).await;
    let poll = waiting(&server, &seen["revision"], "25s");
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drive("etl", "r1", "run=running").await;
    assert_eq!(answer(poll).await["state"], "running", "without a hint, by looking now and then");
}

#[tokio::test]
async fn a_watcher_is_answered_with_what_is_there_when_its_wait_is_over() {
    let server = Arc::new(Server::with_run().await);
    let seen = server.get(PROGRESS).await;
    let same = answer(waiting(&server, &seen["revision"], "200ms")).await;
    assert_eq!(same, seen);
}

#[tokio::test]
async fn a_run_or_a_wait_that_cannot_be_is_refused() {
    let server = Server::with_run().await;
    assert_eq!(
        server.refused("GET", "/api/tenure/dags/etl/runs/r9/progress", None).await,
        "404 The DagRun with dag_id: `etl` and run_id: `r9` was not found"
    );
    assert_eq!(
        server.refused("GET", &format!("{PROGRESS}?wait=long"), None).await,
        "422 query.wait: \"long\" is not a duration (write it like 500ms, 30s, 10m, 1h30m or 2d)"
    );
}

#[tokio::test]
async fn whoever_asks_is_told_what_holds_up_tasks_that_have_not_begun() {
    let server = Server::with_run().await;
    let why = async |state: &str| {
        let answer = server.get(&format!("/api/tenure/dags/etl/runs/r1/progress{state}")).await;
        (answer["reason"].clone(), each(&answer["tasks"], "reason"))
    };
    let about_to = json!("it is about to start");
    let (run, tasks) = why("?reasons=true").await;
    assert_eq!((run, tasks[0].as_str()), (about_to, "its run waits: it is about to start"));
    assert_eq!(why("").await.0, json!(null), "nobody asked");

    server.drive("etl", "r1", "run=running a=scheduled").await;
    let (run, tasks) = why("?reasons=true").await;
    assert_eq!(run, json!(null));
    assert_eq!(tasks, ["no node is registered", "waits for 1 of 1 upstream task: a"]);
    server.ok("PATCH", "/api/v2/dags/etl", json!({ "is_paused": true })).await;
    assert_eq!(why("?reasons=true").await.1[0], "its dag is paused");
}
