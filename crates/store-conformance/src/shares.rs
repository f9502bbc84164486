//! Goal: shards divide what they share between them, and never into more than there is.

use std::sync::Arc;

use tenure_lease::{Scope, Tenure};
use tenure_model::{Resources, ShardId};
use tenure_store::{
    Attention, Bid, CONTROLLER_SCOPE, Common, NodeRegistration, Pass, PoolRecord, Quota, Share, StoreError,
};

use crate::harness::{World, assert_conflict, assert_fenced, now, user};
use crate::{Fresh, SHARDS};

fn gpu() -> Common {
    Common::Pool("gpu".into())
}

fn n1() -> Common {
    Common::Node("n1".into())
}

/// `cpu=2 tasks=1`, in whole units.
fn amounts(text: &str) -> Resources {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("name=amount"));
    pairs.fold(Resources::default(), |all, (name, amount)| {
        all.with(name, 1_000 * amount.parse::<u64>().expect("a number"))
    })
}

/// In whole units, without zeros.
fn shown(resources: &Resources) -> String {
    let parts = resources.0.iter().filter(|(_, amount)| **amount > 0);
    parts.map(|(name, amount)| format!("{name}={}", amount / 1_000)).collect::<Vec<_>>().join(" ")
}

async fn pool_with(world: &World, slots: u32) {
    let pool = PoolRecord { name: "gpu".into(), slots, description: String::new() };
    world.store.put_pool(&user(), &pool).await.expect("put");
}

async fn node_with(world: &World, capacity: &str) {
    let node = NodeRegistration::new("n1".into(), amounts(capacity), "1");
    world.store.register_node(&node, now()).await.expect("registered");
}

async fn trade(world: &World, owner: &Tenure, of: Common, wish: &str) -> Result<Share, StoreError> {
    let bid = Bid { of: of.clone(), wish: amounts(wish), least: Resources::default() };
    let mut shares = world.store.trade_shares(&owner.guard().expect("a long lease"), &[bid]).await?;
    let share = shares.pop().expect("one for each bid");
    assert_eq!((shares.len(), &share.of), (0, &of));
    Ok(share)
}

/// The new share and what is left of it for anybody, as text.
async fn bid(world: &World, shard: u16, of: Common, wish: &str) -> (String, String) {
    let owner = world.owner(ShardId(shard)).await;
    let share = trade(world, &owner, of, wish).await.expect("traded");
    (shown(&share.amount), shown(&share.free))
}

/// All shares there are, by shard, as an owner that takes over would find them.
async fn held(world: &World, of: &Common) -> Vec<Resources> {
    let mut held = vec![];
    for shard in (0..SHARDS).map(ShardId) {
        let snapshot = world.store.shard_snapshot(shard).await.expect("a snapshot");
        let share = snapshot.shares.into_iter().find(|share| share.of == *of);
        held.push(share.map(|share| share.amount).unwrap_or_default());
    }
    held
}

async fn attention(world: &World, shard: u16) -> Vec<Attention> {
    let items = world.attention(ShardId(shard)).await;
    items.into_iter().map(|item| item.what).filter(|what| matches!(what, Attention::Shares { .. })).collect()
}

async fn attend(world: &World) {
    for shard in (0..SHARDS).map(ShardId) {
        let owner = world.owner(shard).await;
        let attended = world.attention(shard).await.iter().map(|item| item.seq).collect();
        world.commit_whole(&owner, &Pass { attended, ..Pass::new(now(), "owner") }).await;
    }
}

fn both(amount: &str, free: &str) -> (String, String) {
    (amount.into(), free.into())
}

pub async fn a_bid_takes_from_what_is_free_and_a_lower_one_gives_back(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 8).await;
    assert_eq!(bid(&world, 0, gpu(), "slots=5").await, both("slots=5", "slots=3"));
    assert_eq!(bid(&world, 1, gpu(), "slots=5").await, both("slots=3", ""), "as far as what is free allows");
    assert_eq!(bid(&world, 0, gpu(), "slots=1").await, both("slots=1", "slots=4"));
    assert_eq!(bid(&world, 1, gpu(), "slots=5").await, both("slots=5", "slots=2"));
    assert_eq!(bid(&world, 1, gpu(), "").await, both("", "slots=7"));

    let quota = Quota { tenant: "fraud".into(), most: amounts("gpu=2 tasks=9") };
    let of = || Common::Quota("fraud".into());
    world.store.put_quota(&user(), &quota).await.expect("put");
    assert_eq!(bid(&world, 0, of(), "gpu=2 tasks=2").await, both("gpu=2 tasks=2", "tasks=7"));
    assert_eq!(bid(&world, 1, of(), "gpu=1 tasks=1").await, both("tasks=1", "tasks=6"));
    world.store.delete_quota(&user(), &"fraud".into()).await.expect("deleted");
    assert_eq!(
        held(&world, &of()).await,
        vec![Resources::default(); SHARDS.into()],
        "of nothing there are no shares"
    );

    node_with(&world, "cpu=4 tasks=10").await;
    assert_eq!(bid(&world, 2, n1(), "cpu=3 tasks=2").await, both("cpu=3 tasks=2", "cpu=1 tasks=8"));
    assert_eq!(bid(&world, 3, n1(), "cpu=2 tasks=2").await, both("cpu=1 tasks=2", "tasks=6"));
    assert_eq!(bid(&world, 3, n1(), "gpu=1").await, both("", "cpu=1 tasks=8"), "a node has what it has");
}

pub async fn several_bids_are_answered_in_order(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 2).await;
    node_with(&world, "cpu=4").await;
    let owner = world.owner(ShardId(1)).await;
    let bids = [
        Bid { of: n1(), wish: amounts("cpu=1"), least: Resources::default() },
        Bid { of: gpu(), wish: amounts("slots=2"), least: amounts("slots=2") },
        Bid { of: Common::Pool("nope".into()), wish: amounts("slots=2"), least: amounts("slots=2") },
    ];
    let guard = owner.guard().expect("a long lease");
    let shares = world.store.trade_shares(&guard, &bids).await.expect("traded");
    let told: Vec<_> = shares.iter().map(|share| (share.of.key(), shown(&share.amount))).collect();
    let expected = [("node/n1", "cpu=1"), ("pool/gpu", "slots=2"), ("pool/nope", "")];
    assert_eq!(told, expected.map(|(of, amount)| (of.to_owned(), amount.to_owned())));
    assert_eq!(world.store.trade_shares(&guard, &[]).await.expect("nothing to do"), vec![]);
}

pub async fn an_owner_that_takes_over_finds_its_shares(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 8).await;
    node_with(&world, "cpu=4").await;
    bid(&world, 1, gpu(), "slots=2").await;
    bid(&world, 1, n1(), "cpu=1").await;
    bid(&world, 2, gpu(), "slots=3").await;
    let mut shares = world.store.shard_snapshot(ShardId(1)).await.expect("a snapshot").shares;
    shares.sort_by(|one, other| one.of.cmp(&other.of));
    let told: Vec<_> =
        shares.iter().map(|share| (share.of.clone(), shown(&share.amount), shown(&share.free))).collect();
    let slots = (gpu(), "slots=2".to_owned(), "slots=3".to_owned());
    assert_eq!(told, [slots, (n1(), "cpu=1".to_owned(), "cpu=3".to_owned())]);
    assert_eq!(world.store.shard_snapshot(ShardId(0)).await.expect("a snapshot").shares, vec![]);
}

pub async fn a_deposed_owner_trades_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 8).await;
    let paused = world.owner(ShardId(1)).await;
    trade(&world, &paused, gpu(), "slots=5").await.expect("traded");
    let guard = paused.guard().expect("it leads");
    world.heir_of(&paused).await;
    for wish in ["slots=1", "slots=8"] {
        let bid = Bid { of: gpu(), wish: amounts(wish), least: Resources::default() };
        assert_fenced(world.store.trade_shares(&guard, &[bid]).await);
    }
    assert_eq!(shown(&held(&world, &gpu()).await[1]), "slots=5");
}

pub async fn only_an_owner_of_a_shard_trades(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 8).await;
    let controller = world.leader(Scope::new(CONTROLLER_SCOPE)).await;
    assert_conflict(trade(&world, &controller, gpu(), "slots=1").await, CONTROLLER_SCOPE);
}

pub async fn an_unmet_bid_tells_those_that_hold_some(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 4).await;
    node_with(&world, "cpu=4").await;
    bid(&world, 0, gpu(), "slots=3").await;
    bid(&world, 1, gpu(), "slots=1").await;
    bid(&world, 2, n1(), "cpu=1").await;
    attend(&world).await;
    bid(&world, 3, n1(), "cpu=2").await;
    assert_eq!(attention(&world, 2).await, vec![], "there was enough");
    bid(&world, 3, gpu(), "slots=1").await;
    assert_eq!(attention(&world, 0).await, [Attention::Shares { of: gpu(), given_back: false }]);
    assert_eq!(attention(&world, 1).await, [Attention::Shares { of: gpu(), given_back: false }]);
    assert_eq!(attention(&world, 2).await, vec![], "it holds none");
    assert_eq!(attention(&world, 3).await, vec![], "it knows");
}

pub async fn what_is_given_back_is_told_to_those_that_want_it(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 4).await;
    bid(&world, 0, gpu(), "slots=4").await;
    bid(&world, 1, gpu(), "slots=1").await;
    bid(&world, 2, gpu(), "").await;
    attend(&world).await;
    let mut wakes = world.store.wakes(ShardId(1));
    wakes.borrow_and_update();
    bid(&world, 0, gpu(), "slots=2").await;
    assert_eq!(attention(&world, 1).await, [Attention::Shares { of: gpu(), given_back: true }]);
    assert_eq!(attention(&world, 2).await, vec![], "it wants none");
    let soon = std::time::Duration::from_secs(5);
    tokio::time::timeout(soon, wakes.changed()).await.expect("woken").expect("open");

    attend(&world).await;
    assert_eq!(bid(&world, 1, gpu(), "slots=1").await, both("slots=1", "slots=1"));
    bid(&world, 0, gpu(), "").await;
    assert_eq!(attention(&world, 1).await, vec![], "it has what it wanted");
}

pub async fn of_what_is_not_there_nobody_has_a_share(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(bid(&world, 0, gpu(), "slots=1").await, both("", ""));
    assert_eq!(bid(&world, 0, n1(), "cpu=1").await, both("", ""));
    pool_with(&world, 4).await;
    bid(&world, 0, gpu(), "slots=3").await;
    world.store.delete_pool(&user(), &"gpu".into()).await.expect("deleted");
    assert_eq!(bid(&world, 0, gpu(), "slots=3").await, both("", ""));
}

pub async fn what_a_shard_has_is_not_taken_when_there_is_less(fresh: Fresh) {
    let world = World::of(fresh);
    pool_with(&world, 8).await;
    bid(&world, 0, gpu(), "slots=6").await;
    bid(&world, 1, gpu(), "slots=2").await;
    pool_with(&world, 4).await;
    assert_eq!(bid(&world, 0, gpu(), "slots=7").await, both("slots=6", ""), "its tasks run");
    assert_eq!(bid(&world, 1, gpu(), "slots=3").await, both("slots=2", ""));
    assert_eq!(bid(&world, 0, gpu(), "slots=1").await, both("slots=1", "slots=1"));
}

pub async fn shares_never_exceed_what_there_is_whoever_bids(fresh: Fresh) {
    const TOTAL: u64 = 10;
    let world = Arc::new(World::of(fresh));
    pool_with(&world, TOTAL as u32).await;
    node_with(&world, "cpu=10 tasks=10").await;
    for shard in 0..SHARDS {
        world.owner(ShardId(shard)).await;
    }
    for round in 0..20 {
        let bidders: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let world = Arc::clone(&world);
                // More than there is in every second round, and some of it back in the others.
                let most = if round % 2 == 0 { 10 } else { 4 };
                let [slots, cpu, tasks] = world.entropy.bytes::<3>().map(|byte| u64::from(byte) % (most + 1));
                tokio::spawn(async move {
                    bid(&world, shard, gpu(), &format!("slots={slots}")).await;
                    bid(&world, shard, n1(), &format!("cpu={cpu} tasks={tasks}")).await;
                })
            })
            .collect();
        for bidder in bidders {
            bidder.await.expect("no panic");
        }
        for (of, name) in [(gpu(), "slots"), (n1(), "cpu"), (n1(), "tasks")] {
            let shares = held(&world, &of).await;
            let sum: u64 = shares.iter().map(|share| share.get(name)).sum();
            assert!(sum <= TOTAL * 1_000, "{name} in round {round}: {shares:?}");
        }
    }
}
