//! `cargo xtask test`: what a change must pass. CI calls exactly this.
//!
//! Clippy and rustc keep separate artefacts, so the workspace is compiled twice and no more: one profile,
//! and always the whole workspace, so that no step unifies features differently from the others.
//! Model and simulator run as they are built here: their crates are optimised in this profile too.

use std::process::Stdio;

use crate::steps::{Steps, seconds};
use crate::{bench, cargo, chaos, model, prerequisites, sim};

pub fn run(quick: bool) -> anyhow::Result<()> {
    prerequisites::ensure(quick)?;
    let mut steps = Steps::default();
    steps.run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    steps.run("lints", &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // Integration tests start the real binaries, those of other crates too.
    steps.run("build", &mut cargo(&["build", "--workspace", "--bins"]))?;
    steps.run("tests", &mut cargo(&test_command(quick, nextest_is_installed())))?;
    if !quick {
        steps.run("instructions", &mut bench::instructions())?;
        steps.together("model, simulator", &mut [model::command(), sim::short()])?;
        steps.together("chaos", &mut [chaos::short("postgres"), chaos::short("etcd")])?;
        steps.run("doc tests", &mut cargo(&["test", "--workspace", "--doc"]))?;
    }
    steps.summary();
    println!("\nall green in {}", seconds(steps.total()).trim_start());
    Ok(())
}

fn test_command(quick: bool, nextest: bool) -> Vec<&'static str> {
    let mut command = match nextest {
        true => vec!["nextest", "run", "--workspace"],
        false => vec!["test", "--workspace"],
    };
    match (quick, nextest) {
        (true, _) => command.extend(["--lib", "--bins"]),
        // Without a choice of targets `cargo test` would run the doc tests, which are a step of their own.
        (false, false) => command.extend(["--lib", "--bins", "--tests"]),
        (false, true) => {}
    }
    command
}

fn nextest_is_installed() -> bool {
    let probe = cargo(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}
