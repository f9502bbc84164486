//! From candidate to owner and back: campaigns for the shard, works while it leads, starts over when it
//! does not. A database that is away is waited out; nothing here ever gives up for good.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{Clock, Entropy};
use tenure_dispatch::{DispatchMetrics, DispatchPool, Executor, PoolSize, SecretSource};
use tenure_lease::{Elector, ElectorError, LeaseRecord, RenewalStatus, Scope, Takeover, Tenure};
use tenure_model::ShardId;
use tenure_store::{SharedStore, StoreError};
use tokio::sync::{mpsc, watch};
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
    pub dispatch_metrics: DispatchMetrics,
    pub config: OwnerConfig,
    /// A lease held by this instance is left over from a process that is gone: the caller holds the
    /// lock of the instance's data folder. `None`: wait for leases to run out.
    pub sole_instance: Option<String>,
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
}

/// Where this process stands with its shard.
#[derive(Clone, Debug)]
pub struct OwnerStatus {
    pub scope: Scope,
    /// Held by this process.
    pub tenure: Option<Tenure>,
    /// Somebody else's, as last seen.
    pub other: Option<LeaseRecord>,
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
            other: None,
            ready: false,
            reason: "starting".into(),
            active_runs: 0,
            last_pass_at: None,
            waiting: vec![],
        });
        let (changes_tx, changes) = watch::channel(0);
        let stop = CancellationToken::new();
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
            elector: parts.elector,
            sole_instance: parts.sole_instance,
            status: status_tx,
            changes: changes_tx,
            stop: stop.clone(),
        };
        tokio::spawn(forward(failed, parts.inbox));
        let task = tokio::spawn(supervise(Arc::new(office)));
        Self { handle: SchedulerHandle { status, changes }, stop, task }
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
                office.not_ready("the scheduler's loop panicked");
                office.elector.release(&office.scope).await;
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
    sole_instance: Option<String>,
    status: watch::Sender<OwnerStatus>,
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

/// Why an owner stopped working.
enum Ended {
    Stopped,
    Lost,
    /// Memory can no longer be trusted: read everything again, under the same term.
    Reload,
}

const SHORTEST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

impl Office {
    async fn run(self: Arc<Self>) {
        let mut backoff = SHORTEST_BACKOFF;
        while !self.stop.is_cancelled() {
            match self.campaign().await {
                Ok(tenure) => {
                    backoff = SHORTEST_BACKOFF;
                    self.lead(tenure).await;
                }
                Err(error) => {
                    self.not_ready(&error.to_string());
                    self.pause(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
            }
        }
        self.not_ready("stopped");
    }

    /// Tries until the lease is won. A holder known to be dead is not waited for.
    async fn campaign(&self) -> Result<Tenure, ElectorError> {
        loop {
            let takeover = self.takeover().await?;
            match self.elector.acquire(&self.scope, takeover, "scheduler").await {
                Ok(tenure) => {
                    tracing::info!(scope = %self.scope, epoch = %tenure.epoch(), "leading");
                    return Ok(tenure);
                }
                Err(ElectorError::Held(record)) => {
                    // Sleep to the expected expiry, but look now and then: it may be released.
                    let pause = record.remaining.clamp(SHORTEST_BACKOFF, Duration::from_secs(1));
                    self.not_ready(&format!("{} holds {}", record.holder, record.scope));
                    self.status.send_modify(|status| status.other = Some(*record));
                    self.pause(pause).await;
                }
                Err(other) => return Err(other),
            }
            if self.stop.is_cancelled() {
                return Err(ElectorError::Stopped);
            }
        }
    }

    async fn takeover(&self) -> Result<Takeover, ElectorError> {
        let Some(instance) = &self.sole_instance else { return Ok(Takeover::IfFree) };
        let leases = self.deps.store.list_leases().await?;
        let left_over =
            leases.iter().find(|lease| lease.scope == self.scope && lease.holder.instance == *instance);
        Ok(left_over.map_or(Takeover::IfFree, |lease| Takeover::OfDead(lease.term)))
    }

    /// Works under one term, reading the shard anew as often as needed.
    async fn lead(&self, tenure: Tenure) {
        let mut backoff = SHORTEST_BACKOFF;
        loop {
            let owner = ShardOwner::take_over(self.deps.clone(), self.shard, tenure.clone()).await;
            let ended = match owner {
                Ok(owner) => self.work(owner, &tenure, &mut backoff).await,
                Err(error) => {
                    self.not_ready(&chain(&error));
                    Ended::Reload
                }
            };
            match ended {
                Ended::Reload if !self.stop.is_cancelled() && !tenure.lost().is_cancelled() => {
                    self.pause(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                Ended::Stopped | Ended::Reload => {
                    self.elector.release(&self.scope).await;
                    return;
                }
                Ended::Lost => {
                    tracing::warn!(scope = %self.scope, epoch = %tenure.epoch(), "no longer leading");
                    self.not_ready("leadership was lost");
                    self.elector.release(&self.scope).await;
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
                Err(PassError::NotLeading(_) | PassError::Store(StoreError::Fenced { .. })) => {
                    self.deps.metrics.fenced.inc();
                    return Ended::Lost;
                }
                Err(PassError::Store(error)) => {
                    self.deps.metrics.failed_passes.inc();
                    tracing::warn!(error = %chain(&error), "pass failed; reading the shard again");
                    self.not_ready(&chain(&error));
                    return Ended::Reload;
                }
            };
            if look {
                next_look = self.deps.clock.boottime() + self.deps.config.tick;
            }
            look = again;
            if again && !self.stop.is_cancelled() && !tenure.lost().is_cancelled() {
                continue;
            }
            let until_look = next_look.saturating_since(self.deps.clock.boottime());
            tokio::select! {
                () = self.stop.cancelled() => return Ended::Stopped,
                () = tenure.lost().cancelled() => return Ended::Lost,
                () = self.deps.inbox.arrived() => {}
                changed = wakes.changed() => look = changed.is_ok(),
                () = self.deps.dispatch.freed(), if owner.ready.has_work() => {}
                () = tokio::time::sleep(self.until_timer(&owner).min(until_look)) => {}
            }
            look |= next_look <= self.deps.clock.boottime();
        }
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
            status.other = None;
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

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
