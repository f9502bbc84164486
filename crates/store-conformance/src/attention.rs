//! Goal: no intent goes unnoticed: each leaves a row in the shard that it concerns, in its own transaction.

use std::time::Duration;

use tenure_model::{RunState, ShardId};
use tenure_store::{Attention, Pass};

use crate::harness::{NODE, World, clear_of, new_run, now, registration, spec, tenant, ti, user};
use crate::{Fresh, SHARDS};

pub async fn every_intent_leaves_its_row_in_the_shard_it_concerns(fresh: Fresh) {
    let world = World::of(fresh);
    let owner = world.owner_of("etl").await;
    let (dag, run_id) = ("etl".into(), "r1".into());
    let of_dag = Attention::Dag { tenant: tenant(), dag: "etl".into() };

    world.register(&spec("etl", "a")).await;
    expect_only(&world, &owner, Some(&of_dag)).await;
    world.store.set_paused(&user(), &dag, true).await.expect("paused");
    expect_only(&world, &owner, Some(&of_dag)).await;
    let run = world.trigger("etl", "r1").await;
    let of_run = Attention::Run { run: run.key };
    expect_only(&world, &owner, Some(&of_run)).await;
    world.drive(&owner, run.key, "run=running a=failed").await;
    expect_only(&world, &owner, None).await;
    world.store.clear(&user(), &clear_of("etl", "r1", &[])).await.expect("cleared");
    expect_only(&world, &owner, Some(&of_run)).await;
    world.store.set_run_state(&user(), &dag, &run_id, RunState::Success).await.expect("ended");
    expect_only(&world, &owner, Some(&of_run)).await;
    world.store.delete_run(&user(), &dag, &run_id).await.expect("deleted");
    expect_only(&world, &owner, Some(&of_run)).await;
    world.store.delete_dag(&user(), &dag).await.expect("deleted");
    expect_only(&world, &owner, Some(&of_dag)).await;
}

/// The dag's shard has exactly this row, the others have none; then it is attended to.
async fn expect_only(world: &World, owner: &tenure_lease::Tenure, expected: Option<&Attention>) {
    let home = world.shard_of("etl").await;
    for shard in (0..SHARDS).map(ShardId) {
        let items: Vec<_> = world.attention(shard).await.into_iter().map(|item| item.what).collect();
        let expected = if shard == home { expected } else { None };
        assert_eq!(items.iter().collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "{shard}");
    }
    world.attend(owner, "etl").await;
}

pub async fn what_changes_nothing_leaves_no_row(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let owner = world.owner_of("etl").await;
    world.attend(&owner, "etl").await;
    world.register(&spec("etl", "a")).await;
    world.store.set_paused(&user(), &"etl".into(), false).await.expect("was not paused");
    let refused = world.store.create_run(&user(), &new_run("nope", "r1")).await;
    assert!(refused.is_err());
    assert_eq!(world.attention_of("etl").await, vec![]);
}

pub async fn rows_come_in_order_and_stay_until_attended(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let owner = world.owner_of("etl").await;
    world.attend(&owner, "etl").await;
    let mut runs = vec![];
    for number in 0..5 {
        runs.push(Attention::Run { run: world.trigger("etl", &format!("r{number}")).await.key });
    }
    let shard = world.shard_of("etl").await;
    let items = world.attention(shard).await;
    assert_eq!(items.iter().map(|item| item.what.clone()).collect::<Vec<_>>(), runs);
    assert!(items.is_sorted_by_key(|item| item.seq));
    let first = world.store.attention(shard, 2).await.expect("attention").items;
    assert_eq!(first, items[..2], "the limit is kept");
    assert_eq!(world.attention(shard).await, items, "reading attends to nothing");
    let pass = Pass { attended: vec![items[1].seq], ..Pass::new(now(), "owner") };
    world.commit_whole(&owner, &pass).await;
    let left: Vec<_> = world.attention(shard).await.into_iter().map(|item| item.seq).collect();
    assert_eq!(left, [0, 2, 3, 4].map(|index: usize| items[index].seq));
}

pub async fn a_stop_names_node_and_attempt(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let before = world.drive(&owner, run.key, "run=running a=running").await;
    world.attend(&owner, "etl").await;
    world.store.clear(&user(), &clear_of("etl", "r1", &[])).await.expect("cleared");
    let attempt = ti(&before, "a").ti.attempt.expect("running");
    let expected = Attention::Stop { node: NODE.into(), attempt };
    assert!(world.attention_of("etl").await.contains(&expected));
}

pub async fn wakes_fire_for_every_intent(fresh: Fresh) {
    let world = World::of(fresh);
    let mut wakes = world.store.wakes(world.shard_of("etl").await);
    wakes.borrow_and_update();
    let soon = Duration::from_secs(5);
    world.store.register_dag(&registration(&spec("etl", "a"))).await.expect("registered");
    tokio::time::timeout(soon, wakes.changed()).await.expect("woken by a registration").expect("open");
    wakes.borrow_and_update();
    world.trigger("etl", "r1").await;
    tokio::time::timeout(soon, wakes.changed()).await.expect("woken by a trigger").expect("open");
    wakes.borrow_and_update();
    world.store.set_run_state(&user(), &"etl".into(), &"r1".into(), RunState::Failed).await.expect("ended");
    tokio::time::timeout(soon, wakes.changed()).await.expect("woken by a cancel").expect("open");
}

pub async fn a_change_wakes_its_own_shard_only(fresh: Fresh) {
    let world = World::of(fresh);
    let (here, elsewhere) = (ShardId(1), ShardId(2));
    let dag = world.dags_in(&[here]).await.remove(0);
    world.register(&spec(&dag, "a")).await;
    let (mut woken, mut asleep) = (world.store.wakes(here), world.store.wakes(elsewhere));
    let rounds = 10;
    let mut disturbed = 0;
    for round in 0..rounds {
        woken.borrow_and_update();
        world.trigger(&dag, &format!("r{round}")).await;
        tokio::time::timeout(Duration::from_secs(5), woken.changed()).await.expect("woken").expect("open");
        disturbed += u32::from(asleep.has_changed().expect("open"));
        asleep.borrow_and_update();
    }
    // A store may wake anybody when it has just connected, but not every time.
    assert!(disturbed <= rounds / 5, "{elsewhere} was woken {disturbed} times for {here}");
}
