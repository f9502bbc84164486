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
        "shards": { "total": 3, "owned": 1, "elsewhere": 1, "ownerless": 1 },
        "controller": { "scope": "controller/leader", "owner": "other:7", "address": "http://other:80",
            "leading": false, "problem": null },
        "scopes": [
            { "scope": "scheduler/shard-00", "owner": "host:42", "address": "http://host:80", "epoch": 3,
              "leading": true, "last_renewal_succeeded": false, "renewed_at": "2026-07-01T09:59:58Z",
              "last_pass_at": "2026-07-01T09:59:59Z", "problem": "no answer" },
            { "scope": "scheduler/shard-01", "owner": "other:7", "address": "http://other:80", "epoch": 2,
              "leading": false },
            { "scope": "scheduler/shard-02", "owner": null, "leading": false, "problem": "standing for it" } ],
    });
    expect_test::expect![[r#"
        server      http://127.0.0.1:8080
        status      unhealthy
        reason      the database does not answer
        version     0.1.0
        database    no answer within 2s
        shards      owns 1 of 3 shards; 1 has no owner
        controller  other:7 at http://other:80
        last pass   2026-07-01 11:59:59

        SCOPE               LEADING  EPOCH  OWNER    ADDRESS          LAST RENEWAL                 LAST PASS            PROBLEM
        scheduler/shard-00  yes         e3  host:42  http://host:80   failed, 2026-07-01 11:59:58  2026-07-01 11:59:59  no answer
        scheduler/shard-01  no          e2  other:7  http://other:80  -                            -                    -
        scheduler/shard-02  no           -  -        -                -                            -                    standing for it"#]]
    .assert_eq(&health_page(&plain(), "http://127.0.0.1:8080", &health));
}

#[test]
fn a_standby_says_that_it_owns_nothing() {
    let shards =
        |owned: u64| shards(&json!({ "total": 16, "owned": owned, "elsewhere": 16 - owned, "ownerless": 0 }));
    assert_eq!(shards(0).unwrap(), "owns none of 16 shards: stands by");
    assert_eq!(shards(5).unwrap(), "owns 5 of 16 shards");
    assert_eq!(
        controller(&json!({ "leading": true, "owner": "me", "problem": "late" })).unwrap(),
        "this process (late)"
    );
    assert_eq!(controller(&json!({ "leading": false, "owner": null })).unwrap(), "nobody");
}
