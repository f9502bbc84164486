//! What time and the new state ask for after every event: deadlines, renewals, releases, looks, shares.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use super::seat::{Kind, Look, Seat, State, claim};
use super::words::{CampaignId, Effect, Now};
use super::{CALLS_AT_ONCE, CHECK_EVERY, FEW_LOOKS, FEW_SCOPES, FEW_TO_CHECK, Protocol, REST_PER_SCOPE};
use crate::share::{self, Tally};
use crate::store::{AcquireRequest, Claim, LossReason, Takeover};
use crate::{LeaseRecord, Scope, Session, Term};

impl Protocol {
    pub(super) fn lose(
        &mut self,
        now: Now,
        scope: &Scope,
        term: Term,
        reason: LossReason,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seat) = self.seats.get(scope).filter(|seat| seat.state.term() == Some(term)) else { return };
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
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        if let State::Leading(held) | State::Draining { held, .. } = &seat.state {
            effects.push(Effect::Settle { scope: scope.clone(), term: held.record.term });
        }
        seat.state = State::Following;
        seat.seen = None;
        seat.look_now(now.boot);
        seat.ownerless_since = None;
        self.changed.push(scope.clone());
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
        }
    }

    pub(super) fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.pass_moments(now, effects);
        self.release_the_unwanted(effects);
        self.renew(now, effects);
        let mut next = self.shares.keys().next().copied();
        while let Some(id) = next {
            self.inherit(now, id);
            if self.seats.index().has_empty_seats() {
                self.sit_among_members(now, id, effects);
            }
            self.look_around(now, id, effects);
            self.share_out(now, id, effects);
            self.finish_withdrawal(id, effects);
            next = self.shares.range((Bound::Excluded(id), Bound::Unbounded)).next().map(|(id, _)| *id);
        }
        self.watch_peers(effects);
        if self.stopping && self.shares.is_empty() && self.seats.is_empty() && !self.stopped {
            self.stopped = true;
            effects.push(Effect::Stopped);
        }
    }

    /// What has been waited for is over: deadlines first, then pauses, then what is asked again.
    fn pass_moments(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.seats.index().first_due().is_none_or(|at| at > now.boot) {
            return;
        }
        let due = self.seats.due(now.boot);
        due.iter().for_each(|scope| self.pass_deadline(now, scope, effects));
        due.iter().for_each(|scope| self.end_pause(now, scope));
        due.iter().for_each(|scope| self.repeat_call(now, scope, effects));
    }

    fn pass_deadline(&mut self, now: Now, scope: &Scope, effects: &mut Vec<Effect>) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        // A call of its own is in flight: one at a time.
        if matches!(seat.state, State::Installing { retry_at: None, .. }) {
            return;
        }
        let Some(held) = seat.state.held() else { return };
        if held.valid_until <= now.boot {
            let term = held.record.term;
            drop(seat);
            self.lose(now, scope, term, LossReason::DeadlinePassed, effects);
        } else if let State::Draining { until, resigned: resigned @ false, .. } = &mut seat.state
            && *until <= now.boot
        {
            // The work did not stop in time: the authority ends under it, and the scope goes on.
            *resigned = true;
            effects.push(Effect::Trip { scope: scope.clone(), reason: LossReason::DrainTimedOut });
        }
    }

    fn end_pause(&mut self, now: Now, scope: &Scope) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        if seat.not_before.take_if(|at| *at <= now.boot).is_some()
            && let Some(share) = self.shares.get_mut(&seat.campaign)
        {
            share.dirty = true;
        }
    }

    fn repeat_call(&mut self, now: Now, scope: &Scope, effects: &mut Vec<Effect>) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
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

    /// What nobody works under any more, and what a withdrawn campaign holds without having told anybody. The
    /// member's seat goes first, so that the others count on one member less and take what comes.
    fn release_the_unwanted(&mut self, effects: &mut Vec<Effect>) {
        let withdrawn = self.shares.values().any(|share| share.withdrawn);
        if self.seats.index().resigned() == 0 && !withdrawn {
            return;
        }
        while self.seats.index().releasing() < CALLS_AT_ONCE {
            let Some((scope, record)) = self.next_unwanted() else { return };
            if let Some(mut seat) = self.seats.get_mut(&scope) {
                seat.give_back(record, self.rules.duration, effects);
            }
            self.changed.push(scope);
        }
    }

    fn next_unwanted(&self) -> Option<(Scope, LeaseRecord)> {
        let renewing = |scope: &Scope| {
            // Claims were made in order of scope.
            let claims = self.renewal.as_deref().unwrap_or_default();
            claims.binary_search_by(|claim| claim.scope.cmp(scope)).is_ok()
        };
        self.seats.index().releasable().find_map(|scope| {
            let seat = self.seats.get(scope)?;
            let withdrawn = self.shares.get(&seat.campaign).is_none_or(|share| share.withdrawn);
            let held = seat.releasable(withdrawn).filter(|_| !renewing(scope))?;
            Some((scope.clone(), held.record.clone()))
        })
    }

    fn renew(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.renewal.is_some() || self.renew_at > now.boot || !self.seats.index().holds_anything() {
            return;
        }
        let duration = self.rules.duration;
        let claims: Vec<Claim> = self.seats.renewable().map(|held| claim(&held.record, duration)).collect();
        self.renew_at = now.boot + self.rules.next_renewal(&self.entropy);
        self.renewal = Some(claims.clone());
        effects.push(Effect::Renew(claims));
    }

    /// Takes a seat for what an earlier campaign of this process has let go of.
    fn inherit(&mut self, now: Now, id: CampaignId) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        if share.taken.is_empty() || share.removals_seen == self.seats.removals() {
            return;
        }
        share.removals_seen = self.seats.removals();
        let seats = &self.seats;
        let (taken, free): (Vec<Scope>, Vec<Scope>) =
            share.taken.drain(..).partition(|scope| seats.contains(scope));
        share.taken = taken;
        if free.is_empty() {
            return;
        }
        let own = &self.rules.holder.instance;
        for scope in &free {
            let mut seat = Seat::contested(id, share::weight(own, scope));
            seat.look_now(now.boot);
            self.seats.insert(scope.clone(), seat);
        }
        let all: Vec<Scope> = share.preferred.iter().cloned().chain(free).collect();
        share.preferred = share::preference(own, &all).into();
    }

    /// Whoever stands for scopes sits among the members of its component.
    fn sit_among_members(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get(&id).filter(|share| !share.withdrawn) else { return };
        let Some(seat) = self.seats.get(&share.member_seat) else { return };
        if !matches!(seat.state, State::Following) || seat.not_before.is_some() {
            return;
        }
        let sole = share.campaign.sole_instance && !share.seated;
        let record =
            seat.seen.as_ref().and_then(|seen| seen.record.as_ref()).filter(|record| record.is_held());
        let takeover = match record {
            None => Takeover::IfFree,
            Some(record) => match self.rules.takeover_of(record, sole, Duration::ZERO) {
                Some(takeover) => takeover,
                None => {
                    // Another living process has this name; both may sit.
                    let mut number = share.seat_number + 1;
                    let other = self.member_seat(&share.campaign.component, &mut number);
                    let scope = share.member_seat.clone();
                    self.seats.remove(&scope);
                    self.seats.insert(other.clone(), Seat::of_member(id));
                    if let Some(share) = self.shares.get_mut(&id) {
                        (share.member_seat, share.seat_number) = (other, number);
                    }
                    self.sit_among_members(now, id, effects);
                    return;
                }
            },
        };
        let (scope, note) = (share.member_seat.clone(), share.campaign.note.clone());
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
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
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
        self.changed.push(scope.clone());
    }

    fn look_around(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        let index = self.seats.index();
        let list_due = share.list_at.is_some_and(|at| at <= now.boot);
        let look_due = index.first_look(id).is_some_and(|at| at <= now.boot);
        if !list_due && !look_due {
            return;
        }
        // Leases are renewed at moments of their own, and so they would be looked at one by one: thousands of scopes are
        // listed together instead, some of them a little early.
        let soon = now.boot + self.rules.renew_every();
        let many = index.looks(id, soon).take(FEW_LOOKS + 1).count() > FEW_LOOKS;
        if many && share.list_in_flight {
            return; // the next listing answers them all
        }
        let mut looks = self.seats.looks(id, if many { soon } else { now.boot });
        if !share.list_in_flight && (list_due || many) {
            share.list_in_flight = true;
            share.list_at = None;
            // Asked for until it is answered: the looks that it stands for are not repeated.
            share.list_leases |= many || share.short;
            let leases_under = share.list_leases.then(|| share.common_prefix.clone());
            if leases_under.is_some() {
                for scope in looks.drain(..) {
                    self.seats.get_mut(&scope).expect("just seen").look.at = None;
                }
            }
            let members_under = share.members_under.clone();
            effects.push(Effect::List { campaign: id, members_under, leases_under });
        }
        for scope in looks {
            self.seats.get_mut(&scope).expect("just seen").look = Look { at: None, in_flight: true };
            effects.push(Effect::Look(scope));
        }
    }

    fn share_out(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        let ready = share.may_plan(self.stopping);
        share.dirty |= share.plan_at.take_if(|at| *at <= now.boot).is_some();
        if !ready || !share.dirty || share.rest_until.is_some_and(|at| at > now.boot) {
            return;
        }
        share.dirty = false;
        let scopes = share.preferred.len();
        share.rest_until = (scopes > FEW_SCOPES).then(|| now.boot + REST_PER_SCOPE * scopes as u32);
        let overdue = |since| now.boot.saturating_since(since) >= self.rules.overdue();
        let tally = Tally { scopes, ..self.seats.index().tally(id, overdue) };
        let plan = share::plan(self.rules.holder.session, &share.members, &tally);
        share.short = tally.mine < scopes / share.members.len();
        let leaving = tally.leaving > 0;
        let hand_over = share.once_settled(plan.hand_over, leaving, now.boot, self.rules.settling());
        if plan.take.is_empty() && hand_over.is_none() {
            return;
        }
        let note = share.campaign.note.clone();
        // A few at a time: each answer lets the next one go, and a withdrawal has little to wait for.
        let mut room = CALLS_AT_ONCE.saturating_sub(self.seats.index().acquiring());
        for scope in plan.take {
            if room == 0 {
                break;
            }
            let free = self.seats.get(&scope).and_then(|seat| seat.seen.as_ref()?.free);
            if let Some((takeover, _)) = free {
                self.acquire(now, &scope, takeover, &note, effects);
                room -= 1;
            }
        }
        if let Some(scope) = hand_over
            && let Some(mut seat) = self.seats.get_mut(&scope)
            && matches!(seat.state, State::Leading(_))
        {
            seat.drain(&scope, now.boot + self.rules.drain_for, effects);
            self.changed.push(scope.clone());
        }
    }

    /// A withdrawn campaign is over when none of its seats waits for anything.
    fn finish_withdrawal(&mut self, id: CampaignId, effects: &mut Vec<Effect>) {
        if !self.shares.get(&id).is_some_and(|share| share.withdrawn) {
            return;
        }
        let over: Vec<Scope> = self.seats.index().following(id).cloned().collect();
        over.iter().for_each(|scope| self.seats.remove(scope));
        self.changed.extend(over);
        if !self.seats.index().has_seats(id) {
            self.other_members = true;
            self.shares.remove(&id);
            effects.push(Effect::Withdrawn(id));
        }
    }

    fn watch_peers(&mut self, effects: &mut Vec<Effect>) {
        let other_holders = self.seats.take_other_holders();
        if !std::mem::take(&mut self.other_members) && !other_holders {
            return;
        }
        let peers = self.peers();
        if !peers.iter().eq(&self.watched) {
            self.watched = peers.into_iter().collect();
            effects.push(Effect::WatchPeers(self.watched.clone()));
        }
    }

    fn peers(&self) -> BTreeSet<Session> {
        let own = self.rules.holder.session;
        let members = self.shares.values().flat_map(|share| &share.members).copied();
        // A member that is leaving gives its seat back first, and may crash before it has given back the rest.
        let holders = self.seats.index().holders();
        members.chain(holders).filter(|session| *session != own).collect()
    }

    /// That nothing is remembered which has ceased to be true.
    pub(super) fn check_now_and_then(&self) {
        let due = self.steps.is_multiple_of(CHECK_EVERY) && self.seats.len() <= FEW_TO_CHECK;
        if !due && !cfg!(test) {
            return;
        }
        self.seats.check();
        assert!(self.peers().iter().eq(&self.watched), "peers have come or gone unnoticed");
    }
}
