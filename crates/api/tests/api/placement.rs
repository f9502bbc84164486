//! Goal: whoever asks where a task would go is told, and nothing happens.

use serde_json::{Value, json};
use tenure_model::{PoolName, Resources};
use tenure_store::{AuditQuery, NodeRegistration, Paging, PoolRecord};

use crate::harness::{Server, spec};

const PREVIEW: &str = "/api/tenure/placement/preview";

/// Nodes `big` (8 cpus, label zone=b) and `small` (1 cpu, tainted), both connected; `away` is not.
async fn nodes(server: &Server) {
    for (name, cpu) in [("big", 8), ("small", 1), ("away", 64)] {
        let capacity = Resources::default().with(Resources::CPU, cpu * 1_000).with(Resources::TASKS, 8_000);
        let mut node = NodeRegistration::new(name.into(), capacity, "1");
        match name {
            "big" => node.labels = [("zone".to_owned(), "b".to_owned())].into(),
            "small" => node.taints = ["old".parse().unwrap()].into(),
            _ => {}
        }
        server.store.register_node(&node, server.trigger_by("x").at).await.unwrap();
    }
    server.store.record_presence("r1", &["big".into(), "small".into()]).await.unwrap();
}

/// Everything that a preview could have changed.
async fn everything(server: &Server) -> Vec<Value> {
    let mut all = vec![];
    for path in ["/api/v2/dags", "/api/v2/dags/etl/dagRuns", "/api/tenure/nodes", "/api/v2/pools"] {
        all.push(server.get(path).await);
    }
    let trail = AuditQuery {
        tenant: server.trigger_by("x").tenant,
        dag: None,
        run: None,
        after_seq: None,
        paging: Paging { limit: 1_000, ..Paging::default() },
    };
    let rows = server.store.list_audit(&trail).await.unwrap().items;
    all.push(json!(rows));
    let shard = server.store.shard_snapshot(tenure_model::ShardId(0)).await.unwrap();
    let limits = server.store.limits().await.unwrap();
    all.push(json!(format!("{shard:?} {limits:?}")));
    all
}

#[tokio::test]
async fn a_preview_ranks_explains_and_changes_nothing() {
    let server = Server::start().await;
    nodes(&server).await;
    let mut etl = spec("etl", "a b<a");
    etl.tasks[0].resources = Resources::default().with(Resources::CPU, 1_000);
    server.register(etl).await;
    let before = everything(&server).await;

    let told =
        server.ok("POST", PREVIEW, json!({ "dag_id": "etl", "task_id": "a", "tolerations": ["old"] })).await;
    assert_eq!(
        (&told["node"], &told["version"], &told["held_up_by"]),
        (&json!("big"), &json!(1), &json!([]))
    );
    let names: Vec<&Value> = told["candidates"].as_array().unwrap().iter().map(|one| &one["node"]).collect();
    assert_eq!(names, ["big", "small"], "the emptier one first");
    let best = &told["candidates"][0];
    assert_eq!(best["uses"]["cpu"], json!({ "capacity": 8_000, "before": 0, "after": 1_000 }));
    assert_eq!((&best["score"], &best["parts"]["load"]), (&json!(10_000), &json!(10_000)));
    let reasons = json!([{ "reason": "not_connected", "text": "not connected" }]);
    assert_eq!(told["rejected"], json!([{ "node": "away", "reasons": reasons }]));

    let free =
        json!({ "resources": { "cpu": 16_000 }, "labels": { "zone": "b" }, "queue": "gpus", "pool": "etl" });
    let told = server.ok("POST", PREVIEW, free).await;
    assert_eq!((&told["node"], &told["dag_id"]), (&Value::Null, &Value::Null));
    let held = told["held_up_by"].as_array().unwrap();
    assert!(held[0].as_str().unwrap().contains("pool etl does not exist"), "{held:?}");
    assert!(held[1].as_str().unwrap().starts_with("no node"), "{held:?}");
    let big = told["rejected"].as_array().unwrap().iter().find(|one| one["node"] == "big").unwrap();
    let texts: Vec<&Value> = big["reasons"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
    assert_eq!(texts, ["too small: it has cpu 8, and 16 is asked for", "not serving queue gpus"]);
    assert_eq!(everything(&server).await, before);
}

#[tokio::test]
async fn in_a_run_the_node_where_what_it_needs_has_run_comes_first() {
    let server = Server::start().await;
    for name in ["n0", "n1"] {
        let capacity = Resources::default().with(Resources::TASKS, 8_000);
        let node = NodeRegistration::new(name.into(), capacity, "1");
        server.store.register_node(&node, server.trigger_by("x").at).await.unwrap();
    }
    server.store.record_presence("r1", &["n0".into(), "n1".into()]).await.unwrap();
    server.register(spec("etl", "a b<a")).await;
    server.ok("POST", "/api/v2/dags/etl/dagRuns", json!({ "dag_run_id": "r1" })).await;
    server.drive("etl", "r1", "run=running a=scheduled").await;
    server.drive("etl", "r1", "a=running").await;
    server.drive("etl", "r1", "a=success").await;
    let told = async |run: Value| {
        let body = json!({ "dag_id": "etl", "task_id": "b", "run_id": run });
        let told = server.ok("POST", PREVIEW, body).await;
        (told["node"].clone(), told["candidates"][0]["parts"]["locality"].clone())
    };
    assert_eq!(told(Value::Null).await, (json!("n0"), json!(0)), "in a new run nothing has run yet");
    assert_eq!(told(json!("r1")).await, (json!("n1"), json!(2_000)));
}

#[tokio::test]
async fn limits_of_the_dag_and_its_pool_are_told_beside_the_nodes() {
    let server = Server::start().await;
    nodes(&server).await;
    let mut etl = spec("etl", "a");
    (etl.max_active_runs, etl.tasks[0].pool) = (1, "few".into());
    server.register(etl).await;
    let pool = PoolRecord { name: PoolName::new("few"), slots: 1, description: String::new() };
    server.store.put_pool(&server.trigger_by("x"), &pool).await.unwrap();
    server.ok("POST", "/api/v2/dags/etl/dagRuns", json!({ "dag_run_id": "r1" })).await;
    server.drive("etl", "r1", "run=running a=scheduled").await;
    server.drive("etl", "r1", "a=running").await;
    server.store.set_paused(&server.trigger_by("x"), &"etl".into(), true).await.unwrap();
    let told = server.ok("POST", PREVIEW, json!({ "dag_id": "etl", "task_id": "a" })).await;
    assert_eq!(
        told["held_up_by"],
        json!(["its dag is paused", "its dag has max_active_runs (1) running", "pool few is full (1 slots)"])
    );
    assert_eq!(told["pool"], json!({ "name": "few", "slots": 1, "used": 1, "asked": 1 }));
    assert_eq!((&told["node"], &told["candidates"][0]["node"]), (&Value::Null, &json!("big")));
}

#[tokio::test]
async fn what_cannot_be_asked_about_is_refused_with_its_name() {
    let server = Server::start().await;
    server.register(spec("etl", "a b")).await;
    let refused = async |body: Value| server.refused("POST", PREVIEW, Some(body)).await;
    assert_eq!(
        refused(json!({ "dag_id": "nope", "task_id": "a" })).await,
        "404 The Dag with ID: `nope` was not found"
    );
    assert_eq!(
        refused(json!({ "dag_id": "etl", "task_id": "c" })).await,
        "404 Dag `etl` has no task `c`; it has a, b."
    );
    assert_eq!(
        refused(json!({ "dag_id": "etl" })).await,
        "422 body.task_id: a dag_id needs a task_id beside it"
    );
    assert_eq!(refused(json!({ "run_id": "r" })).await, "422 body.dag_id: a run_id needs a dag_id beside it");
    assert_eq!(
        refused(json!({ "dag_id": "etl", "task_id": "a", "run_id": "r" })).await,
        "404 The DagRun with dag_id: `etl` and run_id: `r` was not found"
    );
    assert!(refused(json!({ "tolerations": ["a b"] })).await.starts_with("422 body.tolerations: "));
    assert!(refused(json!({ "resources": { "tasks": 5 } })).await.starts_with("422 body.resources: "));
    assert!(refused(json!({ "gpu": 1 })).await.starts_with("422 "), "unknown names are refused");
}
