//! What is refused, and in which words.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::harness::{Office, claim, farewell, wish};

/// A wish with one field changed.
fn with(field: &str, value: Value) -> Value {
    let mut body = wish("x/leader", "a:1");
    body[field] = value;
    body
}

fn holder(field: &str, value: Value) -> Value {
    let mut body = wish("x/leader", "a:1");
    body["holder"][field] = value;
    body
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let office = Office::open();
    let routes = [
        ("GET", "/api/leases"),
        ("GET", "/api/leases/record?scope=x"),
        ("GET", "/api/leases/history?scope=x"),
        ("GET", "/api/leases/fence?scope=x"),
        ("GET", "/api/leases/members"),
        ("GET", "/api/leases/watch"),
        ("POST", "/api/leases/acquire"),
        ("POST", "/api/leases/renew"),
        ("POST", "/api/leases/release"),
    ];
    for (method, path) in routes {
        for header in [None, Some("Bearer wrong")] {
            let mut request = Request::builder().method(method).uri(path);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let answer = office.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status, 401, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_bad_field_is_named_with_what_would_fit() {
    let office = Office::open();
    let long = "x".repeat(301);
    let cases = [
        (json!({}), "422 holder: Field required"),
        (json!({ "holder": { "name": "a:1" }, "duration": "15s" }), "422 scope: Field required"),
        (
            with("scope", json!("x//leader")),
            "422 scope: the scope \"x//leader\" has an empty part: one / between two names, none at either end",
        ),
        (
            with("scope", json!("x leader")),
            "422 scope: the scope \"x leader\" holds ' ': letters, digits and any of - _ . : @ + are allowed, in parts \
             joined by /",
        ),
        (
            with("duration", json!("fifteen")),
            "422 duration: \"fifteen\" is not a duration (write it like 500ms, 30s, \
             10m, 1h30m or 2d)",
        ),
        (
            with("duration", json!("99ms")),
            "422 duration: a lease lasts between 100ms and 24h, and 99ms does not fit",
        ),
        (
            with("duration", json!("25h")),
            "422 duration: a lease lasts between 100ms and 24h, and 90000s does not fit",
        ),
        (with("duration_ms", json!(500)), "422 duration: give duration_ms or duration, not both"),
        (json!({ "scope": "x", "holder": { "name": "a:1" } }), "422 duration_ms: Field required"),
        (
            with("durationms", json!(500)),
            "422 durationms: not known here; known are scope, holder, component, \
             duration_ms, duration, term, takeover, note",
        ),
        (holder("name", json!("")), "422 holder.name: must not be empty"),
        (holder("name", json!(long)), "422 holder.name: has 301 bytes, and at most 300 fit"),
        (holder("name", json!("a\nb")), "422 holder.name: holds a control character"),
        (holder("instance", json!(long)), "422 holder.instance: has 301 bytes, and at most 300 fit"),
        (holder("address", json!("")), "422 holder.address: must not be empty"),
        (with("note", json!("x".repeat(4097))), "422 note: has 4097 bytes, and at most 4096 fit"),
        (with("note", json!("a\u{0}b")), "422 note: holds a zero byte"),
        (
            with("component", json!("y")),
            "422 scope: x/leader is not of the component \"y\": its scopes begin with y/ or members/y/. Leave the \
             component out to use any scope",
        ),
    ];
    for (body, refusal) in cases {
        assert_eq!(office.refused("acquire", body.clone()).await, refusal, "{body}");
    }
    for (field, value) in
        [("term", json!("not-a-uuid")), ("takeover", json!({ "of_death": "x" })), ("holder", json!("a:1"))]
    {
        let refusal = office.refused("acquire", with(field, value)).await;
        assert!(refusal.starts_with(&format!("422 {field}: ")), "{refusal}");
    }
    assert_eq!(office.get("/api/leases").await["total_entries"], 0, "nothing of all that was taken");
}

#[tokio::test]
async fn a_component_may_name_its_scopes_and_its_members_seats() {
    let office = Office::open();
    for scope in ["billing/shard-3", "members/billing/b1", "billing/eu/leader"] {
        let mut body = wish(scope, "a:1");
        body["component"] = json!("billing");
        assert_eq!(office.ok("acquire", body).await["lease"]["scope"], scope);
    }
}

#[tokio::test]
async fn what_belongs_to_the_server_is_refused_with_the_reason() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    for scope in ["scheduler/shard-00", "scheduler", "members/scheduler/a", "scheduler/leader"] {
        let mut claim = claim(&lease);
        let mut farewell = farewell(&lease);
        (claim["scope"], farewell["scope"]) = (scope.into(), scope.into());
        let refusals = [
            office.refused("acquire", wish(scope, "a:1")).await,
            office.refused("renew", json!({ "claims": [claim] })).await,
            office.refused("release", farewell).await,
        ];
        for refusal in refusals {
            assert_eq!(
                refusal,
                format!(
                    "403 {scope} belongs to the server itself: only its own replicas take leases under scheduler/ and \
                     seats under members/scheduler/. Choose another name; anything else is free."
                )
            );
        }
    }
    office.taken("schedulers/leader", "a:1").await;
    office.taken("my/scheduler/leader", "a:1").await;
}

#[tokio::test]
async fn one_bad_claim_is_refused_before_anything_is_renewed() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    let mut bad = claim(&lease);
    bad["scope"] = json!("/");
    let refusal = office.refused("renew", json!({ "claims": [claim(&lease), bad] })).await;
    assert!(refusal.starts_with("422 claims.scope: "), "{refusal}");
    assert_eq!(office.get("/api/leases/record?scope=x/leader").await["resource_version"], 1);

    let many: Vec<_> = (0..10_001).map(|_| claim(&lease)).collect();
    let refusal = office.refused("renew", json!({ "claims": many })).await;
    assert_eq!(refusal, "422 claims: holds 10001 claims, and at most 10000 fit");
    assert_eq!(office.ok("renew", json!({ "claims": [] })).await, json!({ "outcomes": [] }));
}

#[tokio::test]
async fn the_document_says_how_to_be_safe() {
    let office = Office::open();
    let document = office.get("/api/openapi.json").await;
    let tags = document["tags"].as_array().unwrap();
    let rules = tags.iter().find(|tag| tag["name"] == "leases").unwrap()["description"].as_str().unwrap();
    for rule in [
        "Count it from the moment you *sent* the request",
        "It never extends validity",
        "Pass the epoch with every write",
        "Reads need no fence",
    ] {
        assert!(rules.contains(rule), "{rules}");
    }
    let acquire = &document["paths"]["/api/leases/acquire"]["post"];
    for status in ["200", "400", "401", "403", "409", "422", "503", "504"] {
        assert!(acquire["responses"][status].is_object(), "{status}");
    }
}
