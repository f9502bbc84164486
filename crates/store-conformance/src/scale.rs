//! Goal: size is no excuse: ten thousand tasks in one run, and a history that is long.

use tenure_model::{DagSpec, TaskKind, TaskSpec, TaskState};
use tenure_store::{Pass, RunQuery, TiQuery};

use crate::Fresh;
use crate::harness::{World, new_run, now, page, pass_of, spec, tenant};

const MANY: u32 = 10_000;

pub async fn a_run_of_ten_thousand_tasks_is_created_loaded_and_finished(fresh: Fresh) {
    let world = World::of(fresh);
    let tasks = (0..MANY).map(|number| TaskSpec::new(format!("task-{number:05}"), TaskKind::Empty));
    world.register(&DagSpec::new("wide", tasks.collect())).await;
    let run = world.trigger("wide", "r1").await;
    let owner = world.owner_of("wide").await;
    let loaded = world.load(run.key).await;
    assert_eq!(loaded.tis.len(), MANY as usize);
    assert!(loaded.tis.iter().zip(0..).all(|(cached, number)| cached.task.0 == number), "in the dag's order");

    let moves: Vec<String> = loaded.tis.iter().map(|cached| format!("{}=success", cached.task_id)).collect();
    // `World::change` looks tasks up one by one; a thousand at a time keeps the fact quick.
    let mut snapshot = loaded;
    for chunk in moves.chunks(1_000) {
        let part = tenure_store::RunSnapshot {
            header: snapshot.header.clone(),
            tis: snapshot
                .tis
                .iter()
                .filter(|cached| cached.ti.state == TaskState::None)
                .take(1_000)
                .cloned()
                .collect(),
        };
        world.commit_whole(&owner, &pass_of(vec![world.change(&part, &chunk.join(" "))])).await;
        snapshot = world.load(run.key).await;
    }
    assert!(snapshot.tis.iter().all(|cached| cached.ti.state == TaskState::Success));
    let last =
        TiQuery { paging: page(2, MANY - 2, ""), ..TiQuery::of_run(tenant(), "wide".into(), "r1".into()) };
    let last = world.store.list_tis(&last).await.expect("listed");
    assert_eq!((last.items[1].task_id.as_str(), last.total), ("task-09999", u64::from(MANY)));
}

pub async fn a_deep_page_of_a_long_history_is_right(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let owner = world.owner_of("etl").await;
    for hundred in 0..10 {
        let new_runs = (0..100).map(|one| new_run("etl", &format!("r{:04}", hundred * 100 + one))).collect();
        world.commit_whole(&owner, &Pass { new_runs, ..Pass::new(now(), "owner") }).await;
    }
    let query = RunQuery { paging: page(10, 500, "-run_id"), ..RunQuery::of(tenant(), Some("etl".into())) };
    let deep = world.store.list_runs(&query).await.expect("listed");
    assert_eq!((deep.items[0].run_id.as_str(), deep.items.len(), deep.total), ("r0499", 10, 1_000));
}
