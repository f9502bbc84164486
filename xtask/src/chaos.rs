//! `cargo xtask chaos`: builds the binary and lets real processes fail.

use std::process::Command;

use anyhow::Context;

use crate::{built, cargo, prerequisites, target};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    prerequisites::ensure(false)?;
    // As the tests are built: what fails here can be looked at there.
    let build = ["build", "--package", "tenure", "--package", "tenure-chaos"];
    let status = cargo(&build).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was broken");
    let status = harness("chaos").args(args).status().context("the harness could not be started")?;
    anyhow::ensure!(status.success(), "a promise was broken, or could not be checked ({status})");
    Ok(())
}

/// Twenty seconds of faults for each way to keep leases: always the same ones, so that a failure is worth repeating.
pub fn short(wiring: &str) -> Command {
    let mut harness = harness(&format!("chaos-{wiring}")); // they run side by side
    harness.args(["--minutes", "0.3", "--seed", "8", "--wiring", wiring]);
    harness
}

/// The harness, on the binary that has been built. `out`: where a history goes that breaks a promise.
fn harness(out: &str) -> Command {
    let mut harness = Command::new(built("debug", "tenure-chaos"));
    harness.arg("run").arg("--binary").arg(built("debug", "tenure")).arg("--out").arg(target().join(out));
    harness
}
