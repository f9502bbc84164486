//! Goal: at most one holder per epoch, and no way back for a term that was lost.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Entropy;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, LeaseRecord, LossReason, ReleaseOutcome, RenewOutcome,
    Scope, Takeover, Term,
};
use tenure_store::SharedStore;

use crate::Fresh;
use crate::harness::{holder, now, term};

const LONG: Duration = Duration::from_secs(600);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(150);

struct Office {
    store: SharedStore,
    entropy: Entropy,
    scope: Scope,
    _fresh: Fresh,
}

impl Office {
    fn of(fresh: Fresh) -> Self {
        let store = Arc::clone(&fresh.store);
        Self { store, entropy: Entropy::from_os(), scope: Scope::new("tests/one"), _fresh: fresh }
    }

    fn request(&self, name: &str, duration: Duration) -> AcquireRequest {
        AcquireRequest {
            scope: self.scope.clone(),
            holder: holder(name),
            term: term(&self.entropy),
            duration,
            takeover: Takeover::IfFree,
            note: "a note".into(),
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> AcquireOutcome {
        self.store.acquire(request).await.expect("answered")
    }

    async fn granted(&self, request: &AcquireRequest) -> LeaseRecord {
        match self.acquire(request).await {
            AcquireOutcome::Granted(record) => record,
            AcquireOutcome::Held(record) => panic!("held by {record:?}"),
        }
    }

    async fn held(&self, request: &AcquireRequest) -> LeaseRecord {
        match self.acquire(request).await {
            AcquireOutcome::Held(record) => record,
            AcquireOutcome::Granted(record) => panic!("granted: {record:?}"),
        }
    }

    async fn renew(&self, record: &LeaseRecord) -> RenewOutcome {
        self.store.renew(&[claim(record)]).await.expect("answered").remove(0)
    }

    async fn release(&self, record: &LeaseRecord) -> ReleaseOutcome {
        self.store.release(&claim(record)).await.expect("answered")
    }

    async fn shown(&self) -> LeaseRecord {
        self.store
            .list_leases()
            .await
            .expect("listed")
            .into_iter()
            .find(|record| record.scope == self.scope)
            .expect("a row")
    }
}

fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

async fn expire() {
    tokio::time::sleep(SHORT + Duration::from_millis(100)).await;
}

pub async fn an_absent_lease_is_granted_with_all_it_says(fresh: Fresh) {
    let office = Office::of(fresh);
    let before = now();
    let request = office.request("a", LONG);
    let record = office.granted(&request).await;
    assert_eq!(record.epoch, Epoch(1));
    assert_eq!((record.term, &record.holder, record.duration), (request.term, &request.holder, LONG));
    assert_eq!((record.released, record.note.as_str()), (false, "a note"));
    assert!(record.remaining > LONG - Duration::from_secs(60) && record.remaining <= LONG, "{record:?}");
    // A database on another machine has a clock of its own: near is enough.
    let skew = record.acquired_at.duration_since(before).abs();
    assert!(skew < jiff::SignedDuration::from_secs(3600), "{record:?}");
    let shown = office.shown().await;
    assert_eq!((shown.epoch, shown.term, shown.holder), (record.epoch, record.term, record.holder));
}

pub async fn a_held_lease_is_refused_and_its_holder_named(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", LONG)).await;
    let seen = office.held(&office.request("b", LONG)).await;
    assert_eq!((seen.term, seen.epoch, seen.holder.name.as_str()), (first.term, first.epoch, "a"));
    assert!(!seen.remaining.is_zero());
    assert_eq!(office.renew(&first).await, RenewOutcome::Renewed, "the refusal changed nothing");
}

pub async fn the_same_holder_name_with_another_term_is_another_candidate(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", LONG)).await;
    assert_eq!(office.held(&office.request("a", LONG)).await.term, first.term);
}

pub async fn asking_twice_with_one_term_is_asking_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("a", LONG);
    let (first, again) = (office.granted(&request).await, office.granted(&request).await);
    assert_eq!((first.epoch, first.term, first.transitions), (again.epoch, again.term, again.transitions));
    assert_eq!(office.renew(&first).await, RenewOutcome::Renewed);
}

pub async fn an_expired_lease_is_taken_with_the_next_epoch(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", SHORT)).await;
    expire().await;
    assert!(office.shown().await.remaining.is_zero());
    let second = office.granted(&office.request("b", LONG)).await;
    assert!(second.epoch > first.epoch, "{second:?}");
    assert!(second.transitions > first.transitions, "{second:?}");
    assert!(second.resource_version > first.resource_version, "{second:?}");
}

pub async fn an_expired_term_is_never_revived(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("a", SHORT);
    let first = office.granted(&request).await;
    expire().await;
    assert_eq!(office.renew(&first).await, RenewOutcome::Lost(LossReason::Expired));
    // The same term asking again is a new holding at best: with an epoch of its own.
    if let AcquireOutcome::Granted(record) = office.acquire(&request).await {
        assert!(record.epoch > first.epoch, "the old epoch came back");
    }
    assert!(matches!(office.renew(&first).await, RenewOutcome::Lost(_)));
}

pub async fn a_released_lease_is_free_at_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", LONG)).await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::Released);
    let shown = office.shown().await;
    assert!(shown.released && shown.remaining.is_zero(), "{shown:?}");
    assert!(matches!(office.renew(&first).await, RenewOutcome::Lost(_)), "a released term is over");
    assert_eq!(office.release(&first).await, ReleaseOutcome::NotApplied);
    assert!(office.granted(&office.request("b", LONG)).await.epoch > first.epoch);
}

pub async fn a_late_release_cannot_blank_a_successor(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", SHORT)).await;
    expire().await;
    let second = office.granted(&office.request("b", LONG)).await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::NotApplied);
    assert_eq!(office.renew(&second).await, RenewOutcome::Renewed);
    assert_eq!(office.held(&office.request("c", LONG)).await.term, second.term);
}

pub async fn a_release_must_name_the_epoch(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.granted(&office.request("a", LONG)).await;
    let wrong = Claim { epoch: Epoch(record.epoch.0 + 1), ..claim(&record) };
    assert_eq!(office.store.release(&wrong).await.expect("answered"), ReleaseOutcome::NotApplied);
    assert!(!office.shown().await.released);
    let outcome = office.store.renew(&[wrong]).await.expect("answered").remove(0);
    assert!(matches!(outcome, RenewOutcome::Lost(_)), "{outcome:?}");
}

pub async fn a_dead_term_is_taken_over_at_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let dead = office.granted(&office.request("a", LONG)).await;
    let request = AcquireRequest { takeover: Takeover::OfDead(dead.term), ..office.request("b", LONG) };
    let heir = office.granted(&request).await;
    assert!(heir.epoch > dead.epoch);
    assert!(matches!(office.renew(&dead).await, RenewOutcome::Lost(LossReason::Superseded { .. })));
    assert_eq!(office.granted(&request).await.epoch, heir.epoch, "asked again, the answer is the same");
}

pub async fn another_term_than_the_dead_one_is_not_taken_over(fresh: Fresh) {
    let office = Office::of(fresh);
    let alive = office.granted(&office.request("a", LONG)).await;
    let stale_hint = Takeover::OfDead(Term(office.entropy.uuid(now())));
    let request = AcquireRequest { takeover: stale_hint, ..office.request("b", LONG) };
    assert_eq!(office.held(&request).await.term, alive.term);
}

pub async fn a_superseded_holder_learns_by_whom(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", SHORT)).await;
    expire().await;
    let second = office.granted(&office.request("b", LONG)).await;
    let expected = LossReason::Superseded { holder: holder("b"), epoch: second.epoch };
    assert_eq!(office.renew(&first).await, RenewOutcome::Lost(expected));
}

pub async fn renewing_many_answers_each_in_order(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut claims = vec![];
    for number in 0..20 {
        let scope = Scope::new(format!("tests/many-{number:02}"));
        let record = office.granted(&AcquireRequest { scope, ..office.request("a", LONG) }).await;
        claims.push(claim(&record));
    }
    office.store.release(&claims[3]).await.expect("answered");
    claims.push(Claim { scope: Scope::new("tests/never"), ..claims[0].clone() });
    claims.reverse();
    let outcomes = office.store.renew(&claims).await.expect("answered");
    assert_eq!(outcomes.len(), claims.len());
    for (claim, outcome) in claims.iter().zip(outcomes) {
        match claim.scope.as_str() {
            "tests/never" => assert_eq!(outcome, RenewOutcome::Lost(LossReason::Gone)),
            "tests/many-03" => assert!(matches!(outcome, RenewOutcome::Lost(_)), "{outcome:?}"),
            scope => assert_eq!(outcome, RenewOutcome::Renewed, "{scope}"),
        }
    }
    assert_eq!(office.store.renew(&[]).await.expect("answered"), vec![]);
}

pub async fn renewing_keeps_a_lease_beyond_its_first_duration(fresh: Fresh) {
    let office = Office::of(fresh);
    let second = Duration::from_secs(1);
    let record = office.granted(&office.request("a", second)).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(office.renew(&record).await, RenewOutcome::Renewed);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let seen = office.held(&office.request("b", LONG)).await;
    assert_eq!((seen.term, seen.epoch), (record.term, record.epoch));
    assert!(
        seen.renewed_at > record.renewed_at && seen.resource_version > record.resource_version,
        "{seen:?}"
    );
}

pub async fn epochs_grow_even_when_the_lease_rows_are_deleted(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.request("a", LONG)).await;
    (office._fresh.forget_leases)().await;
    assert_eq!(office.renew(&first).await, RenewOutcome::Lost(LossReason::Gone));
    let second = office.granted(&office.request("b", LONG)).await;
    assert!(second.epoch > first.epoch, "{:?} after {:?}", second.epoch, first.epoch);
}

pub async fn thirty_two_racers_have_one_winner(fresh: Fresh) {
    let office = Office::of(fresh);
    for round in 0..3 {
        let scope = Scope::new(format!("tests/race-{round}"));
        let racers: Vec<_> = (0..32)
            .map(|number| {
                let request = AcquireRequest {
                    scope: scope.clone(),
                    ..office.request(&format!("racer-{number}"), LONG)
                };
                let store = Arc::clone(&office.store);
                tokio::spawn(async move { store.acquire(&request).await.expect("answered") })
            })
            .collect();
        let (mut winners, mut seen) = (vec![], vec![]);
        for racer in racers {
            match racer.await.expect("no panic") {
                AcquireOutcome::Granted(record) => winners.push(record.term),
                AcquireOutcome::Held(record) => seen.push(record.term),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert!(seen.iter().all(|term| *term == winners[0]), "a loser saw another holder");
    }
}
