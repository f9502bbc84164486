//! What decides how long a shard stands still when its owner is gone: how long leases last, and whether somebody stands
//! by with everything in memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::Bench;
use super::agents::Agents;
use super::failover::{Load, QUIET, first_after, latest_epochs};
use super::site::Site;
use crate::lease::boottime;
use crate::report::Figure;

const DURATIONS: [u64; 3] = [3, 5, 15];
/// Each freeze lasts as long as a lease does.
const FREEZES: usize = 5;
const IDLE: Duration = Duration::from_secs(15);
/// Beside the busy dags, so that there is something to have in memory.
const STANDING_DAGS: usize = 1_000;
const CHANGES_OF_HANDS: usize = 10;

/// The same crash and the same freeze with leases that last shorter and longer, and what renewing them costs.
pub fn durations(bench: &mut Bench<'_>) -> Result<()> {
    for seconds in DURATIONS {
        let duration = format!("{seconds}s");
        eprintln!("leases that last {duration}: kill -9 and SIGSTOP, {FREEZES} of each, among 3 replicas");
        let settings = ["--lease-duration", &duration];
        let mut site = Site::open(bench.options.binary, &bench.postgres, 3, &settings)?;
        let (before, began) = (site.servers_cpu()?, Instant::now());
        std::thread::sleep(IDLE);
        let idle = (site.servers_cpu()? - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        let load = Load::prepare(&site)?;
        let (mut crashes, mut freezes) = (vec![], vec![]);
        load.under(&mut site, |site, agents| {
            for number in 0..FREEZES {
                crashes.push(gap(site, &load, agents, number, Signal::KILL)?);
                freezes.push(gap(site, &load, agents, number + 1, Signal::STOP)?);
            }
            Ok(())
        })?;
        let what = |what: &str| format!("leases of {seconds} s: {what}");
        bench.figures.push(Figure::millis(what("kill -9, its next task starts"), &crashes, None));
        bench.figures.push(Figure::millis(what("SIGSTOP, its next task starts"), &freezes, None));
        bench.figures.push(Figure::one(what("three idle replicas"), "% of a core", idle));
    }
    Ok(())
}

/// A replica that stands by takes over, against one that is started when the owner is gone.
pub fn warmth(bench: &mut Bench<'_>) -> Result<()> {
    eprintln!(
        "{CHANGES_OF_HANDS} crashes with a standby and without, {STANDING_DAGS} dags beside the busy ones"
    );
    let mut site = Site::open(bench.options.binary, &bench.postgres, 2, &[])?;
    for number in 0..STANDING_DAGS {
        site.client
            .register(&format!("id: standing-{number}\ntasks:\n  t: {{ exec: [\"true\"] }}\n"), true)?;
    }
    let load = Load::prepare(&site)?;
    let (mut warm, mut cold) = (vec![], vec![]);
    load.under(&mut site, |site, agents| {
        for number in 0..CHANGES_OF_HANDS {
            warm.push(gap(site, &load, agents, number, Signal::KILL)?);
            let (standby, owner) = (number % 2, (number + 1) % 2);
            site.replicas[standby].signal(Signal::TERM)?;
            site.replicas[standby].wait_gone()?;
            site.wait_balanced()?;
            std::thread::sleep(QUIET);
            let (epochs, at) = (latest_epochs(agents), boottime());
            site.replicas[owner].signal(Signal::KILL)?;
            site.replicas[owner].wait_gone()?;
            site.replicas[standby].start()?;
            let watched = load.shards[number % load.shards.len()];
            let before = epochs.get(&watched).copied().unwrap_or(0);
            let start = first_after(agents, at, |start| start.shard == watched && start.epoch > before)?;
            cold.push(start.at - at);
            site.replicas[owner].start()?;
            site.wait_balanced()?;
        }
        Ok(())
    })?;
    bench.figures.push(Figure::millis("kill -9, a replica stands by: the next task starts", &warm, None));
    bench.figures.push(Figure::millis("kill -9, another is started then: the next task starts", &cold, None));
    Ok(())
}

/// From the signal to the owner of a busy shard until a task of that shard, bound by somebody else, starts.
fn gap(site: &mut Site, load: &Load, agents: &Agents, number: usize, signal: Signal) -> Result<Duration> {
    std::thread::sleep(QUIET);
    let watched = load.shards[number % load.shards.len()];
    let (victim, epoch) = site.owner_of(watched)?;
    let at = boottime();
    site.replicas[victim].signal(signal)?;
    if signal == Signal::KILL {
        site.replicas[victim].wait_gone()?;
    }
    let start = first_after(agents, at, |start| start.shard == watched && start.epoch > epoch)?;
    if signal == Signal::KILL {
        site.replicas[victim].start()?;
    } else {
        site.replicas[victim].signal(Signal::CONT)?;
    }
    site.wait_balanced()?;
    Ok(start.at - at)
}
