//! Measures real processes from outside, as their users feel them. `cargo xtask bench` builds and runs it.
//!
//! Every figure comes with the floor it stands on, measured in the same run: what forking the same
//! processes costs, and what one flush to this disk costs. Absolute times belong to a machine; ratios travel.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod agents;
mod cluster;
mod compare;
mod floors;
mod instructions;
mod lease;
mod peers;
mod placement;
mod plot;
mod report;
mod server;
mod skeleton;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use instructions::workload::Workload;
use report::Report;

/// Measures Tenure from outside.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// What to measure
    #[arg(value_enum, default_value_t)]
    family: Family,
    /// The binary to measure
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Samples of each figure, where it makes sense to have many [default: 20; lease and cluster: 50]
    #[arg(long)]
    samples: Option<usize>,
    /// cluster: measure only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<cluster::Part>,
    /// cluster: also what takes a long time to prepare
    #[arg(long)]
    full: bool,
    /// cluster: how many tasks throughput is measured over
    #[arg(long, default_value_t = 200_000)]
    tasks: usize,
    /// cluster: also list each crash, and the statements that Postgres spent its time on
    #[arg(long)]
    statements: bool,
    /// peers: measure only these beside Tenure
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<peers::Peer>,
    /// peers: where they are installed, and found again by the next run [default: a folder among the temporary files]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Also write the figures to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also show the figures beside those of an earlier --json
    #[arg(long, value_name = "OLD")]
    compare: Option<PathBuf>,
    /// Also draw the figures, into this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// instructions: take what is counted for the new baseline
    #[arg(long)]
    bless: bool,
    /// What the lease family starts its own processes with
    #[arg(long, hide = true)]
    as_candidate: Option<String>,
}

/// What needs no measurement.
#[derive(Debug, Subcommand)]
enum Instead {
    /// Show two reports side by side
    Compare { old: PathBuf, new: PathBuf },
    /// Draw reports anew, each beside its file
    Plots {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// What the instructions of are counted
    #[command(hide = true)]
    Work { workload: Workload, times: usize },
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Family {
    /// Chains, fan-outs, empty tasks and idling, on SQLite and on Postgres
    #[default]
    Skeleton,
    /// Crashes, hand-overs, frozen holders and a thousand scopes, on Postgres and on etcd
    Lease,
    /// Crashes and restarts of replicas, throughput, backlogs, lateness, on Postgres
    Cluster,
    /// 500 nodes with nothing to do; a chain and a fan-out over gRPC beside the same in one process
    Agents,
    /// Where attempts go: the decision alone, for a thousand nodes
    Placement,
    /// Tenure beside other schedulers and job queues, which are installed for it
    Peers,
    /// Instructions of planner, placement and commit, beside a baseline: without noise
    Instructions,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    if let Some(candidate) = &args.as_candidate {
        return lease::member::run(&serde_json::from_str(candidate)?);
    }
    match args.instead {
        Some(Instead::Compare { old, new }) => {
            print!("{}", compare::compared(&Report::read_json(&old)?, &Report::read_json(&new)?));
            Ok(())
        }
        Some(Instead::Plots { files }) => files
            .iter()
            .try_for_each(|file| plot::draw(&Report::read_json(file)?, &file.with_extension("svg"))),
        Some(Instead::Work { workload, times }) => workload.run(times),
        None => measure(args),
    }
}

fn measure(args: Args) -> Result<()> {
    // Before anything is measured: a wrong name must not cost an hour.
    let old = args.compare.as_deref().map(Report::read_json).transpose()?;
    let binary = || args.binary.as_deref().context("--binary is missing");
    let report = match args.family {
        Family::Skeleton => skeleton::measure(binary()?, args.samples.unwrap_or(20))?,
        Family::Lease => lease::measure(args.samples.unwrap_or(50))?,
        Family::Agents => agents::measure(binary()?, args.samples.unwrap_or(20))?,
        Family::Placement => placement::measure(args.samples.unwrap_or(20))?,
        Family::Peers => peers::measure(&peers::Options {
            binary: binary()?,
            samples: args.samples.unwrap_or(20),
            only: args.peers,
            scratch: args.scratch,
        })?,
        Family::Instructions if args.bless => return instructions::bless(),
        Family::Instructions => instructions::measure()?,
        Family::Cluster => cluster::measure(&cluster::Options {
            binary: binary()?,
            samples: args.samples.unwrap_or(50),
            only: args.only,
            full: args.full,
            tasks: args.tasks,
            statements: args.statements,
        })?,
    };
    report.print();
    if let Some(file) = &args.json {
        report.write_json(file)?;
    }
    if let Some(folder) = &args.plots {
        plot::draw(&report, &folder.join(&report.family).with_extension("svg"))?;
    }
    if let (Some(old), Some(file)) = (&old, &args.compare) {
        print!("\nbeside {}\n{}", file.display(), compare::compared(old, &report));
    }
    match args.family {
        Family::Instructions => instructions::judge(&report),
        _ => Ok(()), // what a machine can do is no reason to fail
    }
}
