//! Goal: figures say who is compared with whom, in which direction, and what could not be measured says why.

use clap::ValueEnum;

use super::*;

fn outcome(workload: Workload, who: &'static str, seconds: &[f64], tasks: usize) -> Outcome {
    let took = seconds.iter().copied().map(Duration::from_secs_f64).collect();
    Outcome { workload, who, took, tasks_per_run: tasks, usage: None }
}

fn check(outcomes: &[Outcome], expected: &[(&str, &str, f64)]) {
    let figures = figures(outcomes);
    let found: Vec<(&str, &str, f64)> =
        figures.iter().map(|figure| (figure.name.as_str(), figure.unit.as_str(), figure.p50)).collect();
    assert_eq!(found, expected);
}

#[test]
fn dags_are_compared_by_their_median_time() {
    check(
        &[
            outcome(Workload::Chain, "Tenure", &[0.5, 0.2, 0.25], 40),
            outcome(Workload::Chain, "other", &[60.0], 40),
        ],
        &[
            ("chain of 40 x true, Tenure", "ms", 250.0),
            ("chain of 40 x true, other", "ms", 60_000.0),
            ("chain of 40 x true, other, of Tenure", "ratio", 240.0),
        ],
    );
}

#[test]
fn queues_are_compared_by_their_rate_whatever_the_number_of_jobs() {
    check(
        &[
            outcome(Workload::Jobs, "Tenure", &[5.0], 50_000),
            outcome(Workload::Jobs, "other", &[4.0], 20_000),
        ],
        &[
            ("no-op jobs, Tenure", "/s", 10_000.0),
            ("no-op jobs, other", "/s", 5_000.0),
            ("no-op jobs, other, of Tenure", "ratio", 0.5),
        ],
    );
}

#[test]
fn workloads_stay_apart_in_whatever_order_they_were_measured() {
    check(
        &[
            outcome(Workload::Jobs, "Tenure", &[1.0], 10),
            outcome(Workload::Chain, "Tenure", &[1.0], 40),
            outcome(Workload::Chain, "other", &[2.0], 40),
        ],
        &[
            ("chain of 40 x true, Tenure", "ms", 1_000.0),
            ("chain of 40 x true, other", "ms", 2_000.0),
            ("chain of 40 x true, other, of Tenure", "ratio", 2.0),
            ("no-op jobs, Tenure", "/s", 10.0),
        ],
    );
}

#[test]
fn costs_are_shared_by_the_tasks_of_all_runs() {
    let usage = Usage { processor: Duration::from_secs(8), postgres: Duration::from_secs(4), memory: 100.0 };
    let outcome = Outcome { usage: Some(usage), ..outcome(Workload::Chain, "other", &[1.0, 1.0], 40) };
    let costs: Vec<f64> = outcome.costs().iter().map(|figure| figure.p50).collect();
    assert_eq!(costs, [100_000.0, 50_000.0, 100.0]);
}

#[test]
fn everybody_has_a_name() {
    let names: Vec<&str> = Peer::value_variants().iter().map(|peer| peer.name()).collect();
    assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
}
