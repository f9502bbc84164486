//! What became of a request.

use std::error::Error;
use std::time::Duration;

use tenure_lease::{
    AcquireOutcome, Epoch, FenceStore, LeaseError, LeaseStore, ReleaseOutcome, RenewOutcome, Scope,
};
use tenure_lease_http::HttpLeases;
use tenure_testkit::wait_for;

use crate::harness::{Bad, Manner, Real, claim, leases_at, memory, nobody, request};

/// `ambiguous: …`, for each verb that changes something, then for one that does not.
async fn fates(leases: &HttpLeases) -> [String; 4] {
    let request = request("x/leader");
    let claim = claim(&request, 1);
    [
        fate(leases.acquire(&request).await),
        fate(leases.renew(std::slice::from_ref(&claim)).await),
        fate(leases.release(&claim).await),
        fate(leases.list_leases("").await),
    ]
}

fn fate<T: std::fmt::Debug>(answer: Result<T, LeaseError>) -> String {
    match answer.expect_err("no answer") {
        error @ LeaseError::Unavailable(_) => format!("unavailable: {}", error.source().unwrap()),
        error @ LeaseError::Ambiguous(_) => format!("ambiguous: {}", error.source().unwrap()),
        LeaseError::Refused(text) => format!("refused: {text}"),
    }
}

#[track_caller]
fn check(fates: &[String; 4], writes: &str, read: &str) {
    for (number, fate) in fates.iter().enumerate() {
        let expected = if number < 3 { writes } else { read };
        assert!(fate.starts_with(expected), "{fates:#?}");
    }
}

#[tokio::test]
async fn what_could_not_be_sent_was_not_done() {
    check(&fates(&leases_at(&[nobody()])).await, "unavailable: ", "unavailable: ");
    let nowhere = HttpLeases::new(
        "http://no-such-host.invalid:1",
        None,
        std::sync::Arc::new(tenure_clock::SystemClock),
        tenure_clock::Entropy::from_os(),
    );
    check(&fates(&nowhere.unwrap()).await, "unavailable: ", "unavailable: ");
}

#[tokio::test]
async fn what_was_sent_and_not_answered_may_have_been_done() {
    for manner in [Manner::Silent, Manner::HangsUp, Manner::Says(200, "{\"lease\"")] {
        let bad = Bad::start(manner).await;
        check(&fates(&leases_at(&[bad.address])).await, "ambiguous: ", "unavailable: ");
        assert_eq!(bad.requests(), 4, "{manner:?}");
    }
}

#[tokio::test]
async fn a_status_says_what_became_of_it() {
    let cases = [
        (504, "{\"detail\": \"lost\", \"ambiguous\": true}", "ambiguous: ", "unavailable: "),
        (502, "<html>", "ambiguous: ", "unavailable: "),
        (500, "{\"detail\": \"panicked\"}", "ambiguous: ", "unavailable: "),
        (503, "{\"detail\": \"nothing was changed\"}", "unavailable: ", "unavailable: "),
        (400, "{\"detail\": \"read-only\"}", "refused: read-only (400)", "refused: read-only (400)"),
        (403, "{\"detail\": \"not yours\"}", "refused: not yours (403)", "refused: not yours (403)"),
        (401, "{}", "refused: the server does not accept the token", "refused: the server does not"),
        (302, "", "refused: it answered 302", "refused: it answered 302"),
    ];
    for (status, body, writes, read) in cases {
        let bad = Bad::start(Manner::Says(status, body)).await;
        check(&fates(&leases_at(&[bad.address])).await, writes, read);
    }
}

#[tokio::test]
async fn a_wrong_token_and_a_bad_wish_are_refused_in_the_servers_words() {
    let real = Real::start(&memory()).await;
    let stranger = HttpLeases::new(
        &format!("http://{}", real.address),
        Some("guess"),
        std::sync::Arc::new(tenure_clock::SystemClock),
        tenure_clock::Entropy::from_os(),
    );
    let refused = fate(stranger.unwrap().acquire(&request("x/leader")).await);
    assert_eq!(refused, "refused: the server does not accept the token");
    let leases = leases_at(&[real.address]);
    let refused = fate(leases.acquire(&request("scheduler/shard-00")).await);
    assert!(refused.starts_with("refused: scheduler/shard-00 belongs to the server itself"), "{refused}");
    let refused = fate(leases.acquire(&request("x//y")).await);
    assert!(refused.starts_with("refused: scope: the scope \"x//y\" has an empty part"), "{refused}");
    let refused = fate(leases.install_fence(&Scope::new("x"), request("x").term, Epoch(0)).await);
    assert!(refused.starts_with("refused: a Tenure server installs the fence of x itself"), "{refused}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_replaced_by_the_next() {
    let memory = memory();
    let silent = Bad::start(Manner::Silent).await;
    let away = Bad::start(Manner::Says(503, "{\"detail\": \"no database\"}")).await;
    let real = Real::start(&memory).await;
    for first in [nobody(), silent.address, away.address] {
        let leases = leases_at(&[first, real.address]);
        let request = request(&format!("x/{}", first.port()));
        let won = leases.acquire(&request).await.unwrap();
        let AcquireOutcome::Granted(record) = won else { panic!("{won:?}") };
        let claim = claim(&request, record.epoch.0);
        assert_eq!(leases.renew(std::slice::from_ref(&claim)).await.unwrap(), [RenewOutcome::Renewed]);
        assert_eq!(leases.fence(&request.scope).await.unwrap(), Some((record.epoch, record.term)));
        assert_eq!(leases.release(&claim).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(
        (silent.requests(), away.requests()),
        (1, 1),
        "the one that answers is asked first from then on"
    );
}

#[tokio::test]
async fn a_release_that_was_perhaps_done_before_is_not_told_as_not_applied() {
    let real = Real::start(&memory()).await;
    let silent = Bad::start(Manner::Silent).await;
    let claim = claim(&request("x/leader"), 1);
    let told = leases_at(&[silent.address, real.address]).release(&claim).await;
    assert!(fate(told).starts_with("ambiguous: an earlier try was not answered"));
    assert_eq!(leases_at(&[real.address]).release(&claim).await.unwrap(), ReleaseOutcome::NotApplied);
}

#[tokio::test]
async fn a_caller_that_gives_up_lets_no_further_server_be_asked() {
    let (silent, next) = (Bad::start(Manner::Silent).await, Bad::start(Manner::HangsUp).await);
    let leases = leases_at(&[silent.address, next.address]);
    let request = request("x/leader");
    {
        let mut asking = std::pin::pin!(leases.acquire(&request));
        let sent =
            wait_for("the request", Duration::from_secs(20), async || (silent.requests() == 1).then_some(()));
        tokio::select! {
            () = sent => {}
            early = asking.as_mut() => panic!("{early:?}"),
        }
    }
    // A third of the lease is what the call would have had; it ends by itself within that.
    tokio::time::sleep(request.duration / 3 + Duration::from_millis(200)).await;
    assert_eq!(next.requests(), 0);
}

#[tokio::test]
async fn the_loser_is_told_who_leads() {
    let real = Real::start(&memory()).await;
    let leases = leases_at(&[real.address]);
    let first = request("x/leader");
    leases.acquire(&first).await.unwrap();
    match leases.acquire(&request("x/leader")).await.unwrap() {
        AcquireOutcome::Held(record) => {
            assert!(record.is_held());
            assert_eq!((record.term, record.holder, record.epoch), (first.term, first.holder, Epoch(1)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    let new = |text| {
        let (clock, entropy) =
            (std::sync::Arc::new(tenure_clock::SystemClock), tenure_clock::Entropy::seeded(1));
        HttpLeases::new(text, None, clock, entropy).map(drop)
    };
    assert_eq!(new("http://a:1, http://b:2/"), Ok(()));
    assert_eq!(
        new("http://a:1,b:2").unwrap_err().to_string(),
        "\"b:2\" is not the address of a Tenure server: it begins neither with http:// nor with https://. Write it \
         like http://host:8080"
    );
}
