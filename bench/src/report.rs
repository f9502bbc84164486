//! Figures, what they should be, and the machine they were taken on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Report {
    pub family: &'static str,
    pub machine: Machine,
    pub figures: Vec<Figure>,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    pub load_before: String,
}

#[derive(Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub samples: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    /// What was set for it, if anything.
    pub goals: Vec<Goal>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Goal {
    pub of: Statistic,
    pub bound: Bound,
    pub value: f64,
    pub kept: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    P50,
    P99,
    Max,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost,
    AtLeast,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kib = read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
        Self {
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
            unit,
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

    /// The goals, what was measured against each, and whether all are kept.
    fn verdict(&self) -> [String; 3] {
        let goal = |goal: &Goal| {
            let bound = match goal.bound {
                Bound::AtMost => "≤",
                Bound::AtLeast => "≥",
            };
            format!("{:?} {bound} {}", goal.of, goal.value).to_lowercase()
        };
        let ratio = |goal: &Goal| format!("{:.2}", self.statistic(goal.of) / goal.value);
        let all = |text: &dyn Fn(&Goal) -> String| self.goals.iter().map(text).collect::<Vec<_>>().join(", ");
        let kept = match self.goals.as_slice() {
            [] => "",
            goals if goals.iter().all(|goal| goal.kept) => "yes",
            _ => "no",
        };
        [all(&goal), all(&ratio), kept.to_owned()]
    }
}

impl Report {
    pub fn print(&self) {
        let machine = &self.machine;
        println!(
            "\n{} on {} cores, {} GiB, Linux {}, load before {}",
            self.family, machine.cores, machine.memory_gib, machine.kernel, machine.load_before
        );
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
                figure.unit.to_owned(),
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
    }

    pub fn write_json(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}
