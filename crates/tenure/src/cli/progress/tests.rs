//! Goal: whoever waits sees every change once, and scripts get the object they rely on.

use serde_json::json;

use super::*;

fn progress(tasks: &[(&str, &str, u32)]) -> Progress {
    let tasks: Vec<Value> = tasks
        .iter()
        .map(|(id, state, try_number)| {
            let started = (*try_number > 0).then_some("2026-01-01T00:00:00Z");
            let ended = ["success", "failed"].contains(state).then_some("2026-01-01T00:00:12Z");
            json!({ "id": id, "state": state, "try_number": try_number, "started_at": started, "ended_at": ended })
        })
        .collect();
    serde_json::from_value(json!({
        "revision": 7, "state": "running", "started_at": "2026-01-01T00:00:00Z", "ended_at": null, "tasks": tasks,
    }))
    .unwrap()
}

#[test]
fn each_change_is_told_once() {
    let first = progress(&[("a", "running", 1), ("b", "none", 0)]);
    let second = progress(&[("a", "success", 1), ("b", "none", 0)]);
    let third = progress(&[("a", "success", 1), ("b", "running", 2)]);
    assert_eq!(changes(None, &first), ["a: running"]);
    assert_eq!(changes(Some(&first), &second), ["a: success after 12s"]);
    assert_eq!(changes(Some(&second), &third), ["b: running, try 2"]);
    assert!(changes(Some(&third), &third).is_empty());
}

#[test]
fn a_new_try_in_the_same_state_is_news() {
    let before = progress(&[("a", "running", 1)]);
    assert_eq!(changes(Some(&before), &progress(&[("a", "running", 2)])), ["a: running, try 2"]);
}

#[test]
fn the_reason_of_a_failure_is_told() {
    let mut failed = progress(&[("a", "failed", 1)]);
    failed.tasks[0].reason = Some("exit code 3".into());
    assert_eq!(changes(None, &failed), ["a: failed after 12s: exit code 3"]);
}

#[test]
fn the_object_for_scripts_has_the_keys_they_rely_on() {
    let contract = progress(&[("a", "success", 1), ("b", "none", 0)]).contract("orders", "r1");
    expect_test::expect![[r#"
        {
          "dag_id": "orders",
          "run_id": "r1",
          "state": "running",
          "started_at": "2026-01-01T00:00:00Z",
          "ended_at": null,
          "tasks": [
            {
              "id": "a",
              "state": "success",
              "try_number": 1,
              "started_at": "2026-01-01T00:00:00Z",
              "ended_at": "2026-01-01T00:00:12Z"
            },
            {
              "id": "b",
              "state": "none",
              "try_number": 0,
              "started_at": null,
              "ended_at": null
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&contract).unwrap());
}

#[test]
fn a_run_is_finished_in_its_two_last_states_only() {
    let finished = |state: &str| Progress { state: state.into(), ..progress(&[]) }.is_finished();
    assert_eq!(["queued", "running", "success", "failed"].map(finished), [false, false, true, true]);
}
