//! Goal: however many ask at once, one wins, and no epoch has two terms.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_lease::{AcquireOutcome, AcquireRequest, Epoch, ReleaseOutcome, Term};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Fresh;
use crate::harness::{LONG, Office};

const RACERS: usize = 32;

pub async fn thirty_two_racers_have_one_winner_round_after_round(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut last = Epoch(0);
    for round in 0..5 {
        let requests = (0..RACERS).map(|number| office.request(&format!("racer-{number}"), LONG));
        let (winners, seen) = race(&office, requests.collect()).await;
        let [winner] = &winners[..] else { panic!("round {round}: {winners:?}") };
        assert!(seen.iter().all(|term| *term == winner.term), "a loser saw another holder");
        assert!(winner.epoch > last, "{} after {last}", winner.epoch);
        assert_eq!(office.fence().await, Some((winner.epoch, winner.term)));
        last = winner.epoch;
        assert_eq!(office.release(winner).await, ReleaseOutcome::Released);
    }
}

/// Everyone wins once, in no order, and gives it back: no two are inside at the same time.
pub async fn thirty_two_racers_that_take_turns_never_meet(fresh: Fresh) {
    let office = Office::of(fresh);
    let inside = Arc::new(AtomicU32::new(0));
    let mut racers = JoinSet::new();
    for number in 0..RACERS {
        let (office, inside) = (office.clone(), Arc::clone(&inside));
        racers.spawn(async move {
            loop {
                let request = office.request(&format!("racer-{number}"), LONG);
                let AcquireOutcome::Granted(record) = office.acquire(&request).await else {
                    let pause = office.entropy.jitter(Duration::from_millis(20));
                    tokio::time::sleep(pause).await;
                    continue;
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else is inside");
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "somebody came in");
                assert_eq!(office.release(&record).await, ReleaseOutcome::Released);
                return (record.epoch, record.term);
            }
        });
    }
    let won: Vec<(Epoch, Term)> = racers.join_all().await;
    let by_epoch: BTreeMap<Epoch, Term> = won.iter().copied().collect();
    assert_eq!(by_epoch.len(), RACERS, "an epoch was seen by two terms: {won:?}");
    let last = by_epoch.last_key_value().map(|(epoch, term)| (*epoch, *term));
    assert_eq!(office.fence().await, last);
}

pub async fn identical_holders_at_once_are_two_candidates(fresh: Fresh) {
    let office = Office::of(fresh);
    for round in 0..10 {
        let office = office.at(format!("tests/twins-{round}"));
        let one = office.request("twin", LONG);
        let other = AcquireRequest { term: office.term(), ..one.clone() };
        let (winners, seen) = race(&office, vec![one, other]).await;
        assert_eq!((winners.len(), &seen[..]), (1, &[winners[0].term][..]));
    }
}

/// All at once: who was granted it, and whom the others saw.
async fn race(office: &Office, requests: Vec<AcquireRequest>) -> (Vec<tenure_lease::LeaseRecord>, Vec<Term>) {
    let start = Arc::new(Barrier::new(requests.len()));
    let mut racers = JoinSet::new();
    for request in requests {
        let (office, start) = (office.clone(), Arc::clone(&start));
        racers.spawn(async move {
            start.wait().await;
            office.acquire(&request).await
        });
    }
    let (mut winners, mut seen) = (vec![], vec![]);
    for outcome in racers.join_all().await {
        match outcome {
            AcquireOutcome::Granted(record) => winners.push(record),
            AcquireOutcome::Held(record) => seen.push(record.term),
            AcquireOutcome::Won(record) => panic!("won and not fenced: {record:?}"),
        }
    }
    (winners, seen)
}
