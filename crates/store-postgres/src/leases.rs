//! Leases and fences on Postgres, with or without a whole state database around them.
//!
//! Promises: lease traffic has connections of its own, and renewals never queue behind takeovers; an acquire
//! installs the fence in the same transaction; every verb ends in bounded time. Hints (a notification for each
//! change, an early word of a crash) make things faster and are never needed.

mod hints;
mod lifeline;
mod tables;
mod verbs;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use tenure_clock::Entropy;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, ExpiryClock, FenceStore, Hint, LeaseError,
    LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tenure_store::StoreError;
use tokio::sync::broadcast;
use tokio_postgres::Config;
use tokio_util::task::AbortOnDropHandle;

use crate::PostgresStore;
use crate::connect::{self, ConnectError};

/// A renewal takes a few milliseconds where the database is near, and is to be tried three times.
const MINIMUM_DURATION: Duration = Duration::from_millis(100);
/// How many hints a slow watcher may lag behind.
const HINTS: usize = 256;

#[derive(Clone, Debug)]
pub struct PostgresLeaseOptions {
    /// Shown by `pg_stat_activity`.
    pub application_name: String,
    pub epochs: EpochMint,
}

impl Default for PostgresLeaseOptions {
    fn default() -> Self {
        Self { application_name: "tenure".into(), epochs: EpochMint::default() }
    }
}

/// Where the next epoch comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EpochMint {
    /// One more than the last.
    #[default]
    Counting,
    /// At least the number of milliseconds since 1970 on the database's clock. For a database whose failover
    /// may lose the newest commits (asynchronous replication): an epoch that was lost is not handed out again.
    Clock,
}

impl EpochMint {
    fn by_clock(self) -> bool {
        self == Self::Clock
    }
}

/// Leases in a Postgres database. It finds its way back by itself after the server was away.
pub struct PostgresLeases {
    /// For renewals and releases: nothing they could queue behind is sent here.
    keeping: Pool,
    /// For everything else; an acquire may wait for a fence.
    taking: Pool,
    /// For connections that are nobody else's.
    config: Config,
    epochs: EpochMint,
    hints: broadcast::Sender<Hint>,
    /// That a pooler makes crash hints impossible was said.
    warned: AtomicBool,
    _listener: AbortOnDropHandle<()>,
}

impl fmt::Debug for PostgresLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLeases")
            .field("epochs", &self.epochs)
            .field("keeping", &self.keeping.status())
            .field("taking", &self.taking.status())
            .finish()
    }
}

impl PostgresLeases {
    /// Connects to any database, and makes the tables of leases if they are absent.
    pub async fn connect(
        url: &str,
        options: PostgresLeaseOptions,
        entropy: &Entropy,
    ) -> Result<Self, ConnectError> {
        let config = connect::configure_leases(url, &options.application_name)?;
        let target = connect::target(&config);
        let setup = connect::pool(&config, 1);
        connect::reach(&setup, &target).await?;
        tables::ensure(&setup, &target).await?;
        Self::over(config, options.epochs, entropy).await
    }

    /// In a database that has the tables.
    pub(crate) async fn over(
        config: Config,
        epochs: EpochMint,
        entropy: &Entropy,
    ) -> Result<Self, ConnectError> {
        let target = connect::target(&config);
        let keeping = connect::lease_pool(&config, &[verbs::RENEW, verbs::RELEASE]);
        let taking = connect::lease_pool(&config, &[verbs::MAKE_OR_LOCK, verbs::TAKE]);
        // Open and ready, so that the first takeover pays for neither a connection nor a plan.
        connect::reach(&keeping, &target).await?;
        connect::reach(&taking, &target).await?;
        let hints = broadcast::Sender::new(HINTS);
        let listener = hints::follow(config.clone(), entropy, hints.clone());
        Ok(Self {
            keeping,
            taking,
            config,
            epochs,
            hints,
            warned: AtomicBool::new(false),
            _listener: listener,
        })
    }
}

#[async_trait]
impl LeaseStore for PostgresLeases {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "postgres",
            minimum_duration: MINIMUM_DURATION,
            clock: ExpiryClock::Store,
            fenced_transactions: true,
            crash_hints: true,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        if request.duration < MINIMUM_DURATION {
            let asked = request.duration;
            let text = format!("a lease on Postgres lasts at least {MINIMUM_DURATION:?}, not {asked:?}");
            return Err(LeaseError::Refused(text));
        }
        verbs::acquire(&self.taking, request, self.epochs).await.map_err(lost)
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        verbs::renew(&self.keeping, claims).await.map_err(lost)
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        verbs::release(&self.keeping, claim).await.map_err(lost)
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        verbs::list(&self.taking, under).await.map_err(lost)
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        verbs::find(&self.taking, scope).await.map_err(lost)
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        verbs::history(&self.taking, scope, limit).await.map_err(lost)
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        let attached = lifeline::attach(&self.config, session, self.hints.clone()).await;
        let lifeline = attached.map_err(|error| LeaseError::Unavailable(error.into()))?;
        if let Err(why) = lifeline.working()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("no crash hints: {why}");
        }
        Ok(Some(Box::new(lifeline)))
    }
}

#[async_trait]
impl FenceStore for PostgresLeases {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        verbs::install_fence(&self.taking, scope, term, floor, self.epochs).await.map_err(lost)
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        verbs::fence(&self.taking, scope).await.map_err(lost)
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        self.leases.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.leases.acquire(request).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.leases.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.leases.release(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.leases.list_leases(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.leases.find_lease(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.leases.lease_history(scope, limit).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.leases.watch()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.leases.attach(session).await
    }
}

#[async_trait]
impl FenceStore for PostgresStore {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.leases.install_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.leases.fence(scope).await
    }
}

fn lost(error: StoreError) -> LeaseError {
    match error {
        StoreError::Unknown { .. } => LeaseError::Ambiguous(error.into()),
        StoreError::Unavailable { .. } => LeaseError::Unavailable(error.into()),
        StoreError::Conflict(why) => LeaseError::Refused(why),
        StoreError::Corrupt { .. } | StoreError::Fenced { .. } | StoreError::NotFound(_) => {
            LeaseError::Refused(error.to_string())
        }
    }
}
