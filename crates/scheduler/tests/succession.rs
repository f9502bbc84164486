//! Goal: how often a dag runs does not depend on who owns it, when owners change, or what their clocks say.
//! Method: the real scheduler on a real store, owners that are killed or deposed at the worst moment, wall clocks that the
//! test sets. Dags without tasks end their runs by themselves.

mod rig;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use expect_test::{Expect, expect};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rig::faulty::Faulty;
use rig::{Options, Owner, PATIENCE, Rig, WallClock, exec, wait};
use tenure_clock::SystemClock;
use tenure_model::{Ack, DagSpec, Outcome, RunKey, RunState, Schedule, TenantId};
use tenure_store::{Paging, RunQuery, RunView};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};

const MINUTE: Duration = Duration::from_secs(60);

/// How an owner is followed by the next.
#[derive(Clone, Copy, Debug)]
enum Change {
    Killed,
    /// It lives on, and does not know.
    Deposed,
}

/// A rig whose clock stands still.
async fn rig_at(instant: &str) -> (Rig, Arc<WallClock>) {
    let clock = WallClock::at(instant);
    let mut rig = Rig::new().await;
    rig.clock = clock.clone();
    (rig, clock)
}

fn owner(rig: &Rig) -> Owner {
    rig.owner(Options { deaf: true, clock: Arc::clone(&rig.clock), ..Options::default() })
}

/// The next owner is at work; the one before is gone, or is the second answer.
async fn succeed(rig: &Rig, before: Owner, change: Change) -> (Owner, Option<Owner>) {
    let before = match change {
        Change::Killed => {
            before.kill();
            None
        }
        Change::Deposed => Some(before),
    };
    let next = owner(rig);
    wait("the next owner is at work", || next.status().ready).await;
    (next, before)
}

fn passes(owner: &Owner) -> f64 {
    owner.metric("tenure_passes_total")
}

/// It has looked at everything once more since the clock was set.
async fn settle(owner: &Owner) {
    let before = passes(owner);
    // One may have been under way.
    wait("two more passes", || passes(owner) >= before + 2.0).await;
}

/// All runs of the dag, oldest first.
async fn runs(rig: &Rig, dag: &str) -> Vec<RunView> {
    let paging = Paging { limit: 10_000, ..Paging::default() };
    let query = RunQuery { paging, ..RunQuery::of(TenantId::default_tenant(), Some(dag.into())) };
    rig.store.list_runs(&query).await.unwrap().items
}

async fn ticks(rig: &Rig, dag: &str) -> Vec<Timestamp> {
    let mut ticks: Vec<Timestamp> = runs(rig, dag).await.iter().map(|run| run.run_after).collect();
    ticks.sort();
    ticks
}

fn every(interval: Duration) -> Schedule {
    Schedule::Every { interval }
}

fn cron(expression: &str) -> Schedule {
    Schedule::Cron { expression: expression.into() }
}

// ── A run that must not overlap itself ──────────────────────────────────────────────────────────────────

/// The owner changes in the middle of the dag's first run; minutes pass, and then the run ends.
async fn no_second_run(spec: DagSpec, change: Change) -> (Rig, Arc<WallClock>, Owner) {
    let (rig, clock) = rig_at("2026-01-01T12:00:00Z").await;
    rig.register(spec).await;
    clock.advance(MINUTE);
    let mut first = owner(&rig);
    let assignment = first.next().await;
    assert_eq!(first.claim(&assignment).await, Ack::Accepted);
    let (next, before) = succeed(&rig, first, change).await;
    for _ in 0..5 {
        clock.advance(MINUTE);
        settle(&next).await;
        assert_eq!(runs(&rig, "d").await.len(), 1, "a second run, after: {change:?}");
    }
    // The deposed one hears of the end too, first even, and must not begin the next run beside its successor.
    let heard_by = before.as_ref().unwrap_or(&next);
    assert_eq!(heard_by.end(&assignment, Outcome::Success).await, Ack::Accepted);
    rig.wait_end("d", assignment.run_id.as_str()).await;
    (rig, clock, next)
}

async fn unfinished(rig: &Rig) -> usize {
    runs(rig, "d").await.iter().filter(|run| !run.state.is_finished()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_dag_has_no_second_run_when_its_owner_changes_in_the_middle_of_one() {
    for change in [Change::Killed, Change::Deposed] {
        let spec = DagSpec { schedule: Schedule::Continuous, ..DagSpec::new("d", vec![exec("a")]) };
        let (rig, clock, mut next) = no_second_run(spec, change).await;
        for over in 1..4 {
            let assignment = next.next().await;
            assert_eq!((unfinished(&rig).await, runs(&rig, "d").await.len()), (1, over + 1), "{change:?}");
            assert_eq!(next.claim(&assignment).await, Ack::Accepted);
            clock.advance(MINUTE);
            settle(&next).await;
            assert_eq!((unfinished(&rig).await, runs(&rig, "d").await.len()), (1, over + 1), "{change:?}");
            assert_eq!(next.end(&assignment, Outcome::Success).await, Ack::Accepted);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_dag_that_may_have_one_run_has_no_second_when_its_owner_changes_in_the_middle_of_it() {
    for change in [Change::Killed, Change::Deposed] {
        for (catchup, minute) in [(true, 2), (false, 6)] {
            let spec = DagSpec {
                schedule: every(MINUTE),
                max_active_runs: 1,
                catchup,
                ..DagSpec::new("d", vec![exec("a")])
            };
            let (rig, _, mut next) = no_second_run(spec, change).await;
            // Its first minute had begun, and five have passed since.
            let assignment = next.next().await;
            let start: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
            let expected = [start + MINUTE, start + MINUTE * minute];
            assert_eq!(ticks(&rig, "d").await, expected, "{change:?}, catch-up: {catchup}");
            assert_eq!(next.claim(&assignment).await, Ack::Accepted);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_once_dag_has_no_second_run_when_its_owner_changes_in_the_middle_of_its_only_one() {
    for change in [Change::Killed, Change::Deposed] {
        let spec = DagSpec { schedule: Schedule::Once, ..DagSpec::new("d", vec![exec("a")]) };
        let (rig, _, next) = no_second_run(spec, change).await;
        settle(&next).await;
        assert_eq!(runs(&rig, "d").await.len(), 1, "{change:?}");
    }
}

// ── Summer time ─────────────────────────────────────────────────────────────────────────────────────────

/// When the owner changes, seen from a tick.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The old one is dead when the tick comes, and the next not yet there.
    Around,
    /// Right after the old one has seen it.
    After,
    /// Both look at the clock, and one of them does not know that it was deposed.
    Both,
}

/// Five hours around the moment at which the clocks of Berlin change, each half hour with another owner.
async fn check_change(moment: Moment, from: &str, expected: &Expect) {
    let (rig, clock) = rig_at(from).await;
    let zoned = |id, expression| DagSpec {
        schedule: cron(expression),
        timezone: "Europe/Berlin".into(),
        catchup: true,
        ..DagSpec::new(id, vec![])
    };
    rig.register(zoned("daily", "30 2 * * *")).await;
    rig.register(zoned("hourly", "0 * * * *")).await;
    let mut leading = owner(&rig);
    wait("an owner", || leading.status().ready).await;
    for _ in 0..10 {
        leading = match moment {
            Moment::Around => {
                leading.kill();
                clock.advance(MINUTE * 30);
                owner(&rig)
            }
            Moment::After => {
                clock.advance(MINUTE * 30);
                settle(&leading).await;
                succeed(&rig, leading, Change::Killed).await.0
            }
            Moment::Both => {
                let (next, before) = succeed(&rig, leading, Change::Deposed).await;
                let before = before.expect("it lives");
                let seen = passes(&before);
                clock.advance(MINUTE * 30);
                // Where there is nothing to write, nothing tells it.
                let has_tried = || before.status().tenure.is_none() || passes(&before) >= seen + 2.0;
                wait("the deposed one has tried", has_tried).await;
                next
            }
        };
        settle(&leading).await;
    }
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let mut lines = String::new();
    for dag in ["daily", "hourly"] {
        for tick in ticks(&rig, dag).await {
            lines += &format!("{dag} {}\n", tick.to_zoned(zone.clone()).strftime("%F %R %z"));
        }
    }
    expected.assert_eq(&lines);
    for run in runs(&rig, "hourly").await {
        assert_eq!(rig.wait_end("hourly", run.run_id.as_str()).await.state, RunState::Success);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_change_while_summer_time_begins_make_every_tick_once() {
    let expected = expect![[r#"
        daily 2026-03-29 03:00 +0200
        hourly 2026-03-29 01:00 +0100
        hourly 2026-03-29 03:00 +0200
        hourly 2026-03-29 04:00 +0200
        hourly 2026-03-29 05:00 +0200
        hourly 2026-03-29 06:00 +0200
    "#]];
    for moment in [Moment::Around, Moment::After, Moment::Both] {
        check_change(moment, "2026-03-28T23:00:00Z", &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_change_while_summer_time_ends_make_every_tick_once() {
    let expected = expect![[r#"
        daily 2026-10-25 02:30 +0200
        hourly 2026-10-25 02:00 +0200
        hourly 2026-10-25 02:00 +0100
        hourly 2026-10-25 03:00 +0100
        hourly 2026-10-25 04:00 +0100
        hourly 2026-10-25 05:00 +0100
    "#]];
    for moment in [Moment::Around, Moment::After, Moment::Both] {
        check_change(moment, "2026-10-24T23:00:00Z", &expected).await;
    }
}

// ── Clocks that are set ─────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_clock_is_set_by_an_hour_keeps_its_term_and_no_tick_comes_twice() {
    let (mut rig, clock) = rig_at("2026-01-01T12:00:00Z").await;
    let at = |minute: u64| "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + MINUTE * minute as u32;
    for (id, schedule, catchup) in [
        ("every", every(MINUTE * 10), true),
        ("cron", cron("*/10 * * * *"), true),
        ("latest", cron("*/10 * * * *"), false),
    ] {
        rig.register(DagSpec { schedule, catchup, ..DagSpec::new(id, vec![]) }).await;
    }
    let owner = owner(&rig);
    wait("an owner", || owner.status().ready).await;
    // Beside it waits one whose clock is right. The clock of the leases is right too.
    let right = WallClock::at("2026-01-01T12:05:00Z");
    rig.clock = right.clone();
    let options = Options { name: "other", restarted: false, clock: right.clone(), ..Options::default() };
    let other = rig.owner(options);
    // An hour ahead, and back; an hour behind, and back.
    for minute in [5, 65, 5, 0, 5] {
        clock.set(at(minute));
        settle(&owner).await;
        assert_eq!(owner.status().tenure.map(|tenure| tenure.epoch().0), Some(1), "minute {minute}");
        assert_eq!(other.owned(), [], "minute {minute}");
    }
    clock.set(at(5) - MINUTE * 60);
    settle(&owner).await;
    // What came too early is not made again, by nobody.
    owner.scheduler.stop().await;
    wait("the other one leads", || other.status().ready).await;
    for minute in [10, 20, 60, 69, 70] {
        right.set(at(minute));
        settle(&other).await;
    }
    let early: Vec<Timestamp> = (1..=7).map(|tens| at(tens * 10)).collect();
    assert_eq!(ticks(&rig, "every").await, early);
    assert_eq!(ticks(&rig, "cron").await, early);
    assert_eq!(ticks(&rig, "latest").await, [at(60), at(70)]);
}

// ── Away for days ───────────────────────────────────────────────────────────────────────────────────────

const THREE_DAYS: u32 = 3 * 24 * 60;

/// What passes have written.
#[derive(Default)]
struct Notes {
    made: AtomicUsize,
    most_at_once: AtomicUsize,
    /// Changes of this run are waited for, and how many others had been made by the last of them.
    watched: OnceLock<RunKey>,
    made_meanwhile: AtomicUsize,
}

impl Notes {
    fn take(&self, pass: &str) {
        let made = pass.matches("NewRun {").count();
        self.most_at_once.fetch_max(made, Ordering::SeqCst);
        let before = self.made.fetch_add(made, Ordering::SeqCst);
        if self.watched.get().is_some_and(|run| pass.contains(&format!("run: {run:?}"))) {
            self.made_meanwhile.store(before + made, Ordering::SeqCst);
        }
    }
}

async fn noted(notes: &Arc<Notes>) -> (Rig, Arc<WallClock>) {
    let store = SqliteStore::in_memory(SqliteOptions { shards: 1 }, Arc::new(SystemClock)).unwrap();
    let notes = Arc::clone(notes);
    let store = Faulty::before(Arc::new(store), move |verb| {
        if let Some(pass) = verb.strip_prefix("commit_pass") {
            notes.take(pass);
        }
        Ok(())
    });
    let clock = WallClock::at("2026-01-01T12:00:00Z");
    let mut rig = Rig::on(store, 1).await;
    rig.clock = clock.clone();
    (rig, clock)
}

/// Nobody is there for three days, from the dag's first minute on.
async fn away_for_three_days(rig: &Rig, clock: &WallClock, spec: DagSpec) {
    let first = owner(rig);
    rig.register(spec).await;
    clock.advance(MINUTE);
    settle(&first).await;
    assert_eq!(runs(rig, "d").await.len(), 1);
    first.kill();
    clock.advance(MINUTE * THREE_DAYS);
}

async fn wait_runs(rig: &Rig, count: usize) {
    let there = async {
        while runs(rig, "d").await.len() < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE * 6, there).await.unwrap_or_else(|_| panic!("there are no {count} runs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn three_days_of_missed_minutes_are_made_up_for_exactly_and_a_few_at_a_time() {
    for (max_active_runs, in_a_pass) in [(16, 16), (1_000, 25)] {
        let notes = Arc::default();
        let (rig, clock) = noted(&notes).await;
        let schedule = every(MINUTE);
        let spec = DagSpec { schedule, catchup: true, max_active_runs, ..DagSpec::new("d", vec![]) };
        away_for_three_days(&rig, &clock, spec).await;
        rig.register(DagSpec::new("beside", vec![])).await;
        rig.trigger("beside", "r").await;
        notes.watched.set(rig.run("beside", "r").await.key).unwrap();
        // Whoever begins need not be there to the end.
        let second = owner(&rig);
        wait_runs(&rig, 1_000).await;
        second.kill();
        let third = owner(&rig);
        wait_runs(&rig, THREE_DAYS as usize + 1).await;
        settle(&third).await;
        let start: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let expected: Vec<Timestamp> = (1..=THREE_DAYS + 1).map(|minute| start + MINUTE * minute).collect();
        assert_eq!(ticks(&rig, "d").await, expected);
        assert_eq!(notes.most_at_once.load(Ordering::SeqCst), in_a_pass);
        // Others do not wait until it is over.
        assert_eq!(rig.wait_end("beside", "r").await.state, RunState::Success);
        let made_meanwhile = notes.made_meanwhile.load(Ordering::SeqCst);
        assert!((1..=in_a_pass * 3).contains(&made_meanwhile), "after {made_meanwhile} others");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_days_of_missed_minutes_one_is_made_up_for_without_catch_up() {
    let notes = Arc::default();
    let (rig, clock) = noted(&notes).await;
    let spec = DagSpec { schedule: every(MINUTE), ..DagSpec::new("d", vec![]) };
    away_for_three_days(&rig, &clock, spec).await;
    let second = owner(&rig);
    settle(&second).await;
    clock.advance(MINUTE);
    settle(&second).await;
    let start: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let expected = [1, THREE_DAYS + 1, THREE_DAYS + 2].map(|minute| start + MINUTE * minute);
    assert_eq!(ticks(&rig, "d").await, expected);
    assert_eq!(notes.most_at_once.load(Ordering::SeqCst), 1);
}
