//! Hints: over breaks, and no longer than somebody needs them.

use std::time::Duration;

use tenure_lease::{Hint, LeaseStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::broadcast::Receiver;

use crate::harness::{Real, leases_at, memory, nobody, request};

const PATIENCE: Duration = Duration::from_secs(30);

async fn next(hints: &mut Receiver<Hint>) -> Hint {
    tokio::time::timeout(PATIENCE, hints.recv()).await.expect("a hint in time").expect("somebody tells")
}

async fn wait_for_hint(hints: &mut Receiver<Hint>, wanted: &Hint) {
    while next(hints).await != *wanted {}
}

#[tokio::test]
async fn a_watch_begins_with_a_look_at_everything_and_then_names_what_changes() {
    let real = Real::start(&memory()).await;
    let leases = leases_at(&[real.address]);
    let mut hints = leases.watch();
    assert_eq!(next(&mut hints).await, Hint::Resync);
    let request = request("x/leader");
    leases.acquire(&request).await.unwrap();
    assert_eq!(next(&mut hints).await, Hint::Changed(request.scope.clone()));
    // And when it runs out by itself.
    assert_eq!(next(&mut hints).await, Hint::Changed(request.scope));
}

#[tokio::test]
async fn after_a_break_everything_is_looked_at_again() {
    let memory = memory();
    let real = Real::start(&memory).await;
    let address = real.address;
    let leases = leases_at(&[address]);
    let mut hints = leases.watch();
    wait_for_hint(&mut hints, &Hint::Resync).await;
    real.stop().await;
    let _real = Real::start_at(address, &memory).await;
    wait_for_hint(&mut hints, &Hint::Resync).await;
    let request = request("x/leader");
    leases.acquire(&request).await.unwrap();
    wait_for_hint(&mut hints, &Hint::Changed(request.scope)).await;
}

#[tokio::test]
async fn a_watch_moves_on_to_a_server_that_answers() {
    let real = Real::start(&memory()).await;
    let leases = leases_at(&[nobody(), real.address]);
    wait_for_hint(&mut leases.watch(), &Hint::Resync).await;
}

#[tokio::test]
async fn a_watch_ends_with_its_leases() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let leases = leases_at(&[listener.local_addr().unwrap()]);
    let _first = leases.watch();
    let _second = leases.watch();
    let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await.expect("a watch");
    let (mut connection, _) = accepted.unwrap();
    drop(leases);
    let mut request = vec![];
    let ended = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut request)).await;
    // However it ends: nobody is there any more.
    let _ = ended.expect("the thread lets go of its connection");
    let again = tokio::time::timeout(Duration::from_millis(500), listener.accept()).await;
    assert!(again.is_err(), "somebody still watches");
}
