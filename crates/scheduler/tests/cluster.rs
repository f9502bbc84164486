//! Goal: several processes share the shards out, and whoever dies, nothing is lost, doubled or overdrawn.
//! Method: schedulers on runtimes of their own over one store, killed and stopped; the test plays their agents.

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rig::faulty::Faulty;
use rig::{Options, Owner, PATIENCE, Rig, exec, wait};
use tenure_model::{
    Ack, Assignment, DagId, DagSpec, Outcome, PoolName, RunState, ShardId, TaskSpec, TenantId,
};
use tenure_scheduler::{OwnerConfig, ReportDesk};
use tenure_store::PoolRecord;

const SHARDS: u16 = 4;

fn replica(rig: &Rig, name: &'static str) -> Owner {
    let config = OwnerConfig { tick: Duration::from_millis(100), ..OwnerConfig::new(name) };
    rig.owner(Options { name, config, restarted: false, ..Options::default() })
}

/// One dag in each shard.
fn dag_of_each_shard() -> BTreeMap<u16, String> {
    let mut dags = BTreeMap::new();
    for number in 0.. {
        let dag = format!("d{number}");
        let shard = ShardId::of(&TenantId::default_tenant(), &DagId::from(dag.clone()), SHARDS);
        dags.entry(shard.0).or_insert(dag);
        if dags.len() == usize::from(SHARDS) {
            return dags;
        }
    }
    unreachable!("every shard is hit")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_reads_dag_versions_ahead() {
    let rig = Rig::new().await;
    let leader = replica(&rig, "leader");
    wait("it leads", || leader.owned().len() == 1).await;
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let store = Faulty::before(rig.store.clone(), move |call| {
        counted.fetch_add(usize::from(call == "read_ahead"), Ordering::SeqCst);
        Ok(())
    });
    let standby = replica(&Rig::on(store, 1).await, "standby");
    wait("it has read ahead", || reads.load(Ordering::SeqCst) > 0).await;
    assert!(standby.owned().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_share_the_shards_out_and_each_runs_its_own() {
    let rig = Rig::with_shards(SHARDS).await;
    let dags = dag_of_each_shard();
    for dag in dags.values() {
        rig.register(DagSpec::new(dag, vec![exec("a")])).await;
    }
    let (mut one, mut two) = (replica(&rig, "one"), replica(&rig, "two"));
    wait("two each", || one.owned().len() == 2 && two.owned().len() == 2).await;
    for dag in dags.values() {
        rig.trigger(dag, "r").await;
    }
    for owner in [&mut one, &mut two] {
        let scopes: BTreeSet<String> = owner.owned().iter().map(ToString::to_string).collect();
        for _ in 0..2 {
            assert!(scopes.contains(&owner.play(Outcome::Success).await.scope));
        }
    }
    for dag in dags.values() {
        assert_eq!(rig.wait_end(dag, "r").await.state, RunState::Success);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_takes_any_report_and_the_owner_goes_on_from_it() {
    let rig = Rig::with_shards(SHARDS).await;
    rig.register(DagSpec::new("d", vec![exec("a"), TaskSpec { needs: vec!["a".into()], ..exec("b") }])).await;
    let mut one = replica(&rig, "one");
    wait("all shards", || one.owned().len() == usize::from(SHARDS)).await;
    let idle = rig.owner(Options { name: "idle", restarted: false, deaf: true, ..Options::default() });
    rig.trigger("d", "r").await;
    for _ in 0..2 {
        let assignment = one.next().await;
        assert_eq!(idle.claim(&assignment).await, Ack::Accepted);
        assert_eq!(idle.claim(&assignment).await, Ack::Accepted, "once more, with the same answer");
        assert_eq!(idle.end(&assignment, Outcome::Success).await, Ack::Accepted);
    }
    assert_eq!(rig.wait_end("d", "r").await.state, RunState::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_told_to_stop_hands_its_shards_over_and_running_tasks_do_not_notice() {
    let rig = Rig::with_shards(SHARDS).await;
    let dags = dag_of_each_shard();
    for dag in dags.values() {
        rig.register(DagSpec::new(dag, vec![exec("a")])).await;
    }
    let mut one = replica(&rig, "one");
    wait("all shards", || one.owned().len() == usize::from(SHARDS)).await;
    for dag in dags.values() {
        rig.trigger(dag, "r").await;
    }
    let mut running = vec![];
    for _ in 0..SHARDS {
        let assignment = one.next().await;
        assert_eq!(one.claim(&assignment).await, Ack::Accepted);
        running.push(assignment);
    }
    let mut two = replica(&rig, "two");
    let Owner { scheduler, .. } = one;
    tokio::time::timeout(PATIENCE, scheduler.stop()).await.expect("an orderly end");
    wait("the other one has them", || two.owned().len() == usize::from(SHARDS)).await;
    for assignment in &running {
        assert_eq!(two.end(assignment, Outcome::Success).await, Ack::Accepted);
    }
    for dag in dags.values() {
        let run = rig.wait_end(dag, "r").await;
        assert_eq!(run.state, RunState::Success);
        assert_eq!(rig.tis(dag, "r").await[0].instance.try_number, 1);
    }
    two.nothing_for(Duration::from_millis(200)).await;
}

/// Counts what runs at once, over all replicas.
#[derive(Clone, Default)]
struct Tally {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    played: Arc<AtomicUsize>,
}

impl Tally {
    /// Plays a replica's agents until the test ends, as many tasks at once as are handed out.
    async fn play_all(self, mut owner: Owner) {
        loop {
            let assignment = owner.next().await;
            let (desk, tally) = (owner.desk.clone(), self.clone());
            tokio::spawn(async move { tally.play(&desk, &assignment).await });
        }
    }

    async fn play(&self, desk: &ReportDesk, assignment: &Assignment) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        assert_eq!(rig::claim_through(desk, assignment).await, Ack::Accepted);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.played.fetch_add(1, Ordering::SeqCst);
        assert_eq!(rig::end_through(desk, assignment, Outcome::Success).await, Ack::Accepted);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

/// Two replicas, a run of each dag, all of them to their ends.
async fn run_all(rig: &Rig, dags: &BTreeMap<u16, String>) -> Tally {
    let (one, two) = (replica(rig, "one"), replica(rig, "two"));
    wait("two each", || one.owned().len() == 2 && two.owned().len() == 2).await;
    let tally = Tally::default();
    for owner in [one, two] {
        tokio::spawn(tally.clone().play_all(owner));
    }
    for dag in dags.values() {
        rig.trigger(dag, "r").await;
    }
    for dag in dags.values() {
        assert_eq!(rig.wait_end(dag, "r").await.state, RunState::Success);
    }
    assert_eq!(tally.played.load(Ordering::SeqCst), 8 * usize::from(SHARDS));
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_shared_by_all_shards_never_overdrawn_and_nobody_starves() {
    let rig = Rig::with_shards(SHARDS).await;
    let dags = dag_of_each_shard();
    let pool = PoolRecord { name: PoolName::new("scarce"), slots: 2, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    for dag in dags.values() {
        let task = |number: usize| TaskSpec { pool: PoolName::new("scarce"), ..exec(&format!("t{number}")) };
        rig.register(DagSpec::new(dag, (0..8).map(task).collect())).await;
    }
    assert_eq!(run_all(&rig, &dags).await.most(), 2, "the pool has two slots, and both were of use");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_shared_by_all_shards_and_never_overcommitted() {
    let rig = Rig::with_shards(SHARDS).await;
    rig.node(3).await;
    let dags = dag_of_each_shard();
    for dag in dags.values() {
        let tasks = (0..8).map(|number| exec(&format!("t{number}"))).collect();
        rig.register(DagSpec::new(dag, tasks)).await;
    }
    assert_eq!(run_all(&rig, &dags).await.most(), 3, "the node has three places, and all were of use");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_need_several_scarce_things_get_them_together() {
    let rig = Rig::with_shards(SHARDS).await;
    rig.node(1).await;
    let dags = dag_of_each_shard();
    let pool = PoolRecord { name: PoolName::new("scarce"), slots: 2, description: String::new() };
    rig.store.put_pool(&rig.user(), &pool).await.unwrap();
    for dag in dags.values() {
        let task = |number: usize| TaskSpec {
            pool: PoolName::new("scarce"),
            pool_slots: 1 + number as u32 % 2,
            ..exec(&format!("t{number}"))
        };
        rig.register(DagSpec::new(dag, (0..8).map(task).collect())).await;
    }
    assert_eq!(run_all(&rig, &dags).await.most(), 1, "the node has one place");
}
