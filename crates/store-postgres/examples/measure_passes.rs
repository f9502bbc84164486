//! How fast passes are committed on this machine: `cargo run --release -p tenure-store-postgres --example
//! measure_passes`. A server of its own, with fsync on.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::{change, load, owner, pass, register, store, trigger};
use tenure_clock::{Clock, SystemClock};
use tenure_lease::Tenure;
use tenure_model::{RunKey, TaskState};
use tenure_store::SchedulingStore;
use tenure_store_postgres::PostgresStore;
use tenure_testkit::{Postgres, Settings};

#[tokio::main]
async fn main() {
    let extra = vec!["shared_buffers=256MB".into(), "max_wal_size=4GB".into()];
    let server = Postgres::own(Settings { fsync: true, extra });
    let ours = store(&server.url(), 4).await;
    let (_elector, tenure) = owner(&ours).await;
    for (tasks, passes) in [(1, 2_000), (10, 1_000), (1_000, 100), (10_000, 10)] {
        let dag = format!("dag-{tasks}");
        register(&ours, &dag, tasks).await;
        let begun = SystemClock.boottime();
        let run = trigger(&ours, &dag, "r1").await.key;
        let created = SystemClock.boottime().saturating_since(begun);
        measure(&ours, &tenure, run, 10).await; // warm
        let took = measure(&ours, &tenure, run, passes).await;
        let each = took / passes;
        let rows = f64::from(passes) * tasks as f64 / took.as_secs_f64();
        println!(
            "{tasks:>6} rows a pass: {each:>10.2?} a pass, {rows:>9.0} rows/s; run created in {created:.2?}"
        );
    }
}

/// The time spent in `commit_pass` alone.
async fn measure(ours: &PostgresStore, tenure: &Tenure, run: RunKey, passes: u32) -> Duration {
    let mut spent = Duration::ZERO;
    let mut snapshot = load(ours, run).await;
    for _ in 0..passes {
        let from = snapshot.tis[0].ti.state;
        let to = if from == TaskState::None { TaskState::Scheduled } else { TaskState::None };
        let pass = pass(vec![change(&snapshot, from, to)]);
        let guard = tenure.guard().expect("leads");
        let begun = SystemClock.boottime();
        let committed = ours.commit_pass(&guard, &pass).await.expect("committed");
        spent += SystemClock.boottime().saturating_since(begun);
        assert_eq!(committed.conflicts, vec![]);
        snapshot.header.revision += 1;
        snapshot.header.state = tenure_model::RunState::Running;
        for (cached, change) in snapshot.tis.iter_mut().zip(&pass.runs[0].tis) {
            cached.ti = change.to.clone();
        }
    }
    spent
}
