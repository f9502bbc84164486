//! Tenure itself: the dags on `tenure up`, the jobs as no-op tasks through a `tenure server`, both on Postgres.

use anyhow::Result;

use super::process::{Usage, counted};
use super::{Bench, JOBS, Outcome, Workload};
use crate::cluster;
use crate::cluster::database::Database;
use crate::cluster::site::Site;
use crate::server::Server;
use crate::skeleton::workload_dags;

const NAME: &str = "Tenure";

pub fn measure(bench: &Bench<'_>, outcomes: &mut Vec<Outcome>) -> Result<()> {
    eprintln!("measuring {NAME}");
    dags(bench, outcomes)?;
    outcomes.push(jobs(bench)?);
    Ok(())
}

fn dags(bench: &Bench<'_>, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let database = Database::create(&bench.postgres.url())?;
    let mut server = Server::start(bench.options.binary, &workload_dags(), Some(&database.url))?;
    for (workload, dag, tasks) in Workload::DAGS {
        server.api.run(dag)?; // the first one pays for caches and connections
        let pid = server.pid();
        let runs = 0..bench.options.samples;
        let (took, usage) =
            counted(&[pid], &database, || runs.map(|_| server.api.run(dag)).collect::<Result<Vec<_>>>())?;
        outcomes.push(Outcome { workload, who: NAME, took, tasks_per_run: tasks, usage: Some(usage) });
    }
    Ok(())
}

/// As the cluster's throughput: who plays the agents does what the workers of a job queue do, and counts.
fn jobs(bench: &Bench<'_>) -> Result<Outcome> {
    let options = cluster::Options {
        binary: bench.options.binary,
        samples: 1,
        only: vec![],
        full: false,
        tasks: JOBS,
        statements: false,
    };
    let site = Site::open(bench.options.binary, &bench.postgres, 1, &cluster::SETTINGS)?;
    let flow = cluster::flow(&options, &site, "noop")?;
    let processor = flow.servers + flow.generator;
    let usage = Usage { processor, postgres: flow.postgres, memory: flow.memory };
    Ok(Outcome {
        workload: Workload::Jobs,
        who: NAME,
        took: vec![flow.took],
        tasks_per_run: flow.tasks,
        usage: Some(usage),
    })
}
