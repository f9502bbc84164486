//! One life of a replica: the real elector, scheduler and controller over a store and agents that are far away.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tenure_clock::Clock;
use tenure_dispatch::{DispatchMetrics, EnvSecrets, PoolSize};
use tenure_lease::{Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Session, WatchdogKind};
use tenure_scheduler::{
    Controller, ControllerMetrics, ControllerParts, OwnerConfig, ReportDesk, Retention, Scheduler,
    SchedulerMetrics, SchedulerParts, Signalling,
};

use crate::fleet::SimFleet;
use crate::gate::Gate;
use crate::plants::Plant;
use crate::store::RemoteStore;
use crate::time::SimClock;
use crate::world::World;

pub const LEASE: Duration = Duration::from_secs(15);
/// How long a node may be silent; as in production.
pub const SILENCE: Duration = Duration::from_secs(90);
/// Between two looks at the database: longer than in production, because a virtual hour has to cost little.
const TICK: Duration = Duration::from_secs(5);

/// As many as any world has.
static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..MOST_REPLICAS).map(|number| format!("r{number}")).collect());
pub const MOST_REPLICAS: usize = 1_000;

pub fn name(replica: usize) -> &'static str {
    &NAMES[replica]
}

pub struct Replica {
    pub gate: Gate,
    pub clock: SimClock,
    pub store: Arc<RemoteStore>,
    pub fleet: Arc<SimFleet>,
    pub desk: ReportDesk,
    pub session: Session,
    parts: Mutex<Option<Parts>>,
}

struct Parts {
    elector: Arc<Elector>,
    scheduler: Scheduler,
    controller: Controller,
}

impl Replica {
    pub fn start(
        world: &Arc<World>,
        number: usize,
        life: u32,
        clock: SimClock,
        shards: u16,
        plant: Option<Plant>,
    ) -> Arc<Self> {
        let gate = Gate::open();
        let store = RemoteStore::connect(world, number, gate.clone(), shards);
        let fleet = SimFleet::start(world, number, gate.clone(), clock.clone(), Arc::clone(&store));
        let entropy = world.entropy();
        let shared_clock: Arc<dyn Clock> = Arc::new(clock.clone());
        let session = Session(entropy.uuid(clock.now()));
        let actor = format!("{}#{life}", name(number));
        let holder = Holder { name: actor.clone(), instance: name(number).into(), session, address: None };
        let lease_metrics = LeaseMetrics::default();
        let too_long = plant == Some(Plant::LongLeases);
        let config = ElectorConfig {
            crash_hints: !too_long,
            watchdog: WatchdogKind::Task,
            ..ElectorConfig::new(holder, if too_long { LEASE * 120 } else { LEASE })
        };
        let parts = ElectorParts {
            leases: store.clone(),
            fences: store.clone(),
            clock: Arc::clone(&shared_clock),
            entropy: entropy.clone(),
            metrics: lease_metrics.clone(),
        };
        let elector =
            Arc::new(Elector::start(parts, config).expect("there is slack, and no thread to start"));
        let mut registry = Registry::default();
        let mut config = OwnerConfig { tick: TICK, heartbeat_threshold: SILENCE, ..OwnerConfig::new(actor) };
        if plant == Some(Plant::HastyReaper) {
            config.heartbeat_threshold = Duration::from_secs(6);
        }
        let scheduler = Scheduler::start(SchedulerParts {
            store: store.clone(),
            elector: Arc::clone(&elector),
            shards,
            executor: fleet.clone(),
            secrets: Arc::new(EnvSecrets),
            pool: PoolSize::PRO,
            clock: Arc::clone(&shared_clock),
            entropy: entropy.clone(),
            metrics: SchedulerMetrics::register(&mut registry),
            lease_metrics,
            dispatch_metrics: DispatchMetrics::register(&mut registry),
            config,
            sole_instance: false,
        });
        let controller = Controller::start(ControllerParts {
            store: store.clone(),
            elector: Arc::clone(&elector),
            clock: shared_clock,
            entropy,
            metrics: ControllerMetrics::default(),
            retention: Retention { runs: None, audit: None, members: None, every: Duration::from_secs(3600) },
            signals: Signalling::default(),
            sole_instance: false,
        });
        let desk = scheduler.desk();
        let parts = Mutex::new(Some(Parts { elector, scheduler, controller }));
        Arc::new(Self { gate, clock, store, fleet, desk, session, parts })
    }

    /// SIGSTOP: its clock stands still too.
    pub fn pause(&self) {
        self.clock.freeze();
        self.gate.pause();
    }

    /// SIGCONT. The clock is the machine's: when this life is over it is the next one's.
    pub fn resume(&self) {
        if !self.gate.is_dead() {
            self.clock.thaw();
            self.gate.resume();
        }
    }

    /// kill -9: from this instant on nobody hears of it. What is left of it in memory winds itself up.
    pub fn kill(&self) {
        self.gate.kill();
        tokio::spawn(wind_up(self.take()));
    }

    /// An orderly stop.
    pub async fn stop(&self) {
        wind_up(self.take()).await;
        self.gate.kill();
    }

    fn take(&self) -> Option<Parts> {
        self.parts.lock().expect("no panic while holding the parts").take()
    }
}

async fn wind_up(parts: Option<Parts>) {
    let Some(Parts { elector, scheduler, controller }) = parts else { return };
    tokio::join!(scheduler.stop(), controller.stop());
    elector.stop().await;
}
