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
mod index;
mod rules;
mod seat;
mod seats;
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
use seats::Seats;
use table::{Share, common_prefix};
pub use words::{Campaign, CampaignId, Effect, Event, Failure, Listing, Now, Phase, ScopeStatus, StatusNews};

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
/// A build with assertions compares the indexes with the seats after this many steps, where there are few seats: walking
/// over all of them is what the indexes are there to avoid. Unit tests do it after every step.
const CHECK_EVERY: u64 = 256;
const FEW_TO_CHECK: usize = 64;

#[derive(Debug)]
pub struct Protocol {
    rules: Rules,
    entropy: Entropy,
    seats: Seats,
    shares: BTreeMap<CampaignId, Share>,
    renewal: Option<Vec<Claim>>,
    renew_at: BootTime,
    watched: Vec<Session>,
    /// Members or campaigns have come or gone since the peers were counted.
    other_members: bool,
    stopping: bool,
    stopped: bool,
    steps: u64,
    /// Empty, with room for the effects of the next step.
    spare: Vec<Effect>,
    /// In any order, perhaps more than once.
    changed: Vec<Scope>,
}

impl Protocol {
    pub fn new(rules: Rules, entropy: Entropy, now: Now) -> Self {
        let renew_at = now.boot + rules.renew_every();
        Self {
            rules,
            entropy,
            seats: Seats::default(),
            shares: BTreeMap::new(),
            renewal: None,
            renew_at,
            watched: vec![],
            other_members: false,
            stopping: false,
            stopped: false,
            steps: 0,
            spare: vec![],
            changed: vec![],
        }
    }

    /// What follows from this event, at this moment.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.steps += 1;
        let mut effects = std::mem::take(&mut self.spare);
        match event {
            Event::Tick => {}
            Event::Stand(id, campaign) => self.stand(now, id, campaign),
            Event::Withdraw(id) => self.withdraw(now, id, &mut effects),
            Event::Resign { scope, term } => self.resign(now, &scope, term, &mut effects),
            Event::Stop => {
                self.stopping = true;
                let ids: Vec<CampaignId> = self.shares.keys().copied().collect();
                ids.into_iter().for_each(|id| self.withdraw(now, id, &mut effects));
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
        if cfg!(debug_assertions) {
            self.check_now_and_then();
        }
        effects
    }

    /// Takes the list back once its effects have been carried out, so that the next step need not make one.
    pub fn reuse(&mut self, mut effects: Vec<Effect>) {
        effects.clear();
        self.spare = effects;
    }

    /// When to step next, if nothing happens before.
    pub fn wake_at(&self, now: BootTime) -> Option<BootTime> {
        let index = self.seats.index();
        let campaigns = self.shares.iter().flat_map(|(id, share)| {
            let (look, list) = match (share.withdrawn, share.list_in_flight) {
                (true, _) => (None, None),
                // Looks that are due and have not gone out wait for the listing in flight.
                (false, true) => (index.first_look_after(*id, now), None),
                (false, false) => (index.first_look(*id), share.list_at),
            };
            // Past moments too: it may have rested by now, after it was too early in the last step.
            let rested = share.rest_until.filter(|_| share.dirty && share.may_plan(self.stopping));
            [look, list, share.plan_at, rested]
        });
        let renewal = (self.renewal.is_none() && index.holds_anything()).then_some(self.renew_at);
        campaigns.chain([index.first_due(), renewal]).flatten().min()
    }

    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Tells what has changed since the last call, in order of scope; `None` for a scope that is no longer stood for.
    pub fn tell_changes(&mut self, mut tell: impl FnMut(&Scope, Option<StatusNews<'_>>)) {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        changed.iter().for_each(|scope| tell(scope, self.status(scope)));
        changed.clear();
        self.changed = changed; // its room is used again
    }

    fn status<'a>(&'a self, scope: &'a Scope) -> Option<StatusNews<'a>> {
        let seat = self.seats.get(scope)?;
        let seen = || seat.seen.as_ref().and_then(|seen| seen.record.as_ref());
        let (phase, record) = match &seat.state {
            State::Following => (Phase::Following, seen()),
            State::Acquiring { .. } => (Phase::Acquiring, seen()),
            State::Installing { held, .. } | State::Confirming(held) => {
                (Phase::InstallingFence, Some(&held.record))
            }
            State::Leading(held) => (Phase::Leading, Some(&held.record)),
            State::Draining { held, .. } => (Phase::Draining, Some(&held.record)),
            State::Releasing { .. } => (Phase::Releasing, seen()),
        };
        let share = self.shares.get(&seat.campaign);
        Some(StatusNews {
            scope,
            component: share.map_or("", |share| &share.campaign.component),
            is_member_seat: seat.kind == Kind::Member,
            phase,
            record,
            ownerless_since: seat.ownerless_since,
            problem: seat.problem.as_ref(),
        })
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
            wanted.into_iter().partition(|scope| self.seats.contains(scope));
        for scope in &scopes {
            let weight = share::weight(&own.instance, scope);
            self.seats.insert(scope.clone(), Seat::contested(id, weight));
        }
        self.seats.insert(member_seat.clone(), Seat::of_member(id));
        let share = Share {
            preferred: share::preference(&own.instance, &scopes).into(),
            members_under: Scope::members_of(&campaign.component),
            common_prefix: common_prefix(&campaign.scopes),
            taken,
            removals_seen: self.seats.removals(),
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
        self.other_members = true;
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
            if !self.seats.contains(&seat) {
                return seat;
            }
            *number += 1;
        }
    }

    fn withdraw(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        share.withdrawn = true;
        let drain_until = now.boot + self.rules.drain_for;
        let changed = &mut self.changed;
        self.seats.change_all(|scope, seat| {
            if seat.campaign != id {
                return;
            }
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
            changed.push(scope.clone());
        });
    }

    fn resign(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let Some(mut seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
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
        self.changed.push(scope.clone());
    }
}

#[cfg(test)]
mod tests;
