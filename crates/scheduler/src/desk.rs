//! Where every report of every agent comes in, whoever owns its run.
//!
//! The owner in this process is the fast way: its next pass takes the report in. Without one, or when it has been
//! deposed meanwhile, the report is written to the database here, guarded by its attempt id, and the owner
//! elsewhere is told to look. Either way the answer goes out after a commit.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tenure_clock::Clock;
use tenure_lease::with_causes;
use tenure_model::{Ack, Held, NodeId, Report};
use tenure_store::SharedStore;
use tokio::sync::{mpsc, oneshot};

use crate::inbox::ReportInbox;
use crate::metrics::SchedulerMetrics;

/// Cloning shares it.
#[derive(Clone, Debug)]
pub struct ReportDesk {
    owners: Arc<RwLock<HashMap<String, ReportInbox>>>,
    unowned: mpsc::UnboundedSender<Unowned>,
}

type Unowned = (Report, oneshot::Sender<Ack>);

/// Reports written in one transaction.
const BATCH: usize = 500;

impl ReportDesk {
    pub(crate) fn open(store: SharedStore, clock: Arc<dyn Clock>, metrics: SchedulerMetrics) -> Self {
        let (unowned, line) = mpsc::unbounded_channel();
        tokio::spawn(record(line, Arc::new(Recorder { store, clock, metrics })));
        Self { owners: Arc::default(), unowned }
    }

    /// A node holds these attempts of the scope. Without an owner here it does not matter: whoever owns it finds them too.
    pub(crate) fn found(&self, scope: &str, node: &NodeId, held: Vec<Held>) {
        if let Some(inbox) = self.owner(scope) {
            inbox.put_found(node.clone(), held);
        }
    }

    fn owner(&self, scope: &str) -> Option<ReportInbox> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).get(scope).cloned()
    }

    /// Resolves once the report's effect is committed, or with `Retry` when it could not be.
    pub async fn submit(&self, report: Report) -> Ack {
        if let Some(inbox) = self.owner(&report.scope)
            && let Some(ack) = inbox.submit(report.clone()).await
        {
            return ack;
        }
        let (answer, ack) = oneshot::channel();
        // Both ends go only with the runtime; the agent asks again elsewhere.
        let _ = self.unowned.send((report, answer));
        ack.await.unwrap_or(Ack::Retry)
    }

    /// Sends the scope's reports to this inbox until the answer is dropped.
    pub(crate) fn route(&self, scope: &str, inbox: ReportInbox) -> Route {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.insert(scope.to_owned(), inbox.clone());
        Route { desk: self.clone(), scope: scope.to_owned(), inbox }
    }
}

/// An owner at work. Dropping it closes its inbox: what waited there takes the other way.
pub(crate) struct Route {
    desk: ReportDesk,
    scope: String,
    inbox: ReportInbox,
}

impl Drop for Route {
    fn drop(&mut self) {
        let mut owners = self.desk.owners.write().unwrap_or_else(PoisonError::into_inner);
        // A later term of the same scope may have begun.
        if owners.get(&self.scope).is_some_and(|current| current.is_same(&self.inbox)) {
            owners.remove(&self.scope);
        }
        drop(owners);
        self.inbox.close();
    }
}

/// Writes the reports that no owner in this process takes.
struct Recorder {
    store: SharedStore,
    clock: Arc<dyn Clock>,
    metrics: SchedulerMetrics,
}

/// While one transaction is under way the next ones gather: many reports cost few commits.
async fn record(mut line: mpsc::UnboundedReceiver<Unowned>, recorder: Arc<Recorder>) {
    let mut batch = Vec::with_capacity(BATCH);
    while line.recv_many(&mut batch, BATCH).await > 0 {
        let (reports, answers): (Vec<Report>, Vec<_>) = batch.drain(..).unzip();
        for (answer, ack) in answers.into_iter().zip(recorder.record(reports.into()).await) {
            let _ = answer.send(ack); // as above
        }
    }
}

impl Recorder {
    /// A report that panics costs no other: after a panic each is written by itself. Whoever sent it waits longer
    /// each time before it is sent again.
    async fn record(self: &Arc<Self>, reports: Arc<[Report]>) -> Vec<Ack> {
        if let Some(acks) = self.write(Arc::clone(&reports)).await {
            return acks;
        }
        let mut acks = vec![];
        for report in reports.iter() {
            let alone = self.write(Arc::new([report.clone()])).await;
            acks.push(alone.and_then(|acks| acks.first().copied()).unwrap_or(Ack::Retry));
        }
        acks
    }

    /// In a task of its own. `None`: it panicked.
    async fn write(self: &Arc<Self>, reports: Arc<[Report]>) -> Option<Vec<Ack>> {
        let recorder = Arc::clone(self);
        let written = tokio::spawn(async move { recorder.store_all(&reports).await }).await;
        written
            .inspect_err(|panic| {
                tracing::error!(%panic, "recording reports panicked");
                self.metrics.report_panics.inc();
            })
            .ok()
    }

    async fn store_all(&self, reports: &[Report]) -> Vec<Ack> {
        let acks = match self.store.record_reports(reports, self.clock.now()).await {
            Ok(acks) => acks,
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "reports could not be recorded; agents send them again");
                vec![Ack::Retry; reports.len()]
            }
        };
        let recorded = acks.iter().filter(|ack| **ack != Ack::Retry).count() as u64;
        self.metrics.reports_recorded.inc_by(recorded);
        acks
    }
}
