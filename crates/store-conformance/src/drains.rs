//! Goal: what an operator has decided about a node outlives everything, and only the holder of its scope moves a drain
//! on. Beside it: what is bound where is counted, and who hears whom is listed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_model::{NodeId, Resources, TaskState};
use tenure_store::{
    AuditQuery, DagActivity, Drain, DrainStage, NodeRecord, NodeRegistration, Occupancy, Paging, TiQuery,
    Waiting, drain_scope,
};

use crate::Fresh;
use crate::harness::{
    ACTOR, NODE, World, assert_conflict, assert_fenced, assert_not_found, now, spec, tenant, user,
};

async fn register(world: &World, cpu: u64) -> NodeRecord {
    let node = NodeRegistration::new(NODE.into(), Resources::default().with(Resources::CPU, cpu), "1");
    world.store.register_node(&node, now()).await.expect("registered")
}

fn in_minutes(minutes: i64) -> Timestamp {
    now() + SignedDuration::from_mins(minutes)
}

async fn drain(world: &World, deadline: Timestamp) -> Drain {
    let record = world.store.drain_node(&user(), &NODE.into(), deadline).await.expect("drained");
    record.drain.expect("it is being drained")
}

async fn stored(world: &World) -> Option<Drain> {
    let nodes = world.store.limits().await.expect("limits").nodes;
    assert_eq!(world.store.list_nodes().await.expect("listed"), nodes);
    nodes.into_iter().next().expect("a node").drain
}

pub async fn a_drain_is_kept_and_asking_again_moves_its_deadline(fresh: Fresh) {
    let world = World::of(fresh);
    assert_not_found(world.store.drain_node(&user(), &NODE.into(), in_minutes(10)).await, NODE);
    assert_not_found(world.store.undrain_node(&user(), &NODE.into()).await, NODE);
    assert_eq!(register(&world, 1_000).await.drain, None);
    let deadline = in_minutes(10);
    let first = drain(&world, deadline).await;
    assert_eq!((first.deadline, first.by.as_str(), first.stage), (deadline, ACTOR, DrainStage::Finishing));
    assert_eq!(stored(&world).await, Some(first.clone()));
    let later = in_minutes(20);
    let again = drain(&world, later).await;
    assert_eq!(again, Drain { deadline: later, ..first });
    // An agent that starts again, even with more to offer, is no reason to send it work.
    assert_eq!(register(&world, 2_000).await.drain, Some(again.clone()));
    assert_eq!(register(&world, 2_000).await.drain, Some(again.clone()));
    assert_eq!(stored(&world).await, Some(again));
    assert_eq!(world.store.undrain_node(&user(), &NODE.into()).await.expect("taken back").drain, None);
    assert_eq!(stored(&world).await, None);
}

pub async fn drains_concern_every_shard_and_are_audited(fresh: Fresh) {
    let world = World::of(fresh);
    register(&world, 1_000).await;
    let before = world.limits_version().await;
    drain(&world, in_minutes(1)).await;
    world.store.undrain_node(&user(), &NODE.into()).await.expect("taken back");
    world.store.undrain_node(&user(), &NODE.into()).await.expect("nothing to do");
    assert_eq!(world.limits_version().await, before + 2);
    let all =
        AuditQuery { tenant: tenant(), dag: None, run: None, after_seq: None, paging: Paging::default() };
    let rows = world.store.list_audit(&all).await.expect("listed").items;
    let told: Vec<_> = rows
        .iter()
        .flat_map(|row| {
            row.entries.iter().map(|entry| (row.actor.as_str(), entry.event.as_str(), &entry.node))
        })
        .collect();
    let node = Some(NodeId::new(NODE));
    assert_eq!(told, [(ACTOR, "node_drained", &node), (ACTOR, "node_undrained", &node)]);
}

pub async fn only_the_holder_of_its_scope_moves_a_drain_on(fresh: Fresh) {
    let world = World::of(fresh);
    register(&world, 1_000).await;
    let Drain { since, .. } = drain(&world, in_minutes(1)).await;
    let node: NodeId = NODE.into();
    let stranger = world.leader(drain_scope(&"other".into())).await;
    let guard = stranger.guard().expect("a long lease");
    let refused = world.store.advance_drain(&guard, &node, since, DrainStage::Stopping).await;
    assert_conflict(refused, stranger.scope().as_str());

    let holder = world.leader(drain_scope(&node)).await;
    let guard = holder.guard().expect("a long lease");
    let advance = async |since, to| world.store.advance_drain(&guard, &node, since, to).await;
    let before = world.limits_version().await;
    assert!(!advance(since - SignedDuration::from_secs(1), DrainStage::Stopping).await.expect("another one"));
    assert!(advance(since, DrainStage::Stopping).await.expect("moved on"));
    assert!(!advance(since, DrainStage::Stopping).await.expect("it has come that far"));
    assert_eq!(stored(&world).await.expect("a drain").stage, DrainStage::Stopping);
    assert_eq!(world.limits_version().await, before + 1, "owners are told once");

    world.heir_of(&holder).await;
    assert_fenced(advance(since, DrainStage::Drained).await);
    assert_eq!(stored(&world).await.expect("a drain").stage, DrainStage::Stopping);
    world.store.undrain_node(&user(), &node).await.expect("whoever carries it out");
    assert_eq!(stored(&world).await, None);
}

pub async fn what_is_bound_is_counted_by_node_task_and_state(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(world.store.occupancy().await.expect("counted"), []);
    world.register(&spec("etl", "a b c")).await;
    let owner = world.owner_of("etl").await;
    for run in ["r1", "r2"] {
        let key = world.trigger("etl", run).await.key;
        world.drive(&owner, key, "run=running a=running b=queued c=scheduled").await;
    }
    let ended = world.trigger("etl", "r3").await.key;
    world.drive(&owner, ended, "run=running a=running").await;
    world.drive(&owner, ended, "a=success").await;
    let bound = |task: &str, state| Occupancy {
        node: NODE.into(),
        tenant: tenant(),
        dag: "etl".into(),
        version: 1,
        task: task.into(),
        state,
        count: 2,
    };
    let expected = [bound("a", TaskState::Running), bound("b", TaskState::Queued)];
    assert_eq!(world.store.occupancy().await.expect("counted"), expected);

    let waits = Waiting { tenant: tenant(), dag: "etl".into(), version: 1, task: "c".into(), count: 2 };
    assert_eq!(world.store.waiting().await.expect("counted"), [waits]);

    let on = async |node: &str| {
        let query = TiQuery {
            dag: None,
            run: None,
            bound_to: Some(node.into()),
            ..TiQuery::of_run(tenant(), "etl".into(), "r1".into())
        };
        let page = world.store.list_tis(&query).await.expect("listed");
        assert_eq!(page.items.len() as u64, page.total);
        page.items.iter().map(|ti| format!("{}.{}", ti.run_id, ti.task_id)).collect::<Vec<_>>()
    };
    assert_eq!(on(NODE).await, ["r1.a", "r1.b", "r2.a", "r2.b"]);
    assert!(on("elsewhere").await.is_empty());
}

pub async fn how_busy_dags_are_is_told_for_those_that_exist(fresh: Fresh) {
    let world = World::of(fresh);
    let owner = world.owner_of("etl").await;
    for dag in ["etl", "idle"] {
        world.register(&spec(dag, "a")).await;
    }
    world.store.set_paused(&user(), &"idle".into(), true).await.expect("paused");
    for (run, moves) in [("r1", "run=running"), ("r2", "run=running"), ("r3", "run=success"), ("r4", "")] {
        let key = world.trigger("etl", run).await.key;
        world.drive(&owner, key, moves).await;
    }
    let asked = ["idle", "gone", "etl"].map(|dag| (tenant(), dag.into()));
    let told = world.store.dag_activity(&asked).await.expect("answered");
    let busy = |dag: &str, paused, running_runs| DagActivity {
        tenant: tenant(),
        dag: dag.into(),
        paused,
        running_runs,
    };
    assert_eq!(told, [busy("etl", false, 2), busy("idle", true, 0)]);
    assert_eq!(world.store.dag_activity(&[]).await.expect("answered"), []);
}

pub async fn who_hears_whom_is_listed(fresh: Fresh) {
    let world = World::of(fresh);
    let nodes = |names: &[&str]| names.iter().map(NodeId::new).collect::<Vec<_>>();
    world.store.record_presence("replica-2", &nodes(&["n2"])).await.expect("recorded");
    world.store.record_presence("replica-1", &nodes(&["n1", "n2"])).await.expect("recorded");
    let heard = world.store.list_presence(Duration::from_secs(600)).await.expect("listed");
    let told: Vec<_> = heard.iter().map(|view| (view.replica.as_str(), view.nodes.clone())).collect();
    assert_eq!(told, [("replica-1", nodes(&["n1", "n2"])), ("replica-2", nodes(&["n2"]))]);
    let old = async {
        while !world.store.list_presence(Duration::from_millis(20)).await.expect("listed").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), old).await.expect("twenty milliseconds pass");
}
