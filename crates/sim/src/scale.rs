//! A world that no machine here could hold as real processes: a hundred replicas, thousands of shards and nodes, millions of
//! tasks. The same code under the same virtual time, with a few faults at known moments, to see how shards are shared out,
//! how long takeovers take, and who waits for whom.
//!
//! Tasks are counted, not remembered: promises are the business of the small worlds.

mod plot;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tenure_lease::{LeaseRecord, LeaseStore, Session};
use tenure_model::{DagSpec, NewRun, PoolName, Resources, RunType, ShardId, TaskKind, TaskSpec, TenantId};
use tenure_store::{DagRegistration, IntentStore, NodeRegistration, PoolRecord, Trigger};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::dice::Dice;
use crate::operator::Operator;
use crate::rooms::Rooms;
use crate::time::GENESIS;
use crate::world::{Design, Size, World, clock_of};

pub use plot::write_plots;
pub use tally::Tally;

/// How large, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub replicas: usize,
    pub shards: u16,
    pub agents: usize,
    pub tasks: usize,
    pub seed: u64,
}

/// In each run.
pub const TASKS_IN_RUN: usize = 100;
/// How many tasks fit on a node.
const PLACES: usize = 50;
/// How long a task takes.
const TASK: Duration = Duration::from_secs(10);
/// Runs are asked for at this part of what the nodes could do.
const LOAD: f64 = 0.7;
/// One dag in so many asks for many runs at once.
const ONE_IS_GREEDY: usize = 50;
/// So much of the work is theirs, and comes in bursts.
const GREED: f64 = 0.3;
const BURST_EVERY: Duration = Duration::from_secs(30);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// In samples.
const TELL_EVERY: usize = 5;
/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a large world was like.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    pub samples: Vec<Sample>,
    pub moments: Vec<Moment>,
    /// How long the runs of modest dags took, and of how many tasks each was.
    pub modest: Spread,
    pub greedy: Spread,
    /// How much of its work each shard had done when half of all was: the slowest twentieth, the median, the fastest.
    pub shards_half_way: Spread,
    pub runs: usize,
    pub tasks: u64,
    /// Starts beyond one for each success.
    pub started_again: u64,
    /// Successes beyond one for each task.
    pub done_twice: u64,
    pub unfinished: usize,
    /// What the store was asked, and what agents did.
    pub steps: BTreeMap<&'static str, u64>,
    pub virtual_seconds: f64,
}

impl Measured {
    /// Everything that was asked for was done, once: no node is lost in such a world, so nothing has to be tried again.
    pub fn is_good(&self) -> bool {
        self.runs > 0 && self.unfinished + self.started_again as usize + self.done_twice as usize == 0
    }
}

/// One second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    pub at: f64,
    /// Shards of the replica with the fewest and the most, of those that live.
    pub fewest: usize,
    pub most: usize,
    pub unowned: usize,
    pub ended: u64,
    pub running: u64,
}

/// Something that was done to the world, and how long it took to be over.
#[derive(Clone, Debug, Serialize)]
pub struct Moment {
    pub what: String,
    pub at: f64,
    /// For each shard concerned, in seconds.
    pub took: Spread,
}

/// Of many values, in order.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    pub count: usize,
    pub p5: f64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (share * (values.len() as f64 - 1.0)).round().max(0.0) as usize;
            values.get(index).copied().unwrap_or(0.0)
        };
        Self { count: values.len(), p5: at(0.05), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

pub fn run_scale(scale: Scale, tell: impl Fn(String) + 'static) -> Measured {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without threads").block_on(async move {
        let stage = Stage::set(scale, Box::new(tell)).await;
        stage.play().await
    })
}

struct Stage {
    scale: Scale,
    world: Arc<World>,
    operator: Arc<Operator>,
    dags: Vec<String>,
    measured: std::sync::Mutex<Measured>,
    tell: Box<dyn Fn(String)>,
}

impl Stage {
    /// Dags, nodes and a pool are there; nobody is up yet.
    async fn set(scale: Scale, tell: Box<dyn Fn(String)>) -> Self {
        let Scale { replicas, shards, agents, .. } = scale;
        let dice = Dice::seeded(scale.seed);
        let (falling, fallen) = mpsc::unbounded_channel();
        let size = Size { replicas, agents, shards };
        let design = Design {
            size,
            rooms: Rooms::plenty(agents),
            flaw: None,
            leases_apart: false,
            telling: false,
            counting: true,
        };
        let world = World::new(&dice, design, falling);
        let clocks = (0..replicas).map(|_| clock_of(world.time, &dice)).collect();
        let operator = Arc::new(Operator::new(&world, &dice, shards, None, clocks));
        tokio::spawn(Arc::clone(&operator).bury(fallen));
        let dags = (0..usize::from(shards) * 2).map(|number| format!("dag-{number:05}")).collect();
        let stage = Self { scale, world, operator, dags, measured: Default::default(), tell };
        stage.furnish().await;
        stage
    }

    async fn furnish(&self) {
        let store = &self.world.store;
        let slots = (self.scale.agents * PLACES) as u32;
        let pool = PoolRecord { name: PoolName::default_pool(), slots, description: String::new() };
        store.put_pool(&by(), &pool).await.expect("memory answers");
        for machine in &self.world.machines {
            let capacity = Resources::default().with(Resources::TASKS, PLACES as u64 * 1_000);
            let node = NodeRegistration::new(machine.node.clone(), capacity, "sim");
            store.register_node(&node, GENESIS).await.expect("memory answers");
        }
        for dag in &self.dags {
            let argv = vec!["work".into(), TASK.as_millis().to_string(), "0".into()];
            let task = |number| TaskSpec::new(format!("t{number}"), TaskKind::Exec { argv: argv.clone() });
            let mut spec = DagSpec::new(dag.as_str(), (0..TASKS_IN_RUN).map(task).collect());
            (spec.max_active_runs, spec.max_active_tasks) = (10_000, 1_000);
            let registration = DagRegistration {
                trigger: by(),
                spec,
                source: String::new(),
                origin: "sim".into(),
                paused_if_new: false,
            };
            store.register_dag(&registration).await.expect("memory answers");
        }
    }

    async fn play(self) -> Measured {
        let Scale { replicas, agents, .. } = self.scale;
        (0..agents).for_each(|number| self.operator.start_agent(number));
        let first = replicas * 6 / 10;
        (0..first).for_each(|number| self.operator.start_replica(number));
        self.until_even(format!("{first} replicas begin"), first).await;
        (first..replicas).for_each(|number| self.operator.start_replica(number));
        self.until_even(format!("{} more join", replicas - first), replicas).await;

        let working = self.work();
        let breaking = self.break_things();
        let sampling = self.sample();
        tokio::select! {
            biased;
            () = async { tokio::join!(working, breaking); } => {}
            () = sampling => {}
        }
        let virtual_seconds = self.now();
        let mut measured = self.measured.into_inner().expect("no panic while measuring");
        let tally = self.world.tally().expect("tasks are counted");
        measured.virtual_seconds = virtual_seconds;
        measured.steps = self.world.trace().steps.clone();
        measured.tasks = tally.succeeded;
        measured.runs = tally.runs();
        measured.unfinished = tally.unfinished();
        measured.started_again = tally.started - tally.succeeded;
        measured.done_twice = tally.done_twice;
        (measured.modest, measured.greedy) =
            (Spread::of(tally.modest.clone()), Spread::of(tally.greedy.clone()));
        measured
    }

    fn now(&self) -> f64 {
        self.world.time.elapsed().as_secs_f64()
    }

    fn note(&self, what: String, at: f64, took: Vec<f64>) {
        let took = Spread::of(took);
        (self.tell)(format!(
            "{:>7.1} s  {what}: {} shards, p50 {:.2} s, p99 {:.2} s, max {:.2} s",
            self.now(),
            took.count,
            took.p50,
            took.p99,
            took.max
        ));
        self.measured.lock().expect("no panic while measuring").moments.push(Moment { what, at, took });
    }

    async fn leases(&self) -> Vec<LeaseRecord> {
        self.world.store.list_leases("scheduler/").await.expect("memory answers")
    }

    /// How many shards each living replica has.
    fn shares(&self, leases: &[LeaseRecord]) -> BTreeMap<Session, usize> {
        let living = (0..self.scale.replicas).filter_map(|number| self.world.replica(number));
        let mut shares: BTreeMap<Session, usize> = living.map(|replica| (replica.session, 0)).collect();
        for lease in leases.iter().filter(|lease| lease.is_held()) {
            if let Some(count) = shares.get_mut(&lease.holder.session) {
                *count += 1;
            }
        }
        shares
    }

    /// Until each of so many has its part of the shards, give or take one.
    async fn until_even(&self, what: String, replicas: usize) {
        let begun = self.now();
        let fair = usize::from(self.scale.shards) / replicas;
        let (mut owned, mut took) = (BTreeSet::new(), vec![]);
        loop {
            self.take_sample().await;
            let leases = self.leases().await;
            for lease in leases.iter().filter(|lease| lease.is_held()) {
                if owned.insert((lease.scope.to_string(), lease.epoch)) {
                    took.push(self.now() - begun);
                }
            }
            let shares = self.shares(&leases);
            if shares.values().all(|share| (fair..=fair + 1).contains(share)) {
                break;
            }
            assert!(self.now() - begun < PATIENCE.as_secs_f64(), "{what}: never even: {shares:?}");
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
        self.note(format!("{what}; each has {fair} or one more"), begun, took);
    }

    /// Runs are asked for until there were enough, and waited for.
    async fn work(&self) {
        let runs = self.scale.tasks / TASKS_IN_RUN;
        let rate = self.scale.agents as f64 * PLACES as f64 * LOAD / TASK.as_secs_f64() / TASKS_IN_RUN as f64;
        let greedy: Vec<&String> = self.dags.iter().step_by(ONE_IS_GREEDY).collect();
        let modest: Vec<&String> = self
            .dags
            .iter()
            .enumerate()
            .filter(|(n, _)| n % ONE_IS_GREEDY != 0)
            .map(|(_, dag)| dag)
            .collect();
        let begun = self.world.time.elapsed();
        let (mut number, mut burst) = (0, begun);
        while number < runs {
            if self.world.time.elapsed() >= burst {
                burst += BURST_EVERY;
                let many = (rate * GREED * BURST_EVERY.as_secs_f64()).ceil() as usize;
                for _ in 0..many.min(runs - number) {
                    self.trigger(greedy[number % greedy.len()], number, true).await;
                    number += 1;
                }
            } else {
                self.trigger(modest[number % modest.len()], number, false).await;
                number += 1;
                tokio::time::sleep(Duration::from_secs_f64(1.0 / (rate * (1.0 - GREED)))).await;
            }
        }
        let begun = self.now();
        while self.world.tally().expect("tasks are counted").unfinished() > 0
            && self.now() - begun < PATIENCE.as_secs_f64()
        {
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    async fn trigger(&self, dag: &str, number: usize, greedy: bool) {
        let run = format!("run-{number:06}");
        let now = self.world.time.now();
        let new = NewRun {
            tenant: TenantId::default_tenant(),
            dag: dag.into(),
            run_id: run.as_str().into(),
            run_type: RunType::Manual,
            logical_date: None,
            data_interval: None,
            run_after: now,
            conf: json!({}),
            note: None,
            triggered_by: "user".into(),
            idempotency_key: None,
        };
        let shard = ShardId::of(&new.tenant, &new.dag, self.scale.shards);
        self.world.tally().expect("tasks are counted").asked(run, now, shard, greedy);
        let at = Trigger { at: now, ..by() };
        self.world.store.create_run(&at, &new).await.expect("memory answers");
    }

    /// A tenth of all replicas dies and says so by dying; a tenth goes silent; all come back.
    async fn break_things(&self) {
        let tenth = (self.scale.replicas / 10).max(1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        self.lose(0..tenth, true).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        self.lose(tenth..2 * tenth, false).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        (0..2 * tenth).for_each(|number| self.operator.start_replica(number));
        self.until_even(format!("{} are back", 2 * tenth), self.scale.replicas).await;
    }

    async fn lose(&self, who: std::ops::Range<usize>, heard: bool) {
        let begun = self.now();
        let mut sessions = BTreeSet::new();
        for number in who.clone() {
            let Some(replica) = self.world.replica(number) else { continue };
            sessions.insert(replica.session);
            replica.kill();
            self.world.set_replica(number, None);
            if heard {
                self.world.store.leases().crash(replica.session);
            }
        }
        let lost = |lease: &LeaseRecord| sessions.contains(&lease.holder.session);
        let mut waiting: BTreeSet<String> = self
            .leases()
            .await
            .iter()
            .filter(|lease| lost(lease))
            .map(|lease| lease.scope.to_string())
            .collect();
        let mut took = vec![];
        while !waiting.is_empty() && self.now() - begun < PATIENCE.as_secs_f64() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            for lease in self.leases().await.iter().filter(|lease| lease.is_held() && !lost(lease)) {
                if waiting.remove(lease.scope.as_str()) {
                    took.push(self.now() - begun);
                }
            }
        }
        assert!(waiting.is_empty(), "shards that nobody takes over: {waiting:?}");
        let how = if heard { "are killed" } else { "fall silent" };
        self.note(format!("{} replicas {how}; their shards have new owners", who.len()), begun, took);
    }

    async fn sample(&self) {
        loop {
            self.take_sample().await;
            let before = self.world.time.now() - Duration::from_secs(30);
            self.world.store.forget(before);
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    async fn take_sample(&self) {
        let shares = self.shares(&self.leases().await);
        let owned: usize = shares.values().sum();
        let tally = self.world.tally().expect("tasks are counted");
        let sample = Sample {
            at: self.now(),
            fewest: shares.values().min().copied().unwrap_or(0),
            most: shares.values().max().copied().unwrap_or(0),
            unowned: usize::from(self.scale.shards) - owned,
            ended: tally.succeeded,
            running: tally.started - tally.ended,
        };
        let half_way = self.scale.tasks as u64 / 2;
        let mut measured = self.measured.lock().expect("no panic while measuring");
        if sample.ended >= half_way && measured.shards_half_way.count == 0 {
            measured.shards_half_way = Spread::of(tally.done_of_asked());
        }
        measured.samples.push(sample);
        if measured.samples.len().is_multiple_of(TELL_EVERY) {
            let steps = |name: &str| self.world.trace().steps.get(name).copied().unwrap_or(0);
            (self.tell)(format!(
                "{:>7.1} s  shards {}–{} each, {} without an owner; {} tasks done, {} running; {} commits, {} trades",
                sample.at,
                sample.fewest,
                sample.most,
                sample.unowned,
                sample.ended,
                sample.running,
                steps("commit_pass"),
                steps("trade_shares")
            ));
        }
    }
}

fn by() -> Trigger {
    Trigger { tenant: TenantId::default_tenant(), actor: "user".into(), at: GENESIS }
}
