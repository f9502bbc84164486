//! Pools.

use axum::http::StatusCode;
use expect_test::expect;
use serde_json::json;
use tenure_model::PoolName;

use crate::harness::{Server, each, pretty, spec};

#[tokio::test]
async fn a_pool_is_created_changed_and_deleted() {
    let server = Server::start().await;
    let body = json!({ "name": "db", "slots": 2, "description": "the database" });
    let created = server.call("POST", "/api/v2/pools", Some(body.clone())).await;
    assert_eq!(created.status, StatusCode::CREATED);
    expect![[r#"
        {
          "name": "db",
          "slots": 2,
          "description": "the database",
          "include_deferred": false,
          "occupied_slots": 0,
          "running_slots": 0,
          "queued_slots": 0,
          "scheduled_slots": 0,
          "open_slots": 2,
          "deferred_slots": 0,
          "team_name": null
        }"#]]
    .assert_eq(&pretty(&created.json()));
    assert_eq!(
        server.refused("POST", "/api/v2/pools", Some(body)).await,
        "409 Pool with name: `db` already exists"
    );
    let pools = server.get("/api/v2/pools").await;
    assert_eq!(each(&pools["pools"], "name"), ["db", "default_pool"]);

    let changed = server.ok("PATCH", "/api/v2/pools/db", json!({ "slots": -1 })).await;
    assert_eq!(
        (&changed["slots"], &changed["open_slots"], &changed["description"]),
        (&json!(-1), &json!(-1), &json!("the database"))
    );
    let masked = server
        .ok("PATCH", "/api/v2/pools/db?update_mask=description", json!({ "slots": 9, "description": "x" }))
        .await;
    assert_eq!((&masked["slots"], &masked["description"]), (&json!(-1), &json!("x")));

    assert_eq!(server.call("DELETE", "/api/v2/pools/db", None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(
        server.refused("GET", "/api/v2/pools/db", None).await,
        "404 The Pool with name: `db` was not found"
    );
}

#[tokio::test]
async fn what_a_pool_cannot_be_is_refused() {
    let server = Server::start().await;
    assert_eq!(
        server.refused("DELETE", "/api/v2/pools/default_pool", None).await,
        "400 Default Pool can't be deleted"
    );
    for (body, expected) in [
        (json!({ "name": "p", "slots": -2 }), "422 body.slots: must be -1 (unlimited) or more"),
        (json!({ "name": " ", "slots": 1 }), "422 body.name: must have 1 to 256 characters"),
        (json!({ "name": "p" }), "422 body.slots: Field required"),
        (
            json!({ "name": "p", "slots": 1, "include_deferred": true }),
            "400 `include_deferred` is not supported: no task is ever deferred.",
        ),
    ] {
        assert_eq!(server.refused("POST", "/api/v2/pools", Some(body)).await, expected);
    }
    let renamed =
        server.refused("PATCH", "/api/v2/pools/default_pool", Some(json!({ "pool": "other" }))).await;
    assert_eq!(renamed, "422 body.pool: a pool cannot be renamed; create another one");
}

#[tokio::test]
async fn slots_in_use_are_added_up_by_what_each_task_takes() {
    let server = Server::start().await;
    server.ok("POST", "/api/v2/pools", json!({ "name": "db", "slots": 10 })).await;
    let mut dag = spec("etl", "a b c");
    for task in &mut dag.tasks {
        task.pool = PoolName::new("db");
        task.pool_slots = 3;
    }
    server.register(dag).await;
    server.ok("POST", "/api/v2/dags/etl/dagRuns", json!({ "dag_run_id": "r1" })).await;
    server.drive("etl", "r1", "run=running a=running b=queued c=scheduled").await;
    let pool = server.get("/api/v2/pools/db").await;
    let used = ["running_slots", "queued_slots", "occupied_slots", "open_slots", "scheduled_slots"]
        .map(|name| pool[name].as_i64().unwrap());
    assert_eq!(used, [3, 3, 6, 4, 1]);
}
