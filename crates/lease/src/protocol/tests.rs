//! Goal: the small print of the protocol, one fact per test. Method: events by hand, effects as they come. What many
//! events in many orders do is the business of `tests/simulation.rs`.

use jiff::Timestamp;

use super::*;
use crate::store::{AcquireOutcome, AcquireRequest, Hint, LossReason, RenewOutcome, Takeover};
use crate::{Epoch, Holder, LeaseRecord, Succession};
use uuid::Uuid;

const DURATION: Duration = Duration::from_secs(15);
const CAMPAIGN: CampaignId = CampaignId(0);

/// One protocol, and the time.
struct Desk {
    protocol: Protocol,
    elapsed: Duration,
}

fn holder(name: &str, session: u128) -> Holder {
    Holder {
        name: name.into(),
        instance: name.into(),
        session: Session(Uuid::from_u128(session)),
        address: None,
    }
}

fn rules() -> Rules {
    let margin = DURATION / 10;
    let (holder, drain_for) = (holder("a", 1), DURATION);
    Rules { holder, duration: DURATION, margin, drain_for, crash_hints: true, clock_may_step: true }
}

fn scope() -> Scope {
    Scope::new("controller/leader")
}

fn record(holder: Holder, term: Term, epoch: u64, resource_version: u64) -> LeaseRecord {
    LeaseRecord {
        scope: scope(),
        holder,
        term,
        epoch: Epoch(epoch),
        duration: DURATION,
        acquired_at: Timestamp::UNIX_EPOCH,
        renewed_at: Timestamp::UNIX_EPOCH,
        released: false,
        remaining: DURATION,
        resource_version,
        transitions: 0,
        succession: Succession::First,
        note: String::new(),
    }
}

/// Somebody else's.
fn theirs(resource_version: u64) -> LeaseRecord {
    record(holder("b", 2), Term(Uuid::from_u128(20)), 7, resource_version)
}

impl Desk {
    fn new() -> Self {
        let now = Now { boot: BootTime::since_boot(Duration::ZERO), wall: Timestamp::UNIX_EPOCH };
        Self { protocol: Protocol::new(rules(), Entropy::seeded(1), now), elapsed: Duration::ZERO }
    }

    fn boot(&self) -> BootTime {
        BootTime::since_boot(self.elapsed)
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let now = Now { boot: self.boot(), wall: Timestamp::UNIX_EPOCH + self.elapsed };
        self.protocol.step(now, event)
    }

    fn after(&mut self, time: Duration, event: Event) -> Vec<Effect> {
        self.elapsed += time;
        self.step(event)
    }

    fn listed(&mut self, record: Option<LeaseRecord>) -> Vec<Effect> {
        let listing = Listing { members: vec![], leases: Some(record.into_iter().collect()) };
        self.step(Event::Listed { campaign: CAMPAIGN, outcome: Ok(listing) })
    }

    fn looked(&mut self, record: Option<LeaseRecord>) -> Vec<Effect> {
        self.step(Event::Looked { scope: scope(), outcome: Ok(record) })
    }

    fn stand(&mut self) -> Vec<Effect> {
        let (component, scopes, note) = ("controller".into(), vec![scope()], String::new());
        self.step(Event::Stand(CAMPAIGN, Campaign { component, scopes, note, sole_instance: false }))
    }

    /// Stands, sees that the scope is free, and asks for it.
    fn acquiring(&mut self) -> AcquireRequest {
        self.stand();
        requested(&self.listed(None)).expect("what is free is taken")
    }

    fn granted(&mut self, request: &AcquireRequest) -> Vec<Effect> {
        let record = record(request.holder.clone(), request.term, 1, 1);
        let (sent, outcome) = (self.boot(), Ok(AcquireOutcome::Granted(record)));
        self.step(Event::Acquired { scope: scope(), term: request.term, sent, outcome })
    }

    fn leading(&mut self) -> Term {
        let request = self.acquiring();
        let effects = self.granted(&request);
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Elect { .. })), "{effects:?}");
        request.term
    }

    /// Lets time pass until the renewal goes out.
    fn renewing(&mut self) {
        let effects = self.after(DURATION / 3, Event::Tick);
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Renew(_))), "{effects:?}");
    }
}

/// The request for the contested scope among the effects.
fn requested(effects: &[Effect]) -> Option<AcquireRequest> {
    effects.iter().find_map(|effect| match effect {
        Effect::Acquire(request) if request.scope == scope() => Some(request.clone()),
        _ => None,
    })
}

fn looks(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Look(scope()))
}

fn trips(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Trip { .. }))
}

#[test]
fn a_crash_hint_is_forgotten_when_the_record_moves() {
    let mut desk = Desk::new();
    desk.stand();
    desk.listed(Some(theirs(1)));
    let dead = Event::Hint(Hint::Crashed(theirs(1).holder.session));
    let taken = requested(&desk.step(dead)).expect("the dead are succeeded at once");
    assert_eq!(taken.takeover, Takeover::OfDead(theirs(1).term));
    // Somebody else was faster in the same term: it lives, and has renewed.
    let outcome = Ok(AcquireOutcome::Held(theirs(2)));
    let sent = desk.boot();
    let effects = desk.step(Event::Acquired { scope: scope(), term: taken.term, sent, outcome });
    assert_eq!(requested(&effects), None);
}

#[test]
fn a_crash_hint_holds_while_the_record_does_not_move() {
    let mut desk = Desk::new();
    desk.stand();
    desk.listed(Some(theirs(1)));
    let taken = requested(&desk.step(Event::Hint(Hint::Crashed(theirs(1).holder.session)))).unwrap();
    let (sent, outcome) = (desk.boot(), Err(Failure::Unavailable("away".into())));
    desk.step(Event::Acquired { scope: scope(), term: taken.term, sent, outcome });
    desk.listed(Some(theirs(1)));
    let again = requested(&desk.after(Duration::from_secs(1), Event::Tick)).expect("still dead");
    assert_eq!(again.takeover, taken.takeover);
    assert_ne!(again.term, taken.term, "a new campaign is a new term");
}

#[test]
fn without_crash_hints_in_the_rules_a_hint_makes_nobody_dead() {
    let mut desk = Desk::new();
    desk.protocol.rules.crash_hints = false;
    desk.stand();
    desk.listed(Some(theirs(1)));
    assert_eq!(requested(&desk.step(Event::Hint(Hint::Crashed(theirs(1).holder.session)))), None);
}

#[test]
fn an_ambiguous_acquire_is_repeated_under_the_same_term() {
    let mut desk = Desk::new();
    let first = desk.acquiring();
    let (sent, outcome) = (desk.boot(), Err(Failure::Ambiguous("lost".into())));
    let effects = desk.step(Event::Acquired { scope: scope(), term: first.term, sent, outcome });
    assert_eq!(requested(&effects), None, "not at once");
    assert_eq!(requested(&desk.after(Duration::from_secs(1), Event::Tick)), Some(first));
}

#[test]
fn a_repeated_acquire_is_trusted_for_what_is_left_and_not_for_a_duration() {
    let mut desk = Desk::new();
    let request = desk.acquiring();
    let left = Duration::from_secs(4);
    let record = LeaseRecord { remaining: left, ..record(request.holder.clone(), request.term, 1, 1) };
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Granted(record)));
    let effects = desk.step(Event::Acquired { scope: scope(), term: request.term, sent, outcome });
    let valid = effects.iter().find_map(|effect| match effect {
        Effect::Elect { valid_until, .. } => Some(*valid_until),
        _ => None,
    });
    assert_eq!(valid, Some(sent + (left - DURATION / 10)));
}

#[test]
fn a_hint_during_a_look_is_looked_after() {
    let mut desk = Desk::new();
    desk.stand();
    desk.listed(Some(theirs(1)));
    let changed = || Event::Hint(Hint::Changed(scope()));
    assert!(looks(&desk.step(changed())));
    let meanwhile = desk.after(Duration::from_millis(1), changed());
    assert!(!looks(&meanwhile), "one look at a time");
    desk.elapsed += Duration::from_millis(1);
    assert!(looks(&desk.looked(Some(theirs(1)))), "the answer may be older than the hint");
}

#[test]
fn a_hint_about_members_during_a_listing_is_listed_after() {
    let mut desk = Desk::new();
    let lists = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::List { .. }));
    assert!(lists(&desk.stand()));
    let changed = Event::Hint(Hint::Changed(Scope::member("controller", "b")));
    assert!(!lists(&desk.after(Duration::from_millis(1), changed)), "one listing at a time");
    desk.elapsed += Duration::from_millis(1);
    assert!(lists(&desk.listed(Some(theirs(1)))), "the answer may be older than the hint");
}

#[test]
fn a_failed_listing_is_repeated_with_all_that_it_was_to_answer() {
    let mut desk = Desk::new();
    desk.stand();
    let outcome = Err(Failure::Unavailable("away".into()));
    desk.step(Event::Listed { campaign: CAMPAIGN, outcome });
    let effects = desk.after(DURATION / 4, Event::Tick);
    let all = |effect: &Effect| matches!(effect, Effect::List { leases_under: Some(_), .. });
    assert!(effects.iter().any(all), "{effects:?}");
}

#[test]
fn what_is_lost_after_it_was_resigned_is_no_loss() {
    let mut desk = Desk::new();
    let term = desk.leading();
    desk.renewing();
    let effects = desk.step(Event::Resign { scope: scope(), term });
    assert_eq!(effects, [Effect::End(scope())], "the authority ends; the release waits for the renewal");
    let lost = || RenewOutcome::Lost(LossReason::Expired);
    let sent = desk.boot();
    let effects = desk.step(Event::Renewed { sent, outcome: Ok(vec![lost(), lost()]) });
    assert!(!trips(&effects), "{effects:?}");
    assert!(effects.contains(&Effect::Settle { scope: scope(), term }), "{effects:?}");
}

#[test]
fn a_release_waits_for_the_renewal_in_flight() {
    let mut desk = Desk::new();
    let term = desk.leading();
    desk.renewing();
    let releases = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Release(_)));
    assert!(!releases(&desk.step(Event::Resign { scope: scope(), term })));
    let (sent, outcome) = (desk.boot(), Err(Failure::Ambiguous("lost".into())));
    assert!(releases(&desk.step(Event::Renewed { sent, outcome })));
}

#[test]
fn a_successor_that_has_not_installed_its_fence_yet_is_a_successor() {
    let mut desk = Desk::new();
    desk.leading();
    desk.step(Event::Hint(Hint::Changed(scope())));
    // Won from a store that leaves fences to the winner: the record still has our epoch.
    let effects = desk.looked(Some(LeaseRecord { epoch: Epoch(1), ..theirs(2) }));
    assert!(trips(&effects), "{effects:?}");
}

#[test]
fn a_record_from_before_the_term_trips_nobody() {
    let mut desk = Desk::new();
    desk.leading();
    desk.step(Event::Hint(Hint::Changed(scope())));
    let effects = desk.looked(Some(LeaseRecord { epoch: Epoch(0), ..theirs(1) }));
    assert!(!trips(&effects), "{effects:?}");
}

#[test]
fn a_lease_that_nobody_renews_is_taken_although_the_stores_clock_stands_still() {
    let mut desk = Desk::new();
    desk.stand();
    desk.listed(Some(theirs(1)));
    desk.after(DURATION, Event::Tick);
    assert_eq!(requested(&desk.looked(Some(theirs(1)))), None, "it may be late");
    desk.after(DURATION / 2 + Duration::from_secs(1), Event::Tick);
    let taken = requested(&desk.looked(Some(theirs(1)))).expect("nobody who is alive waits that long");
    assert_eq!(taken.takeover, Takeover::OfStalled { term: theirs(1).term, resource_version: 1 });
}

#[test]
fn members_of_a_component_inside_another_ones_name_are_not_its_members() {
    let mut desk = Desk::new();
    desk.stand();
    let seat = LeaseRecord { scope: Scope::member("controller/inner", "b"), ..theirs(1) };
    let listing = Listing { members: vec![seat], leases: Some(vec![]) };
    desk.step(Event::Listed { campaign: CAMPAIGN, outcome: Ok(listing) });
    assert_eq!(desk.protocol.shares[&CAMPAIGN].members.len(), 1);
}

#[test]
fn a_scope_that_is_named_twice_is_stood_for_once() {
    let mut desk = Desk::new();
    let scopes = vec![scope(), scope()];
    let campaign =
        Campaign { component: "controller".into(), scopes, note: String::new(), sole_instance: false };
    desk.step(Event::Stand(CAMPAIGN, campaign));
    assert_eq!(desk.protocol.shares[&CAMPAIGN].preferred[..], [scope()]);
}

#[test]
fn a_leaving_member_gives_its_seat_back_before_its_work_has_stopped() {
    let mut desk = Desk::new();
    let seat = desk.stand().into_iter().find_map(|effect| match effect {
        Effect::Acquire(request) => Some(request),
        _ => None,
    });
    let seat = seat.expect("whoever stands sits");
    let granted = LeaseRecord { scope: seat.scope.clone(), ..record(seat.holder.clone(), seat.term, 1, 1) };
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Granted(granted)));
    desk.step(Event::Acquired { scope: seat.scope.clone(), term: seat.term, sent, outcome });
    let request = requested(&desk.listed(None)).unwrap();
    desk.granted(&request);
    let effects = desk.step(Event::Withdraw(CAMPAIGN));
    assert!(effects.contains(&Effect::AskBack(scope())), "{effects:?}");
    let given_back = |effect: &Effect| matches!(effect, Effect::Release(claim) if claim.scope == seat.scope);
    assert!(effects.iter().any(given_back), "{effects:?}");
}

#[test]
fn what_the_store_could_not_say_extends_nothing_and_is_asked_again_soon() {
    let mut desk = Desk::new();
    desk.leading();
    let renewing = desk.after(DURATION / 3, Event::Tick);
    let Some(Effect::Renew(claims)) = renewing.iter().find(|effect| matches!(effect, Effect::Renew(_)))
    else {
        panic!("no renewal in {renewing:?}");
    };
    let outcome = Ok(vec![RenewOutcome::Unanswered; claims.len()]);
    let effects = desk.step(Event::Renewed { sent: desk.boot(), outcome });
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Extend { .. } | Effect::Trip { .. })));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::RenewalFailed { .. })), "{effects:?}");
    let again = desk.after(DURATION / 8, Event::Tick);
    assert!(again.iter().any(|effect| matches!(effect, Effect::Renew(_))), "{again:?}");
}

#[test]
fn hundreds_of_free_scopes_are_asked_for_a_few_at_a_time() {
    let mut desk = Desk::new();
    let scopes: Vec<Scope> = (0..300).map(|number| Scope::new(format!("many/{number:03}"))).collect();
    let (component, note) = ("many".into(), String::new());
    let mut in_flight = vec![];
    let collect = |effects: Vec<Effect>, in_flight: &mut Vec<AcquireRequest>| {
        let contested = effects.into_iter().filter_map(|effect| match effect {
            Effect::Acquire(request) if request.scope.as_member().is_none() => Some(request),
            _ => None,
        });
        in_flight.extend(contested);
    };
    collect(
        desk.step(Event::Stand(CAMPAIGN, Campaign { component, scopes, note, sole_instance: false })),
        &mut in_flight,
    );
    collect(desk.listed(None), &mut in_flight);
    let mut won = 0;
    while let Some(request) = in_flight.pop() {
        assert!(in_flight.len() < CALLS_AT_ONCE, "{} at once", in_flight.len() + 1);
        let record = LeaseRecord {
            scope: request.scope.clone(),
            ..record(request.holder.clone(), request.term, 1, 1)
        };
        let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Granted(record)));
        // A round trip: longer than the rest between two plans for so many.
        let answered = Event::Acquired { scope: request.scope, term: request.term, sent, outcome };
        collect(desk.after(Duration::from_millis(1), answered), &mut in_flight);
        won += 1;
    }
    assert_eq!(won, 300);
}

#[test]
fn a_crash_that_was_told_before_its_scope_was_seen_is_not_forgotten() {
    let mut desk = Desk::new();
    desk.stand();
    let member = LeaseRecord { scope: Scope::member("controller", "b"), ..theirs(1) };
    let listing = Listing { members: vec![member], leases: Some(vec![]) };
    // The scope is free, and while it is asked for, its new holder takes it and dies.
    let effects = desk.step(Event::Listed { campaign: CAMPAIGN, outcome: Ok(listing) });
    let request = requested(&effects).expect("what is free is taken");
    desk.step(Event::Hint(Hint::Crashed(theirs(1).holder.session)));
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Held(theirs(1))));
    let effects = desk.step(Event::Acquired { scope: scope(), term: request.term, sent, outcome });
    let again = requested(&effects).expect("nobody waits for the dead");
    assert_eq!(again.takeover, Takeover::OfDead(theirs(1).term));
}

#[test]
fn processes_of_one_name_sit_side_by_side_on_numbered_seats() {
    let mut desk = Desk::new();
    let seat_of = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Acquire(request) if request.scope.as_member().is_some() => Some(request.clone()),
            _ => None,
        })
    };
    let first = seat_of(&desk.stand()).expect("a seat is asked for");
    assert_eq!(first.scope.as_str(), "members/controller/a");
    let twin =
        LeaseRecord { scope: first.scope.clone(), ..record(holder("a", 9), Term(Uuid::from_u128(90)), 1, 1) };
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Held(twin)));
    let effects = desk.step(Event::Acquired { scope: first.scope, term: first.term, sent, outcome });
    assert_eq!(seat_of(&effects).expect("another seat").scope.as_str(), "members/controller/a.2");
}

#[test]
fn a_crash_hint_outlives_the_look_that_shows_a_renewal_from_before_it() {
    let mut desk = Desk::new();
    desk.stand();
    desk.listed(Some(theirs(1)));
    let taken = requested(&desk.step(Event::Hint(Hint::Crashed(theirs(1).holder.session)))).unwrap();
    let (sent, outcome) = (desk.boot(), Err(Failure::Unavailable("busy".into())));
    desk.step(Event::Acquired { scope: scope(), term: taken.term, sent, outcome });
    // It had renewed once more before it died, which nobody had looked at.
    desk.listed(Some(theirs(2)));
    let again = requested(&desk.after(Duration::from_secs(1), Event::Tick)).expect("still dead");
    assert_eq!(again.takeover, taken.takeover);
    let (sent, outcome) = (desk.boot(), Err(Failure::Unavailable("busy".into())));
    desk.step(Event::Acquired { scope: scope(), term: again.term, sent, outcome });
    // And once more after that: it lives.
    desk.listed(Some(theirs(3)));
    assert_eq!(requested(&desk.after(Duration::from_secs(1), Event::Tick)), None);
}

#[test]
fn leases_that_are_renewed_at_moments_of_their_own_are_listed_together() {
    let scopes: Vec<Scope> =
        (0..60).map(|number| Scope::new(format!("scheduler/shard-{number:02}"))).collect();
    let mut desk = Desk::new();
    let campaign = Campaign {
        component: "scheduler".into(),
        scopes: scopes.clone(),
        note: String::new(),
        sole_instance: false,
    };
    desk.step(Event::Stand(CAMPAIGN, campaign));
    // All of them somebody else's, each with a little less left than the one before.
    let leases = |version: u64| {
        let lease = |(number, scope): (u32, &Scope)| LeaseRecord {
            scope: scope.clone(),
            remaining: DURATION - DURATION / 180 * number,
            ..theirs(version)
        };
        (0..).zip(&scopes).map(lease).collect::<Vec<_>>()
    };
    let (mut lists, mut looks) = (0, 0);
    let listing = Listing { members: vec![], leases: Some(leases(1)) };
    desk.step(Event::Listed { campaign: CAMPAIGN, outcome: Ok(listing) });
    for version in 2..200 {
        for effect in desk.after(DURATION / 60, Event::Tick) {
            match effect {
                Effect::List { leases_under, .. } => {
                    lists += usize::from(leases_under.is_some());
                    let listing = Listing { members: vec![], leases: leases_under.map(|_| leases(version)) };
                    desk.step(Event::Listed { campaign: CAMPAIGN, outcome: Ok(listing) });
                }
                Effect::Look(_) => looks += 1,
                _ => {}
            }
        }
    }
    assert_eq!(looks, 0, "beside {lists} listings");
    assert!((3..=20).contains(&lists), "three durations and a bit: {lists} listings");
}

#[test]
fn plans_for_thousands_of_scopes_are_made_with_a_rest_in_between_and_none_is_forgotten() {
    let mut desk = Desk::new();
    let scopes: Vec<Scope> = (0..2_000).map(|number| Scope::new(format!("many/{number:04}"))).collect();
    let (component, note) = ("many".into(), String::new());
    desk.step(Event::Stand(CAMPAIGN, Campaign { component, scopes, note, sole_instance: false }));
    let requests = |effects: &[Effect]| {
        let contested = |effect: &&Effect| matches!(effect, Effect::Acquire(request) if request.scope.as_member().is_none());
        effects.iter().filter(contested).count()
    };
    let effects = desk.listed(None);
    assert!(requests(&effects) > 0, "what is free is asked for at once");
    let Some(Effect::Acquire(request)) = effects
        .into_iter()
        .find(|effect| matches!(effect, Effect::Acquire(request) if request.scope.as_member().is_none()))
    else {
        panic!("just counted");
    };
    let lease =
        LeaseRecord { scope: request.scope.clone(), ..record(request.holder.clone(), request.term, 1, 1) };
    let (sent, outcome) = (desk.boot(), Ok(AcquireOutcome::Granted(lease)));
    let granted = Event::Acquired { scope: request.scope, term: request.term, sent, outcome };
    assert_eq!(requests(&desk.step(granted)), 0, "it has just planned");
    let wake = desk.protocol.wake_at(desk.boot()).expect("something is left to do");
    let rest = REST_PER_SCOPE * 2_000;
    assert!(wake.saturating_since(desk.boot()) <= rest, "it wakes by itself");
    let late = desk.boot() + rest * 2;
    assert_eq!(
        desk.protocol.wake_at(late),
        Some(wake),
        "also when it has rested before it could go to sleep"
    );
    assert_eq!(requests(&desk.after(rest, Event::Tick)), 1);
}
