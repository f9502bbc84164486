//! Leases: time-bounded permission for one holder to act in a scope, with an epoch that fences.
//!
//! A lease is permission to *try*; the fence is safety. Whoever holds a lease gets an epoch, minted
//! in the database that holds the state, and every privileged write carries it. A holder that has
//! been paused for an hour can still believe that it leads; its writes are refused all the same.
//!
//! What this crate promises: an [`EpochGuard`] exists only while the holder's own deadline (counted
//! from when the renewal was *sent*, on a clock that counts suspend) has not passed; a term once lost
//! never comes back; a late release cannot blank a successor. What it does not promise: that no two
//! processes ever *believe* to lead. That is what the epoch is for.
//!
//! Authority cannot be made up. Code without a [`Tenure`] has no way to a guard:
//!
//! ```compile_fail
//! let guard = tenure_lease::EpochGuard { scope: todo!(), epoch: todo!(), term: todo!(), _alive: todo!() };
//! ```

mod elector;
mod memory;
mod metrics;
mod protocol;
mod record;
mod share;
mod store;
mod tenure;
mod watchdog;

pub use elector::{
    Candidacy, Elector, ElectorConfig, ElectorError, ElectorParts, LossPolicy, NOT_THE_MASTER,
};
pub use memory::MemoryLeases;
pub use metrics::LeaseMetrics;
pub use protocol::{
    Campaign, CampaignId, Effect, Event, Failure, Listing, Now, Phase, Protocol, Rules, ScopeStatus,
};
pub use record::{
    Epoch, Holder, LeaseRecord, MEMBERS, PastTerm, Scope, ScopeError, Session, Succession, Term,
};
pub use store::{
    AcquireOutcome, AcquireRequest, BoxError, Capabilities, Claim, ExpiryClock, FenceStore, HISTORY, Hint,
    LeaseError, LeaseStore, Lifeline, LossReason, ReleaseOutcome, RenewOutcome, Takeover, acquire_fenced,
};
pub use tenure::{EpochGuard, NotLeading, RenewalStatus, Tenure};
