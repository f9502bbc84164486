//! Goal: a lease reads well in every state, and every field of it is shown.

use super::super::screen::tests::plain;
use super::*;

fn lease(held: bool, released: bool) -> Value {
    json!({
        "scope": "controller/leader", "held": held, "released": released, "holder": "host:42", "instance": "host",
        "session": "00000000-0000-0000-0000-000000000007", "address": "http://host:80",
        "term": "00000000-0000-0000-0000-000000000001", "epoch": 7, "duration_ms": 15_000,
        "remaining_ms": if held { 8_250 } else { 0 }, "acquired_at": "2026-07-01T09:00:00Z",
        "renewed_at": "2026-07-01T09:00:05Z", "resource_version": 31, "transitions": 3,
        "succession": "expired", "note": "blue",
    })
}

#[test]
fn a_lease_is_held_released_or_expired() {
    let rows = [lease(true, false), lease(false, true), lease(false, false)];
    expect_test::expect![[r#"
        SCOPE              STATE     HOLDER   ADDRESS         EPOCH  REMAINING  ACQUIRED             RENEWED              NOTE
        controller/leader  held      host:42  http://host:80     e7  8.2s       2026-07-01 11:00:00  2026-07-01 11:00:05  blue
        controller/leader  released  host:42  http://host:80     e7  -          2026-07-01 11:00:00  2026-07-01 11:00:05  blue
        controller/leader  expired   host:42  http://host:80     e7  -          2026-07-01 11:00:00  2026-07-01 11:00:05  blue"#]]
    .assert_eq(&plain().table(&LEASE_COLUMNS, rows.iter().map(|lease| lease_row(&plain(), lease))));
}

#[test]
fn every_field_of_a_lease_is_shown() {
    expect_test::expect![[r#"
        scope             controller/leader
        state             held
        holder            host:42
        instance          host
        address           http://host:80
        session           00000000-0000-0000-0000-000000000007
        epoch             7
        term              00000000-0000-0000-0000-000000000001
        duration          15s
        remaining         8.2s
        acquired          2026-07-01 11:00:00
        renewed           2026-07-01 11:00:05
        succession        expired
        transitions       3
        resource version  31
        note              blue"#]]
    .assert_eq(&lease_page(&plain(), &lease(true, false)));
}

#[test]
fn a_loser_is_told_who_holds_it_at_which_epoch_and_for_how_long() {
    let told = held_text(&Scope::new("controller/leader"), &lease(true, false));
    assert_eq!(told, "controller/leader is held by host:42 at e7, for another 8.2s unless it is renewed");
}

#[test]
fn an_epoch_is_read_as_it_is_shown() {
    assert_eq!((epoch("12"), epoch("e12")), (Ok(12), Ok(12)));
    assert!(epoch("twelve").is_err());
}
