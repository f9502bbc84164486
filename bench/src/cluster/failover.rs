//! Crashes and restarts of replicas under a steady load, as the tasks of a busy shard feel them.
//!
//! The load is paced by the tasks themselves: a few of each dag at a time, some milliseconds each, and always a few
//! hundred behind them. Nodes live on, as they do when a control plane's process dies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use rustix::process::Signal;
use tenure_model::ShardId;

use super::Bench;
use super::agents::{Agents, Start};
use super::site::{Client, PATIENCE, Site, dags_apart, shard_of};
use crate::lease::boottime;
use crate::report::{Figure, Statistic};

const REPLICAS: usize = 3;
const BUSY_DAGS: usize = 6;
const NODES: usize = 3;
/// How long a task takes.
const HOLD: Duration = Duration::from_millis(20);
/// A busy dag keeps this many tasks going: with the time of a task, some 200 starts a second and dag.
const AT_ONCE: usize = 6;
const TASKS_PER_RUN: usize = 100;
/// Tasks of each dag that wait behind those.
const BEHIND: usize = 300;
/// Between two crashes, for everything to be as it was.
pub(super) const QUIET: Duration = Duration::from_millis(1_500);

/// kill -9 of the owner of a busy shard.
pub fn kill(bench: &mut Bench<'_>) -> Result<()> {
    let kills = bench.options.samples;
    eprintln!("{kills} kills among {REPLICAS} replicas under load");
    let mut site = Site::open(bench.options.binary, &bench.postgres, REPLICAS, &[])?;
    let load = Load::prepare(&site)?;
    let (mut next_start, mut next_term, mut slowest) = (vec![], vec![], vec![]);
    let (mut load_costs, mut memory) = (0.0, 0.0);
    load.under(&mut site, |site, agents| {
        load_costs = share(site)?;
        for number in 0..kills {
            // So that a crash does not always meet the same moment between two renewals.
            std::thread::sleep(QUIET + Duration::from_millis((number as u64 * 37) % 400));
            let watched = load.shards[number % load.shards.len()];
            let (victim, epoch) = site.owner_of(watched)?;
            let epochs = latest_epochs(agents);
            let hit: Vec<ShardId> = load
                .shards
                .iter()
                .copied()
                .filter(|shard| site.owner_of(*shard).is_ok_and(|(owner, _)| owner == victim))
                .collect();
            let (at, killed_at) = (boottime(), Timestamp::now());
            site.replicas[victim].signal(Signal::KILL)?;
            site.replicas[victim].wait_gone()?;
            let term = first_after(agents, at, |start| start.shard == watched && start.epoch > epoch)?;
            next_term.push(term.at - at);
            let start = first_after(agents, at, |start| start.shard == watched && start.replica != victim)?;
            next_start.push(start.at - at);
            let mut worst = Duration::ZERO;
            for shard in hit {
                let before = epochs.get(&shard).copied().unwrap_or(0);
                let start = first_after(agents, at, |start| start.shard == shard && start.epoch > before)?;
                worst = worst.max(start.at - at);
            }
            slowest.push(worst);
            if bench.options.statements {
                eprintln!(
                    "  {killed_at} {watched} of replica {victim}: {:?}, {:?}",
                    start.at - at,
                    term.at - at
                );
            }
            site.replicas[victim].start()?;
            site.wait_balanced()?;
        }
        memory = site.servers_memory()?;
        Ok(())
    })?;
    bench.figures.push(
        Figure::millis(
            "kill -9 of a busy shard's owner: its next task, bound anew, starts",
            &next_term,
            None,
        )
        .at_most(Statistic::P50, 150.0)
        .at_most(Statistic::P99, 500.0),
    );
    bench.figures.push(Figure::millis(
        "kill -9: the shard's next start elsewhere, bound before or after",
        &next_start,
        None,
    ));
    bench.figures.push(Figure::millis("kill -9: the last of its busy shards starts a task", &slowest, None));
    bench.figures.push(Figure::one(
        "3 replicas under that load, before the kills",
        "% of a core",
        load_costs,
    ));
    bench.figures.push(Figure::one("3 replicas after the kills: memory, together", "MB", memory));
    Ok(())
}

/// Of one core, what the replicas use together while nothing fails.
fn share(site: &Site) -> Result<f64> {
    std::thread::sleep(QUIET);
    let (before, began) = (site.servers_cpu()?, Instant::now());
    std::thread::sleep(2 * QUIET);
    Ok((site.servers_cpu()? - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// Every replica is told to end and started again, one after the other.
pub fn rolling(bench: &mut Bench<'_>) -> Result<()> {
    let rounds = bench.options.samples.div_ceil(10).max(1);
    eprintln!("{rounds} rolling restarts of {REPLICAS} replicas under load");
    let mut site = Site::open(bench.options.binary, &bench.postgres, REPLICAS, &[])?;
    let load = Load::prepare(&site)?;
    let (mut gaps, mut quiet) = (vec![], vec![]);
    load.under(&mut site, |site, agents| {
        for _ in 0..rounds {
            std::thread::sleep(QUIET);
            let from = boottime();
            for replica in 0..REPLICAS {
                site.replicas[replica].signal(Signal::TERM)?;
                site.replicas[replica].wait_gone()?;
                site.replicas[replica].start()?;
                site.wait_balanced()?;
            }
            let to = boottime();
            gaps.push(load.longest_gap(agents, from, to)?);
            std::thread::sleep(to - from);
            quiet.push(load.longest_gap(agents, to, boottime())?);
        }
        Ok(())
    })?;
    bench.figures.push(
        Figure::millis("rolling restart of 3: longest gap between a busy shard's starts", &gaps, None)
            .at_most(Statistic::Max, 200.0),
    );
    bench.figures.push(Figure::millis("the same without any restart", &quiet, None));
    Ok(())
}

/// Busy dags, each in a shard of its own.
pub(super) struct Load {
    dags: Vec<String>,
    pub shards: Vec<ShardId>,
}

impl Load {
    pub fn prepare(site: &Site) -> Result<Self> {
        let dags = dags_apart("busy", BUSY_DAGS);
        for dag in &dags {
            let task = |number| format!("  t{number:02}: {{ exec: [\"true\"] }}\n");
            let tasks: String = (0..TASKS_PER_RUN).map(task).collect();
            let limits = format!("max_active_runs: 2\nmax_active_tasks: {}", AT_ONCE / 2);
            site.client.register(&format!("id: {dag}\n{limits}\ntasks:\n{tasks}"), false)?;
        }
        Ok(Self { shards: dags.iter().map(|dag| shard_of(dag)).collect(), dags })
    }

    /// Does something under this load, lets it end, and makes sure that every task was started once and succeeded.
    pub fn under(&self, site: &mut Site, act: impl FnOnce(&mut Site, &Agents) -> Result<()>) -> Result<()> {
        let agents = site.agents(NODES, HOLD)?;
        let feeder = site.client.clone();
        let full = AtomicBool::new(false);
        let mut triggered = 0;
        std::thread::scope(|scope| {
            let feeding = scope.spawn(|| self.feed(&feeder, &agents, &full));
            let warm = || self.shards.iter().all(|shard| agents.started_of(*shard) > TASKS_PER_RUN);
            let acted = agents.wait("the load to flow", PATIENCE, warm).and_then(|()| act(site, &agents));
            full.store(true, Ordering::Relaxed);
            triggered = feeding.join().expect("the feeder does not panic")?;
            acted
        })?;
        agents.wait_ended(triggered as u64, PATIENCE)?;
        let good = "SELECT count(*) FROM task_instances WHERE state = 'success' AND try_number = 1";
        let (good, trouble) = (site.database.count(good)?, agents.trouble());
        eprintln!("  {triggered} tasks, {trouble:?}");
        if good != triggered as i64 {
            bail!("{good} of {triggered} tasks have succeeded at once:\n{}", stories(site)?);
        }
        ensure!(agents.started() == triggered, "{} starts of {triggered} tasks", agents.started());
        ensure!(trouble.started_twice == 0, "{trouble:?}");
        Ok(())
    }

    /// Triggers runs so that some tasks of each dag always wait. Says how many tasks that were.
    fn feed(&self, client: &Client, agents: &Agents, full: &AtomicBool) -> Result<usize> {
        let mut runs = vec![0; self.dags.len()];
        while !full.load(Ordering::Relaxed) {
            for (dag, count) in self.dags.iter().zip(&mut runs) {
                while *count * TASKS_PER_RUN < agents.started_of(shard_of(dag)) + BEHIND {
                    client.trigger(dag, &format!("run-{count}"))?;
                    *count += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(runs.into_iter().sum::<usize>() * TASKS_PER_RUN)
    }

    fn longest_gap(&self, agents: &Agents, from: Duration, to: Duration) -> Result<Duration> {
        let gaps = self.shards.iter().map(|shard| {
            let mut times = vec![from];
            agents.starts(|starts| {
                let inside =
                    starts.iter().filter(|start| start.shard == *shard && start.at > from && start.at < to);
                times.extend(inside.map(|start| start.at));
            });
            ensure!(times.len() > 1, "nothing of {shard} has started");
            times.push(to);
            times.sort_unstable();
            Ok(times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default())
        });
        Ok(gaps.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default())
    }
}

/// What became of tasks that did not succeed at once.
fn stories(site: &Site) -> Result<String> {
    let bad = "SELECT format('%s/%s %s: %s, try %s, attempt %s, node %s, queued %s, started %s, ended %s, %s', r.dag_id,
            r.run_id, task_id, t.state, try_number, attempt, node, t.queued_at, t.started_at, t.ended_at, t.reason)
        FROM task_instances t JOIN runs r ON r.key = t.run
        WHERE t.state <> 'success' OR try_number <> 1 ORDER BY 1 LIMIT 20";
    let trail = "SELECT format('%s %s %s %s/%s: %s', at, actor, epoch, a.dag_id, a.run_id, (
                SELECT string_agg(entry::text, ' ') FROM jsonb_array_elements(entries::jsonb) entry
                WHERE entry::text LIKE '%\"' || t.task_id || '\"%'))
        FROM task_instances t JOIN runs r ON r.key = t.run
        JOIN audit a ON (a.tenant, a.dag_id, a.run_id) = (r.tenant, r.dag_id, r.run_id)
        WHERE (t.state <> 'success' OR try_number <> 1) AND entries LIKE '%\"' || t.task_id || '\"%'
        ORDER BY t.run, t.task_no, seq LIMIT 100";
    let lines = [site.database.lines(bad)?, site.database.lines(trail)?].concat();
    Ok(lines.join("\n"))
}

pub(super) fn latest_epochs(agents: &Agents) -> HashMap<ShardId, u64> {
    agents.starts(|starts| {
        let mut latest = HashMap::new();
        for start in starts {
            let epoch = latest.entry(start.shard).or_insert(start.epoch);
            *epoch = start.epoch.max(*epoch);
        }
        latest
    })
}

/// The first start after a moment that is of this kind.
pub(super) fn first_after(agents: &Agents, at: Duration, fits: impl Fn(&Start) -> bool) -> Result<Start> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = agents.starts(|starts| {
            let recent = starts.iter().rev().take_while(|start| start.at >= at);
            recent.filter(|start| fits(start)).min_by_key(|start| start.at).copied()
        });
        if let Some(start) = found {
            return Ok(start);
        }
        ensure!(Instant::now() < deadline, "no task of the shard starts elsewhere");
        std::thread::sleep(Duration::from_millis(2));
    }
}
