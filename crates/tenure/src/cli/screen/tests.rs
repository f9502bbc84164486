//! Goal: what people read is stable. Method: a screen of fixed time, zone and width.

use serde_json::json;

use super::*;

/// Noon two hours east of UTC, no colours, no terminal.
pub fn plain() -> Screen {
    Screen {
        format: OutputFormat::Table,
        colour: false,
        width: None,
        now: "2026-07-01T10:00:00Z".parse().unwrap(),
        zone: TimeZone::fixed(jiff::tz::Offset::constant(2)),
    }
}

#[test]
fn durations_are_short_at_every_size() {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let shown = |millis: i64| elapsed(start, start + jiff::SignedDuration::from_millis(millis));
    let sizes = [0, 340, 3_450, 12_300, 65_000, 7_380_000, 273_600_000];
    assert_eq!(sizes.map(shown), ["0ms", "340ms", "3.4s", "12s", "1m05s", "2h03m", "3d04h"]);
    assert_eq!(shown(-5), "0ms", "clocks may disagree");
}

#[test]
fn times_are_shown_in_the_local_zone() {
    let item = json!({ "start_date": "2026-07-01T09:59:48Z", "end_date": null });
    assert_eq!(plain().time(&item, "start_date").unwrap(), "2026-07-01 11:59:48");
    assert_eq!(plain().took(&item, "start_date", "end_date").unwrap(), "12s");
    assert_eq!(plain().time(&item, "end_date"), None);
}

#[test]
fn a_table_is_aligned_and_bare() {
    let rows =
        [("a", 1), ("longer", 100)].map(|(name, count)| vec![Cell::new(name), number(count), Cell::new("x")]);
    expect_test::expect![[r#"
        NAME    COUNT  WHAT
        a           1  x
        longer    100  x"#]]
    .assert_eq(&plain().table(&["NAME", "COUNT", "WHAT"], rows));
}

#[test]
fn a_table_folds_into_a_narrow_terminal() {
    let screen = Screen { width: Some(40), ..plain() };
    let table = screen.table(&["NAME", "TEXT"], [vec![Cell::new("a"), Cell::new("many words ".repeat(10))]]);
    assert!(table.lines().all(|line| line.chars().count() <= 40), "{table}");
    assert!(table.lines().count() > 3, "{table}");
}

#[test]
fn states_are_coloured_only_where_colours_can_be_shown() {
    let coloured = Screen { colour: true, ..plain() };
    let table = |screen: &Screen| screen.table(&["STATE"], [vec![screen.state("failed")]]);
    assert!(table(&coloured).contains("\u{1b}["));
    assert!(!table(&plain()).contains('\u{1b}'));
    assert_eq!(coloured.painted("failed"), "\u{1b}[31mfailed\u{1b}[0m");
    assert_eq!(plain().painted("failed"), "failed");
}
