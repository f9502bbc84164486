//! The bounded pool between the scheduler's pass and the executors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tenure_clock::{BootTime, Clock};
use tenure_model::{FailReason, Report, ReportBody};
use tenure_store::SharedStore;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::prepare::{Binding, SecretSource, prepare};
use crate::{AssignError, Executor};

/// How many hand-overs run at once, and how many may wait behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    pub workers: usize,
    pub queue: usize,
}

impl PoolSize {
    /// One machine: handing over is a matter of microseconds.
    pub const LITE: PoolSize = PoolSize { workers: 1, queue: 1 };
    /// Remote executors take milliseconds to seconds.
    pub const PRO: PoolSize = PoolSize { workers: 16, queue: 256 };
}

const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub struct DispatchPool {
    shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Queued>,
}

/// Room for one binding, from before it is committed until its hand-over is done. Several owners share a pool;
/// whoever has a place cannot lose it to another.
#[derive(Debug)]
pub struct Place {
    crowd: Arc<Crowd>,
}

/// How many places are taken.
#[derive(Debug)]
struct Crowd {
    taken: AtomicUsize,
    freed: watch::Sender<u64>,
    depth: Gauge,
}

impl Crowd {
    fn enter(self: &Arc<Self>) -> Place {
        self.depth.inc();
        Place { crowd: Arc::clone(self) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.taken.fetch_sub(1, Ordering::AcqRel);
        self.crowd.depth.dec();
        self.crowd.freed.send_modify(|count| *count += 1);
    }
}

/// A binding in line; the line is as long as there are places.
struct Queued {
    binding: Binding,
    place: Place,
    since: BootTime,
}

struct Shared {
    size: PoolSize,
    workers: Arc<Semaphore>,
    crowd: Arc<Crowd>,
    store: SharedStore,
    executor: Arc<dyn Executor>,
    secrets: Arc<dyn SecretSource>,
    clock: Arc<dyn Clock>,
    /// What went wrong before an agent could speak for the attempt.
    failures: mpsc::UnboundedSender<Report>,
    metrics: DispatchMetrics,
}

impl std::fmt::Debug for DispatchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchPool")
            .field("size", &self.shared.size)
            .field("crowd", &self.shared.crowd)
            .finish()
    }
}

impl DispatchPool {
    pub fn new(
        size: PoolSize,
        store: SharedStore,
        executor: Arc<dyn Executor>,
        secrets: Arc<dyn SecretSource>,
        clock: Arc<dyn Clock>,
        failures: mpsc::UnboundedSender<Report>,
        metrics: DispatchMetrics,
    ) -> Self {
        let shared = Shared {
            size,
            workers: Arc::new(Semaphore::new(size.workers)),
            crowd: Arc::new(Crowd {
                taken: AtomicUsize::new(0),
                freed: watch::Sender::new(0),
                depth: metrics.queue_depth.clone(),
            }),
            store,
            executor,
            secrets,
            clock,
            failures,
            metrics,
        };
        let (queue, line) = mpsc::unbounded_channel();
        let shared = Arc::new(shared);
        tokio::spawn(serve_line(Arc::clone(&shared), line));
        Self { shared, queue }
    }

    /// A place for one more binding, if there is one.
    pub fn place(&self) -> Option<Place> {
        let crowd = &self.shared.crowd;
        let room = self.shared.size.workers + self.shared.size.queue;
        let enter = |taken| (taken < room).then_some(taken + 1);
        crowd.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok().then(|| crowd.enter())
    }

    /// A place whether or not there is room: for bindings that a takeover finds in the database already.
    pub fn extra_place(&self) -> Place {
        self.shared.crowd.taken.fetch_add(1, Ordering::AcqRel);
        self.shared.crowd.enter()
    }

    /// Changes when a place is free again.
    pub fn freed(&self) -> watch::Receiver<u64> {
        self.shared.crowd.freed.subscribe()
    }

    /// A pass had more to hand out than there was room for.
    pub fn was_full(&self) {
        self.shared.metrics.at_capacity.inc();
    }

    /// Takes a committed binding.
    pub fn offer(&self, binding: Binding, place: Place) {
        let queued = Queued { binding, place, since: self.shared.clock.boottime() };
        // The line ends with the runtime; then the next owner finds the binding in the database.
        let _ = self.queue.send(queued);
    }

    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.shared.executor
    }

    /// Passes a stop on to the attempt's node, outside of any pass.
    pub fn stop(&self, node: tenure_model::NodeId, attempt: tenure_model::AttemptId) {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { shared.executor.stop(&node, attempt).await });
    }
}

/// First come, first served: the scheduler has put them in order.
async fn serve_line(shared: Arc<Shared>, mut line: mpsc::UnboundedReceiver<Queued>) {
    while let Some(queued) = line.recv().await {
        let workers = Arc::clone(&shared.workers);
        let permit = workers.acquire_owned().await.expect("the semaphore is never closed");
        tokio::spawn(Arc::clone(&shared).hand_over(queued, permit));
    }
}

impl Shared {
    async fn hand_over(self: Arc<Self>, queued: Queued, permit: OwnedSemaphorePermit) {
        let Queued { binding, place, since } = queued;
        let (node, scope) = (binding.node.clone(), binding.scope.clone());
        let (attempt, ti) = (binding.attempt, binding.ti);
        // A task of its own, so that a panic in a template or an executor costs this attempt alone.
        let worker = tokio::spawn({
            let shared = Arc::clone(&self);
            async move { shared.assign(binding).await }
        });
        let undelivered = match worker.await {
            Ok(delivered) => delivered.err(),
            Err(panic) => {
                self.metrics.panics.inc();
                tracing::error!(%attempt, %panic, "dispatch panicked");
                Some(cannot_start("an internal error while preparing it; the server's log has the details"))
            }
        };
        drop(permit);
        if matches!(undelivered, Some(Undelivered { failure: None })) {
            // It will be placed again, most likely right here: not as fast as it can be refused.
            tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
        }
        if let Some(Undelivered { failure }) = undelivered {
            let body = ReportBody::Undelivered { attempt, ti, failure, at: self.clock.now() };
            // A closed channel means that the scheduler has stopped; a later owner finds the attempt queued.
            let _ = self.failures.send(Report { node, scope, body });
        }
        let waited = self.clock.boottime().saturating_since(since);
        self.metrics.latency.observe(waited.as_secs_f64());
        drop(place);
    }

    /// `Ok`: somebody else will speak for it from now on.
    async fn assign(&self, binding: Binding) -> Result<(), Undelivered> {
        let assignment = match prepare(&binding, &*self.store, &*self.secrets).await {
            Ok(assignment) => assignment,
            // The database's trouble is not the task's.
            Err(error) if error.is_temporary() => {
                tracing::warn!(attempt = %binding.attempt, %error, "cannot be prepared now");
                return Err(Undelivered { failure: None });
            }
            Err(error) => return Err(cannot_start(&error.to_string())),
        };
        match self.executor.assign(assignment).await {
            Ok(()) => Ok(()),
            Err(error @ AssignError::NotTaken { .. }) => {
                tracing::warn!(attempt = %binding.attempt, %error, "assignment not taken");
                Err(Undelivered { failure: None })
            }
            Err(error @ AssignError::StaleEpoch { .. }) => {
                tracing::warn!(attempt = %binding.attempt, %error, "assignment refused");
                Ok(())
            }
        }
    }
}

/// The node did not get it. Without a failure it may be placed again.
struct Undelivered {
    failure: Option<FailReason>,
}

fn cannot_start(error: &str) -> Undelivered {
    Undelivered { failure: Some(FailReason::CannotStart { error: error.to_owned() }) }
}

#[derive(Clone, Debug)]
pub struct DispatchMetrics {
    queue_depth: Gauge,
    at_capacity: Counter,
    latency: Histogram,
    panics: Counter,
}

impl DispatchMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            queue_depth: Gauge::default(),
            at_capacity: Counter::default(),
            // 0.1 ms … 1.6 s in steps of four.
            latency: Histogram::new(exponential_buckets(0.0001, 4.0, 8)),
            panics: Counter::default(),
        };
        let (depth, latency) = (metrics.queue_depth.clone(), metrics.latency.clone());
        registry.register(
            "tenure_dispatch_queue_depth",
            "Bindings being handed over or waiting for it",
            depth,
        );
        registry.register(
            "tenure_dispatch_at_capacity",
            "Passes that left tasks scheduled because the dispatch pool was full",
            metrics.at_capacity.clone(),
        );
        registry.register(
            "tenure_dispatch_latency_seconds",
            "From the commit of a binding to its agent",
            latency,
        );
        registry.register("tenure_dispatch_panics", "Hand-overs that panicked", metrics.panics.clone());
        metrics
    }
}
