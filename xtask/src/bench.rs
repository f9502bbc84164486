//! `cargo xtask bench`: builds the release binary and measures it.

use anyhow::Context;

use crate::up::release_binary;
use crate::{cargo, prerequisites};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    prerequisites::ensure(false)?;
    let build = ["build", "--release", "--package", "tenure", "--package", "tenure-bench"];
    let status = cargo(&build).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was measured");
    let binary = release_binary("tenure");
    let mut bench = std::process::Command::new(release_binary("tenure-bench"));
    let status = bench
        .args(args)
        .arg("--binary")
        .arg(&binary)
        .status()
        .context("the benchmark could not be started")?;
    anyhow::ensure!(status.success(), "the benchmark failed ({status})");
    Ok(())
}
