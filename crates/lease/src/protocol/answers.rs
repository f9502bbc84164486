//! What the store answers, and what that makes of a seat.

use tenure_clock::BootTime;

use super::Protocol;
use super::seat::{Held, Kind, State};
use super::words::{Effect, Failure, Now};
use crate::store::{AcquireOutcome, Claim, RenewOutcome};
use crate::{Epoch, Scope, Term};

impl Protocol {
    pub(super) fn acquired(
        &mut self,
        now: Now,
        scope: &Scope,
        term: Term,
        sent: BootTime,
        outcome: Result<AcquireOutcome, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(mut seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        self.changed.push(scope.clone());
        // There is room for another call, whoever wants it.
        self.shares.values_mut().for_each(|share| share.dirty = true);
        let unwanted = self.shares.get(&seat.campaign).is_none_or(|share| share.withdrawn);
        match outcome {
            Ok(AcquireOutcome::Granted(record)) => {
                seat.succeeded();
                // What remains was read after the call was sent: a repeated call is not taken for a fresh lease.
                let valid_until = self.rules.valid_until(sent, record.remaining);
                if unwanted || valid_until <= now.boot {
                    seat.give_back(record, self.rules.duration, effects);
                    return;
                }
                drop(seat);
                self.lead(now, scope, Held { record, valid_until }, effects);
            }
            Ok(AcquireOutcome::Won(record)) => {
                seat.succeeded();
                let valid_until = self.rules.valid_until(sent, record.remaining);
                if unwanted || valid_until <= now.boot {
                    seat.give_back(record, self.rules.duration, effects);
                    return;
                }
                effects.push(Effect::Install { scope: scope.clone(), term, floor: record.epoch });
                seat.state = State::Installing { held: Held { record, valid_until }, retry_at: None };
            }
            Ok(AcquireOutcome::Held(record)) => {
                seat.succeeded();
                let asked = std::mem::replace(&mut seat.state, State::Following);
                if asked.takes_over(record.term) {
                    // The store would have taken it from the dead: whoever has it now lives.
                    seat.dead = None;
                    if let Some(share) = self.shares.get_mut(&seat.campaign) {
                        share.crashed.remove(&record.holder.session);
                    }
                }
                drop(seat);
                self.observe(now, scope, Some(record), effects);
            }
            // It may be ours: the same term asks again, and learns it.
            Err(lost @ Failure::Ambiguous(_)) if !unwanted => {
                let pause = self.rules.pause(&mut seat, lost, &self.entropy);
                if let State::Acquiring { retry_at, .. } = &mut seat.state {
                    *retry_at = Some(now.boot + pause);
                }
            }
            Err(failure) => {
                let refused = matches!(failure, Failure::Refused(_));
                let pause = self.rules.pause(&mut seat, failure, &self.entropy);
                let pause = if refused { self.rules.longest_backoff() } else { pause };
                seat.state = State::Following;
                seat.not_before = Some(now.boot + pause);
                seat.look.at = Some(now.boot + pause);
            }
        }
    }

    pub(super) fn lead(&mut self, now: Now, scope: &Scope, held: Held, effects: &mut Vec<Effect>) {
        let first = !self.seats.index().holds_anything();
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        seat.ownerless_since = None;
        seat.seen = None;
        seat.look.at = None;
        if seat.kind == Kind::Contested {
            let (record, valid_until) = (held.record.clone(), held.valid_until);
            effects.push(Effect::Elect { campaign: seat.campaign, record, valid_until });
        }
        // The first to be held starts the rhythm; the others fall in.
        if first {
            self.renew_at = now.boot + self.rules.next_renewal(&self.entropy);
        }
        seat.state = State::Leading(held);
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
            share.seated |= share.member_seat == *scope;
        }
        self.changed.push(scope.clone());
    }

    pub(super) fn installed(&mut self, now: Now, scope: &Scope, term: Term, outcome: Result<Epoch, Failure>) {
        let Some(mut seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        let State::Installing { held, .. } = &seat.state else { return };
        let mut held = held.clone();
        seat.state = match outcome {
            Ok(epoch) => {
                held.record.epoch = epoch;
                seat.succeeded();
                self.renew_at = now.boot;
                State::Confirming(held)
            }
            // The same term asks again: whether it was installed or not, the answer will be the same.
            Err(failure) => {
                let pause = self.rules.pause(&mut seat, failure, &self.entropy);
                State::Installing { held, retry_at: Some(now.boot + pause) }
            }
        };
        self.changed.push(scope.clone());
    }

    pub(super) fn renewed(
        &mut self,
        now: Now,
        sent: BootTime,
        outcome: Result<Vec<RenewOutcome>, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let claims = self.renewal.take().unwrap_or_default();
        let outcomes = match outcome {
            Ok(outcomes) => outcomes,
            Err(failure) => {
                let scopes = claims.into_iter().map(|claim| claim.scope).collect();
                self.renewal_failed(now, scopes, failure.text().to_owned(), effects);
                return;
            }
        };
        let mut unanswered = vec![];
        for (claim, outcome) in claims.into_iter().zip(outcomes) {
            match outcome {
                RenewOutcome::Renewed => self.prolong(now, sent, &claim, effects),
                RenewOutcome::Lost(reason) => self.lose(now, &claim.scope, claim.term, reason, effects),
                RenewOutcome::Unanswered => unanswered.push(claim.scope),
            }
        }
        if !unanswered.is_empty() {
            self.renewal_failed(now, unanswered, "the lease store could not say".into(), effects);
        }
    }

    pub(super) fn renewal_failed(
        &mut self,
        now: Now,
        scopes: Vec<Scope>,
        why: String,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::RenewalFailed { scopes, why });
        let pause = self.rules.retry_every();
        self.renew_at = now.boot + pause + self.entropy.jitter(pause / 2);
    }

    pub(super) fn prolong(&mut self, now: Now, sent: BootTime, claim: &Claim, effects: &mut Vec<Effect>) {
        let valid_until = self.rules.valid_until(sent, claim.duration);
        let Some(mut seat) = self.seats.get_mut(&claim.scope) else { return };
        if seat.state.term() != Some(claim.term) {
            return;
        }
        self.changed.push(claim.scope.clone());
        match &mut seat.state {
            State::Leading(held) | State::Draining { held, .. } => {
                held.valid_until = held.valid_until.max(valid_until);
                held.record.renewed_at = now.wall;
                effects.push(Effect::Extend { scope: claim.scope.clone(), valid_until: held.valid_until });
            }
            State::Confirming(held) if held.record.epoch == claim.epoch => {
                let mut held = held.clone();
                held.valid_until = held.valid_until.max(valid_until);
                let withdrawn = self.shares.get(&seat.campaign).is_none_or(|share| share.withdrawn);
                if held.valid_until <= now.boot || withdrawn {
                    seat.give_back(held.record, self.rules.duration, effects);
                } else {
                    drop(seat);
                    self.lead(now, &claim.scope, held, effects);
                }
            }
            State::Confirming(_)
            | State::Following
            | State::Acquiring { .. }
            | State::Installing { .. }
            | State::Releasing { .. } => {}
        }
    }

    pub(super) fn released(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        if !matches!(&seat.state, State::Releasing { term: ours } if *ours == term) {
            return;
        }
        effects.push(Effect::Settle { scope: scope.clone(), term });
        seat.state = State::Following;
        seat.seen = None;
        // Others come first: whoever gives a scope back does not snatch it from under them.
        let pause = self.rules.settling();
        seat.not_before = Some(now.boot + pause);
        seat.look.at = Some(now.boot + pause);
        self.changed.push(scope.clone());
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
        }
    }
}
