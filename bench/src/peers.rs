//! Tenure beside others, in one run, on one machine, with the same workloads and the same Postgres.
//!
//! The others are installed by name into a folder that is kept, so that a second run finds them. Each is bounded in time,
//! installing apart from running. One that cannot be installed, fails or takes too long is left out, with its reason; what
//! it had done before counts, and the rest goes on.

mod airflow;
mod dagu;
mod install;
mod prefect;
mod process;
mod queues;
mod tenure;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use tenure_testkit::OwnPostgres;

use self::install::Scratch;
use self::process::Usage;
use crate::cluster::site;
use crate::report::{Figure, Machine, Report, Skipped};

/// What a run of the slowest may take; a chain of 40 takes Airflow a minute or two on a small machine.
const RUN_WITHIN: Duration = Duration::from_secs(300);
/// Until everything that belongs to a peer is there to take work.
const START_WITHIN: Duration = Duration::from_secs(180);
/// Those without dags are measured by what they take out of a queue: some seconds' worth, so that no start decides.
const JOBS: usize = 100_000;

pub struct Options<'a> {
    pub binary: &'a Path,
    /// Runs of each dag on Tenure. Others have fewer, because they take longer.
    pub samples: usize,
    /// Empty: all.
    pub only: Vec<Peer>,
    pub scratch: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    Airflow,
    Prefect,
    Dagu,
    GraphileWorker,
    PgBoss,
    Apalis,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Airflow => airflow::NAME,
            Self::Prefect => prefect::NAME,
            Self::Dagu => dagu::NAME,
            Self::GraphileWorker => queues::GRAPHILE_WORKER.name,
            Self::PgBoss => queues::PG_BOSS.name,
            Self::Apalis => queues::APALIS.name,
        }
    }

    fn install(self, scratch: &Scratch) -> Result<PathBuf> {
        match self {
            Self::Airflow => airflow::install(scratch),
            Self::Prefect => prefect::install(scratch),
            Self::Dagu => dagu::install(scratch),
            Self::GraphileWorker => queues::GRAPHILE_WORKER.install(scratch),
            Self::PgBoss => queues::PG_BOSS.install(scratch),
            Self::Apalis => queues::APALIS.install(scratch),
        }
    }

    fn measure(self, bench: &Bench<'_>, installed: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
        match self {
            Self::Airflow => airflow::measure(bench, installed, outcomes),
            Self::Prefect => prefect::measure(bench, installed, outcomes),
            Self::Dagu => dagu::measure(bench, installed, outcomes),
            Self::GraphileWorker => queues::GRAPHILE_WORKER.measure(bench, installed, outcomes),
            Self::PgBoss => queues::PG_BOSS.measure(bench, installed, outcomes),
            Self::Apalis => queues::APALIS.measure(bench, installed, outcomes),
        }
    }
}

/// What all that are measured share.
struct Bench<'a> {
    options: &'a Options<'a>,
    postgres: OwnPostgres,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Chain,
    FanOut,
    Jobs,
}

impl Workload {
    /// Those that are dags, with their ids and tasks.
    const DAGS: [(Self, &str, usize); 2] = [(Self::Chain, "chain40", 40), (Self::FanOut, "parallel200", 200)];

    fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain of 40 x true",
            Self::FanOut => "200 x true in parallel",
            Self::Jobs => "no-op jobs",
        }
    }
}

/// How one system did with one workload.
#[derive(Clone, Debug)]
struct Outcome {
    workload: Workload,
    who: &'static str,
    /// For each run.
    took: Vec<Duration>,
    tasks_per_run: usize,
    /// Of all runs together.
    usage: Option<Usage>,
}

pub fn measure(options: &Options<'_>) -> Result<Report> {
    let scratch = Scratch::open(options.scratch.clone())?;
    let wanted = match options.only.as_slice() {
        [] => Peer::value_variants(),
        named => named,
    };
    let mut skipped = vec![];
    let mut skip = |peer: Peer, error: anyhow::Error| {
        eprintln!("skipped: {}: {error:#}", peer.name());
        skipped.push(Skipped { what: peer.name().to_owned(), why: format!("{error:#}") });
    };
    // First of all: nothing is measured beside a compiler.
    let mut installed = vec![];
    for &peer in wanted {
        match peer.install(&scratch) {
            Ok(folder) => installed.push((peer, folder)),
            Err(error) => skip(peer, error),
        }
    }
    let machine = Machine::here();
    let bench = Bench { options, postgres: site::postgres(false) };
    let mut outcomes = vec![];
    tenure::measure(&bench, &mut outcomes)?;
    for (peer, folder) in installed {
        eprintln!("measuring {}", peer.name());
        if let Err(error) = peer.measure(&bench, &folder, &mut outcomes) {
            skip(peer, error);
        }
    }
    Ok(Report { family: "peers".into(), machine, figures: figures(&outcomes), skipped })
}

/// By workload, the first of each being what the others are compared with.
fn figures(outcomes: &[Outcome]) -> Vec<Figure> {
    let mut figures = vec![];
    for workload in [Workload::Chain, Workload::FanOut, Workload::Jobs] {
        let mut those = outcomes.iter().filter(|outcome| outcome.workload == workload);
        let Some(first) = those.next() else { continue };
        let reference = first.figure();
        let compared = reference.p50;
        figures.push(reference);
        figures.extend(first.costs());
        for outcome in those {
            let figure = outcome.figure();
            let ratio = figure.p50 / compared;
            figures.push(figure);
            figures.push(Figure::one(format!("{}, of {}", outcome.name(), first.who), "ratio", ratio));
            figures.extend(outcome.costs());
        }
    }
    figures
}

impl Outcome {
    fn name(&self) -> String {
        format!("{}, {}", self.workload.name(), self.who)
    }

    /// Dags by how long they take, queues by what they let through.
    fn figure(&self) -> Figure {
        match self.workload {
            Workload::Chain | Workload::FanOut => Figure::millis(self.name(), &self.took, None),
            Workload::Jobs => {
                let rate = |took: &Duration| self.tasks_per_run as f64 / took.as_secs_f64();
                Figure::of(self.name(), "/s", self.took.iter().map(rate).collect(), None)
            }
        }
    }

    fn costs(&self) -> Vec<Figure> {
        let Some(usage) = self.usage else { return vec![] };
        let tasks = (self.tasks_per_run * self.took.len()) as f64;
        let each = |used: Duration| used.as_secs_f64() * 1e6 / tasks;
        let name = |what: &str| format!("{}: {what}", self.name());
        vec![
            Figure::one(name("processor"), "µs/task", each(usage.processor)),
            Figure::one(name("processor of Postgres"), "µs/task", each(usage.postgres)),
            Figure::one(name("memory"), "MB", usage.memory),
        ]
    }
}

#[cfg(test)]
mod tests;
