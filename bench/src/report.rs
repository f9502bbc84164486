//! Figures, what they should be, and the machine they were taken on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub family: String,
    pub machine: Machine,
    pub figures: Vec<Figure>,
    /// What could not be measured here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    pub what: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// As the kernel names its model. Older reports do not say.
    #[serde(default)]
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    pub load_before: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub unit: String,
    pub samples: usize,
    #[serde(deserialize_with = "number")]
    pub p50: f64,
    #[serde(deserialize_with = "number")]
    pub p99: f64,
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// What was set for it, if anything.
    pub goals: Vec<Goal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    pub of: Statistic,
    pub bound: Bound,
    pub value: f64,
    pub kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    P50,
    P99,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost,
    AtLeast,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kib = read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
        Self {
            processor: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib.unwrap_or(0) / 1024 / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: read("/proc/loadavg").split_whitespace().next().unwrap_or("?").to_owned(),
        }
    }
}

impl Figure {
    pub fn millis(name: impl Into<String>, samples: &[Duration], goal: Option<f64>) -> Self {
        let values = samples.iter().map(|sample| sample.as_secs_f64() * 1_000.0).collect();
        Self::of(name, "ms", values, goal)
    }

    pub fn of(name: impl Into<String>, unit: &'static str, mut values: Vec<f64>, goal: Option<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (share * (values.len() as f64 - 1.0)).round() as usize;
            values.get(index).copied().unwrap_or(f64::NAN)
        };
        let figure = Self {
            name: name.into(),
            unit: unit.to_owned(),
            samples: values.len(),
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            goals: vec![],
        };
        match goal {
            Some(goal) => figure.at_most(Statistic::P50, goal),
            None => figure,
        }
    }

    /// One number.
    pub fn one(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self::of(name, unit, vec![value], None)
    }

    /// How many there are in a second, by the median of what so many have taken.
    pub fn rate(name: impl Into<String>, unit: &'static str, count: usize, took: &Self) -> Self {
        assert_eq!(took.unit, "ms", "a rate is worked out from milliseconds");
        Self::one(name, unit, count as f64 / took.p50 * 1_000.0)
    }

    /// Processor time for each of so many.
    pub fn processor(name: impl Into<String>, unit: &'static str, used: Duration, count: usize) -> Self {
        Self::one(name, unit, used.as_secs_f64() * 1e6 / count as f64)
    }

    pub fn at_most(self, of: Statistic, value: f64) -> Self {
        self.goal(of, Bound::AtMost, value)
    }

    pub fn at_least(self, of: Statistic, value: f64) -> Self {
        self.goal(of, Bound::AtLeast, value)
    }

    fn goal(mut self, of: Statistic, bound: Bound, value: f64) -> Self {
        let kept = match bound {
            Bound::AtMost => self.statistic(of) <= value,
            Bound::AtLeast => self.statistic(of) >= value,
        };
        self.goals.push(Goal { of, bound, value, kept });
        self
    }

    fn statistic(&self, of: Statistic) -> f64 {
        match of {
            Statistic::P50 => self.p50,
            Statistic::P99 => self.p99,
            Statistic::Max => self.max,
        }
    }

    pub fn is_kept(&self) -> bool {
        self.goals.iter().all(|goal| goal.kept)
    }

    /// The goals, what was measured against each, and whether all are kept.
    fn verdict(&self) -> [String; 3] {
        let goal = |goal: &Goal| format!("{} {} {}", goal.of, goal.bound, goal.value);
        let ratio = |goal: &Goal| format!("{:.2}", self.statistic(goal.of) / goal.value);
        let all = |text: &dyn Fn(&Goal) -> String| self.goals.iter().map(text).collect::<Vec<_>>().join(", ");
        let kept = match self.goals.as_slice() {
            [] => "",
            _ if self.is_kept() => "yes",
            _ => "no",
        };
        [all(&goal), all(&ratio), kept.to_owned()]
    }
}

impl std::fmt::Display for Statistic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Max => "max",
        })
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AtMost => "≤",
            Self::AtLeast => "≥",
        })
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cores, memory_gib, kernel, load_before } = self;
        write!(f, "{cores} cores ({processor}), {memory_gib} GiB, Linux {kernel}, load before {load_before}")
    }
}

impl Report {
    pub fn print(&self) {
        println!("\n{} on {}", self.family, self.machine);
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["figure", "unit", "n", "p50", "p99", "max", "goal", "/ goal", "kept"]);
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for figure in &self.figures {
            let number = |value: f64| format!("{value:.2}");
            let [goals, ratios, kept] = figure.verdict();
            table.add_row([
                figure.name.clone(),
                figure.unit.clone(),
                figure.samples.to_string(),
                number(figure.p50),
                number(figure.p99),
                number(figure.max),
                goals,
                ratios,
                kept,
            ]);
        }
        println!("{table}");
        for Skipped { what, why } in &self.skipped {
            println!("skipped: {what}: {}", why.replace('\n', "\n    "));
        }
    }

    /// What `write_json` has written.
    pub fn read_json(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a report of this benchmark (see --json)", file.display()))
    }

    pub fn write_json(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}

/// JSON has no word for what lies beyond the last bucket, or was never seen: it is written as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    //! Goal: what one run writes, a later one reads.

    use super::*;

    fn written(report: &Report) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("figures.json");
        report.write_json(&file).expect("written");
        (folder, file)
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let figure = Figure::of("chain", "ms", vec![3.0, 1.0, 2.0], Some(2.5)).at_least(Statistic::Max, 4.0);
        let report = Report {
            family: "skeleton".into(),
            machine: Machine::here(),
            figures: vec![figure],
            skipped: vec![],
        };
        let (_folder, file) = written(&report);
        assert_eq!(Report::read_json(&file).expect("read"), report);
    }

    #[test]
    fn what_json_cannot_say_is_read_as_unknown() {
        let figures = vec![Figure::one("a pass", "ms", f64::INFINITY)];
        let report = Report { family: "cluster".into(), machine: Machine::here(), figures, skipped: vec![] };
        let (_folder, file) = written(&report);
        assert!(Report::read_json(&file).expect("read").figures[0].p50.is_nan());
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("old.json");
        let told = |file: &Path| format!("{:#}", Report::read_json(file).expect_err("no report"));
        assert!(told(&file).starts_with(&format!("cannot read {}: ", file.display())));
        std::fs::write(&file, "{}").expect("written");
        let expected = "old.json is not a report of this benchmark (see --json): missing field `family`";
        assert!(told(&file).contains(expected), "{}", told(&file));
    }
}
