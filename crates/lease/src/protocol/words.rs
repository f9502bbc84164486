//! What goes into a step and what comes out of it.

use jiff::Timestamp;
use tenure_clock::BootTime;

use crate::store::{
    AcquireOutcome, AcquireRequest, Claim, Hint, LeaseError, LossReason, RenewOutcome, with_causes,
};
use crate::{Epoch, LeaseRecord, Scope, Session, Term};

#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub boot: BootTime,
    pub wall: Timestamp,
}

/// Scopes that this process stands for, together with the other members of the component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// Members of one component share its scopes out evenly.
    pub component: String,
    pub scopes: Vec<Scope>,
    /// Kept in the lease records, for people.
    pub note: String,
    /// No other process of this holder's instance can be alive (the caller holds a lock that says so): what an
    /// earlier one has left behind is taken over at once.
    pub sole_instance: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CampaignId(pub u64);

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Unavailable(String),
    Ambiguous(String),
    Refused(String),
}

impl Failure {
    pub fn text(&self) -> &str {
        match self {
            Self::Unavailable(text) | Self::Ambiguous(text) | Self::Refused(text) => text,
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let text = with_causes(&error);
        match error {
            LeaseError::Unavailable(_) => Self::Unavailable(text),
            LeaseError::Ambiguous(_) => Self::Ambiguous(text),
            LeaseError::Refused(_) => Self::Refused(text),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    Stand(CampaignId, Campaign),
    Withdraw(CampaignId),
    /// The holder has stopped its work.
    Resign {
        scope: Scope,
        term: Term,
    },
    /// Give everything back and end.
    Stop,
    Acquired {
        scope: Scope,
        term: Term,
        sent: BootTime,
        outcome: Result<AcquireOutcome, Failure>,
    },
    Installed {
        scope: Scope,
        term: Term,
        outcome: Result<Epoch, Failure>,
    },
    Renewed {
        sent: BootTime,
        outcome: Result<Vec<RenewOutcome>, Failure>,
    },
    /// Or not: whatever the answer was, nothing more is tried.
    Released {
        scope: Scope,
        term: Term,
    },
    Looked {
        scope: Scope,
        outcome: Result<Option<LeaseRecord>, Failure>,
    },
    Listed {
        campaign: CampaignId,
        outcome: Result<Listing, Failure>,
    },
    Hint(Hint),
    /// Somebody outside has ended the authority: the watchdog.
    Tripped {
        scope: Scope,
        term: Term,
    },
    /// The lifeline is cut: others may take this process for dead.
    Cut,
}

#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub members: Vec<LeaseRecord>,
    /// `None` if it was not asked for.
    pub leases: Option<Vec<LeaseRecord>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Acquire(AcquireRequest),
    Install {
        scope: Scope,
        term: Term,
        floor: Epoch,
    },
    Renew(Vec<Claim>),
    Release(Claim),
    Look(Scope),
    List {
        campaign: CampaignId,
        members_under: String,
        leases_under: Option<String>,
    },
    Elect {
        campaign: CampaignId,
        record: LeaseRecord,
        valid_until: BootTime,
    },
    Extend {
        scope: Scope,
        valid_until: BootTime,
    },
    RenewalFailed {
        scopes: Vec<Scope>,
        why: String,
    },
    AskBack(Scope),
    /// The authority ends because something went wrong.
    Trip {
        scope: Scope,
        reason: LossReason,
    },
    /// The authority ends in order; the release follows.
    End(Scope),
    /// Nothing more happens to this term.
    Settle {
        scope: Scope,
        term: Term,
    },
    WatchPeers(Vec<Session>),
    Withdrawn(CampaignId),
    Stopped,
}

/// Where a scope stands, for people and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Following,
    Acquiring,
    InstallingFence,
    Leading,
    Draining,
    Releasing,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Following => "following",
            Self::Acquiring => "acquiring",
            Self::InstallingFence => "installing_fence",
            Self::Leading => "leading",
            Self::Draining => "draining",
            Self::Releasing => "releasing",
        }
    }
}

#[derive(Clone, Debug)]
pub struct ScopeStatus {
    pub scope: Scope,
    pub component: String,
    /// This process's own seat among the members, not a scope it stands for.
    pub is_member_seat: bool,
    pub phase: Phase,
    /// As last seen: this process's own record while it leads.
    pub record: Option<LeaseRecord>,
    /// Since when nobody has held it, as far as this process knows.
    pub ownerless_since: Option<BootTime>,
    /// What the latest call has failed with.
    pub problem: Option<Failure>,
}

/// A [`ScopeStatus`] in the making. Written over an earlier one it allocates next to nothing, and thousands of leases are
/// renewed every few seconds.
#[derive(Clone, Copy, Debug)]
pub struct StatusNews<'a> {
    pub(super) scope: &'a Scope,
    pub(super) component: &'a str,
    pub(super) is_member_seat: bool,
    pub(super) phase: Phase,
    pub(super) record: Option<&'a LeaseRecord>,
    pub(super) ownerless_since: Option<BootTime>,
    pub(super) problem: Option<&'a Failure>,
}

impl StatusNews<'_> {
    pub fn status(&self) -> ScopeStatus {
        ScopeStatus {
            scope: self.scope.clone(),
            component: self.component.to_owned(),
            is_member_seat: self.is_member_seat,
            phase: self.phase,
            record: self.record.cloned(),
            ownerless_since: self.ownerless_since,
            problem: self.problem.cloned(),
        }
    }

    pub fn write_over(&self, status: &mut ScopeStatus) {
        let ScopeStatus { scope, component, is_member_seat, phase, record, ownerless_since, problem } =
            status;
        scope.clone_from(self.scope);
        self.component.clone_into(component);
        (*is_member_seat, *phase) = (self.is_member_seat, self.phase);
        match (&mut *record, self.record) {
            (Some(before), Some(now)) => before.clone_from(now),
            (_, now) => *record = now.cloned(),
        }
        *ownerless_since = self.ownerless_since;
        *problem = self.problem.cloned();
    }
}
