//! Goal: what is registered is immutable, numbered and remembered; what users chose stays chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_model::{PoolName, Resources, RunState, Schedule};
use tenure_store::{
    AuditQuery, DagRegistration, NodeRegistration, Paging, PoolRecord, Quota, RunQuery, TiQuery,
};

use crate::Fresh;
use crate::harness::{
    ACTOR, NODE, World, assert_conflict, assert_not_found, now, registration, spec, tenant, user,
};

pub async fn the_same_content_changes_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    let first = world.register(&spec("etl", "a b<a")).await;
    assert!(first.changed && first.new_dag);
    assert_eq!((first.version.version, &first.version.hash), (1, &spec("etl", "a b<a").hash()));
    let audit = world.audit("etl", None).await;
    let again = world.register(&spec("etl", "a b<a")).await;
    assert!(!again.changed && !again.new_dag);
    assert_eq!(again.version, first.version);
    assert_eq!(world.audit("etl", None).await, audit);
}

pub async fn new_content_is_the_next_version_and_the_old_one_stays_readable(fresh: Fresh) {
    let world = World::of(fresh);
    let (old, new) = (spec("etl", "a b<a"), spec("etl", "a b<a c<b"));
    world.register(&old).await;
    let second = world.register(&new).await;
    assert!(second.changed && !second.new_dag);
    assert_eq!((second.version.version, &*second.version.spec), (2, &new));
    let read = |version| {
        let store = world.store.clone();
        async move { store.dag_version(&tenant(), &"etl".into(), version).await.expect("readable").spec }
    };
    assert_eq!((&*read(1).await, &*read(2).await), (&old, &new));
    let in_force =
        world.store.get_version(&tenant(), &"etl".into(), None).await.expect("read").expect("there");
    assert_eq!(in_force, second.version);
    assert_eq!((in_force.source.as_str(), in_force.origin.as_str()), ("id: etl", "etl.yaml"));
    let view = world.store.get_dag(&tenant(), &"etl".into()).await.expect("read").expect("there");
    assert_eq!((view.version, &*view.spec, &view.hash), (2, &new, &new.hash()));
}

pub async fn going_back_to_old_content_is_a_new_version(fresh: Fresh) {
    let world = World::of(fresh);
    for tasks in ["a", "b"] {
        world.register(&spec("etl", tasks)).await;
    }
    let back = world.register(&spec("etl", "a")).await;
    assert!(back.changed);
    assert_eq!(back.version.version, 3);
}

pub async fn a_dag_that_exists_keeps_what_its_users_chose(fresh: Fresh) {
    let world = World::of(fresh);
    let paused = DagRegistration { paused_if_new: true, ..registration(&spec("etl", "a")) };
    world.store.register_dag(&paused).await.expect("registered");
    let is_paused = || async {
        world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("there").paused
    };
    assert!(is_paused().await);
    world.register(&spec("etl", "a b")).await;
    assert!(is_paused().await, "a registration does not unpause");
    world.store.set_paused(&user(), &"etl".into(), false).await.expect("unpaused");
    let again = DagRegistration { paused_if_new: true, ..registration(&spec("etl", "a b c")) };
    world.store.register_dag(&again).await.expect("registered");
    assert!(!is_paused().await, "a registration does not pause");
}

pub async fn a_new_dag_has_its_shard_anchor_and_next_tick(fresh: Fresh) {
    let world = World::of(fresh);
    let mut hourly = spec("etl", "a");
    hourly.schedule = Schedule::Every { interval: Duration::from_secs(3600) };
    let request = registration(&hourly);
    world.store.register_dag(&request).await.expect("registered");
    let dag = world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("there");
    assert_eq!((dag.shard, dag.version, dag.paused), (world.shard_of("etl").await, 1, false));
    assert_eq!((dag.progress.anchor, dag.progress.last_tick), (Some(request.trigger.at), None));
    let view = world.store.get_dag(&tenant(), &"etl".into()).await.expect("read").expect("there");
    assert_eq!((view.registered_at, view.updated_at), (request.trigger.at, request.trigger.at));
    assert!(view.next_tick.is_some_and(|tick| tick > request.trigger.at), "{:?}", view.next_tick);

    hourly.description = Some("changed".into());
    let later = registration(&hourly);
    world.store.register_dag(&later).await.expect("registered");
    let view = world.store.get_dag(&tenant(), &"etl".into()).await.expect("read").expect("there");
    assert_eq!((view.registered_at, view.updated_at), (request.trigger.at, later.trigger.at));
    let dag = world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("there");
    assert_eq!(dag.progress.anchor, Some(request.trigger.at), "the anchor is that of the first version");
}

pub async fn pausing_is_remembered_and_audited(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    world.store.set_paused(&user(), &"etl".into(), true).await.expect("paused");
    let dag = world.store.load_dag(&tenant(), &"etl".into()).await.expect("loaded").expect("there");
    assert!(dag.paused);
    world.store.set_paused(&user(), &"etl".into(), false).await.expect("unpaused");
    let rows = world.audit("etl", None).await;
    let events: Vec<&str> =
        rows.iter().flat_map(|row| &row.entries).map(|entry| entry.event.as_str()).collect();
    assert_eq!(events, ["registered", "paused", "unpaused"]);
    assert!(
        rows.iter().all(|row| row.actor == ACTOR && row.epoch.is_none() && row.run_id.is_none()),
        "{rows:?}"
    );
}

pub async fn an_unknown_dag_is_not_found(fresh: Fresh) {
    let world = World::of(fresh);
    assert_not_found(world.store.set_paused(&user(), &"nope".into(), true).await, "nope");
    assert_not_found(world.store.delete_dag(&user(), &"nope".into()).await, "nope");
    assert_eq!(world.store.load_dag(&tenant(), &"nope".into()).await.expect("answered"), None);
}

pub async fn a_deleted_dag_is_gone_with_all_it_had_but_its_audit(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    let kept = world.run_of("kept", "a").await;
    world.drive(&owner, run.key, "a=success run=success").await;
    world.store.delete_dag(&user(), &"etl".into()).await.expect("deleted");

    assert_eq!(world.store.load_dag(&tenant(), &"etl".into()).await.expect("answered"), None);
    assert!(world.store.load_runs(&[run.key]).await.expect("answered").runs.is_empty());
    assert_not_found(world.store.dag_version(&tenant(), &"etl".into(), 1).await, "etl");
    let of_dag = RunQuery::of(tenant(), Some("etl".into()));
    assert_eq!(world.store.list_runs(&of_dag).await.expect("listed").total, 0);
    let tis = TiQuery::of_run(tenant(), "etl".into(), "r1".into());
    assert_eq!(world.store.list_tis(&tis).await.expect("listed").total, 0);
    let rows = world.audit("etl", None).await;
    assert_eq!(rows.last().expect("a row").entries[0].event, "deleted");
    assert!(rows.iter().any(|row| row.run_id.is_some()), "the history of its runs stays");
    assert_eq!(world.load(kept.key).await.tis.len(), 1, "another dag is untouched");

    let reborn = world.register(&spec("etl", "a")).await;
    assert!(reborn.new_dag);
    assert_ne!(world.trigger("etl", "r1").await.key, run.key);
}

pub async fn a_dag_with_an_active_run_is_not_deleted(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a").await;
    assert_conflict(world.store.delete_dag(&user(), &"etl".into()).await, "etl");
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running").await;
    assert_conflict(world.store.delete_dag(&user(), &"etl".into()).await, "etl");
    assert_eq!(world.load(run.key).await.header.state, RunState::Running);
}

pub async fn quotas_come_and_go_and_every_shard_hears_of_it(fresh: Fresh) {
    let world = World::of(fresh);
    let quota = |tenant: &str, gpus: u64| Quota {
        tenant: tenant.into(),
        most: Resources::default().with("gpu", gpus * 1_000),
    };
    let before = world.limits_version().await;
    for put in [quota("fraud", 2), quota("ads", 1), quota("fraud", 3)] {
        world.store.put_quota(&user(), &put).await.expect("put");
    }
    let both = vec![quota("ads", 1), quota("fraud", 3)];
    assert_eq!(world.store.list_quotas().await.expect("listed"), both);
    assert_eq!(world.store.limits().await.expect("limits").quotas, both);
    assert_eq!(world.limits_version().await, before + 3);
    world.store.delete_quota(&user(), &"fraud".into()).await.expect("deleted");
    assert_not_found(world.store.delete_quota(&user(), &"fraud".into()).await, "fraud");
    assert_eq!(world.store.list_quotas().await.expect("listed"), vec![quota("ads", 1)]);
    assert_eq!(world.store.limits().await.expect("limits").quotas, vec![quota("ads", 1)]);
}

pub async fn pools_come_and_go_but_the_default_stays(fresh: Fresh) {
    let world = World::of(fresh);
    let pool = |name: &str, slots| PoolRecord { name: name.into(), slots, description: "for tests".into() };
    world.store.put_pool(&user(), &pool("gpu", 2)).await.expect("put");
    world.store.put_pool(&user(), &pool("gpu", 3)).await.expect("put");
    world.store.put_pool(&user(), &pool(PoolName::DEFAULT, 64)).await.expect("put");
    let pools = world.store.list_pools().await.expect("listed");
    assert_eq!(pools, vec![pool(PoolName::DEFAULT, 64), pool("gpu", 3)]);
    assert_eq!(world.store.limits().await.expect("limits").pools, pools);
    world.store.delete_pool(&user(), &"gpu".into()).await.expect("deleted");
    assert_not_found(world.store.delete_pool(&user(), &"gpu".into()).await, "gpu");
    assert_conflict(world.store.delete_pool(&user(), &PoolName::default_pool()).await, PoolName::DEFAULT);
    assert_eq!(world.store.limits().await.expect("limits").pools.len(), 1);
    let everything =
        AuditQuery { tenant: tenant(), dag: None, run: None, after_seq: None, paging: Paging::default() };
    let rows = world.store.list_audit(&everything).await.expect("listed").items;
    let about: Vec<_> = rows.iter().flat_map(|row| &row.entries).map(|entry| entry.event.as_str()).collect();
    assert_eq!(about, ["pool_set", "pool_set", "pool_set", "pool_deleted"]);
}

pub async fn nodes_reappear_with_what_they_have(fresh: Fresh) {
    let world = World::of(fresh);
    let node = |cpu| NodeRegistration {
        labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        taints: BTreeSet::from(["gpu=a100".parse().expect("a taint"), "old".parse().expect("a taint")]),
        queues: BTreeSet::from(["big".into(), "default".into()]),
        ..NodeRegistration::new(NODE.into(), Resources::default().with(Resources::CPU, cpu), "0.1.0")
    };
    let first = world.store.register_node(&node(1_000), now()).await.expect("registered");
    assert_eq!((first.capacity.get(Resources::CPU), first.drain), (1_000, None));
    let at = now();
    let again = world.store.register_node(&node(2_000), at).await.expect("registered");
    assert_eq!((again.capacity.get(Resources::CPU), again.registered_at), (2_000, at));
    assert_eq!(again.labels["zone"], "a");
    assert_eq!((&again.taints, &again.queues), (&node(1).taints, &node(1).queues));
    assert_eq!(world.store.limits().await.expect("limits").nodes, vec![again.clone()]);
    assert_eq!(world.store.list_nodes().await.expect("listed"), vec![again]);
}

pub async fn the_first_admin_token_that_is_offered_is_kept(fresh: Fresh) {
    let world = World::of(fresh);
    let token = async |offered| world.store.admin_token(offered).await.expect("answered");
    assert_eq!(token(None).await, None);
    assert_eq!(token(Some("first")).await.as_deref(), Some("first"));
    assert_eq!(token(Some("second")).await.as_deref(), Some("first"));
    assert_eq!(token(None).await.as_deref(), Some("first"));
}
