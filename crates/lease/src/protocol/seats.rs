//! All seats of this process. Owns them together with their [`Index`], and promises that the two agree: whoever
//! changes a seat does it through here, and the seat is filed anew when the change is done. So an event costs what it
//! touches, however many scopes there are.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use tenure_clock::BootTime;

use super::index::{Facts, Index};
use super::seat::{Held, Seat};
use super::words::CampaignId;
use crate::Scope;

#[derive(Debug, Default)]
pub(super) struct Seats {
    by_scope: BTreeMap<Scope, Seat>,
    index: Index,
    /// How often a seat was taken away: whoever waits for one need not look before this moves.
    removals: u64,
    /// How many seats were read or changed, so that a test can tell what an event touches.
    #[cfg(test)]
    touched: std::cell::Cell<usize>,
}

/// A seat that is being changed. It is filed when this is dropped.
pub(super) struct SeatMut<'a> {
    scope: &'a Scope,
    seat: &'a mut Seat,
    index: &'a mut Index,
    before: Facts,
}

impl Deref for SeatMut<'_> {
    type Target = Seat;
    fn deref(&self) -> &Seat {
        self.seat
    }
}

impl DerefMut for SeatMut<'_> {
    fn deref_mut(&mut self) -> &mut Seat {
        self.seat
    }
}

impl Drop for SeatMut<'_> {
    fn drop(&mut self) {
        self.index.file(self.scope, Some(&self.before), Some(&self.seat.facts()));
    }
}

impl Seats {
    pub(super) fn get(&self, scope: &Scope) -> Option<&Seat> {
        self.touch(1);
        self.by_scope.get(scope)
    }

    pub(super) fn contains(&self, scope: &Scope) -> bool {
        self.by_scope.contains_key(scope)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_scope.is_empty()
    }

    pub(super) fn get_mut<'a>(&'a mut self, scope: &'a Scope) -> Option<SeatMut<'a>> {
        self.touch(1);
        let seat = self.by_scope.get_mut(scope)?;
        let before = seat.facts();
        Some(SeatMut { scope, seat, index: &mut self.index, before })
    }

    /// Changes every seat, in order of scope: for what concerns them all.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&Scope, &mut Seat)) {
        self.touch(self.by_scope.len());
        for (scope, seat) in &mut self.by_scope {
            let before = seat.facts();
            change(scope, seat);
            self.index.file(scope, Some(&before), Some(&seat.facts()));
        }
    }

    pub(super) fn insert(&mut self, scope: Scope, seat: Seat) {
        self.remove(&scope);
        self.index.file(&scope, None, Some(&seat.facts()));
        self.by_scope.insert(scope, seat);
    }

    pub(super) fn remove(&mut self, scope: &Scope) {
        if let Some(seat) = self.by_scope.remove(scope) {
            self.index.file(scope, Some(&seat.facts()), None);
            self.removals += 1;
        }
    }

    pub(super) fn removals(&self) -> u64 {
        self.removals
    }

    /// Indexes are read through here; they are changed by changing seats.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// True once after somebody has joined those who were seen to hold something, or left them.
    pub(super) fn take_other_holders(&mut self) -> bool {
        self.index.take_other_holders()
    }

    /// What the next renewal covers, in order of scope.
    pub(super) fn renewable(&self) -> impl Iterator<Item = &Held> {
        let seats = self.index.renewable().filter_map(|scope| self.get(scope));
        seats.filter_map(|seat| seat.state.renewable())
    }

    /// Seats of which a deadline, a retry or a pause is over, in order of scope.
    pub(super) fn due(&self, now: BootTime) -> Vec<Scope> {
        in_order(self.index.due(now))
    }

    /// Seats of this campaign that want to be looked at by then, in order of scope.
    pub(super) fn looks(&self, campaign: CampaignId, by: BootTime) -> Vec<Scope> {
        in_order(self.index.looks(campaign, by))
    }

    /// Compares the indexes with what a walk over all seats finds.
    pub(super) fn check(&self) {
        let mut anew = Index::default();
        self.by_scope.iter().for_each(|(scope, seat)| anew.file(scope, None, Some(&seat.facts())));
        assert!(self.index.agrees_with(&anew), "a stale index: {:?}, but {anew:?}", self.index);
    }

    pub(super) fn len(&self) -> usize {
        self.by_scope.len()
    }

    /// Counts, in unit tests.
    fn touch(&self, _seats: usize) {
        #[cfg(test)]
        self.touched.set(self.touched.get() + _seats);
    }
}

fn in_order<'a>(scopes: impl Iterator<Item = &'a Scope>) -> Vec<Scope> {
    let mut scopes: Vec<Scope> = scopes.cloned().collect();
    scopes.sort_unstable();
    scopes
}

#[cfg(test)]
mod tests;
