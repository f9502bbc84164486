//! `cargo xtask sim` and `cargo xtask soak`: the control plane under virtual time and faults.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::{cargo, root};

/// In `cargo xtask test`: two thousand seeds, or as many as a slow machine has done by then.
const SEEDS: &str = "2000";
const SECONDS: &str = "180";

pub fn run(args: &[String]) -> anyhow::Result<()> {
    build()?;
    let status = simulator("sim").args(args).status().context("the simulator could not be started")?;
    anyhow::ensure!(status.success(), "a promise was broken, or a seed was not the same twice ({status})");
    Ok(())
}

/// Seeds that nobody has tried yet, for so many hours, until one fails.
pub fn soak(hours: f64, from: Option<u64>) -> anyhow::Result<()> {
    let seconds = (hours * 3600.0).ceil() as u64;
    let from = from.unwrap_or_else(|| u64::from(std::process::id()) << 32);
    let args = ["--from", &from.to_string(), "--seconds", &seconds.to_string(), "--first"];
    let unbounded = ["--seeds".to_owned(), (u64::MAX - from).to_string()];
    let args: Vec<String> = args.into_iter().map(str::to_owned).chain(unbounded).collect();
    run(&args)
}

/// What every change must pass, in the build that the tests use: it is optimised there too.
pub fn short() -> Command {
    let mut seeds = simulator("debug");
    seeds.args(["--seeds", SEEDS, "--seconds", SECONDS]);
    seeds
}

fn build() -> anyhow::Result<()> {
    let build = ["build", "--profile", "sim", "--package", "tenure-sim"];
    let status = cargo(&build).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was simulated");
    Ok(())
}

fn simulator(built: &str) -> Command {
    let folder: PathBuf =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    Command::new(folder.join(built).join("tenure-sim"))
}
