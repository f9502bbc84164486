//! Not a test but a measurement: what one trivial attempt costs, beside the bare spawn of its program.
//! `cargo test --release -p tenure-agent --test measure -- --ignored --nocapture`

mod common;

use std::time::{Duration, Instant};

use common::{Bench, eventually};

const TIMES: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, meaningful in a release build on a quiet machine"]
#[allow(clippy::disallowed_methods, reason = "a stopwatch")]
async fn one_trivial_attempt_end_to_end() {
    let bench = Bench::new();
    let agent = bench.agent().await;

    let watch = Instant::now();
    for _ in 0..TIMES {
        assert!(std::process::Command::new("/bin/true").status().unwrap().success());
    }
    println!("bare spawn of true: {:?}", watch.elapsed() / TIMES);

    let mut each = Vec::new();
    for _ in 0..TIMES {
        let task = bench.assignment(&["true"]);
        let attempt = task.attempt;
        let watch = Instant::now();
        agent.assign(task).await.unwrap();
        bench.control.end_of(attempt).await;
        each.push(watch.elapsed());
    }
    each.sort();
    let mean = each.iter().sum::<Duration>() / TIMES;
    println!("attempt of true: mean {mean:?}, median {:?}, p99 {:?}", each[100], each[197]);

    let tasks: Vec<_> = (0..TIMES).map(|_| bench.assignment(&["true"])).collect();
    let watch = Instant::now();
    for task in &tasks {
        agent.assign(task.clone()).await.unwrap();
    }
    for task in &tasks {
        bench.control.end_of(task.attempt).await;
    }
    println!("{TIMES} at once: {:?}", watch.elapsed());
    eventually("all are let go", || agent.running() == 0).await;
}
