//! Chores of the whole installation, done by one replica at a time: what is older than it should be kept is deleted,
//! in small batches, under the fence of the controller's own scope; what capacity is missing is told under the same one;
//! drains of nodes are seen through, each under the fence of its own.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tenure_clock::{Clock, Entropy};
use tenure_lease::{Campaign, Elector, Scope, Tenure, with_causes};
use tenure_store::{SharedStore, StoreError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::signals::{SignalMetrics, Signalling};
use crate::tireless::tirelessly;
use crate::{drains, signals};

/// What the controller leads.
pub const CONTROLLER_SCOPE: &str = "controller/leader";
const COMPONENT: &str = "controller";

/// For how long things are kept. `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Finished runs, with all that belongs to them.
    pub runs: Option<Duration>,
    pub audit: Option<Duration>,
    /// Traces of replicas that are gone.
    pub members: Option<Duration>,
    /// Between two rounds.
    pub every: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |count: u64| Some(Duration::from_secs(count * 24 * 3600));
        Self { runs: days(90), audit: days(365), members: days(7), every: Duration::from_secs(600) }
    }
}

/// Rows deleted in one transaction: few enough that nobody has to wait for it.
const BATCH: u32 = 200;
/// Between two batches, so that a long backlog leaves the database to others.
const BREATH: Duration = Duration::from_millis(50);

#[allow(missing_debug_implementations, reason = "made of trait objects")]
pub struct ControllerParts {
    pub store: SharedStore,
    pub elector: Arc<Elector>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub metrics: ControllerMetrics,
    pub retention: Retention,
    pub signals: Signalling,
    pub sole_instance: bool,
}

#[derive(Debug)]
pub struct Controller {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Controller {
    pub fn start(parts: ControllerParts) -> Self {
        let stop = CancellationToken::new();
        let (parts, stopped) = (Arc::new(parts), stop.clone());
        let task = tokio::spawn(async move {
            let work = || run(Arc::clone(&parts), stopped.clone());
            tirelessly("controller", &*parts.clock, &parts.metrics.panics, &stopped, work).await;
        });
        Self { stop, task }
    }

    /// Finishes the batch in hand and gives the scope back.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(panic) = self.task.await {
            tracing::error!(%panic, "the controller panicked");
        }
    }
}

/// A panic drops the term and the candidacy, and with them the lease: the next to lead may be another replica.
async fn run(parts: Arc<ControllerParts>, stop: CancellationToken) {
    let mut candidacy = parts.elector.campaign(Campaign {
        component: COMPONENT.into(),
        scopes: vec![Scope::new(CONTROLLER_SCOPE)],
        note: String::new(),
        sole_instance: parts.sole_instance,
    });
    while let Some(Some(tenure)) = stop.run_until_cancelled(candidacy.elected()).await {
        tokio::select! {
            biased;
            () = tenure.lost().cancelled() => {}
            () = tenure.asked_back().cancelled() => {}
            () = stop.cancelled() => {}
            () = keep_house(&parts, &tenure) => {}
            () = drains::carry_out(&parts) => {}
            () = signals::keep_watch(&parts, &tenure) => {}
        }
        tenure.resign().await;
    }
    candidacy.withdraw().await;
}

/// Round after round. Returns only when the fence says that somebody else does it now.
async fn keep_house(parts: &ControllerParts, tenure: &Tenure) {
    loop {
        for chore in [Chore::Runs, Chore::Audit, Chore::Members] {
            match chore.done(parts, tenure).await {
                Ok(0) => {}
                Ok(gone) => {
                    tracing::info!(what = chore.name(), gone, "deleted what was older than it is kept")
                }
                Err(StoreError::Fenced { .. }) => return tenure.fenced(),
                Err(error) => {
                    parts.metrics.errors.inc();
                    tracing::warn!(what = chore.name(), error = %with_causes(&error), "could not tidy up; later");
                }
            }
        }
        let every = parts.retention.every;
        tokio::time::sleep(every + parts.entropy.jitter(every / 10)).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Chore {
    Runs,
    Audit,
    Members,
}

impl Chore {
    fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Audit => "audit rows",
            Self::Members => "members",
        }
    }

    /// Batch after batch, until nothing is left. Answers with how much went.
    async fn done(self, parts: &ControllerParts, tenure: &Tenure) -> Result<u64, StoreError> {
        let Retention { runs, audit, members, .. } = parts.retention;
        let kept = match self {
            Self::Runs => runs,
            Self::Audit => audit,
            Self::Members => members,
        };
        let Some(kept) = kept else { return Ok(0) };
        let before = parts.clock.now() - kept;
        let mut gone = 0;
        loop {
            let Ok(guard) = tenure.guard() else { return Ok(gone) };
            let deleted = match self {
                Self::Runs => parts.store.delete_old_runs(&guard, before, BATCH).await?,
                Self::Audit => parts.store.delete_old_audit(&guard, before, BATCH).await?,
                Self::Members => parts.store.delete_old_members(&guard, before, BATCH).await?,
            };
            parts.metrics.deleted.get_or_create(&What { what: self.name() }).inc_by(deleted);
            gone += deleted;
            if deleted == 0 {
                return Ok(gone);
            }
            tokio::time::sleep(BREATH).await;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    deleted: Family<What, Counter>,
    errors: Counter,
    panics: Counter,
    pub(crate) signals: SignalMetrics,
}

impl ControllerMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { signals: SignalMetrics::register(registry), ..Self::default() };
        registry.register(
            "tenure_retention_deleted",
            "Rows deleted because they were older than they are kept",
            metrics.deleted.clone(),
        );
        registry.register("tenure_retention_errors", "Chores that failed", metrics.errors.clone());
        registry.register(
            "tenure_controller_panics",
            "Panics of the controller, after each of which it started over",
            metrics.panics.clone(),
        );
        metrics
    }
}
