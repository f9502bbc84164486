//! What is seen of the leases that others hold, and what is heard of them.

use super::rules::stall_after;
use super::seat::{SaidDead, Seen, State};
use super::words::{CampaignId, Effect, Failure, Listing, Now};
use super::{Protocol, SHORTEST_BACKOFF};
use crate::store::{Hint, LossReason, Takeover};
use crate::{LeaseRecord, Scope, Session};

impl Protocol {
    pub(super) fn looked(
        &mut self,
        now: Now,
        scope: &Scope,
        outcome: Result<Option<LeaseRecord>, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        // A look that was asked for after this one went out is still due, and stays so below.
        seat.look.in_flight = false;
        match outcome {
            Ok(record) => {
                seat.succeeded();
                drop(seat);
                self.observe(now, scope, record, effects);
            }
            Err(failure) => {
                let pause = self.rules.pause(&mut seat, failure, &self.entropy);
                seat.look.at = Some(now.boot + pause);
                self.changed.push(scope.clone());
            }
        }
    }

    pub(super) fn listed(
        &mut self,
        now: Now,
        id: CampaignId,
        outcome: Result<Listing, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        share.list_in_flight = false;
        let listing = match outcome {
            Ok(listing) => listing,
            Err(_) => {
                let pause = self.rules.retry_every().clamp(SHORTEST_BACKOFF, self.rules.longest_backoff());
                let again = now.boot + pause + self.entropy.jitter(pause / 2);
                share.list_at = Some(share.list_at.map_or(again, |due| due.max(again)));
                return;
            }
        };
        let next = now.boot + self.rules.renew_every() + self.entropy.jitter(self.rules.spread());
        // A listing that was asked for after this one went out is still due.
        share.list_at = Some(share.list_at.map_or(next, |due| due.min(next)));
        self.other_members |= share.observe_members(&listing.members, self.rules.holder.session);
        let Some(leases) = listing.leases else { return };
        share.list_leases = false;
        share.dirty = true;
        let mut found = Found::new(leases);
        for scope in share.preferred.clone().iter() {
            self.observe(now, scope, found.take(scope), effects);
        }
        if let Some(share) = self.shares.get_mut(&id) {
            share.listed = true;
        }
    }

    /// A record as the store has it now, or had it a moment ago.
    pub(super) fn observe(
        &mut self,
        now: Now,
        scope: &Scope,
        record: Option<LeaseRecord>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(mut seat) = self.seats.get_mut(scope) else { return };
        self.changed.push(scope.clone());
        match &seat.state {
            State::Following => {}
            State::Leading(held) | State::Draining { held, .. } => {
                let (ours, term) = (held.record.epoch, held.record.term);
                drop(seat);
                match record {
                    // A lower epoch was read before this term began. The same one belongs to a successor that has
                    // not installed its own yet.
                    Some(record) if record.term != term && record.epoch >= ours => {
                        let reason = LossReason::Superseded { holder: record.holder, epoch: record.epoch };
                        self.lose(now, scope, term, reason, effects);
                    }
                    // Gone, perhaps, or gone and taken: a renewal finds out.
                    None => self.renew_at = now.boot,
                    Some(record) if record.term != term => self.renew_at = now.boot,
                    Some(_) => {}
                }
                return;
            }
            State::Acquiring { .. }
            | State::Installing { .. }
            | State::Confirming(_)
            | State::Releasing { .. } => return,
        }
        // A predecessor's lease is there from the start. What appears later is somebody alive, whatever it
        // calls itself, and snatching it back and forth would serve nobody.
        let share = self.shares.get(&seat.campaign);
        let sole = share.is_some_and(|share| share.campaign.sole_instance && !share.listed);
        let before = seat.seen.take();
        let unchanged = before.as_ref().filter(|seen| same_version(&seen.record, &record));
        let unchanged_since = unchanged.map_or(now.boot, |seen| seen.unchanged_since);
        // A crash hint holds for as long as the record does not move, also one that came before the holder was seen.
        let heard_of = |record: &&LeaseRecord| {
            let unseen = before.as_ref().and_then(Seen::term) != Some(record.term);
            unseen && share.is_some_and(|share| share.crashed.contains_key(&record.holder.session))
        };
        let heard = record.as_ref().filter(heard_of).map(|record| (record.term, SaidDead::default()));
        seat.dead = record.as_ref().zip(seat.dead.take().or(heard)).and_then(|(record, (term, dead))| {
            let dead = dead.after_seeing(record).filter(|_| record.term == term)?;
            Some((term, dead))
        });
        let said_dead = seat.dead.map(|(term, _)| Takeover::OfDead(term));
        let stalled_for = now.boot.saturating_since(unchanged_since);
        let takeover = match &record {
            None => Some(Takeover::IfFree),
            Some(record) if !record.is_held() => Some(Takeover::IfFree),
            Some(record) => self.rules.takeover_of(record, sole, stalled_for).or(said_dead),
        };
        let was_free = before.as_ref().and_then(|seen| seen.free).map(|(_, since)| since);
        let free = takeover.map(|how| (how, was_free.unwrap_or(now.boot)));
        let next_look = match (&record, free) {
            // Somebody takes it, or it is anybody's after a while.
            (_, Some((_, since))) => {
                let overdue = since + self.rules.overdue();
                if overdue > now.boot { overdue } else { now.boot + self.rules.renew_every() }
            }
            (Some(record), None) => {
                let expiry = now.boot + record.remaining;
                let stall = unchanged_since + stall_after(record.duration);
                let at = if self.rules.clock_may_step { expiry.min(stall) } else { expiry };
                at.max(now.boot) + self.entropy.jitter(self.rules.spread())
            }
            (None, None) => now.boot + self.rules.renew_every(),
        };
        let vacant = record.as_ref().is_none_or(|record| !record.is_held());
        seat.ownerless_since = (vacant || free.is_some()).then(|| seat.ownerless_since.unwrap_or(now.boot));
        seat.look_by(next_look);
        seat.seen = Some(Seen { record, unchanged_since, free });
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
        }
    }

    pub(super) fn hinted(&mut self, now: Now, hint: &Hint) {
        match hint {
            Hint::Changed(scope) => {
                for share in self.shares.values_mut() {
                    if scope.as_str().starts_with(&share.members_under) {
                        share.list_at = Some(now.boot);
                    }
                }
                if let Some(mut seat) = self.seats.get_mut(scope) {
                    seat.hinted(now.boot);
                }
            }
            Hint::Resync => {
                for share in self.shares.values_mut() {
                    share.list_at = Some(now.boot);
                }
                self.seats.change_all(|_, seat| seat.hinted(now.boot));
            }
            // Whoever says so is wrong, and may act on it: see what is left.
            Hint::Crashed(session) if *session == self.rules.holder.session => self.renew_at = now.boot,
            Hint::Crashed(session) => self.crashed(now, *session),
        }
    }

    pub(super) fn crashed(&mut self, now: Now, session: Session) {
        for share in self.shares.values_mut() {
            share.list_at = Some(now.boot);
            if self.rules.crash_hints && share.members.remove(&session) {
                share.crashed.entry(session).or_default();
                share.dirty = true;
                self.other_members = true;
            }
        }
        if !self.rules.crash_hints || !self.seats.index().holds_some(session) {
            return;
        }
        let (shares, changed) = (&mut self.shares, &mut self.changed);
        self.seats.change_all(|scope, seat| {
            let Some(Seen { record: Some(record), free, .. }) = &mut seat.seen else { return };
            if record.holder.session == session && matches!(seat.state, State::Following) && free.is_none() {
                *free = Some((Takeover::OfDead(record.term), now.boot));
                seat.dead = Some((record.term, SaidDead::default()));
                seat.ownerless_since.get_or_insert(now.boot);
                changed.push(scope.clone());
                if let Some(share) = shares.get_mut(&seat.campaign) {
                    share.dirty = true;
                }
            }
        });
    }
}

/// The records of one listing, to be taken out one by one.
struct Found(Vec<(Scope, Option<LeaseRecord>)>);

impl Found {
    fn new(leases: Vec<LeaseRecord>) -> Self {
        let mut found: Vec<_> =
            leases.into_iter().map(|record| (record.scope.clone(), Some(record))).collect();
        // Stores list in order of scope, and then this costs one walk.
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self(found)
    }

    fn take(&mut self, scope: &Scope) -> Option<LeaseRecord> {
        let at = self.0.binary_search_by(|(other, _)| other.cmp(scope)).ok()?;
        self.0[at].1.take()
    }
}

fn same_version(before: &Option<LeaseRecord>, after: &Option<LeaseRecord>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.term == after.term && before.resource_version == after.resource_version
        }
        (None, None) => true,
        _ => false,
    }
}
