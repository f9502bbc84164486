//! Goal: an epoch grows with every term, whatever happens to leases and their records.

use tenure_lease::{AcquireRequest, Epoch, Takeover};

use crate::Fresh;
use crate::harness::{LONG, Office};

pub async fn epochs_grow_over_a_release(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut last = Epoch(0);
    for _ in 0..5 {
        let record = office.taken("a").await;
        assert!(record.epoch > last, "{} after {last}", record.epoch);
        last = record.epoch;
        office.release(&record).await;
    }
}

pub async fn epochs_grow_over_an_expiry(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken_and_expired("a").await;
    let second = office.taken_and_expired("b").await;
    let third = office.taken("c").await;
    assert!(first.epoch < second.epoch && second.epoch < third.epoch, "{first:?} {second:?} {third:?}");
    assert!(third.transitions >= second.transitions && second.transitions >= first.transitions);
}

pub async fn epochs_grow_over_a_crash(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut last = office.taken("a").await;
    for _ in 0..5 {
        let heir = office.granted(&office.taking("b", Takeover::OfDead(last.term))).await;
        assert!(heir.epoch > last.epoch, "{} after {}", heir.epoch, last.epoch);
        last = heir;
    }
}

pub async fn epochs_grow_over_the_deletion_of_all_records(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut last = office.taken("a").await;
    for _ in 0..3 {
        (office.fresh.forget_leases)().await;
        let next = office.taken("b").await;
        assert!(next.epoch > last.epoch, "{} after {}", next.epoch, last.epoch);
        assert_eq!(office.fence().await, Some((next.epoch, next.term)));
        last = next;
    }
}

pub async fn epochs_grow_when_the_same_holder_comes_back(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("stateful-set-0", LONG);
    let first = office.granted(&request).await;
    office.release(&first).await;
    let again = AcquireRequest { term: office.term(), ..request };
    assert!(office.granted(&again).await.epoch > first.epoch);
}

pub async fn an_epoch_belongs_to_one_term_only(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut seen = vec![];
    for round in 0..4 {
        let record = match round % 2 {
            0 => office.taken("a").await,
            _ => office.taken_and_expired("b").await,
        };
        if round == 0 {
            office.release(&record).await;
        }
        if round == 2 {
            (office.fresh.forget_leases)().await;
        }
        seen.push(record.epoch);
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}
