//! What a lease backend does: three verbs, each a compare-and-swap, and a listing.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Epoch, Holder, LeaseRecord, Scope, Term};

/// A backend that keeps leases. Its own clock decides what has expired.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Takes a lease that is absent, released or expired (or whose holder is known to be dead), and
    /// installs its epoch in the fence in the same transaction. The same term asking again gets the
    /// same answer: a lost reply is repaired by repeating the call.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError>;

    /// Renews many leases in one round trip, with an outcome for each, in the order asked.
    /// An expired term is lost, never revived.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError>;

    /// Gives a lease back if, and only if, this very term still holds it.
    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError>;

    async fn list_leases(&self) -> Result<Vec<LeaseRecord>, LeaseError>;
}

#[derive(Clone, Debug)]
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
    Granted(LeaseRecord),
    Held(LeaseRecord),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    Renewed,
    Lost(LossReason),
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
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer was lost: it may or may not have been applied. It never extends validity.
    #[error("the lease store's answer was lost")]
    Ambiguous(#[source] Box<dyn std::error::Error + Send + Sync>),
}
