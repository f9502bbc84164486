//! Goal: whatever happens to a connection, a lease has one holder and one epoch, and no verb hangs.
//! Method: a wire that breaks before or after the server has obeyed, or says nothing any more; server processes
//! that are ended in the middle of a call.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::wire::{Cut, Wire};
use common::{SOON, claim, client, granted, leases, parked, request, term};
use futures::future::BoxFuture;
use tenure_lease::{
    AcquireOutcome, Epoch, FenceStore, LeaseError, LeaseRecord, LeaseStore, ReleaseOutcome, RenewOutcome,
    Scope, Succession, Takeover,
};
use tenure_store_postgres::PostgresLeases;
use tenure_testkit::{Postgres, TestDatabase, wait_for};
use tokio_postgres::Client;

/// What the wire listens for: every verb names the scope.
const CUE: &[u8] = b"tests/wire";
const CUTS: [Cut; 2] = [Cut::Before(CUE), Cut::After(CUE)];

fn scope() -> Scope {
    Scope::new("tests/wire")
}

struct Office {
    wire: Wire,
    leases: Arc<PostgresLeases>,
    database: TestDatabase,
}

impl Office {
    async fn over(cut: Cut) -> Self {
        let database = Postgres::shared().database().await;
        let wire = Wire::to(&database.url, cut).await;
        let leases = leases(&wire.url).await;
        Self { wire, leases, database }
    }

    async fn assert_one_term(&self, record: &LeaseRecord) {
        let history = self.leases.lease_history(&scope(), 10).await.expect("answered");
        assert_eq!(history.len(), 1, "{history:?}");
        assert_eq!((history[0].term, history[0].epoch), (record.term, record.epoch));
        assert_eq!(self.leases.fence(&scope()).await.unwrap(), Some((record.epoch, record.term)));
    }
}

fn assert_ambiguous<T: std::fmt::Debug>(outcome: Result<T, LeaseError>) {
    assert!(matches!(outcome, Err(LeaseError::Ambiguous(_))), "{outcome:?}");
}

#[tokio::test]
async fn an_acquire_whose_answer_is_lost_gives_one_term_and_one_epoch_when_repeated() {
    for cut in CUTS {
        let office = Office::over(cut).await;
        let request = request(&scope(), Takeover::IfFree);
        office.wire.arm();
        assert_ambiguous(office.leases.acquire(&request).await);
        let found = office.leases.find_lease(&scope()).await.unwrap();
        assert_eq!(found.is_some(), matches!(cut, Cut::After(_)), "{cut:?}");
        let record = granted(&*office.leases, &request).await;
        assert_eq!((record.epoch, record.term, record.transitions), (Epoch(1), request.term, 0), "{cut:?}");
        office.assert_one_term(&record).await;
    }
}

#[tokio::test]
async fn a_takeover_whose_answer_is_lost_moves_the_epoch_by_one() {
    for cut in CUTS {
        let office = Office::over(cut).await;
        let dead = granted(&*office.leases, &request(&scope(), Takeover::IfFree)).await;
        let heir = request(&scope(), Takeover::OfDead(dead.term));
        office.wire.arm();
        assert_ambiguous(office.leases.acquire(&heir).await);
        let record = granted(&*office.leases, &heir).await;
        assert_eq!((record.epoch, record.transitions), (Epoch(2), 1), "{cut:?}");
        assert_eq!(record.succession, Succession::Crashed);
    }
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_is_repeated_under_the_same_epoch() {
    for cut in CUTS {
        let office = Office::over(cut).await;
        let record = granted(&*office.leases, &request(&scope(), Takeover::IfFree)).await;
        office.wire.arm();
        assert_ambiguous(office.leases.renew(&[claim(&record)]).await);
        assert_eq!(office.leases.renew(&[claim(&record)]).await.unwrap(), [RenewOutcome::Renewed], "{cut:?}");
        office.assert_one_term(&record).await;
    }
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_repeated_without_harm() {
    for cut in CUTS {
        let office = Office::over(cut).await;
        let record = granted(&*office.leases, &request(&scope(), Takeover::IfFree)).await;
        office.wire.arm();
        assert_ambiguous(office.leases.release(&claim(&record)).await);
        let expected = match cut {
            Cut::After(_) => ReleaseOutcome::NotApplied,
            _ => ReleaseOutcome::Released,
        };
        assert_eq!(office.leases.release(&claim(&record)).await.unwrap(), expected, "{cut:?}");
        let history = office.leases.lease_history(&scope(), 10).await.unwrap();
        assert_eq!(history[0].end, Some(Succession::Released), "{cut:?}");
        office.assert_one_term(&record).await;
        let next = granted(&*office.leases, &request(&scope(), Takeover::IfFree)).await;
        assert_eq!((next.epoch, next.succession), (Epoch(2), Succession::Released), "{cut:?}");
    }
}

#[tokio::test]
async fn a_fence_whose_answer_is_lost_is_installed_once() {
    for cut in CUTS {
        let office = Office::over(cut).await;
        let term = term();
        office.wire.arm();
        assert_ambiguous(office.leases.install_fence(&scope(), term, Epoch(6)).await);
        assert_eq!(office.leases.install_fence(&scope(), term, Epoch(6)).await.unwrap(), Epoch(7), "{cut:?}");
    }
}

#[tokio::test]
async fn a_verb_costs_one_round_trip_and_a_loss_one_more() {
    let office = Office::over(Cut::Never).await;
    let (wire, leases) = (&office.wire, &office.leases);
    let mut hints = leases.watch();
    // The listener has said all it says for a while.
    tokio::time::timeout(SOON, hints.recv()).await.expect("it listens").unwrap();
    let one_more = async |what: &str, cost: usize, verb: BoxFuture<'_, bool>| {
        let before = wire.round_trips();
        assert!(verb.await, "{what}");
        assert_eq!(wire.round_trips() - before, cost, "{what}");
    };
    let first = request(&scope(), Takeover::IfFree);
    one_more("acquire", 1, Box::pin(async { leases.acquire(&first).await.is_ok() })).await;
    let held = leases.find_lease(&scope()).await.unwrap().expect("held");
    let heir = request(&scope(), Takeover::OfDead(held.term));
    one_more("a takeover", 1, Box::pin(async { leases.acquire(&heir).await.is_ok() })).await;
    one_more("a refusal", 1, Box::pin(async { leases.acquire(&first).await.is_ok() })).await;
    let record = leases.find_lease(&scope()).await.unwrap().expect("held");
    let (ours, lost) = (claim(&record), claim(&held));
    let both = [ours.clone(), lost];
    one_more("renew", 1, Box::pin(async { leases.renew(&both[..1]).await.is_ok() })).await;
    leases.renew(&both).await.expect("prepared"); // the second look is rare, and not prepared before
    one_more("a loss", 2, Box::pin(async { leases.renew(&both).await.is_ok() })).await;
    one_more("release", 1, Box::pin(async { leases.release(&ours).await.is_ok() })).await;
    let (scope, term) = (scope(), term());
    leases.install_fence(&scope, term, Epoch(0)).await.expect("prepared");
    let install = leases.install_fence(&scope, term, Epoch(0));
    one_more("install_fence", 1, Box::pin(async { install.await.is_ok() })).await;
    one_more("find", 1, Box::pin(async { leases.find_lease(&scope).await.is_ok() })).await;
}

async fn end_sessions(observer: &Client, which: &str) -> usize {
    let sql = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND {which}"
    );
    observer.query(&sql, &[]).await.expect("answered").len()
}

#[tokio::test]
async fn a_takeover_that_is_ended_while_it_waits_for_the_fence_leaves_nothing_behind() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let dead = granted(&*ours, &request(&scope(), Takeover::IfFree)).await;
    let mut writer = client(&database.url).await;
    let writing = writer.transaction().await.unwrap();
    writing.execute("SELECT 1 FROM fences FOR SHARE", &[]).await.unwrap();
    let heir = request(&scope(), Takeover::OfDead(dead.term));
    let taking = tokio::spawn({
        let (ours, heir) = (Arc::clone(&ours), heir.clone());
        async move { ours.acquire(&heir).await }
    });
    let observer = client(&database.url).await;
    parked(&observer, "WITH seen").await;
    assert_eq!(end_sessions(&observer, "wait_event_type = 'Lock'").await, 1);
    assert_ambiguous(taking.await.unwrap());
    let found = ours.find_lease(&scope()).await.unwrap().expect("a row");
    assert_eq!((found.term, found.epoch), (dead.term, dead.epoch));
    writing.commit().await.unwrap();
    assert_eq!(granted(&*ours, &heir).await.epoch, Epoch(2));
}

#[tokio::test]
async fn a_fence_that_stays_locked_is_refused_in_bounded_time_and_changes_nothing() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let alive = granted(&*ours, &request(&scope(), Takeover::IfFree)).await;
    let mut writer = client(&database.url).await;
    let writing = writer.transaction().await.unwrap();
    writing.execute("SELECT 1 FROM fences FOR SHARE", &[]).await.unwrap();
    let heir = request(&scope(), Takeover::OfDead(alive.term));
    let refused = tokio::time::timeout(SOON, ours.acquire(&heir)).await.expect("in bounded time");
    assert!(matches!(refused, Err(LeaseError::Unavailable(_))), "{refused:?}");
    writing.commit().await.unwrap();
    assert_eq!(ours.renew(&[claim(&alive)]).await.unwrap(), [RenewOutcome::Renewed]);
}

#[tokio::test]
async fn leases_outlive_the_end_of_every_session() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let record = granted(&*ours, &request(&scope(), Takeover::IfFree)).await;
    let mut hints = ours.watch();
    let observer = client(&database.url).await;
    for _ in 0..3 {
        assert!(end_sessions(&observer, "true").await >= 2);
        wait_for("a renewal", SOON, || async {
            let renewed = ours.renew(&[claim(&record)]).await.ok()?;
            assert_eq!(renewed, [RenewOutcome::Renewed]);
            Some(())
        })
        .await;
        let again = wait_for("an answer", SOON, || async {
            ours.acquire(&request(&scope(), Takeover::IfFree)).await.ok()
        });
        assert!(matches!(again.await, AcquireOutcome::Held(held) if held.epoch == record.epoch));
        let resync =
            async { while hints.recv().await.expect("the store goes on") != tenure_lease::Hint::Resync {} };
        tokio::time::timeout(SOON, resync).await.expect("it listens again, and says so");
    }
}

#[tokio::test]
async fn no_verb_hangs_when_the_wire_falls_silent() {
    /// Borrowing, connecting, preparing and asking are bounded by five seconds each.
    const BOUND: Duration = Duration::from_secs(16);
    let office = Office::over(Cut::Never).await;
    let record = granted(&*office.leases, &request(&scope(), Takeover::IfFree)).await;
    let (leases, claim) = (&office.leases, claim(&record));
    // Twice: on connections that exist, then on new ones that never get through their handshake.
    for round in 0..2 {
        office.wire.fall_silent(true);
        let heir = request(&scope(), Takeover::OfDead(record.term));
        let (scope, term) = (scope(), term());
        let asked = async {
            tokio::join!(
                async { leases.acquire(&heir).await.is_err() },
                async { leases.renew(std::slice::from_ref(&claim)).await.is_err() },
                async { leases.release(&claim).await.is_err() },
                async { leases.find_lease(&scope).await.is_err() },
                async { leases.list_leases("").await.is_err() },
                async { leases.install_fence(&scope, term, Epoch(0)).await.is_err() },
            )
        };
        let failed = tokio::time::timeout(BOUND, asked).await.expect("in bounded time");
        assert_eq!(failed, (true, true, true, true, true, true), "round {round}");
    }
    office.wire.fall_silent(false);
    let renewed = wait_for("the wire to work again", SOON, || async {
        leases.renew(std::slice::from_ref(&claim)).await.ok()
    });
    assert_eq!(renewed.await, [RenewOutcome::Renewed]);
    drop(office.database);
}

#[tokio::test]
async fn a_lease_that_is_being_taken_over_does_not_hold_up_the_renewal_of_the_others() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let mut claims = vec![];
    for name in ["tests/a", "tests/b", "tests/c"] {
        claims.push(claim(&granted(&*ours, &request(&Scope::new(name), Takeover::IfFree)).await));
    }
    let mut other = client(&database.url).await;
    let lock = other.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM leases WHERE scope = 'tests/b' FOR UPDATE", &[]).await.unwrap();
    let renewing = tokio::spawn({
        let (ours, claims) = (Arc::clone(&ours), claims.clone());
        async move { ours.renew(&claims).await.expect("answered") }
    });
    for name in ["tests/a", "tests/c"] {
        wait_for(name, SOON, || async {
            let record = ours.find_lease(&Scope::new(name)).await.unwrap().expect("a row");
            (record.renewed_at > record.acquired_at).then_some(())
        })
        .await;
    }
    assert!(!renewing.is_finished(), "the third waits for its row");
    lock.commit().await.unwrap();
    assert_eq!(renewing.await.unwrap(), [const { RenewOutcome::Renewed }; 3]);
}

#[tokio::test]
async fn renewals_do_not_queue_behind_takeovers_that_wait() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let mine = granted(&*ours, &request(&Scope::new("mine"), Takeover::IfFree)).await;
    let mut dead = vec![];
    for number in 0..4 {
        let scope = Scope::new(format!("theirs/{number}"));
        dead.push(granted(&*ours, &request(&scope, Takeover::IfFree)).await);
    }
    let mut writer = client(&database.url).await;
    let writing = writer.transaction().await.unwrap();
    writing.execute("SELECT 1 FROM fences FOR SHARE", &[]).await.unwrap();
    let taking: Vec<_> = dead
        .iter()
        .map(|dead| request(&dead.scope, Takeover::OfDead(dead.term)))
        .map(|heir| {
            tokio::spawn({
                let ours = Arc::clone(&ours);
                async move { ours.acquire(&heir).await }
            })
        })
        .collect();
    parked(&client(&database.url).await, "WITH seen").await;
    let renewed = ours.renew(&[claim(&mine)]).await.expect("answered");
    assert_eq!(renewed, [RenewOutcome::Renewed]);
    assert!(taking.iter().all(|taking| !taking.is_finished()), "they still wait");
    writing.commit().await.unwrap();
    for taking in taking {
        assert!(matches!(taking.await.unwrap(), Ok(AcquireOutcome::Granted(_))));
    }
}

#[tokio::test]
async fn a_row_that_stays_locked_costs_nobody_else_the_renewal() {
    let database = Postgres::shared().database().await;
    let ours = leases(&database.url).await;
    let busy = granted(&*ours, &request(&Scope::new("tests/busy"), Takeover::IfFree)).await;
    let free = granted(&*ours, &request(&Scope::new("tests/free"), Takeover::IfFree)).await;
    let mut somebody = client(&database.url).await;
    let locking = somebody.transaction().await.unwrap();
    locking.execute("SELECT 1 FROM leases WHERE scope = 'tests/busy' FOR UPDATE", &[]).await.unwrap();
    let claims = [claim(&busy), claim(&free)];
    let renewed = tokio::time::timeout(SOON, ours.renew(&claims)).await.expect("in bounded time").unwrap();
    assert_eq!(renewed, [RenewOutcome::Unanswered, RenewOutcome::Renewed]);
    locking.commit().await.unwrap();
    assert_eq!(ours.renew(&claims).await.unwrap(), [RenewOutcome::Renewed, RenewOutcome::Renewed]);
}
