//! What is found of the seats without walking over them all: whose moment has come, who may be released, renewed or
//! looked at, whose the leases of others are, and how many of a campaign's scopes stand where.
//!
//! Knows [`Facts`], not seats. [`Seats`](super::seats::Seats) hands it those of every seat that changes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::BootTime;

use super::seat::Kind;
use super::words::CampaignId;
use crate::share::{Standing, Tally};
use crate::{Scope, Session};

/// What the index goes by. A seat whose facts have not changed is not filed anew.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    pub(super) campaign: CampaignId,
    pub(super) kind: Kind,
    /// How much this member prefers the scope.
    pub(super) weight: u64,
    /// When its state or its pause asks for a step.
    pub(super) due_at: Option<BootTime>,
    /// When somebody should look at it; none while a look is in flight.
    pub(super) look_at: Option<BootTime>,
    pub(super) acquiring: bool,
    pub(super) releasing: bool,
    pub(super) renewable: bool,
    pub(super) resigned: bool,
    /// Held without anybody working under it: released if it is resigned, or if its campaign is withdrawn.
    pub(super) releasable: bool,
    pub(super) following: bool,
    /// Who held it when it was last looked at.
    pub(super) holder: Option<Session>,
    /// None for a member's own seat, which is not shared out.
    pub(super) standing: Option<Standing>,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Index {
    due: Agenda,
    acquiring: usize,
    releasing: usize,
    resigned: usize,
    /// Members' seats that nobody sits on.
    empty_seats: usize,
    renewable: BTreeSet<Scope>,
    /// Members' seats first.
    releasable: BTreeSet<(Kind, Scope)>,
    /// On how many seats each of them was seen.
    holders: BTreeMap<Session, usize>,
    campaigns: BTreeMap<CampaignId, Ballot>,
    /// Somebody has joined the holders, or left them, since it was last asked.
    other_holders: bool,
}

/// The seats of one campaign.
#[derive(Debug, Default, PartialEq)]
struct Ballot {
    seats: usize,
    following: BTreeSet<Scope>,
    looks: Agenda,
    /// By weight, so that the most preferred comes last.
    mine: BTreeSet<(u64, Scope)>,
    /// The same, with since when.
    free: BTreeMap<(u64, Scope), BootTime>,
    leaving: usize,
    given_back: usize,
    held: BTreeMap<Session, usize>,
}

/// Scopes, each with its moment.
#[derive(Debug, Default, PartialEq)]
struct Agenda(
    /// `None` stands before every scope, as the bound of a search. It is never in here.
    BTreeSet<(BootTime, Option<Scope>)>,
);

impl Agenda {
    fn first(&self) -> Option<BootTime> {
        self.0.first().map(|(at, _)| *at)
    }

    fn first_after(&self, now: BootTime) -> Option<BootTime> {
        let next_instant = now + Duration::from_nanos(1);
        self.0.range((next_instant, None)..).next().map(|(at, _)| *at)
    }

    fn until(&self, by: BootTime) -> impl Iterator<Item = &Scope> {
        self.0.iter().take_while(move |(at, _)| *at <= by).filter_map(|(_, scope)| scope.as_ref())
    }

    fn file(&mut self, scope: &Scope, was: Option<BootTime>, is: Option<BootTime>) {
        if was == is {
            return;
        }
        if let Some(at) = was {
            self.0.remove(&(at, Some(scope.clone())));
        }
        if let Some(at) = is {
            self.0.insert((at, Some(scope.clone())));
        }
    }
}

impl Index {
    /// The earliest moment that a seat waits for, looks apart.
    pub(super) fn first_due(&self) -> Option<BootTime> {
        self.due.first()
    }

    pub(super) fn due(&self, now: BootTime) -> impl Iterator<Item = &Scope> {
        self.due.until(now)
    }

    pub(super) fn acquiring(&self) -> usize {
        self.acquiring
    }

    pub(super) fn releasing(&self) -> usize {
        self.releasing
    }

    /// Seats that nobody works under any more and that are not released yet.
    pub(super) fn resigned(&self) -> usize {
        self.resigned
    }

    /// Some campaign does not sit among the members.
    pub(super) fn has_empty_seats(&self) -> bool {
        self.empty_seats > 0
    }

    pub(super) fn holds_anything(&self) -> bool {
        !self.renewable.is_empty()
    }

    pub(super) fn renewable(&self) -> impl Iterator<Item = &Scope> {
        self.renewable.iter()
    }

    /// Members' seats first, then in order of scope.
    pub(super) fn releasable(&self) -> impl Iterator<Item = &Scope> {
        self.releasable.iter().map(|(_, scope)| scope)
    }

    /// All that were seen to hold something.
    pub(super) fn holders(&self) -> impl Iterator<Item = Session> {
        self.holders.keys().copied()
    }

    pub(super) fn holds_some(&self, session: Session) -> bool {
        self.holders.contains_key(&session)
    }

    /// True once after somebody has joined the holders, or left them.
    pub(super) fn take_other_holders(&mut self) -> bool {
        std::mem::take(&mut self.other_holders)
    }

    pub(super) fn has_seats(&self, campaign: CampaignId) -> bool {
        self.campaigns.contains_key(&campaign)
    }

    /// Seats of this campaign that hold nothing and ask for nothing.
    pub(super) fn following(&self, campaign: CampaignId) -> impl Iterator<Item = &Scope> {
        self.campaigns.get(&campaign).into_iter().flat_map(|ballot| &ballot.following)
    }

    pub(super) fn first_look(&self, campaign: CampaignId) -> Option<BootTime> {
        self.campaigns.get(&campaign)?.looks.first()
    }

    pub(super) fn first_look_after(&self, campaign: CampaignId, now: BootTime) -> Option<BootTime> {
        self.campaigns.get(&campaign)?.looks.first_after(now)
    }

    pub(super) fn looks(&self, campaign: CampaignId, by: BootTime) -> impl Iterator<Item = &Scope> {
        self.campaigns.get(&campaign).into_iter().flat_map(move |ballot| ballot.looks.until(by))
    }

    /// How the scopes of a campaign stand.
    pub(super) fn tally(&self, campaign: CampaignId, overdue: impl Fn(BootTime) -> bool) -> Tally<'_> {
        let Some(ballot) = self.campaigns.get(&campaign) else { return Tally::default() };
        let mut tally = Tally {
            mine: ballot.mine.len(),
            least_preferred: ballot.mine.first().map(|(_, scope)| scope),
            leaving: ballot.leaving,
            given_back: ballot.given_back,
            held: Cow::Borrowed(&ballot.held),
            ..Tally::default()
        };
        for ((_, scope), since) in ballot.free.iter().rev() {
            let list = if overdue(*since) { &mut tally.overdue } else { &mut tally.free };
            list.push(scope);
        }
        tally
    }

    /// Takes note of a seat that is new (`before` is none), has changed, or is gone (`after` is none).
    pub(super) fn file(&mut self, scope: &Scope, before: Option<&Facts>, after: Option<&Facts>) {
        let Some(any) = before.or(after).filter(|_| before != after) else { return };
        self.due.file(scope, before.and_then(|was| was.due_at), after.and_then(|is| is.due_at));
        count(&mut self.acquiring, before, after, |facts| facts.acquiring);
        count(&mut self.releasing, before, after, |facts| facts.releasing);
        count(&mut self.resigned, before, after, |facts| facts.resigned);
        count(&mut self.empty_seats, before, after, |facts| facts.following && facts.kind == Kind::Member);
        list(&mut self.renewable, before, after, |facts| facts.renewable, || scope.clone());
        list(&mut self.releasable, before, after, |facts| facts.releasable, || (any.kind, scope.clone()));
        let (was, is) = (before.and_then(|was| was.holder), after.and_then(|is| is.holder));
        self.other_holders |= recount(&mut self.holders, was, is);
        debug_assert!(before.is_none_or(|was| was.campaign == any.campaign && was.weight == any.weight));
        let campaign = self.campaigns.entry(any.campaign).or_default();
        campaign.file(scope, before, after);
        if campaign.seats == 0 {
            self.campaigns.remove(&any.campaign);
        }
    }

    /// Whether both say the same of the seats.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let Self {
            due,
            acquiring,
            releasing,
            resigned,
            empty_seats,
            renewable,
            releasable,
            holders,
            campaigns,
            other_holders: _,
        } = self;
        *due == other.due
            && *acquiring == other.acquiring
            && *releasing == other.releasing
            && *resigned == other.resigned
            && *empty_seats == other.empty_seats
            && *renewable == other.renewable
            && *releasable == other.releasable
            && *holders == other.holders
            && *campaigns == other.campaigns
    }
}

impl Ballot {
    fn file(&mut self, scope: &Scope, before: Option<&Facts>, after: Option<&Facts>) {
        count(&mut self.seats, before, after, |_| true);
        list(&mut self.following, before, after, |facts| facts.following, || scope.clone());
        self.looks.file(scope, before.and_then(|was| was.look_at), after.and_then(|is| is.look_at));
        let (was, is) = (before.and_then(|was| was.standing), after.and_then(|is| is.standing));
        if was == is {
            return;
        }
        let ranked = |facts: Option<&Facts>| (facts.map_or(0, |facts| facts.weight), scope.clone());
        match was {
            Some(Standing::Mine) => drop(self.mine.remove(&ranked(before))),
            Some(Standing::Free { .. }) => drop(self.free.remove(&ranked(before))),
            Some(Standing::Leaving) => self.leaving -= 1,
            Some(Standing::GivenBack) => self.given_back -= 1,
            Some(Standing::Other(_) | Standing::Unknown) | None => {}
        }
        match is {
            Some(Standing::Mine) => drop(self.mine.insert(ranked(after))),
            Some(Standing::Free { since }) => drop(self.free.insert(ranked(after), since)),
            Some(Standing::Leaving) => self.leaving += 1,
            Some(Standing::GivenBack) => self.given_back += 1,
            Some(Standing::Other(_) | Standing::Unknown) | None => {}
        }
        let other = |standing| match standing {
            Some(Standing::Other(session)) => Some(session),
            _ => None,
        };
        recount(&mut self.held, other(was), other(is));
    }
}

fn count(
    number: &mut usize,
    before: Option<&Facts>,
    after: Option<&Facts>,
    belongs: impl Fn(&Facts) -> bool,
) {
    *number -= usize::from(before.is_some_and(&belongs));
    *number += usize::from(after.is_some_and(&belongs));
}

fn list<K: Ord>(
    set: &mut BTreeSet<K>,
    before: Option<&Facts>,
    after: Option<&Facts>,
    belongs: impl Fn(&Facts) -> bool,
    key: impl Fn() -> K,
) {
    match (before.is_some_and(&belongs), after.is_some_and(&belongs)) {
        (false, true) => drop(set.insert(key())),
        (true, false) => drop(set.remove(&key())),
        (false, false) | (true, true) => {}
    }
}

/// Counts one seat from one session to another. True if a session has come or gone by that.
fn recount(counts: &mut BTreeMap<Session, usize>, was: Option<Session>, is: Option<Session>) -> bool {
    if was == is {
        return false;
    }
    let mut moved = false;
    if let Some(session) = is {
        let count = counts.entry(session).or_default();
        *count += 1;
        moved |= *count == 1;
    }
    if let Some(session) = was
        && let Some(count) = counts.get_mut(&session)
    {
        *count -= 1;
        if *count == 0 {
            counts.remove(&session);
            moved = true;
        }
    }
    moved
}
