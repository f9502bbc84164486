//! The elector's decisions: time and an event in, effects out. No I/O, no waiting, no clock of its own, so that a
//! simulator can drive it through every order of events.
//!
//! Each scope has a seat. A seat follows whoever holds the lease; when it is free (or its holder is dead, or stalled)
//! and the share allows it, the seat acquires it, installs the fence where the backend has not done so, and leads;
//! it drains when it is asked back or resigns, and releases. From anywhere it can be tripped.
//!
//! Invariants: at most one call in flight per seat, and one renewal for all of them; a release goes out only after
//! the authority has ended and no renewal is in flight; validity counts from when a call was sent; once stopping,
//! nobody is elected.

mod answers;
mod duties;
mod rules;
mod seat;
mod sight;
mod table;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::{BootTime, Entropy};

use crate::share;
use crate::store::Claim;
use crate::{Scope, Session, Term};
pub use rules::Rules;
use seat::{Kind, Seat, State};
use table::{Share, common_prefix};
pub use words::{Campaign, CampaignId, Effect, Event, Failure, Listing, Now, Phase, ScopeStatus};

const SHORTEST_BACKOFF: Duration = Duration::from_millis(50);
/// Acquires in flight, and releases: hundreds of scopes that move at once must not take every connection, nor make a
/// stop wait for a queue of calls that nobody wants any more.
const CALLS_AT_ONCE: usize = 4;
/// Between two plans, for each scope: a few times what a plan costs.
const REST_PER_SCOPE: Duration = Duration::from_micros(2);
/// Plans for no more scopes than this need no rest.
const FEW_SCOPES: usize = 256;
/// More looks than this at once are one listing.
const FEW_LOOKS: usize = 4;

#[derive(Debug)]
pub struct Protocol {
    rules: Rules,
    entropy: Entropy,
    seats: BTreeMap<Scope, Seat>,
    shares: BTreeMap<CampaignId, Share>,
    renewal: Option<Vec<Claim>>,
    renew_at: BootTime,
    watched: Vec<Session>,
    stopping: bool,
    stopped: bool,
    changed: BTreeSet<Scope>,
}

impl Protocol {
    pub fn new(rules: Rules, entropy: Entropy, now: Now) -> Self {
        let renew_at = now.boot + rules.renew_every();
        Self {
            rules,
            entropy,
            seats: BTreeMap::new(),
            shares: BTreeMap::new(),
            renewal: None,
            renew_at,
            watched: vec![],
            stopping: false,
            stopped: false,
            changed: BTreeSet::new(),
        }
    }

    /// What follows from this event, at this moment.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = vec![];
        match event {
            Event::Tick => {}
            Event::Stand(id, campaign) => self.stand(now, id, campaign),
            Event::Withdraw(id) => self.withdraw(now, id, &mut effects),
            Event::Resign { scope, term } => self.resign(now, &scope, term, &mut effects),
            Event::Stop => {
                self.stopping = true;
                for id in self.shares.keys().copied().collect::<Vec<_>>() {
                    self.withdraw(now, id, &mut effects);
                }
            }
            Event::Acquired { scope, term, sent, outcome } => {
                self.acquired(now, &scope, term, sent, outcome, &mut effects);
            }
            Event::Installed { scope, term, outcome } => self.installed(now, &scope, term, outcome),
            Event::Renewed { sent, outcome } => self.renewed(now, sent, outcome, &mut effects),
            Event::Released { scope, term } => self.released(now, &scope, term, &mut effects),
            Event::Looked { scope, outcome } => self.looked(now, &scope, outcome, &mut effects),
            Event::Listed { campaign, outcome } => self.listed(now, campaign, outcome, &mut effects),
            Event::Hint(hint) => self.hinted(now, &hint),
            Event::Tripped { scope, term } => self.tripped(now, &scope, term, &mut effects),
            Event::Cut => self.renew_at = now.boot,
        }
        self.settle(now, &mut effects);
        effects
    }

    /// When to step next, if nothing happens before.
    pub fn wake_at(&self, now: BootTime) -> Option<BootTime> {
        let seats = self.seats.values().flat_map(|seat| {
            let by_state = match &seat.state {
                State::Following | State::Releasing { .. } => None,
                State::Acquiring { retry_at, .. } => *retry_at,
                // An answer is awaited, and it comes.
                State::Installing { retry_at: None, .. } => None,
                State::Installing { held, retry_at: Some(at) } => Some(held.valid_until.min(*at)),
                State::Confirming(held) | State::Leading(held) => Some(held.valid_until),
                State::Draining { held, until, resigned: false } => Some(held.valid_until.min(*until)),
                State::Draining { held, resigned: true, .. } => Some(held.valid_until),
            };
            let share = self.shares.get(&seat.campaign);
            let looks = seat.kind == Kind::Contested && !seat.look.in_flight;
            let looks = looks && share.is_some_and(|share| !share.withdrawn);
            // Looks that are due and have not gone out wait for the listing in flight.
            let listing = share.is_some_and(|share| share.list_in_flight);
            let look = seat.look.at.filter(|at| looks && !(listing && *at <= now));
            [by_state, look, seat.not_before]
        });
        let lists = self.shares.values().filter(|share| !share.withdrawn && !share.list_in_flight);
        let lists = lists.map(|share| share.list_at);
        let rested = |share: &Share| share.rest_until.filter(|at| share.dirty && *at > now);
        let plans = self.shares.values().flat_map(|share| [share.plan_at, rested(share)]);
        let renewal = (self.renewal.is_none() && self.holds_anything()).then_some(self.renew_at);
        seats.chain(lists).chain(plans).flatten().chain(renewal).min()
    }

    /// What has changed since the last call; `None` for a scope that is no longer stood for.
    pub fn changes(&mut self) -> Vec<(Scope, Option<ScopeStatus>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|scope| (scope.clone(), self.status(&scope))).collect()
    }

    fn status(&self, scope: &Scope) -> Option<ScopeStatus> {
        let seat = self.seats.get(scope)?;
        let seen = || seat.seen.as_ref().and_then(|seen| seen.record.clone());
        let (phase, record) = match &seat.state {
            State::Following => (Phase::Following, seen()),
            State::Acquiring { .. } => (Phase::Acquiring, seen()),
            State::Installing { held, .. } | State::Confirming(held) => {
                (Phase::InstallingFence, Some(held.record.clone()))
            }
            State::Leading(held) => (Phase::Leading, Some(held.record.clone())),
            State::Draining { held, .. } => (Phase::Draining, Some(held.record.clone())),
            State::Releasing { .. } => (Phase::Releasing, seen()),
        };
        let component = self.shares.get(&seat.campaign).map(|share| share.campaign.component.clone());
        Some(ScopeStatus {
            scope: scope.clone(),
            component: component.unwrap_or_default(),
            is_member_seat: seat.kind == Kind::Member,
            phase,
            record,
            ownerless_since: seat.ownerless_since,
            problem: seat.problem.clone(),
        })
    }

    fn holds_anything(&self) -> bool {
        self.seats.values().any(|seat| seat.state.renewable().is_some())
    }

    fn stand(&mut self, now: Now, id: CampaignId, campaign: Campaign) {
        if self.stopping {
            return;
        }
        let own = &self.rules.holder;
        let mut seat_number = 1;
        let member_seat = self.member_seat(&campaign.component, &mut seat_number);
        // What another campaign of this process still stands for is waited for until that one lets go of it.
        let wanted: BTreeSet<Scope> = campaign.scopes.iter().cloned().collect();
        let (taken, scopes): (Vec<Scope>, Vec<Scope>) =
            wanted.into_iter().partition(|scope| self.seats.contains_key(scope));
        for scope in &scopes {
            self.seats.insert(scope.clone(), Seat::new(id, Kind::Contested));
        }
        self.seats.insert(member_seat.clone(), Seat::new(id, Kind::Member));
        let share = Share {
            preferred: share::preference(&own.instance, &scopes),
            common_prefix: common_prefix(&campaign.scopes),
            taken,
            member_seat,
            seat_number,
            members: BTreeSet::from([own.session]),
            crashed: BTreeMap::new(),
            list_at: Some(now.boot),
            list_in_flight: false,
            listed: false,
            list_leases: true,
            seated: false,
            withdrawn: false,
            short: false,
            surplus_since: None,
            dirty: true,
            plan_at: None,
            rest_until: None,
            campaign,
        };
        self.shares.insert(id, share);
        self.changed.extend(scopes);
    }

    /// The first seat from this number on that no campaign of this process has. Numbered, not named after the
    /// session, so that restarts do not leave ever new names behind.
    fn member_seat(&self, component: &str, number: &mut u32) -> Scope {
        loop {
            let seat = match *number {
                1 => Scope::member(component, &self.rules.holder.instance),
                more => Scope::member(component, &format!("{}.{more}", self.rules.holder.instance)),
            };
            if !self.seats.contains_key(&seat) {
                return seat;
            }
            *number += 1;
        }
    }

    fn withdraw(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        share.withdrawn = true;
        let drain_until = now.boot + self.rules.drain_for;
        for (scope, seat) in self.seats.iter_mut().filter(|(_, seat)| seat.campaign == id) {
            match &mut seat.state {
                State::Leading(_) if seat.kind == Kind::Contested => seat.drain(scope, drain_until, effects),
                // It may be ours: asked once more, at once, so that it can be given back.
                State::Acquiring { retry_at: Some(at), .. } => *at = now.boot,
                // What is in the middle of a call is given back as soon as that is answered.
                State::Acquiring { retry_at: None, .. }
                | State::Following
                | State::Installing { .. }
                | State::Confirming(_)
                | State::Leading(_)
                | State::Draining { .. }
                | State::Releasing { .. } => {}
            }
            self.changed.insert(scope.clone());
        }
    }

    fn resign(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        // The work has stopped, so its authority ends here. What becomes of the lease from now on is no loss.
        seat.state = match std::mem::replace(&mut seat.state, State::Following) {
            State::Leading(held) | State::Draining { held, resigned: false, .. } => {
                effects.push(Effect::End(scope.clone()));
                State::Draining { held, until: now.boot, resigned: true }
            }
            other => other,
        };
        self.changed.insert(scope.clone());
    }
}

#[cfg(test)]
mod tests;
