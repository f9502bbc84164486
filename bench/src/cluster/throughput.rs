//! How many tasks go through, and who used the processors meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::agents::{Agents, Trouble};
use super::site::{PATIENCE, Site};
use super::{Bench, Options};
use crate::report::{Figure, Statistic};
use crate::server::cpu_of;

pub const TASKS_PER_RUN: usize = 100;
/// Spread over the shards by their names, as a real fleet of dags is.
const DAGS: usize = 32;
/// Clients that talk to the servers at once, before a measurement.
pub const CLIENTS: usize = 4;
const NODES: usize = 4;
/// Room to hand out as fast as agents take: the defaults are for executors that are slow.
pub const SETTINGS: [&str; 4] = ["--dispatch-workers", "32", "--dispatch-queue", "8192"];

/// A load's way through.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub tasks: usize,
    /// From the first binding to the acknowledgement of the last end.
    pub took: Duration,
    pub servers: Duration,
    pub postgres: Duration,
    pub generator: Duration,
    pub memory: f64,
}

impl Flow {
    pub fn rate(&self) -> f64 {
        self.tasks as f64 / self.took.as_secs_f64()
    }
}

/// One replica with nothing else to do; also the floor.
pub fn alone(bench: &mut Bench<'_>) -> Result<Flow> {
    let tasks = bench.options.tasks;
    eprintln!("one replica, {tasks} tasks");
    let site = Site::open(bench.options.binary, &bench.postgres, 1, &SETTINGS)?;
    let flow = flow(bench.options, &site, "noop")?;
    bench.figures.push(
        Figure::one("one replica: tasks through", "/s", flow.rate()).at_least(Statistic::P50, 10_000.0),
    );
    processors(bench, "one replica", &flow);
    bench.figures.push(Figure::one("one replica: memory afterwards", "MB", flow.memory));
    let floor = site.database.floor(tasks as i64)?;
    bench.figures.push(Figure::one("floor: an insert and three guarded updates, batched", "tasks/s", floor));
    bench.figures.push(Figure::one("one replica, of the floor", "ratio", flow.rate() / floor));
    Ok(flow)
}

pub fn pair(bench: &mut Bench<'_>, empty: &Flow) -> Result<()> {
    eprintln!("two replicas, {} tasks", bench.options.tasks);
    let site = Site::open(bench.options.binary, &bench.postgres, 2, &SETTINGS)?;
    let flow = flow(bench.options, &site, "noop")?;
    bench.figures.push(Figure::one("two replicas: tasks through", "/s", flow.rate()));
    processors(bench, "two replicas", &flow);
    bench.figures.push(Figure::one("two replicas: memory afterwards, together", "MB", flow.memory));
    bench.figures.push(
        Figure::one("two replicas, of one", "ratio", flow.rate() / empty.rate())
            .at_least(Statistic::P50, 1.0),
    );
    Ok(())
}

pub fn processors(bench: &mut Bench<'_>, what: &str, flow: &Flow) {
    for (who, used) in [("server", flow.servers), ("Postgres", flow.postgres), ("generator", flow.generator)]
    {
        let name = format!("{what}: processor of {who}");
        bench.figures.push(Figure::processor(name, "µs/task", used, flow.tasks));
    }
}

/// Queues the load behind paused dags, opens them together, and watches it go through.
pub fn flow(options: &Options<'_>, site: &Site, prefix: &str) -> Result<Flow> {
    let dags: Vec<String> = (0..DAGS).map(|number| format!("{prefix}-{number:02}")).collect();
    let runs = options.tasks.div_ceil(TASKS_PER_RUN * DAGS);
    let tasks = runs * DAGS * TASKS_PER_RUN;
    site.client.pool("default_pool", 1_000_000)?;
    for dag in &dags {
        site.client.register(&parallel(dag, "default_pool", 20), true)?;
    }
    trigger(site, &dags, runs)?;
    let agents = site.agents(NODES, Duration::ZERO)?;
    site.database.settle()?;
    if options.statements {
        site.database.count_statements()?;
    }
    std::thread::sleep(Duration::from_secs(2)); // what the preparations have left to do is done

    let used = |site: &Site| -> Result<[Duration; 3]> {
        Ok([site.servers_cpu()?, site.database.cpu()?, cpu_of(std::process::id())?])
    };
    let before = used(site)?;
    let opened = Instant::now();
    // All together: the first ones keep the machine busy at once.
    each_of(&dags, dags.len(), |dag| site.client.unpause(dag))?;
    agents.wait("the first task", PATIENCE, || agents.started() > 0)?;
    progress(&agents, tasks as u64)?;
    let took = opened.elapsed();
    let after = used(site)?;
    // The first binding came a little after the dags were opened.
    let waited = site.database.seconds(&format!(
        "SELECT extract(epoch FROM now() - min(task_instances.queued_at))::float8 FROM task_instances
         JOIN runs ON key = run WHERE dag_id LIKE '{prefix}-%'"
    ))?;
    let since_last = opened.elapsed() - took;
    let took = Duration::from_secs_f64(waited).saturating_sub(since_last).min(took);

    verify(site, &agents, prefix, tasks)?;
    if options.statements {
        println!("{}", site.database.statements()?);
        let told = |line: &&str| {
            ["tenure_pass", "tenure_commit", "tenure_agent", "tenure_dispatch"]
                .iter()
                .any(|name| line.starts_with(name))
        };
        println!("{}", site.metrics(0)?.lines().filter(told).collect::<Vec<_>>().join("\n"));
    }
    Ok(Flow {
        tasks,
        took,
        servers: after[0] - before[0],
        postgres: after[1] - before[1],
        generator: after[2] - before[2],
        memory: site.servers_memory()?,
    })
}

fn progress(agents: &Agents, tasks: u64) -> Result<()> {
    let (mut told, began) = (Instant::now(), Instant::now());
    let mut last = 0;
    while agents.ended() < tasks {
        std::thread::sleep(Duration::from_millis(2));
        if told.elapsed() > Duration::from_secs(5) {
            let ended = agents.ended();
            eprintln!("  {ended} of {tasks} after {:.0} s", began.elapsed().as_secs_f64());
            ensure!(ended > last, "nothing moves any more: {:?}", agents.trouble());
            (told, last) = (Instant::now(), ended);
        }
    }
    Ok(())
}

/// Every task has started once and succeeded at its first try.
fn verify(site: &Site, agents: &Agents, prefix: &str, tasks: usize) -> Result<()> {
    let good = site.database.count(&format!(
        "SELECT count(*) FROM task_instances JOIN runs ON key = run
         WHERE dag_id LIKE '{prefix}-%' AND task_instances.state = 'success' AND try_number = 1"
    ))?;
    ensure!(good == tasks as i64, "{good} of {tasks} tasks have succeeded at once");
    ensure!(agents.started() == tasks, "{} starts of {tasks} tasks", agents.started());
    let trouble = agents.trouble();
    ensure!(
        trouble == Trouble { repeated: trouble.repeated, ..Trouble::default() },
        "on a quiet day: {trouble:?}"
    );
    Ok(())
}

/// A dag of tasks that depend on nothing.
pub fn parallel(dag: &str, pool: &str, max_active_runs: usize) -> String {
    let task = |number| format!("  t{number:02}: {{ exec: [\"true\"], pool: {pool} }}\n");
    let tasks: String = (0..TASKS_PER_RUN).map(task).collect();
    format!("id: {dag}\nmax_active_runs: {max_active_runs}\nmax_active_tasks: 1000\ntasks:\n{tasks}")
}

/// So many runs of each.
pub fn trigger(site: &Site, dags: &[String], runs: usize) -> Result<()> {
    let all: Vec<(&String, usize)> =
        (0..runs).flat_map(|run| dags.iter().map(move |dag| (dag, run))).collect();
    each_of(&all, CLIENTS, |(dag, run)| site.client.trigger(dag, &format!("run-{run}")))
}

/// Does something with each of them, so many at once.
pub fn each_of<T: Sync>(all: &[T], at_once: usize, act: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let act = &act;
        let clients: Vec<_> = (0..at_once)
            .map(|client| scope.spawn(move || all.iter().skip(client).step_by(at_once).try_for_each(act)))
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })
}
