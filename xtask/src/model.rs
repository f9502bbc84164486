//! `cargo xtask model`: explores the protocol's model, and makes sure that its mutants are found.

use std::process::Command;

use anyhow::Context;

use crate::{built, cargo};

pub fn run(large: bool) -> anyhow::Result<()> {
    let build = cargo(&["build", "--package", "tenure-protocol"]).status();
    let build = build.context("cargo build could not be started")?;
    anyhow::ensure!(build.success(), "the build failed; nothing was explored");
    let mut explore = command();
    if large {
        explore.arg("--large");
    }
    let status = explore.status().context("the model could not be started")?;
    anyhow::ensure!(status.success(), "a promise does not hold, or the model does not show what it should");
    Ok(())
}

/// The model that is built already.
pub fn command() -> Command {
    Command::new(built("debug", "tenure-model"))
}
