//! Goal: a tenure never outlives its authority, and the elector never gives up, whatever the store and the runtime do.
//! Method: real electors on a store whose calls fail, are lost before or after they are applied, are slow, or panic.

mod rig;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;
use rig::{
    DURATION, Fault, LONG, Troubled, Verb, config, elected, fenced, in_time, nobody, record, scope, stand,
    start, until,
};
use tenure_clock::{BootTime, Clock, SystemClock};
use tenure_lease::{
    ElectorConfig, Epoch, LeaseMetrics, LossPolicy, LossReason, NOT_THE_MASTER, Phase, Succession,
};

#[tokio::test]
async fn a_holder_that_is_cut_off_has_no_guard_after_its_deadline_whatever_memory_says() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    store.cut();
    until("a failed renewal", || !tenure.renewal_status().last_renewal_succeeded).await;
    let expires = SystemClock.boottime() + record(&store).await.remaining;
    let mut while_failing = 0;
    while tenure.guard().is_ok() {
        assert!(SystemClock.boottime() < expires, "a guard after others have seen the lease end");
        while_failing += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(while_failing > 0, "leading and being renewed are two facts");
    in_time("the loss", tenure.lost().cancelled()).await;
    assert_eq!(tenure.why_lost(), Some(&LossReason::DeadlinePassed));
    let status = tenure.renewal_status();
    assert!(!status.leading && !status.last_renewal_succeeded && status.valid_for.is_zero());
    // The store comes back, and so does the elector, under a new epoch.
    store.heal();
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(2));
}

#[tokio::test]
async fn a_slow_renewal_is_trusted_from_when_it_was_sent() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION * 3));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    store.fail(Verb::Renew, Fault::Slow(Duration::from_millis(600)), usize::MAX);
    let mut renewals = tenure.renewals();
    renewals.mark_unchanged();
    in_time("a renewal", renewals.changed()).await.unwrap();
    // 3 s less a margin of a tenth, less the 600 ms that the answer took.
    assert!(tenure.valid_for() <= Duration::from_millis(2100), "{:?}", tenure.valid_for());
    assert!(tenure.guard().is_ok());
}

#[tokio::test]
async fn a_renewal_that_is_answered_after_its_budget_extends_nothing() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let first = tenure.valid_until();
    // Applied every time, and never heard of in time.
    store.fail(Verb::Renew, Fault::Slow(DURATION / 2), usize::MAX);
    in_time("the loss", tenure.lost().cancelled()).await;
    assert_eq!(tenure.valid_until(), first);
    assert_eq!(tenure.why_lost(), Some(&LossReason::DeadlinePassed));
}

#[tokio::test]
async fn a_lost_answer_to_an_acquire_is_repaired_without_a_second_epoch() {
    for (fault, store) in [
        (Fault::LostAfter, fenced()),
        (Fault::LostBefore, fenced()),
        (Fault::LostAfter, rig::unfenced()),
        (Fault::LostBefore, rig::unfenced()),
    ] {
        store.fail(Verb::Acquire, fault, 2);
        let elector = start(&store, config("a", LONG));
        let mut candidacy = stand(&elector);
        assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(1), "{fault:?}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_costs_nothing() {
    for fault in [Fault::LostAfter, Fault::LostBefore, Fault::Unavailable, Fault::Panic] {
        let store = fenced();
        let elector = start(&store, config("a", DURATION));
        let mut candidacy = stand(&elector);
        let tenure = elected(&mut candidacy).await;
        let first = tenure.valid_until();
        store.fail(Verb::Renew, fault, 1);
        let mut renewals = tenure.renewals();
        in_time("renewals", renewals.wait_for(|until| *until > first + DURATION)).await.unwrap();
        assert!(tenure.guard().is_ok(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_release_frees_the_scope_at_once_or_when_it_runs_out() {
    for (fault, succession) in
        [(Fault::LostAfter, Succession::Released), (Fault::LostBefore, Succession::Expired)]
    {
        let store = fenced();
        let (a, b) = (start(&store, config("a", DURATION)), start(&store, config("b", DURATION)));
        let mut first = stand(&a);
        let tenure = elected(&mut first).await;
        let mut second = stand(&b);
        until("the other to follow", || b.scope_status(&scope()).is_some_and(|s| s.record.is_some())).await;
        store.fail(Verb::Release, fault, 1);
        in_time("the resignation", async { tokio::join!(tenure.resign(), a.stop()) }).await;
        assert!(tenure.guard().is_err());
        assert_eq!(elected(&mut second).await.record().succession, succession, "{fault:?}");
    }
}

#[tokio::test]
async fn a_panicking_backend_is_a_failed_call_and_not_the_end_of_the_elector() {
    let store = fenced();
    store.fail(Verb::Acquire, Fault::Panic, 2);
    store.fail(Verb::Attach, Fault::Panic, 1);
    store.fail(Verb::Look, Fault::Panic, 2);
    let elector = start(&store, ElectorConfig { crash_hints: true, ..config("a", DURATION) });
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    assert!(tenure.guard().is_ok());
    elector.stop().await;
}

#[tokio::test]
async fn a_store_that_is_away_for_long_is_waited_for() {
    let store = fenced();
    store.cut();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    nobody(&mut candidacy, DURATION * 2).await;
    store.heal();
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(1));
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_store_that_is_away() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    store.cut();
    in_time("the stop", async { tokio::join!(tenure.resign(), elector.stop()) }).await;
    assert!(tenure.guard().is_err());
}

#[tokio::test]
async fn a_cut_tie_of_a_living_process_costs_it_at_most_its_term() {
    let store = fenced();
    let hints = |name| ElectorConfig { crash_hints: true, ..config(name, LONG) };
    let (mine, others) = (hints("a"), hints("b"));
    let session = mine.holder.session;
    let (a, b) = (start(&store, mine), start(&store, others));
    let mut first = stand(&a);
    let tenure = elected(&mut first).await;
    let mut second = stand(&b);
    let watching = || b.scope_status(&scope()).is_some_and(|s| s.record.is_some());
    until("the other to follow", watching).await;
    // Said again until somebody who watches it has heard.
    let told = async {
        loop {
            store.leases.crash(session);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let successor = tokio::select! {
        tenure = elected(&mut second) => tenure,
        () = told => unreachable!("it goes on for ever"),
    };
    assert_eq!((successor.epoch(), successor.record().succession), (Epoch(2), Succession::Crashed));
    in_time("the loss", tenure.lost().cancelled()).await;
    assert!(tenure.guard().is_err());
}

/// The runtime has one thread, and that thread is blocked: only the watchdog is left.
#[tokio::test(flavor = "current_thread")]
async fn a_starved_runtime_is_tripped_by_the_watchdog_in_time() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let blocked = Arc::new(AtomicBool::new(true));
    let observer = std::thread::spawn({
        let (tenure, blocked) = (tenure.clone(), Arc::clone(&blocked));
        move || {
            while !tenure.lost().is_cancelled() && blocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            (tenure.lost().is_cancelled(), tenure.guard().is_err(), blocked.load(Ordering::SeqCst))
        }
    });
    std::thread::sleep(DURATION * 3 / 2);
    blocked.store(false, Ordering::SeqCst);
    let (lost, refused, while_blocked) = observer.join().unwrap();
    assert!(
        lost && refused && while_blocked,
        "lost {lost}, refused {refused}, while blocked {while_blocked}"
    );
    assert_eq!(tenure.why_lost(), Some(&LossReason::DeadlinePassed));
    // And it comes back.
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(2));
}

// ── The whole process ───────────────────────────────────────────────────────────────────────────────────

const CHILD: &str = "TENURE_LEASE_TEST_CHILD";

/// For what has to be over between a deadline and the end of the lease: with the margin below, more than a second.
const ROOMY: Duration = Duration::from_secs(6);

/// Not a test by itself: what the child process of those below does.
#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var(CHILD) else { return };
    let store = fenced();
    let on_loss = LossPolicy::Exit(NOT_THE_MASTER);
    let config = match role.starts_with("hang") {
        true => ElectorConfig { margin: ROOMY / 5, ..config("a", ROOMY) },
        false => config("a", DURATION),
    };
    let elector = start(&store, ElectorConfig { on_loss, ..config });
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    match role.as_str() {
        "hang in what it does on a loss" => {
            cut_and_tell(&store).await;
            tenure.lost().cancelled().await;
            // On the only thread of the runtime.
            std::thread::sleep(Duration::from_secs(600));
        }
        "hang in its exit" => {
            // Nobody reads what it prints, and the last of that is still to be written.
            let mut pipe = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
            std::thread::spawn(move || while pipe.write_all(&[b'.'; 1024]).is_ok() {});
            print!("the last of it");
            cut_and_tell(&store).await;
        }
        "lose" => store.leases.forget_lease(&scope()),
        "be cut off" => store.cut(),
        "starve" => std::thread::sleep(Duration::from_secs(20)),
        "stop" => {
            in_time("the stop", async { tokio::join!(tenure.resign(), elector.stop()) }).await;
            std::process::exit(0);
        }
        "stop without a store" => {
            store.cut();
            in_time("the stop", async { tokio::join!(tenure.resign(), elector.stop()) }).await;
            std::process::exit(0);
        }
        "stop before taking up" => {
            drop(tenure);
            until("the election", || {
                elector.scope_status(&scope()).is_some_and(|s| s.phase == Phase::Leading)
            })
            .await;
            in_time("the stop", elector.stop()).await;
            std::process::exit(0);
        }
        other => panic!("no such role: {other}"),
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    std::process::exit(1);
}

/// Runs the child above in this role, and returns how it ended.
fn run_child(role: &str) -> ExitStatus {
    let mut child = child_command(role).spawn().unwrap();
    wait_end(role, &mut child, SystemClock.boottime() + Duration::from_secs(60))
}

fn child_command(role: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(CHILD, role);
    child
}

fn wait_end(role: &str, child: &mut Child, until: BootTime) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if SystemClock.boottime() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the child that was to {role} has not ended");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// From now on nothing gets through. Says on standard error when others will see the lease end: the clock is the machine's.
async fn cut_and_tell(store: &Troubled) {
    store.cut();
    let now = SystemClock.boottime().saturating_since(BootTime::since_boot(Duration::ZERO));
    eprintln!("expires at {}", (now + record(store).await.remaining).as_millis());
}

#[test]
fn a_process_that_hangs_after_it_has_lost_its_lease_is_gone_before_others_see_the_lease_end() {
    for role in ["hang in what it does on a loss", "hang in its exit"] {
        let mut child = child_command(role).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let expires = said.find_map(|line| line.strip_prefix("expires at ")?.parse().ok());
        let expires = BootTime::since_boot(Duration::from_millis(expires.expect("it says so")));
        let status = wait_end(role, &mut child, expires);
        assert!(status.code().is_none_or(|code| code == NOT_THE_MASTER), "{role}: {status}");
    }
}

#[test]
fn losing_the_lease_ends_the_process_with_73_if_that_is_the_policy() {
    for role in ["lose", "be cut off", "starve"] {
        assert_eq!(run_child(role).code(), Some(NOT_THE_MASTER), "{role}");
    }
}

#[test]
fn giving_the_lease_back_does_not_end_the_process_with_73() {
    for role in ["stop", "stop without a store", "stop before taking up"] {
        assert_eq!(run_child(role).code(), Some(0), "{role}");
    }
}

/// A wall clock that somebody sets.
#[derive(Debug, Default)]
struct SetClock(Mutex<SignedDuration>);

impl Clock for SetClock {
    fn now(&self) -> jiff::Timestamp {
        SystemClock.now() + *self.0.lock().unwrap()
    }
    fn boottime(&self) -> BootTime {
        SystemClock.boottime()
    }
    fn suspended(&self) -> Duration {
        SystemClock.suspended()
    }
}

#[tokio::test]
async fn wall_clocks_that_are_set_by_an_hour_end_no_term_and_begin_none() {
    let store = fenced();
    let clocks = [Arc::new(SetClock::default()), Arc::new(SetClock::default())];
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, number)| {
        let clock = Arc::clone(&clocks[number]);
        rig::start_with(&store, config(name, DURATION), clock, LeaseMetrics::default())
    });
    let mut first = stand(&a);
    let tenure = elected(&mut first).await;
    let mut second = stand(&b);
    for hours in [[1, 0], [-1, 0], [0, 0], [0, 1], [0, -1], [1, -1], [-1, 1]] {
        for (clock, hours) in clocks.iter().zip(hours) {
            *clock.0.lock().unwrap() = SignedDuration::from_hours(hours);
        }
        let before = tenure.valid_until();
        let mut renewals = tenure.renewals();
        let renewed = renewals.wait_for(|until| *until > before + DURATION);
        in_time(&format!("renewals with clocks off by {hours:?} h"), renewed).await.unwrap();
        assert!(tenure.guard().is_ok(), "{hours:?}");
        nobody(&mut second, Duration::from_millis(10)).await;
    }
    assert_eq!(record(&store).await.epoch, tenure.epoch());
}

/// Reading it panics once, when the trap is set.
#[derive(Debug, Default)]
struct TrappedClock(AtomicBool);

impl Clock for TrappedClock {
    fn now(&self) -> jiff::Timestamp {
        assert!(!self.0.swap(false, Ordering::SeqCst), "the trap");
        SystemClock.now()
    }
    fn boottime(&self) -> BootTime {
        SystemClock.boottime()
    }
    fn suspended(&self) -> Duration {
        SystemClock.suspended()
    }
}

#[tokio::test]
async fn a_decision_that_panics_costs_the_terms_and_not_the_elector() {
    let store = fenced();
    let clock = Arc::new(TrappedClock::default());
    let elector = rig::start_with(&store, config("a", DURATION), clock.clone(), LeaseMetrics::default());
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    clock.0.store(true, Ordering::SeqCst);
    in_time("the loss", tenure.lost().cancelled()).await;
    assert_eq!(tenure.why_lost(), Some(&LossReason::Confused));
    assert!(elected(&mut candidacy).await.epoch() > tenure.epoch(), "it stands again");
    in_time("an orderly end", elector.stop()).await;
    assert!(record(&store).await.released);
}
