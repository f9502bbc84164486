//! One scope: where this process stands with it, and what it has last seen of it.

use std::time::Duration;

use tenure_clock::BootTime;

use super::index::Facts;
use super::words::{CampaignId, Effect, Failure};
use crate::share::Standing;
use crate::store::{AcquireRequest, Claim, Takeover};
use crate::{LeaseRecord, Scope, Term};

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) campaign: CampaignId,
    pub(super) kind: Kind,
    /// How much this member prefers the scope, among those of the campaign.
    pub(super) weight: u64,
    pub(super) state: State,
    pub(super) seen: Option<Seen>,
    /// The term that is said to be over with its holder's life.
    pub(super) dead: Option<(Term, SaidDead)>,
    pub(super) look: Look,
    /// No acquire before this.
    pub(super) not_before: Option<BootTime>,
    pub(super) backoff: Duration,
    pub(super) ownerless_since: Option<BootTime>,
    pub(super) problem: Option<Failure>,
}

/// Members come first where both are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Member,
    Contested,
}

#[derive(Debug)]
pub(super) enum State {
    Following,
    Acquiring { request: AcquireRequest, retry_at: Option<BootTime> },
    Installing { held: Held, retry_at: Option<BootTime> },
    Confirming(Held),
    Leading(Held),
    Draining { held: Held, until: BootTime, resigned: bool },
    Releasing { term: Term },
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) record: LeaseRecord,
    pub(super) valid_until: BootTime,
}

/// Somebody else's record, or nobody's.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) record: Option<LeaseRecord>,
    /// Since when the record has had this version.
    pub(super) unchanged_since: BootTime,
    /// How it may be taken, if it may.
    pub(super) free: Option<(Takeover, BootTime)>,
}

/// Somebody is said to have crashed. What was seen before the hint may have been out of date, so only a record that moves
/// *after* it was looked at again says that its holder lives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SaidDead {
    /// The record's, at the first look after the hint.
    version: Option<u64>,
}

impl SaidDead {
    /// After a look at the holder's record. `None`: it has moved, so the holder lives.
    pub(super) fn after_seeing(self, record: &LeaseRecord) -> Option<Self> {
        let version = record.resource_version;
        self.version.is_none_or(|before| before == version).then_some(Self { version: Some(version) })
    }
}

#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) at: Option<BootTime>,
    pub(super) in_flight: bool,
}

impl Seen {
    pub(super) fn term(&self) -> Option<Term> {
        self.record.as_ref().map(|record| record.term)
    }
}

impl Seat {
    pub(super) fn of_member(campaign: CampaignId) -> Self {
        Self {
            campaign,
            kind: Kind::Member,
            weight: 0,
            state: State::Following,
            seen: None,
            dead: None,
            look: Look::default(),
            not_before: None,
            backoff: Duration::ZERO,
            ownerless_since: None,
            problem: None,
        }
    }

    pub(super) fn contested(campaign: CampaignId, weight: u64) -> Self {
        Self { kind: Kind::Contested, weight, ..Self::of_member(campaign) }
    }

    /// What the index goes by.
    pub(super) fn facts(&self) -> Facts {
        let contested = self.kind == Kind::Contested;
        let seen = self.seen.as_ref().and_then(|seen| seen.record.as_ref());
        let due_at = [self.state.due_at(), self.not_before].into_iter().flatten().min();
        Facts {
            campaign: self.campaign,
            kind: self.kind,
            weight: self.weight,
            due_at,
            look_at: self.look.at.filter(|_| contested && !self.look.in_flight),
            acquiring: matches!(self.state, State::Acquiring { .. }),
            releasing: matches!(self.state, State::Releasing { .. }),
            renewable: self.state.renewable().is_some(),
            resigned: matches!(self.state, State::Draining { resigned: true, .. }),
            releasable: self.releasable(true).is_some(),
            following: matches!(self.state, State::Following),
            holder: seen.filter(|record| record.is_held()).map(|record| record.holder.session),
            standing: contested.then(|| self.standing()),
        }
    }

    /// What is held although nobody works under it: after a resignation, or because nobody has been told and the campaign
    /// is withdrawn.
    pub(super) fn releasable(&self, withdrawn: bool) -> Option<&Held> {
        match &self.state {
            State::Draining { held, resigned: true, .. } => Some(held),
            State::Installing { held, retry_at: Some(_) } | State::Confirming(held) if withdrawn => {
                Some(held)
            }
            State::Leading(held) if withdrawn && self.kind == Kind::Member => Some(held),
            State::Following
            | State::Acquiring { .. }
            | State::Installing { .. }
            | State::Confirming(_)
            | State::Leading(_)
            | State::Draining { .. }
            | State::Releasing { .. } => None,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match &self.state {
            State::Acquiring { .. } | State::Installing { .. } | State::Confirming(_) | State::Leading(_) => {
                Standing::Mine
            }
            State::Draining { .. } | State::Releasing { .. } => Standing::Leaving,
            State::Following => match &self.seen {
                // Nothing has been seen since it was given back.
                None if self.not_before.is_some() => Standing::GivenBack,
                None => Standing::Unknown,
                Some(Seen { free: Some(_), .. }) if self.not_before.is_some() => Standing::GivenBack,
                Some(Seen { free: Some((_, since)), .. }) => Standing::Free { since: *since },
                Some(Seen { record: Some(record), .. }) => Standing::Other(record.holder.session),
                Some(Seen { record: None, .. }) => Standing::Unknown,
            },
        }
    }

    /// Something has happened to the scope. A seat with a call in flight learns all it needs from the answer.
    pub(super) fn hinted(&mut self, now: BootTime) {
        if self.kind == Kind::Contested && self.state.is_settled() {
            self.look_now(now);
        }
    }

    /// Now, or as soon as the look in flight is back.
    pub(super) fn look_now(&mut self, now: BootTime) {
        self.look.at = Some(now);
    }

    /// At this moment, unless one is due before.
    pub(super) fn look_by(&mut self, at: BootTime) {
        self.look.at = Some(self.look.at.map_or(at, |due| due.min(at)));
    }

    pub(super) fn drain(&mut self, scope: &Scope, until: BootTime, effects: &mut Vec<Effect>) {
        if let State::Leading(held) = std::mem::replace(&mut self.state, State::Following) {
            self.state = State::Draining { held, until, resigned: false };
            effects.push(Effect::AskBack(scope.clone()));
        }
    }

    pub(super) fn give_back(&mut self, record: LeaseRecord, duration: Duration, effects: &mut Vec<Effect>) {
        effects.push(Effect::Release(claim(&record, duration)));
        self.state = State::Releasing { term: record.term };
    }

    pub(super) fn succeeded(&mut self) {
        self.backoff = Duration::ZERO;
        self.problem = None;
    }
}

impl State {
    pub(super) fn term(&self) -> Option<Term> {
        match self {
            Self::Following => None,
            Self::Acquiring { request, .. } => Some(request.term),
            Self::Installing { held, .. } | Self::Confirming(held) | Self::Leading(held) => {
                Some(held.record.term)
            }
            Self::Draining { held, .. } => Some(held.record.term),
            Self::Releasing { term } => Some(*term),
        }
    }

    /// It was asked for although this term held it.
    pub(super) fn takes_over(&self, term: Term) -> bool {
        matches!(self, Self::Acquiring { request, .. } if request.takeover == Takeover::OfDead(term))
    }

    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            Self::Installing { held, .. }
            | Self::Confirming(held)
            | Self::Leading(held)
            | Self::Draining { held, .. } => Some(held),
            Self::Following | Self::Acquiring { .. } | Self::Releasing { .. } => None,
        }
    }

    /// When this state asks for a step.
    pub(super) fn due_at(&self) -> Option<BootTime> {
        match self {
            Self::Following | Self::Releasing { .. } => None,
            Self::Acquiring { retry_at, .. } => *retry_at,
            // An answer is awaited, and it comes.
            Self::Installing { retry_at: None, .. } => None,
            Self::Installing { held, retry_at: Some(at) } => Some(held.valid_until.min(*at)),
            Self::Confirming(held) | Self::Leading(held) => Some(held.valid_until),
            Self::Draining { held, until, resigned: false } => Some(held.valid_until.min(*until)),
            Self::Draining { held, resigned: true, .. } => Some(held.valid_until),
        }
    }

    /// What the next renewal covers.
    pub(super) fn renewable(&self) -> Option<&Held> {
        match self {
            Self::Confirming(held) | Self::Leading(held) | Self::Draining { held, resigned: false, .. } => {
                Some(held)
            }
            Self::Draining { resigned: true, .. }
            | Self::Installing { .. }
            | Self::Following
            | Self::Acquiring { .. }
            | Self::Releasing { .. } => None,
        }
    }

    /// No call of its own is in flight.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self, Self::Following | Self::Leading(_) | Self::Draining { resigned: false, .. })
    }

    /// Somebody has been told that it leads, and not yet that it no longer does.
    pub(super) fn is_elected(&self) -> bool {
        matches!(self, Self::Leading(_) | Self::Draining { resigned: false, .. })
    }
}

pub(super) fn claim(record: &LeaseRecord, duration: Duration) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration }
}
