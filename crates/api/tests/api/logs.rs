//! Logs of tries, whole and piece by piece.

use axum::http::StatusCode;
use object_store::ObjectStoreExt;
use serde_json::{Value, json};
use tenure_logs::Part;
use tenure_model::{AttemptId, TenantId};

use crate::harness::{Server, each};

const LOG: &str = "/api/v2/dags/etl/dagRuns/r1/taskInstances/a/logs/1";

async fn running() -> Server {
    let server = Server::with_run().await;
    server.drive("etl", "r1", "run=running a=scheduled").await;
    server.drive("etl", "r1", "a=running").await;
    server
}

/// Appends what the first try of `a` prints.
async fn print(server: &Server, start: u64, text: &str) {
    let prefix =
        tenure_logs::prefix(&TenantId::default_tenant(), &"etl".into(), &"r1".into(), &"a".into(), -1, 1);
    let part = Part { attempt: AttemptId(uuid::Uuid::nil()), start, end: start + text.len() as u64 };
    server.logs.put(&part.path(&prefix), text.to_owned().into()).await.unwrap();
}

fn token(log: &Value) -> String {
    log["continuation_token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn a_reader_who_follows_misses_nothing_and_learns_of_the_end() {
    let server = running().await;
    let empty = server.get(LOG).await;
    assert_eq!(empty["content"], json!([]));
    print(&server, 0, "one\ntwo\n").await;
    let first = server.get(&format!("{LOG}?token={}", token(&empty))).await;
    assert_eq!(each(&first["content"], "event"), ["one", "two"]);
    let none = server.get(&format!("{LOG}?token={}", token(&first))).await;
    assert_eq!(none["content"], json!([]));
    print(&server, 8, "three\n").await;
    server.drive("etl", "r1", "a=success").await;
    let early = server.get(&format!("{LOG}?token={}", token(&none))).await;
    assert_eq!(each(&early["content"], "event"), ["three"]);
    print(&server, 14, "straggler\n").await;
    server.later(2);
    let last = server.get(&format!("{LOG}?token={}", token(&early))).await;
    assert_eq!(
        (each(&last["content"], "event"), &last["continuation_token"]),
        (vec!["straggler".into()], &json!(null))
    );
}

#[tokio::test]
async fn a_big_log_comes_in_pieces_or_whole() {
    let server = running().await;
    let line = "x".repeat(1023) + "\n";
    let mut start = 0;
    for _ in 0..5 {
        let text = line.repeat(512);
        print(&server, start, &text).await;
        start += text.len() as u64;
    }
    let piece = server.get(LOG).await;
    assert_eq!(piece["content"].as_array().unwrap().len(), 1024, "1 MiB");
    let whole = server.get(&format!("{LOG}?full_content=true")).await;
    assert_eq!(whole["content"].as_array().unwrap().len(), 5 * 512);
    let text = server.get_text(LOG).await;
    assert_eq!((text.status, text.text.len() as u64), (StatusCode::OK, start));

    let (mut token, mut read, mut pieces) = ("start".to_owned(), 0, 0);
    while read < start {
        let piece = server.get_text(&format!("{LOG}?token={token}")).await;
        read += piece.text.len() as u64;
        token = piece.header("x-continuation-token").to_owned();
        pieces += 1;
    }
    assert_eq!((read, pieces), (start, 3));
    server.drive("etl", "r1", "a=failed").await;
    server.later(60);
    let end = server.get_text(&format!("{LOG}?token={token}")).await;
    assert_eq!((end.text.as_str(), end.header("x-continuation-token")), ("", ""));
}

#[tokio::test]
async fn a_log_that_cannot_be_is_refused() {
    let server = running().await;
    let bad = server.refused("GET", &format!("{LOG}?token=garbage"), None).await;
    assert!(bad.starts_with("422 query.token: \"garbage\" is not a log cursor"), "{bad}");
    let answer = server.call("GET", "/api/v2/dags/etl/dagRuns/r1/taskInstances/a/logs/7", None).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let answer = server.call("GET", "/api/v2/dags/etl/dagRuns/r1/taskInstances/nope/logs/1", None).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let next = server.get("/api/v2/dags/etl/dagRuns/r1/taskInstances/b/logs/1").await;
    assert_eq!(next["content"], json!([]), "a try that is about to come");
    token(&next);
}
