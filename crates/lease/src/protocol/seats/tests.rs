//! Goal: no index is ever stale, and an event touches few seats however many there are. Method: a protocol whose calls are
//! answered at random, compared after every step with a walk over all seats (every step of a unit test compares the
//! indexes with indexes made anew; here are the answers that are made from them); and a count of touched seats.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use tenure_clock::{BootTime, Entropy};
use uuid::Uuid;

use crate::protocol::seat::{Kind, State};
use crate::protocol::{Campaign, CampaignId, Effect, Event, Failure, Listing, Now, Protocol, Rules};
use crate::share::Standing;
use crate::store::{AcquireOutcome, AcquireRequest, Hint, LossReason, RenewOutcome};
use crate::{Epoch, Holder, LeaseRecord, Scope, Session, Succession, Term};

const DURATION: Duration = Duration::from_secs(15);

fn holder(name: &str, session: u128) -> Holder {
    let session = Session(Uuid::from_u128(session));
    Holder { name: name.into(), instance: name.into(), session, address: None }
}

fn shard(number: usize) -> Scope {
    Scope::new(format!("scheduler/shard-{number:04}"))
}

fn record(scope: &Scope, holder: Holder, term: Term, version: u64) -> LeaseRecord {
    LeaseRecord {
        scope: scope.clone(),
        holder,
        term,
        epoch: Epoch(version),
        duration: DURATION,
        acquired_at: Timestamp::UNIX_EPOCH,
        renewed_at: Timestamp::UNIX_EPOCH,
        released: version.is_multiple_of(7),
        remaining: if version.is_multiple_of(5) { Duration::ZERO } else { DURATION },
        resource_version: version,
        transitions: 0,
        succession: Succession::First,
        note: String::new(),
    }
}

/// A protocol, the calls it has made, and what the store would say.
struct Desk {
    protocol: Protocol,
    elapsed: Duration,
    asked: Vec<Effect>,
    /// Members and holders: others than this process.
    others: u128,
    version: u64,
}

impl Desk {
    fn new() -> Self {
        let now = Now { boot: BootTime::since_boot(Duration::ZERO), wall: Timestamp::UNIX_EPOCH };
        let rules = Rules {
            holder: holder("a", 1),
            duration: DURATION,
            margin: DURATION / 10,
            drain_for: DURATION / 2,
            crash_hints: true,
            clock_may_step: true,
        };
        let protocol = Protocol::new(rules, Entropy::seeded(1), now);
        Self { protocol, elapsed: Duration::ZERO, asked: vec![], others: 3, version: 1 }
    }

    fn boot(&self) -> BootTime {
        BootTime::since_boot(self.elapsed)
    }

    fn step(&mut self, event: Event) {
        let now = Now { boot: self.boot(), wall: Timestamp::UNIX_EPOCH + self.elapsed };
        let effects = self.protocol.step(now, event);
        self.asked.extend(effects);
        assert_eq!(self.protocol.wake_at(self.boot()), walked_wake_at(&self.protocol, self.boot()));
        // A withdrawn one plans nothing, and others may have inherited from it.
        for (id, _) in self.protocol.shares.iter().filter(|(_, share)| !share.withdrawn) {
            assert_eq!(counted(&self.protocol, *id), walked(&self.protocol, *id));
        }
    }

    fn stand(&mut self, id: u64, scopes: usize) {
        let scopes = (0..scopes).map(shard).collect();
        let component = "scheduler".to_owned();
        let campaign = Campaign { component, scopes, note: String::new(), sole_instance: false };
        self.step(Event::Stand(CampaignId(id), campaign));
    }

    /// As somebody else's, or as nobody's.
    fn seen(&mut self, scope: &Scope, dice: u64) -> Option<LeaseRecord> {
        self.version += dice % 3;
        let other = 2 + u128::from(dice) % self.others;
        let term = Term(Uuid::from_u128(other + (u128::from(dice) % 2) * 100));
        (!dice.is_multiple_of(4)).then(|| record(scope, holder("b", other), term, self.version))
    }

    /// Answers one of the calls in flight, well or badly; or something else happens.
    fn live(&mut self, dice: u64) {
        self.elapsed += Duration::from_millis(dice / 7 % 3_000);
        let failure = || match dice % 3 {
            0 => Failure::Unavailable("away".into()),
            1 => Failure::Ambiguous("lost".into()),
            _ => Failure::Refused("no".into()),
        };
        let fails = dice.is_multiple_of(5);
        let sent = self.boot();
        if self.asked.is_empty() || dice.is_multiple_of(11) {
            let scope = shard(dice as usize / 11 % 20);
            let session = Session(Uuid::from_u128(2 + u128::from(dice) % self.others));
            return self.step(match dice / 11 % 9 {
                0 => Event::Hint(Hint::Resync),
                1 => Event::Hint(Hint::Crashed(session)),
                2 => Event::Hint(Hint::Changed(Scope::member("scheduler", "b"))),
                3 => Event::Withdraw(CampaignId(dice / 99 % 3)),
                4 => Event::Cut,
                _ => Event::Hint(Hint::Changed(scope)),
            });
        }
        let event = match self.asked.swap_remove(dice as usize % self.asked.len()) {
            Effect::Acquire(request) => self.answered(&request, fails.then(failure), dice),
            Effect::Install { scope, term, floor } => {
                let outcome = if fails { Err(failure()) } else { Ok(Epoch(floor.0 + 1)) };
                Event::Installed { scope, term, outcome }
            }
            Effect::Renew(claims) => {
                let answer = |number: usize| match (dice as usize + number) % 6 {
                    0 => RenewOutcome::Lost(LossReason::Gone),
                    1 => RenewOutcome::Unanswered,
                    _ => RenewOutcome::Renewed,
                };
                let outcomes = (0..claims.len()).map(answer).collect();
                Event::Renewed { sent, outcome: if fails { Err(failure()) } else { Ok(outcomes) } }
            }
            Effect::Release(claim) => Event::Released { scope: claim.scope, term: claim.term },
            Effect::Look(scope) => {
                let outcome = if fails { Err(failure()) } else { Ok(self.seen(&scope, dice / 5)) };
                Event::Looked { scope, outcome }
            }
            Effect::List { campaign, leases_under, .. } => {
                let members = (0..dice / 5 % 3).filter_map(|number| {
                    self.seen(&Scope::member("scheduler", &format!("m{number}")), dice / 13 + number)
                });
                let members = members.collect();
                let leases =
                    (0..20).filter_map(|number| self.seen(&shard(number), dice / 17 + number as u64));
                let leases = leases_under.is_some().then(|| leases.collect());
                let outcome = if fails { Err(failure()) } else { Ok(Listing { members, leases }) };
                Event::Listed { campaign, outcome }
            }
            Effect::Elect { record, .. } if dice.is_multiple_of(2) => {
                Event::Tripped { scope: record.scope, term: record.term }
            }
            Effect::Elect { record, .. } => Event::Resign { scope: record.scope, term: record.term },
            _ => Event::Tick,
        };
        self.step(event);
    }

    fn answered(&mut self, request: &AcquireRequest, failure: Option<Failure>, dice: u64) -> Event {
        let (scope, term, sent) = (request.scope.clone(), request.term, self.boot());
        let ours = LeaseRecord {
            remaining: DURATION,
            released: false,
            ..record(&scope, request.holder.clone(), term, self.version)
        };
        let outcome = match (failure, dice % 4) {
            (Some(failure), _) => Err(failure),
            (None, 0) => {
                Ok(self.seen(&scope, dice | 1).map_or(AcquireOutcome::Won(ours), AcquireOutcome::Held))
            }
            (None, 1) => Ok(AcquireOutcome::Won(ours)),
            (None, _) => Ok(AcquireOutcome::Granted(ours)),
        };
        Event::Acquired { scope, term, sent, outcome }
    }

    /// How many seats this event touches.
    fn touched(&mut self, event: Event) -> usize {
        let before = self.protocol.seats.touched.get();
        let now = Now { boot: self.boot(), wall: Timestamp::UNIX_EPOCH + self.elapsed };
        self.asked = self.protocol.step(now, event);
        self.protocol.wake_at(now.boot);
        self.protocol.tell_changes(|_, _| {});
        self.protocol.seats.touched.get() - before
    }
}

/// By a walk over all seats.
fn walked_wake_at(protocol: &Protocol, now: BootTime) -> Option<BootTime> {
    let seats = protocol.seats.by_scope.values().flat_map(|seat| {
        let by_state = match &seat.state {
            State::Following | State::Releasing { .. } | State::Installing { retry_at: None, .. } => None,
            State::Acquiring { retry_at, .. } => *retry_at,
            State::Installing { held, retry_at: Some(at) } => Some(held.valid_until.min(*at)),
            State::Confirming(held) | State::Leading(held) => Some(held.valid_until),
            State::Draining { held, until, resigned: false } => Some(held.valid_until.min(*until)),
            State::Draining { held, resigned: true, .. } => Some(held.valid_until),
        };
        let share = protocol.shares.get(&seat.campaign);
        let looks = seat.kind == Kind::Contested && !seat.look.in_flight;
        let looks = looks && share.is_some_and(|share| !share.withdrawn);
        let listing = share.is_some_and(|share| share.list_in_flight);
        [by_state, seat.look.at.filter(|at| looks && !(listing && *at <= now)), seat.not_before]
    });
    let lists = protocol.shares.values().filter(|share| !share.withdrawn && !share.list_in_flight);
    let plans = protocol.shares.values().flat_map(|share| {
        let may_plan = share.listed && !share.withdrawn && !protocol.stopping;
        [share.plan_at, share.rest_until.filter(|_| share.dirty && may_plan)]
    });
    let held = protocol.seats.by_scope.values().any(|seat| seat.state.renewable().is_some());
    let renewal = (protocol.renewal.is_none() && held).then_some(protocol.renew_at);
    seats.chain(lists.map(|share| share.list_at)).chain(plans).flatten().chain(renewal).min()
}

/// Mine, leaving, given back, by others, free, and the last of mine.
type Counts = (usize, usize, usize, BTreeMap<Session, usize>, Vec<Scope>, Option<Scope>);

fn counted(protocol: &Protocol, id: CampaignId) -> Counts {
    let tally = protocol.seats.index().tally(id, |_| false);
    let free = tally.free.into_iter().cloned().collect();
    let held = tally.held.into_owned();
    (tally.mine, tally.leaving, tally.given_back, held, free, tally.least_preferred.cloned())
}

fn walked(protocol: &Protocol, id: CampaignId) -> Counts {
    let mut counts = Counts::default();
    for scope in protocol.shares[&id].preferred.iter() {
        match protocol.seats.by_scope.get(scope).map(|seat| seat.standing()) {
            Some(Standing::Mine) => (counts.0, counts.5) = (counts.0 + 1, Some(scope.clone())),
            Some(Standing::Leaving) => counts.1 += 1,
            Some(Standing::GivenBack) => counts.2 += 1,
            Some(Standing::Other(session)) => *counts.3.entry(session).or_default() += 1,
            Some(Standing::Free { .. }) => counts.4.push(scope.clone()),
            Some(Standing::Unknown) | None => {}
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_indexes_say_is_what_a_walk_over_all_seats_finds(
        dice in prop::collection::vec(any::<u64>(), 300),
    ) {
        let mut desk = Desk::new();
        for (number, dice) in dice.into_iter().enumerate() {
            if number % 40 == 0 {
                // Campaigns for the same scopes: the later ones inherit what the earlier ones let go of.
                desk.stand(number as u64 / 40, 20);
            }
            desk.live(dice);
        }
        desk.step(Event::Stop);
    }
}

#[test]
fn an_event_touches_few_of_thousands_of_seats() {
    const SCOPES: usize = 4_096;
    let mut desk = Desk::new();
    desk.stand(0, SCOPES);
    // Everything is somebody else's.
    let term = Term(Uuid::from_u128(20));
    let lease = |scope: Scope| record(&scope, holder("b", 2), term, 1);
    let members = vec![lease(Scope::member("scheduler", "b"))];
    let leases = Some((0..SCOPES).map(|number| lease(shard(number))).collect());
    let listed = Event::Listed { campaign: CampaignId(0), outcome: Ok(Listing { members, leases }) };
    assert!(desk.touched(listed) >= SCOPES, "a listing is about them all");

    desk.elapsed += Duration::from_millis(500);
    let few = 8;
    assert!(desk.touched(Event::Tick) <= few);
    assert!(desk.touched(Event::Hint(Hint::Changed(shard(7)))) <= few);
    assert_eq!(desk.asked, [Effect::Look(shard(7))]);
    let released = LeaseRecord { released: true, remaining: Duration::ZERO, ..lease(shard(7)) };
    assert!(desk.touched(Event::Looked { scope: shard(7), outcome: Ok(Some(released)) }) <= few);
    let [Effect::Acquire(request)] = &desk.asked[..] else { panic!("not asked for: {:?}", desk.asked) };
    let request = request.clone();
    let ours = record(&shard(7), request.holder, request.term, 2);
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Granted(ours)));
    let acquired = Event::Acquired { scope: shard(7), term: request.term, sent, outcome };
    assert!(desk.touched(acquired) <= few);
    assert!(matches!(desk.asked[..], [Effect::Elect { .. }]), "{:?}", desk.asked);
    assert!(desk.touched(Event::Resign { scope: shard(7), term: request.term }) <= few);
    assert!(matches!(desk.asked[..], [Effect::End(_), Effect::Release(_)]), "{:?}", desk.asked);
}
