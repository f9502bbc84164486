//! How many instructions the hot paths take, counted by valgrind: regressions show here without any noise of a machine.
//!
//! Each workload runs twice in a process of its own, with so many repetitions and with twice as many. The difference
//! is what the repetitions cost; what starting, preparing and ending cost is in both and falls out. Counted is user
//! space only, so a disk can be as slow as it likes. The counts are held against `bench/instructions.json`, which
//! belongs to the build that tests use: another profile counts differently, and another compiler a little.

pub mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::report::{Figure, Machine, Report, Statistic};
use workload::Workload;

/// What was counted before, by figure.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    /// How far from the baseline a count may be: compilers and C libraries differ by a few percent.
    tolerance: f64,
    instructions: BTreeMap<String, f64>,
}

/// The way out of every complaint.
const RENEW: &str = "cargo xtask bench instructions --bless";

pub fn measure() -> Result<Report> {
    let machine = Machine::here();
    let baseline = Baseline::read()?;
    let counts = Workload::ALL.into_iter().zip(counts()?);
    let figures = counts.map(|(workload, count)| baseline.hold(workload, count)).collect::<Result<_>>()?;
    Ok(Report { family: "instructions".into(), machine, figures, skipped: vec![] })
}

/// What a count beyond the tolerance means to whoever has made it.
pub fn judge(report: &Report) -> Result<()> {
    let beyond: Vec<&str> =
        report.figures.iter().filter(|figure| !figure.is_kept()).map(|figure| figure.name.as_str()).collect();
    ensure!(
        beyond.is_empty(),
        "too far from bench/instructions.json: {}\nif that is meant, or the compiler is another one: {RENEW}",
        beyond.join(", ")
    );
    Ok(())
}

/// Takes what is counted now for what should be counted.
pub fn bless() -> Result<()> {
    let tolerance = Baseline::read()?.tolerance;
    let names = Workload::ALL.into_iter().map(|workload| workload.figure().to_owned());
    let baseline = Baseline { tolerance, instructions: names.zip(counts()?).collect() };
    for (name, count) in &baseline.instructions {
        println!("{name}: {count}");
    }
    baseline.write()
}

/// For one unit of each workload. Side by side: counts do not mind who else is busy.
fn counts() -> Result<Vec<f64>> {
    std::thread::scope(|scope| {
        let counting = Workload::ALL.map(|workload| {
            scope.spawn(move || {
                let times = workload.times();
                let (once, twice) = (total(workload, times)?, total(workload, 2 * times)?);
                let more = twice.checked_sub(once).context("twice the work takes more instructions")?;
                Ok((more as f64 / (times * workload.units()) as f64).round())
            })
        });
        counting.into_iter().map(|count| count.join().expect("counting does not panic")).collect()
    })
}

/// All instructions of a process that does the workload so many times.
fn total(workload: Workload, times: usize) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let counted = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", counted.display()))
        .arg(std::env::current_exe()?)
        .args(["work", workload.name(), &times.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("valgrind cannot be started; the Debian package `valgrind` has it")?;
    ensure!(
        output.status.success(),
        "{} failed under valgrind ({}):\n{}",
        workload.name(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&counted).context("valgrind has written no counts")?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).context("counts have totals")?;
    Ok(total.trim().parse()?)
}

impl Baseline {
    /// Fewer than before is also too far: the next regression would hide behind it.
    fn hold(&self, workload: Workload, count: f64) -> Result<Figure> {
        let name = workload.figure();
        let before =
            self.instructions.get(name).with_context(|| format!("«{name}» has no baseline: {RENEW}"))?;
        Ok(Figure::one(name, "instructions", count)
            .at_least(Statistic::P50, (before * (1.0 - self.tolerance)).round())
            .at_most(Statistic::P50, (before * (1.0 + self.tolerance)).round()))
    }

    fn file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
    }

    fn read() -> Result<Self> {
        let text = std::fs::read_to_string(Self::file()).context("cannot read bench/instructions.json")?;
        serde_json::from_str(&text).context("bench/instructions.json is no baseline")
    }

    fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(Self::file(), text).context("cannot write bench/instructions.json")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a count that moves is noticed, whichever way, and says what to do.

    use super::*;

    fn judged(count: f64) -> Result<(), String> {
        let instructions = [(Workload::Planner.figure().to_owned(), 1_000.0)].into();
        let baseline = Baseline { tolerance: 0.1, instructions };
        let figures = vec![baseline.hold(Workload::Planner, count).expect("there is a baseline")];
        let report =
            Report { family: "instructions".into(), machine: Machine::here(), figures, skipped: vec![] };
        judge(&report).map_err(|error| error.to_string())
    }

    #[test]
    fn a_count_within_the_tolerance_is_good() {
        assert_eq!([901.0, 1_000.0, 1_100.0].map(judged), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn a_count_beyond_the_tolerance_is_named_with_the_way_to_renew_it() {
        for count in [899.0, 1_101.0] {
            let told = judged(count).expect_err("too far");
            assert!(told.contains(Workload::Planner.figure()) && told.ends_with(RENEW), "{told}");
        }
    }

    #[test]
    fn every_workload_has_a_baseline_and_does_its_work() {
        let baseline = Baseline::read().expect("a baseline");
        for workload in Workload::ALL {
            assert!(baseline.instructions.contains_key(workload.figure()), "{workload:?}: {RENEW}");
            workload.run(1).expect("it does its work");
        }
    }
}
