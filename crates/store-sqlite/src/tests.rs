//! Goal: the file keeps what was acknowledged, lets one process in, and says clearly why it will not open.
//! Disk-full days are played through `max_page_count`, which fails exactly as a full disk does.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::json;
use tenure_clock::{Clock, SystemClock};
use tenure_model::{DagSpec, NewRun, RunType, TaskKind, TaskSpec, TenantId};
use tenure_store::{
    CreateRunOutcome, DagRegistration, IntentStore, RunQuery, SchedulingStore, Trigger, Views,
};

use super::*;

fn open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(path, SqliteOptions { shards: 2 }, Arc::new(SystemClock))
}

fn user() -> Trigger {
    Trigger { tenant: TenantId::default_tenant(), actor: "ada".into(), at: SystemClock.now() }
}

async fn register(store: &SqliteStore, tasks: usize) {
    let tasks = (0..tasks).map(|number| TaskSpec::new(format!("t{number}"), TaskKind::Empty)).collect();
    let registration = DagRegistration {
        trigger: user(),
        spec: DagSpec::new("etl", tasks),
        source: String::new(),
        origin: "api".into(),
        paused_if_new: false,
    };
    store.register_dag(&registration).await.expect("registered");
}

fn run(name: &str) -> NewRun {
    NewRun {
        tenant: TenantId::default_tenant(),
        dag: "etl".into(),
        run_id: name.into(),
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: SystemClock.now(),
        conf: json!({"pad": "x".repeat(500)}),
        note: None,
        triggered_by: "ada".into(),
        idempotency_key: None,
    }
}

async fn count_runs(store: &SqliteStore) -> u64 {
    store.list_runs(&RunQuery::of(TenantId::default_tenant(), None)).await.expect("listed").total
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_reopening() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let store = open(&path).expect("opened");
    register(&store, 2).await;
    let CreateRunOutcome::Created(header) = store.create_run(&user(), &run("r1")).await.expect("created")
    else {
        panic!("a new run")
    };
    drop(store);
    let store =
        SqliteStore::open(&path, SqliteOptions { shards: 9 }, Arc::new(SystemClock)).expect("reopened");
    let loaded = store.load_runs(&[header.key]).await.expect("loaded").runs.pop().expect("it is there");
    assert_eq!((loaded.header, loaded.tis.len()), (header, 2));
    assert_eq!(store.shard_count().await.expect("a count"), 2, "fixed when the database was made");
}

#[tokio::test]
async fn an_answer_waits_for_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder.path().join("tenure.db")).expect("opened");
    let settings = store.write("reading settings", |tx, _| {
        let setting = |name| tx.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
        Ok((setting("journal_mode")?, setting("synchronous")?, setting("foreign_keys")?))
    });
    const FULL: i64 = 2;
    let expected = ("wal".to_owned().into(), FULL.into(), 1i64.into());
    assert_eq!(settings.await.expect("read"), expected);
}

#[tokio::test]
async fn a_second_opener_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let first = open(&path).expect("opened");
    let refused = open(&path).expect_err("in use").to_string();
    assert!(refused.contains("tenure.db"), "{refused}");
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    first.ping().await.expect("undisturbed");
    drop(first);
    open(&path).expect("free again");
}

#[test]
fn nobody_else_may_read_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    std::fs::write(&path, "").expect("made by somebody careless");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
    let _store = open(&path).expect("opened");
    for entry in std::fs::read_dir(folder.path()).expect("listed") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    drop(open(&path).expect("opened"));
    Connection::open(&path).expect("opened").pragma_update(None, "user_version", 1_000).expect("set");
    let refused = open(&path).expect_err("newer").to_string();
    assert!(refused.contains("tenure.db") && refused.contains("version 1000"), "{refused}");
}

#[test]
fn what_is_not_a_database_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "these are my notes, not a database\n".repeat(100)).expect("written");
    let refused = open(&path).expect_err("no database").to_string();
    assert!(refused.contains("notes.txt"), "{refused}");
    let missing = open(&folder.path().join("no/such/folder/tenure.db")).expect_err("no folder").to_string();
    assert!(missing.contains("no/such/folder"), "{missing}");
}

#[tokio::test]
async fn a_store_in_memory_works_too() {
    let store = SqliteStore::in_memory(SqliteOptions::default(), Arc::new(SystemClock)).expect("opened");
    register(&store, 1).await;
    store.create_run(&user(), &run("r1")).await.expect("created");
    assert_eq!((count_runs(&store).await, store.shard_count().await.expect("a count")), (1, 1));
}

/// How many pages the file may have from now on; `None`: as many as it likes.
async fn limit_pages(store: &SqliteStore, spare: Option<i64>) {
    let set = store.write("limiting", move |tx, _| {
        let pages: i64 = tx.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let most = spare.map_or(i64::from(u32::MAX - 1), |spare| pages + spare);
        tx.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()))?;
        Ok(())
    });
    set.await.expect("limited");
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_space_brings_it_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder.path().join("tenure.db")).expect("opened");
    register(&store, 20).await;
    store.create_run(&user(), &run("before")).await.expect("created");
    limit_pages(&store, Some(20)).await;
    let mut acknowledged = 1;
    let refused = loop {
        match store.create_run(&user(), &run(&format!("r{acknowledged}"))).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1_000, "the disk never filled up");
    };
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused:?}");
    assert_eq!(count_runs(&store).await, acknowledged);
    limit_pages(&store, None).await;
    store.create_run(&user(), &run("after")).await.expect("there is room again");
    assert_eq!(count_runs(&store).await, acknowledged + 1);
}

#[tokio::test]
async fn on_a_full_disk_neighbours_in_a_batch_are_not_acknowledged_by_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(open(&folder.path().join("tenure.db")).expect("opened"));
    register(&store, 20).await;
    limit_pages(&store, Some(10)).await;
    let callers: Vec<_> = (0..64)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.create_run(&user(), &run(&format!("r{number}"))).await })
        })
        .collect();
    let mut acknowledged = 0;
    for caller in callers {
        match caller.await.expect("no panic") {
            Ok(_) => acknowledged += 1,
            Err(error) => assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}"),
        }
    }
    assert!(acknowledged < 64, "the disk never filled up");
    assert_eq!(count_runs(&store).await, acknowledged);
}
