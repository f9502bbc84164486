//! Goal: tasks run where they may, and where they would rather if that can be had, also where shards share the nodes.
//! Method: nodes of several kinds, played by the test.

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rig::{Options, Owner, Rig, exec, failed, wait};
use tenure_model::{
    Affinity, DagSpec, NodeId, Outcome, Preference, QueueName, Resources, RunState, ShardId, TaskSpec,
    TenantId,
};
use tenure_store::{Common, NodeRegistration, Quota};

const SHARDS: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

/// Registers a node and connects it. `said` is like `zone=a`.
async fn node(
    rig: &Rig,
    owner: &Owner,
    name: &str,
    said: &[&str],
    change: impl FnOnce(&mut NodeRegistration),
) {
    let capacity = Resources::default().with(Resources::TASKS, 10_000);
    let mut node = NodeRegistration::new(NodeId::new(name), capacity, "test");
    let labels = said.iter().filter_map(|label| label.split_once('='));
    node.labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
    change(&mut node);
    owner.hands.connect(name, Some(vec![]));
    rig.register_node(node).await;
}

/// An owner of all shards, without the node that every rig has.
async fn owner(rig: &Rig, shards: u16) -> Owner {
    let owner = rig.owner(Options::default());
    owner.hands.disconnect("n");
    wait("all shards", || owner.owned().len() == usize::from(shards)).await;
    owner
}

fn wants(label: &str) -> Affinity {
    let (label, value) = label.split_once('=').unwrap();
    let prefer = vec![Preference { label: label.into(), value: value.into(), weight: 1 }];
    Affinity { prefer, spread: None }
}

async fn where_they_go(owner: &mut Owner, count: usize) -> BTreeMap<String, String> {
    let mut places = BTreeMap::new();
    for _ in 0..count {
        let assignment = owner.next().await;
        places.insert(assignment.task.to_string(), assignment.node.to_string());
    }
    places
}

async fn a_second_try_goes_elsewhere(shards: u16) {
    let rig = Rig::with_shards(shards).await;
    let mut owner = owner(&rig, shards).await;
    for name in ["a", "b"] {
        node(&rig, &owner, name, &[], |_| ()).await;
    }
    let task = TaskSpec { retries: 3, retry_delay: Duration::ZERO, ..exec("t") };
    rig.register(DagSpec::new("d", vec![task])).await;
    rig.trigger("d", "r").await;
    let mut before = owner.play(failed()).await.node;
    for _ in 0..2 {
        let node = owner.play(failed()).await.node;
        assert_ne!(node, before, "the node that has just failed it is avoided");
        before = node;
    }
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_follows_a_failed_one_goes_to_another_node() {
    a_second_try_goes_elsewhere(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_follows_a_failed_one_goes_to_another_node_also_where_shards_share_the_nodes() {
    a_second_try_goes_elsewhere(SHARDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_to_the_node_where_what_it_needs_has_run_and_many_go_on_to_others() {
    let rig = Rig::new().await;
    let mut owner = owner(&rig, 1).await;
    for name in ["a", "b", "c"] {
        node(&rig, &owner, name, &[&format!("name={name}")], |_| ()).await;
    }
    let first =
        |id: &str| TaskSpec { node_selector: [("name".to_owned(), "b".to_owned())].into(), ..exec(id) };
    rig.register(DagSpec::new("one", vec![first("x"), exec("y").needs(&["x"])])).await;
    rig.trigger("one", "r").await;
    assert_eq!(owner.play(Outcome::Success).await.node.as_str(), "b");
    assert_eq!(owner.play(Outcome::Success).await.node.as_str(), "b", "all three are empty");
    rig.wait_end("one", "r").await;

    let mut tasks = vec![first("x")];
    tasks.extend((0..8).map(|number| exec(&format!("y{number}")).needs(&["x"])));
    rig.register(DagSpec::new("many", tasks)).await;
    rig.trigger("many", "r").await;
    owner.play(Outcome::Success).await;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in where_they_go(&mut owner, 8).await.into_values() {
        *counts.entry(node).or_default() += 1;
    }
    let expected = [("a", 2), ("b", 4), ("c", 2)].map(|(node, count)| (node.to_owned(), count));
    assert_eq!(counts, BTreeMap::from(expected), "each takes a tenth of its node");
}

#[tokio::test(flavor = "multi_thread")]
async fn taints_queues_and_preferences_decide_where_tasks_go_also_where_shards_share_the_nodes() {
    for shards in [1, SHARDS] {
        let rig = Rig::with_shards(shards).await;
        let mut owner = owner(&rig, shards).await;
        node(&rig, &owner, "plain", &[], |_| ()).await;
        node(&rig, &owner, "fast", &["disk=ssd"], |_| ()).await;
        node(&rig, &owner, "gpu", &["kind=gpu"], |node| node.taints = ["gpu=a100".parse().unwrap()].into())
            .await;
        node(&rig, &owner, "big", &[], |node| node.queues = [QueueName::new("big")].into()).await;
        let tasks = vec![
            TaskSpec { affinity: wants("disk=ssd"), ..exec("prefers") },
            TaskSpec {
                tolerations: vec!["gpu".parse().unwrap()],
                node_selector: [("kind".to_owned(), "gpu".to_owned())].into(),
                ..exec("tolerates")
            },
            TaskSpec { queue: QueueName::new("big"), ..exec("queues") },
            TaskSpec { queue: QueueName::new("huge"), ..exec("waits") },
        ];
        rig.register(DagSpec::new("d", tasks)).await;
        rig.trigger("d", "r").await;
        let places = where_they_go(&mut owner, 3).await;
        let expected = [("prefers", "fast"), ("queues", "big"), ("tolerates", "gpu")];
        assert_eq!(
            places,
            expected.map(|(task, node)| (task.to_owned(), node.to_owned())).into(),
            "{shards}"
        );
        let told = || {
            let all = owner.scheduler.handle().status();
            all.iter().flat_map(|shard| &shard.waiting).any(|waiting| *waiting == ("node", 1))
        };
        wait("the reason is told", told).await;
        let why = rig.why(&["d"], "r").await;
        assert!(why.contains("5 nodes not serving queue huge"), "with the rig's own: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_a_dag_are_spread_over_a_label_also_where_shards_share_the_nodes() {
    for shards in [1, SHARDS] {
        let rig = Rig::with_shards(shards).await;
        let mut owner = owner(&rig, shards).await;
        for (name, zone) in [("a1", "zone=a"), ("a2", "zone=a"), ("b", "zone=b"), ("c", "zone=c")] {
            node(&rig, &owner, name, &[zone], |_| ()).await;
        }
        let affinity = Affinity { spread: Some("zone".into()), ..Affinity::default() };
        let task = |number: usize| TaskSpec { affinity: affinity.clone(), ..exec(&format!("t{number}")) };
        rig.register(DagSpec::new("d", (0..3).map(task).collect())).await;
        rig.trigger("d", "r").await;
        let places = where_they_go(&mut owner, 3).await;
        let zones: BTreeSet<&str> = places.values().map(|node| &node[..1]).collect();
        assert_eq!(zones.len(), 3, "with {shards} shards: {places:?}");
    }
}

/// How many tasks run at once is bounded by the quota, and every one of them gets its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_bounds_a_tenant_also_where_shards_share_it() {
    for shards in [1, SHARDS] {
        let rig = Rig::with_shards(shards).await;
        let mut owner = owner(&rig, shards).await;
        node(&rig, &owner, "a", &[], |_| ()).await;
        let most = Resources::default().with(Resources::TASKS, 2_000);
        let quota = Quota { tenant: TenantId::default_tenant(), most };
        rig.store.put_quota(&rig.user(), &quota).await.unwrap();
        let dags: Vec<String> = (0..8).map(|number| format!("d{number}")).collect();
        for dag in &dags {
            rig.register(DagSpec::new(dag.as_str(), vec![exec("t")])).await;
            rig.trigger(dag, "r").await;
        }
        let mut running = vec![];
        for _ in 0..2 {
            let assignment = owner.next().await;
            owner.claim(&assignment).await;
            running.push(assignment);
        }
        owner.nothing_for(Duration::from_millis(500)).await;
        let told = || {
            let all = owner.scheduler.handle().status();
            all.iter().flat_map(|shard| &shard.waiting).any(|(why, _)| *why == "quota")
        };
        wait("the reason is shown", told).await;
        let why = rig.why(&dags.iter().map(String::as_str).collect::<Vec<_>>(), "r").await;
        assert!(why.contains("takes all it may (2 tasks)"), "{why}");
        for _ in 2..dags.len() {
            owner.end(&running.remove(0), Outcome::Success).await;
            let assignment = owner.next().await;
            owner.claim(&assignment).await;
            running.push(assignment);
        }
        for assignment in running {
            owner.end(&assignment, Outcome::Success).await;
        }
        for dag in &dags {
            assert_eq!(rig.wait_end(dag, "r").await.state, RunState::Success);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_taken_away_holds_nobody_back() {
    let rig = Rig::with_shards(SHARDS).await;
    let mut owner = owner(&rig, SHARDS).await;
    node(&rig, &owner, "a", &[], |_| ()).await;
    let tenant = TenantId::default_tenant();
    let most = Resources::default().with(Resources::TASKS, 0);
    rig.store.put_quota(&rig.user(), &Quota { tenant: tenant.clone(), most }).await.unwrap();
    rig.register(DagSpec::new("d", vec![exec("t")])).await;
    rig.trigger("d", "r").await;
    owner.nothing_for(Duration::from_millis(500)).await;
    rig.store.delete_quota(&rig.user(), &tenant).await.unwrap();
    owner.play(Outcome::Success).await;
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn room_that_falls_free_goes_to_the_more_important_who_has_waited_not_to_a_newcomer() {
    let rig = Rig::with_shards(1).await;
    let mut owner = owner(&rig, 1).await;
    node(&rig, &owner, "a", &[], |node| node.capacity = Resources::default().with(Resources::TASKS, 1_000))
        .await;
    let after = TaskSpec { needs: vec!["first".into()], ..exec("second") };
    rig.register(DagSpec::new("low", vec![exec("first"), after])).await;
    rig.register(DagSpec::new("high", vec![TaskSpec { priority: 9, ..exec("t") }])).await;
    rig.trigger("low", "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    rig.trigger("high", "r").await;
    let waits = || owner.status().waiting.contains(&("node", 1));
    wait("the important one to wait", waits).await;
    rig.store.record_presence("test", &["a".into()]).await.unwrap();
    let why = rig.why(&["high"], "r").await;
    assert!(why.contains("busy"), "{why}");
    // In one pass: room falls free, and the next task of the same dag becomes ready.
    owner.end(&first, Outcome::Success).await;
    assert_eq!(owner.next().await.dag.as_str(), "high");
}

/// It asked for a node in vain, and its task went to another one: it does not want to hear of the first for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_task_has_gone_elsewhere_is_taken_off_the_list_of_those_who_want_the_node() {
    let rig = Rig::with_shards(SHARDS).await;
    let mut owner = owner(&rig, SHARDS).await;
    let one = |node: &mut NodeRegistration| {
        node.capacity = Resources::default().with(Resources::TASKS, 1_000);
    };
    node(&rig, &owner, "a", &[], one).await;
    let shard_of = |dag: &String| ShardId::of(&TenantId::default_tenant(), &dag.as_str().into(), SHARDS);
    let dags: Vec<String> = (0..100).map(|number| format!("d{number}")).collect();
    let other = dags.iter().find(|dag| shard_of(dag) != shard_of(&dags[0])).unwrap();
    for dag in [&dags[0], other] {
        rig.register(DagSpec::new(dag.as_str(), vec![exec("t")])).await;
    }
    rig.trigger(&dags[0], "r").await;
    let first = owner.next().await;
    owner.claim(&first).await;
    rig.trigger(other, "r").await;
    let wants_a = async || {
        let shares = rig.store.shard_snapshot(shard_of(other)).await.unwrap().shares;
        shares.iter().any(|share| share.of == Common::Node("a".into()))
    };
    let wanted = async |yes: bool| {
        let until = rig.clock.boottime() + PATIENCE;
        while wants_a().await != yes {
            assert!(
                rig.clock.boottime() < until,
                "it should {} be on the list",
                if yes { "" } else { "not" }
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    wanted(true).await;
    node(&rig, &owner, "b", &[], one).await;
    let second = owner.next().await;
    assert_eq!(second.node.as_str(), "b");
    owner.claim(&second).await;
    owner.end(&first, Outcome::Success).await;
    wanted(false).await;
}
