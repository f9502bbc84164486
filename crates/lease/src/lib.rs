#![doc = include_str!("../README.md")]

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
    StatusNews,
};
pub use record::{
    Epoch, Holder, LeaseRecord, MEMBERS, PastTerm, Scope, ScopeError, Session, Succession, Term,
};
pub use store::{
    AcquireOutcome, AcquireRequest, BoxError, Capabilities, Claim, ExpiryClock, FenceStore, HISTORY, Hint,
    LeaseError, LeaseStore, Lifeline, LossReason, ReleaseOutcome, RenewOutcome, Takeover, acquire_fenced,
    with_causes,
};
pub use tenure::{EpochGuard, NotLeading, RenewalStatus, Tenure};
pub use watchdog::WatchdogKind;
