//! Goal: a due tick comes exactly once, at the time its author would name, in every zone.
//! Method: timetables stepped through as the scheduler does it; a slow reference that looks at every
//! minute; properties over random expressions, zones and instants.

use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use jiff::tz::AmbiguousOffset;
use proptest::prelude::*;

use super::*;
use crate::DagSpec;

fn t(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn spec(schedule: Schedule, zone: &str) -> DagSpec {
    DagSpec { schedule, timezone: zone.into(), catchup: true, ..DagSpec::new("d", vec![]) }
}

fn cron(expression: &str, zone: &str) -> DagSpec {
    spec(Schedule::Cron { expression: expression.into() }, zone)
}

fn every(seconds: u64) -> DagSpec {
    spec(Schedule::Every { interval: Duration::from_secs(seconds) }, "UTC")
}

fn made(last: &str) -> ScheduleProgress {
    ScheduleProgress { anchor: None, last_tick: Some(t(last)) }
}

fn anchored(at: &str) -> ScheduleProgress {
    ScheduleProgress { anchor: Some(t(at)), last_tick: None }
}

/// All runs due in `(from, to]`, taken one by one as the scheduler does.
fn steps(spec: &DagSpec, from: Timestamp, to: Timestamp) -> Vec<DueRun> {
    let timetable = Timetable::new(spec).unwrap();
    let mut progress = ScheduleProgress { anchor: Some(from), last_tick: None };
    let mut runs = vec![];
    while let Some(run) = timetable.next(progress, to).filter(|run| run.run_after <= to) {
        progress.last_tick = Some(run.run_after);
        runs.push(run);
    }
    runs
}

fn check(expression: &str, zone: &str, from: &str, to: &str, expected: Expect) {
    let zone_of = TimeZone::get(zone).unwrap();
    let lines: String = steps(&cron(expression, zone), t(from), t(to))
        .iter()
        .map(|run| format!("{}\n", run.run_after.to_zoned(zone_of.clone()).strftime("%F %R %z")))
        .collect();
    expected.assert_eq(&lines);
}

#[test]
fn a_daily_time_in_the_spring_gap_fires_once_right_after_it() {
    check(
        "30 2 * * *",
        "America/New_York",
        "2026-03-07T00:00:00Z",
        "2026-03-10T00:00:00Z",
        expect![[r#"
            2026-03-07 02:30 -0500
            2026-03-08 03:00 -0400
            2026-03-09 02:30 -0400
        "#]],
    );
    check(
        "15,30,45 2 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00:00Z",
        "2026-03-29T12:00:00Z",
        expect![[r#"
            2026-03-29 03:00 +0200
        "#]],
    );
}

#[test]
fn a_gap_time_and_the_time_right_after_the_gap_are_one_tick() {
    check(
        "30 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00:00Z",
        "2026-03-29T12:00:00Z",
        expect![[r#"
            2026-03-29 03:00 +0200
            2026-03-29 03:30 +0200
        "#]],
    );
    check(
        "0 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00:00Z",
        "2026-03-29T12:00:00Z",
        expect![[r#"
            2026-03-29 03:00 +0200
        "#]],
    );
}

#[test]
fn a_daily_time_in_the_autumn_overlap_fires_once_at_its_first_occurrence() {
    check(
        "30 1 * * *",
        "America/New_York",
        "2026-10-31T12:00:00Z",
        "2026-11-02T12:00:00Z",
        expect![[r#"
            2026-11-01 01:30 -0400
            2026-11-02 01:30 -0500
        "#]],
    );
    check(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00:00Z",
        "2026-10-26T12:00:00Z",
        expect![[r#"
            2026-10-25 02:30 +0200
            2026-10-26 02:30 +0100
        "#]],
    );
}

#[test]
fn an_hourly_schedule_fires_every_real_hour_through_both_changes() {
    for (zone, around) in [
        ("America/New_York", "2026-03-08T07:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
        ("Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ] {
        for expression in ["0 * * * *", "@hourly", "0 0-23 * * *"] {
            let (from, to) = (t(around) - 5.hours(), t(around) + 5.hours());
            let runs = steps(&cron(expression, zone), from, to);
            let expected: Vec<_> = (1..=10).map(|hours| from + hours.hours()).collect();
            assert_eq!(
                runs.iter().map(|run| run.run_after).collect::<Vec<_>>(),
                expected,
                "{zone} {expression}"
            );
        }
    }
}

#[test]
fn a_half_hour_change_moves_by_half_an_hour() {
    // Lord Howe: 02:00 +10:30 becomes 02:30 +11:00; 02:00 +11:00 becomes 01:30 +10:30.
    check(
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T00:00:00Z",
        "2026-10-04T20:00:00Z",
        expect![[r#"
            2026-10-04 02:30 +1100
            2026-10-05 02:15 +1100
        "#]],
    );
    check(
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T00:00:00Z",
        "2026-04-05T20:00:00Z",
        expect![[r#"
            2026-04-05 01:45 +1100
            2026-04-06 01:45 +1030
        "#]],
    );
    check(
        "*/15 * * * *",
        "Australia/Lord_Howe",
        "2026-04-04T14:20:00Z",
        "2026-04-04T15:50:00Z",
        expect![[r#"
            2026-04-05 01:30 +1100
            2026-04-05 01:45 +1100
            2026-04-05 01:30 +1030
            2026-04-05 01:45 +1030
            2026-04-05 02:00 +1030
            2026-04-05 02:15 +1030
        "#]],
    );
}

#[test]
fn a_midnight_that_does_not_exist_fires_at_the_first_instant_of_the_day() {
    check(
        "@daily",
        "America/Sao_Paulo",
        "2018-11-03T12:00:00Z",
        "2018-11-05T12:00:00Z",
        expect![[r#"
            2018-11-04 01:00 -0200
            2018-11-05 00:00 -0200
        "#]],
    );
}

#[test]
fn with_data_intervals_a_run_covers_the_time_since_the_tick_before() {
    let spec = DagSpec { data_intervals: true, ..cron("0 5 * * *", "Europe/Berlin") };
    let run =
        Timetable::new(&spec).unwrap().next(made("2026-03-28T04:00:00Z"), t("2026-03-28T12:00:00Z")).unwrap();
    let interval = DataInterval { start: t("2026-03-28T04:00:00Z"), end: t("2026-03-29T03:00:00Z") };
    assert_eq!(
        run,
        DueRun { logical_date: interval.start, data_interval: interval, run_after: interval.end }
    );
}

#[test]
fn without_data_intervals_everything_is_the_tick() {
    let run = Timetable::new(&cron("0 5 * * *", "UTC"))
        .unwrap()
        .next(anchored("2026-01-01T05:00:00Z"), t("2026-01-01T05:00:00Z"))
        .unwrap();
    let tick = t("2026-01-02T05:00:00Z");
    assert_eq!(
        run,
        DueRun {
            logical_date: tick,
            data_interval: DataInterval { start: tick, end: tick },
            run_after: tick
        }
    );
}

fn run_after(spec: &DagSpec, progress: ScheduleProgress, now: &str) -> Option<Timestamp> {
    Timetable::new(spec).unwrap().next(progress, t(now)).map(|run| run.run_after)
}

#[test]
fn the_first_tick_is_at_or_after_the_start_date_and_strictly_after_the_anchor() {
    let spec = DagSpec { start_date: Some(t("2026-01-01T05:00:00Z")), ..cron("0 5 * * *", "UTC") };
    let anchor = anchored("2026-06-01T00:00:00Z");
    assert_eq!(run_after(&spec, anchor, "2026-06-01T00:00:00Z"), Some(t("2026-01-01T05:00:00Z")));
    let unstarted = cron("0 5 * * *", "UTC");
    assert_eq!(
        run_after(&unstarted, anchored("2026-01-01T05:00:00Z"), "2026-06-01T00:00:00Z"),
        Some(t("2026-01-02T05:00:00Z"))
    );
    let intervals = DagSpec { data_intervals: true, ..spec };
    assert_eq!(run_after(&intervals, anchor, "2026-06-01T00:00:00Z"), Some(t("2026-01-02T05:00:00Z")));
}

#[test]
fn a_start_date_moved_into_the_future_holds_back_a_schedule_that_has_run() {
    let spec = DagSpec { start_date: Some(t("2026-09-01T00:00:00Z")), ..cron("0 5 * * *", "UTC") };
    assert_eq!(
        run_after(&spec, made("2026-06-01T05:00:00Z"), "2026-06-05T00:00:00Z"),
        Some(t("2026-09-01T05:00:00Z"))
    );
}

#[test]
fn after_a_gap_catchup_starts_with_the_oldest_tick_and_no_catchup_takes_the_latest() {
    let now = "2026-01-10T12:00:00Z";
    for (spec, oldest, latest) in [
        (cron("0 5 * * *", "UTC"), "2026-01-02T05:00:00Z", "2026-01-10T05:00:00Z"),
        (cron("* * * * *", "UTC"), "2026-01-01T05:01:00Z", "2026-01-10T12:00:00Z"),
        (every(3600), "2026-01-01T06:00:00Z", "2026-01-10T12:00:00Z"),
    ] {
        let progress = made("2026-01-01T05:00:00Z");
        assert_eq!(run_after(&spec, progress, now), Some(t(oldest)));
        let spec = DagSpec { catchup: false, ..spec };
        assert_eq!(run_after(&spec, progress, now), Some(t(latest)));
    }
}

#[test]
fn nothing_missed_means_the_next_tick_with_and_without_catchup() {
    for catchup in [false, true] {
        let spec = DagSpec { catchup, ..cron("0 5 * * *", "UTC") };
        let next = run_after(&spec, made("2026-01-10T05:00:00Z"), "2026-01-10T12:00:00Z");
        assert_eq!(next, Some(t("2026-01-11T05:00:00Z")));
    }
}

#[test]
fn a_clock_that_went_back_repeats_no_tick() {
    for schedule in [
        Schedule::Cron { expression: "* * * * *".into() },
        Schedule::Every { interval: Duration::from_secs(60) },
        Schedule::Continuous,
    ] {
        for catchup in [false, true] {
            let spec = DagSpec { catchup, ..spec(schedule.clone(), "UTC") };
            let next = run_after(&spec, made("2026-01-10T12:00:00Z"), "2026-01-10T11:00:00Z").unwrap();
            assert!(next > t("2026-01-10T12:00:00Z"), "{schedule:?}: {next}");
        }
    }
}

#[test]
fn no_tick_lies_after_the_end_date() {
    let end_date = Some(t("2026-01-03T05:00:00Z"));
    for catchup in [false, true] {
        let spec = DagSpec { end_date, catchup, ..cron("0 5 * * *", "UTC") };
        let now = "2026-02-01T00:00:00Z";
        assert_eq!(run_after(&spec, made("2026-01-02T05:00:00Z"), now), end_date);
        assert_eq!(run_after(&spec, made("2026-01-03T05:00:00Z"), now), None);
        let intervals = DagSpec { data_intervals: true, ..spec };
        // The interval that starts at the end date still counts: its run comes a day later.
        let last = Some(t("2026-01-04T05:00:00Z"));
        assert_eq!(run_after(&intervals, made("2026-01-03T05:00:00Z"), now), last);
        assert_eq!(run_after(&intervals, made("2026-01-04T05:00:00Z"), now), None);
    }
}

#[test]
fn intervals_count_from_the_start_date_or_else_from_the_last_run() {
    let started = DagSpec { start_date: Some(t("2026-01-01T00:07:00Z")), ..every(900) };
    let now = "2026-01-01T01:00:00Z";
    assert_eq!(run_after(&started, anchored(now), now), Some(t("2026-01-01T00:07:00Z")));
    assert_eq!(run_after(&started, made("2026-01-01T00:30:00Z"), now), Some(t("2026-01-01T00:37:00Z")));
    assert_eq!(run_after(&every(900), anchored(now), now), Some(t("2026-01-01T01:15:00Z")));
    assert_eq!(run_after(&every(900), made("2026-01-01T00:30:01Z"), now), Some(t("2026-01-01T00:45:01Z")));
}

#[test]
fn an_interval_skips_a_century_of_missed_ticks_at_once() {
    let spec = DagSpec { catchup: false, start_date: Some(t("1926-01-01T00:00:00Z")), ..every(1) };
    let timetable = Timetable::new(&spec).unwrap();
    for second in 0..10_000 {
        let now = t("2026-01-01T00:00:00Z") + second.seconds();
        assert_eq!(timetable.next(ScheduleProgress::default(), now).unwrap().run_after, now);
    }
}

#[test]
fn once_is_once_at_the_start_date_or_the_anchor() {
    let once = spec(Schedule::Once, "UTC");
    let now = "2026-01-01T00:00:00Z";
    assert_eq!(run_after(&once, anchored("2025-12-31T00:00:00Z"), now), Some(t("2025-12-31T00:00:00Z")));
    assert_eq!(run_after(&once, made("2025-12-31T00:00:00Z"), now), None);
    let started = DagSpec { start_date: Some(t("2026-05-01T00:00:00Z")), ..once };
    assert_eq!(run_after(&started, anchored(now), now), started.start_date);
}

#[test]
fn continuous_is_due_now_but_never_twice_at_one_instant() {
    let continuous = spec(Schedule::Continuous, "UTC");
    let now = "2026-01-01T00:00:00.123456789Z";
    let first = run_after(&continuous, anchored("2025-12-31T00:00:00Z"), now).unwrap();
    assert_eq!(first, t("2026-01-01T00:00:00.123456Z"));
    let progress = ScheduleProgress { anchor: None, last_tick: Some(first) };
    assert_eq!(run_after(&continuous, progress, now), Some(first + 1.microsecond()));
    let started = DagSpec { start_date: Some(t("2026-05-01T00:00:00Z")), ..continuous.clone() };
    assert_eq!(run_after(&started, anchored(now), now), started.start_date);
    let ended = DagSpec { end_date: Some(t("2025-12-31T00:00:00Z")), ..continuous };
    assert_eq!(run_after(&ended, anchored("2025-01-01T00:00:00Z"), now), None);
}

#[test]
fn no_schedule_is_never_due() {
    assert_eq!(
        run_after(&spec(Schedule::None, "UTC"), anchored("2026-01-01T00:00:00Z"), "2027-01-01T00:00:00Z"),
        None
    );
}

#[test]
fn a_date_that_never_comes_is_answered_quickly() {
    for zone in ["UTC", "America/New_York"] {
        for catchup in [false, true] {
            let spec = DagSpec { catchup, ..cron("0 0 30 2 *", zone) };
            for _ in 0..100 {
                assert_eq!(run_after(&spec, anchored("2026-01-01T00:00:00Z"), "2026-01-02T00:00:00Z"), None);
            }
        }
    }
}

#[test]
fn rare_dates_are_found() {
    let leap = cron("0 0 29 2 *", "Europe/Berlin");
    assert_eq!(
        run_after(&leap, anchored("2096-03-01T00:00:00Z"), "2096-03-01T00:00:00Z"),
        Some(t("2104-02-28T23:00:00Z"))
    );
    let last_friday = cron("0 18 * * FRI#L", "UTC");
    assert_eq!(
        run_after(&last_friday, anchored("2026-01-01T00:00:00Z"), "2026-01-01T00:00:00Z"),
        Some(t("2026-01-30T18:00:00Z"))
    );
    assert_eq!(
        run_after(&leap, anchored("9999-12-01T00:00:00Z"), "9999-12-01T00:00:00Z"),
        None,
        "time ends in the year 9999"
    );
}

#[test]
fn dates_before_1970_are_dates_like_any_other() {
    check(
        "30 2 * * *",
        "America/New_York",
        "1938-04-23T12:00:00Z",
        "1938-04-25T12:00:00Z",
        expect![[r#"
            1938-04-24 03:00 -0400
            1938-04-25 02:30 -0400
        "#]],
    );
    let spec = DagSpec { catchup: false, ..cron("30 2 * * *", "America/New_York") };
    let latest = run_after(&spec, made("1930-01-01T07:30:00Z"), "1938-04-24T07:00:00.5Z");
    assert_eq!(latest, Some(t("1938-04-24T07:00:00Z")));
}

#[test]
fn bad_expressions_zones_and_intervals_are_refused_with_a_reason() {
    let refusals: String =
        ["", "* * * *", "0 0 * * * *", "61 * * * *", "*/0 * * * *", "x * * * *", ", * * * *", "@often"]
            .iter()
            .map(|expression| format!("{}\n", Timetable::new(&cron(expression, "UTC")).unwrap_err()))
            .collect();
    expect![[r#"
        "" is not a cron expression: there are 0 fields, not the five of minute, hour, day, month and weekday
        "* * * *" is not a cron expression: there are 4 fields, not the five of minute, hour, day, month and weekday
        "0 0 * * * *" is not a cron expression: there are 6 fields, not the five of minute, hour, day, month and weekday
        "61 * * * *" is not a cron expression: the minute field "61": number out of bounds
        "*/0 * * * *" is not a cron expression: the minute field "*/0": step cannot be zero
        "x * * * *" is not a cron expression: the minute field "x": contains illegal character 'X' in part 'X'
        ", * * * *" is not a cron expression: the minute field ",": it is empty
        "@often" is not a cron expression: there is no such preset (known: @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually)
    "#]].assert_eq(&refusals);
    expect![[r#""Europe/Berlln" is not a known time zone (use an IANA name such as Europe/Berlin)"#]]
        .assert_eq(&Timetable::new(&cron("@daily", "Europe/Berlln")).unwrap_err().to_string());
    expect![[r#"an interval of 0s is too short (the shortest is 1s)"#]]
        .assert_eq(&Timetable::new(&every(0)).unwrap_err().to_string());
}

/// The documented rule, minute by minute: which instants of `[from, to)` are ticks of the pattern.
fn reference(expression: &str, zone: &str, from: Timestamp, to: Timestamp) -> BTreeSet<Timestamp> {
    let zone = TimeZone::get(zone).unwrap();
    let pattern = croner::parser::CronParser::new().parse(expression).unwrap().pattern;
    let any_hour = expression.split_whitespace().nth(1).unwrap().starts_with('*');
    let matches = |civil: jiff::civil::DateTime| {
        let weekday = croner::Weekday::from_days_from_sunday(civil.weekday().to_sunday_zero_offset() as u32);
        let (month, day) = (civil.month() as u32, civil.day() as u32);
        pattern.minute_match(civil.minute() as u32).unwrap()
            && pattern.hour_match(civil.hour() as u32).unwrap()
            && pattern.month_match(month).unwrap()
            && pattern.day_match(civil.year().into(), month, day, weekday).unwrap()
    };
    let mut found = BTreeSet::new();
    let mut civil = zone.to_datetime(from - 36.hours());
    let end = zone.to_datetime(to + 36.hours());
    while civil < end {
        if matches(civil) {
            let ambiguous = zone.to_ambiguous_timestamp(civil);
            match ambiguous.offset() {
                AmbiguousOffset::Unambiguous { .. } => {
                    found.insert(ambiguous.compatible().unwrap());
                }
                AmbiguousOffset::Fold { .. } => {
                    found.insert(ambiguous.earlier().unwrap());
                    if any_hour {
                        found.insert(ambiguous.later().unwrap());
                    }
                }
                AmbiguousOffset::Gap { .. } if any_hour => {}
                AmbiguousOffset::Gap { .. } => {
                    let beyond = ambiguous.later().unwrap();
                    found.insert(zone.preceding(beyond + 1.second()).next().unwrap().timestamp());
                }
            }
        }
        civil = civil.checked_add(1.minute()).unwrap();
    }
    found.into_iter().filter(|tick| (from..to).contains(tick)).collect()
}

const ZONES: [&str; 6] = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
];

/// Days on which one of the zones changes its clocks, and one on which none does.
const DAYS: [&str; 7] = [
    "2026-03-07T15:00:00Z",
    "2026-10-31T15:00:00Z",
    "2026-03-28T12:00:00Z",
    "2026-10-24T12:00:00Z",
    "2026-10-03T03:00:00Z",
    "2026-04-04T03:00:00Z",
    "2018-11-03T12:00:00Z",
];

fn field(any: u32, range: std::ops::Range<u32>) -> impl Strategy<Value = String> {
    prop_oneof![
        any => Just("*".to_owned()),
        1 => prop::sample::select(vec!["*/2", "*/3", "*/5"]).prop_map(String::from),
        3 => prop::collection::btree_set(range, 1..4)
            .prop_map(|values| values.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    ]
}

fn expression() -> impl Strategy<Value = String> {
    // Mostly every day, so that the few days on which clocks change are often among them.
    (field(1, 0..60), field(1, 0..5), field(12, 1..32), field(12, 1..13), field(12, 0..7))
        .prop_map(|(minute, hour, day, month, weekday)| format!("{minute} {hour} {day} {month} {weekday}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn stepping_visits_exactly_the_matching_minutes(
        expression in expression(),
        zone in prop::sample::select(&ZONES[..]),
        day in prop::sample::select(&DAYS[..]),
        hours in 0i64..48,
    ) {
        let from = t(day);
        let to = from + hours.hours();
        let expected = reference(&expression, zone, from, to);
        let spec = DagSpec { start_date: Some(from), ..cron(&expression, zone) };
        let stepped: Vec<_> = steps(&spec, from, to - 1.nanosecond()).iter().map(|run| run.run_after).collect();
        prop_assert!(stepped.is_sorted_by(|a, b| a < b), "{stepped:?}");
        prop_assert_eq!(&stepped, &expected.iter().copied().collect::<Vec<_>>());

        let latest = Timetable::new(&DagSpec { catchup: false, ..spec })
            .unwrap()
            .next(ScheduleProgress::default(), to - 1.nanosecond())
            .map(|run| run.run_after)
            .filter(|tick| *tick < to);
        prop_assert_eq!(latest, expected.last().copied());
    }

    #[test]
    fn intervals_of_consecutive_runs_touch(
        expression in expression(),
        zone in prop::sample::select(&ZONES[..]),
        day in prop::sample::select(&DAYS[..]),
    ) {
        let spec = DagSpec { data_intervals: true, ..cron(&expression, zone) };
        let runs = steps(&spec, t(day), t(day) + 48.hours());
        for pair in runs.windows(2) {
            prop_assert_eq!(pair[0].run_after, pair[1].logical_date);
        }
        for run in runs {
            prop_assert!(run.logical_date < run.run_after);
        }
    }

    #[test]
    fn the_answer_always_lies_after_the_last_tick(
        schedule in prop_oneof![
            expression().prop_map(|expression| Schedule::Cron { expression }),
            (1u64..100_000).prop_map(|seconds| Schedule::Every { interval: Duration::from_secs(seconds) }),
            Just(Schedule::Continuous),
        ],
        zone in prop::sample::select(&ZONES[..]),
        last in -1_000_000_000i64..4_000_000_000,
        ahead in -10_000_000i64..10_000_000,
        start in prop::option::of(0i64..3_000_000_000),
        catchup in any::<bool>(),
        data_intervals in any::<bool>(),
    ) {
        let second = |second| Timestamp::from_second(second).unwrap();
        let start_date = start.map(second);
        let spec = DagSpec { catchup, data_intervals, start_date, ..spec(schedule, zone) };
        let progress = ScheduleProgress { anchor: None, last_tick: Some(second(last)) };
        if let Some(run) = Timetable::new(&spec).unwrap().next(progress, second(last + ahead)) {
            prop_assert!(run.run_after > second(last), "{run:?}");
            prop_assert!(start_date.is_none_or(|start| run.logical_date >= start), "{run:?}");
        }
    }
}
