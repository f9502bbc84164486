//! Goal: a dag's page answers what people ask, and files are checked without a server.

use serde_json::json;

use super::super::screen::tests::plain;
use super::*;

#[test]
fn a_dag_is_shown_with_what_its_tasks_need() {
    let dag = json!({
        "dag_id": "orders", "description": "Daily orders", "is_paused": false, "timetable_summary": "0 5 * * *",
        "timezone": "Europe/Berlin", "next_dagrun_run_after": "2026-07-02T03:00:00Z", "max_active_runs": 16,
        "max_active_tasks": 8, "owners": ["data"], "tags": [{ "name": "etl" }], "catchup": false,
        "params": { "region": { "value": "eu" }, "day": { "value": null } },
        "latest_dag_version": { "version_number": 3 }, "fileloc": "orders.yaml",
    });
    let task = |id: &str, downstream: &[&str]| {
        json!({
            "task_id": id, "operator_name": "bash", "trigger_rule": "all_success", "retries": 2,
            "pool": "default_pool", "downstream_task_ids": downstream,
        })
    };
    let tasks = [task("extract", &["load", "report"]), task("load", &["report"]), task("report", &[])];
    expect_test::expect![[r#"
        dag          orders
        description  Daily orders
        state        active
        schedule     0 5 * * *
        time zone    Europe/Berlin
        next run     2026-07-02 05:00:00
        at once      16 runs, 8 tasks of each
        params       region="eu", day (must be given)
        tags         etl
        owner        data
        version      3
        file         orders.yaml

        TASK     KIND  NEEDS          RULE         RETRIES  POOL
        extract  bash  -              all_success        2  default_pool
        load     bash  extract        all_success        2  default_pool
        report   bash  extract, load  all_success        2  default_pool"#]]
    .assert_eq(&dag_page(&plain(), &dag, &tasks));
}

#[test]
fn the_list_shows_no_next_run_for_a_paused_dag() {
    let dag = json!({ "dag_id": "a", "is_paused": true, "next_dagrun_run_after": "2026-07-02T03:00:00Z" });
    let screen = plain();
    let table =
        screen.table(&["DAG", "STATE", "SCHEDULE", "NEXT RUN", "TAGS", "OWNER"], [dag_row(&screen, &dag)]);
    expect_test::expect![[r#"
        DAG  STATE   SCHEDULE  NEXT RUN  TAGS  OWNER
        a    paused  -         -         -     -"#]]
    .assert_eq(&table);
}

#[test]
fn what_was_pushed_is_told_with_the_next_step() {
    let said = |answer: Value| pushed("orders", &answer);
    assert_eq!(said(json!({ "version_number": 2, "changed": true })), "orders: version 2 is in force");
    assert_eq!(
        said(json!({ "version_number": 2, "changed": false })),
        "orders: unchanged, version 2 is in force already"
    );
    assert_eq!(
        said(json!({ "version_number": 1, "changed": true, "is_paused": true })),
        "orders: version 1 is in force; it is paused: tenure dag unpause orders"
    );
}

#[test]
fn a_file_is_checked_with_the_files_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.yaml");
    std::fs::write(&file, "id: orders\ntasks:\n  a: { python: a.py }\n  b: { needs: [c], empty: true }\n")
        .unwrap();
    let lines = || {
        let diagnostics = check(&file).unwrap().parsed.unwrap_err();
        diagnostics.list.iter().map(|problem| problem.line).collect::<Vec<_>>()
    };
    assert_eq!(lines(), [3, 4]);
    std::fs::write(folder.path().join("a.py"), "print()").unwrap();
    assert_eq!(lines(), [4]);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = check(FilePath::new("no/such.yaml")).err().unwrap();
    assert!(error.to_string().starts_with("no/such.yaml: "), "{error}");
}
