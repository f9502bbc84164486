//! Goal: the fence names one term, and its epochs only grow.

use tenure_lease::{AcquireOutcome, Epoch};
use tokio::task::JoinSet;

use crate::Fresh;
use crate::harness::{LONG, Office};

pub async fn an_acquire_leaves_the_fence_as_the_capabilities_say(fresh: Fresh) {
    let office = Office::of(fresh);
    let capabilities = office.leases().capabilities();
    assert!(!capabilities.name.is_empty());
    let request = office.request("a", LONG);
    match office.leases().acquire(&request).await.expect("answered") {
        AcquireOutcome::Granted(record) => {
            assert!(capabilities.fenced_transactions, "granted without a fence of its own");
            assert_eq!(office.fence().await, Some((record.epoch, record.term)));
        }
        AcquireOutcome::Won(_) => {
            assert!(!capabilities.fenced_transactions, "a fenced acquire is granted, not won");
            assert_eq!(office.fence().await, None);
        }
        AcquireOutcome::Held(record) => panic!("nobody else is here: {record:?}"),
    }
    let record = office.granted(&request).await;
    assert_eq!(office.fence().await, Some((record.epoch, record.term)));
    assert_eq!(office.shown().await.epoch, record.epoch, "the record shows the epoch that fences");
    assert_eq!(office.granted(&request).await.epoch, record.epoch);
}

pub async fn the_same_term_gets_the_same_epoch_again(fresh: Fresh) {
    let office = Office::of(fresh);
    let term = office.term();
    let first = office.install(term, 0).await;
    assert_eq!(office.install(term, 0).await, first);
    assert_eq!(office.install(term, first.0).await, first, "its own epoch is no floor to climb over");
    assert_eq!(office.fence().await, Some((first, term)));
}

pub async fn an_epoch_is_above_its_floor_and_above_all_before(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.install(office.term(), 1841).await;
    assert!(first > Epoch(1841), "{first}");
    let second = office.install(office.term(), 7).await;
    assert!(second > first, "{second} after {first}: a low floor lowers nothing");
    let record = office.taken("a").await;
    assert!(record.epoch > second, "{} after {second}: a lease is fenced by the same numbers", record.epoch);
    let last = office.install(office.term(), record.epoch.0 + 1_000).await;
    assert!(last > Epoch(record.epoch.0 + 1_000), "{last}");
}

pub async fn a_superseded_term_never_gets_its_old_epoch_back(fresh: Fresh) {
    let office = Office::of(fresh);
    let (old, new) = (office.term(), office.term());
    let first = office.install(old, 0).await;
    let second = office.install(new, 0).await;
    let third = office.install(old, 0).await;
    assert!(first < second && second < third, "{first} {second} {third}");
    assert_eq!(office.fence().await, Some((third, old)));
}

pub async fn a_scope_that_nobody_held_has_no_fence(fresh: Fresh) {
    let office = Office::of(fresh);
    office.at("tests/other").taken("a").await;
    assert_eq!(office.fence().await, None);
}

pub async fn sixteen_terms_that_race_for_a_fence_get_sixteen_epochs(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut racers = JoinSet::new();
    for _ in 0..16 {
        let office = office.clone();
        racers.spawn(async move {
            let term = office.term();
            (office.install(term, 3).await, term)
        });
    }
    let mut epochs = racers.join_all().await;
    epochs.sort();
    assert!(epochs.is_sorted_by(|(a, _), (b, _)| a < b), "{epochs:?}");
    assert!(epochs[0].0 > Epoch(3), "{epochs:?}");
    assert_eq!(office.fence().await, epochs.last().copied(), "the highest epoch is the one that counts");
}
