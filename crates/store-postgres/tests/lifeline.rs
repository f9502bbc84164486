//! Goal: a crash is told within moments, a process that lives is not told dead, and where hints cannot work it is
//! said. Method: processes are played by stores of their own, and die by losing the server process that holds
//! their lock.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::wire::{Cut, Wire};
use common::{SOON, client, leases, session};
use tenure_lease::{Hint, LeaseStore, Lifeline, Session};
use tenure_store_postgres::PostgresLeases;
use tenure_testkit::{PgBouncer, Postgres, Settings, TestDatabase, wait_for};
use tokio::sync::broadcast::Receiver;
use tokio_postgres::Client;

/// Longer than the first few slices of a wait.
const A_WHILE: Duration = Duration::from_millis(1_500);

struct Process {
    session: Session,
    store: Arc<PostgresLeases>,
    line: Box<dyn Lifeline>,
    hints: Receiver<Hint>,
}

impl Process {
    async fn start(url: &str) -> Self {
        let store = leases(url).await;
        let mut hints = store.watch();
        // Listening, so that whatever is said from now on is heard.
        assert_eq!(next(&mut hints).await, Hint::Resync);
        let session = session();
        let line = attached(&store, session).await;
        line.working().expect("a direct connection");
        Self { session, store, line, hints }
    }

    /// The sessions that were told dead, once there are that many different ones.
    async fn hears_of(&mut self, count: usize) -> BTreeSet<Session> {
        let mut dead = BTreeSet::new();
        while dead.len() < count {
            if let Hint::Crashed(session) = next(&mut self.hints).await {
                dead.insert(session);
            }
        }
        dead
    }

    async fn hears_nothing(&mut self) {
        let heard = tokio::time::timeout(A_WHILE, self.hints.recv()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

async fn attached(store: &PostgresLeases, session: Session) -> Box<dyn Lifeline> {
    store.attach(session).await.expect("attached").expect("Postgres has lifelines")
}

async fn next(hints: &mut Receiver<Hint>) -> Hint {
    tokio::time::timeout(SOON, hints.recv()).await.expect("a hint").expect("the store goes on")
}

/// As the store numbers the lock of a session.
fn key(session: Session) -> i64 {
    let (high, low) = session.0.as_u64_pair();
    (high ^ low) as i64
}

/// The server process that holds the lock of this session.
async fn holder(observer: &Client, session: Session) -> Option<i32> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
        AND (classid::bigint << 32) | objid::bigint = $1";
    observer.query_opt(sql, &[&key(session)]).await.expect("answered").map(|row| row.get(0))
}

/// Who waits for the lock of this session, and since when.
async fn waits_for(observer: &Client, session: Session) -> Option<(i32, jiff::Timestamp)> {
    let sql = "SELECT l.pid, a.xact_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND NOT l.granted AND a.xact_start IS NOT NULL
            AND (l.classid::bigint << 32) | l.objid::bigint = $1
        ORDER BY l.pid LIMIT 1";
    let waiting = observer.query_opt(sql, &[&key(session)]).await.expect("answered");
    waiting.map(|row| (row.get(0), row.get(1)))
}

/// Held and waited for, in this database.
async fn locks(observer: &Client) -> (i64, i64) {
    let sql = "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted) FROM pg_locks
        WHERE locktype = 'advisory'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let row = observer.query_one(sql, &[]).await.expect("answered");
    (row.get(0), row.get(1))
}

async fn watched(observer: &Client, session: Session) -> (i32, jiff::Timestamp) {
    wait_for("somebody to wait for a session's lock", SOON, || waits_for(observer, session)).await
}

async fn crash(observer: &Client, session: Session) {
    let pid = holder(observer, session).await.expect("it is attached");
    observer.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("ended");
}

async fn database() -> (TestDatabase, Client) {
    let database = Postgres::shared().database().await;
    let observer = client(&database.url).await;
    (database, observer)
}

#[tokio::test]
async fn a_crash_is_told_to_everybody_and_cuts_the_lifeline_of_who_lived_on() {
    let (database, observer) = database().await;
    let (mut one, mut other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    let bystander = leases(&database.url).await;
    let mut listening = bystander.watch();
    assert_eq!(next(&mut listening).await, Hint::Resync);
    one.line.watch_peers(&[one.session, other.session]);
    watched(&observer, other.session).await;

    crash(&observer, other.session).await;
    assert_eq!(one.hears_of(1).await, [other.session].into());
    assert_eq!(other.hears_of(1).await, [other.session].into());
    assert_eq!(next(&mut listening).await, Hint::Crashed(other.session), "also who watches nobody");
    tokio::time::timeout(SOON, other.line.cut().cancelled()).await.expect("it lives, and knows");
    let why = other.line.working().expect_err("it stays cut");
    assert!(why.contains("connection"), "{why}");
    assert!(!one.line.cut().is_cancelled());
    one.line.working().expect("nothing happened to this one");
}

#[tokio::test]
async fn who_is_not_attached_is_not_told_dead() {
    let (database, observer) = database().await;
    let mut one = Process::start(&database.url).await;
    let late = session();
    one.line.watch_peers(&[one.session, late, session()]);
    one.hears_nothing().await;
    // Attached later, it is watched without being named again.
    let store = leases(&database.url).await;
    let line = attached(&store, late).await;
    watched(&observer, late).await;
    drop(line);
    assert_eq!(one.hears_of(1).await, [late].into());
}

#[tokio::test]
async fn who_is_attached_again_is_watched_again() {
    let (database, observer) = database().await;
    let (mut one, mut other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    one.line.watch_peers(&[other.session]);
    for _ in 0..2 {
        watched(&observer, other.session).await;
        crash(&observer, other.session).await;
        assert_eq!(one.hears_of(1).await, [other.session].into());
        tokio::time::timeout(SOON, other.line.cut().cancelled()).await.expect("cut");
        // What was said of the first life is not taken for the second.
        while tokio::time::timeout(Duration::from_millis(200), one.hints.recv()).await.is_ok() {}
        other.line = attached(&other.store, other.session).await;
    }
}

#[tokio::test]
async fn two_neighbours_in_a_ring_of_four_are_both_told() {
    let (database, observer) = database().await;
    let mut ring = vec![];
    for _ in 0..4 {
        ring.push(Process::start(&database.url).await);
    }
    ring.sort_by_key(|process| process.session);
    let sessions: Vec<Session> = ring.iter().map(|process| process.session).collect();
    ring.iter().for_each(|process| process.line.watch_peers(&sessions));
    for session in &sessions {
        watched(&observer, *session).await;
    }
    wait_for("each to be waited for by one", SOON, || async {
        (locks(&observer).await == (4, 4)).then_some(())
    })
    .await;
    let dead: BTreeSet<Session> = [sessions[1], sessions[2]].into();
    for session in &dead {
        crash(&observer, *session).await;
    }
    for place in [0, 3] {
        assert_eq!(ring[place].hears_of(2).await, dead);
        assert!(!ring[place].line.cut().is_cancelled());
    }
    // The ring has closed around them.
    watched(&observer, sessions[3]).await;
    watched(&observer, sessions[0]).await;
    crash(&observer, sessions[3]).await;
    let told = async { while next(&mut ring[0].hints).await != Hint::Crashed(sessions[3]) {} };
    told.await;
}

#[tokio::test]
async fn who_waits_for_somebody_else_turns_to_a_newcomer() {
    let (database, observer) = database().await;
    let (mut one, other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    one.line.watch_peers(&[other.session]);
    watched(&observer, other.session).await;
    let newcomer = Process::start(&database.url).await;
    one.line.watch_peers(&[newcomer.session]);
    watched(&observer, newcomer.session).await;
    crash(&observer, newcomer.session).await;
    assert_eq!(one.hears_of(1).await, [newcomer.session].into());
}

#[tokio::test]
async fn a_long_wait_does_not_keep_vacuum_from_cleaning() {
    let (database, observer) = database().await;
    let (mut one, other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    one.line.watch_peers(&[other.session]);
    let (first_pid, first_snapshot) = watched(&observer, other.session).await;
    // The same connection waits again, with a younger snapshot; and again.
    let mut last = first_snapshot;
    for _ in 0..4 {
        let (pid, since) = wait_for("the next slice of the wait", SOON, || async {
            waits_for(&observer, other.session).await.filter(|(_, since)| *since > last)
        })
        .await;
        assert_eq!(pid, first_pid);
        last = since;
    }
    crash(&observer, other.session).await;
    assert_eq!(one.hears_of(1).await, [other.session].into());
}

#[tokio::test]
async fn a_watcher_whose_connection_ends_goes_on_watching() {
    let (database, observer) = database().await;
    let (mut one, other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    one.line.watch_peers(&[other.session]);
    let (pid, _) = watched(&observer, other.session).await;
    observer.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("ended");
    wait_for("another connection", SOON, || async {
        waits_for(&observer, other.session).await.filter(|(waiting, _)| *waiting != pid)
    })
    .await;
    assert!(!one.line.cut().is_cancelled(), "losing the watcher endangers nobody");
    crash(&observer, other.session).await;
    assert_eq!(one.hears_of(1).await, [other.session].into());
}

#[tokio::test]
async fn a_restart_of_the_server_is_nobodys_death() {
    let server = Postgres::own(Settings::default());
    let mut processes = vec![Process::start(&server.url()).await, Process::start(&server.url()).await];
    let sessions: Vec<Session> = processes.iter().map(|process| process.session).collect();
    processes.iter().for_each(|process| process.line.watch_peers(&sessions));
    let observer = client(&server.url()).await;
    watched(&observer, sessions[0]).await;
    watched(&observer, sessions[1]).await;
    server.restart_immediately();
    for process in &processes {
        tokio::time::timeout(SOON, process.line.cut().cancelled()).await.expect("cut");
    }
    // The watchers are back long before anybody is attached again.
    let observer = client(&server.url()).await;
    let watching =
        "SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE '%pg_locks%' AND pid <> pg_backend_pid()";
    wait_for("both watchers", SOON, || async {
        observer.query_one(watching, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    for process in &mut processes {
        let again = async { process.store.attach(process.session).await.ok().flatten() };
        let line = tokio::time::timeout(SOON, again).await.expect("in time").expect("attached again");
        line.watch_peers(&sessions);
        process.line = line;
    }
    watched(&observer, sessions[0]).await;
    watched(&observer, sessions[1]).await;
    for process in &mut processes {
        while let Ok(hint) = process.hints.try_recv() {
            assert!(!matches!(hint, Hint::Crashed(_)), "{hint:?}");
        }
    }
}

#[tokio::test]
async fn dropping_a_lifeline_closes_both_connections() {
    let (database, observer) = database().await;
    let (one, other) = (Process::start(&database.url).await, Process::start(&database.url).await);
    one.line.watch_peers(&[other.session]);
    let (waiting, _) = watched(&observer, other.session).await;
    let holding = holder(&observer, one.session).await.expect("attached");
    drop(one.line);
    let sql = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY($1)";
    wait_for("both to end", SOON, || async {
        observer.query(sql, &[&[waiting, holding].as_slice()]).await.unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lifeline_whose_wire_falls_silent_is_cut() {
    let (database, _observer) = database().await;
    let wire = Wire::to(&database.url, Cut::Never).await;
    let process = Process::start(&wire.url).await;
    wire.fall_silent(true);
    tokio::time::timeout(SOON, process.line.cut().cancelled()).await.expect("noticed by asking");
    assert!(process.line.working().is_err());
}

#[tokio::test]
async fn an_attach_over_a_silent_wire_fails_in_bounded_time() {
    let (database, _observer) = database().await;
    let wire = Wire::to(&database.url, Cut::Never).await;
    let store = leases(&wire.url).await;
    wire.fall_silent(true);
    let refused = tokio::time::timeout(SOON, store.attach(session())).await.expect("in bounded time");
    assert!(matches!(refused, Err(tenure_lease::LeaseError::Unavailable(_))), "{refused:?}");
}

/// In every size: one session for all, so that nobody could have one of his own, and several.
#[tokio::test]
async fn a_pooler_that_shares_sessions_is_found_out_and_named() {
    for pool_size in [1, 2, 8] {
        let (database, observer) = database().await;
        let bouncer = PgBouncer::in_front_of(&database.url, "transaction", pool_size);
        let store = leases(&bouncer.url).await;
        let session = session();
        let line = tokio::time::timeout(SOON, attached(&store, session)).await.expect("in bounded time");
        let why = line.working().expect_err("no session to hold a lock in");
        assert!(why.contains("pooler") && why.contains("directly"), "{pool_size}: {why}");
        line.watch_peers(&[common::session()]);
        assert!(!line.cut().is_cancelled(), "nobody waits for it");
        assert_eq!(holder(&observer, session).await, None, "no lock is left in a shared session");
        assert_eq!(locks(&observer).await, (0, 0));
    }
}

#[tokio::test]
async fn a_pooler_that_gives_everyone_a_session_is_as_good_as_none() {
    let (database, observer) = database().await;
    let bouncer = PgBouncer::in_front_of(&database.url, "session", 20);
    let (mut one, other) = (Process::start(&bouncer.url).await, Process::start(&bouncer.url).await);
    one.line.watch_peers(&[other.session]);
    watched(&observer, other.session).await;
    drop(other.line);
    assert_eq!(one.hears_of(1).await, [other.session].into());
}
