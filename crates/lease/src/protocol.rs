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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{BootTime, Entropy};

use crate::share::{self, Standing};
use crate::store::{
    AcquireOutcome, AcquireRequest, Claim, Hint, LeaseError, LossReason, RenewOutcome, Takeover,
};
use crate::{Epoch, Holder, LeaseRecord, Scope, Session, Term};

/// What the protocol goes by. Made from an [`ElectorConfig`](crate::ElectorConfig), which checks it.
#[derive(Clone, Debug)]
pub struct Rules {
    pub holder: Holder,
    pub duration: Duration,
    pub margin: Duration,
    pub drain_for: Duration,
    /// Take over from a process that is said to have died, before its lease runs out.
    pub crash_hints: bool,
    /// The store's clock can be set back, so a lease that nobody renews is not waited for endlessly.
    pub clock_may_step: bool,
}

impl Rules {
    /// So early that a renewal which fails can be repeated before the deadline.
    pub fn renew_every(&self) -> Duration {
        self.duration / 3
    }

    fn retry_every(&self) -> Duration {
        self.duration / 12
    }

    /// How long one call may take: a third of what the holder has.
    pub fn call_budget(&self) -> Duration {
        self.duration.saturating_sub(self.margin) / 3
    }

    fn valid_until(&self, sent: BootTime, lasts: Duration) -> BootTime {
        sent + lasts.min(self.duration).saturating_sub(self.margin)
    }

    /// Candidates spread over this much time when a lease runs out.
    fn spread(&self) -> Duration {
        (self.duration / 50).min(Duration::from_millis(100))
    }

    /// A store that comes back is noticed within a fraction of the duration, however long it was away.
    fn longest_backoff(&self) -> Duration {
        (self.duration / 4).clamp(SHORTEST_BACKOFF, Duration::from_secs(5))
    }

    /// How long a seat whose call has failed waits before the next one.
    fn pause(&self, seat: &mut Seat, why: String, entropy: &Entropy) -> Duration {
        seat.problem = Some(why);
        seat.backoff = (seat.backoff * 2).clamp(SHORTEST_BACKOFF, self.longest_backoff());
        seat.backoff + entropy.jitter(seat.backoff / 4)
    }

    /// Until what is seen of a moving picture can be trusted: others take what has come free before whoever gave it
    /// back, and nobody gives back what only seemed too much.
    fn settling(&self) -> Duration {
        (self.duration / 20).min(Duration::from_millis(500))
    }

    /// A free scope that nobody takes for this long is anybody's.
    fn overdue(&self) -> Duration {
        self.duration
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub boot: BootTime,
    pub wall: Timestamp,
}

/// Scopes that this process stands for, together with the other members of the component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// Members of one component share its scopes out evenly.
    pub component: String,
    pub scopes: Vec<Scope>,
    /// Kept in the lease records, for people.
    pub note: String,
    /// No other process of this holder's instance can be alive (the caller holds a lock that says so): what an
    /// earlier one has left behind is taken over at once.
    pub sole_instance: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CampaignId(pub u64);

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Unavailable(String),
    Ambiguous(String),
    Refused(String),
}

impl Failure {
    pub fn text(&self) -> &str {
        match self {
            Self::Unavailable(text) | Self::Ambiguous(text) | Self::Refused(text) => text,
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        match error {
            LeaseError::Unavailable(_) => Self::Unavailable(text),
            LeaseError::Ambiguous(_) => Self::Ambiguous(text),
            LeaseError::Refused(_) => Self::Refused(text),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    Stand(CampaignId, Campaign),
    Withdraw(CampaignId),
    /// The holder has stopped its work.
    Resign {
        scope: Scope,
        term: Term,
    },
    /// Give everything back and end.
    Stop,
    Acquired {
        scope: Scope,
        term: Term,
        sent: BootTime,
        outcome: Result<AcquireOutcome, Failure>,
    },
    Installed {
        scope: Scope,
        term: Term,
        outcome: Result<Epoch, Failure>,
    },
    Renewed {
        sent: BootTime,
        outcome: Result<Vec<RenewOutcome>, Failure>,
    },
    /// Or not: whatever the answer was, nothing more is tried.
    Released {
        scope: Scope,
        term: Term,
    },
    Looked {
        scope: Scope,
        outcome: Result<Option<LeaseRecord>, Failure>,
    },
    Listed {
        campaign: CampaignId,
        outcome: Result<Listing, Failure>,
    },
    Hint(Hint),
    /// Somebody outside has ended the authority: the watchdog.
    Tripped {
        scope: Scope,
        term: Term,
    },
    /// The lifeline is cut: others may take this process for dead.
    Cut,
}

#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub members: Vec<LeaseRecord>,
    /// `None` if it was not asked for.
    pub leases: Option<Vec<LeaseRecord>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Acquire(AcquireRequest),
    Install {
        scope: Scope,
        term: Term,
        floor: Epoch,
    },
    Renew(Vec<Claim>),
    Release(Claim),
    Look(Scope),
    List {
        campaign: CampaignId,
        members_under: String,
        leases_under: Option<String>,
    },
    Elect {
        campaign: CampaignId,
        record: LeaseRecord,
        valid_until: BootTime,
    },
    Extend {
        scope: Scope,
        valid_until: BootTime,
    },
    RenewalFailed {
        scopes: Vec<Scope>,
        why: String,
    },
    AskBack(Scope),
    /// The authority ends because something went wrong.
    Trip {
        scope: Scope,
        reason: LossReason,
    },
    /// The authority ends in order; the release follows.
    End(Scope),
    /// Nothing more happens to this term.
    Settle {
        scope: Scope,
        term: Term,
    },
    WatchPeers(Vec<Session>),
    Withdrawn(CampaignId),
    Stopped,
}

/// Where a scope stands, for people and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Following,
    Acquiring,
    InstallingFence,
    Leading,
    Draining,
    Releasing,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Following => "following",
            Self::Acquiring => "acquiring",
            Self::InstallingFence => "installing_fence",
            Self::Leading => "leading",
            Self::Draining => "draining",
            Self::Releasing => "releasing",
        }
    }
}

#[derive(Clone, Debug)]
pub struct ScopeStatus {
    pub scope: Scope,
    pub component: String,
    /// This process's own seat among the members, not a scope it stands for.
    pub is_member_seat: bool,
    pub phase: Phase,
    /// As last seen: this process's own record while it leads.
    pub record: Option<LeaseRecord>,
    /// Since when nobody has held it, as far as this process knows.
    pub ownerless_since: Option<BootTime>,
    /// What the latest call has failed with.
    pub problem: Option<String>,
}

#[derive(Debug)]
struct Seat {
    campaign: CampaignId,
    kind: Kind,
    state: State,
    seen: Option<Seen>,
    look: Look,
    /// No acquire before this.
    not_before: Option<BootTime>,
    backoff: Duration,
    ownerless_since: Option<BootTime>,
    problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Member,
    Contested,
}

#[derive(Debug)]
enum State {
    Following,
    Acquiring { request: AcquireRequest, retry_at: Option<BootTime> },
    Installing { held: Held, retry_at: Option<BootTime> },
    Confirming(Held),
    Leading(Held),
    Draining { held: Held, until: BootTime, resigned: bool },
    Releasing { term: Term },
}

#[derive(Clone, Debug)]
struct Held {
    record: LeaseRecord,
    valid_until: BootTime,
}

/// Somebody else's record, or nobody's.
#[derive(Debug)]
struct Seen {
    record: Option<LeaseRecord>,
    /// Since when the record has had this version.
    unchanged_since: BootTime,
    /// How it may be taken, if it may.
    free: Option<(Takeover, BootTime)>,
}

#[derive(Debug, Default)]
struct Look {
    at: Option<BootTime>,
    in_flight: bool,
}

#[derive(Debug)]
struct Share {
    campaign: Campaign,
    /// In this member's own order.
    preferred: Vec<Scope>,
    common_prefix: String,
    /// Scopes that another campaign of this process stands for.
    taken: Vec<Scope>,
    member_seat: Scope,
    /// Which seat of its instance's that is: living processes of one name sit side by side.
    seat_number: u32,
    members: BTreeSet<Session>,
    /// Members that are said to have crashed, with the version their seat had then.
    crashed: BTreeMap<Session, u64>,
    list_at: Option<BootTime>,
    list_in_flight: bool,
    /// Known once, so that the first plan does not take everything.
    listed: bool,
    /// The next listing includes the leases: nobody else will look at them.
    list_leases: bool,
    /// Has sat among the members once.
    seated: bool,
    withdrawn: bool,
    /// This member has less than its share, and looks out for what others give back.
    short: bool,
    /// Since when this member has seemed to hold more than its share.
    surplus_since: Option<BootTime>,
    dirty: bool,
    /// Dirty from then on.
    plan_at: Option<BootTime>,
}

const SHORTEST_BACKOFF: Duration = Duration::from_millis(50);
/// Acquires in flight, and releases: hundreds of scopes that move at once must not take every connection, nor make a
/// stop wait for a queue of calls that nobody wants any more.
const CALLS_AT_ONCE: usize = 4;
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
        let plans = self.shares.values().map(|share| share.plan_at);
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

    // ── What callers ask for ────────────────────────────────────────────────────────────────────────────

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

    // ── What the store answers ──────────────────────────────────────────────────────────────────────────

    fn acquired(
        &mut self,
        now: Now,
        scope: &Scope,
        term: Term,
        sent: BootTime,
        outcome: Result<AcquireOutcome, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        self.changed.insert(scope.clone());
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
                seat.state = State::Following;
                self.observe(now, scope, Some(record), effects);
            }
            // It may be ours: the same term asks again, and learns it.
            Err(Failure::Ambiguous(why)) if !unwanted => {
                let pause = self.rules.pause(seat, why, &self.entropy);
                if let State::Acquiring { retry_at, .. } = &mut seat.state {
                    *retry_at = Some(now.boot + pause);
                }
            }
            Err(failure) => {
                let pause = self.rules.pause(seat, failure.text().to_owned(), &self.entropy);
                let refused = matches!(failure, Failure::Refused(_));
                let pause = if refused { self.rules.longest_backoff() } else { pause };
                seat.state = State::Following;
                seat.not_before = Some(now.boot + pause);
                seat.look.at = Some(now.boot + pause);
            }
        }
    }

    fn lead(&mut self, now: Now, scope: &Scope, held: Held, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
        seat.ownerless_since = None;
        seat.seen = None;
        seat.look.at = None;
        if seat.kind == Kind::Contested {
            let (record, valid_until) = (held.record.clone(), held.valid_until);
            effects.push(Effect::Elect { campaign: seat.campaign, record, valid_until });
        }
        // The first to be held starts the rhythm; the others fall in.
        let first = !self.holds_anything();
        if first {
            self.renew_at = now.boot + self.next_renewal();
        }
        if let Some(seat) = self.seats.get_mut(scope) {
            seat.state = State::Leading(held);
            if let Some(share) = self.shares.get_mut(&seat.campaign) {
                share.dirty = true;
                share.seated |= share.member_seat == *scope;
            }
        }
        self.changed.insert(scope.clone());
    }

    fn installed(&mut self, now: Now, scope: &Scope, term: Term, outcome: Result<Epoch, Failure>) {
        let Some(seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
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
                let pause = self.rules.pause(seat, failure.text().to_owned(), &self.entropy);
                State::Installing { held, retry_at: Some(now.boot + pause) }
            }
        };
        self.changed.insert(scope.clone());
    }

    fn renewed(
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

    fn renewal_failed(&mut self, now: Now, scopes: Vec<Scope>, why: String, effects: &mut Vec<Effect>) {
        effects.push(Effect::RenewalFailed { scopes, why });
        let pause = self.rules.retry_every();
        self.renew_at = now.boot + pause + self.entropy.jitter(pause / 2);
    }

    fn prolong(&mut self, now: Now, sent: BootTime, claim: &Claim, effects: &mut Vec<Effect>) {
        let valid_until = self.rules.valid_until(sent, claim.duration);
        let Some(seat) = self.seats.get_mut(&claim.scope) else { return };
        if seat.state.term() != Some(claim.term) {
            return;
        }
        self.changed.insert(claim.scope.clone());
        match &mut seat.state {
            State::Leading(held) | State::Draining { held, .. } => {
                held.valid_until = held.valid_until.max(valid_until);
                held.record.renewed_at = now.wall;
                held.record.resource_version += 1;
                effects.push(Effect::Extend { scope: claim.scope.clone(), valid_until: held.valid_until });
            }
            State::Confirming(held) if held.record.epoch == claim.epoch => {
                let mut held = held.clone();
                held.valid_until = held.valid_until.max(valid_until);
                let withdrawn = self.shares.get(&seat.campaign).is_none_or(|share| share.withdrawn);
                if held.valid_until <= now.boot || withdrawn {
                    seat.give_back(held.record, self.rules.duration, effects);
                } else {
                    let scope = claim.scope.clone();
                    self.lead(now, &scope, held, effects);
                }
            }
            State::Confirming(_)
            | State::Following
            | State::Acquiring { .. }
            | State::Installing { .. }
            | State::Releasing { .. } => {}
        }
    }

    fn released(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
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
        self.changed.insert(scope.clone());
        if let Some(share) = self.shares.get_mut(&seat.campaign) {
            share.dirty = true;
        }
    }

    fn looked(
        &mut self,
        now: Now,
        scope: &Scope,
        outcome: Result<Option<LeaseRecord>, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
        // A look that was asked for after this one went out is still due, and stays so below.
        seat.look.in_flight = false;
        match outcome {
            Ok(record) => {
                seat.succeeded();
                self.observe(now, scope, record, effects);
            }
            Err(failure) => {
                let pause = self.rules.pause(seat, failure.text().to_owned(), &self.entropy);
                seat.look.at = Some(now.boot + pause);
                self.changed.insert(scope.clone());
            }
        }
    }

    fn listed(
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
        share.observe_members(&listing.members, self.rules.holder.session);
        let Some(leases) = listing.leases else { return };
        share.list_leases = false;
        share.dirty = true;
        let mut found: BTreeMap<Scope, LeaseRecord> =
            leases.into_iter().map(|record| (record.scope.clone(), record)).collect();
        for scope in share.preferred.clone() {
            self.observe(now, &scope, found.remove(&scope), effects);
        }
        if let Some(share) = self.shares.get_mut(&id) {
            share.listed = true;
        }
    }

    // ── What is seen and heard ──────────────────────────────────────────────────────────────────────────

    /// A record as the store has it now, or had it a moment ago.
    fn observe(&mut self, now: Now, scope: &Scope, record: Option<LeaseRecord>, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope) else { return };
        self.changed.insert(scope.clone());
        match &seat.state {
            State::Following => {}
            State::Leading(held) | State::Draining { held, .. } => {
                let (ours, term) = (held.record.epoch, held.record.term);
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
        // A crash hint holds for as long as the record does not move.
        let known_dead = unchanged.and_then(|seen| seen.free).filter(|(takeover, _)| {
            matches!((takeover, &record), (Takeover::OfDead(dead), Some(record)) if *dead == record.term)
        });
        // It was said of this holder before anything of it was seen here.
        let same_term = |seen: &Seen| {
            seen.record.as_ref().map(|record| record.term) == record.as_ref().map(|record| record.term)
        };
        let said_dead = record.as_ref().filter(|record| {
            !before.as_ref().is_some_and(same_term)
                && share.is_some_and(|share| share.crashed.contains_key(&record.holder.session))
        });
        let said_dead = said_dead.map(|record| Takeover::OfDead(record.term));
        let stalled_for = now.boot.saturating_since(unchanged_since);
        let takeover = match &record {
            None => Some(Takeover::IfFree),
            Some(record) if !record.is_held() => Some(Takeover::IfFree),
            Some(record) => {
                let known_dead = known_dead.map(|(how, _)| how);
                self.rules.takeover_of(record, sole, stalled_for).or(known_dead).or(said_dead)
            }
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

    fn hinted(&mut self, now: Now, hint: &Hint) {
        match hint {
            Hint::Changed(scope) => {
                for share in self.shares.values_mut() {
                    if scope.as_str().starts_with(&Scope::members_of(&share.campaign.component)) {
                        share.list_at = Some(now.boot);
                    }
                }
                // A seat with a call in flight learns all it needs from the answer.
                let settled = |seat: &&mut Seat| seat.kind == Kind::Contested && seat.state.is_settled();
                if let Some(seat) = self.seats.get_mut(scope).filter(settled) {
                    seat.look_now(now.boot);
                }
            }
            Hint::Resync => {
                for share in self.shares.values_mut() {
                    share.list_at = Some(now.boot);
                }
                let settled = |seat: &&mut Seat| seat.kind == Kind::Contested && seat.state.is_settled();
                self.seats.values_mut().filter(settled).for_each(|seat| seat.look_now(now.boot));
            }
            // Whoever says so is wrong, and may act on it: see what is left.
            Hint::Crashed(session) if *session == self.rules.holder.session => self.renew_at = now.boot,
            Hint::Crashed(session) => self.crashed(now, *session),
        }
    }

    fn crashed(&mut self, now: Now, session: Session) {
        for share in self.shares.values_mut() {
            share.list_at = Some(now.boot);
            if self.rules.crash_hints && share.members.remove(&session) {
                share.crashed.entry(session).or_insert(u64::MAX);
                share.dirty = true;
            }
        }
        if !self.rules.crash_hints {
            return;
        }
        for (scope, seat) in &mut self.seats {
            let Some(Seen { record: Some(record), free, .. }) = &mut seat.seen else { continue };
            if record.holder.session == session && matches!(seat.state, State::Following) && free.is_none() {
                *free = Some((Takeover::OfDead(record.term), now.boot));
                seat.ownerless_since.get_or_insert(now.boot);
                self.changed.insert(scope.clone());
                if let Some(share) = self.shares.get_mut(&seat.campaign) {
                    share.dirty = true;
                }
            }
        }
    }

    // ── Losing ──────────────────────────────────────────────────────────────────────────────────────────

    fn lose(&mut self, now: Now, scope: &Scope, term: Term, reason: LossReason, effects: &mut Vec<Effect>) {
        let Some(seat) = self.seats.get_mut(scope).filter(|seat| seat.state.term() == Some(term)) else {
            return;
        };
        if seat.kind == Kind::Contested && seat.state.is_elected() {
            effects.push(Effect::Trip { scope: scope.clone(), reason });
        }
        self.follow_again(now, scope, effects);
    }

    fn tripped(&mut self, now: Now, scope: &Scope, term: Term, effects: &mut Vec<Effect>) {
        let seat = self.seats.get(scope);
        // What has been resigned is released all the same.
        if seat.is_some_and(|seat| seat.state.term() == Some(term) && seat.state.is_elected()) {
            self.follow_again(now, scope, effects);
        }
    }

    /// The term is over; what it left behind in the store is looked at as anybody else's record would be.
    fn follow_again(&mut self, now: Now, scope: &Scope, effects: &mut Vec<Effect>) {
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

    // ── What time and the new state ask for ─────────────────────────────────────────────────────────────

    fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
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

    fn pass_deadlines(&mut self, now: Now, effects: &mut Vec<Effect>) {
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

    fn repeat_calls(&mut self, now: Now, effects: &mut Vec<Effect>) {
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
    /// member's seat goes with the first of them, so that the others count on one member less and take what comes.
    fn release_the_unwanted(&mut self, effects: &mut Vec<Effect>) {
        let in_flight: BTreeSet<&Scope> = self.renewal.iter().flatten().map(|claim| &claim.scope).collect();
        let releasing =
            self.seats.values().filter(|seat| matches!(seat.state, State::Releasing { .. })).count();
        let mut room = CALLS_AT_ONCE.saturating_sub(releasing);
        for (scope, seat) in &mut self.seats {
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

    fn renew(&mut self, now: Now, effects: &mut Vec<Effect>) {
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

    fn next_renewal(&self) -> Duration {
        self.rules.renew_every() - self.entropy.jitter(self.rules.duration / 20)
    }

    /// Takes a seat for what an earlier campaign of this process has let go of.
    fn inherit(&mut self, now: Now, id: CampaignId) {
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
    fn sit_among_members(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
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

    fn acquire(
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

    fn look_around(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id).filter(|share| !share.withdrawn) else { return };
        let due = |seat: &Seat| !seat.look.in_flight && seat.look.at.is_some_and(|at| at <= now.boot);
        let looks: Vec<Scope> =
            share.preferred.iter().filter(|scope| self.seats.get(*scope).is_some_and(due)).cloned().collect();
        let many = looks.len() > FEW_LOOKS;
        let list_due = share.list_at.is_some_and(|at| at <= now.boot);
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

    fn share_out(&mut self, now: Now, id: CampaignId, effects: &mut Vec<Effect>) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        let ready = share.listed && !share.withdrawn && !self.stopping;
        let due = share.plan_at.take_if(|at| *at <= now.boot).is_some();
        if !ready || !(std::mem::take(&mut share.dirty) || due) {
            return;
        }
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
    fn finish_withdrawal(&mut self, id: CampaignId, effects: &mut Vec<Effect>) {
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

    fn watch_peers(&mut self, effects: &mut Vec<Effect>) {
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

impl Rules {
    /// How a lease that is still held may be taken all the same.
    fn takeover_of(
        &self,
        record: &LeaseRecord,
        sole_instance: bool,
        stalled_for: Duration,
    ) -> Option<Takeover> {
        let own = &self.holder;
        let (theirs, term) = (&record.holder, record.term);
        // A term of this very process that it no longer works under.
        let left_behind = theirs.session == own.session;
        let predecessor = sole_instance && theirs.instance == own.instance;
        if left_behind || predecessor {
            return Some(Takeover::OfDead(term));
        }
        let stalled = self.clock_may_step && stalled_for >= stall_after(record.duration);
        stalled.then_some(Takeover::OfStalled { term, resource_version: record.resource_version })
    }
}

/// Nobody who is alive leaves a lease unrenewed for this long.
fn stall_after(duration: Duration) -> Duration {
    duration * 3 / 2
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

fn claim(record: &LeaseRecord, duration: Duration) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration }
}

fn common_prefix(scopes: &[Scope]) -> String {
    let mut scopes = scopes.iter().map(Scope::as_str);
    let first = scopes.next().unwrap_or_default();
    let length = scopes.fold(first.len(), |length, other| {
        let same = first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        length.min(same)
    });
    first.get(..length).unwrap_or_default().to_owned()
}

impl Share {
    /// What is to be handed over, if it has been too much for a while. The next one follows without a pause.
    fn once_settled(
        &mut self,
        hand_over: Option<Scope>,
        leaving: bool,
        now: BootTime,
        settling: Duration,
    ) -> Option<Scope> {
        let surplus = hand_over.is_some() || (leaving && self.surplus_since.is_some());
        self.surplus_since = surplus.then(|| self.surplus_since.unwrap_or(now));
        self.plan_at = self.surplus_since.map(|since| since + settling).filter(|at| *at > now);
        hand_over.filter(|_| self.plan_at.is_none())
    }

    fn observe_members(&mut self, listed: &[LeaseRecord], own: Session) {
        let mut members = BTreeSet::from([own]);
        // `a` also lists the members of `a/b`.
        let of_component = |record: &&LeaseRecord| {
            record.scope.as_member().is_some_and(|(component, _)| component == self.campaign.component)
        };
        let listed: Vec<&LeaseRecord> = listed.iter().filter(of_component).collect();
        for record in listed.iter().filter(|record| record.is_held()) {
            let session = record.holder.session;
            // A seat that has moved since the crash was told belongs to somebody who lives.
            match self.crashed.get_mut(&session) {
                Some(version) if *version == u64::MAX => *version = record.resource_version,
                Some(version) if *version != record.resource_version => {
                    self.crashed.remove(&session);
                    members.insert(session);
                }
                Some(_) => {}
                None => {
                    members.insert(session);
                }
            }
        }
        let still_listed: BTreeSet<Session> = listed.iter().map(|record| record.holder.session).collect();
        self.crashed.retain(|session, _| still_listed.contains(session));
        self.dirty |= members != self.members;
        self.members = members;
    }
}

impl Seat {
    fn new(campaign: CampaignId, kind: Kind) -> Self {
        Self {
            campaign,
            kind,
            state: State::Following,
            seen: None,
            look: Look::default(),
            not_before: None,
            backoff: Duration::ZERO,
            ownerless_since: None,
            problem: None,
        }
    }

    fn standing(&self, now: BootTime, rules: &Rules) -> Standing {
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
                Some(Seen { free: Some((_, since)), .. }) => {
                    Standing::Free { overdue: now.saturating_since(*since) >= rules.overdue() }
                }
                Some(Seen { record: Some(record), .. }) => Standing::Other(record.holder.session),
                Some(Seen { record: None, .. }) => Standing::Unknown,
            },
        }
    }

    /// Now, or as soon as the look in flight is back.
    fn look_now(&mut self, now: BootTime) {
        self.look.at = Some(now);
    }

    /// At this moment, unless one is due before.
    fn look_by(&mut self, at: BootTime) {
        self.look.at = Some(self.look.at.map_or(at, |due| due.min(at)));
    }

    fn drain(&mut self, scope: &Scope, until: BootTime, effects: &mut Vec<Effect>) {
        if let State::Leading(held) = std::mem::replace(&mut self.state, State::Following) {
            self.state = State::Draining { held, until, resigned: false };
            effects.push(Effect::AskBack(scope.clone()));
        }
    }

    fn give_back(&mut self, record: LeaseRecord, duration: Duration, effects: &mut Vec<Effect>) {
        effects.push(Effect::Release(claim(&record, duration)));
        self.state = State::Releasing { term: record.term };
    }

    fn succeeded(&mut self) {
        self.backoff = Duration::ZERO;
        self.problem = None;
    }
}

impl State {
    fn term(&self) -> Option<Term> {
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

    fn held(&self) -> Option<&Held> {
        match self {
            Self::Installing { held, .. }
            | Self::Confirming(held)
            | Self::Leading(held)
            | Self::Draining { held, .. } => Some(held),
            Self::Following | Self::Acquiring { .. } | Self::Releasing { .. } => None,
        }
    }

    /// What the next renewal covers.
    fn renewable(&self) -> Option<&Held> {
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
    fn is_settled(&self) -> bool {
        matches!(self, Self::Following | Self::Leading(_) | Self::Draining { resigned: false, .. })
    }

    /// Somebody has been told that it leads, and not yet that it no longer does.
    fn is_elected(&self) -> bool {
        matches!(self, Self::Leading(_) | Self::Draining { resigned: false, .. })
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
