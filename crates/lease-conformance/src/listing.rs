//! Goal: a listing shows exactly what was asked for, in order, and what is held at that moment.

use crate::Fresh;
use crate::harness::Office;

/// Names with everything in them that means something to somebody else's pattern language or collation.
const SCOPES: [&str; 14] = [
    "A/one",
    "a",
    "a%b/x",
    "a+b/x",
    "a.b/x",
    "a/one",
    "a/two",
    "a/two/deep",
    "a0",
    "aXb/x",
    "a\\b/x",
    "a_b/x",
    "日本/x",
    "é/one",
];

pub async fn a_listing_is_exact_about_what_scopes_begin_with(fresh: Fresh) {
    let office = Office::of(fresh);
    for scope in SCOPES {
        office.at(scope).taken("a").await;
    }
    let mut all = SCOPES;
    all.sort_unstable();
    let prefixes = [
        "",
        "a",
        "a/",
        "a/t",
        "a/two",
        "a/two/",
        "a0",
        "a%",
        "a%b/",
        "a_",
        "a_b/",
        "a\\",
        "a.",
        "a+",
        "A",
        "A/",
        "é",
        "é/",
        "日",
        "日本/",
        "%",
        "_",
        "b",
        "a/one/",
        "\u{10ffff}",
    ];
    for under in prefixes {
        let listed = office.leases().list_leases(under).await.expect("answered");
        let listed: Vec<&str> = listed.iter().map(|record| record.scope.as_str()).collect();
        let expected: Vec<&str> = all.into_iter().filter(|scope| scope.starts_with(under)).collect();
        assert_eq!(listed, expected, "under {under:?}");
    }
}

pub async fn a_lease_is_found_by_its_scope_alone(fresh: Fresh) {
    let office = Office::of(fresh);
    for scope in SCOPES {
        let office = office.at(scope);
        let record = office.taken(scope).await;
        let shown = office.shown().await;
        assert_eq!((shown.scope, shown.term), (record.scope, record.term));
        assert_eq!(office.fence().await, Some((record.epoch, record.term)));
    }
    for missing in ["b", "a/", "a/t", "%", "a_", "_", "é"] {
        assert_eq!(office.at(missing).found().await, None, "{missing:?}");
    }
}

pub async fn what_is_held_can_be_told_from_what_is_not(fresh: Fresh) {
    let office = Office::of(fresh);
    let (held, released, expired) = (office.at("t/held"), office.at("t/released"), office.at("t/expired"));
    held.taken("a").await;
    released.release(&released.taken("a").await).await;
    expired.taken_and_expired("a").await;
    let listed = office.leases().list_leases("t/").await.expect("answered");
    let held: Vec<&str> =
        listed.iter().filter(|record| record.is_held()).map(|record| record.scope.as_str()).collect();
    assert_eq!(held, ["t/held"]);
}
