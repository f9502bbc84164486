//! Goal: pictures tell what the numbers tell. Method: lengths read back from the SVG, and the documentation's own files.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::*;
use crate::Family;
use crate::report::{Machine, Statistic};

fn report(figures: Vec<Figure>) -> Report {
    Report { family: "placement".into(), machine: Machine::here(), figures, skipped: vec![] }
}

/// The widths of all elements of a class, the legend's first.
fn widths(svg: &str, class: &str) -> Vec<f64> {
    let class = format!("class=\"{class}\"");
    let of = |line: &str| line.split_once("width=\"")?.1.split_once('"')?.0.parse().ok();
    svg.lines().filter(|line| line.starts_with("<rect") && line.contains(&class)).filter_map(of).collect()
}

#[test]
fn bars_of_one_unit_share_an_axis_that_holds_their_goals() {
    let figures = vec![
        Figure::of("slow", "ms", vec![400.0], Some(500.0)),
        Figure::of("fast", "ms", vec![100.0], None),
        Figure::of("small", "MB", vec![1.0], None),
    ];
    let page = WIDTH - 2.0 * MARGIN;
    let bars = &widths(&svg(&report(figures)), "bar")[1..];
    assert_eq!(bars, [page * 0.8, page * 0.2, page].map(|width| (width * 10.0).round() / 10.0));
}

#[test]
fn what_is_below_nothing_grows_to_the_left() {
    let axis = Axis::over(&[&Figure::one("early", "ms", -200.0), &Figure::one("late", "ms", 50.0)]);
    assert_eq!((axis.low, axis.high), (-200.0, 50.0));
    assert!(axis.x(-200.0) < axis.x(0.0));
}

#[test]
fn a_goal_that_is_missed_looks_unlike_one_that_is_kept() {
    let figure = Figure::one("rate", "/s", 10.0).at_least(Statistic::P50, 20.0).at_most(Statistic::P50, 30.0);
    let text = svg(&report(vec![figure]));
    assert!(text.contains("<tspan class=\"missed\">≥ 20</tspan>"), "{text}");
    assert!(text.contains("<tspan class=\"kept\">≤ 30</tspan>"), "{text}");
}

#[test]
fn a_name_cannot_break_the_picture() {
    let text = svg(&report(vec![Figure::one("a <b> & \"c\"", "ms", f64::NAN)]));
    assert!(text.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{text}");
    assert!(!text.contains("NaN"), "{text}");
}

#[test]
fn numbers_are_as_long_as_they_need_to_be() {
    let written = [0.0, 0.094, 5.0, 17.84, 141.3, 17_726.0, 1_000_000.0, -237.0].map(number);
    assert_eq!(written, ["0", "0.09", "5", "17.8", "141", "17,726", "1,000,000", "−237"]);
}

#[test]
fn every_family_has_its_figures_in_the_documentation() {
    // Instructions have a baseline instead, beside the code.
    let measured = Family::value_variants().iter().filter(|family| !matches!(family, Family::Instructions));
    let names = measured.filter_map(|family| Some(family.to_possible_value()?.get_name().to_owned()));
    let missing: Vec<String> =
        names.filter(|name| !folder().join(name).with_extension("json").exists()).collect();
    assert!(
        missing.is_empty(),
        "{missing:?}: cargo xtask bench <family> --json docs/benchmarks/<family>.json"
    );
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks")
}

#[test]
fn the_pictures_in_the_documentation_show_the_numbers_beside_them() {
    let files =
        std::fs::read_dir(folder()).expect("there is a folder").map(|entry| entry.expect("an entry").path());
    let reports: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect();
    assert!(!reports.is_empty(), "no report in {}", folder().display());
    for file in reports {
        let drawn = std::fs::read_to_string(file.with_extension("svg")).expect("a picture beside the report");
        let report = Report::read_json(&file).expect("a report");
        assert_eq!(file.file_stem().and_then(|name| name.to_str()), Some(report.family.as_str()));
        assert!(
            drawn == svg(&report),
            "{} is out of date: cargo xtask bench plots docs/benchmarks/*.json",
            file.with_extension("svg").display()
        );
    }
}
