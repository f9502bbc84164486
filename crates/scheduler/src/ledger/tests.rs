//! Goal: no limit is ever exceeded, and what is given back is exactly what was taken.

use proptest::prelude::*;
use tenure_model::QueueName;
use tenure_placement::Node;

use super::*;

fn ledger(slots: u32, cpus: u64) -> Ledger {
    let mut ledger = Ledger::default();
    let pool = PoolRecord { name: PoolName::new("p"), slots, description: String::new() };
    ledger.set_limits(&[pool], &[], &nodes(&[("n", cpus)]));
    ledger
}

/// Names and processors.
fn nodes(all: &[(&str, u64)]) -> Arc<Catalog> {
    let node = |(name, cpus): &(&str, u64)| {
        let node = Node {
            capacity: Resources::default().with("cpu", cpus * 1_000).with(Resources::TASKS, 1_000_000),
            queues: BTreeSet::from([QueueName::default()]),
            reachable: true,
            ..Node::default()
        };
        (NodeId::new(name), Arc::new(node))
    };
    Arc::new(Catalog::new(all.iter().map(node)))
}

fn wish(run: i64, task: u32, cpu: u64) -> Wish {
    Wish {
        tenant: TenantId::default_tenant(),
        dag: DagNo(1),
        run: RunKey(run),
        task: TaskId::from(format!("t{task}")),
        priority: 1,
        pool: PoolName::new("p"),
        pool_slots: 1,
        request: Request::new(Resources::default().with("cpu", cpu * 1_000), BTreeMap::new()),
        history: History::default(),
        max_active_in_run: 3,
        max_active_per_dag: Some(2),
        max_active_per_run: None,
    }
}

fn key(run: i64, task: u32) -> TiKey {
    TiKey::unmapped(RunKey(run), TaskNo(task))
}

#[test]
fn each_limit_names_itself() {
    let mut ledger = ledger(4, 6);
    for task in 0..3 {
        ledger.take(key(1, task), wish(1, task, 1)).unwrap();
    }
    assert_eq!(ledger.take(key(1, 3), wish(1, 3, 1)), Err(Limit::Run(RunKey(1))));
    ledger.take(key(2, 0), wish(2, 0, 1)).unwrap();
    assert_eq!(ledger.take(key(3, 0), wish(3, 0, 1)), Err(Limit::TaskInDag(DagNo(1), TaskId::new("t0"))));
    assert_eq!(ledger.take(key(3, 9), wish(3, 9, 1)), Err(Limit::Pool(PoolName::new("p"), 1)));
    ledger.give_back(key(1, 1));
    let Err(Limit::Capacity(shape)) = ledger.take(key(3, 9), wish(3, 9, 4)) else {
        panic!("four cpus are not free")
    };
    ledger.give_back(key(1, 0));
    assert_eq!(ledger.room(&Limit::Capacity(shape)), 1);
}

#[test]
fn a_pool_that_does_not_exist_has_no_room() {
    let mut ledger = ledger(4, 4);
    let wish = Wish { pool: PoolName::new("nope"), ..wish(1, 0, 1) };
    assert_eq!(ledger.take(key(1, 0), wish), Err(Limit::Pool(PoolName::new("nope"), 1)));
}

fn share(node: &str, own: u64, free: u64) -> Share {
    let of = |cpus: u64| Resources::default().with("cpu", cpus * 1_000).with(Resources::TASKS, cpus * 1_000);
    Share { of: Common::Node(NodeId::new(node)), amount: of(own), free: of(free) }
}

#[test]
fn a_task_that_failed_on_the_only_node_this_shard_has_a_share_of_asks_for_another_first() {
    let mut ledger = Ledger::default();
    ledger.share_with_others();
    let pool = PoolRecord { name: PoolName::new("p"), slots: 9, description: String::new() };
    ledger.set_limits(&[pool], &[], &nodes(&[("a", 4), ("b", 4)]));
    ledger.pools.get_mut(&PoolName::new("p")).unwrap().share = Some(9);
    ledger.set_share(&share("a", 2, 0));
    ledger.set_share(&share("b", 0, 4));
    let again = || Wish { history: History::failed_on("a".into()), ..wish(1, 0, 1) };
    let limit = ledger.take(key(1, 0), again()).unwrap_err();
    assert_eq!(limit, Limit::BetterNode(key(1, 0)));
    assert!(ledger.limits_of(key(1, 0), &again()).contains(&limit), "it is found there again");
    let (of, one) = ledger.demand(&limit).unwrap();
    assert_eq!((of, one.get("cpu")), (Common::Node("b".into()), 1_000));

    // Nobody gives it up: it does not wait.
    ledger.set_share(&share("b", 0, 0));
    assert_eq!(ledger.take(key(1, 0), again()), Ok(NodeId::new("a")));
    ledger.give_back(key(1, 0));

    // However often a better one seems to be there, there is an end to asking.
    for _ in 0..MOST_ASKED {
        ledger.set_share(&share("b", 0, 4));
        assert_eq!(ledger.take(key(1, 0), again()), Err(Limit::BetterNode(key(1, 0))));
    }
    assert_eq!(ledger.take(key(1, 0), again()), Ok(NodeId::new("a")));
    ledger.give_back(key(1, 0));

    // It was had: the next one that asks goes there.
    ledger.set_share(&share("b", 1, 3));
    assert_eq!(ledger.take(key(1, 0), again()), Ok(NodeId::new("b")));
}

#[test]
fn what_a_run_has_asked_for_is_forgotten_with_it() {
    let mut ledger = ledger(4, 4);
    let asked = || Asked { node: NodeId::new("n"), one: Resources::default(), times: 1 };
    ledger.asked.insert(key(1, 0), asked());
    ledger.asked.insert(key(2, 0), asked());
    ledger.give_back_run(RunKey(1));
    assert_eq!(ledger.asked.keys().collect::<Vec<_>>(), [&key(2, 0)]);
}

#[test]
fn a_node_that_was_removed_and_comes_back_is_asked_for_anew() {
    let mut ledger = Ledger::default();
    ledger.share_with_others();
    ledger.set_limits(&[], &[], &nodes(&[("a", 4)]));
    ledger.set_share(&share("a", 4, 0));
    let request = || wish(1, 0, 1).request;
    assert!(ledger.cluster.choose(&request(), &History::default()).is_some());
    ledger.set_limits(&[], &[], &nodes(&[]));
    ledger.set_limits(&[], &[], &nodes(&[("a", 4)]));
    assert_eq!(ledger.cluster.choose(&request(), &History::default()), None, "nothing of it is this shard's");
    assert_eq!(ledger.cluster.attainable(&request()), Some(NodeId::new("a")));
}

proptest! {
    #[test]
    fn no_sequence_of_takes_and_returns_exceeds_a_limit(
        slots in 1..6u32,
        cpus in 1..6u64,
        steps in prop::collection::vec((1..4i64, 0..5u32, 0..3u64, any::<bool>()), 1..200),
    ) {
        let mut ledger = ledger(slots, cpus);
        for (run, task, cpu, give_back) in steps {
            if give_back {
                ledger.give_back(key(run, task));
            } else if !ledger.held.contains_key(&key(run, task)) {
                let _ = ledger.take(key(run, task), wish(run, task, cpu));
            }
            let held: Vec<&Wish> = ledger.held.values().map(|held| &held.wish).collect();
            prop_assert!(held.len() as u32 <= slots);
            prop_assert_eq!(ledger.pools[&PoolName::new("p")].used, held.len() as u32);
            for run in 1..4 {
                prop_assert!(held.iter().filter(|wish| wish.run == RunKey(run)).count() <= 3);
            }
            for task in 0..5 {
                let name = TaskId::from(format!("t{task}"));
                prop_assert!(held.iter().filter(|wish| wish.task == name).count() <= 2);
            }
            let cpu: u64 = held.iter().map(|wish| wish.request.resources.get("cpu")).sum();
            prop_assert!(cpu <= cpus * 1_000);
        }
    }
}

#[test]
fn a_quota_bounds_what_a_tenant_takes_whatever_the_shape_of_its_requests() {
    let mut ledger = ledger(99, 99);
    let pool = PoolRecord { name: PoolName::new("p"), slots: 99, description: String::new() };
    let quota = Quota { tenant: TenantId::default_tenant(), most: Resources::default().with("cpu", 3_000) };
    ledger.set_limits(&[pool], &[quota], &nodes(&[("n", 99)]));
    let ti = |run| TiKey::unmapped(RunKey(run), TaskNo(0));
    ledger.take(ti(1), wish(1, 1, 2)).unwrap();
    let too_much = ledger.take(ti(2), wish(2, 2, 2)).unwrap_err();
    assert!(matches!(too_much, Limit::Quota(..)));
    assert_eq!(ledger.room(&too_much), 0);
    ledger.take(ti(3), wish(3, 3, 1)).unwrap();
    let other = Wish { tenant: TenantId::new("other"), ..wish(4, 4, 9) };
    ledger.take(ti(4), other).unwrap();
    assert!(ledger.give_back(ti(1)).contains(&Limit::Quota(TenantId::default_tenant(), Shape::FIRST)));
    assert_eq!(ledger.room(&too_much), 1);
    let never = ledger.take(ti(5), wish(5, 5, 4)).unwrap_err();
    assert!(matches!(never, Limit::Quota(..)), "more than it may ever take");
}
