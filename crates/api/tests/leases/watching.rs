//! Server-sent events, over real sockets.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::ServeLimits;
use tenure_testkit::wait_for;

use crate::harness::{Mood, Office, Reader, claim, farewell};

async fn synced(reader: &mut Reader) -> Vec<String> {
    assert!(reader.status().await.contains("200"), "the watch was refused");
    let mut told = vec![];
    while told.last().is_none_or(|last: &String| !last.starts_with("synced")) {
        told.push(reader.told().await);
    }
    told
}

#[tokio::test]
async fn a_watcher_sees_what_there_is_and_then_every_change() {
    let office = Office::open();
    office.taken("a/leader", "h:1").await;
    office.taken("b/leader", "h:1").await;
    let listening = office.listen().await;
    let mut reader = listening.watch("").await;
    assert_eq!(synced(&mut reader).await, ["current a/leader h:1 e1", "current b/leader h:1 e1", "synced 2"]);

    let lease = office.taken("c/leader", "h:2").await;
    assert_eq!(reader.told().await, "acquired c/leader h:2 e1");
    office.ok("renew", json!({ "claims": [claim(&lease)] })).await;
    office.ok("release", farewell(&lease)).await;
    assert_eq!(reader.told().await, "released c/leader h:2 e1", "and nothing about the renewal");
    office.later(Duration::from_secs(15));
    assert_eq!(reader.told().await, "expired a/leader h:1 e1");
    assert_eq!(reader.told().await, "expired b/leader h:1 e1");
    office.taken("a/leader", "h:2").await;
    assert_eq!(reader.told().await, "acquired a/leader h:2 e2");
    office.leases.forget_leases();
    let removed = [reader.told().await, reader.told().await, reader.told().await];
    assert_eq!(removed, ["removed a/leader h:2 e2", "removed b/leader h:1 e1", "removed c/leader h:2 e1"]);
    listening.stop().await;
}

#[tokio::test]
async fn a_watcher_sees_only_what_it_asked_for() {
    let office = Office::open();
    for scope in ["a/one", "ab/one", "b/one"] {
        office.taken(scope, "h:1").await;
    }
    let listening = office.listen().await;
    let mut reader = listening.watch("a/").await;
    assert_eq!(synced(&mut reader).await, ["current a/one h:1 e1", "synced 1"]);
    office.taken("b/two", "h:1").await;
    office.taken("a/two", "h:1").await;
    assert_eq!(reader.told().await, "acquired a/two h:1 e1");
    listening.stop().await;
}

#[tokio::test]
async fn who_reconnects_gets_what_there_is() {
    let office = Office::open();
    let listening = office.listen().await;
    let mut first = listening.watch("").await;
    synced(&mut first).await;
    let lease = office.taken("a/leader", "h:1").await;
    drop(first);
    office.ok("release", farewell(&lease)).await;
    office.taken("a/leader", "h:2").await;
    let mut second = listening.watch("").await;
    assert_eq!(synced(&mut second).await, ["current a/leader h:2 e2", "synced 1"]);
    listening.stop().await;
}

#[tokio::test]
async fn many_watchers_are_told_the_same() {
    let office = Office::open();
    let listening = office.listen().await;
    let mut readers = vec![];
    for _ in 0..20 {
        let mut reader = listening.watch("").await;
        synced(&mut reader).await;
        readers.push(reader);
    }
    office.taken("a/leader", "h:1").await;
    for reader in &mut readers {
        assert_eq!(reader.told().await, "acquired a/leader h:1 e1");
    }
    listening.stop().await;
}

#[tokio::test]
async fn an_outage_of_the_store_is_told_once_and_then_what_was_missed() {
    let office = Office::open();
    let listening = office.listen().await;
    let mut reader = listening.watch("").await;
    synced(&mut reader).await;
    office.shaky.set(Mood::Unavailable);
    assert_eq!(reader.told().await, "unavailable");
    let looks = office.shaky.looks.load(Ordering::SeqCst);
    wait_for("two more looks in vain", Duration::from_secs(20), async || {
        (office.shaky.looks.load(Ordering::SeqCst) > looks + 1).then_some(())
    })
    .await;
    office.taken_quietly("a/leader", String::new()).await;
    office.shaky.set(Mood::Well);
    assert_eq!(reader.told().await, "acquired a/leader h:1 e1", "not that it is still away");
    listening.stop().await;
}

#[tokio::test]
async fn a_watch_ends_with_the_server() {
    let office = Office::open();
    let listening = office.listen().await;
    let mut reader = listening.watch("").await;
    synced(&mut reader).await;
    listening.stop().await;
    assert_eq!(reader.event().await, None);
}

#[tokio::test]
async fn beyond_so_many_watchers_the_next_is_refused_until_one_leaves() {
    let office = Office::open();
    let listening = office.listen().await;
    let mut readers = vec![];
    for _ in 0..256 {
        let mut reader = listening.watch("").await;
        synced(&mut reader).await;
        readers.push(reader);
    }
    let refused = office.call("GET", "/api/leases/watch", None).await;
    assert_eq!(refused.refusal(), "503 256 watch this server already; try again, or another one.");
    readers.pop();
    wait_for("a place", Duration::from_secs(20), async || {
        listening.watch("").await.status().await.contains("200").then_some(())
    })
    .await;
    listening.stop().await;
}

/// Big enough to fill the buffers of any socket: 16 MB.
async fn heavy(office: &Office) {
    for number in 0..4000 {
        office.taken_quietly(&format!("heavy/{number:04}"), "x".repeat(4000)).await;
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_latest_and_not_every_step() {
    const TURNS: u64 = 300;
    let office = Office::open();
    heavy(&office).await;
    let listening = office.listen().await;
    let mut reader = listening.watch("").await;
    assert!(reader.status().await.contains("200"));

    // The reader is stuck in the first listing while a lease changes hands again and again.
    for turn in 1..=TURNS {
        let lease = office.taken("zigzag", &format!("h:{turn}")).await;
        office.ok("release", farewell(&lease)).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let last = office.taken("zigzag", "the-last:1").await;

    let mut about_it = 0;
    let (name, told) = loop {
        let (name, data): (String, Value) = reader.event().await.expect("an event");
        about_it += u64::from(data["scope"] == "zigzag");
        if data["scope"] == "zigzag" && data["term"] == last["term"] {
            break (name, data);
        }
    };
    assert_eq!((name.as_str(), &told["holder"]), ("acquired", &json!("the-last:1")));
    assert!(about_it < TURNS, "{about_it} events: every step was kept for the slow reader");
    listening.stop().await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut_off() {
    let office = Office::open();
    heavy(&office).await;
    let limits =
        ServeLimits { connections: 1, reads_within: Duration::from_millis(300), ..ServeLimits::default() };
    let listening = office.listen_within(limits).await;
    let mut stuck = listening.watch("").await;
    assert!(stuck.status().await.contains("200"));
    // There is room for one connection: the second is served when the first is gone.
    let mut awake = listening.watch("none").await;
    assert_eq!(synced(&mut awake).await, ["synced 0"]);
    while let Some((name, _)) = stuck.event().await {
        assert_ne!(name, "synced", "it was served to the end");
    }
    listening.stop().await;
}
