//! Goal: a lease is given back at once, by its holder and by nobody else.

use tenure_lease::{Claim, Epoch, ReleaseOutcome, RenewOutcome, Succession};

use crate::Fresh;
use crate::harness::{LONG, Office, claim};

pub async fn a_released_lease_is_free_at_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken("a").await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::Released);
    // A backend may keep the record of the last holder, or delete it.
    if let Some(shown) = office.found().await {
        assert!(shown.released && shown.remaining.is_zero() && !shown.is_held(), "{shown:?}");
        assert_eq!((shown.term, shown.epoch), (first.term, first.epoch));
    }
    let second = office.taken("b").await;
    assert!(second.epoch > first.epoch);
    assert_eq!(office.fence().await, Some((second.epoch, second.term)));
}

pub async fn a_release_must_name_term_and_epoch(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.taken("a").await;
    let wrong_epoch = Claim { epoch: Epoch(record.epoch.0 + 1), ..claim(&record) };
    let wrong_term = Claim { term: office.term(), ..claim(&record) };
    let wrong_scope = Claim { scope: office.at("tests/other").scope, ..claim(&record) };
    for wrong in [wrong_epoch, wrong_term, wrong_scope] {
        assert_eq!(office.leases().release(&wrong).await.expect("answered"), ReleaseOutcome::NotApplied);
    }
    assert!(office.shown().await.is_held());
    assert_eq!(office.renew(&record).await, RenewOutcome::Renewed);
    assert_eq!(office.release(&record).await, ReleaseOutcome::Released);
}

pub async fn a_second_release_changes_nothing(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken("a").await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::Released);
    assert_eq!(office.release(&first).await, ReleaseOutcome::NotApplied);
    let second = office.taken("b").await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::NotApplied, "also when it is held again");
    assert_eq!(office.renew(&second).await, RenewOutcome::Renewed);
}

pub async fn a_late_release_cannot_blank_a_successor(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken_and_expired("a").await;
    let second = office.taken("b").await;
    assert_eq!(office.release(&first).await, ReleaseOutcome::NotApplied);
    assert_eq!(office.renew(&second).await, RenewOutcome::Renewed);
    assert_eq!(office.held(&office.request("c", LONG)).await.term, second.term);
    assert_eq!(office.fence().await, Some((second.epoch, second.term)));
}

pub async fn what_has_run_out_cannot_be_given_back(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.taken_and_expired("a").await;
    assert_eq!(office.release(&record).await, ReleaseOutcome::NotApplied);
    let heir = office.taken("b").await;
    assert_eq!(heir.succession, Succession::Expired, "nobody gave it back");
}
