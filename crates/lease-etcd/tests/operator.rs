//! Goal: an operator finds leases in etcd, and whatever an operator does there ends well.
//! Method: a real etcd, and `etcdctl` for the operator's hands.

mod common;

use std::time::Duration;

use common::{LONG, PATIENCE, SHORT, claim, etcd_leases, granted, heard, leases_at, renew, request};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Hint, LeaseError, LeaseStore, LossReason, ReleaseOutcome,
    RenewOutcome, Scope, Succession, Takeover,
};
use tenure_testkit::{Etcd, wait_for};
use tokio::task::JoinSet;

#[tokio::test]
async fn leaders_lie_where_an_operator_looks_for_them() {
    let etcd = Etcd::start();
    let leases = leases_at(&format!("{}/lcm/", etcd.url()));
    let scheduler = AcquireRequest { note: "«one»".into(), ..request("scheduler/leader", LONG) };
    let record = granted(&leases, &scheduler).await;
    granted(&leases, &request("controller/leader", LONG)).await;

    let keys = etcd.ctl(&["get", "--prefix", "/lcm/", "--keys-only"]);
    let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty() && !key.starts_with("/lcm/.")).collect();
    assert_eq!(keys, ["/lcm/controller/leader", "/lcm/scheduler/leader"]);
    let shown = etcd.ctl(&["get", "/lcm/scheduler/leader", "--print-value-only"]);
    for part in [
        format!(r#""epoch":{}"#, record.epoch.0),
        format!(r#""term":"{}""#, record.term),
        r#""name":"host:1""#.into(),
        r#""note":"«one»""#.into(),
        r#""duration_ms":600000"#.into(),
    ] {
        assert!(shown.contains(&part), "{part} is not in {shown}");
    }
}

#[tokio::test]
async fn a_crashed_holder_is_succeeded_when_its_etcd_lease_ends() {
    let url = Etcd::shared().url();
    let crashed = granted(&leases_at(&url), &request("a", SHORT)).await;
    let leases = leases_at(&url);
    let heir = request("a", LONG);
    let heir = wait_for("the lease to be free", PATIENCE, || async {
        match leases.acquire(&heir).await.expect("answered") {
            AcquireOutcome::Won(record) => Some(record),
            _ => None,
        }
    });
    let heir = heir.await;
    assert_eq!((heir.succession, heir.transitions), (Succession::Expired, 1));
    assert_eq!(heir.epoch, crashed.epoch, "the floor that its own epoch has to surpass");
}

#[tokio::test]
async fn a_key_deleted_by_hand_is_a_hint_and_a_loss() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    let record = granted(&leases, &request("a", LONG)).await;
    let mut hints = leases.watch();
    heard(&mut hints, Hint::Resync).await;
    etcd.ctl(&["del", "/tenure/a"]);
    heard(&mut hints, Hint::Changed(Scope::new("a"))).await;
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Lost(LossReason::Gone));
    assert_eq!(etcd_leases(&etcd.ctl(&["lease", "list"])), 0, "its etcd lease went with it");
    let heir = granted(&leases, &request("a", LONG)).await;
    assert!(heir.epoch > record.epoch);
}

#[tokio::test]
async fn an_etcd_lease_revoked_by_hand_is_lost_at_the_next_renewal() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    let kept = granted(&leases, &request("kept", LONG)).await;
    let before = etcd.ctl(&["lease", "list"]);
    let record = granted(&leases, &request("a", LONG)).await;
    let after = etcd.ctl(&["lease", "list"]);
    let new = after.lines().find(|line| !line.starts_with("found") && !before.contains(line));
    etcd.ctl(&["lease", "revoke", new.expect("a lease was granted")]);
    let outcomes = leases.renew(&[claim(&kept), claim(&record)]).await.expect("answered");
    assert_eq!(outcomes, [RenewOutcome::Renewed, RenewOutcome::Lost(LossReason::Expired)]);
    let shown = leases.find_lease(&record.scope).await.expect("answered").expect("it is remembered");
    assert!(!shown.is_held() && !shown.released, "{shown:?}");
}

/// Only a key that hangs on a living etcd lease says who holds it: without one it would say so for ever.
#[tokio::test]
async fn a_key_that_hangs_on_no_etcd_lease_is_not_held() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    let record = granted(&leases, &request("a", LONG)).await;
    let same = etcd.ctl(&["get", "/tenure/a", "--print-value-only"]);
    etcd.ctl(&["put", "/tenure/a", same.trim_end()]);
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Lost(LossReason::Expired));
    let shown = leases.find_lease(&record.scope).await.expect("answered").expect("it is remembered");
    assert!(!shown.is_held(), "{shown:?}");
    let heir = granted(&leases, &request("a", LONG)).await;
    assert!(heir.epoch > record.epoch);
}

/// What happened before the watch stood is covered by its first hint, which must not come too early to be heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_watcher_always_hears_that_the_watch_stands() {
    let url = Etcd::shared().url();
    for _ in 0..50 {
        heard(&mut leases_at(&url).watch(), Hint::Resync).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_etcd_lease_is_left_behind() {
    let etcd = Etcd::start();
    let leases = std::sync::Arc::new(leases_at(&etcd.url()));
    let running = || etcd_leases(&etcd.ctl(&["lease", "list"]));

    let mut racers = JoinSet::new();
    for _ in 0..32 {
        let (leases, request) = (leases.clone(), request("race", LONG));
        racers.spawn(async move { leases.acquire(&request).await.expect("answered") });
    }
    let won = racers.join_all().await.into_iter().filter_map(|outcome| match outcome {
        AcquireOutcome::Won(record) => Some(record),
        _ => None,
    });
    let won: Vec<_> = won.collect();
    assert_eq!((won.len(), running()), (1, 1), "of 32 racers one has a lease");

    let heir = AcquireRequest { takeover: Takeover::OfDead(won[0].term), ..request("race", LONG) };
    let heir = granted(&leases, &heir).await;
    assert_eq!(running(), 1, "the dead term's went with it");

    // The caller gives up at growing moments, and asks again.
    for step in 0..12 {
        let request = request(&format!("lost-{step}"), LONG);
        let patience = Duration::from_micros(100 << step);
        let _unknown = tokio::time::timeout(patience, leases.acquire(&request)).await;
        let record = granted(&leases, &request).await;
        assert_eq!(leases.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::Released);
    }
    assert_eq!(leases.release(&claim(&heir)).await.expect("answered"), ReleaseOutcome::Released);
    assert_eq!(running(), 0);
}

#[tokio::test]
async fn a_renewal_that_asks_for_another_duration_gets_it() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    let record = granted(&leases, &request("a", SHORT)).await;
    let longer = Claim { duration: LONG, ..claim(&record) };
    assert_eq!(leases.renew(&[longer]).await.expect("answered"), [RenewOutcome::Renewed]);
    let shown = leases.find_lease(&record.scope).await.expect("answered").expect("held");
    assert_eq!(shown.duration, LONG);
    assert!(shown.remaining > LONG / 2, "{shown:?}");
    assert_eq!(etcd_leases(&etcd.ctl(&["lease", "list"])), 1, "the short one is gone");
}

#[tokio::test]
async fn renewals_show_although_the_record_is_not_written_again() {
    let leases = leases_at(&Etcd::shared().url());
    let record = granted(&leases, &request("a", LONG)).await;
    let idle = granted(&leases, &request("b", LONG)).await;
    let before = leases.list_leases("").await.expect("answered");
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Renewed);
    let after = leases.list_leases("").await.expect("answered");
    assert!(after[0].resource_version > before[0].resource_version, "{after:?}");
    assert!(after[0].renewed_at > before[0].renewed_at, "{after:?}");
    assert_eq!(after[1].resource_version, before[1].resource_version, "{idle:?} is another session's");
    let found = leases.find_lease(&record.scope).await.expect("answered").expect("held");
    assert_eq!((found.resource_version, found.renewed_at), (after[0].resource_version, after[0].renewed_at));
}

#[tokio::test]
async fn a_renewal_in_between_saves_a_term_that_looks_stalled() {
    let leases = leases_at(&Etcd::shared().url());
    let record = granted(&leases, &request("a", LONG)).await;
    let seen = leases.find_lease(&record.scope).await.expect("answered").expect("held");
    assert_eq!(renew(&leases, &record).await, RenewOutcome::Renewed);
    let takeover = Takeover::OfStalled { term: seen.term, resource_version: seen.resource_version };
    let outcome = leases.acquire(&AcquireRequest { takeover, ..request("a", LONG) }).await.expect("answered");
    let AcquireOutcome::Held(now) = outcome else { panic!("taken from a living holder: {outcome:?}") };
    let takeover = Takeover::OfStalled { term: now.term, resource_version: now.resource_version };
    let outcome = leases.acquire(&AcquireRequest { takeover, ..request("a", LONG) }).await.expect("answered");
    assert!(matches!(outcome, AcquireOutcome::Won(_)), "at the version that it has now: {outcome:?}");
}

#[tokio::test]
async fn a_scope_claimed_twice_in_one_batch_is_answered_twice() {
    let leases = leases_at(&Etcd::shared().url());
    let request = request("a", LONG);
    let AcquireOutcome::Won(won) = leases.acquire(&request).await.expect("answered") else {
        panic!("not won")
    };
    let first = Claim { epoch: tenure_lease::Epoch(7), ..claim(&won) };
    let other = Claim { epoch: tenure_lease::Epoch(8), ..claim(&won) };
    let outcomes = leases.renew(&[first.clone(), first, other]).await.expect("answered");
    assert_eq!(outcomes[..2], [RenewOutcome::Renewed, RenewOutcome::Renewed]);
    assert!(matches!(outcomes[2], RenewOutcome::Lost(LossReason::Superseded { .. })), "{outcomes:?}");
}

#[tokio::test]
async fn somebody_elses_key_is_left_alone_and_named() {
    let etcd = Etcd::start();
    let leases = leases_at(&etcd.url());
    etcd.ctl(&["put", "/tenure/theirs", "10.0.0.1"]);
    let refused = leases.acquire(&request("theirs", LONG)).await.expect_err("not ours to take");
    assert!(matches!(refused, LeaseError::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("etcdctl del /tenure/theirs"), "{refused}");
    granted(&leases, &request("ours", LONG)).await;
    let listed = leases.list_leases("").await.expect("answered");
    let listed: Vec<&str> = listed.iter().map(|record| record.scope.as_str()).collect();
    assert_eq!(listed, ["ours"]);
}

#[tokio::test]
async fn scopes_that_would_meet_other_keys_are_refused() {
    let leases = leases_at(&Etcd::shared().url());
    for scope in [".terms/a", ".x", "a#1", ""] {
        let refused = leases.acquire(&request(scope, LONG)).await;
        assert!(matches!(&refused, Err(LeaseError::Refused(_))), "{scope:?}: {refused:?}");
    }
}

#[tokio::test]
async fn credentials_are_asked_for_checked_and_renewed() {
    let etcd = Etcd::start();
    let root = ["--user", "root:toor"];
    etcd.ctl(&["user", "add", "root:toor"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["user", "add", "tom:p@ss/word"]);
    etcd.ctl(&["user", "add", "guest:guest"]);
    etcd.ctl(&["role", "add", "leases"]);
    etcd.ctl(&["role", "grant-permission", "leases", "readwrite", "--prefix=true", "/tenure/"]);
    etcd.ctl(&["user", "grant-role", "tom", "leases"]);
    let open = leases_at(&format!("etcd://tom:p%40ss%2fword@{}", etcd.endpoint()));
    let record = granted(&open, &request("a", LONG)).await;
    etcd.ctl(&["auth", "enable"]);

    for (who, says) in
        [("", "asks for a user"), ("tom:hunter2@", "authentication failed"), ("guest:guest@", "readwrite")]
    {
        let refused =
            leases_at(&format!("etcd://{who}{}", etcd.endpoint())).acquire(&request("a", LONG)).await;
        let refused = refused.expect_err("nobody let in");
        assert!(matches!(refused, LeaseError::Refused(_)), "{who}: {refused:?}");
        assert!(refused.to_string().contains(says), "{who}: {refused}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"));
    }
    let tom = leases_at(&format!("etcd://tom:p%40ss%2fword@{}", etcd.endpoint()));
    assert_eq!(renew(&tom, &record).await, RenewOutcome::Renewed);
    assert_eq!(renew(&open, &record).await, RenewOutcome::Renewed, "it had come before anybody was asked");

    // A change of users makes every token stale.
    etcd.ctl(&[&root[..], &["user", "add", "another:one"]].concat());
    let mut hints = tom.watch();
    heard(&mut hints, Hint::Resync).await;
    assert_eq!(renew(&tom, &record).await, RenewOutcome::Renewed);
    assert_eq!(tom.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::Released);
    heard(&mut hints, Hint::Changed(record.scope)).await;
}
