//! Listings, records, histories, members.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use uuid::Uuid;

use crate::harness::{Mood, Office, each, farewell, wish};

#[tokio::test]
async fn leases_are_listed_in_order_under_what_was_asked_for() {
    let office = Office::open();
    for scope in ["b/two", "a/one", "b/one", "ab"] {
        office.taken(scope, "a:1").await;
    }
    for (under, expected) in
        [("", vec!["a/one", "ab", "b/one", "b/two"]), ("b/", vec!["b/one", "b/two"]), ("c", vec![])]
    {
        let answer = office.get(&format!("/api/leases?under={under}")).await;
        assert_eq!(each(&answer["leases"], "scope"), expected, "{under:?}");
        assert_eq!(answer["total_entries"], expected.len());
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_is_shown_with_its_last_holder() {
    let office = Office::open();
    office.taken("x/leader", "a:1").await;
    office.later(Duration::from_secs(15));
    let record = office.get("/api/leases/record?scope=x/leader").await;
    assert_eq!(
        (&record["held"], &record["released"], &record["remaining_ms"], &record["holder"]),
        (&json!(false), &json!(false), &json!(0), &json!("a:1"))
    );
}

#[tokio::test]
async fn a_lease_that_is_held_for_less_than_a_millisecond_more_has_time_left() {
    let office = Office::open();
    office.taken("x/leader", "a:1").await;
    office.later(Duration::from_secs(15) - Duration::from_micros(10));
    let record = office.get("/api/leases/record?scope=x/leader").await;
    assert_eq!((&record["held"], &record["remaining_ms"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn what_does_not_exist_is_said_to_and_where_to_look() {
    let office = Office::open();
    let missing = office.call("GET", "/api/leases/record?scope=x/leader", None).await.refusal();
    assert_eq!(
        missing,
        "404 Nobody has taken the lease of x/leader yet, or it was removed; GET /api/leases lists those that exist."
    );
    let impossible = office.call("GET", "/api/leases/record?scope=x/", None).await.refusal();
    assert_eq!(
        impossible,
        "404 There is no such lease: the scope \"x/\" has an empty part: one / between two names, none at either end."
    );
    let unfenced = office.call("GET", "/api/leases/fence?scope=x/leader", None).await.refusal();
    assert_eq!(unfenced, "404 No fence was ever installed for x/leader.");
    let nothing = office.call("GET", "/api/leases/record", None).await.refusal();
    assert_eq!(nothing, "422 scope: Field required");
    let unknown = office.call("GET", "/api/leases?prefix=x", None).await.refusal();
    assert_eq!(unknown, "422 prefix: not known here; known are under");
}

#[tokio::test]
async fn a_history_says_how_each_term_ended() {
    let office = Office::open();
    let first = office.taken("x/leader", "a:1").await;
    office.later(Duration::from_secs(1));
    office.ok("release", farewell(&first)).await;
    office.taken("x/leader", "b:1").await;
    office.later(Duration::from_secs(20));
    office.taken("x/leader", "c:1").await;
    let answer = office.get("/api/leases/history?scope=x/leader").await;
    let lines: Vec<_> = answer["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|term| {
            format!(
                "e{} {} from {} ({}) to {} ({})",
                term["epoch"],
                term["holder"],
                term["acquired_at"],
                term["succession"],
                term["ended_at"],
                term["end"]
            )
            .replace('"', "")
        })
        .collect();
    expect![[r#"
        e3 c:1 from 2026-01-01T12:00:21Z (expired) to null (null)
        e2 b:1 from 2026-01-01T12:00:01Z (released) to 2026-01-01T12:00:16Z (expired)
        e1 a:1 from 2026-01-01T12:00:00Z (first) to 2026-01-01T12:00:01Z (released)"#]]
    .assert_eq(&lines.join("\n"));
    let newest = office.get("/api/leases/history?scope=x/leader&limit=1").await;
    assert_eq!(each(&newest["history"], "epoch"), ["3"]);
    assert_eq!(office.get("/api/leases/history?scope=y").await["history"], json!([]));
}

#[tokio::test]
async fn members_are_listed_with_what_their_session_holds() {
    let office = Office::open();
    let sessions = [Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3)];
    let take = async |scope: &str, member: usize| {
        let mut body = wish(scope, &format!("host{member}:80"));
        body["holder"]["session"] = json!(sessions[member]);
        body["holder"]["address"] = json!(format!("http://host{member}:80"));
        office.ok("acquire", body).await["lease"].clone()
    };
    take("members/billing/one", 0).await;
    take("members/billing/two", 1).await;
    take("members/billing/eu/far", 2).await;
    take("members/audit/one", 2).await;
    take("billing/shard-1", 0).await;
    let given_back = take("billing/shard-2", 0).await;
    take("billing/shard-0", 0).await;
    take("audit/leader", 2).await;
    office.ok("release", farewell(&given_back)).await;

    let billing = office.get("/api/leases/members?component=billing").await;
    expect![[r#"
        {
          "members": [
            {
              "component": "billing",
              "member": "one",
              "holder": "host0:80",
              "instance": "",
              "address": "http://host0:80",
              "session": "00000000-0000-0000-0000-000000000001",
              "since": "2026-01-01T12:00:00Z",
              "remaining_ms": 15000,
              "note": "",
              "scopes": [
                "billing/shard-0",
                "billing/shard-1"
              ]
            },
            {
              "component": "billing",
              "member": "two",
              "holder": "host1:80",
              "instance": "",
              "address": "http://host1:80",
              "session": "00000000-0000-0000-0000-000000000002",
              "since": "2026-01-01T12:00:00Z",
              "remaining_ms": 15000,
              "note": "",
              "scopes": []
            }
          ],
          "total_entries": 2
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&billing).unwrap());

    let all = office.get("/api/leases/members").await;
    assert_eq!(each(&all["members"], "component"), ["audit", "billing", "billing", "billing/eu"]);
    office.later(Duration::from_secs(15));
    assert_eq!(office.get("/api/leases/members").await["total_entries"], 0, "their seats have run out");
}

#[tokio::test]
async fn a_store_that_is_away_is_said_to_be() {
    let office = Office::open();
    office.shaky.set(Mood::Unavailable);
    for path in ["", "/record?scope=x", "/history?scope=x", "/members", "/watch"] {
        assert_eq!(office.call("GET", &format!("/api/leases{path}"), None).await.status, 503, "{path}");
    }
}
