//! `cargo xtask chaos`: builds the binary and lets real processes fail.

use anyhow::Context;

use crate::{cargo, prerequisites, root};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    prerequisites::ensure(false)?;
    // As the tests are built: what fails here can be looked at there.
    let build = ["build", "--package", "tenure", "--package", "tenure-chaos"];
    let status = cargo(&build).status().context("cargo build could not be started")?;
    anyhow::ensure!(status.success(), "the build failed; nothing was broken");
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let status = std::process::Command::new(folder.join("debug").join("tenure-chaos"))
        .arg("run")
        .arg("--binary")
        .arg(folder.join("debug").join("tenure"))
        .arg("--out")
        .arg(folder.join("chaos"))
        .args(args)
        .status()
        .context("the harness could not be started")?;
    anyhow::ensure!(status.success(), "a promise was broken, or could not be checked ({status})");
    Ok(())
}
