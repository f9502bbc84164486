//! The developer's front door: `cargo xtask up`, `test`, `bench`, `chaos`, `model`, `sim`, `soak` and `fmt`.
//!
//! What CI runs is `cargo xtask test`, so that a person and the machine see the same. Everything here is
//! a thin layer over cargo; nothing of the product lives in it.

mod bench;
mod chaos;
mod model;
mod prerequisites;
mod sim;
mod steps;
mod test;
mod up;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Developer commands of Tenure.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build the release binary and start it: `cargo xtask up --dags my-dags`.
    Up {
        /// Passed on to `tenure up`; `cargo xtask up -- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },
    /// Everything a change must pass: format, lints, build, tests, doc tests.
    Test {
        /// Unit tests only: no real processes and databases, no doc tests.
        #[arg(long)]
        quick: bool,
    },
    /// Measure a release build: `cargo xtask bench skeleton --samples 50 --json figures.json`.
    Bench {
        /// Passed on to the benchmark; `cargo xtask bench -- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },
    /// Break a cluster of real processes on purpose: `cargo xtask chaos --minutes 2 --seed 7 --wiring etcd`.
    Chaos {
        /// Passed on to the harness; `cargo xtask chaos -- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },
    /// Explore every state of the protocol's model, and make sure that the checker finds its mutants.
    Model {
        /// Larger worlds: minutes, and gigabytes of memory.
        #[arg(long)]
        large: bool,
    },
    /// Run the control plane under virtual time and faults: `cargo xtask sim --seeds 500`, `cargo xtask sim --seed 7`.
    Sim {
        /// Passed on to the simulator; `cargo xtask sim -- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },
    /// Simulate seeds that nobody has tried yet, until one fails or the time is over.
    Soak {
        /// For how long.
        #[arg(long, default_value_t = 1.0)]
        hours: f64,
        /// The first seed [default: another one each time].
        #[arg(long)]
        from: Option<u64>,
    },
    /// Format every crate.
    Fmt,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Up { args } => up::run(&args),
        Task::Test { quick } => test::run(quick),
        Task::Bench { args } => bench::run(&args),
        Task::Chaos { args } => chaos::run(&args),
        Task::Model { large } => model::run(large),
        Task::Sim { args } => sim::run(&args),
        Task::Soak { hours, from } => sim::soak(hours, from),
        Task::Fmt => fmt(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fmt() -> anyhow::Result<()> {
    let status = cargo(&["fmt", "--all"]).status().context("cargo fmt could not be started")?;
    anyhow::ensure!(status.success(), "cargo fmt failed ({status})");
    Ok(())
}

/// Cargo, in the root of the project, whatever folder the user stands in.
fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// A program that cargo has built; `folder` is the profile's, which is `debug` for the profile of tests.
fn built(folder: &str, name: &str) -> PathBuf {
    target().join(folder).join(name)
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the project").to_owned()
}
