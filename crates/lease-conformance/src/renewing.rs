//! Goal: a renewal keeps what is held, and brings nothing back that was lost.

use std::time::Duration;

use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, LossReason, RenewOutcome, Scope, acquire_fenced,
};
use tokio::task::JoinSet;

use crate::Fresh;
use crate::harness::{LONG, Office, claim};

pub async fn renewing_keeps_a_lease_beyond_its_first_duration(fresh: Fresh) {
    let office = Office::of(fresh);
    let duration = office.short().max(Duration::from_secs(2));
    let record = office.granted(&office.request("a", duration)).await;
    let first = office.shown().await;
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < duration.mul_f64(1.5) {
        tokio::time::sleep(duration / 8).await;
        assert_eq!(office.renew(&record).await, RenewOutcome::Renewed);
    }
    let seen = office.held(&office.request("b", LONG)).await;
    assert_eq!((seen.term, seen.epoch, seen.acquired_at), (record.term, record.epoch, record.acquired_at));
    assert!(seen.renewed_at > first.renewed_at, "{seen:?}");
    if office.renewals_show() {
        assert!(seen.resource_version > first.resource_version, "{seen:?}");
    }
    assert_eq!(seen.transitions, first.transitions, "a renewal is no change of holder");
}

pub async fn an_expired_term_is_never_revived(fresh: Fresh) {
    let office = Office::of(fresh);
    let request = office.request("a", office.short());
    let first = office.granted(&request).await;
    office.expired().await;
    let lost = office.renew(&first).await;
    // A backend that deletes what has run out cannot tell the two apart.
    assert!(
        matches!(lost, RenewOutcome::Lost(LossReason::Expired | LossReason::Gone)),
        "the expired term was {lost:?}"
    );
    assert!(!office.found().await.is_some_and(|record| record.is_held()), "the renewal brought it back");
    // The same term asking again is refused, or is a new holding. Where the epoch is minted together with the
    // lease it is a new one; elsewhere the epoch stays this term's own, which no other term ever gets.
    let again = acquire_fenced(office.leases(), office.fences(), &request).await;
    if let Ok(AcquireOutcome::Granted(record)) = again
        && office.leases().capabilities().fenced_transactions
    {
        assert!(record.epoch > first.epoch, "the old epoch came back");
        assert!(matches!(office.renew(&first).await, RenewOutcome::Lost(_)));
    }
}

pub async fn a_renewal_must_name_term_and_epoch(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.taken("a").await;
    let before = office.shown().await;
    let wrong_epoch = Claim { epoch: Epoch(record.epoch.0 + 1), ..claim(&record) };
    let old_epoch = Claim { epoch: Epoch(record.epoch.0 - 1), ..claim(&record) };
    let wrong_term = Claim { term: office.term(), ..claim(&record) };
    for wrong in [wrong_epoch, old_epoch, wrong_term] {
        let outcome = office.renew_claim(wrong).await;
        assert!(matches!(outcome, RenewOutcome::Lost(_)), "{outcome:?}");
    }
    let after = office.shown().await;
    assert_eq!((after.resource_version, after.renewed_at), (before.resource_version, before.renewed_at));
    assert_eq!(office.renew(&record).await, RenewOutcome::Renewed);
}

pub async fn a_released_term_cannot_be_renewed(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.taken("a").await;
    office.release(&record).await;
    assert!(matches!(office.renew(&record).await, RenewOutcome::Lost(_)));
    assert!(!office.found().await.is_some_and(|record| record.is_held()), "the renewal brought it back");
}

pub async fn a_superseded_holder_learns_by_whom(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.taken_and_expired("a").await;
    let second = office.taken("b").await;
    let by = LossReason::Superseded { holder: second.holder.clone(), epoch: second.epoch };
    assert_eq!(office.renew(&first).await, RenewOutcome::Lost(by));
    assert_eq!(office.renew(&second).await, RenewOutcome::Renewed);
}

pub async fn a_deleted_record_is_gone(fresh: Fresh) {
    let office = Office::of(fresh);
    let record = office.taken("a").await;
    (office.fresh.forget_leases)().await;
    assert_eq!(office.renew(&record).await, RenewOutcome::Lost(LossReason::Gone));
    assert_eq!(office.found().await, None, "the renewal made no new record");
}

pub async fn a_thousand_scopes_are_renewed_in_one_batch_each_with_its_own_answer(fresh: Fresh) {
    const SCOPES: usize = 1_000;
    let office = Office::of(fresh);
    let mut claims = many(&office, SCOPES).await;
    let released = |number: usize| number.is_multiple_of(97);
    let taken_over = |number: usize| number % 101 == 50;
    for (number, lost) in claims.iter().enumerate() {
        if released(number) {
            office.leases().release(lost).await.expect("answered");
        } else if taken_over(number) {
            let heir = office.at(lost.scope.as_str());
            heir.granted(&heir.taking("heir", tenure_lease::Takeover::OfDead(lost.term))).await;
        }
    }
    let never = Claim { scope: Scope::new("tests/never"), ..claims[0].clone() };
    claims.insert(SCOPES / 2, never);
    claims.reverse();
    let outcomes = office.leases().renew(&claims).await.expect("answered");
    assert_eq!(outcomes.len(), claims.len());
    for (claim, outcome) in claims.iter().zip(outcomes) {
        let number =
            claim.scope.as_str().strip_prefix("tests/many/").map(|number| number.parse().expect("ours"));
        match number {
            None => assert_eq!(outcome, RenewOutcome::Lost(LossReason::Gone)),
            Some(number) if released(number) => {
                assert!(matches!(outcome, RenewOutcome::Lost(_)), "{number}: {outcome:?}")
            }
            Some(number) if taken_over(number) => match outcome {
                RenewOutcome::Lost(LossReason::Superseded { holder, .. }) => assert_eq!(holder.name, "heir"),
                other => panic!("{number}: {other:?}"),
            },
            Some(number) => assert_eq!(outcome, RenewOutcome::Renewed, "{number}"),
        }
    }
    assert_eq!(office.leases().renew(&[]).await.expect("answered"), vec![], "nothing asked, nothing said");
}

/// Many leases of one holder, in order.
async fn many(office: &Office, count: usize) -> Vec<Claim> {
    /// At once: enough to be quick, few enough for any pool of connections.
    const AT_ONCE: usize = 16;
    let holder = office.holder("a");
    let mut takers = JoinSet::new();
    for first in 0..AT_ONCE {
        let (office, holder) = (office.clone(), holder.clone());
        takers.spawn(async move {
            let mut taken = vec![];
            for number in (first..count).step_by(AT_ONCE) {
                let office = office.at(format!("tests/many/{number:04}"));
                let request = AcquireRequest { holder: holder.clone(), ..office.request("a", LONG) };
                taken.push(claim(&office.granted(&request).await));
            }
            taken
        });
    }
    let mut claims: Vec<Claim> = takers.join_all().await.into_iter().flatten().collect();
    claims.sort_by(|a, b| a.scope.cmp(&b.scope));
    claims
}
