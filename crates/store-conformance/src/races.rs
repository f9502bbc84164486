//! Goal: writers that meet on one row leave a history that adds up.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_model::{NewRun, TaskState};
use tenure_store::{CreateRunOutcome, RunQuery, RunSnapshot};

use crate::Fresh;
use crate::harness::{World, clear_of, new_run, pass_of, registration, spec, tenant, user};

/// One step forward for every task, and the run's own beginning and end.
fn next_moves(run: &RunSnapshot) -> String {
    let mut moves: Vec<String> = run
        .tis
        .iter()
        .filter_map(|cached| {
            let next = match cached.ti.state {
                TaskState::None => TaskState::Scheduled,
                TaskState::Scheduled => TaskState::Queued,
                TaskState::Queued => TaskState::Running,
                TaskState::Running => TaskState::Success,
                TaskState::Restarting => TaskState::None,
                _ => return None,
            };
            Some(format!("{}={next}", cached.task_id))
        })
        .collect();
    match run.header.state.as_str() {
        "queued" => moves.push("run=running".into()),
        "running" if moves.is_empty() => moves.push("run=success".into()),
        _ => {}
    }
    moves.join(" ")
}

pub async fn an_owner_and_a_user_on_one_run_leave_a_trail_that_replays_to_the_rows(fresh: Fresh) {
    let world = Arc::new(World::of(fresh));
    let run = world.run_of("etl", "a b c d e").await;
    let owner = world.owner_of("etl").await;
    let clears = tokio::spawn({
        let world = Arc::clone(&world);
        async move {
            for number in 0..60 {
                let task = ["a", "b", "c"][number % 3];
                world.store.clear(&user(), &clear_of("etl", "r1", &[task])).await.expect("cleared");
                tokio::task::yield_now().await;
            }
        }
    });
    let (mut commits, mut conflicts) = (0, 0);
    let mut cached = world.load(run.key).await;
    while !(clears.is_finished() && commits > 60) {
        let moves = next_moves(&cached);
        if !moves.is_empty() {
            let outcome = world.commit(&owner, &pass_of(vec![world.change(&cached, &moves)])).await;
            match outcome.expect("committed").conflicts.is_empty() {
                true => commits += 1,
                false => conflicts += 1,
            }
        } else if clears.is_finished() {
            break;
        }
        cached = world.load(run.key).await;
    }
    clears.await.expect("no panic");
    assert!(commits > 0, "no commit at all, {conflicts} conflicts");

    let rows = world.load(run.key).await;
    let (replayed, run_state, transactions) = replay(&world).await;
    let actual: BTreeMap<String, String> =
        rows.tis.iter().map(|cached| (cached.task_id.to_string(), cached.ti.state.to_string())).collect();
    assert_eq!(replayed, actual);
    assert_eq!(run_state, rows.header.state.as_str());
    assert_eq!(transactions, rows.header.revision, "one audit row for every revision");
}

/// Walks the audit trail, which must start every step where the last one ended.
async fn replay(world: &World) -> (BTreeMap<String, String>, String, i64) {
    let mut tasks: BTreeMap<String, String> =
        ["a", "b", "c", "d", "e"].map(|id| (id.into(), "none".into())).into();
    let mut run_state = String::new();
    let rows = world.audit("etl", Some("r1")).await;
    for entry in rows.iter().flat_map(|row| &row.entries) {
        let state = match &entry.task {
            Some(task) => tasks.get_mut(task.as_str()).expect("a known task"),
            None => &mut run_state,
        };
        assert_eq!(*state, entry.from, "{entry:?}");
        entry.to.clone_into(state);
    }
    (tasks, run_state, rows.len() as i64 - 1)
}

pub async fn concurrent_triggers_with_one_key_make_one_run(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let asked = NewRun { idempotency_key: Some("k".into()), ..new_run("etl", "r1") };
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (store, asked) = (Arc::clone(&world.store), asked.clone());
            tokio::spawn(async move { store.create_run(&user(), &asked).await.expect("answered") })
        })
        .collect();
    let (mut created, mut keys) = (0, vec![]);
    for caller in callers {
        match caller.await.expect("no panic") {
            CreateRunOutcome::Created(header) => {
                created += 1;
                keys.push(header.key);
            }
            CreateRunOutcome::Replayed(header) => keys.push(header.key),
        }
    }
    keys.dedup();
    assert_eq!((created, keys.len()), (1, 1));
    assert_eq!(world.store.list_runs(&RunQuery::of(tenant(), None)).await.expect("listed").total, 1);
}

pub async fn concurrent_registrations_of_one_content_make_one_version(fresh: Fresh) {
    let world = World::of(fresh);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&world.store);
            tokio::spawn(async move {
                store.register_dag(&registration(&spec("etl", "a"))).await.expect("registered")
            })
        })
        .collect();
    let mut changed = 0;
    for caller in callers {
        let registered = caller.await.expect("no panic");
        assert_eq!(registered.version.version, 1);
        changed += usize::from(registered.changed);
    }
    assert_eq!(changed, 1);
}

pub async fn concurrent_offers_of_a_token_keep_one(fresh: Fresh) {
    let world = World::of(fresh);
    let replicas: Vec<_> = (0..8)
        .map(|number| {
            let store = Arc::clone(&world.store);
            tokio::spawn(async move {
                store.admin_token(Some(&format!("token {number}"))).await.expect("answered")
            })
        })
        .collect();
    let mut kept = vec![];
    for replica in replicas {
        kept.push(replica.await.expect("no panic").expect("one was offered"));
    }
    kept.dedup();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(world.store.admin_token(None).await.expect("answered"), kept.pop());
}
