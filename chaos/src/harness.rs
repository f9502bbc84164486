//! Makes a history: starts a cluster of real processes, gives it work, breaks it on purpose, heals it, lets the work
//! drain, and reads what is left.

mod api;
mod cluster;
mod load;
mod nemesis;
mod process;
mod proxy;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure_clock::{Clock, Entropy, SystemClock};

pub use cluster::{Wiring, reap};
pub use nemesis::Scenario;

use tenure_judge::checker::{self, Verdict};
use tenure_judge::history::{Fault, History, Limits, Schedule};
use tenure_judge::mutations;

use crate::task;
use cluster::{Cluster, SILENCE};
use load::Database;
use nemesis::Nemesis;
use workload::Workload;

const CLIENTS: u64 = 2;
/// The longest task, its retries after losses, and everything that waited for the faults to end.
const DRAIN: Duration = Duration::from_secs(120);
/// Longer than the pause between two signs of life: who still runs is seen.
const SETTLE: Duration = Duration::from_millis(1_500);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Options {
    /// The `tenure` binary.
    pub binary: PathBuf,
    pub wiring: Wiring,
    pub seed: u64,
    pub faults_for: Duration,
    /// These and no others.
    pub only: Vec<Scenario>,
    /// Where history and logs go when something is wrong.
    pub out: PathBuf,
    /// Also when nothing is.
    pub keep: bool,
}

/// True: every promise was kept.
pub fn run(options: &Options) -> Result<bool> {
    println!("chaos with seed {} ({:?} leases)", options.seed, options.wiring);
    let begun = SystemClock.boottime();
    let chance = Entropy::seeded(options.seed);
    let mut cluster = Cluster::start(&options.binary, options.wiring, &Entropy::from_os())?;
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_for_ctrl_c(&cluster, &interrupted);
    let database = Database::new(cluster.postgres.url(), cluster.runtime().clone());
    let workload = Workload::set_up(&cluster, &database)?;
    let raged = rage(options, &mut cluster, &workload, &chance, &interrupted);
    ensure!(!interrupted.load(Ordering::SeqCst), "interrupted");
    let (faults, schedule, surprises) = match raged {
        Ok(raged) => raged,
        Err(error) => {
            save(options, &cluster, None)?;
            return Err(error);
        }
    };
    println!("  {:.0}  all is healed; waiting for the rest of the work", SystemClock.now());
    let drained = wait_until(DRAIN, || {
        let last_tick_made = SystemClock.now() > schedule.until && database.has_run_of(&schedule).ok()?;
        (last_tick_made && database.unfinished_runs().ok()? == 0).then_some(())
    });
    if drained.is_none() {
        println!(
            "  {:?} runs have not ended after {DRAIN:?}\n{}",
            database.unfinished_runs(),
            cluster.state()
        );
    }
    std::thread::sleep(SETTLE);
    let history = read(&cluster, &database, workload, faults, schedule)?;
    let verdict = checker::check(&history);
    report::print(&history, &verdict);
    let surprises: Vec<String> = surprises.into_iter().chain(cluster.panics()?).collect();
    let good = judge(&history, &verdict, &surprises);
    if !good || options.keep {
        save(options, &cluster, Some(&history))?;
    }
    let took = SystemClock.boottime().saturating_since(begun);
    println!("seed {}, {:.0} s in all", options.seed, took.as_secs_f64());
    Ok(good)
}

/// A clean verdict over less than this says nothing.
const LEAST_RUNS: usize = 10;
/// Ways to break the history that fit it.
const LEAST_TRIED: usize = 15;

fn judge(history: &History, verdict: &Verdict, surprises: &[String]) -> bool {
    for surprise in surprises {
        println!("\nUNEXPECTED: {surprise}");
    }
    if !verdict.violations.is_empty() || !surprises.is_empty() {
        println!("\nverdict: {} violations, {} surprises", verdict.violations.len(), surprises.len());
        return false;
    }
    let (tried, missed) = report::blind_spots(history);
    let (all, unnoticed) = (mutations::ALL.len(), missed.len());
    let counts = &verdict.counts;
    if history.faults.is_empty()
        || counts.runs < LEAST_RUNS
        || counts.started < LEAST_RUNS
        || tried < LEAST_TRIED
    {
        println!("\nverdict: too little happened to say anything");
        return false;
    }
    println!(
        "self-test: this history broken in {tried} of {all} ways, {unnoticed} of them unnoticed {missed:?}"
    );
    println!("\nverdict: every promise was kept");
    missed.is_empty()
}

type Raged = (Vec<Fault>, Schedule, Vec<String>);

/// Clients at work while the nemesis is.
fn rage(
    options: &Options,
    cluster: &mut Cluster,
    workload: &Workload,
    chance: &Entropy,
    interrupted: &AtomicBool,
) -> Result<Raged> {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let chance = Entropy::seeded(options.seed.wrapping_add(1 + number));
            scope.spawn(move || workload.trigger(&format!("c{number}"), &chance));
        }
        let meddling = Entropy::seeded(options.seed.wrapping_sub(1));
        scope.spawn(move || workload.meddle(&meddling));
        let scenarios =
            if options.only.is_empty() { Scenario::deck(options.wiring) } else { options.only.clone() };
        let mut nemesis =
            Nemesis { cluster, chance: chance.clone(), interrupted, faults: vec![], surprises: vec![] };
        let raged = nemesis.rage(&scenarios, options.faults_for).and_then(|()| nemesis.heal());
        let (faults, surprises) = (nemesis.faults, nemesis.surprises);
        let schedule = raged.and_then(|()| workload.wind_down());
        workload.stop(); // whatever went wrong, the clients end
        Ok((faults, schedule?, surprises))
    })
}

fn read(
    cluster: &Cluster,
    database: &Database,
    workload: Workload,
    faults: Vec<Fault>,
    schedule: Schedule,
) -> Result<History> {
    let ended_at = SystemClock.now();
    let effects = task::read_effects(&cluster.effects())?;
    let tables = database.read()?;
    let limits = Limits {
        // A claim timeout, counted anew by each owner that takes over meanwhile, and a database that is away.
        unclaimed: Duration::from_secs(45),
        silence: SILENCE,
        tick_lateness: Duration::from_secs(20),
        ..Limits::default()
    };
    Ok(History {
        trail: tables.trail,
        runs: tables.runs,
        tasks: tables.tasks,
        tries: tables.tries,
        terms: tables.terms,
        fences: tables.fences,
        schedules: vec![schedule],
        calls: workload.into_calls(),
        effects,
        faults,
        rooms: tables.rooms,
        needs: tables.needs,
        limits,
        ended_at,
    })
}

fn save(options: &Options, cluster: &Cluster, history: Option<&History>) -> Result<()> {
    let folder = options.out.join(format!("seed-{}", options.seed));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    if let Some(history) = history {
        std::fs::write(folder.join("history.json"), serde_json::to_vec(history)?)?;
    }
    cluster.save_logs(&folder)?;
    println!("history and logs are in {}", folder.display());
    Ok(())
}

/// A saved history, judged again. True: every promise was kept.
pub fn check_file(path: &Path) -> Result<bool> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let history: History = serde_json::from_slice(&text)?;
    let verdict = checker::check(&history);
    report::print(&history, &verdict);
    Ok(judge(&history, &verdict, &[]))
}

fn watch_for_ctrl_c(cluster: &Cluster, interrupted: &Arc<AtomicBool>) {
    let interrupted = Arc::clone(interrupted);
    cluster.runtime().spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.store(true, Ordering::SeqCst);
        }
    });
}

/// Asks again and again until there is an answer, or the time is over.
fn wait_until<T>(within: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = SystemClock.boottime() + within;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if SystemClock.boottime() >= deadline {
            return None;
        }
        std::thread::sleep(POLL);
    }
}

/// A number from 0 to `count`, which is not reached.
fn below(chance: &Entropy, count: usize) -> usize {
    (u64::from_be_bytes(chance.bytes()) % count as u64) as usize
}
