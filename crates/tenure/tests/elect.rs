//! Goal: a command never runs without its lease, whatever happens to whom. Method: real candidates on real lease
//! stores, killed, frozen, robbed and cut off; one suite of facts, on SQLite and on Postgres.

mod common;
#[path = "elect/harness.rs"]
mod harness;
#[path = "elect/wire.rs"]
mod wire;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Site, Wiring};
use harness::{Arena, BINARY, Candidate, SCOPE, SOON, Terminal, is_alive, text, wait};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tenure_testkit::{Etcd, Postgres, Settings};
use wire::Wire;

/// The lease of the arenas: a frozen or cut off holder's command must be dead by then.
const LEASE: Duration = Duration::from_millis(1500);
/// For a kill that somebody has asked for, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

macro_rules! on_both {
    ($($fact:ident),* $(,)?) => {
        mod sqlite { $( #[test] fn $fact() { super::$fact(&super::Arena::sqlite()); } )* }
        mod postgres { $( #[test] fn $fact() { super::$fact(&super::Arena::postgres()); } )* }
    };
}

on_both!(
    a_command_finds_its_authority_in_the_environment_and_its_exit_code_is_forwarded,
    of_two_candidates_one_runs_and_the_other_follows_at_once_after_a_clean_end,
    a_killed_wrapper_takes_all_of_its_command_along_and_a_higher_epoch_follows,
    a_killed_wrappers_command_does_not_wait_for_its_deadline,
    a_frozen_wrappers_command_is_dead_before_the_successor_starts,
    a_robbed_holders_command_is_killed_at_once,
    a_command_that_was_asked_to_end_keeps_its_lease_until_it_has,
    a_living_holder_is_not_taken_for_dead,
    a_crash_is_noticed_before_the_lease_runs_out_with_fast_failover,
);

fn a_command_finds_its_authority_in_the_environment_and_its_exit_code_is_forwarded(arena: &Arena) {
    let script = "echo $TENURE_SCOPE $TENURE_EPOCH $TENURE_TERM $TENURE_LEASE_DURATION_MS; cat; exit 42";
    let mut child = arena.elect(&[], script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through standard input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(42));
    let record = arena.record(&arena.store());
    let told =
        format!("{SCOPE} {} {} {}\nthrough standard input\n", record.epoch.0, record.term, LEASE.as_millis());
    assert_eq!(String::from_utf8_lossy(&output.stdout), told);
    assert!(record.released, "{record:?}");
    let by_signal = arena.elect(&[], "kill -USR1 $$").output().unwrap();
    assert_eq!(by_signal.status.code(), Some(128 + 10), "{}", text(&by_signal));
}

fn of_two_candidates_one_runs_and_the_other_follows_at_once_after_a_clean_end(arena: &Arena) {
    // A lease so long that only a release can hand it over in time.
    let long = ["--lease-duration", "60s"];
    let mut first = arena.candidate(&long, "while [ ! -e $T/enough ]; do sleep 0.02; done; exit 7");
    let epoch = first.runs();
    let mut second = arena.candidate(&long, "exit 0");
    second.logs(&format!("{SCOPE} is held by c0 at e{epoch}, for another "));
    assert!(second.is_waiting());
    std::fs::write(arena.path("enough"), "").unwrap();
    assert_eq!(first.exit_code(), 7);
    assert!(second.runs() > epoch);
    assert_eq!(second.exit_code(), 0);
    assert!(second.log().contains("(it was given back)"), "{}", second.log());
}

fn a_killed_wrapper_takes_all_of_its_command_along_and_a_higher_epoch_follows(arena: &Arena) {
    let mut first = arena.endless(&[]);
    let epoch = first.runs();
    first.is_ready();
    first.command_lives();
    let second = arena.endless(&[]);
    first.kill();
    first.command_dies(AT_ONCE);
    assert!(second.runs() > epoch);
    assert!(first.log().contains("tenure elect has died"), "{}", first.log());
}

fn a_killed_wrappers_command_does_not_wait_for_its_deadline(arena: &Arena) {
    let mut holder = arena.endless(&["--lease-duration", "60s"]);
    holder.runs();
    holder.is_ready();
    holder.kill();
    holder.command_dies(AT_ONCE);
}

fn a_frozen_wrappers_command_is_dead_before_the_successor_starts(arena: &Arena) {
    let mut first = arena.endless(&[]);
    let epoch = first.runs();
    first.is_ready();
    let second = arena.endless(&[]);
    second.logs("is held by c0");
    first.signal(Signal::STOP);
    let mut alive_at_takeover = None;
    wait("the command to die and the successor to run", SOON, || {
        let runs = !second.is_waiting();
        let alive = first.processes().iter().any(|pid| is_alive(*pid));
        if runs && alive_at_takeover.is_none() {
            alive_at_takeover = Some(alive);
        }
        (runs && !alive).then_some(())
    });
    assert_eq!(alive_at_takeover, Some(false), "two commands ran at once");
    assert!(second.runs() > epoch);
    assert!(!first.has_ended());
    first.signal(Signal::CONT);
    assert_eq!(first.exit_code(), 73, "{}", first.log());
    assert!(first.log().contains(&format!("lost {SCOPE} at e{epoch}")), "{}", first.log());
    second.command_lives();
}

fn a_robbed_holders_command_is_killed_at_once(arena: &Arena) {
    // Looked at every 3.3 s if nothing is heard before, and good for 9 s: it is not the deadline that kills.
    let mut holder = arena.endless(&["--lease-duration", "10s"]);
    let epoch = holder.runs();
    holder.is_ready();
    let store = arena.store();
    let usurped = arena.take_away(&store);
    assert!(usurped.epoch.0 > epoch);
    holder.command_dies(Duration::from_secs(5));
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
    assert!(holder.log().contains("usurper"), "{}", holder.log());
    let kept = arena.record(&store);
    assert_eq!((kept.term, kept.released), (usurped.term, false), "the successor's lease is untouched");
}

fn a_command_that_was_asked_to_end_keeps_its_lease_until_it_has(arena: &Arena) {
    // Takes three times as long as the lease lasts.
    let mut first = arena.candidate(
        &[],
        "trap 'echo asked >$NAME.asked; sleep 4.5; echo done >>$NAME.asked; exit 5' TERM; \
         echo ready >$NAME.ready; while :; do sleep 0.05; done",
    );
    let epoch = first.runs();
    first.is_ready();
    let second = arena.candidate(&[], "exit 0");
    second.logs("is held by c0");
    first.signal(Signal::TERM);
    first.traces("asked", "asked");
    wait("the successor", SOON, || (!second.is_waiting()).then_some(()));
    assert!(first.trace("asked").contains("done"), "the lease was given back too early");
    assert_eq!(first.exit_code(), 5);
    assert!(second.runs() > epoch);
}

fn a_living_holder_is_not_taken_for_dead(arena: &Arena) {
    let long = ["--lease-duration", "30s"];
    let holder = arena.endless(&long);
    holder.runs();
    let eager = arena.candidate(&["--fast-failover", "--lease-duration", "30s"], "exit 0");
    eager.logs("is held by c0");
    // Long enough for every hint to come that will; nothing is to happen, so nothing can be waited for.
    std::thread::sleep(Duration::from_secs(2));
    assert!(eager.is_waiting(), "{}", eager.log());
    holder.command_lives();
}

fn a_crash_is_noticed_before_the_lease_runs_out_with_fast_failover(arena: &Arena) {
    let fast = ["--fast-failover", "--lease-duration", "60s"];
    let mut first = arena.endless(&fast);
    let epoch = first.runs();
    first.is_ready();
    let second = arena.endless(&fast);
    second.logs("is held by c0");
    // Its tie may be a moment younger than its campaign.
    std::thread::sleep(Duration::from_millis(500));
    first.kill();
    assert!(second.runs() > epoch);
    first.command_dies(AT_ONCE);
}

#[test]
fn on_etcd_a_clean_end_a_crash_and_a_freeze_hand_over_as_elsewhere() {
    hands_over_as_elsewhere(&Arena::on(&Etcd::shared().url(), "2s"));
}

#[test]
fn on_a_server_a_clean_end_a_crash_and_a_freeze_hand_over_as_elsewhere_and_are_shown() {
    let site = Site::new(Wiring::Sqlite);
    let _server = site.start();
    let (url, token) = address(&site);
    let mut arena = Arena::on(&url, "1500ms");
    arena.token = token;
    hands_over_as_elsewhere(&arena);

    let holder = arena.endless(&["--note", "blue", "--lease-duration", "60s"]);
    let epoch = holder.runs();
    let lease = site.json(&["lease", "show", SCOPE]);
    assert_eq!(
        (lease["epoch"].as_u64(), &lease["holder"], &lease["note"]),
        (Some(epoch), &"c4".into(), &"blue".into())
    );
    let leases = site.json(&["lease", "list", "reports/"]);
    assert_eq!((leases.as_array().unwrap().len(), &leases[0]), (1, &with_remaining(lease, &leases[0])));
    let history = site.json(&["lease", "history", SCOPE]);
    for (holder, end) in [("c0", "released"), ("c1", "expired"), ("c2", "expired"), ("c3", "released")] {
        let mut terms = history.as_array().unwrap().iter();
        assert!(
            terms.any(|term| term["holder"] == holder && term["end"] == end),
            "{holder} {end}: {history}"
        );
    }
    let members = site.json(&["member", "list", SCOPE]);
    assert_eq!((members[0]["member"].as_str(), &members[0]["scopes"][0]), (Some("c4"), &SCOPE.into()));

    let refused = site.cli(&["lease", "acquire", SCOPE]);
    assert_eq!(refused.status.code(), Some(73));
    assert!(text(&refused).contains(&format!("is held by c4 at e{epoch}")), "{}", text(&refused));
    let mut wrong = Arena::on(&arena.backend, "15s");
    wrong.token = "wrong".into();
    let refused = wrong.elect(&[], "exit 0").output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    let mut reserved = Command::new(env!("CARGO_BIN_EXE_tenure"));
    reserved.args(["elect", "scheduler/mine", "--backend", &arena.backend, "--", "true"]);
    let refused = reserved.env("TENURE_TOKEN", &arena.token).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "waiting would not help: {}", text(&refused));
    assert!(text(&refused).contains("scheduler/"), "{}", text(&refused));
}

/// Of a site's server, with its token.
fn address(site: &Site) -> (String, String) {
    let pointer: Value =
        serde_json::from_slice(&std::fs::read(site.data().join("server.json")).unwrap()).unwrap();
    let token = std::fs::read_to_string(site.data().join("admin-token")).unwrap();
    (pointer["url"].as_str().unwrap().to_owned(), token.trim().to_owned())
}

/// What passes between two looks.
fn with_remaining(mut lease: Value, other: &Value) -> Value {
    for field in ["remaining_ms", "renewed_at", "resource_version"] {
        lease[field] = other[field].clone();
    }
    lease
}

#[test]
fn leases_can_be_held_by_hand_and_watched() {
    let site = Site::new(Wiring::Sqlite);
    let _server = site.start();
    let log = std::fs::File::create(site.path("watched")).unwrap();
    let (url, token) = address(&site);
    let mut watch = Command::new(BINARY);
    watch.args(["lease", "watch", "hand/", "-o", "json", "--server", &url]).env("TENURE_TOKEN", token);
    let mut watch = watch.stdout(log).spawn().unwrap();
    let won = site.json(&["lease", "acquire", "hand/a", "--lease-duration", "30s", "--note", "mine"]);
    let (term, epoch) = (won["term"].as_str().unwrap(), won["epoch"].to_string());
    let claim = ["hand/a", "--term", term, "--epoch", &epoch];
    assert!(won["valid_for_ms"].as_u64().unwrap() > 25_000, "{won}");
    assert_eq!(site.json(&[&["lease", "renew"], &claim[..]].concat())["duration_ms"], 30_000);
    let stranger = ["hand/a", "--term", "00000000-0000-0000-0000-000000000000", "--epoch", &epoch];
    assert_eq!(site.cli(&[&["lease", "renew"], &stranger[..]].concat()).status.code(), Some(73));
    assert_eq!(site.cli(&[&["lease", "release"], &stranger[..]].concat()).status.code(), Some(73));
    assert_eq!(site.json(&["lease", "show", "hand/a"])["held"], true);
    assert_eq!(site.json(&[&["lease", "release"], &claim[..]].concat())["released"], true);
    assert_eq!(site.cli(&[&["lease", "release"], &claim[..]].concat()).status.code(), Some(73));
    assert_eq!(site.cli(&["lease", "show", "hand/b"]).status.code(), Some(1));
    let next = site.json(&["lease", "acquire", "hand/a", "--wait"]);
    assert!(next["epoch"].as_u64() > won["epoch"].as_u64());
    // Two changes of one lease may come as the latter, so the last one is what counts.
    wait("the watcher to tell of the last change", SOON, || {
        let told = std::fs::read_to_string(site.path("watched")).unwrap();
        let last: Value = serde_json::from_str(told.lines().last()?).ok()?;
        (last["event"] == "acquired" && last["lease"]["epoch"] == next["epoch"]).then_some(())
    });
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// The bones of the suite, for a backend that needs longer.
fn hands_over_as_elsewhere(arena: &Arena) {
    let mut first = arena.candidate(&[], "while [ ! -e $T/enough ]; do sleep 0.02; done; exit 7");
    let epoch = first.runs();
    let mut second = arena.endless(&[]);
    second.logs("is held by c0");
    std::fs::write(arena.path("enough"), "").unwrap();
    assert_eq!(first.exit_code(), 7);
    let next_epoch = second.runs();
    assert!(next_epoch > epoch);
    assert!(second.log().contains("(it was given back)"), "{}", second.log());
    second.is_ready();
    let mut third = arena.endless(&[]);
    third.logs("is held by c1");
    second.kill();
    second.command_dies(AT_ONCE);
    assert!(third.runs() > next_epoch);
    third.is_ready();
    third.signal(Signal::STOP);
    let mut fourth = arena.candidate(&[], "exit 0");
    fourth.runs();
    third.command_dies(Duration::ZERO);
    third.signal(Signal::CONT);
    assert_eq!(third.exit_code(), 73, "{}", third.log());
    assert_eq!(fourth.exit_code(), 0, "{}", fourth.log());
}

#[test]
fn a_holder_whose_record_is_deleted_ends_its_command() {
    let arena = Arena::sqlite();
    let mut holder = arena.endless(&[]);
    holder.runs();
    holder.is_ready();
    let database = rusqlite::Connection::open(arena.path("leases.db")).unwrap();
    database.busy_timeout(SOON).unwrap();
    assert_eq!(database.execute("DELETE FROM leases WHERE scope = ?1", [SCOPE]).unwrap(), 1);
    holder.command_dies(LEASE + AT_ONCE);
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
    assert!(holder.log().contains("its record is gone"), "{}", holder.log());
}

#[test]
fn a_holder_that_is_cut_off_from_its_store_ends_its_command_in_time() {
    let postgres = Postgres::own(Settings::default());
    let arena = Arena::on(&postgres.url(), "1500ms");
    let mut holder = arena.endless(&[]);
    holder.runs();
    holder.is_ready();
    postgres.stop();
    let took = holder.command_dies(LEASE + AT_ONCE);
    assert!(took > LEASE / 4, "nobody else could have had it that early: {took:?}");
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
}

#[test]
fn a_holder_behind_a_wire_that_falls_silent_ends_its_command_in_time() {
    let direct = Arena::postgres();
    let port: u16 = direct.backend.split([':', '/']).filter_map(|part| part.parse().ok()).next().unwrap();
    let wire = Wire::to(port);
    let through = direct.backend.replace(&format!(":{port}/"), &format!(":{}/", wire.port));
    let arena = Arena::on(&through, "1500ms");
    let mut holder = arena.endless(&[]);
    let epoch = holder.runs();
    holder.is_ready();
    let successor = direct.endless(&[]);
    successor.logs("is held by");
    wire.fall_silent();
    holder.command_dies(LEASE + AT_ONCE);
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
    assert!(successor.runs() > epoch);
}

#[test]
fn epochs_by_the_clock_outgrow_those_that_count() {
    let arena = Arena::postgres();
    let counted = arena.candidate(&[], "exit 0").runs();
    let by_clock = arena.candidate(&["--epochs", "clock"], "exit 0").runs();
    let millis_of_2020 = 1_577_836_800_000;
    assert!(counted < millis_of_2020 && by_clock > millis_of_2020, "{counted}, then {by_clock}");
    assert_eq!(arena.candidate(&[], "exit 0").runs(), by_clock + 1);
}

#[test]
fn a_short_absence_of_the_store_costs_nothing() {
    let postgres = Postgres::own(Settings::default());
    let arena = Arena::on(&postgres.url(), "6s");
    let mut holder = arena.endless(&[]);
    let epoch = holder.runs();
    holder.is_ready();
    let before = arena.record(&arena.store()).renewed_at;
    postgres.restart_immediately();
    let store = arena.store();
    let renewed = wait("a renewal after the restart", SOON, || {
        let record = arena.record(&store);
        (record.renewed_at > before).then_some(record)
    });
    assert_eq!(renewed.epoch.0, epoch);
    holder.command_lives();
    assert!(!holder.has_ended(), "{}", holder.log());
}

#[test]
fn a_waiting_candidate_says_that_its_store_is_away_and_outlives_it() {
    let postgres = Postgres::own(Settings::default());
    let arena = Arena::on(&postgres.url(), "1500ms");
    let holder = arena.endless(&["--on-loss", "retry"]);
    holder.runs();
    let waiting = arena.endless(&[]);
    waiting.logs("is held by c0");
    postgres.stop();
    waiting.logs("; trying again");
    holder.logs("the command was killed");
    postgres.start();
    wait("one of them to run", SOON, || {
        let terms = |candidate: &Candidate<'_>| candidate.trace("epoch").lines().count();
        (terms(&holder) + terms(&waiting) == 2).then_some(())
    });
}

#[test]
fn signals_are_passed_on_to_the_whole_group() {
    let arena = Arena::sqlite();
    let mut holder = arena.candidate(
        &[],
        "for s in HUP USR1 USR2 WINCH QUIT; do trap \"echo $s >>$NAME.signals\" $s; done; \
         trap 'echo INT >>$NAME.signals; exit 9' INT; \
         (trap 'echo child >>$NAME.signals' USR1; echo ready >$NAME.ready; while :; do sleep 0.05; done) & \
         while :; do sleep 0.05; done",
    );
    holder.is_ready();
    // The child listens to one of them; the next one ends it.
    let sent = [
        ("USR1", Signal::USR1),
        ("HUP", Signal::HUP),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
        ("QUIT", Signal::QUIT),
    ];
    for (name, signal) in sent {
        holder.signal(signal);
        holder.traces("signals", name);
        holder.traces("signals", "child");
    }
    holder.signal(Signal::INT);
    assert_eq!(holder.exit_code(), 9, "{}", holder.log());
}

#[test]
fn asking_twice_kills_and_gives_the_lease_back() {
    let arena = Arena::sqlite();
    let mut holder =
        arena.candidate(&[], "trap '' TERM; echo ready >$NAME.ready; while :; do sleep 0.05; done");
    holder.is_ready();
    holder.signal(Signal::TERM);
    holder.signal(Signal::TERM);
    // Two signals of one kind may count as one; a person presses the key again.
    wait("the end", SOON, || {
        if holder.has_ended() {
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(100));
        holder.signal(Signal::TERM);
        None
    });
    assert_eq!(holder.exit_code(), 137, "{}", holder.log());
    assert!(arena.record(&arena.store()).released);
}

#[test]
fn what_a_command_leaves_behind_is_killed_before_the_lease_is_given_back() {
    let arena = Arena::sqlite();
    let mut holder = arena.candidate(
        &[],
        "sleep 1000 & echo $! >>$NAME.pids; setsid sh -c 'echo $$ >>$NAME.pids; echo ready >$NAME.ready; exec sleep 1000' & \
         while [ ! -e $NAME.ready ]; do sleep 0.02; done; exit 3",
    );
    assert_eq!(holder.exit_code(), 3, "{}", holder.log());
    let alive: Vec<i32> = holder.processes().into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(alive.is_empty() && holder.processes().len() == 3, "{alive:?} are left");
}

#[test]
fn a_killed_keeper_takes_the_command_along() {
    let arena = Arena::sqlite();
    let mut holder = arena.endless(&[]);
    holder.runs();
    holder.is_ready();
    let keeper = Pid::from_raw(holder.keeper()).unwrap();
    rustix::process::kill_process(keeper, Signal::KILL).unwrap();
    holder.command_dies(AT_ONCE);
    assert_eq!(holder.exit_code(), 137, "{}", holder.log());
    assert!(arena.record(&arena.store()).released);
}

#[test]
fn a_stopped_keeper_does_not_save_the_command_of_a_robbed_holder() {
    let arena = Arena::sqlite();
    let mut holder = arena.endless(&[]);
    holder.runs();
    holder.is_ready();
    let keeper = Pid::from_raw(holder.keeper()).unwrap();
    rustix::process::kill_process(keeper, Signal::STOP).unwrap();
    arena.take_away(&arena.store());
    holder.command_dies(LEASE + AT_ONCE);
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
}

#[test]
fn a_command_is_warned_before_it_is_killed_when_asked_for() {
    let arena = Arena::sqlite();
    let holder = arena.candidate(
        &["--lease-duration", "3s", "--kill-after", "600ms"],
        "trap 'echo warned >$NAME.warned' TERM; echo ready >$NAME.ready; while :; do sleep 0.05; done",
    );
    holder.is_ready();
    holder.signal(Signal::STOP);
    holder.traces("warned", "warned");
    holder.command_dies(Duration::from_secs(3));
}

#[test]
fn a_command_that_heeds_the_warning_has_lost_all_the_same() {
    let arena = Arena::sqlite();
    let mut holder = arena.candidate(
        &["--lease-duration", "3s", "--kill-after", "600ms"],
        "trap 'exit 0' TERM; echo ready >$NAME.ready; while :; do sleep 0.05; done",
    );
    holder.is_ready();
    // Nobody can write to the file, so nothing is renewed.
    let locked = rusqlite::Connection::open(arena.path("leases.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
    assert!(holder.log().contains("asked to end"), "{}", holder.log());
}

#[test]
fn a_loser_that_retries_runs_again_under_a_higher_epoch() {
    let arena = Arena::sqlite();
    let holder = arena.endless(&["--on-loss", "retry"]);
    let epoch = holder.runs();
    holder.is_ready();
    let store = arena.store();
    let usurped = arena.take_away(&store);
    holder.logs("is held by usurper");
    holder.command_dies(AT_ONCE);
    arena.give_back(&store, &usurped);
    assert!(holder.runs_for_the(2) > usurped.epoch.0 && usurped.epoch.0 > epoch);
}

#[test]
fn a_stop_from_the_terminal_stops_the_command_too_and_a_late_return_finds_it_dead() {
    let arena = Arena::sqlite();
    let mut holder =
        arena.candidate(&[], "echo ready >$NAME.ready; while :; do echo x >>$NAME.ticks; sleep 0.02; done");
    holder.is_ready();
    holder.signal(Signal::TSTP);
    wait("the wrapper to stop", SOON, || holder.is_stopped().then_some(()));
    let ticks = holder.trace("ticks").len();
    holder.command_dies(LEASE + AT_ONCE);
    assert!(holder.trace("ticks").len() <= ticks + 4, "the command went on");
    holder.signal(Signal::CONT);
    assert_eq!(holder.exit_code(), 73, "{}", holder.log());
}

#[test]
fn an_early_return_from_a_stop_finds_the_command_going_on() {
    let arena = Arena::sqlite();
    let long = ["--lease-duration", "30s"];
    let mut holder = arena.candidate(&long, "echo ready >$NAME.ready; while [ ! -e $NAME.end ]; do echo x >>$NAME.ticks; sleep 0.02; done; exit 4");
    holder.is_ready();
    holder.signal(Signal::TSTP);
    wait("the wrapper to stop", SOON, || holder.is_stopped().then_some(()));
    holder.signal(Signal::CONT);
    let ticks = holder.trace("ticks").len();
    wait("more ticks", SOON, || (holder.trace("ticks").len() > ticks + 10).then_some(()));
    std::fs::write(arena.path("c0.end"), "").unwrap();
    assert_eq!(holder.exit_code(), 4, "{}", holder.log());
}

#[test]
fn a_wait_ends_at_once_when_asked_to() {
    let arena = Arena::sqlite();
    let holder = arena.endless(&[]);
    holder.runs();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut waiting = arena.candidate(&[], "exit 0");
        waiting.logs("is held by c0");
        waiting.signal(signal);
        assert_eq!(waiting.exits_within(AT_ONCE), code, "{}", waiting.log());
        assert!(waiting.is_waiting());
    }
    holder.command_lives();
}

#[test]
fn a_terminal_is_lent_to_the_command_and_taken_back() {
    let arena = Arena::sqlite();
    // First the command reads from it, then the shell that has started it.
    let inside = format!(
        "{BINARY} elect {SCOPE} --backend {} -- sh -c 'read a; echo \"command:$a\"'; read b; echo \"shell:$b\"",
        arena.backend
    );
    let mut terminal = Terminal::running(&arena, &inside);
    terminal.shows("leading");
    terminal.types("one\n");
    terminal.shows("command:one");
    terminal.types("two\n");
    terminal.shows("shell:two");
}

#[test]
fn ctrl_z_stops_nothing_where_nobody_could_resume_it() {
    let arena = Arena::sqlite();
    let inside = format!(
        "{BINARY} elect {SCOPE} --backend {} -- sh -c 'echo up; read a; echo \"got:$a\"'",
        arena.backend
    );
    let mut terminal = Terminal::running(&arena, &inside);
    terminal.shows("up");
    terminal.types("\u{1a}");
    terminal.shows("^Z");
    terminal.types("one\n");
    terminal.shows("got:one");
}

#[test]
fn a_shell_sees_ctrl_z_as_the_stop_of_its_job_and_goes_on_with_fg() {
    let arena = Arena::sqlite();
    let inside = format!(
        "PS1='ready$ ' bash --norc -i -c 'set -m; {BINARY} elect {SCOPE} --backend {} -- \
         sh -c \"echo up; read a; echo got:\\$a\"; jobs; fg; echo end:$?'",
        arena.backend
    );
    let mut terminal = Terminal::running(&arena, &inside);
    terminal.shows("up");
    terminal.types("\u{1a}");
    terminal.shows("Stopped");
    terminal.types("one\n");
    terminal.shows("got:one");
    terminal.shows("end:0");
}

#[test]
fn a_program_that_is_not_there_never_campaigns() {
    let arena = Arena::sqlite();
    let check = |program: &str, code: i32, words: &str| {
        let output = Command::new(BINARY)
            .args(["elect", SCOPE, "--backend", &arena.backend, "--", program])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(words), "{}", text(&output));
    };
    check("no-such-program", 127, "no such program in PATH");
    check("./no-such-program", 127, "no such program");
    check("/etc/passwd", 126, "may not be executed");
    assert!(!arena.path("leases.db").exists());
}

#[test]
fn wrong_usage_and_absent_stores_are_told_apart() {
    let arena = Arena::sqlite();
    let check = |options: &[&str], code: i32, words: &str| {
        let output = arena.elect(options, "exit 0").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{options:?}: {}", text(&output));
    };
    check(&["--lease-duration", "1ms"], 2, "too short");
    check(&["--kill-after", "1s"], 2, "that leaves 350ms");
    let port = tenure_testkit::free_port();
    let absent = Arena::on(&format!("postgres://nobody@127.0.0.1:{port}/none"), "15s");
    let output = absent.elect(&[], "exit 0").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("cannot connect"), "{}", text(&output));
}
