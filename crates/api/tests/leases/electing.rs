//! The three verbs, won and lost.

use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};
use tenure_lease::{Epoch, FenceStore, Scope, Term};
use uuid::Uuid;

use crate::harness::{Mood, Office, claim, each, farewell, wish};

const TERM: &str = "0192f0c1-2b7a-7cc2-8f5e-5f0d3c2b1a00";

fn masked(mut lease: Value) -> String {
    for field in ["term", "session"] {
        assert!(Uuid::parse_str(lease[field].as_str().unwrap()).is_ok(), "{lease}");
        lease[field] = "<uuid>".into();
    }
    serde_json::to_string_pretty(&lease).unwrap()
}

#[tokio::test]
async fn the_winner_gets_the_lease_its_epoch_and_how_long_to_trust_it() {
    let office = Office::open();
    let body = json!({
        "scope": "controller/leader",
        "holder": { "name": "c1.example:7000", "instance": "c1", "address": "http://c1.example:7000" },
        "duration_ms": 15_000,
        "note": "first of its kind",
    });
    let answer = office.ok("acquire", body).await;
    assert_eq!(answer["valid_for_ms"], 15_000);
    expect![[r#"
        {
          "scope": "controller/leader",
          "held": true,
          "holder": "c1.example:7000",
          "instance": "c1",
          "session": "<uuid>",
          "address": "http://c1.example:7000",
          "term": "<uuid>",
          "epoch": 1,
          "duration_ms": 15000,
          "remaining_ms": 15000,
          "acquired_at": "2026-01-01T12:00:00Z",
          "renewed_at": "2026-01-01T12:00:00Z",
          "released": false,
          "resource_version": 1,
          "transitions": 0,
          "succession": "first",
          "note": "first of its kind"
        }"#]]
    .assert_eq(&masked(answer["lease"].clone()));
}

#[tokio::test]
async fn what_is_granted_is_fenced_whoever_installs_the_fence() {
    for office in [Office::open(), Office::unfenced()] {
        for holder in ["a:1", "b:1"] {
            let lease = office.taken("controller/leader", holder).await;
            let term = Term(lease["term"].as_str().unwrap().parse().unwrap());
            let fence = office.leases.fence(&Scope::new("controller/leader")).await.unwrap();
            assert_eq!(fence, Some((Epoch(lease["epoch"].as_u64().unwrap()), term)));
            let shown = office.get("/api/leases/fence?scope=controller/leader").await;
            assert_eq!((&shown["epoch"], &shown["term"]), (&lease["epoch"], &lease["term"]));
            office.ok("release", farewell(&lease)).await;
        }
    }
}

#[tokio::test]
async fn the_loser_learns_who_leads_at_which_epoch_and_for_how_long() {
    let office = Office::open();
    let first = office.taken("controller/leader", "a:1").await;
    office.later(Duration::from_secs(5));
    let answer = office.post("acquire", wish("controller/leader", "b:1")).await;
    assert_eq!(
        answer.refusal(),
        "409 controller/leader is held by a:1 at epoch 1, for another 10000 ms unless it is renewed. Do nothing \
         in its name, and try again then."
    );
    assert!(answer.body.get("lease").is_none(), "nothing to be taken for one's own");
    let lease = &answer.body["held_by"];
    assert_eq!(
        (&lease["term"], &lease["remaining_ms"], &lease["held"]),
        (&first["term"], &json!(10_000), &json!(true))
    );
}

#[tokio::test]
async fn a_term_that_asks_again_gets_the_same_answer_and_less_time() {
    let office = Office::open();
    let body = json!({ "scope": "x/leader", "holder": { "name": "a:1" }, "duration": "15s", "term": TERM });
    let first = office.ok("acquire", body.clone()).await;
    office.later(Duration::from_secs(4));
    let again = office.ok("acquire", body).await;
    assert_eq!(
        (&first["lease"]["epoch"], &first["lease"]["term"]),
        (&again["lease"]["epoch"], &again["lease"]["term"])
    );
    assert_eq!((&first["valid_for_ms"], &again["valid_for_ms"]), (&json!(15_000), &json!(11_000)));
    let history = office.get("/api/leases/history?scope=x/leader").await;
    assert_eq!(history["total_entries"], 1);
}

#[tokio::test]
async fn an_answer_that_was_lost_is_told_as_such_and_repaired_by_the_same_term() {
    let office = Office::open();
    let body = json!({ "scope": "x/leader", "holder": { "name": "a:1" }, "duration": "15s", "term": TERM });
    office.shaky.set(Mood::Forgetful);
    let lost = office.post("acquire", body.clone()).await;
    assert_eq!((lost.status, &lost.body["ambiguous"]), (504, &json!(true)));
    assert!(lost.refusal().contains("Repeat the request with the same term"), "{}", lost.refusal());
    office.shaky.set(Mood::Well);
    let lease = &office.ok("acquire", body).await["lease"];
    assert_eq!((&lease["term"], &lease["epoch"]), (&json!(TERM), &json!(1)));

    office.shaky.set(Mood::Forgetful);
    assert_eq!(office.post("renew", json!({ "claims": [claim(lease)] })).await.status, 504);
    assert_eq!(office.post("release", farewell(lease)).await.status, 504);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_waited_for_and_may_have_done_it() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    office.shaky.set(Mood::Silent);
    let answers = tokio::join!(
        office.post("acquire", wish("x/leader", "b:1")),
        office.post("renew", json!({ "claims": [claim(&lease)] })),
        office.post("release", farewell(&lease)),
    );
    for answer in [answers.0, answers.1, answers.2] {
        assert_eq!((answer.status, &answer.body["ambiguous"]), (504, &json!(true)));
    }
}

#[tokio::test]
async fn a_store_that_is_away_or_refuses_is_no_lost_answer() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    let verbs = [
        ("acquire", wish("x/leader", "b:1")),
        ("renew", json!({ "claims": [claim(&lease)] })),
        ("release", farewell(&lease)),
    ];
    for (verb, body) in &verbs {
        office.shaky.set(Mood::Unavailable);
        let away = office.post(verb, body.clone()).await;
        assert_eq!(away.refusal(), "503 The lease store is unavailable; nothing was changed.");
        assert_eq!(away.body.get("ambiguous"), None);
        office.shaky.set(Mood::Refusing);
        let refused = office.refused(verb, body.clone()).await;
        assert_eq!(refused, "400 The lease store refuses: this lease store is read-only.");
    }
}

#[tokio::test]
async fn a_batch_is_renewed_with_an_answer_for_each() {
    let office = Office::open();
    let (kept, released, expired) =
        (office.taken("x/1", "a:1").await, office.taken("x/2", "a:1").await, wish("x/3", "a:1"));
    let expired = json!({ "duration": "1s", "scope": expired["scope"], "holder": expired["holder"] });
    let expired = office.ok("acquire", expired).await["lease"].clone();
    let taken_over = office.taken("x/4", "a:1").await;
    office.ok("release", farewell(&released)).await;
    let mut heir = wish("x/4", "heir:9");
    heir["takeover"] = json!({ "of_dead": taken_over["term"] });
    let heir = office.ok("acquire", heir).await["lease"].clone();
    assert_eq!((&heir["succession"], &heir["epoch"]), (&json!("crashed"), &json!(2)));
    office.later(Duration::from_secs(5));

    let mut never = claim(&kept);
    never["scope"] = "x/5".into();
    let claims = [claim(&taken_over), claim(&kept), claim(&expired), claim(&released), never];
    let answer = office.ok("renew", json!({ "claims": claims })).await;
    assert_eq!(each(&answer["outcomes"], "scope"), ["x/4", "x/1", "x/3", "x/2", "x/5"]);
    assert_eq!(each(&answer["outcomes"], "renewed"), ["false", "true", "false", "false", "false"]);
    let lost: Vec<_> = answer["outcomes"].as_array().unwrap().iter().map(|one| &one["lost"]).collect();
    assert_eq!(
        *lost[0],
        json!({ "reason": "superseded", "holder": "heir:9", "instance": "", "session": heir["session"], "epoch": 2,
            "detail": "heir:9 holds it now, at e2" })
    );
    assert_eq!(*lost[1], Value::Null);
    let reasons: Vec<_> = lost[2..].iter().map(|lost| lost["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["expired", "expired", "gone"]);
    let record = office.get("/api/leases/record?scope=x/1").await;
    assert_eq!(
        (&record["remaining_ms"], &record["renewed_at"]),
        (&json!(15_000), &json!("2026-01-01T12:00:05Z"))
    );
}

#[tokio::test]
async fn a_renewal_may_change_how_long_a_lease_lasts() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    let mut claim = claim(&lease);
    claim["duration_ms"] = json!(60_000);
    office.ok("renew", json!({ "claims": [claim] })).await;
    assert_eq!(office.get("/api/leases/record?scope=x/leader").await["remaining_ms"], 60_000);
}

#[tokio::test]
async fn a_late_release_cannot_blank_a_successor() {
    let office = Office::open();
    let first = office.taken("x/leader", "a:1").await;
    office.later(Duration::from_secs(16));
    let second = office.taken("x/leader", "b:1").await;
    assert_eq!((&second["succession"], &second["epoch"]), (&json!("expired"), &json!(2)));
    assert_eq!(office.ok("release", farewell(&first)).await, json!({ "released": false }));
    let mut crossed = farewell(&second);
    crossed["epoch"] = first["epoch"].clone();
    assert_eq!(
        office.ok("release", crossed).await,
        json!({ "released": false }),
        "term and epoch must agree"
    );
    assert_eq!(office.get("/api/leases/record?scope=x/leader").await["holder"], "b:1");
    assert_eq!(office.get("/api/leases/record?scope=x/leader").await["held"], true);
}

#[tokio::test]
async fn a_release_frees_the_lease_at_once_and_only_once() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    assert_eq!(office.ok("release", farewell(&lease)).await, json!({ "released": true }));
    assert_eq!(office.ok("release", farewell(&lease)).await, json!({ "released": false }));
    let next = office.taken("x/leader", "b:1").await;
    assert_eq!((&next["succession"], &next["transitions"]), (&json!("released"), &json!(1)));
}

#[tokio::test]
async fn a_stalled_holder_is_taken_over_at_the_version_that_was_seen() {
    let office = Office::open();
    let lease = office.taken("x/leader", "a:1").await;
    let mut body = wish("x/leader", "b:1");
    body["takeover"] = json!({ "of_stalled": { "term": lease["term"], "resource_version": 1 } });
    office.ok("renew", json!({ "claims": [claim(&lease)] })).await;
    assert_eq!(office.post("acquire", body.clone()).await.status, 409, "it was renewed after all");
    body["takeover"]["of_stalled"]["resource_version"] = json!(2);
    assert_eq!(office.ok("acquire", body).await["lease"]["succession"], "stalled");
}

/// REQUIREMENTS: two unrelated components elect through it, each by its type, its own duration and host:port.
#[tokio::test]
async fn two_unrelated_components_elect_independently() {
    let office = Office::open();
    let candidate = |component: &str, name: &str, duration: &str| json!({ "component": component, "holder": { "name": name }, "duration": duration });
    let controller = office.ok("acquire", candidate("controller", "c1:7000", "15s")).await["lease"].clone();
    let billing = office.ok("acquire", candidate("billing", "b1:9000", "4s")).await["lease"].clone();
    assert_eq!(
        (&controller["scope"], &billing["scope"]),
        (&json!("controller/leader"), &json!("billing/leader"))
    );
    for (component, name) in [("controller", "c2:7000"), ("billing", "b2:9000")] {
        assert_eq!(office.post("acquire", candidate(component, name, "15s")).await.status, 409);
    }

    // The leader of billing falls silent; the other component notices nothing.
    office.later(Duration::from_secs(5));
    let next = office.ok("acquire", candidate("billing", "b2:9000", "4s")).await["lease"].clone();
    assert_eq!((&next["holder"], &next["epoch"]), (&json!("b2:9000"), &json!(2)));
    let outcomes =
        office.ok("renew", json!({ "claims": [claim(&controller), claim(&billing), claim(&next)] })).await;
    assert_eq!(each(&outcomes["outcomes"], "renewed"), ["true", "false", "true"]);
}
