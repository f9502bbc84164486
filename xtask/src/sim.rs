//! `cargo xtask sim` and `cargo xtask soak`: the control plane under virtual time and faults.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use crate::{built, cargo};

/// In `cargo xtask test`: two thousand seeds, or as many as a slow machine has done by then.
const SEEDS: &str = "2000";
const SECONDS: &str = "180";

pub fn run(args: &[String]) -> anyhow::Result<()> {
    build()?;
    let mut simulator = Command::new(built("sim", "tenure-sim"));
    let status = simulator.args(args).status().context("the simulator could not be started")?;
    anyhow::ensure!(status.success(), "a promise was broken, or a seed was not the same twice ({status})");
    Ok(())
}

/// Seeds that nobody has tried yet, for so many hours, until one fails.
pub fn soak(hours: f64, from: Option<u64>) -> anyhow::Result<()> {
    let seconds = (hours * 3600.0).ceil() as u64;
    let from = from.unwrap_or_else(untried);
    println!("from seed {from}");
    let args = ["--from", &from.to_string(), "--seconds", &seconds.to_string(), "--first"];
    run(&args.map(str::to_owned))
}

/// Nanoseconds since 1970: far fewer than that are tried in a second, so no other soak comes by the same.
#[allow(
    clippy::disallowed_methods,
    reason = "a developer tool picks where to begin; what follows depends on the seed alone"
)]
fn untried() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that was set");
    since.as_nanos() as u64
}

/// What every change must pass, in the build that the tests use: it is optimised there too.
pub fn short() -> Command {
    let mut seeds = Command::new(built("debug", "tenure-sim"));
    seeds.args(["--seeds", SEEDS, "--seconds", SECONDS]);
    seeds
}

fn build() -> anyhow::Result<()> {
    let build = ["build", "--profile", "sim", "--package", "tenure-sim"];
    let status = cargo(&build).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was simulated");
    Ok(())
}
