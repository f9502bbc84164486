//! Goal: members that decide for themselves, from what each has seen, end in an even split and then leave it alone.
//! Method: a table of who holds what; members act in a random order, each on the table as it is or as it was one
//! step ago (of its own scopes a member always knows the truth).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tenure_clock::BootTime;
use uuid::Uuid;

use super::{Plan, Standing, Tally, preference};
use crate::{Scope, Session};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Held(Session),
    /// Asked back, still with its holder.
    Leaving(Session),
}

#[derive(Clone, Debug)]
struct Table {
    members: BTreeSet<Session>,
    places: BTreeMap<Scope, Place>,
}

fn session(number: usize) -> Session {
    Session(Uuid::from_u128(number as u128 + 1))
}

fn scope(number: usize) -> Scope {
    Scope::new(format!("shards/{number:02}"))
}

fn just_now() -> BootTime {
    BootTime::since_boot(Duration::from_secs(60))
}

/// What has been free since then is overdue.
fn long_ago() -> BootTime {
    BootTime::since_boot(Duration::ZERO)
}

/// Counts by a walk over all scopes, in this order, and plans.
fn plan(
    own: Session,
    members: &BTreeSet<Session>,
    preferred: &[Scope],
    standing: impl Fn(&Scope) -> Standing,
) -> Plan {
    let mut tally = Tally { scopes: preferred.len(), ..Tally::default() };
    for scope in preferred {
        match standing(scope) {
            Standing::Mine => {
                tally.mine += 1;
                tally.least_preferred = Some(scope);
            }
            Standing::Leaving => tally.leaving += 1,
            Standing::GivenBack => tally.given_back += 1,
            Standing::Other(session) => *tally.held.to_mut().entry(session).or_default() += 1,
            Standing::Free { since } if since == long_ago() => tally.overdue.push(scope),
            Standing::Free { .. } => tally.free.push(scope),
            Standing::Unknown => {}
        }
    }
    super::plan(own, members, &tally)
}

impl Table {
    /// `holders[i]` holds scope i; a number beyond the members means nobody.
    fn new(members: usize, holders: &[usize]) -> Self {
        let place = |holder: usize| if holder < members { Place::Held(session(holder)) } else { Place::Free };
        let places = holders.iter().enumerate().map(|(number, holder)| (scope(number), place(*holder)));
        Self { members: (0..members).map(session).collect(), places: places.collect() }
    }

    /// What a member plans when it sees the others' scopes as they were in `seen`.
    fn plan(&self, own: Session, seen: &Table) -> Plan {
        let scopes: Vec<Scope> = self.places.keys().cloned().collect();
        let preferred = preference(&own.to_string(), &scopes);
        plan(own, &self.members, &preferred, |scope| match (self.places[scope], seen.places[scope]) {
            (Place::Held(holder), _) if holder == own => Standing::Mine,
            (Place::Leaving(holder), _) if holder == own => Standing::Leaving,
            // It was this member's own a step ago; who has it now is not known yet.
            (_, Place::Held(holder) | Place::Leaving(holder)) if holder == own => Standing::Unknown,
            (_, Place::Free) => Standing::Free { since: just_now() },
            (_, Place::Held(holder) | Place::Leaving(holder)) => Standing::Other(holder),
        })
    }

    /// A member finishes the hand-over it has begun, or plans and does what it has planned. True if anything moved.
    fn act(&mut self, own: Session, seen: &Table) -> bool {
        if let Some(place) = self.places.values_mut().find(|place| **place == Place::Leaving(own)) {
            *place = Place::Free;
            return true;
        }
        let plan = self.plan(own, seen);
        let mut moved = false;
        for scope in plan.take {
            let place = self.places.get_mut(&scope).expect("a scope of this table");
            // The store lets one in: whoever comes late stays out.
            if *place == Place::Free {
                (*place, moved) = (Place::Held(own), true);
            }
        }
        if let Some(scope) = plan.hand_over {
            assert_eq!(self.places[&scope], Place::Held(own), "only what one has can be handed over");
            self.places.insert(scope, Place::Leaving(own));
            moved = true;
        }
        let leaving = self.places.values().filter(|place| **place == Place::Leaving(own)).count();
        assert!(leaving <= 1, "one hand-over at a time");
        moved
    }

    fn counts(&self) -> Vec<usize> {
        let held = |member| self.places.values().filter(|place| **place == Place::Held(member)).count();
        self.members.iter().map(|member| held(*member)).collect()
    }

    fn is_balanced(&self) -> bool {
        let (n, m) = (self.places.len(), self.members.len());
        let even = self.counts().iter().all(|count| (n / m..=n.div_ceil(m)).contains(count));
        even && self.counts().iter().sum::<usize>() == n
    }

    /// Whoever is gone holds nothing: its leases have run out.
    fn drop_the_dead(&mut self) {
        let members = &self.members;
        for place in self.places.values_mut() {
            if matches!(place, Place::Held(who) | Place::Leaving(who) if !members.contains(who)) {
                *place = Place::Free;
            }
        }
    }

    /// Members act in the order of `draws` until nothing has moved for a while. Panics if that never comes.
    fn settle(&mut self, mut draws: impl Iterator<Item = u32>) {
        let members: Vec<Session> = self.members.iter().copied().collect();
        let mut before = self.clone();
        let mut idle: BTreeSet<Session> = BTreeSet::new();
        // Every scope may move twice, each move takes three acts, and an act falls on each member in turn.
        let enough = 40 * (self.places.len() + 1) * members.len();
        for _ in 0..enough {
            let draw = draws.next().expect("an endless supply") as usize;
            let own = members[draw % members.len()];
            let fresh = idle.contains(&own) || (draw / members.len()).is_multiple_of(2);
            let seen = if fresh { self.clone() } else { before.clone() };
            let now = self.clone();
            match self.act(own, &seen) {
                true => {
                    idle.clear();
                    before = now;
                }
                false if fresh => {
                    idle.insert(own);
                    if idle.len() == members.len() {
                        return;
                    }
                }
                false => {}
            }
        }
        panic!("still moving after {enough} acts: {:?} of {}", self.counts(), self.places.len());
    }
}

/// A small generator that goes on for ever from a seed (xorshift), so that shrinking has one number to shrink.
fn draws(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed.max(1)), |x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 17);
        Some(x ^ (x << 5))
    })
    .map(|x| x.wrapping_mul(0x9e37_79b9) >> 8)
}

prop_compose! {
    fn tables()(members in 1usize..8)(
        members in Just(members),
        // One number more than there are members: nobody.
        holders in prop::collection::vec(0..=members, 1..60),
    ) -> Table {
        Table::new(members, &holders)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_distribution_becomes_even_and_stays_as_it_is(mut table in tables(), seed: u32) {
        table.settle(draws(seed));
        prop_assert!(table.is_balanced(), "{:?} of {}", table.counts(), table.places.len());
        for member in table.members.clone() {
            prop_assert_eq!(table.plan(member, &table), Plan::default());
        }
    }

    #[test]
    fn everything_with_one_member_is_shared_when_others_come(
        scopes in 1usize..60, members in 2usize..8, seed: u32,
    ) {
        let mut table = Table::new(members, &vec![0; scopes]);
        table.settle(draws(seed));
        prop_assert!(table.is_balanced(), "{:?}", table.counts());
    }

    #[test]
    fn members_that_die_and_come_are_absorbed(
        mut table in tables(), seed: u32, dead in prop::collection::vec(0usize..8, 0..7), born in 0usize..4,
    ) {
        table.settle(draws(seed));
        for number in dead {
            if table.members.len() > 1 {
                table.members.remove(&session(number));
            }
        }
        table.members.extend((0..born).map(|number| session(100 + number)));
        table.drop_the_dead();
        table.settle(draws(seed.rotate_left(7)));
        prop_assert!(table.is_balanced(), "{:?} of {}", table.counts(), table.places.len());
    }

    #[test]
    fn a_balanced_state_is_left_alone_whoever_holds_what(members in 1usize..8, scopes in 1usize..60, seed: u32) {
        let mut holders: Vec<usize> = (0..scopes).map(|number| number % members).collect();
        for (at, draw) in (1..scopes).zip(draws(seed)) {
            holders.swap(at, draw as usize % (at + 1));
        }
        let table = Table::new(members, &holders);
        for member in table.members.clone() {
            prop_assert_eq!(table.plan(member, &table), Plan::default());
        }
    }

    #[test]
    fn what_nobody_takes_in_time_is_taken_by_anybody(members in 1usize..8, scopes in 1usize..60) {
        let own = session(0);
        let all: BTreeSet<Session> = (0..members).map(session).collect();
        let scopes: Vec<Scope> = (0..scopes).map(scope).collect();
        let plan = plan(own, &all, &scopes, |_| Standing::Free { since: long_ago() });
        prop_assert_eq!(plan.take, scopes);
    }

    #[test]
    fn what_is_not_known_is_neither_taken_nor_given(members in 1usize..8, scopes in 1usize..60) {
        let all: BTreeSet<Session> = (0..members).map(session).collect();
        let scopes: Vec<Scope> = (0..scopes).map(scope).collect();
        prop_assert_eq!(plan(session(0), &all, &scopes, |_| Standing::Unknown), Plan::default());
    }
}

#[test]
fn a_member_that_is_not_listed_yet_counts_itself() {
    let scopes: Vec<Scope> = (0..4).map(scope).collect();
    let others = BTreeSet::from([session(1)]);
    let plan = plan(session(0), &others, &scopes, |_| Standing::Free { since: just_now() });
    assert_eq!(plan.take.len(), 2, "the other one gets its half");
}

#[test]
fn what_was_just_given_back_is_not_given_back_twice() {
    let scopes: Vec<Scope> = (0..5).map(scope).collect();
    let all = BTreeSet::from([session(0), session(1)]);
    let with_mine = |mine: usize| {
        let kept = scopes[..mine].to_vec();
        let standing =
            |scope: &Scope| if kept.contains(scope) { Standing::Mine } else { Standing::GivenBack };
        plan(session(0), &all, &scopes, standing)
    };
    // The other one, who has none, needs two; one of them is on its way, then both.
    assert!(with_mine(4).hand_over.is_some());
    assert_eq!(with_mine(3), Plan::default());
}

#[test]
fn preferences_differ_between_members_and_last() {
    let scopes: Vec<Scope> = (0..30).map(scope).collect();
    assert_eq!(preference("a", &scopes), preference("a", &scopes));
    assert_ne!(preference("a", &scopes), preference("b", &scopes));
    // A scope more or less leaves the order of the others as it was.
    let fewer = preference("a", &scopes[1..]);
    let kept: Vec<Scope> = preference("a", &scopes).into_iter().filter(|s| *s != scopes[0]).collect();
    assert_eq!(fewer, kept);
    // The same on every machine and in every release.
    let first: Vec<String> = preference("a", &scopes).iter().take(3).map(ToString::to_string).collect();
    assert_eq!(first, ["shards/04", "shards/03", "shards/13"]);
}
