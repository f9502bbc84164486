//! Goal: what is known about a holder's death moves a lease sooner, and being wrong harms nobody else.

use tenure_lease::{LeaseRecord, LossReason, ReleaseOutcome, RenewOutcome, Succession, Takeover};

use crate::Fresh;
use crate::harness::{LONG, Office};

pub async fn a_dead_term_is_taken_over_at_once(fresh: Fresh) {
    let office = Office::of(fresh);
    let dead = office.taken("a").await;
    let request = office.taking("b", Takeover::OfDead(dead.term));
    let heir = office.granted(&request).await;
    assert!(heir.epoch > dead.epoch);
    assert_eq!(heir.succession, Succession::Crashed);
    assert!(matches!(office.renew(&dead).await, RenewOutcome::Lost(LossReason::Superseded { .. })));
    assert_eq!(office.release(&dead).await, ReleaseOutcome::NotApplied);
    assert_eq!(office.granted(&request).await.epoch, heir.epoch, "asked again, the answer is the same");
    assert_eq!(office.fence().await, Some((heir.epoch, heir.term)));
}

pub async fn another_term_than_the_dead_one_is_not_taken_over(fresh: Fresh) {
    let office = Office::of(fresh);
    let alive = office.taken("a").await;
    let stale_hint = Takeover::OfDead(office.term());
    assert_eq!(office.held(&office.taking("b", stale_hint)).await.term, alive.term);
    assert_eq!(office.renew(&alive).await, RenewOutcome::Renewed);
    assert_eq!(office.fence().await, Some((alive.epoch, alive.term)));
}

pub async fn a_hint_about_a_lease_that_is_free_does_no_harm(fresh: Fresh) {
    let office = Office::of(fresh);
    let first = office.granted(&office.taking("a", Takeover::OfDead(office.term()))).await;
    office.release(&first).await;
    let second = office.granted(&office.taking("b", Takeover::OfDead(first.term))).await;
    assert_eq!(second.succession, Succession::Released, "it was given back, whatever the hint says");
    assert!(second.epoch > first.epoch);
}

pub async fn a_stalled_term_is_taken_at_the_very_version_that_was_seen(fresh: Fresh) {
    let office = Office::of(fresh);
    office.taken("a").await;
    let seen = office.shown().await;
    let heir = office.granted(&office.taking("b", stalled(&seen))).await;
    assert!(heir.epoch > seen.epoch);
    assert_eq!(heir.succession, Succession::Stalled);
    assert!(matches!(office.renew(&seen).await, RenewOutcome::Lost(LossReason::Superseded { .. })));
    assert_eq!(office.fence().await, Some((heir.epoch, heir.term)));
}

pub async fn a_renewal_in_between_saves_a_stalled_term(fresh: Fresh) {
    let office = Office::of(fresh);
    if !office.renewals_show() {
        return;
    }
    let alive = office.taken("a").await;
    let seen = office.shown().await;
    assert_eq!(office.renew(&alive).await, RenewOutcome::Renewed);
    assert_eq!(office.held(&office.taking("b", stalled(&seen))).await.term, alive.term);
    assert_eq!(office.renew(&alive).await, RenewOutcome::Renewed);
    assert_eq!(office.fence().await, Some((alive.epoch, alive.term)));
}

pub async fn another_term_than_the_stalled_one_is_not_taken_over(fresh: Fresh) {
    let office = Office::of(fresh);
    let alive = office.taken("a").await;
    let seen = LeaseRecord { term: office.term(), ..office.shown().await };
    assert_eq!(office.held(&office.taking("b", stalled(&seen))).await.term, alive.term);
}

fn stalled(seen: &LeaseRecord) -> Takeover {
    Takeover::OfStalled { term: seen.term, resource_version: seen.resource_version }
}

/// The timeline of every split brain: e is paused, e' takes over, e wakes up and goes on.
pub async fn a_holder_paused_past_its_expiry_is_fenced_out(fresh: Fresh) {
    let office = Office::of(fresh);
    let paused = office.granted(&office.request("a", office.short())).await;
    assert_eq!(office.fence().await, Some((paused.epoch, paused.term)));
    assert_eq!(office.renew(&paused).await, RenewOutcome::Renewed, "it had led in good order");
    office.expired().await;
    let heir = office.taken("b").await;
    assert!(heir.epoch > paused.epoch);
    assert_eq!(heir.succession, Succession::Expired);
    assert_eq!(office.fence().await, Some((heir.epoch, heir.term)), "no write of {} passes", paused.epoch);
    let by = LossReason::Superseded { holder: heir.holder.clone(), epoch: heir.epoch };
    assert_eq!(office.renew(&paused).await, RenewOutcome::Lost(by));
    assert_eq!(office.release(&paused).await, ReleaseOutcome::NotApplied);
    assert_eq!(office.held(&office.request("a", LONG)).await.term, heir.term);
    assert_eq!(office.renew(&heir).await, RenewOutcome::Renewed);
    assert_eq!(office.fence().await, Some((heir.epoch, heir.term)));
}
