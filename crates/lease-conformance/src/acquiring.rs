//! Goal: whoever asks for a lease gets it or learns who has it, however often the question is repeated.

use std::time::Duration;

use jiff::SignedDuration;
use tenure_lease::{AcquireRequest, Holder, LeaseError, RenewOutcome, Succession};

use crate::Fresh;
use crate::harness::{LONG, Office, now};

pub async fn an_absent_lease_is_granted_with_all_it_says(fresh: Fresh) {
    let office = Office::of(fresh);
    assert_eq!(office.found().await, None);
    let before = now();
    let request = office.request("a", LONG);
    let record = office.granted(&request).await;
    assert!(record.epoch.0 > 0, "{record:?}");
    assert_eq!((&record.scope, record.term), (&request.scope, request.term));
    assert_eq!((&record.holder, record.duration), (&request.holder, LONG));
    assert_eq!((record.released, record.transitions, record.succession), (false, 0, Succession::First));
    assert!(record.is_held());
    assert!(record.remaining > LONG - Duration::from_secs(60) && record.remaining <= LONG, "{record:?}");
    // A store on another machine has a clock of its own: near is enough.
    let skew = record.acquired_at.duration_since(before).abs();
    assert!(skew < SignedDuration::from_secs(3600), "{record:?}");
    let shown = office.shown().await;
    assert_eq!((shown.epoch, shown.term, &shown.holder), (record.epoch, record.term, &record.holder));
    assert_eq!((shown.duration, shown.acquired_at), (LONG, record.acquired_at));
    assert!(shown.is_held());
}

pub async fn what_a_holder_says_of_itself_is_kept_to_the_letter(fresh: Fresh) {
    let office = Office::of(fresh);
    let note = "«drain» at 100 %\n'; DROP TABLE leases; -- \"quoted\" {\"a\": 1} \\ 日本";
    let holder = Holder { address: None, instance: String::new(), ..office.holder("host-1:4711 «ü»") };
    let request = AcquireRequest { holder, note: note.into(), ..office.request("", LONG) };
    for record in [office.granted(&request).await, office.shown().await] {
        assert_eq!((&record.holder, record.note.as_str()), (&request.holder, note));
    }
}

pub async fn a_held_lease_is_refused_and_its_holder_named(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken("a").await;
    let seen = office.held(&office.request("b", LONG)).await;
    assert_eq!((seen.term, seen.epoch, &seen.holder), (first.term, first.epoch, &first.holder));
    assert!(!seen.remaining.is_zero());
    assert_eq!(office.renew(&first).await, RenewOutcome::Renewed, "the refusal changed nothing");
    assert_eq!(office.fence().await, Some((first.epoch, first.term)), "nor did it touch the fence");
}

pub async fn the_same_holder_with_another_term_is_another_candidate(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("a", LONG);
    let first = office.granted(&request).await;
    let again = AcquireRequest { term: office.term(), ..request };
    assert_eq!(office.held(&again).await.term, first.term);
}

pub async fn asking_twice_with_one_term_is_asking_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("a", LONG);
    let (first, again) = (office.granted(&request).await, office.granted(&request).await);
    assert_eq!((first.epoch, first.term, first.transitions), (again.epoch, again.term, again.transitions));
    assert_eq!((first.acquired_at, first.succession), (again.acquired_at, again.succession));
    assert_eq!(office.renew(&first).await, RenewOutcome::Renewed);
    assert_eq!(office.granted(&request).await.epoch, first.epoch, "also after a renewal");
    let history = office.leases().lease_history(&office.scope, 10).await.expect("answered");
    assert_eq!(history.len(), 1, "{history:?}");
}

/// The caller gives up at growing moments; what had been done by then is unknown to it.
pub async fn a_lost_answer_is_repaired_by_asking_again(fresh: Fresh) {
    let office = Office::of(fresh);
    for step in 0..24 {
        let office = office.at(format!("tests/lost-{step}"));
        let request = office.request("a", LONG);
        // Exponential: from before the first message is sent to after the last answer came.
        let patience = Duration::from_micros(20 << (step / 2));
        let _unknown = tokio::time::timeout(patience, office.acquire(&request)).await;
        let record = office.granted(&request).await;
        assert_eq!((record.term, record.transitions), (request.term, 0));
        assert_eq!(office.fence().await, Some((record.epoch, record.term)));
        assert_eq!(office.renew(&record).await, RenewOutcome::Renewed);
        let history = office.leases().lease_history(&office.scope, 10).await.expect("answered");
        assert_eq!(history.len(), 1, "{history:?}");
    }
}

pub async fn a_lease_below_the_minimum_is_refused(fresh: Fresh) {
    let office = Office::of(fresh);
    let minimum = office.leases().capabilities().minimum_duration;
    assert!(!minimum.is_zero());
    if minimum <= Duration::from_millis(1) {
        return;
    }
    let request = office.request("a", minimum - Duration::from_millis(1));
    let refused = office.leases().acquire(&request).await;
    assert!(matches!(&refused, Err(LeaseError::Refused(_))), "{refused:?}");
    assert_eq!(office.found().await, None, "nothing was written");
    office.granted(&office.request("a", minimum)).await;
}

pub async fn scopes_do_not_meet(fresh: Fresh) {
    let office = Office::of(fresh);
    let names = ["tests", "tests/One", "tests/one", "tests/one/more", "tests/one0", "tests/on"];
    let mut taken = vec![];
    for name in names {
        taken.push((office.at(name), office.at(name).taken(name).await));
    }
    let (other, released) = &taken[2];
    other.release(released).await;
    for (office, record) in taken.iter().filter(|(office, _)| office.scope != other.scope) {
        assert_eq!(office.renew(record).await, RenewOutcome::Renewed, "{}", office.scope);
    }
}
