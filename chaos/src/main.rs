//! `cargo xtask chaos`: a cluster of real processes under faults, and whether it has kept its promises.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tenure_chaos::harness::{self, Options, Scenario, Wiring};
use tenure_chaos::task;
use tenure_clock::Entropy;

#[derive(Debug, Parser)]
#[command(name = "chaos")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Break a cluster on purpose, and check what is left
    Run(Run),
    /// Check a history that was saved
    Check { history: PathBuf },
    /// What the workload's tasks run
    #[command(hide = true)]
    Task(task::Args),
    /// Ends what a killed harness leaves behind
    #[command(hide = true)]
    Reap { folder: PathBuf },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// How long there are faults
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Repeat the choices of an earlier run [default: a new one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Where the leases are kept
    #[arg(long, value_enum, default_value = "postgres")]
    wiring: Wiring,
    /// Only these faults
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// The binary to test
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Where history and logs go when a promise was broken
    #[arg(long, value_name = "DIR", default_value = "chaos-out")]
    out: PathBuf,
    /// Keep history and logs in any case
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run(args),
        Command::Check { history } => harness::check_file(&history),
        Command::Task(args) => match task::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Reap { folder } => harness::reap(&folder).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Run) -> anyhow::Result<bool> {
    let options = Options {
        binary: args.binary,
        wiring: args.wiring,
        // Short enough to be typed again.
        seed: args.seed.unwrap_or_else(|| u64::from(u32::from_be_bytes(Entropy::from_os().bytes()))),
        faults_for: Duration::try_from_secs_f64(args.minutes * 60.0)?,
        only: args.only,
        out: args.out,
        keep: args.keep,
    };
    harness::run(&options)
}
