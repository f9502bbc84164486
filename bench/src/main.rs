//! Measures a real `tenure up` from outside, as its users feel it. `cargo xtask bench` builds and runs it.
//!
//! Every figure comes with the floor it stands on, measured in the same run: what forking the same
//! processes costs, and what one flush to this disk costs. Absolute times belong to a machine; ratios travel.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod floors;
mod report;
mod server;
mod skeleton;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

#[derive(Debug, Parser)]
struct Args {
    /// What to measure
    #[arg(value_enum, default_value_t)]
    family: Family,
    /// The binary to measure
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Samples of each figure
    #[arg(long, default_value_t = 20)]
    samples: usize,
    /// Also write the figures to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Family {
    /// Chains, fan-outs, empty tasks and idling, on SQLite and on Postgres
    #[default]
    Skeleton,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let report = match args.family {
        Family::Skeleton => skeleton::measure(&args.binary, args.samples)?,
    };
    report.print();
    if let Some(file) = &args.json {
        report.write_json(file)?;
    }
    Ok(())
}
