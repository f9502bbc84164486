//! One process: a protocol, what its workers hold, and what it has asked for and not heard of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::{BootTime, Entropy};
use tenure_lease::{CampaignId, Epoch, Holder, Lifeline, Now, Protocol, Rules, Scope, Session, Term};

/// One life of a node: messages to an earlier one are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    pub node: usize,
    pub number: u64,
}

impl Life {
    /// Whoever has given up waiting.
    pub const NOBODY: Self = Self { node: usize::MAX, number: u64::MAX };
}

#[derive(Debug)]
pub struct Node {
    pub life: Life,
    pub rules: Rules,
    pub protocol: Protocol,
    pub lifeline: Option<Box<dyn Lifeline>>,
    /// Events that come before are processed then.
    pub frozen_until: Option<BootTime>,
    pub wakes: u64,
    pub work: BTreeMap<Scope, Work>,
    pub campaign: Option<CampaignId>,
    /// The campaign has reached the protocol.
    pub stood: bool,
    pub campaigns: u64,
    pub withdrawn: BTreeSet<CampaignId>,
    pub listed: BTreeSet<CampaignId>,
    pub calls: InFlight,
    pub stop: Option<Stop>,
}

/// What the node's workers have in hand.
#[derive(Clone, Debug)]
pub struct Work {
    pub term: Term,
    pub epoch: Epoch,
    pub valid_until: BootTime,
    pub asked_back: bool,
    /// The elector has been told that the work has stopped.
    pub resigned: bool,
}

#[derive(Debug, Default)]
pub struct InFlight {
    /// Acquire, install and release.
    pub changing: BTreeSet<Scope>,
    pub looking: BTreeSet<Scope>,
    pub listing: BTreeSet<CampaignId>,
    pub renewing: Option<BTreeMap<Scope, Term>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// When it must be over.
    pub due: BootTime,
    pub done: bool,
}

impl Node {
    pub fn new(life: Life, rules: Rules, entropy: Entropy, now: Now) -> Self {
        Self {
            life,
            protocol: Protocol::new(rules.clone(), entropy, now),
            rules,
            lifeline: None,
            frozen_until: None,
            wakes: 0,
            work: BTreeMap::new(),
            campaign: None,
            stood: false,
            campaigns: 0,
            withdrawn: BTreeSet::new(),
            listed: BTreeSet::new(),
            calls: InFlight::default(),
            stop: None,
        }
    }

    pub fn session(&self) -> Session {
        self.rules.holder.session
    }

    pub fn stands(&self) -> bool {
        self.campaign.is_some() && self.stop.is_none()
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.done)
    }

    /// Whether a worker of this node may act in the scope.
    pub fn leads(&self, scope: &Scope, now: BootTime) -> Option<&Work> {
        self.work.get(scope).filter(|work| work.valid_until > now)
    }
}

pub fn holder(name: String, instance: String, session: Session) -> Holder {
    Holder { name, instance, session, address: None }
}

/// All that a clean stop may take: the drain, a renewal in flight, the release, and the same for the seat.
pub fn stop_takes(rules: &Rules) -> Duration {
    rules.drain_for + rules.call_budget() * 4 + Duration::from_millis(1)
}
