//! `cargo xtask up`: from a fresh clone to a running server in one command.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::{built, cargo};

/// Returns only when something went wrong: on success this process *is* `tenure up`, so that Ctrl-C and
/// every other signal reach it without a middleman.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let build = cargo(&["build", "--release", "--package", "tenure"]).status();
    let build = build.context("cargo build could not be started")?;
    anyhow::ensure!(build.success(), "the build failed; nothing was started");
    let binary = release_binary("tenure");
    // The folder stays the user's own: `./dags` and `./tenure-data` mean what they mean there.
    let error = Command::new(&binary).arg("up").args(args).exec();
    Err(error).with_context(|| format!("{} could not be started", binary.display()))
}

pub fn release_binary(name: &str) -> PathBuf {
    built("release", name)
}
