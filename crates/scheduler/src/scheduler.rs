//! From candidate to owner and back: campaigns for the shard, works while it leads, starts over when it
//! does not. A database that is away is waited out; nothing here ever gives up for good.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{Clock, Entropy};
use tenure_dispatch::{DispatchMetrics, DispatchPool, Executor, PoolSize, SecretSource};
use tenure_lease::{
    Campaign, Candidacy, Elector, LeaseMetrics, LeaseRecord, RenewalStatus, Scope, ScopeStatus, Tenure,
    with_causes,
};
use tenure_model::ShardId;
use tenure_store::{SharedStore, StoreError};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::inbox::ReportInbox;
use crate::metrics::SchedulerMetrics;
use crate::owner::{Deps, OwnerConfig, ShardOwner};
use crate::pass::PassError;

/// Everything a scheduler is built from.
#[allow(missing_debug_implementations, reason = "made of trait objects")]
pub struct SchedulerParts {
    pub store: SharedStore,
    pub elector: Arc<Elector>,
    pub shard: ShardId,
    /// Where reports come in; the caller gives it to agents.
    pub inbox: ReportInbox,
    pub executor: Arc<dyn Executor>,
    pub secrets: Arc<dyn SecretSource>,
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
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    status: watch::Receiver<OwnerStatus>,
    changes: watch::Receiver<u64>,
    elector: Arc<Elector>,
}

/// Where this process stands with its shard.
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
    /// Scheduled tasks that something holds back: why, and how many. As of the latest tick.
    pub waiting: Vec<(String, usize)>,
}

impl OwnerStatus {
    pub fn renewal(&self) -> Option<RenewalStatus> {
        self.tenure.as_ref().map(Tenure::renewal_status)
    }
}

impl SchedulerHandle {
    pub fn status(&self) -> OwnerStatus {
        self.status.borrow().clone()
    }

    /// Whose the shard's lease is, as last seen.
    pub fn lease(&self) -> Option<LeaseRecord> {
        let scope = self.status.borrow().scope.clone();
        self.elector.scope_status(&scope).and_then(|status| status.record)
    }

    /// Changes after every committed pass.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }
}

impl Scheduler {
    pub fn start(parts: SchedulerParts) -> Self {
        let (failures, failed) = mpsc::unbounded_channel();
        let dispatch = DispatchPool::new(
            parts.pool,
            Arc::clone(&parts.store),
            parts.executor,
            parts.secrets,
            Arc::clone(&parts.clock),
            failures,
            parts.dispatch_metrics,
        );
        let scope = Scope::new(parts.shard.scope());
        let (status_tx, status) = watch::channel(OwnerStatus {
            scope: scope.clone(),
            tenure: None,
            ready: false,
            reason: "starting".into(),
            active_runs: 0,
            last_pass_at: None,
            waiting: vec![],
        });
        let (changes_tx, changes) = watch::channel(0);
        let stop = CancellationToken::new();
        let candidacy = parts.elector.campaign(Campaign {
            component: COMPONENT.into(),
            scopes: vec![scope.clone()],
            note: String::new(),
            sole_instance: parts.sole_instance,
        });
        let office = Office {
            deps: Deps {
                store: parts.store,
                dispatch,
                inbox: parts.inbox.clone(),
                clock: parts.clock,
                entropy: parts.entropy,
                metrics: parts.metrics,
                config: parts.config,
            },
            shard: parts.shard,
            scope,
            elector: Arc::clone(&parts.elector),
            candidacy: Mutex::new(candidacy),
            lease_metrics: parts.lease_metrics,
            status: status_tx,
            changes: changes_tx,
            stop: stop.clone(),
        };
        tokio::spawn(forward(failed, parts.inbox));
        let task = tokio::spawn(supervise(Arc::new(office)));
        Self { handle: SchedulerHandle { status, changes, elector: parts.elector }, stop, task }
    }

    pub fn handle(&self) -> SchedulerHandle {
        self.handle.clone()
    }

    /// Finishes the pass in hand, gives the shard back, returns.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(panic) = self.task.await {
            tracing::error!(%panic, "the scheduler panicked");
        }
    }
}

/// A panic in the loop itself is a defect, but not the end: the shard is given back and taken again.
async fn supervise(office: Arc<Office>) {
    loop {
        match tokio::spawn(Arc::clone(&office).run()).await {
            Ok(()) => return,
            Err(panic) => {
                tracing::error!(%panic, "the scheduler's loop panicked; starting over");
                office.deps.metrics.loop_panics.inc();
                // Nobody works under the term any more: with the last clone of it goes the lease.
                office.status.send_modify(|status| status.tenure = None);
                office.not_ready("the scheduler's loop panicked");
                office.pause(SHORTEST_BACKOFF).await;
            }
        }
    }
}

/// What could not be handed out goes the way of all reports.
async fn forward(mut failed: mpsc::UnboundedReceiver<tenure_model::Report>, inbox: ReportInbox) {
    while let Some(report) = failed.recv().await {
        inbox.post(report);
    }
}

struct Office {
    deps: Deps,
    shard: ShardId,
    scope: Scope,
    elector: Arc<Elector>,
    /// Outlives a loop that panics: the seat at the table stays.
    candidacy: Mutex<Candidacy>,
    lease_metrics: LeaseMetrics,
    status: watch::Sender<OwnerStatus>,
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

/// Why an owner stopped working.
enum Ended {
    /// This process stops, or the shard should go to another one.
    AskedBack,
    Lost,
    /// Memory can no longer be trusted: read everything again, under the same term.
    Reload,
}

/// Replicas that schedule are members of this.
const COMPONENT: &str = "scheduler";
/// How often a standby says whom it waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const SHORTEST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

impl Office {
    async fn run(self: Arc<Self>) {
        let mut candidacy = self.candidacy.lock().await;
        while let Some(tenure) = self.elected(&mut candidacy).await {
            self.lead(tenure).await;
        }
        self.not_ready("stopped");
    }

    /// Waits for the next term. `None` once stopping.
    async fn elected(&self, candidacy: &mut Candidacy) -> Option<Tenure> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                elected = candidacy.elected() => return elected,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
            self.not_ready(&match self.elector.scope_status(&self.scope) {
                Some(ScopeStatus { problem: Some(problem), .. }) => problem.text().to_owned(),
                Some(ScopeStatus { record: Some(record), .. }) if record.is_held() => {
                    format!("{} holds {}", record.holder, record.scope)
                }
                _ => format!("standing for {}", self.scope),
            });
        }
    }

    /// Works under one term, reading the shard anew as often as needed.
    async fn lead(&self, tenure: Tenure) {
        let mut backoff = SHORTEST_BACKOFF;
        loop {
            let owner = ShardOwner::take_over(self.deps.clone(), self.shard, tenure.clone()).await;
            let ended = match owner {
                Ok(owner) => self.work(owner, &tenure, &mut backoff).await,
                Err(error) => {
                    self.not_ready(&with_causes(&error));
                    Ended::Reload
                }
            };
            match ended {
                Ended::Reload if !self.should_end(&tenure) => {
                    self.pause(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                Ended::AskedBack | Ended::Reload => {
                    tenure.resign().await;
                    self.not_ready("the shard was given back");
                    return;
                }
                Ended::Lost => {
                    tracing::warn!(scope = %self.scope, epoch = %tenure.epoch(), "no longer leading");
                    tenure.resign().await;
                    self.not_ready("leadership was lost");
                    return;
                }
            }
        }
    }

    async fn work(&self, mut owner: ShardOwner, tenure: &Tenure, backoff: &mut Duration) -> Ended {
        let mut wakes = self.deps.store.wakes();
        let mut look = true;
        let mut next_look = self.deps.clock.boottime() + self.deps.config.tick;
        loop {
            // Intents that were committed before a report was made are seen before it.
            look |= wakes.has_changed().unwrap_or(false);
            wakes.mark_unchanged();
            let again = match owner.pass(look).await {
                Ok(report) => {
                    *backoff = SHORTEST_BACKOFF;
                    self.leading(tenure, &owner, look);
                    if report.committed {
                        self.changes.send_modify(|count| *count += 1);
                    }
                    report.again
                }
                Err(PassError::NotLeading(_)) => return Ended::Lost,
                Err(PassError::Store(StoreError::Fenced { .. })) => {
                    self.lease_metrics.fenced_write(&self.scope);
                    tenure.fenced();
                    return Ended::Lost;
                }
                Err(PassError::Store(error)) => {
                    self.deps.metrics.failed_passes.inc();
                    tracing::warn!(error = %with_causes(&error), "pass failed; reading the shard again");
                    self.not_ready(&with_causes(&error));
                    return Ended::Reload;
                }
            };
            if look {
                next_look = self.deps.clock.boottime() + self.deps.config.tick;
            }
            look = again;
            if again && !self.should_end(tenure) {
                continue;
            }
            let until_look = next_look.saturating_since(self.deps.clock.boottime());
            tokio::select! {
                () = self.stop.cancelled() => return Ended::AskedBack,
                () = tenure.asked_back().cancelled() => return Ended::AskedBack,
                () = tenure.lost().cancelled() => return Ended::Lost,
                () = self.deps.inbox.arrived() => {}
                changed = wakes.changed() => look = changed.is_ok(),
                () = self.deps.dispatch.freed(), if owner.ready.has_work() => {}
                () = tokio::time::sleep(self.until_timer(&owner).min(until_look)) => {}
            }
            look |= next_look <= self.deps.clock.boottime();
        }
    }

    fn should_end(&self, tenure: &Tenure) -> bool {
        self.stop.is_cancelled() || tenure.asked_back().is_cancelled() || tenure.lost().is_cancelled()
    }

    /// Until time itself gives the owner something to do.
    fn until_timer(&self, owner: &ShardOwner) -> Duration {
        let now = self.deps.clock.now();
        owner
            .next_wake()
            .map_or(Duration::MAX, |at| Duration::try_from(at.duration_since(now)).unwrap_or_default())
    }

    fn leading(&self, tenure: &Tenure, owner: &ShardOwner, look: bool) {
        self.status.send_modify(|status| {
            status.tenure = Some(tenure.clone());
            status.ready = true;
            status.reason = String::new();
            status.active_runs = owner.runs.len();
            status.last_pass_at = Some(self.deps.clock.now());
            if look {
                status.waiting = owner.waiting();
            }
        });
    }

    fn not_ready(&self, reason: &str) {
        self.status.send_modify(|status| {
            status.tenure = status.tenure.take().filter(|tenure| !tenure.lost().is_cancelled());
            status.ready = false;
            status.reason = reason.to_owned();
        });
    }

    async fn pause(&self, pause: Duration) {
        let pause = pause + self.deps.entropy.jitter(pause / 4);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
