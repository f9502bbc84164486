//! Goal: the audit trail reads as a story, and health as an answer.

use serde_json::json;

use super::super::screen::tests::plain;
use super::*;

#[test]
fn the_trail_of_a_run_reads_as_a_story() {
    let events = [
        json!({ "seq": 1, "at": "2026-07-01T09:00:00Z", "dag": "orders", "run_id": "r1", "actor": "admin",
            "scope": null, "epoch": null, "entries": [{ "event": "created", "from": "", "to": "queued" }] }),
        json!({ "seq": 2, "at": "2026-07-01T09:00:01Z", "dag": "orders", "run_id": "r1", "actor": "host:42",
            "scope": "scheduler/shard-03", "epoch": 7, "entries": [
                { "task": "extract", "event": "claimed", "from": "queued", "to": "running", "try_number": 1, "node": "a" },
                { "task": "load", "event": "ended", "from": "running", "to": "failed", "reason": "exit code 3" } ] }),
    ];
    let told = |of_one_run| {
        events.iter().map(|event| story(&plain(), event, of_one_run)).collect::<Vec<_>>().join("\n")
    };
    expect_test::expect![[r#"
        2026-07-01 11:00:00  run: created, queued  by admin
        2026-07-01 11:00:01  extract: claimed, queued → running (try 1, on a)  by host:42 (scheduler/shard-03 e7)
        2026-07-01 11:00:01  load: ended, running → failed: exit code 3  by host:42 (scheduler/shard-03 e7)"#]].assert_eq(&told(true));
    assert!(told(false).starts_with("2026-07-01 11:00:00  orders r1 run: created"), "{}", told(false));
}

#[test]
fn health_shows_leading_and_renewal_as_two_facts() {
    let health = json!({
        "status": "unhealthy", "reason": "the database does not answer", "version": "0.1.0",
        "database": { "ok": false, "error": "no answer within 2s" }, "last_pass_at": "2026-07-01T09:59:59Z",
        "scopes": [{ "scope": "scheduler/shard-00", "owner": "host:42", "epoch": 3, "leading": true,
            "last_renewal_succeeded": false, "renewed_at": "2026-07-01T09:59:58Z" }],
    });
    expect_test::expect![[r#"
        server     http://127.0.0.1:8080
        status     unhealthy
        reason     the database does not answer
        version    0.1.0
        database   no answer within 2s
        last pass  2026-07-01 11:59:59

        SCOPE               LEADING  EPOCH  OWNER    LAST RENEWAL
        scheduler/shard-00  yes         e3  host:42  failed, 2026-07-01 11:59:58"#]]
    .assert_eq(&health_page(&plain(), "http://127.0.0.1:8080", &health));
}

#[test]
fn a_nodes_capacity_is_shown_in_units_people_use() {
    let amounts = json!({ "cpu": 1500, "memory": 4_u64 * (1 << 30) * 1000, "tasks": 64_000 });
    assert_eq!(capacity(&amounts).unwrap(), "cpu 1.5, memory 4.0 GiB, tasks 64");
    assert_eq!(pairs(&json!({ "disk": "ssd", "zone": "a" })).unwrap(), "disk=ssd, zone=a");
    assert_eq!(pairs(&json!({})), None);
}
