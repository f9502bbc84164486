//! Goal: whoever brings two machines sees them share the work, sees why a task waits, and can empty one of them and bring
//! it back while everything goes on. Method: a real server on a real Postgres, two real agents with folders of their
//! own, the real command line.

mod common;

use std::collections::BTreeSet;

use common::cluster::{Cluster, PATIENCE, Replica};
use common::patient::{patient, push, starts, wait_starts};
use common::worker::{Worker, to_its_end};
use common::{text, wait_until};
use serde_json::Value;

fn join<'a>(cluster: &'a Cluster, server: &Replica<'_>, name: &str) -> Worker<'a> {
    let token = cluster.ok(server, &["node", "token", "--name", name]);
    let mut command = cluster.command();
    command.env("TENURE_TOKEN", token.trim());
    command.args(["agent", "--server", &server.url, "--name", name, "--data", name]);
    command.args(["--label", &format!("side={name}")]);
    Worker::spawn(cluster, command)
}

fn task(cluster: &Cluster, server: &Replica<'_>, dag: &str, run: &str, task: &str) -> Value {
    cluster.json(server, &["task", "show", dag, run, task])
}

fn node_of(cluster: &Cluster, server: &Replica<'_>, run: (&str, &str), id: &str) -> String {
    task(cluster, server, run.0, run.1, id)["hostname"].as_str().unwrap_or("-").to_owned()
}

fn nodes_of(cluster: &Cluster, server: &Replica<'_>, run: (&str, &str)) -> BTreeSet<String> {
    ["one", "two"].iter().map(|id| node_of(cluster, server, run, id)).collect()
}

fn names(nodes: &[&str]) -> BTreeSet<String> {
    nodes.iter().map(|name| (*name).to_owned()).collect()
}

/// `ready`, `draining` and so on, as `tenure node list` has it.
fn listed(cluster: &Cluster, server: &Replica<'_>, node: &str) -> String {
    let nodes = cluster.ok(server, &["node", "list"]);
    let line = nodes.lines().find(|line| line.contains(node)).unwrap_or_else(|| panic!("{nodes}"));
    line.split_whitespace().nth(1).expect("a state").to_owned()
}

fn wait_listed(cluster: &Cluster, server: &Replica<'_>, node: &str, state: &str) {
    let reached =
        wait_until("its state", PATIENCE, || (listed(cluster, server, node) == state).then_some(()));
    assert!(reached.is_some(), "{node} is {}, not {state}:\n{}", listed(cluster, server, node), server.log());
}

fn ends_well(cluster: &Cluster, server: &Replica<'_>, run: (&str, &str)) {
    let ended = wait_until("the run's end", PATIENCE, || {
        let shown = cluster.json(server, &["run", "show", run.0, run.1]);
        (shown["state"] == "success").then_some(())
    });
    assert!(ended.is_some(), "{}", cluster.ok(server, &["task", "list", run.0, run.1]));
}

#[test]
fn two_machines_share_a_run_and_a_drain_moves_its_work_from_one_to_the_other_until_it_is_taken_back() {
    let cluster = Cluster::new();
    let server = cluster.server("a", &["--shards", "2"]);
    let agents = ["left", "right"].map(|name| join(&cluster, &server, name));
    agents[0].wait_said("connected to", 2);
    for name in ["left", "right"] {
        wait_listed(&cluster, &server, name, "ready");
    }
    let script = patient(&cluster);
    let apart = |id: &str| format!("  {id}: {{ bash: '{script}', affinity: {{ spread: side }} }}\n");
    let two = apart("one") + &apart("two");
    let more = "  after: { bash: 'true', needs: [one, two] }\n  \
                nowhere: { bash: 'true', resources: { licence: 1 } }\n";
    push(&cluster, &server, "shared", &format!("id: shared\ntasks:\n{two}{more}"));
    push(&cluster, &server, "later", &format!("id: later\ntasks:\n{two}"));

    // One run, both machines, and a task that fits on neither says so wherever somebody looks.
    let first = ("shared", "r");
    cluster.ok(&server, &["run", "trigger", "shared", "--run-id", "r"]);
    wait_starts(&cluster, 2, PATIENCE);
    assert_eq!(nodes_of(&cluster, &server, first), names(&["left", "right"]));
    let why = "no node has licence ≥ 1: 2 nodes too small (the largest has 0)";
    assert_eq!(task(&cluster, &server, "shared", "r", "nowhere")["reason"], why);
    for command in [["task", "list", "shared", "r"], ["run", "show", "shared", "r"]] {
        let shown = cluster.ok(&server, &command);
        assert!(shown.contains(why), "{command:?}: {shown}");
    }

    // What runs on the one that is emptied has to go when its time is up.
    let moving = if node_of(&cluster, &server, first, "one") == "left" { "one" } else { "two" };
    let drained = cluster.cli(&server, &["node", "drain", "left", "--deadline", "1s", "--wait"]);
    let (out, err) = (text(&drained.stdout), text(&drained.stderr));
    assert!(drained.status.success() && out.contains("left is drained"), "{out}\n{err}\n{}", server.log());
    assert!(err.contains("1 of 1 tasks left"), "{err}");
    let shown = cluster.ok(&server, &["node", "show", "left"]);
    assert!(shown.contains("nothing runs there"), "{shown}");
    assert_eq!(listed(&cluster, &server, "left"), "drained");
    wait_starts(&cluster, 3, PATIENCE);
    let (again, number, _) = starts(&cluster).pop().unwrap();
    assert_eq!((again.as_str(), number), (moving, 1), "it has cost no try");
    assert_eq!(nodes_of(&cluster, &server, first), names(&["right"]));
    cluster.ok(&server, &["run", "trigger", "later", "--run-id", "r2"]);
    wait_starts(&cluster, 5, PATIENCE);
    assert_eq!(nodes_of(&cluster, &server, ("later", "r2")), names(&["right"]));

    cluster.ok(&server, &["node", "undrain", "left"]);
    wait_listed(&cluster, &server, "left", "ready");
    cluster.ok(&server, &["run", "trigger", "later", "--run-id", "r3"]);
    wait_starts(&cluster, 7, PATIENCE);
    assert!(
        nodes_of(&cluster, &server, ("later", "r3")).contains("left"),
        "it has its part of the work again"
    );

    // Whoever waits for a drain that somebody takes back is told, and what runs there runs on.
    let mut command = cluster.command();
    command.env("TENURE_SERVER", &server.url).env("TENURE_TOKEN", common::TOKEN);
    command.args(["node", "drain", "left", "--deadline", "10m", "--wait"]);
    let waiting = std::thread::spawn(move || to_its_end(command));
    wait_listed(&cluster, &server, "left", "draining");
    cluster.ok(&server, &["node", "undrain", "left"]);
    let told = waiting.join().unwrap();
    assert!(!told.status.success() && text(&told.stderr).contains("took that back"), "{told:?}");

    for id in ["one", "two"] {
        std::fs::write(cluster.path(&format!("{id}-1")), "").unwrap();
    }
    cluster.ok(&server, &["task", "mark", "shared", "r", "nowhere", "success"]);
    for run in [first, ("later", "r2"), ("later", "r3")] {
        ends_well(&cluster, &server, run);
    }
    assert_eq!(starts(&cluster).len(), 7, "{:?}", starts(&cluster));
}
