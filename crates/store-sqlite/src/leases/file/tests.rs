//! Goal: several handles on one file of leases see each other, and no other kind of file is touched.

use std::os::unix::fs::PermissionsExt;

use jiff::Timestamp;
use tenure_clock::{BootTime, Entropy, SystemClock};
use tenure_lease::{Holder, Takeover};
use tenure_testkit::{TempDir, temp_dir};
use tokio::sync::broadcast::Receiver;

use super::*;
use crate::{SqliteOptions, SqliteStore};

const LONG: Duration = Duration::from_secs(600);
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Desk {
    folder: TempDir,
    entropy: Entropy,
}

impl Desk {
    fn new() -> Self {
        Self { folder: temp_dir(), entropy: Entropy::from_os() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("leases.db")
    }

    fn open(&self) -> SqliteLeases {
        SqliteLeases::open(&self.path(), Arc::new(SystemClock)).expect("opened")
    }

    fn request(&self, scope: &str) -> AcquireRequest {
        let id = || self.entropy.uuid(SystemClock.now());
        AcquireRequest {
            scope: Scope::new(scope),
            holder: Holder {
                name: "a".into(),
                instance: String::new(),
                session: Session(id()),
                address: None,
            },
            term: Term(id()),
            duration: LONG,
            takeover: Takeover::IfFree,
            note: String::new(),
        }
    }

    fn refused(&self, name: &str) -> String {
        let refused = SqliteLeases::open(&self.folder.path().join(name), Arc::new(SystemClock));
        refused.expect_err("refused").to_string()
    }
}

async fn granted(leases: &SqliteLeases, request: &AcquireRequest) -> LeaseRecord {
    match leases.acquire(request).await.expect("answered") {
        AcquireOutcome::Granted(record) => record,
        other => panic!("not granted: {other:?}"),
    }
}

fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

async fn next(hints: &mut Receiver<Hint>) -> Hint {
    tokio::time::timeout(PATIENCE, hints.recv()).await.expect("a hint in time").expect("open")
}

#[tokio::test]
async fn what_one_handle_writes_the_other_sees() {
    let desk = Desk::new();
    let (one, other) = (desk.open(), desk.open());
    let first = granted(&one, &desk.request("s")).await;
    match other.acquire(&desk.request("s")).await.expect("answered") {
        AcquireOutcome::Held(seen) => assert_eq!((seen.term, seen.epoch), (first.term, first.epoch)),
        outcome => panic!("held by the first: {outcome:?}"),
    }
    assert_eq!(other.release(&claim(&first)).await.expect("answered"), ReleaseOutcome::Released);
    assert!(granted(&other, &desk.request("s")).await.epoch > first.epoch);
    assert_eq!(one.list_leases("").await.expect("listed").len(), 1);
}

#[tokio::test]
async fn other_handles_hear_of_changes_and_not_of_renewals() {
    let desk = Desk::new();
    let (one, other) = (desk.open(), desk.open());
    let mut hints = other.watch();
    assert_eq!(next(&mut hints).await, Hint::Resync, "nothing was seen before");
    let record = granted(&one, &desk.request("s1")).await;
    assert_eq!(next(&mut hints).await, Hint::Changed(Scope::new("s1")));
    one.renew(&[claim(&record)]).await.expect("renewed");
    // Were the renewal told, it would come first: hints of one look are in order of scope.
    granted(&one, &desk.request("s2")).await;
    assert_eq!(next(&mut hints).await, Hint::Changed(Scope::new("s2")));
    one.release(&claim(&record)).await.expect("released");
    assert_eq!(next(&mut hints).await, Hint::Changed(Scope::new("s1")));
}

#[tokio::test]
async fn deleted_rows_are_told_too() {
    let desk = Desk::new();
    let leases = desk.open();
    granted(&leases, &desk.request("s")).await;
    let mut hints = leases.watch();
    assert_eq!(next(&mut hints).await, Hint::Resync);
    Connection::open(desk.path()).expect("opened").execute("DELETE FROM leases", []).expect("deleted");
    assert_eq!(next(&mut hints).await, Hint::Changed(Scope::new("s")));
}

#[test]
fn many_may_make_the_file_at_the_same_moment() {
    for _ in 0..5 {
        let desk = Desk::new();
        std::thread::scope(|threads| {
            let openers: Vec<_> = (0..8).map(|_| threads.spawn(|| desk.open())).collect();
            openers.into_iter().for_each(|opener| drop(opener.join().expect("opened")));
        });
    }
}

#[tokio::test]
async fn an_answer_waits_for_the_disk() {
    let desk = Desk::new();
    let leases = desk.open();
    let settings = leases.verbs().write("reading settings", |conn, _| {
        let setting =
            |name| conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
        Ok((setting("journal_mode")?, setting("synchronous")?))
    });
    const FULL: i64 = 2;
    assert_eq!(settings.await.expect("read"), ("wal".to_owned().into(), FULL.into()));
}

#[tokio::test]
async fn a_writer_that_does_not_let_go_makes_it_unavailable_for_a_while() {
    let desk = Desk::new();
    let leases = desk.open();
    let shell = Connection::open(desk.path()).expect("opened");
    shell.execute_batch("BEGIN IMMEDIATE").expect("begun");
    let kept_out = tokio::time::timeout(PATIENCE, leases.acquire(&desk.request("s"))).await;
    let kept_out = kept_out.expect("the wait has an end");
    assert!(matches!(kept_out, Err(LeaseError::Unavailable(_))), "{kept_out:?}");
    assert_eq!(leases.find_lease(&Scope::new("s")).await.expect("reading goes on"), None);
    shell.execute_batch("COMMIT").expect("let go");
    granted(&leases, &desk.request("s")).await;
}

#[tokio::test]
async fn nobody_writes_between_a_look_and_the_write_that_follows() {
    let desk = Desk::new();
    let leases = desk.open();
    let shell = Connection::open(desk.path()).expect("opened");
    shell.busy_timeout(Duration::ZERO).expect("impatient");
    let looked = leases.verbs().write("looking", move |conn, now| {
        super::super::list(conn, "", now)?;
        Ok(shell.execute("DELETE FROM leases", []))
    });
    let kept_out = looked.await.expect("looked").expect_err("it has to wait");
    assert_eq!(kept_out.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
}

#[tokio::test]
async fn nobody_else_may_read_the_files() {
    let desk = Desk::new();
    let leases = desk.open();
    let _lifeline = leases.attach(desk.request("s").holder.session).await.expect("attached");
    granted(&leases, &desk.request("s")).await;
    let mut seen = vec![];
    let mut folders = vec![desk.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry")) {
            let about = entry.metadata().expect("metadata");
            let expected = if about.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(about.permissions().mode() & 0o777, expected, "{:?}", entry.file_name());
            seen.push(entry.file_name());
            if about.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(seen.len() >= 4, "database, WAL, index, a session: {seen:?}");
}

#[test]
fn another_programs_database_is_left_as_it_was() {
    let desk = Desk::new();
    let path = desk.folder.path().join("places.db");
    Connection::open(&path)
        .expect("opened")
        .execute_batch("CREATE TABLE bookmarks (url TEXT)")
        .expect("made");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
    let before = std::fs::read(&path).expect("read");
    let refused = desk.refused("places.db");
    assert!(refused.contains("places.db") && refused.contains("another program"), "{refused}");
    assert_eq!(std::fs::read(&path).expect("read"), before);
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_state_database_is_refused_with_a_way_out_whether_open_or_not() {
    let desk = Desk::new();
    let path = desk.folder.path().join("tenure.db");
    let server = SqliteStore::open(&path, SqliteOptions::default(), Arc::new(SystemClock)).expect("opened");
    let refused = desk.refused("tenure.db");
    assert!(refused.contains("tenure.db") && refused.contains("server's address"), "{refused}");
    drop(server);
    assert_eq!(desk.refused("tenure.db"), refused);
}

#[test]
fn a_server_does_not_take_a_file_of_leases_for_its_state() {
    let desk = Desk::new();
    drop(desk.open());
    let refused = SqliteStore::open(&desk.path(), SqliteOptions::default(), Arc::new(SystemClock));
    let refused = refused.expect_err("leases only").to_string();
    assert!(refused.contains("leases.db") && refused.contains("leases only"), "{refused}");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let desk = Desk::new();
    let notes = desk.folder.path().join("notes.txt");
    std::fs::write(&notes, "these are my notes, not a database\n".repeat(100)).expect("written");
    let refused = desk.refused("notes.txt");
    assert!(refused.contains("notes.txt"), "{refused}");
    let missing = desk.refused("no/such/folder/leases.db");
    assert!(missing.contains("no/such/folder"), "{missing}");
}

/// A wall clock that somebody has set back.
#[derive(Debug)]
struct SetBack(Duration);

impl Clock for SetBack {
    fn now(&self) -> Timestamp {
        SystemClock.now() - self.0
    }

    fn boottime(&self) -> BootTime {
        SystemClock.boottime()
    }

    fn suspended(&self) -> Duration {
        SystemClock.suspended()
    }
}

#[tokio::test]
async fn a_clock_that_was_set_back_does_not_keep_a_dead_holders_lease_for_ever() {
    let desk = Desk::new();
    let before = desk.open();
    let dead =
        granted(&before, &AcquireRequest { duration: Duration::from_secs(1), ..desk.request("s") }).await;
    let after = SqliteLeases::open(&desk.path(), Arc::new(SetBack(LONG))).expect("opened");
    let seen = after.find_lease(&dead.scope).await.expect("answered").expect("a record");
    assert_eq!(seen.remaining, dead.duration, "never more than it lasts");
    let takeover = Takeover::OfStalled { term: seen.term, resource_version: seen.resource_version };
    let heir = granted(&after, &AcquireRequest { takeover, ..desk.request("s") }).await;
    assert!(heir.epoch > dead.epoch);
    let line = after.lease_history(&dead.scope, 2).await.expect("answered").remove(1);
    assert_eq!(line.ended_at, Some(line.acquired_at), "it did not end before it began");
}
