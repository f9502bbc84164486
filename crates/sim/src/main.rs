//! `cargo xtask sim` and `cargo xtask soak`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tenure_clock::{Clock, SystemClock};
use tenure_sim::{
    Campaign, Options, PLANTS, Planted, Scale, replay, run_campaign, run_scale, run_seed, write_plots,
};

/// Worlds allocate small things all the time, on a thread each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(name = "sim", about = "The control plane under virtual time and faults")]
struct Cli {
    /// How many seeds to run, each one virtual hour [default: 2000, or as many as there is time for]
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run this one alone, and tell its story if it breaks a promise
    #[arg(long)]
    seed: Option<u64>,
    /// Tell its story in any case
    #[arg(long, requires = "seed")]
    story: bool,
    /// Tell the story of this run as well
    #[arg(long = "run", requires = "seed", value_name = "DAG/RUN")]
    runs: Vec<String>,
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
    /// One large world instead: 100 replicas, 4,096 shards, 1,000 nodes and 1,000,000 tasks, unless told otherwise
    #[arg(long)]
    scale: bool,
    #[arg(long, requires = "scale", default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    replicas: u16,
    #[arg(long, requires = "scale", default_value_t = 4_096, value_parser = clap::value_parser!(u16).range(1..))]
    shards: u16,
    #[arg(long, requires = "scale", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    agents: u32,
    #[arg(long, requires = "scale", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..))]
    tasks: u64,
    /// Write what was measured to a file
    #[arg(long, requires = "scale", value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write curves over time into a folder
    #[arg(long, requires = "scale", value_name = "DIR")]
    plots: Option<PathBuf>,
}

/// Unless told otherwise.
const SEEDS: u64 = 2_000;
/// One seed in so many is run twice.
const TWICE_EVERY: u64 = 50;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.log {
        tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).without_time().init();
    }
    let good = match cli.seed {
        _ if cli.scale => match scale(&cli) {
            Ok(good) => good,
            Err(error) => {
                eprintln!("error: {error}");
                false
            }
        },
        _ if cli.self_test => self_test(cli.seeds.unwrap_or(SEEDS)),
        Some(seed) => replay(seed, cli.story, &cli.runs),
        None => {
            let threads = cli.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
            let report = run_campaign(&Campaign {
                first: cli.from,
                regressions: cli.from == 1,
                seeds: cli.seeds.or(cli.seconds.is_none().then_some(SEEDS)),
                time: cli.seconds.map(Duration::from_secs),
                twice_every: TWICE_EVERY,
                threads: threads.unwrap_or(1),
                stop_at_failure: cli.first,
            });
            report.print();
            report.is_good()
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// True: every task of the large world was done, once.
fn scale(cli: &Cli) -> std::io::Result<bool> {
    let scale = Scale {
        replicas: usize::from(cli.replicas),
        shards: cli.shards,
        agents: cli.agents as usize,
        tasks: cli.tasks as usize,
        seed: cli.seed.unwrap_or(1),
    };
    let begun = SystemClock.boottime();
    let measured = run_scale(scale, |line| println!("{line}"));
    let took = SystemClock.boottime().saturating_since(begun).as_secs_f64();
    let [modest, greedy, shards] = [measured.modest, measured.greedy, measured.shards_half_way];
    println!(
        "{} runs, {} tasks in {:.0} virtual seconds ({took:.0} real ones); {} started again, {} done twice, {} runs unfinished\n\
         runs of modest dags took p50 {:.1} s, p99 {:.1} s; of greedy ones p50 {:.1} s, p99 {:.1} s\n\
         when half of all was done, shards had done p5 {:.2}, p50 {:.2}, p99 {:.2} of what was asked of them",
        measured.runs,
        measured.tasks,
        measured.virtual_seconds,
        measured.started_again,
        measured.done_twice,
        measured.unfinished,
        modest.p50,
        modest.p99,
        greedy.p50,
        greedy.p99,
        shards.p5,
        shards.p50,
        shards.p99
    );
    let mut asked: Vec<(&&str, &u64)> = measured.steps.iter().collect();
    asked.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let asked: Vec<String> = asked
        .into_iter()
        .take(8)
        .map(|(step, count)| format!("{step} {:.2}", *count as f64 / measured.tasks.max(1) as f64))
        .collect();
    println!("for each task: {}", asked.join(", "));
    if let Some(file) = &cli.json {
        std::fs::write(file, serde_json::to_string_pretty(&measured)? + "\n")?;
    }
    if let Some(folder) = &cli.plots {
        write_plots(&measured, folder)?;
    }
    Ok(measured.is_good())
}

/// True: every planted bug was found, as what it is.
fn self_test(most: u64) -> bool {
    let mut missed = 0;
    for Planted { name, plant, breaks, .. } in PLANTS {
        let shown = (1..=most).find_map(|seed| {
            let seen = run_seed(Options { seed, telling: false, plant: Some(plant) });
            let broken = seen.violations.into_iter().find(|violation| violation.promise == breaks)?;
            Some((seed, broken.what))
        });
        match shown {
            Some((seed, what)) => println!("found: {name} (seed {seed}): {breaks}: {what}"),
            None => {
                missed += 1;
                println!("MISSED: {name}, in {most} seeds");
            }
        }
    }
    println!("self-test: {} bugs planted, {missed} missed", PLANTS.len());
    missed == 0
}
