//! `cargo xtask bench`: builds the release binary and measures it.

use std::process::Command;

use anyhow::Context;

use crate::up::release_binary;
use crate::{built, cargo, prerequisites};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    match args.first().map(String::as_str) {
        Some("compare" | "plots") => look_back(args),
        Some("instructions") => count(args),
        _ => measure(args),
    }
}

fn measure(args: &[String]) -> anyhow::Result<()> {
    prerequisites::ensure(false)?;
    build(&["--release", "--package", "tenure", "--package", "tenure-bench"])?;
    let mut bench = Command::new(release_binary("tenure-bench"));
    finish(bench.args(args).arg("--binary").arg(release_binary("tenure")))
}

/// Reads reports that are there already: any build will do, and the one that tests use is there most often.
fn look_back(args: &[String]) -> anyhow::Result<()> {
    build(&["--package", "tenure-bench"])?;
    finish(Command::new(built("debug", "tenure-bench")).args(args))
}

/// On the build that tests use, which the baseline belongs to.
fn count(args: &[String]) -> anyhow::Result<()> {
    prerequisites::ensure(false)?;
    build(&["--package", "tenure-bench"])?;
    finish(instructions().args(&args[1..]))
}

/// Counts on what is built already.
pub fn instructions() -> Command {
    let mut bench = Command::new(built("debug", "tenure-bench"));
    bench.arg("instructions");
    bench
}

fn build(what: &[&str]) -> anyhow::Result<()> {
    let status = cargo(&["build"]).args(what).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was measured");
    Ok(())
}

fn finish(bench: &mut Command) -> anyhow::Result<()> {
    let status = bench.status().context("the benchmark could not be started")?;
    anyhow::ensure!(status.success(), "the benchmark failed ({status})");
    Ok(())
}
