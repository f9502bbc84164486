//! What time and the new state ask for after every event: deadlines, renewals, releases, looks, shares.

use std::collections::BTreeSet;
use std::time::Duration;

use super::seat::{Kind, Look, Seat, State, claim};
use super::words::{CampaignId, Effect, Now};
use super::{CALLS_AT_ONCE, FEW_LOOKS, FEW_SCOPES, Protocol, REST_PER_SCOPE};
use crate::share::{self, Standing};
use crate::store::{AcquireRequest, Claim, LossReason, Takeover};
use crate::{Scope, Session, Term};

impl Protocol {
    pub(super) fn lose(
        &mut self,
        now: Now,
        scope: &Scope,
        term: Term,
        reason: LossReason,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        if seat.kind == Kind::Contested && seat.state.is_elected() {
            effects.push(Effect::Trip { scope: scope.clone(), reason });
        }
        self.follow_again(now, scope, effects);
    }

    pub(super) fn tripped(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let seat = self.seats.get(scope);
        // What has been resigned is released all the same.
        if seat.is_some_and(|seat| seat.state.term() == Some(term) && seat.state.is_elected()) {
            self.follow_again(now, scope, effects);
        }
    }

    /// The term is over; what it left behind in the store is looked at as anybody else's record would be.
    pub(super) fn follow_again(&mut self, now: Now, scope: &Scope, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
        if let State::Leading(held) | State::Draining { held, .. } = &seat.state {
            effects.push(Effect::Settle { scope: scope.clone(), term: held.record.term });
        }
        seat.state = State::Following;
        seat.seen = None;
        seat.look_now(now.boot);
        seat.ownerless_since = None;
        self.changed.insert(scope.clone());
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
        }
    }

    pub(super) fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.pass_deadlines(now, effects);
        self.repeat_calls(now, effects);
        self.release_the_unwanted(effects);
        self.renew(now, effects);
        for id in self.shares.keys().copied().collect::<Vec<_>>() {
            self.inherit(now, id);
            self.sit_among_members(now, id, effects);
            self.look_around(now, id, effects);
            self.share_out(now, id, effects);
            self.finish_withdrawal(id, effects);
        }
        self.watch_peers(effects);
        if self.stopping && self.shares.is_empty() && self.seats.is_empty() && !self.stopped {
            self.stopped = true;
            effects.push(Effect::Stopped);
        }
    }

    pub(super) fn pass_deadlines(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let passed: Vec<(Scope, Term, bool)> = self
            .seats
            .iter()
            .filter_map(|(scope, seat)| {
                // A call of its own is in flight: one at a time.
                if matches!(seat.state, State::Installing { retry_at: None, .. }) {
                    return None;
                }
                let held = seat.state.held()?;
                let expired = held.valid_until <= now.boot;
                let drained = matches!(&seat.state, State::Draining { until, resigned: false, .. } if *until <= now.boot);
                (expired || drained).then(|| (scope.clone(), held.record.term, expired))
            })
            .collect();
        for (scope, term, expired) in passed {
            if expired {
                self.lose(now, &scope, term, LossReason::DeadlinePassed, effects);
            } else if let Some(seat) = self.seats.get_mut(&scope)
                && let State::Draining { resigned, .. } = &mut seat.state
            {
                // The work did not stop in time: the authority ends under it, and the scope goes on.
                *resigned = true;
                effects.push(Effect::Trip { scope, reason: LossReason::DrainTimedOut });
            }
        }
        for seat in self.seats.values_mut().filter(|seat| seat.not_before.is_some_and(|at| at <= now.boot)) {
            seat.not_before = None;
            if let Some(share) = self.shares.get_mut(&seat.campaign) {
                share.dirty = true;
            }
        }
    }

    pub(super) fn repeat_calls(&mut self, now: Now, effects: &mut Vec<Effect>) {
        for (scope, seat) in &mut self.seats {
            match &mut seat.state {
                State::Acquiring { request, retry_at } if retry_at.is_some_and(|at| at <= now.boot) => {
                    *retry_at = None;
                    effects.push(Effect::Acquire(request.clone()));
                }
                State::Installing { held, retry_at } if retry_at.is_some_and(|at| at <= now.boot) => {
                    *retry_at = None;
                    let (term, floor) = (held.record.term, held.record.epoch);
                    effects.push(Effect::Install { scope: scope.clone(), term, floor });
                }
                _ => {}
            }
        }
    }

    /// What nobody works under any more, and what a withdrawn campaign holds without having told anybody. The
    /// member's seat goes first, so that the others count on one member less and take what comes.
    pub(super) fn release_the_unwanted(&mut self, effects: &mut Vec<Effect>) {
        let in_flight: BTreeSet<&Scope> = self.renewal.iter().flatten().map(|claim| &claim.scope).collect();
        let releasing =
            self.seats.values().filter(|seat| matches!(seat.state, State::Releasing { .. })).count();
        let mut room = CALLS_AT_ONCE.saturating_sub(releasing);
        let (members, contested): (Vec<_>, Vec<_>) =
            self.seats.iter_mut().partition(|(_, seat)| seat.kind == Kind::Member);
        for (scope, seat) in members.into_iter().chain(contested) {
            if room == 0 {
                return;
            }
            let withdrawn = self.shares.get(&seat.campaign).is_none_or(|share| share.withdrawn);
            let unwanted = match &seat.state {
                State::Draining { held, resigned: true, .. } => Some(held),
                State::Installing { held, retry_at: Some(_) } | State::Confirming(held) if withdrawn => {
                    Some(held)
                }
                State::Leading(held) if withdrawn && seat.kind == Kind::Member => Some(held),
                State::Following
                | State::Acquiring { .. }
                | State::Installing { .. }
                | State::Confirming(_)
                | State::Leading(_)
                | State::Draining { .. }
                | State::Releasing { .. } => None,
            };
            if let Some(held) = unwanted.filter(|_| !in_flight.contains(scope)) {
                let record = held.record.clone();
                seat.give_back(record, self.rules.duration, effects);
                self.changed.insert(scope.clone());
                room -= 1;
            }
        }
    }

    pub(super) fn renew(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.renewal.is_some() || self.renew_at > now.boot || !self.holds_anything() {
            return;
        }
        let duration = self.rules.duration;
        let claims: Vec<Claim> = self
            .seats
            .values()
            .filter_map(|seat| seat.state.renewable())
            .map(|held| claim(&held.record, duration))
            .collect();
        self.renew_at = now.boot + self.next_renewal();
        self.renewal = Some(claims.clone());
        effects.push(Effect::Renew(claims));
    }

    pub(super) fn next_renewal(&self) -> Duration {
        self.rules.renew_every() - self.entropy.jitter(self.rules.duration / 20)
    }

    /// Takes a seat for what an earlier campaign of this process has let go of.
    pub(super) fn inherit(&mut self, now: Now, id: CampaignId) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        let seats = &self.seats;
        let (taken, free): (Vec<Scope>, Vec<Scope>) =
            share.taken.drain(..).partition(|scope| seats.contains_key(scope));
        share.taken = taken;
        if free.is_empty() {
            return;
        }
        for scope in &free {
            let mut seat = Seat::new(id, Kind::Contested);
            seat.look_now(now.boot);
            self.seats.insert(scope.clone(), seat);
        }
        share.preferred.extend(free);
        share.preferred = share::preference(&self.rules.holder.instance, &share.preferred);
    }

    /// Whoever stands for scopes sits among the members of its component.
    pub(super) fn sit_among_members(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get(&id).filter(|share| !share.withdrawn) else { return };
        let scope = share.member_seat.clone();
        let (note, sole) = (share.campaign.note.clone(), share.campaign.sole_instance && !share.seated);
        let (component, mut number) = (share.campaign.component.clone(), share.seat_number);
        let Some(seat) = self.seats.get_mut(&scope) else { return };
        if !matches!(seat.state, State::Following) || seat.not_before.is_some() {
            return;
        }
        let record =
            seat.seen.as_ref().and_then(|seen| seen.record.as_ref()).filter(|record| record.is_held());
        let takeover = match record {
            None => Takeover::IfFree,
            Some(record) => match self.rules.takeover_of(record, sole, Duration::ZERO) {
                Some(takeover) => takeover,
                None => {
                    // Another living process has this name; both may sit.
                    number += 1;
                    let other = self.member_seat(&component, &mut number);
                    self.seats.remove(&scope);
                    self.seats.insert(other.clone(), Seat::new(id, Kind::Member));
                    if let Some(share) = self.shares.get_mut(&id) {
                        (share.member_seat, share.seat_number) = (other, number);
                    }
                    self.sit_among_members(now, id, effects);
                    return;
                }
            },
        };
        self.acquire(now, &scope, takeover, &note, effects);
    }

    pub(super) fn acquire(
        &mut self,
        now: Now,
        scope: &Scope,
        takeover: Takeover,
        note: &str,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
        let request = AcquireRequest {
            scope: scope.clone(),
            holder: self.rules.holder.clone(),
            term: Term(self.entropy.uuid(now.wall)),
            duration: self.rules.duration,
            takeover,
            note: note.to_owned(),
        };
        effects.push(Effect::Acquire(request.clone()));
        seat.state = State::Acquiring { request, retry_at: None };
        seat.look.at = None;
        self.changed.insert(scope.clone());
    }

    pub(super) fn look_around(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        let due_by = |seat: &Seat, by| !seat.look.in_flight && seat.look.at.is_some_and(|at| at <= by);
        let due = |seat: &Seat| due_by(seat, now.boot);
        let list_due = share.list_at.is_some_and(|at| at <= now.boot);
        // Leases are renewed at moments of their own, and so they would be looked at one by one: thousands of scopes are
        // listed together instead, some of them a little early.
        let soon = now.boot + self.rules.renew_every();
        let contested = |seat: &Seat| seat.campaign == id && seat.kind == Kind::Contested;
        let seats = || self.seats.iter().filter(|(_, seat)| contested(seat));
        let at_hand = seats().filter(|(_, seat)| due_by(seat, soon)).count();
        let many = at_hand > FEW_LOOKS && (list_due || seats().any(|(_, seat)| due(seat)));
        let by = if many { soon } else { now.boot };
        let looks: Vec<Scope> =
            seats().filter(|(_, seat)| due_by(seat, by)).map(|(scope, _)| scope.clone()).collect();
        if !share.list_in_flight && (list_due || many) {
            share.list_in_flight = true;
            share.list_at = None;
            // Asked for until it is answered: the looks that it stands for are not repeated.
            share.list_leases |= many || share.short;
            let leases_under = share.list_leases.then(|| share.common_prefix.clone());
            if leases_under.is_some() {
                looks.iter().for_each(|scope| self.seats.get_mut(scope).expect("just seen").look.at = None);
            }
            let members_under = Scope::members_of(&share.campaign.component);
            effects.push(Effect::List { campaign: id, members_under, leases_under });
        }
        if many {
            return; // the listing answers them all, this one or the next
        }
        for scope in looks {
            let Some(seat) = self.seats.get_mut(&scope).filter(|seat| due(seat)) else { continue };
            seat.look = Look { at: None, in_flight: true };
            effects.push(Effect::Look(scope));
        }
    }

    pub(super) fn share_out(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        let ready = share.listed && !share.withdrawn && !self.stopping;
        share.dirty |= share.plan_at.take_if(|at| *at <= now.boot).is_some();
        if !ready || !share.dirty || share.rest_until.is_some_and(|at| at > now.boot) {
            return;
        }
        share.dirty = false;
        let scopes = share.preferred.len();
        share.rest_until = (scopes > FEW_SCOPES).then(|| now.boot + REST_PER_SCOPE * scopes as u32);
        let standing = |scope: &Scope| {
            self.seats.get(scope).map_or(Standing::Unknown, |seat| seat.standing(now.boot, &self.rules))
        };
        let plan = share::plan(self.rules.holder.session, &share.members, &share.preferred, standing);
        let leaving = share.preferred.iter().any(|scope| standing(scope) == Standing::Leaving);
        let mine = share.preferred.iter().filter(|scope| standing(scope) == Standing::Mine).count();
        share.short = mine < share.preferred.len() / share.members.len();
        let hand_over = share.once_settled(plan.hand_over, leaving, now.boot, self.rules.settling());
        let note = share.campaign.note.clone();
        // A few at a time: each answer lets the next one go, and a withdrawal has little to wait for.
        let acquiring = |seat: &&Seat| matches!(seat.state, State::Acquiring { .. });
        let mut room = CALLS_AT_ONCE.saturating_sub(self.seats.values().filter(acquiring).count());
        for scope in plan.take {
            let Some(seat) = self.seats.get(&scope).filter(|_| room > 0) else { continue };
            let free = seat.seen.as_ref().and_then(|seen| seen.free);
            if let Some((takeover, _)) = free {
                self.acquire(now, &scope, takeover, &note, effects);
                room -= 1;
            }
        }
        if let Some(scope) = hand_over
            && let Some(seat) = self.seats.get_mut(&scope)
            && matches!(seat.state, State::Leading(_))
        {
            seat.drain(&scope, now.boot + self.rules.drain_for, effects);
            self.changed.insert(scope);
        }
    }

    /// A withdrawn campaign is over when none of its seats waits for anything.
    pub(super) fn finish_withdrawal(&mut self, id: CampaignId, effects: &mut Vec<Effect>) {
        if !self.shares.get(&id).is_some_and(|share| share.withdrawn) {
            return;
        }
        let changed = &mut self.changed;
        self.seats.retain(|scope, seat| {
            let over = seat.campaign == id && matches!(seat.state, State::Following);
            if over {
                changed.insert(scope.clone());
            }
            !over
        });
        if !self.seats.values().any(|seat| seat.campaign == id) {
            self.shares.remove(&id);
            effects.push(Effect::Withdrawn(id));
        }
    }

    pub(super) fn watch_peers(&mut self, effects: &mut Vec<Effect>) {
        let own = self.rules.holder.session;
        let members = self.shares.values().flat_map(|share| &share.members).copied();
        // A member that is leaving gives its seat back first, and may crash before it has given back the rest.
        let seen = self.seats.values().filter_map(|seat| seat.seen.as_ref()?.record.as_ref());
        let holders = seen.filter(|record| record.is_held()).map(|record| record.holder.session);
        let peers: BTreeSet<Session> = members.chain(holders).filter(|session| *session != own).collect();
        if !peers.iter().eq(&self.watched) {
            self.watched = peers.into_iter().collect();
            effects.push(Effect::WatchPeers(self.watched.clone()));
        }
    }
}
