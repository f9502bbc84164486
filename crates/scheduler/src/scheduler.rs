//! The scheduler of one process: stands for every shard, and works on those it is elected for.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{Clock, Entropy};
use tenure_dispatch::{DispatchMetrics, DispatchPool, Executor, PoolSize, SecretSource};
use tenure_lease::{
    Campaign, Candidacy, Elector, LeaseMetrics, LeaseRecord, RenewalStatus, Scope, ScopeStatus, Tenure,
    with_causes,
};
use tenure_model::{Report, ShardId};
use tenure_store::SharedStore;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::desk::ReportDesk;
use crate::metrics::SchedulerMetrics;
use crate::muster::Muster;
use crate::office::Office;
use crate::owner::{Deps, OwnerConfig};
use crate::roster::Roster;
use crate::tireless::tirelessly;

/// Everything a scheduler is built from.
#[allow(missing_debug_implementations, reason = "made of trait objects")]
pub struct SchedulerParts {
    pub store: SharedStore,
    pub elector: Arc<Elector>,
    /// As the database is divided.
    pub shards: u16,
    pub executor: Arc<dyn Executor>,
    pub secrets: Arc<dyn SecretSource>,
    /// Shared by all shards of this process.
    pub pool: PoolSize,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub metrics: SchedulerMetrics,
    pub lease_metrics: LeaseMetrics,
    pub dispatch_metrics: DispatchMetrics,
    pub config: OwnerConfig,
    /// A lease held by this instance is left over from a process that is gone: the caller holds the
    /// lock of the instance's data folder.
    pub sole_instance: bool,
}

#[derive(Debug)]
pub struct Scheduler {
    handle: SchedulerHandle,
    desk: ReportDesk,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    shards: Vec<watch::Receiver<OwnerStatus>>,
    changes: watch::Receiver<u64>,
    elector: Arc<Elector>,
}

/// Where this process stands with one shard.
#[derive(Clone, Debug)]
pub struct OwnerStatus {
    pub scope: Scope,
    /// Held by this process.
    pub tenure: Option<Tenure>,
    /// It can schedule: it leads, has read its shard, and the last pass was committed.
    pub ready: bool,
    /// Why not, for people.
    pub reason: String,
    pub active_runs: usize,
    pub last_pass_at: Option<Timestamp>,
    /// Scheduled tasks that something holds back: what kind of thing, and how many. As of the latest look.
    pub waiting: Vec<(&'static str, usize)>,
}

impl OwnerStatus {
    pub(crate) fn idle(scope: Scope, reason: &str) -> Self {
        Self {
            scope,
            tenure: None,
            ready: false,
            reason: reason.to_owned(),
            active_runs: 0,
            last_pass_at: None,
            waiting: vec![],
        }
    }

    pub fn renewal(&self) -> Option<RenewalStatus> {
        self.tenure.as_ref().map(Tenure::renewal_status)
    }
}

impl SchedulerHandle {
    /// Every shard, whoever owns it.
    pub fn status(&self) -> Vec<OwnerStatus> {
        self.shards.iter().map(|shard| self.explained(shard.borrow().clone())).collect()
    }

    /// Whose a shard's lease is, as last seen.
    pub fn lease(&self, scope: &Scope) -> Option<LeaseRecord> {
        self.elector.scope_status(scope).and_then(|status| status.record)
    }

    /// Changes after every committed pass.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    fn explained(&self, mut status: OwnerStatus) -> OwnerStatus {
        if status.tenure.is_none() {
            match self.elector.scope_status(&status.scope) {
                Some(ScopeStatus { problem: Some(problem), .. }) => {
                    status.reason = problem.text().to_owned();
                }
                Some(ScopeStatus { record: Some(record), .. }) if record.is_held() => {
                    status.reason = format!("{} holds {}", record.holder, record.scope);
                }
                _ => {}
            }
        }
        status
    }
}

impl Scheduler {
    pub fn start(parts: SchedulerParts) -> Self {
        let (failures, failed) = mpsc::unbounded_channel();
        let dispatch = DispatchPool::new(
            parts.pool,
            Arc::clone(&parts.store),
            Arc::clone(&parts.executor),
            parts.secrets,
            Arc::clone(&parts.clock),
            failures,
            parts.dispatch_metrics,
        );
        let desk =
            ReportDesk::open(Arc::clone(&parts.store), Arc::clone(&parts.clock), parts.metrics.clone());
        tokio::spawn(forward(failed, desk.clone()));
        let deps = Deps {
            store: Arc::clone(&parts.store),
            dispatch,
            clock: parts.clock,
            entropy: parts.entropy,
            metrics: parts.metrics,
            config: parts.config,
            roster: Roster::new(Arc::clone(&parts.store), Arc::clone(&parts.executor)),
            shards: parts.shards,
        };
        let muster = Muster::new(parts.executor, desk.clone());
        let (changes, changed) = watch::channel(0);
        let stranded = watch::Sender::new(());
        let office = |shard: ShardId| {
            let scope = Scope::new(shard.scope());
            let office = Office {
                deps: deps.clone(),
                shard,
                scope: scope.clone(),
                desk: desk.clone(),
                muster: Arc::clone(&muster),
                lease_metrics: parts.lease_metrics.clone(),
                status: watch::Sender::new(OwnerStatus::idle(scope.clone(), "standing for it")),
                changes: changes.clone(),
                in_office: tokio::sync::Mutex::default(),
                panics: AtomicU32::new(0),
                doubts: AtomicU32::new(0),
                answered: Mutex::new(deps.clock.boottime()),
                cut_offs: AtomicU32::new(0),
                stranded: stranded.clone(),
            };
            (scope, Arc::new(office))
        };
        let offices: BTreeMap<Scope, Arc<Office>> = (0..parts.shards).map(ShardId).map(office).collect();
        let campaign = Campaign {
            component: COMPONENT.into(),
            scopes: offices.keys().cloned().collect(),
            note: String::new(),
            sole_instance: parts.sole_instance,
        };
        let shards = offices.values().map(|office| office.status.subscribe()).collect();
        let stop = CancellationToken::new();
        let cabinet = Cabinet {
            offices,
            campaign,
            elector: Arc::clone(&parts.elector),
            store: Arc::clone(&deps.store),
            clock: Arc::clone(&deps.clock),
            ping_every: deps.config.tick.min(deps.config.yield_after),
            metrics: deps.metrics.clone(),
            patience: deps.config.yield_after * 2,
            stranded,
        };
        let task = tokio::spawn(stand(Arc::new(cabinet), stop.clone()));
        tokio::spawn(stop.clone().run_until_cancelled_owned(keep_up(deps, muster, stop.clone())));
        let handle = SchedulerHandle { shards, changes: changed, elector: parts.elector };
        Self { handle, desk, stop, task }
    }

    pub fn handle(&self) -> SchedulerHandle {
        self.handle.clone()
    }

    /// Where agents' reports come in.
    pub fn desk(&self) -> ReportDesk {
        self.desk.clone()
    }

    /// Finishes the passes in hand, gives the shards back, returns.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(panic) = self.task.await {
            tracing::error!(%panic, "the scheduler panicked");
        }
    }
}

/// How often a process looks for dag versions that it does not know yet.
const WARM_EVERY: Duration = Duration::from_secs(20);
/// Replicas that schedule are members of this.
const COMPONENT: &str = "scheduler";

/// How long a process waits for a sign of life of its database.
const PING_FOR: Duration = Duration::from_secs(2);

async fn stand(cabinet: Arc<Cabinet>, stop: CancellationToken) {
    let work = || Arc::clone(&cabinet).run(stop.clone());
    tirelessly("scheduler", &*cabinet.clock, &cabinet.metrics.loop_panics, &stop, work).await;
}

/// What goes on beside the owners, for all of them: reads ahead, follows links, musters nodes.
async fn keep_up(deps: Deps, muster: Arc<Muster>, stop: CancellationToken) {
    let (clock, panics) = (&*deps.clock, &deps.metrics.loop_panics);
    let warm = || keep_warm(Arc::clone(&deps.store), deps.entropy.clone());
    let follow = || {
        let roster = Arc::clone(&deps.roster);
        async move { roster.follow_links().await }
    };
    let hold = || {
        let muster = Arc::clone(&muster);
        async move { muster.hold().await }
    };
    tokio::join!(
        tirelessly("reading ahead", clock, panics, &stop, warm),
        tirelessly("following links", clock, panics, &stop, follow),
        tirelessly("mustering nodes", clock, panics, &stop, hold),
    );
}

/// All shards, as far as this process stands for them.
struct Cabinet {
    offices: BTreeMap<Scope, Arc<Office>>,
    campaign: Campaign,
    elector: Arc<Elector>,
    store: SharedStore,
    clock: Arc<dyn Clock>,
    /// How often this process makes sure that its database answers.
    ping_every: Duration,
    metrics: SchedulerMetrics,
    /// For how long the database may be away before this process stands back.
    patience: Duration,
    /// An owner had no answer from the database for too long.
    stranded: watch::Sender<()>,
}

impl Cabinet {
    /// Stands for the shards while the database answers. Leases may be kept elsewhere: whoever cannot reach the
    /// database would win them and only hold up the others, and would be counted on for its share.
    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let terms = TaskTracker::new();
        while !stop.is_cancelled() {
            let mut stranded = self.stranded.subscribe();
            let mut candidacy = self.elector.campaign(self.campaign.clone());
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                _ = stranded.changed() => false,
                () = self.cut_off() => false,
                () = self.serve_elected(&mut candidacy, &terms) => true,
            };
            candidacy.withdraw().await;
            if ended {
                break;
            }
            tracing::warn!("the database does not answer; standing for no shard until it does");
            if stop.run_until_cancelled(self.answered()).await.is_some() {
                tracing::info!("the database answers again; standing for the shards");
            }
        }
        terms.close();
        terms.wait().await;
    }

    /// Returns when the elector has stopped.
    async fn serve_elected(&self, candidacy: &mut Candidacy, terms: &TaskTracker) {
        while let Some(tenure) = candidacy.elected().await {
            let Some(office) = self.offices.get(tenure.scope()) else {
                tracing::error!(scope = %tenure.scope(), "elected for a scope that nobody stood for");
                continue;
            };
            terms.spawn(serve(Arc::clone(office), tenure));
        }
    }

    /// Resolves when the database has not answered for too long.
    async fn cut_off(&self) {
        let mut answered = self.clock.boottime();
        while self.clock.boottime().saturating_since(answered) < self.patience {
            if self.answers().await {
                answered = self.clock.boottime();
            }
            tokio::time::sleep(self.ping_every).await;
        }
    }

    async fn answered(&self) {
        while !self.answers().await {
            tokio::time::sleep(self.ping_every).await;
        }
    }

    async fn answers(&self) -> bool {
        matches!(tokio::time::timeout(PING_FOR, self.store.ping()).await, Ok(Ok(())))
    }
}

/// Dag versions are in memory before they are needed: a takeover has only its active runs to read.
async fn keep_warm(store: SharedStore, entropy: Entropy) {
    loop {
        if let Err(error) = store.read_ahead().await {
            tracing::debug!(error = %with_causes(&error), "dag versions could not be read ahead");
        }
        tokio::time::sleep(WARM_EVERY + entropy.jitter(WARM_EVERY / 4)).await;
    }
}

/// A panic in the work of a term costs that term alone.
async fn serve(office: Arc<Office>, tenure: Tenure) {
    let working = Arc::clone(&office);
    if let Err(panic) = tokio::spawn(async move { working.serve(tenure).await }).await {
        tracing::error!(scope = %office.scope, %panic, "the scheduler's loop panicked; starting over");
        office.panicked();
    }
}

/// What could not be handed out goes the way of all reports. One that is lost is found by its claim's deadline.
async fn forward(mut failed: mpsc::UnboundedReceiver<Report>, desk: ReportDesk) {
    while let Some(report) = failed.recv().await {
        let desk = desk.clone();
        tokio::spawn(async move { desk.submit(report).await });
    }
}
