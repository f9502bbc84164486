//! The verbs of a lease store over one writer and its readers, and the state database as a lease store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tenure_clock::Clock;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, ExpiryClock, FenceStore, Hint, LeaseError,
    LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tokio::sync::broadcast;

use crate::SqliteStore;
use crate::errors::{Fail, lease_error};
use crate::readers::Readers;
use crate::writer::{Urgency, Writer};

/// A commit takes milliseconds, and tens of them on a bad day: below this a renewal may come too late.
const MINIMUM: Duration = Duration::from_millis(100);

/// What the verbs need of whoever offers them.
#[derive(Clone, Copy)]
pub(super) struct Verbs<'a> {
    pub(super) writer: &'a Writer,
    /// `None`: everything goes through the one connection that sees the database.
    pub(super) readers: Option<&'a Readers>,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) hints: &'a broadcast::Sender<Hint>,
}

pub(super) fn capabilities(crash_hints: bool) -> Capabilities {
    Capabilities {
        name: "sqlite",
        minimum_duration: MINIMUM,
        clock: ExpiryClock::Store,
        fenced_transactions: true,
        crash_hints,
    }
}

impl Verbs<'_> {
    pub(super) async fn acquire(self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        if request.duration < MINIMUM {
            let shortest = format!("a lease of {:?} is too short: at least {MINIMUM:?}", request.duration);
            return Err(LeaseError::Refused(shortest));
        }
        let asked = request.clone();
        let work = move |conn: &Connection, now| super::acquire(conn, &asked, now);
        let outcome = self.write("acquiring a lease", work).await?;
        if matches!(outcome, AcquireOutcome::Granted(_)) {
            self.tell(&request.scope);
        }
        Ok(outcome)
    }

    pub(super) async fn renew(self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let claims = claims.to_vec();
        let renew_all = move |conn: &Connection, now| {
            claims.iter().map(|claim| super::renew(conn, claim, now)).collect::<Result<_, _>>()
        };
        self.write("renewing leases", renew_all).await
    }

    pub(super) async fn release(self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let asked = claim.clone();
        let work = move |conn: &Connection, now| super::release(conn, &asked, now);
        let outcome = self.write("releasing a lease", work).await?;
        if outcome == ReleaseOutcome::Released {
            self.tell(&claim.scope);
        }
        Ok(outcome)
    }

    pub(super) async fn list(self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        let under = under.to_owned();
        self.read("listing leases", move |conn, now| super::list(conn, &under, now)).await
    }

    pub(super) async fn find(self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        let scope = scope.clone();
        self.read("looking for a lease", move |conn, now| super::find(conn, &scope, now)).await
    }

    pub(super) async fn history(self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        let scope = scope.clone();
        self.read("reading past terms", move |conn, _| super::history(conn, &scope, limit)).await
    }

    pub(super) async fn install_fence(
        self,
        scope: &Scope,
        term: Term,
        floor: Epoch,
    ) -> Result<Epoch, LeaseError> {
        let scope = scope.clone();
        let work = move |conn: &Connection, _| super::install_fence(conn, &scope, term, floor);
        self.write("installing a fence", work).await
    }

    pub(super) async fn fence(self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        let scope = scope.clone();
        self.read("reading a fence", move |conn, _| super::fence(conn, &scope)).await
    }

    fn tell(&self, scope: &Scope) {
        // Nobody may be listening.
        let _ = self.hints.send(Hint::Changed(scope.clone()));
    }

    /// The time is read once nobody else writes any more: a wait for the file does not make it old.
    pub(super) async fn write<T, F>(self, doing: &'static str, work: F) -> Result<T, LeaseError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T, Fail> + Send + 'static,
    {
        let clock = Arc::clone(self.clock);
        let work = self.writer.run(Urgency::Lease, doing, move |tx| work(tx, clock.now().as_microsecond()));
        work.await.map_err(lease_error)
    }

    async fn read<T, F>(self, doing: &'static str, work: F) -> Result<T, LeaseError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T, Fail> + Send + 'static,
    {
        let Some(readers) = self.readers else { return self.write(doing, work).await };
        let clock = Arc::clone(self.clock);
        readers.run(doing, move |conn| work(conn, clock.now().as_microsecond())).await.map_err(lease_error)
    }
}

impl SqliteStore {
    fn lease_verbs(&self) -> Verbs<'_> {
        Verbs {
            writer: &self.writer,
            readers: self.readers.as_ref(),
            clock: &self.office.clock,
            hints: &self.hints,
        }
    }
}

#[async_trait]
impl LeaseStore for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        capabilities(false)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.lease_verbs().acquire(request).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.lease_verbs().renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.lease_verbs().release(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.lease_verbs().list(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.lease_verbs().find(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.lease_verbs().history(scope, limit).await
    }

    /// One process has the file, so what happens inside it is all that happens.
    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    /// Nobody else may open the file, so there is nobody to tell of a crash.
    async fn attach(&self, _: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        Ok(None)
    }
}

#[async_trait]
impl FenceStore for SqliteStore {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.lease_verbs().install_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.lease_verbs().fence(scope).await
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a store in memory, where everything goes through one connection, keeps leases as every backend does.

    use tenure_clock::SystemClock;
    use tenure_lease_conformance::Fresh;

    use super::*;
    use crate::SqliteOptions;

    async fn in_memory() -> Fresh {
        let store = SqliteStore::in_memory(SqliteOptions::default(), Arc::new(SystemClock)).expect("opened");
        let store = Arc::new(store);
        let forgetful = Arc::clone(&store);
        let forget_leases = Box::new(move || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
            let store = Arc::clone(&forgetful);
            Box::pin(async move {
                let forgotten = store.write("forgetting", |tx, _| Ok(tx.execute("DELETE FROM leases", [])?));
                forgotten.await.expect("deleted");
            })
        });
        Fresh { leases: store.clone(), fences: store, forget_leases, keep: Box::new(()) }
    }

    tenure_lease_conformance::exercise!(in_memory);
}
