//! dagu: `dagu start`, which is a process for each run. It runs the steps itself and keeps what it knows in files.
//!
//! That is its shortest way: no server, no scheduler, no queue. The time is that of the process, from its start to its end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::install::Scratch;
use super::{Bench, Outcome, RUN_WITHIN, Workload, process};

pub const NAME: &str = "dagu 1.30.2";
const PACKAGE: &str = "@dagu-org/dagu-linux-x64@1.30.2";
const PROGRAM: &str = "node_modules/@dagu-org/dagu-linux-x64/bin/dagu";
const SAMPLES: usize = 5;

pub fn install(scratch: &Scratch) -> Result<PathBuf> {
    scratch.node("dagu", PACKAGE, "")
}

pub fn measure(bench: &Bench<'_>, installed: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let home = tempfile::tempdir()?;
    for (workload, dag, tasks_per_run) in Workload::DAGS {
        let file = home.path().join(dag).with_extension("yaml");
        std::fs::write(&file, steps(tasks_per_run, workload == Workload::Chain))?;
        run(installed, home.path(), &file)?; // the first one makes its folders
        let samples = 0..bench.options.samples.min(SAMPLES);
        let took = samples.map(|_| run(installed, home.path(), &file)).collect::<Result<_>>()?;
        outcomes.push(Outcome { workload, who: NAME, took, tasks_per_run, usage: None });
    }
    Ok(())
}

/// A step that fails is a process that fails.
fn run(installed: &Path, home: &Path, file: &Path) -> Result<Duration> {
    let mut start = Command::new(installed.join(PROGRAM));
    start.args(["start", "--quiet"]).arg(file).env("DAGU_HOME", home);
    let began = Instant::now();
    process::run("dagu start", &start, &home.join("run.log"), RUN_WITHIN)?;
    Ok(began.elapsed())
}

fn steps(count: usize, chain: bool) -> String {
    let step = |number: usize| {
        let after = match (chain, number.checked_sub(1)) {
            (true, Some(before)) => format!(", depends: [t{before}]"),
            _ => String::new(),
        };
        format!("  - {{ name: t{number}, command: \"true\"{after} }}\n")
    };
    format!("type: graph\nsteps:\n{}", (0..count).map(step).collect::<String>())
}
