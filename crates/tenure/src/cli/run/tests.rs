//! Goal: a run's page says how it stands, and why.

use serde_json::json;

use super::super::screen::tests::plain;
use super::*;

#[test]
fn a_run_is_shown_with_its_tasks() {
    let run = json!({
        "dag_id": "orders", "dag_run_id": "manual__1", "state": "running", "conf": { "region": "eu" },
        "queued_at": "2026-07-01T09:59:00Z", "start_date": "2026-07-01T09:59:01Z", "end_date": null,
        "triggering_user_name": "admin", "note": null, "logical_date": null,
    });
    let tasks = [
        json!({ "task_id": "extract", "state": "failed", "try_number": 2, "hostname": "node-a",
            "start_date": "2026-07-01T09:59:01Z", "end_date": "2026-07-01T09:59:04.5Z", "reason": "exit code 3" }),
        json!({ "task_id": "load", "state": null, "try_number": 0, "start_date": null, "end_date": null }),
    ];
    expect_test::expect![[r#"
        dag      orders
        run      manual__1
        state    running
        queued   2026-07-01 11:59:00
        started  2026-07-01 11:59:01
        took     59s
        by       admin
        conf     {"region":"eu"}

        TASK     STATE                 TRY  STARTED              TOOK  NODE
        extract  failed (exit code 3)    2  2026-07-01 11:59:01  3.5s  node-a
        load     none                    0  -                    -     -"#]]
    .assert_eq(&run_page(&plain(), &run, &tasks));
}

#[test]
fn runs_are_listed_with_who_started_them() {
    let screen = plain();
    let rows = [
        json!({ "dag_id": "a", "dag_run_id": "r1", "state": "queued", "run_type": "scheduled" }),
        json!({ "dag_id": "a", "dag_run_id": "r2", "state": "success", "triggering_user_name": "admin",
            "start_date": "2026-07-01T09:00:00Z", "end_date": "2026-07-01T09:01:05Z" }),
    ];
    let rows = rows.iter().map(|run| run_row(&screen, run));
    expect_test::expect![[r#"
        DAG  RUN  STATE    STARTED              TOOK   BY
        a    r1   queued   -                    -      scheduled
        a    r2   success  2026-07-01 11:00:00  1m05s  admin"#]]
    .assert_eq(&screen.table(&["DAG", "RUN", "STATE", "STARTED", "TOOK", "BY"], rows));
}
