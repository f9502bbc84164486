//! One machine, one process: how long a chain, a fan-out and empty tasks take, and what idling costs.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tenure_testkit::{Postgres, Settings};

use crate::floors;
use crate::report::{Figure, Machine, Report};
use crate::server::Server;

/// How many dags wait, and how much memory that should not exceed.
const IDLE_DAGS: [(&str, usize, Option<f64>); 2] = [("1,000", 1_000, Some(100.0)), ("10,000", 10_000, None)];
const IDLE_FOR: Duration = Duration::from_secs(20);

/// A workload, its tasks, and what it should not exceed, in milliseconds, on SQLite and on Postgres.
const WORKLOADS: [(&str, &str, usize, f64, f64); 4] = [
    ("chain40", "chain of 40 exec [true]", 40, 250.0, 400.0),
    ("parallel200", "200 parallel exec [true]", 200, 600.0, 600.0),
    ("empty1000", "1,000 empty", 1_000, 100.0, 100.0),
    ("empty10000", "10,000 empty", 10_000, 1_000.0, 1_000.0),
];

pub fn measure(binary: &Path, samples: usize) -> Result<Report> {
    let machine = Machine::here();
    let mut figures = vec![];
    measure_floors(samples, &mut figures)?;
    measure_workloads(binary, samples, Database::Sqlite, &mut figures)?;
    measure_workloads(binary, samples, Database::Postgres, &mut figures)?;
    measure_idling(binary, &mut figures)?;
    Ok(Report { family: "skeleton".into(), machine, figures, skipped: vec![] })
}

fn measure_floors(samples: usize, figures: &mut Vec<Figure>) -> Result<()> {
    let repeat =
        |measure: &dyn Fn() -> Result<Duration>| (0..samples).map(|_| measure()).collect::<Result<Vec<_>>>();
    figures.push(Figure::millis(
        "floor: 40 x true in sequence",
        &repeat(&|| floors::spawn_in_sequence(40))?,
        None,
    ));
    figures.push(Figure::millis("floor: 200 x true at once", &repeat(&|| floors::spawn_at_once(200))?, None));
    figures.push(Figure::millis("floor: one flush to disk", &repeat(&floors::flush)?, None));
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Database {
    Sqlite,
    Postgres,
}

fn measure_workloads(binary: &Path, samples: usize, on: Database, figures: &mut Vec<Figure>) -> Result<()> {
    // Durable, as in production: every commit is flushed.
    let postgres =
        (on == Database::Postgres).then(|| Postgres::own(Settings { fsync: true, ..Settings::default() }));
    let url = postgres.as_ref().map(|server| server.url());
    let mut server = Server::start(binary, &workload_dags(), url.as_deref())?;
    for (dag, name, tasks, sqlite_goal, postgres_goal) in WORKLOADS {
        server.api.run(dag)?; // the first one pays for caches and connections
        let before = server.cpu()?;
        let times = (0..samples).map(|_| server.api.run(dag)).collect::<Result<Vec<_>>>()?;
        let (database, goal) = match on {
            Database::Sqlite => ("SQLite", sqlite_goal),
            Database::Postgres => ("Postgres", postgres_goal),
        };
        let took = Figure::millis(format!("{name}, {database}"), &times, Some(goal));
        let used = server.cpu()? - before;
        let rate = Figure::rate(format!("{name}, {database}: tasks through"), "tasks/s", tasks, &took);
        let name = format!("{name}, {database}: processor of server and agent");
        figures.extend([took, rate, Figure::processor(name, "µs/task", used, tasks * samples)]);
    }
    figures.push(Figure::of(
        if on == Database::Sqlite { "memory afterwards, SQLite" } else { "memory afterwards, Postgres" },
        "MB",
        vec![server.memory()?],
        None,
    ));
    Ok(())
}

pub fn workload_dags() -> Vec<(String, String)> {
    let dag = |id: &str, tasks: String| {
        (id.to_owned(), format!("id: {id}\nmax_active_tasks: 1000\ntasks:\n{tasks}"))
    };
    let chain = (1..40).map(|n| format!("  t{n}: {{ needs: [t{}], exec: [\"true\"] }}\n", n - 1));
    let empty = |count: usize| (0..count).map(|n| format!("  t{n}: {{ empty: true }}\n")).collect();
    vec![
        dag("chain40", format!("  t0: {{ exec: [\"true\"] }}\n{}", chain.collect::<String>())),
        dag("parallel200", (0..200).map(|n| format!("  t{n}: {{ exec: [\"true\"] }}\n")).collect()),
        dag("empty1000", empty(1_000)),
        dag("empty10000", empty(10_000)),
    ]
}

fn measure_idling(binary: &Path, figures: &mut Vec<Figure>) -> Result<()> {
    for (shown, count, memory_goal) in IDLE_DAGS {
        // Scheduled, but not within the measurement.
        let dag = |n: usize| {
            let id = format!("idle{n:05}");
            let text =
                format!("id: {id}\nschedule: \"{} 3 1 1 *\"\ntasks:\n  t: {{ exec: [\"true\"] }}\n", n % 60);
            (id, text)
        };
        let dags: Vec<(String, String)> = (0..count).map(dag).collect();
        let server = Server::start(binary, &dags, None)?;
        std::thread::sleep(Duration::from_secs(3));
        let before = server.cpu()?;
        std::thread::sleep(IDLE_FOR);
        let share = (server.cpu()? - before).as_secs_f64() / IDLE_FOR.as_secs_f64() * 100.0;
        let name = |what: &str| format!("idle with {shown} scheduled dags: {what}");
        figures.push(Figure::of(name("one core"), "%", vec![share], Some(2.0)));
        figures.push(Figure::of(name("memory"), "MB", vec![server.memory()?], memory_goal));
    }
    Ok(())
}
