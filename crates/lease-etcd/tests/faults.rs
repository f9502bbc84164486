//! Goal: whatever happens to etcd or to the way there, calls end in time, nothing is taken twice, and epochs grow.
//! Method: a real etcd that is killed and wiped, and a wire in between that swallows what it is told to.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::proxy::{Proxy, Weather};
use common::{
    LONG, PATIENCE, claim, etcd_leases, granted, granted_with, heard, leases_at, leases_with, renew, request,
};
use tenure_clock::SystemClock;
use tenure_lease::{
    AcquireOutcome, FenceStore, Hint, LeaseError, LeaseStore, LossReason, MemoryLeases, ReleaseOutcome,
    RenewOutcome,
};
use tenure_lease_etcd::EtcdOptions;
use tenure_testkit::{Etcd, free_port, wait_for};
use tokio::time::timeout;

fn hurried(endpoints: &[&str]) -> EtcdOptions {
    EtcdOptions { timeout: Duration::from_millis(500), ..EtcdOptions::new(endpoints.iter().copied()) }
}

#[tokio::test]
async fn a_lease_survives_etcd_being_killed_and_restarted() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    let record = granted(&leases, &request("a", Duration::from_secs(5))).await;
    let mut hints = leases.watch();
    heard(&mut hints, Hint::Resync).await;
    etcd.kill();
    let down = leases.renew(&[claim(&record)]).await;
    assert!(matches!(&down, Err(LeaseError::Unavailable(_) | LeaseError::Ambiguous(_))), "{down:?}");
    let down = leases.acquire(&request("b", LONG)).await;
    assert!(matches!(&down, Err(LeaseError::Unavailable(_))), "nothing was sent: {down:?}");
    etcd.start();
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Renewed);
    heard(&mut hints, Hint::Resync).await;
    assert_eq!(leases.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::Released);
    heard(&mut hints, Hint::Changed(record.scope)).await;
}

#[tokio::test]
async fn epochs_grow_over_the_loss_of_all_of_etcds_data() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    // One whose epochs are minted here, and one whose epochs are minted in another database.
    let database = MemoryLeases::unfenced(Arc::new(SystemClock));
    let own = granted(&leases, &request("own", LONG)).await;
    let mut others = granted_with(&leases, &database, &request("others", LONG)).await;
    for _ in 0..3 {
        leases.release(&claim(&others)).await.expect("answered");
        others = granted_with(&leases, &database, &request("others", LONG)).await;
    }
    let mut hints = leases.watch();
    heard(&mut hints, Hint::Resync).await;
    etcd.kill();
    etcd.wipe_data();
    etcd.start();

    let outcomes = leases.renew(&[claim(&own), claim(&others)]).await.expect("answered");
    assert_eq!(outcomes, [RenewOutcome::Lost(LossReason::Gone), RenewOutcome::Lost(LossReason::Gone)]);
    heard(&mut hints, Hint::Resync).await;
    let heir = granted(&leases, &request("own", LONG)).await;
    assert!(heir.epoch > own.epoch, "{} after {}", heir.epoch, own.epoch);
    heard(&mut hints, Hint::Changed(heir.scope)).await;
    let heir = granted_with(&leases, &database, &request("others", LONG)).await;
    assert!(heir.epoch > others.epoch, "{} after {}", heir.epoch, others.epoch);
    assert_eq!(database.fence(&heir.scope).await.expect("answered"), Some((heir.epoch, heir.term)));
}

#[tokio::test]
async fn a_black_hole_ends_every_call_in_time() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(etcd.endpoint()).await;
    let prefix = etcd.url().parse::<EtcdOptions>().expect("an address").prefix;
    let leases = leases_with(hurried(&[&proxy.endpoint]).with_prefix(&prefix).expect("a prefix"));
    let request = request("a", LONG);
    let record = granted(&leases, &request).await;
    proxy.set(Weather::BlackHole);
    let everything = async {
        let (scope, term) = (&record.scope, record.term);
        for lost in [
            leases.acquire(&request).await.err(),
            leases.renew(&[claim(&record)]).await.err(),
            leases.release(&claim(&record)).await.err(),
            leases.list_leases("").await.err(),
            leases.find_lease(scope).await.err(),
            leases.lease_history(scope, 1).await.err(),
            leases.install_fence(scope, term, record.epoch).await.err(),
            leases.fence(scope).await.err(),
        ] {
            assert!(matches!(&lost, Some(LeaseError::Unavailable(_))), "every verb looks first: {lost:?}");
        }
    };
    timeout(PATIENCE, everything).await.expect("eight calls end");
    proxy.set(Weather::Fair);
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Renewed, "on a new connection");
}

#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_ambiguous_and_repaired_by_asking_again() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(&etcd.endpoint()).await;
    let leases = leases_with(hurried(&[&proxy.endpoint]));
    for (scope, weather) in [
        ("committed", Weather::AnswersLostAfter(r#""confirmed":false"#)),
        ("aborted", Weather::RequestsLostFrom(r#""confirmed":false"#)),
    ] {
        let request = request(scope, LONG);
        proxy.set(weather);
        let lost = leases.acquire(&request).await;
        assert!(matches!(&lost, Err(LeaseError::Ambiguous(_))), "{scope}: {lost:?}");
        let key = etcd.ctl(&["get", &format!("/tenure/{scope}"), "--keys-only"]);
        assert_eq!(!key.trim().is_empty(), scope == "committed", "what the caller cannot know: {key:?}");
        proxy.set(Weather::Fair);
        let record = granted(&leases, &request).await;
        assert_eq!((record.term, record.transitions), (request.term, 0));
    }
    assert_eq!(etcd_leases(&etcd.ctl(&["lease", "list"])), 2, "one for each scope");
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_ambiguous_and_never_blanks_a_successor() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(&etcd.endpoint()).await;
    let leases = leases_with(hurried(&[&proxy.endpoint]));
    for (scope, weather, again) in [
        ("committed", Weather::AnswersLostAfter(r#""released_at":"2"#), ReleaseOutcome::NotApplied),
        ("aborted", Weather::RequestsLostFrom(r#""released_at":"2"#), ReleaseOutcome::Released),
    ] {
        let record = granted(&leases, &request(scope, LONG)).await;
        proxy.set(weather);
        let lost = leases.release(&claim(&record)).await;
        assert!(matches!(&lost, Err(LeaseError::Ambiguous(_))), "{scope}: {lost:?}");
        proxy.set(Weather::Fair);
        assert_eq!(leases.release(&claim(&record)).await.expect("answered"), again, "{scope}");
        let heir = granted(&leases, &request(scope, LONG)).await;
        assert_eq!(leases.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::NotApplied);
        assert_eq!(renew(&leases, &heir).await, RenewOutcome::Renewed);
    }
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_is_ambiguous_and_can_be_repeated() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(&etcd.endpoint()).await;
    let leases = leases_with(hurried(&[&proxy.endpoint]));
    for (scope, weather) in [
        ("committed", Weather::AnswersLostAfter(r#""confirmed":true"#)),
        ("aborted", Weather::RequestsLostFrom(r#""confirmed":true"#)),
    ] {
        let request = request(scope, LONG);
        let AcquireOutcome::Won(won) = leases.acquire(&request).await.expect("answered") else {
            panic!("not won")
        };
        let epoch = leases.install_fence(&won.scope, won.term, won.epoch).await.expect("installed");
        let claim = tenure_lease::Claim { epoch, ..claim(&won) };
        proxy.set(weather);
        let lost = leases.renew(std::slice::from_ref(&claim)).await;
        assert!(matches!(&lost, Err(LeaseError::Ambiguous(_))), "{scope}: {lost:?}");
        proxy.set(Weather::Fair);
        assert_eq!(leases.renew(&[claim]).await.expect("answered"), [RenewOutcome::Renewed]);
        let shown = leases.find_lease(&won.scope).await.expect("answered").expect("held");
        assert_eq!((shown.epoch, shown.term), (epoch, won.term));
    }
}

#[tokio::test]
async fn the_next_endpoint_has_its_turn_when_one_refuses() {
    let etcd = Etcd::shared();
    let nobody = format!("127.0.0.1:{}", free_port());
    let prefix = etcd.url().parse::<EtcdOptions>().expect("an address").prefix;
    let options =
        EtcdOptions::new([nobody.as_str(), etcd.endpoint()]).with_prefix(&prefix).expect("a prefix");
    granted(&leases_with(options), &request("a", LONG)).await;
    let nowhere = leases_with(hurried(&[&nobody])).acquire(&request("a", LONG)).await;
    assert!(matches!(&nowhere, Err(LeaseError::Unavailable(_))), "{nowhere:?}");
}

/// An elector has shorter deadlines than this client: a dropped call counts as one that failed.
#[tokio::test]
async fn the_next_endpoint_has_its_turn_when_a_caller_stops_waiting() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(etcd.endpoint()).await;
    let prefix = etcd.url().parse::<EtcdOptions>().expect("an address").prefix;
    let options = EtcdOptions::new([proxy.endpoint.as_str(), etcd.endpoint()]).with_prefix(&prefix);
    let options = EtcdOptions { timeout: PATIENCE, ..options.expect("a prefix") };
    let leases = leases_with(options);
    let record = granted(&leases, &request("a", LONG)).await;
    proxy.set(Weather::BlackHole);
    let impatient = timeout(Duration::from_millis(300), leases.renew(&[claim(&record)])).await;
    assert!(impatient.is_err(), "{impatient:?}");
    let renewed = timeout(PATIENCE / 2, renew(&leases, &record)).await;
    assert_eq!(renewed.expect("the other endpoint answers"), RenewOutcome::Renewed);
}

/// The same with a connection that is only being made, to a host that takes it and says nothing.
#[tokio::test]
async fn the_next_endpoint_has_its_turn_when_a_caller_stops_waiting_for_a_connection() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(etcd.endpoint()).await;
    proxy.set(Weather::BlackHole);
    let url = etcd.url().replace("etcd://", &format!("etcd://tom:word@{},", proxy.endpoint));
    let leases = leases_at(&url);
    // Shorter than a connection is waited for: whoever began with the same endpoint each time would wait for ever.
    let impatient = || async { timeout(Duration::from_millis(300), leases.list_leases("")).await.ok() };
    wait_for("the other endpoint", PATIENCE, impatient).await.expect("answered");
}

#[tokio::test]
async fn a_watch_that_was_cut_begins_again_and_says_so() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(etcd.endpoint()).await;
    let prefix = etcd.url().parse::<EtcdOptions>().expect("an address").prefix;
    let watcher = leases_with(hurried(&[&proxy.endpoint]).with_prefix(&prefix).expect("a prefix"));
    let direct = leases_with(EtcdOptions::new([etcd.endpoint()]).with_prefix(&prefix).expect("a prefix"));
    let mut hints = watcher.watch();
    heard(&mut hints, Hint::Resync).await;
    for round in 0..3 {
        proxy.set(Weather::Cut);
        let missed = granted(&direct, &request(&format!("missed-{round}"), LONG)).await;
        proxy.set(Weather::Fair);
        heard(&mut hints, Hint::Resync).await;
        direct.release(&claim(&missed)).await.expect("answered");
        heard(&mut hints, Hint::Changed(missed.scope)).await;
    }
}

#[tokio::test]
async fn an_etcd_that_starts_late_is_found() {
    let etcd = Etcd::start();
    etcd.stop();
    let leases = leases_at(&etcd.url());
    let mut hints = leases.watch();
    let early = leases.list_leases("").await;
    assert!(matches!(&early, Err(LeaseError::Unavailable(_))), "{early:?}");
    etcd.start();
    heard(&mut hints, Hint::Resync).await;
    wait_for("an answer", PATIENCE, || async { leases.list_leases("").await.ok() }).await;
    granted(&leases, &request("a", LONG)).await;
}
