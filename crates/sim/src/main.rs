//! `cargo xtask sim` and `cargo xtask soak`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tenure_sim::{Campaign, PLANTS, replay, run_campaign};

#[derive(Debug, Parser)]
#[command(name = "sim", about = "The control plane under virtual time and faults")]
struct Cli {
    /// How many seeds to run, each one virtual hour
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run this one alone, and tell its story if it breaks a promise
    #[arg(long)]
    seed: Option<u64>,
    /// Tell its story in any case
    #[arg(long, requires = "seed")]
    story: bool,
    /// End after so many seconds of real time, however many seeds there were
    #[arg(long)]
    seconds: Option<u64>,
    /// End with the first seed that fails
    #[arg(long)]
    first: bool,
    /// How many seeds at once [default: one for each processor]
    #[arg(long)]
    threads: Option<usize>,
    /// Plant bugs, and see that each is found
    #[arg(long)]
    self_test: bool,
    /// Show what the components log
    #[arg(long)]
    log: bool,
}

/// One seed in so many is run twice.
const TWICE_EVERY: u64 = 50;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.log {
        tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).without_time().init();
    }
    let good = match cli.seed {
        _ if cli.self_test => self_test(cli.seeds),
        Some(seed) => replay(seed, cli.story, None),
        None => {
            let threads = cli.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
            let report = run_campaign(&Campaign {
                first: cli.from,
                seeds: cli.seeds,
                time: cli.seconds.map(Duration::from_secs),
                twice_every: TWICE_EVERY,
                threads: threads.unwrap_or(1),
                plant: None,
                stop_at_failure: cli.first,
            });
            report.print();
            report.is_good()
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// True: every planted bug was found.
fn self_test(most: u64) -> bool {
    let mut missed = 0;
    for (name, plant) in PLANTS {
        let report = run_campaign(&Campaign {
            first: 1,
            seeds: most,
            time: Some(Duration::from_secs(20)),
            twice_every: u64::MAX,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            plant: Some(plant),
            stop_at_failure: true,
        });
        match report.failed.iter().next() {
            Some((seed, text)) => println!("found: {name} (seed {seed}): {text}"),
            None => {
                missed += 1;
                println!("MISSED: {name}, in {} seeds", report.seeds);
            }
        }
    }
    println!("self-test: {} bugs planted, {missed} missed", PLANTS.len());
    missed == 0
}
