//! A report as a picture: one SVG, made by hand, legible on light and on dark pages.
//!
//! A bar is the median, a whisker leads to p99, a tick is a goal. Figures that share a unit share an axis. The same
//! report always gives the same text, so that pictures in the documentation can be held against their numbers.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{Figure, Goal, Report};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
/// Name above, bar below.
const ROW: f64 = 42.0;
const BAR: f64 = 12.0;

const STYLE: &str = "\
    text { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328 } \
    .title { font-size: 20px; font-weight: 600 } .unit, .value { font-weight: 600 } \
    .quiet { fill: #59636e } .axis { font-size: 11px } .end { text-anchor: end } .mid { text-anchor: middle } \
    .page { fill: #ffffff } .track { fill: #eef1f4 } .bar { fill: #4184c4 } .line { stroke: #d1d9e0 } \
    .whisker { stroke: #1f2328; stroke-width: 1.5 } \
    .kept { fill: #1a7f37 } .missed { fill: #cf222e } \
    @media (prefers-color-scheme: dark) { \
    text { fill: #e6edf3 } .quiet { fill: #9aa4ae } \
    .page { fill: #0d1117 } .track { fill: #1c232b } .bar { fill: #4b92d8 } .line { stroke: #3d444d } \
    .whisker { stroke: #e6edf3 } \
    .kept { fill: #3fb950 } .missed { fill: #f85149 } }";

pub fn draw(report: &Report, file: &Path) -> Result<()> {
    std::fs::write(file, svg(report)).with_context(|| format!("cannot write {}", file.display()))
}

fn svg(report: &Report) -> String {
    let mut sheet = Sheet::default();
    sheet.header(report);
    for (unit, figures) in by_unit(report) {
        sheet.group(unit, &figures);
    }
    sheet.finish(&report.family)
}

/// In the order in which units first appear.
fn by_unit(report: &Report) -> Vec<(&str, Vec<&Figure>)> {
    let mut groups: Vec<(&str, Vec<&Figure>)> = vec![];
    for figure in &report.figures {
        match groups.iter_mut().find(|(unit, _)| *unit == figure.unit) {
            Some((_, figures)) => figures.push(figure),
            None => groups.push((&figure.unit, vec![figure])),
        }
    }
    groups
}

#[derive(Default)]
struct Sheet {
    body: String,
    /// How far down it is full.
    y: f64,
}

impl Sheet {
    fn header(&mut self, report: &Report) {
        self.y = MARGIN + 14.0;
        self.text(MARGIN, "title", &report.family);
        self.y += 22.0;
        self.text(MARGIN, "quiet", &format!("On {}.", report.machine));
        self.y += 24.0;
        let middle = self.y - 4.5;
        self.rect("bar", MARGIN, middle - BAR / 2.0, 28.0, BAR);
        self.text(MARGIN + 36.0, "quiet", "p50");
        self.line("whisker", (MARGIN + 80.0, middle), (MARGIN + 108.0, middle));
        self.line("whisker", (MARGIN + 108.0, middle - 4.0), (MARGIN + 108.0, middle + 4.0));
        self.text(MARGIN + 116.0, "quiet", "p99");
        for (at, class, what) in [(160.0, "kept", "goal, kept"), (262.0, "missed", "goal, missed")] {
            self.rect(class, MARGIN + at, middle - 9.0, 3.0, 18.0);
            self.text(MARGIN + at + 11.0, "quiet", what);
        }
        self.y += 10.0;
    }

    fn group(&mut self, unit: &str, figures: &[&Figure]) {
        let axis = Axis::over(figures);
        self.y += 30.0;
        self.text(MARGIN, "unit", unit);
        self.line("line", (MARGIN, self.y + 6.0), (WIDTH - MARGIN, self.y + 6.0));
        self.y += 8.0;
        for figure in figures {
            self.row(&axis, figure);
        }
        for value in axis.ticks() {
            let x = axis.x(value);
            self.line("line", (x, self.y + 2.0), (x, self.y + 7.0));
            let class = match x {
                x if x < MARGIN + 10.0 => "axis quiet",
                x if x > WIDTH - MARGIN - 10.0 => "axis quiet end",
                _ => "axis quiet mid",
            };
            self.y += 19.0;
            self.text(x, class, &number(value));
            self.y -= 19.0;
        }
        self.y += 22.0;
    }

    fn row(&mut self, axis: &Axis, figure: &Figure) {
        let bottom = self.y + ROW;
        self.y += 18.0;
        self.text(MARGIN, "", &figure.name);
        self.values(figure);
        let (top, middle) = (self.y + 7.0, self.y + 7.0 + BAR / 2.0);
        self.rect("track", MARGIN, top, WIDTH - 2.0 * MARGIN, BAR);
        if figure.p50.is_finite() {
            let (from, to) = (axis.x(figure.p50.min(0.0)), axis.x(figure.p50.max(0.0)));
            self.rect("bar", from, top, (to - from).max(1.0), BAR);
        }
        if figure.p50.is_finite() && figure.p99.is_finite() && figure.samples > 1 {
            let tip = axis.x(figure.p99);
            self.line("whisker", (axis.x(figure.p50), middle), (tip, middle));
            self.line("whisker", (tip, middle - 4.0), (tip, middle + 4.0));
        }
        for goal in &figure.goals {
            self.rect(class_of(goal), axis.x(goal.value) - 1.5, middle - 9.0, 3.0, 18.0);
        }
        self.y = bottom;
    }

    /// The same in numbers, in three columns at the right.
    fn values(&mut self, figure: &Figure) {
        let many = figure.samples > 1;
        self.text(WIDTH - MARGIN - 270.0, "value end", &number(figure.p50));
        if many {
            self.text(WIDTH - MARGIN - 175.0, "quiet end", &format!("p99 {}", number(figure.p99)));
        }
        let goal = |goal: &Goal| {
            let of = if many { format!("{} ", goal.of) } else { String::new() };
            let class = class_of(goal);
            format!("<tspan class=\"{class}\">{of}{} {}</tspan>", goal.bound, number(goal.value))
        };
        let goals: Vec<String> = figure.goals.iter().map(goal).collect();
        let (x, y) = (WIDTH - MARGIN, self.y);
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"end\">{}</text>", goals.join("&#160; ")));
    }

    fn text(&mut self, x: f64, class: &str, text: &str) {
        let (y, text) = (self.y, escaped(text));
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.push(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"1.5\" class=\"{class}\"/>"
        ));
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        ));
    }

    fn push(&mut self, element: &str) {
        writeln!(self.body, "{element}").expect("a string takes any text");
    }

    fn finish(self, family: &str) -> String {
        let (height, family) = (self.y + MARGIN, escaped(family));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" role=\"img\">\n<title>Benchmark {family}</title>\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"page\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// From the smallest value, or nothing, to a round number above the largest.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    fn over(figures: &[&Figure]) -> Self {
        let values = figures.iter().flat_map(|figure| {
            [figure.p50, figure.p99].into_iter().chain(figure.goals.iter().map(|goal| goal.value))
        });
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let high = values.iter().copied().fold(0.0, f64::max);
        let low = values.iter().copied().fold(0.0, f64::min);
        let span = if high > low { high - low } else { 1.0 };
        // Some five steps of 1, 2 or 5 times a power of ten.
        let power = 10_f64.powf((span / 5.0).log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| span / step <= 5.0);
        let step = step.unwrap_or(power * 10.0);
        let high = ((high / step).ceil() * step).max(low + step);
        Self { low: (low / step).floor() * step, high, step }
    }

    fn x(&self, value: f64) -> f64 {
        MARGIN + (value - self.low) / (self.high - self.low) * (WIDTH - 2.0 * MARGIN)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        (0..=count).map(|tick| self.low + tick as f64 * self.step)
    }
}

fn class_of(goal: &Goal) -> &'static str {
    if goal.kept { "kept" } else { "missed" }
}

/// Three digits or more, in groups of three.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "?".into();
    }
    let decimals = match value.abs() {
        size if size >= 100.0 || value == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let text = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("−", rest));
    let (whole, fraction) =
        text.split_once('.').map_or((text, ""), |(whole, _)| (whole, &text[whole.len()..]));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
