//! The backend as others see it. Each verb has a file of its own.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::Clock;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, ExpiryClock, FenceStore, Hint, LeaseError,
    LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tokio::sync::broadcast;

use crate::keys::Keys;
use crate::options::{EtcdOptions, OptionsError};
use crate::watching::{HINTS, Watching};
use crate::wire::Wire;

/// etcd raises shorter ones to 1.5 times its election timeout, which is a second unless somebody has changed it.
pub(crate) const MINIMUM: Duration = Duration::from_secs(2);

/// How often a compare-and-swap is tried again. Each failure means that somebody else has succeeded, so many in a
/// row mean a crowd.
pub(crate) const ROUNDS: usize = 32;

/// Leases in etcd. Connects with the first call, and again whenever it has to; belongs inside a tokio runtime.
pub struct EtcdLeases {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) keys: Keys,
    pub(crate) wire: Wire,
    options: EtcdOptions,
    hints: broadcast::Sender<Hint>,
    watching: OnceLock<Watching>,
}

impl EtcdLeases {
    /// Does not wait for etcd: whether it is there shows with the first call.
    pub fn open(options: EtcdOptions, clock: Arc<dyn Clock>) -> Result<Self, OptionsError> {
        let (keys, wire) = (Keys::under(&options.prefix), Wire::new(&options)?);
        let hints = broadcast::Sender::new(HINTS);
        Ok(Self { clock, keys, wire, options, hints, watching: OnceLock::new() })
    }

    pub(crate) fn check(&self, scope: &Scope, duration: Duration) -> Result<(), LeaseError> {
        self.keys.check(scope)?;
        if duration < MINIMUM {
            let rule = format!("etcd leases last at least {MINIMUM:?}: use a longer duration for {scope}");
            return Err(LeaseError::Refused(rule));
        }
        Ok(())
    }
}

impl fmt::Debug for EtcdLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdLeases({})", self.options)
    }
}

#[async_trait]
impl LeaseStore for EtcdLeases {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "etcd",
            minimum_duration: MINIMUM,
            clock: ExpiryClock::StoreElapsed,
            fenced_transactions: false,
            crash_hints: false,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.take(request).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.renew_all(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.give_back(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.list(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.find(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.history(scope, limit).await
    }

    /// The first call starts to listen, and needs a tokio runtime for it.
    fn watch(&self) -> broadcast::Receiver<Hint> {
        // Before the watch stands: what it says first is for whoever has come before it.
        let hints = self.hints.subscribe();
        self.watching.get_or_init(|| Watching::start(&self.options, self.keys.clone(), self.hints.clone()));
        hints
    }

    async fn attach(&self, _session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        Ok(None)
    }
}

#[async_trait]
impl FenceStore for EtcdLeases {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.raise_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.current_fence(scope).await
    }
}
