//! Goal: a server that is told to end, or that loses its shards, does so in order and in bounded time.
//! Method: real processes and signals, a database that is there, away, or silent.

mod common;
#[path = "elect/wire.rs"]
mod wire;

use std::time::Duration;

use common::cluster::{Cluster, PATIENCE, Replica, TOKEN, wait_split};
use common::{Api, wait_until};
use rustix::process::Signal;
use tenure_testkit::{Postgres, Settings};
use wire::Wire;

#[test]
fn a_stopping_replica_gives_its_shards_back_before_it_ends() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "4"]);
    let mut b = cluster.server("b", &[]);
    wait_split(&[(&a, 2), (&b, 2)]);
    let epochs = |replica: &Replica<'_>| {
        let leases = cluster.json(replica, &["lease", "list", "scheduler"]);
        let successions = leases.as_array().unwrap().iter().map(|lease| lease["succession"].to_string());
        successions.collect::<Vec<_>>()
    };
    b.signal(Signal::TERM);
    wait_split(&[(&a, 4)]);
    // Given back, and not run out or taken from a dead one.
    assert!(
        epochs(&a).iter().all(|how| how.contains("released") || how.contains("first")),
        "{:?}",
        epochs(&a)
    );
    assert_eq!(b.wait_end(), Some(0), "{}", b.log());
    assert!(b.log().contains("Tenure has stopped."), "{}", b.log());
}

#[test]
fn a_replica_that_waits_for_its_database_says_so_and_ends_when_it_is_told_to() {
    let port = tenure_testkit::free_port();
    let cluster = Cluster::on(&format!("postgres://nobody@127.0.0.1:{port}/none"));
    let listens_on = tenure_testkit::free_port();
    let mut command = cluster.server_command("a", &[]);
    command.env("TENURE_BOOTSTRAP_TOKEN", TOKEN).args(["--listen", &format!("127.0.0.1:{listens_on}")]);
    let mut a = cluster.spawn("a", command);
    let waits =
        wait_until("it to wait", PATIENCE, || a.log().contains("waiting for the database").then_some(()));
    assert!(waits.is_some(), "{}", a.log());
    let api = Api::at(&format!("http://127.0.0.1:{listens_on}"), TOKEN);
    assert_eq!(api.get_text("/health/live"), Some((200, "ok".into())));
    let (status, answer) = api.get("/health/ready").unwrap();
    assert!(
        status == 503 && answer["detail"].as_str().unwrap().contains("waiting for the database"),
        "{answer}"
    );
    a.signal(Signal::TERM);
    assert_eq!(a.wait_end(), Some(0), "{}", a.log());
}

#[test]
fn a_replica_that_loses_its_shards_serves_on_or_exits_as_it_was_told() {
    let cluster = Cluster::new();
    let short = ["--shards", "2", "--lease-duration", "1s"];
    let mut a = cluster.server("a", &[&short[..], &["--on-loss", "exit"]].concat());
    let mut b = cluster.server("b", &short);
    wait_split(&[(&a, 1), (&b, 1)]);
    freeze(&a);
    assert_eq!(a.wait_end(), Some(73), "{}", a.log());
    wait_split(&[(&b, 2)]);
    freeze(&b);
    b.wait_ready();
    wait_split(&[(&b, 2)]);
    assert!(b.log().contains("no longer leading"), "{}", b.log());
}

/// For three times as long as its leases last.
fn freeze(replica: &Replica<'_>) {
    replica.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    replica.signal(Signal::CONT);
}

/// A server behind a wire to its database; the lease is short, so that waiting for it is.
fn behind_a_wire(test: impl FnOnce(&Wire, Replica<'_>)) {
    let postgres = Postgres::own(Settings::default());
    let (_, rest) =
        postgres.url().split_once("@127.0.0.1:").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let port: u16 = rest.split('/').next().unwrap().parse().unwrap();
    let wire = Wire::to(port);
    let through = postgres.url().replace(&format!(":{port}/"), &format!(":{}/", wire.port));
    let cluster = Cluster::on(&through);
    let server = cluster.server("a", &["--shards", "2", "--lease-duration", "1s"]);
    wait_split(&[(&server, 2)]);
    test(&wire, server);
}

#[test]
fn a_silent_database_does_not_keep_a_server_that_is_told_to_end() {
    behind_a_wire(|wire, mut server| {
        wire.fall_silent();
        server.signal(Signal::TERM);
        assert_eq!(server.wait_end(), Some(0), "{}", server.log());
    });
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    behind_a_wire(|wire, mut server| {
        wire.fall_silent();
        server.signal(Signal::TERM);
        let stopping = wait_until("it to stop", PATIENCE, || server.log().contains("stopping").then_some(()));
        assert!(stopping.is_some(), "{}", server.log());
        server.signal(Signal::TERM);
        assert_eq!(server.wait_end(), Some(130), "{}", server.log());
        assert!(server.log().contains("stopped at once"), "{}", server.log());
    });
}
