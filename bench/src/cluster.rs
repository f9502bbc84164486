//! Many replicas: how long a crash or a restart is felt, how many tasks go through, and what a backlog, a history or a
//! crowd of due dags does to that.
//!
//! Servers are real processes on a real Postgres that flushes to disk. Nodes are played by this process through the
//! real interface of agents, and start nothing: what is measured is scheduling, not forking. Everything shares the
//! machine, so each figure of throughput comes with who used the processors.

pub mod agents;
mod backlog;
pub mod database;
mod failover;
mod lateness;
pub mod site;
mod slow;
mod standby;
mod throughput;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use tenure_testkit::OwnPostgres;

pub use self::throughput::{SETTINGS, flow};
use crate::report::{Figure, Machine, Report};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// kill -9 of the owner of a busy shard
    Kill,
    /// Three replicas are restarted one after the other
    Rolling,
    /// Crashes and freezes with leases that last 3, 5 and 15 s (not without --full or being named)
    Durations,
    /// A crash with a replica standing by, and with one that is started then (not without --full or being named)
    Warmth,
    /// No-op tasks a second, and the database's floor
    Throughput,
    /// The same with two replicas
    Pair,
    /// The same with a million tasks queued
    Queued,
    /// The same with ten million finished tasks in the tables (not without --full or being named)
    History,
    /// 2,000 dags due in the same minute
    Lateness,
    /// Tasks behind an executor that takes half a second
    Slow,
}

pub struct Options<'a> {
    pub binary: &'a Path,
    pub samples: usize,
    /// Empty: all that do not take long.
    pub only: Vec<Part>,
    pub full: bool,
    /// How many tasks throughput is measured over.
    pub tasks: usize,
    /// Also list the statements that Postgres spent its time on.
    pub statements: bool,
}

/// What all parts of a measurement share.
struct Bench<'a> {
    options: &'a Options<'a>,
    postgres: OwnPostgres,
    figures: Vec<Figure>,
}

pub fn measure(options: &Options<'_>) -> Result<Report> {
    let machine = Machine::here();
    let postgres = site::postgres(options.statements);
    let mut bench = Bench { options, postgres, figures: vec![] };
    let wanted = |part: Part| match options.only.as_slice() {
        [] => options.full || ![Part::History, Part::Durations, Part::Warmth].contains(&part),
        named => named.contains(&part),
    };
    if wanted(Part::Kill) {
        failover::kill(&mut bench)?;
    }
    if wanted(Part::Rolling) {
        failover::rolling(&mut bench)?;
    }
    if wanted(Part::Durations) {
        standby::durations(&mut bench)?;
    }
    if wanted(Part::Warmth) {
        standby::warmth(&mut bench)?;
    }
    let against_empty = [Part::Throughput, Part::Pair, Part::Queued, Part::History];
    if against_empty.into_iter().any(wanted) {
        let empty = throughput::alone(&mut bench)?;
        if wanted(Part::Pair) {
            throughput::pair(&mut bench, &empty)?;
        }
        if wanted(Part::Queued) {
            backlog::queued(&mut bench, &empty)?;
        }
        if wanted(Part::History) {
            backlog::history(&mut bench, &empty)?;
        }
    }
    if wanted(Part::Lateness) {
        lateness::measure(&mut bench)?;
    }
    if wanted(Part::Slow) {
        slow::measure(&mut bench)?;
    }
    Ok(Report { family: "cluster".into(), machine, figures: bench.figures, skipped: vec![] })
}
