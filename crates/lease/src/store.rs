//! What a lease backend does: three verbs, each a compare-and-swap, listings, and hints.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{Epoch, Holder, LeaseRecord, PastTerm, Scope, Session, Term};

/// A backend that keeps leases. Its own clock decides what has expired.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// Takes a lease that is absent, released or expired, or that the [`Takeover`] names. The same term
    /// asking again gets the same answer: a lost reply is repaired by repeating the call.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError>;

    /// Renews many leases in one round trip, with an outcome for each, in the order asked.
    /// An expired term is lost, never revived. A term that was [`Won`](AcquireOutcome::Won) has no epoch on
    /// record yet: its first renewal writes it there.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError>;

    /// Gives a lease back if, and only if, this very term still holds it.
    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError>;

    /// Every lease whose scope begins with `under`, in order of scope; an empty text lists them all.
    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError>;

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError>;

    /// The latest terms of a scope, newest first. Stores keep at least the latest [`HISTORY`].
    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError>;

    /// Hints that something has changed. They may be lost, repeated, late or wrong: whoever gets one looks.
    /// A receiver that lags behind has to look at everything.
    fn watch(&self) -> broadcast::Receiver<Hint>;

    /// Ties this process's life to something that the backend sees end, so that peers learn of a crash
    /// before the lease runs out. `None`: this backend has no such thing.
    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError>;
}

/// How many terms of a scope a store remembers.
pub const HISTORY: usize = 50;

/// Where epochs are minted: the database that holds the state, whatever the leases are kept in.
#[async_trait]
pub trait FenceStore: Send + Sync {
    /// Makes this term the only one that may write in the scope, under an epoch above `floor` and above all
    /// that went before. Waits for privileged writes in flight. The same term asking again gets the same epoch.
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError>;

    /// Who may write, as of now. For people and tests: a write is checked inside its own transaction.
    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError>;
}

/// What a backend can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// As in `--backend`: `sqlite`, `postgres`, `etcd`, `memory`, `http`.
    pub name: &'static str,
    /// Shorter leases are refused.
    pub minimum_duration: Duration,
    pub clock: ExpiryClock,
    /// An acquire installs the fence in the same transaction. Otherwise the winner does it, first thing.
    pub fenced_transactions: bool,
    pub crash_hints: bool,
}

/// Whose clock says that a lease has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryClock {
    /// The store's wall clock, which somebody may set back.
    Store,
    /// The store counts elapsed time, which only goes forward.
    StoreElapsed,
    /// Each observer counts from when it last saw the record change.
    Observer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The lease of this scope was taken, given back or removed.
    Changed(Scope),
    /// This process seems to have died.
    Crashed(Session),
    /// Hints may have been lost: look at everything.
    Resync,
}

/// A tie between the life of this process and the backend. Dropping it ends the tie in order.
pub trait Lifeline: Send + Sync + std::fmt::Debug {
    /// Whose death to tell, from now on.
    fn watch_peers(&self, peers: &[Session]);

    /// Fires when the tie is cut while this process lives: peers may take it for dead.
    fn cut(&self) -> &CancellationToken;

    /// `Err` says why no hints come from here (a pooler in between, for instance).
    fn working(&self) -> Result<(), String>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    pub scope: Scope,
    pub holder: Holder,
    /// Fresh for every campaign.
    pub term: Term,
    pub duration: Duration,
    pub takeover: Takeover,
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Only what nobody holds.
    IfFree,
    /// Also from this term, because its process is known to be gone. Being wrong costs the other
    /// holder its term and nothing else: every effect in the scope is fenced.
    OfDead(Term),
    /// Also from this term, if its record still has this version: nobody has renewed it for longer than it
    /// lasts on the observer's clock, so the store's clock must have been set back.
    OfStalled { term: Term, resource_version: u64 },
}

impl Takeover {
    /// Whether a lease that is still held may be taken all the same.
    pub fn covers(&self, term: Term, resource_version: u64) -> bool {
        match *self {
            Self::IfFree => false,
            Self::OfDead(dead) => dead == term,
            Self::OfStalled { term: stalled, resource_version: seen } => {
                stalled == term && seen == resource_version
            }
        }
    }
}

/// What a holder says it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub scope: Scope,
    pub term: Term,
    pub epoch: Epoch,
    pub duration: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AcquireOutcome {
    /// Held, and its fence is installed.
    Granted(LeaseRecord),
    /// Held, but not yet fenced: install the fence, then renew, and only then act.
    Won(LeaseRecord),
    /// Somebody else's.
    Held(LeaseRecord),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    Renewed,
    Lost(LossReason),
    /// Whether this one was renewed is not known: its row was busy, say. Validity is not extended; ask again.
    Unanswered,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    #[error("it expired before the renewal arrived")]
    Expired,
    #[error("{holder} holds it now, at {epoch}")]
    Superseded { holder: Holder, epoch: Epoch },
    #[error("its record is gone")]
    Gone,
    #[error("the holder's own deadline passed without a successful renewal")]
    DeadlinePassed,
    #[error("the machine was suspended")]
    Suspended,
    #[error("it was not given back in time")]
    DrainTimedOut,
    #[error("a write was refused: the fence has moved on")]
    Fenced,
    #[error("the elector itself has failed")]
    Confused,
}

impl LossReason {
    /// For metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Superseded { .. } => "superseded",
            Self::Gone => "gone",
            Self::DeadlinePassed => "deadline",
            Self::Suspended => "suspended",
            Self::DrainTimedOut => "drain_timeout",
            Self::Fenced => "fenced",
            Self::Confused => "confused",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    Released,
    /// Somebody else holds it, or nobody: nothing was changed.
    NotApplied,
}

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Nothing was changed.
    #[error("the lease store cannot be reached")]
    Unavailable(#[source] BoxError),
    /// The answer was lost: it may or may not have been applied. It never extends validity.
    #[error("the lease store's answer was lost")]
    Ambiguous(#[source] BoxError),
    /// Asking again will not help.
    #[error("the lease store refuses: {0}")]
    Refused(String),
}

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error with its causes, on one line: the outermost says where, the innermost what.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// One try at a lease, fence included, for callers that have no elector: wins it or says who has it.
pub async fn acquire_fenced(
    leases: &dyn LeaseStore,
    fences: &dyn FenceStore,
    request: &AcquireRequest,
) -> Result<AcquireOutcome, LeaseError> {
    let won = match leases.acquire(request).await? {
        AcquireOutcome::Won(record) => record,
        settled => return Ok(settled),
    };
    // The lease is taken already: from here on a failure leaves something behind.
    let epoch = fences.install_fence(&won.scope, won.term, won.epoch).await.map_err(half_done)?;
    let claim = Claim { scope: won.scope.clone(), term: won.term, epoch, duration: won.duration };
    match leases.renew(std::slice::from_ref(&claim)).await.map_err(half_done)?.pop() {
        Some(RenewOutcome::Renewed) => Ok(AcquireOutcome::Granted(LeaseRecord { epoch, ..won })),
        // Lost again while the fence was being installed: whoever has it now, this caller does not.
        _ => match leases.find_lease(&won.scope).await.map_err(half_done)? {
            Some(record) if record.is_held() && record.term != won.term => Ok(AcquireOutcome::Held(record)),
            _ => Err(LeaseError::Unavailable("the lease was lost before its fence was installed".into())),
        },
    }
}

fn half_done(error: LeaseError) -> LeaseError {
    match error {
        LeaseError::Unavailable(source) => LeaseError::Ambiguous(source),
        other => other,
    }
}
