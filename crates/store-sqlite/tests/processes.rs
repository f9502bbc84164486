//! Goal: processes of one machine share a file of leases: one winner per epoch, and a crash is seen at once.
//! Method: this very test binary, started again with a part to play.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, FenceStore, Hint, Holder, LeaseError, LeaseRecord, LeaseStore,
    ReleaseOutcome, Scope, Session, Takeover, Term,
};
use tenure_store_sqlite::SqliteLeases;
use tenure_testkit::temp_dir;

const LONG: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(60);
/// The folder a part is played in; without it there is nothing to play.
const STAGE: &str = "TENURE_TEST_STAGE";

fn open(folder: &Path) -> SqliteLeases {
    SqliteLeases::open(&folder.join("leases.db"), Arc::new(SystemClock)).expect("opened")
}

fn request(entropy: &Entropy, name: &str) -> AcquireRequest {
    let id = || entropy.uuid(SystemClock.now());
    AcquireRequest {
        scope: Scope::new("tests/one"),
        holder: Holder {
            name: format!("{name}:{}", std::process::id()),
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

fn claim(record: &LeaseRecord) -> Claim {
    Claim { scope: record.scope.clone(), term: record.term, epoch: record.epoch, duration: record.duration }
}

/// Another process, killed when the test is done with it.
struct Actor {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Actor {
    fn play(part: &str, folder: &Path) -> Self {
        let itself = std::env::current_exe().expect("this test has a file");
        let mut child = Command::new(itself)
            .args(["--exact", part, "--ignored", "--nocapture"])
            .env(STAGE, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// What it says after `word`; the test harness says other things in between.
    fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.lines.read_line(&mut line).expect("read"),
                0,
                "it ended without a word of {word}"
            );
            // The harness may have written the beginning of the line.
            if let Some((_, said)) = line.trim_end().split_once(word) {
                return said.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, word: &str) {
        let ear = self.child.stdin.as_mut().expect("piped");
        writeln!(ear, "{word}").expect("told");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stage() -> PathBuf {
    std::env::var_os(STAGE).expect("played by another test").into()
}

const PROCESSES: usize = 8;
const WINS: usize = 25;

/// Wins so many times against the others, and is alone inside every time.
#[tokio::test]
#[ignore = "a part that another test plays in processes of their own"]
async fn racer() {
    let (folder, entropy) = (stage(), Entropy::from_os());
    let leases = open(&folder);
    println!("ready");
    assert!(std::io::stdin().lines().next().is_some(), "told to start");
    let mut won = 0;
    while won < WINS {
        let record = match leases.acquire(&request(&entropy, "racer")).await {
            Ok(AcquireOutcome::Granted(record)) => record,
            Ok(_) | Err(LeaseError::Unavailable(_)) => {
                tokio::time::sleep(entropy.jitter(Duration::from_millis(10))).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let inside = folder.join("inside");
        OpenOptions::new().write(true).create_new(true).open(&inside).expect("nobody else is inside");
        println!("won {} {}", record.epoch.0, record.term);
        tokio::task::yield_now().await;
        std::fs::remove_file(&inside).expect("nobody else came in");
        assert_eq!(leases.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::Released);
        won += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_that_race_have_one_winner_per_epoch() {
    let folder = temp_dir();
    let start = Arc::new(Barrier::new(PROCESSES));
    let play = || {
        let (folder, start) = (folder.path().to_owned(), Arc::clone(&start));
        tokio::task::spawn_blocking(move || {
            let mut racer = Actor::play("racer", &folder);
            racer.hear("ready");
            start.wait();
            racer.tell("go");
            let won: Vec<String> = (0..WINS).map(|_| racer.hear("won ")).collect();
            assert!(racer.child.wait().expect("ended").success(), "a racer met somebody inside");
            won
        })
    };
    let racers: Vec<_> = (0..PROCESSES).map(|_| play()).collect();
    let mut by_epoch = BTreeMap::new();
    for racer in racers {
        let won = tokio::time::timeout(PATIENCE, racer).await.expect("in time").expect("no panic");
        for line in won {
            let (epoch, term) = line.split_once(' ').expect("epoch and term");
            let epoch: u64 = epoch.parse().expect("a number");
            let term = term.to_owned();
            assert_eq!(by_epoch.insert(epoch, term), None, "two terms at epoch {epoch}");
        }
    }
    assert_eq!(by_epoch.len(), PROCESSES * WINS);
    let (epoch, term) =
        open(folder.path()).fence(&Scope::new("tests/one")).await.expect("read").expect("one");
    assert_eq!(by_epoch.last_key_value(), Some((&epoch.0, &term.to_string())));
}

/// Takes the lease, ties its life to it, and gives it back when told to.
#[tokio::test]
#[ignore = "a part that another test plays in a process of its own"]
async fn holder() {
    let leases = open(&stage());
    let request = request(&Entropy::from_os(), "holder");
    let _lifeline = leases.attach(request.holder.session).await.expect("attached");
    let AcquireOutcome::Granted(record) = leases.acquire(&request).await.expect("answered") else {
        panic!("nobody else is here")
    };
    println!("holds {}", record.term);
    let heard = std::io::stdin().lines().next();
    assert!(heard.is_some(), "told to give it back");
    assert_eq!(leases.release(&claim(&record)).await.expect("answered"), ReleaseOutcome::Released);
    println!("released it");
}

async fn hint(hints: &mut tokio::sync::broadcast::Receiver<Hint>, wanted: &Hint) {
    let listening = async { while hints.recv().await.expect("open") != *wanted {} };
    tokio::time::timeout(PATIENCE, listening).await.expect("a hint in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_seen_at_once_and_a_frozen_one_is_not_taken_for_dead() {
    let folder = temp_dir();
    let entropy = Entropy::from_os();
    let mut holder = Actor::play("holder", folder.path());
    holder.hear("holds ");
    let leases = open(folder.path());
    let held = leases.find_lease(&Scope::new("tests/one")).await.expect("read").expect("held");
    let mine = request(&entropy, "standby");
    let lifeline = leases.attach(mine.holder.session).await.expect("attached").expect("there are lifelines");
    let mut hints = leases.watch();
    lifeline.watch_peers(&[held.holder.session]);

    holder.signal(Signal::STOP);
    hint(&mut hints, &Hint::Resync).await;
    // A second process that crashes meanwhile shows that peers are being looked at.
    let other = Session(entropy.uuid(SystemClock.now()));
    let crashed = folder.path().join("leases.db.sessions").join(other.to_string());
    std::fs::write(&crashed, "").expect("what a crash leaves behind");
    lifeline.watch_peers(&[held.holder.session, other]);
    match tokio::time::timeout(PATIENCE, hints.recv()).await.expect("in time").expect("open") {
        Hint::Crashed(who) => assert_eq!(who, other, "frozen is not dead"),
        hint => panic!("{hint:?}"),
    }

    holder.child.kill().expect("killed");
    hint(&mut hints, &Hint::Crashed(held.holder.session)).await;
    let taking = AcquireRequest { takeover: Takeover::OfDead(held.term), ..mine };
    match leases.acquire(&taking).await.expect("answered") {
        AcquireOutcome::Granted(heir) => assert!(heir.epoch > held.epoch),
        other => panic!("a dead term is taken over: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_hand_over_is_noticed_in_the_other_process() {
    let folder = temp_dir();
    let mut holder = Actor::play("holder", folder.path());
    holder.hear("holds ");
    let leases = open(folder.path());
    let mut hints = leases.watch();
    hint(&mut hints, &Hint::Resync).await;
    holder.tell("give it back");
    hint(&mut hints, &Hint::Changed(Scope::new("tests/one"))).await;
    holder.hear("released it");
    let heir = leases.acquire(&request(&Entropy::from_os(), "standby")).await.expect("answered");
    assert!(matches!(heir, AcquireOutcome::Granted(_)), "{heir:?}");
}

#[tokio::test]
async fn what_the_only_process_wrote_is_there_after_its_kill() {
    let folder = temp_dir();
    let mut holder = Actor::play("holder", folder.path());
    let term = holder.hear("holds ");
    drop(holder);
    let leases = open(folder.path());
    let held = leases.find_lease(&Scope::new("tests/one")).await.expect("read").expect("it was answered");
    assert_eq!((held.term.to_string(), held.is_held()), (term, true));
}
