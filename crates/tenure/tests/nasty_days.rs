//! Goal: the nasty days of agents end well: control planes that are away, agents that come back too late, messages that
//! come twice. Method: a real server and real agents on a real Postgres, with a relay between them where the weather
//! is bad; tasks leave a line for each start.

mod common;
#[path = "nasty_days/relay.rs"]
mod relay;

use std::collections::BTreeMap;
use std::time::Duration;

use common::cluster::{Cluster, PATIENCE, Replica, TOKEN};
use common::patient::{patient, push, starts, wait_starts, worker_log};
use common::wait_until;
use common::worker::Worker;
use relay::{Relay, Weather};
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;

/// Just above the shortest that is allowed.
const THRESHOLD: Duration = Duration::from_secs(16);
const LONG: Duration = Duration::from_secs(90);
/// A link on which nothing is heard counts as one for up to 20 s more, for replicas that have none of their own.
const HALF_OPEN: Duration = Duration::from_secs(20);
/// What a loaded machine may add.
const DELAYS: Duration = Duration::from_secs(10);

fn agent<'a>(cluster: &'a Cluster, server: &str, name: &str) -> Worker<'a> {
    let mut command = cluster.command();
    command.args(["agent", "--server", server, "--token", TOKEN, "--name", name, "--data", name]);
    Worker::spawn(cluster, command)
}

fn wait_run(cluster: &Cluster, replica: &Replica<'_>, dag: &str, state: &str) -> Value {
    let ended = wait_until("the run's end", LONG, || {
        let run = cluster.json(replica, &["run", "show", dag, "r"]);
        (run["state"] == state).then_some(run)
    });
    ended.unwrap_or_else(|| {
        let run = cluster.json(replica, &["run", "show", dag, "r"]);
        panic!("{dag} is not {state}: {run}\n{}\n{}", replica.log(), worker_log(cluster))
    })
}

/// By task and event.
type Events = BTreeMap<(String, String), usize>;

/// How often each event happened to each task.
fn events(cluster: &Cluster, replica: &Replica<'_>, dag: &str) -> Events {
    let path = format!("/api/tenure/audit?dag_id={dag}&limit=1000");
    let (_, audit) = replica.api().get(&path).unwrap();
    let mut events = BTreeMap::new();
    for entry in audit["audit"].as_array().unwrap().iter().flat_map(|row| row["entries"].as_array().unwrap())
    {
        if let Some(task) = entry["task"].as_str() {
            let event = entry["event"].as_str().unwrap().to_owned();
            *events.entry((task.to_owned(), event)).or_default() += 1;
        }
    }
    assert!(!events.is_empty(), "{}", cluster.path("").display());
    events
}

fn count(events: &Events, task: &str, event: &str) -> usize {
    events.get(&(task.to_owned(), event.to_owned())).copied().unwrap_or(0)
}

fn wait_heard(cluster: &Cluster, server: &Replica<'_>, name: &str) {
    let there = wait_until("the node", PATIENCE, || {
        let node = cluster.cli(server, &["node", "show", name, "--output", "json"]);
        let node: Value = serde_json::from_slice(&node.stdout).ok()?;
        (!node["heard_by"].as_array()?.is_empty()).then_some(())
    });
    assert!(there.is_some(), "{name} is not there:\n{}\n{}", server.log(), worker_log(cluster));
}

/// Until this agent keeps nothing of any attempt.
fn wait_let_go(cluster: &Cluster, name: &str) {
    let nothing_left = wait_until("the agent to let go", PATIENCE, || {
        let attempts = std::fs::read_dir(cluster.path(name).join("attempts")).ok()?;
        (attempts.count() == 0).then_some(())
    });
    assert!(nothing_left.is_some(), "{}", worker_log(cluster));
}

fn lost_tasks(server: &Replica<'_>) -> f64 {
    let (_, metrics) = server.api().get_text("/metrics").unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("tenure_agent_lost_tasks_total "));
    line.expect("it is counted").parse().unwrap()
}

fn alive(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok()
}

#[test]
fn a_control_plane_that_is_away_for_longer_than_the_threshold_reaps_nobody() {
    let cluster = Cluster::new();
    let address = format!("127.0.0.1:{}", tenure_testkit::free_port());
    let threshold = format!("{}s", THRESHOLD.as_secs());
    let flags = ["--shards", "2", "--listen", &address, "--heartbeat-threshold", &threshold];
    let server = cluster.server("a", &flags);
    let agent = agent(&cluster, &server.url, "worker");
    agent.wait_said("connected to", 1);
    let script = patient(&cluster);
    push(
        &cluster,
        &server,
        "long",
        &format!(
            "id: long\ntasks:\n  on: {{ bash: '{script}', retries: 2, retry_delay: 0s }}\n  over: {{ bash: '{script}', retries: 2, retry_delay: 0s }}\n"
        ),
    );
    cluster.ok(&server, &["run", "trigger", "long", "--run-id", "r"]);
    wait_starts(&cluster, 2, PATIENCE);

    server.kill();
    // One ends while nobody is there to hear it.
    std::thread::sleep(THRESHOLD / 2);
    std::fs::write(cluster.path("over-1"), "").unwrap();
    std::thread::sleep(THRESHOLD / 2 + Duration::from_secs(2));
    let server = cluster.server("a", &flags);
    agent.wait_said("connected to", 2);
    let heard = wait_until("the end that nobody heard", PATIENCE, || {
        let run = cluster.json(&server, &["run", "show", "long", "r"]).to_string();
        run.contains("\"success\"").then_some(())
    });
    assert!(heard.is_some(), "{}\n{}", server.log(), agent.log());
    std::fs::write(cluster.path("on-1"), "").unwrap();
    wait_run(&cluster, &server, "long", "success");
    assert_eq!(starts(&cluster).len(), 2, "{:?}", starts(&cluster));
    let events = events(&cluster, &server, "long");
    for task in ["on", "over"] {
        let times = |event: &str| count(&events, task, event);
        assert_eq!((times("claimed"), times("succeeded"), times("failed")), (1, 1, 0), "{events:?}");
    }
    assert_eq!(lost_tasks(&server), 0.0);
}

#[test]
fn an_agent_that_comes_back_after_its_tasks_were_given_away_is_refused_and_told_to_kill() {
    let cluster = Cluster::new();
    let threshold = format!("{}s", THRESHOLD.as_secs());
    let server = cluster.server("a", &["--shards", "2", "--heartbeat-threshold", &threshold]);
    let relay = Relay::to(&server.url, Weather::default());
    let _old = agent(&cluster, &relay.url, "old");
    wait_heard(&cluster, &server, "old");
    let script = patient(&cluster);
    // What the second try of `ended` comes to is what counts, whatever the first one has to say.
    let dag = format!(
        "id: late\ntasks:\n  \
         killed: {{ bash: '{script}', retries: 1, retry_delay: 0s }}\n  \
         ended: {{ bash: '{script}; [ $TENURE_TRY_NUMBER = 1 ]', retries: 1, retry_delay: 0s }}\n"
    );
    push(&cluster, &server, "late", &dag);
    cluster.ok(&server, &["run", "trigger", "late", "--run-id", "r"]);
    wait_starts(&cluster, 2, PATIENCE);
    let first: Vec<(String, u32, i32)> = starts(&cluster);

    relay.set(Weather { cut: true, ..Weather::default() });
    let _new = agent(&cluster, &server.url, "new");
    wait_heard(&cluster, &server, "new");
    std::fs::write(cluster.path("ended-1"), "").unwrap();
    wait_starts(&cluster, 4, THRESHOLD + LONG);
    assert!(starts(&cluster)[2..].iter().all(|(_, number, _)| *number == 2), "{:?}", starts(&cluster));
    let killed = first.iter().find(|(task, ..)| task == "killed").unwrap().2;
    assert!(alive(killed), "nobody could have told its agent");

    relay.set(Weather::default());
    let dead = wait_until("the end of what was given away", PATIENCE, || (!alive(killed)).then_some(()));
    assert!(dead.is_some(), "{}\n{}", server.log(), worker_log(&cluster));
    wait_let_go(&cluster, "old");
    for file in ["killed-2", "ended-2"] {
        std::fs::write(cluster.path(file), "").unwrap();
    }
    wait_run(&cluster, &server, "late", "failed");
    let events = events(&cluster, &server, "late");
    let times = |task: &str, event: &str| count(&events, task, event);
    assert_eq!((times("killed", "claimed"), times("killed", "succeeded")), (2, 1), "{events:?}");
    assert_eq!((times("ended", "claimed"), times("ended", "succeeded")), (2, 0), "{events:?}");
    assert_eq!(starts(&cluster).len(), 4, "{:?}", starts(&cluster));
}

#[test]
fn an_agent_that_is_stopped_for_a_while_costs_nothing_and_for_too_long_its_tasks_are_given_up_once() {
    let cluster = Cluster::new();
    let threshold = format!("{}s", THRESHOLD.as_secs());
    let server = cluster.server("a", &["--shards", "2", "--heartbeat-threshold", &threshold]);
    let old = agent(&cluster, &server.url, "old");
    wait_heard(&cluster, &server, "old");
    let script = patient(&cluster);
    let task = |id: &str| format!("  {id}: {{ bash: '{script}', retries: 1, retry_delay: 0s }}\n");
    push(&cluster, &server, "nap", &format!("id: nap\ntasks:\n{}{}", task("on"), task("over")));
    cluster.ok(&server, &["run", "trigger", "nap", "--run-id", "r"]);
    wait_starts(&cluster, 2, PATIENCE);

    // One goes on, and one ends while its agent hears nothing.
    old.signal(Signal::STOP);
    std::thread::sleep(THRESHOLD / 4);
    std::fs::write(cluster.path("over-1"), "").unwrap();
    std::thread::sleep(THRESHOLD / 2);
    old.signal(Signal::CONT);
    let heard = wait_until("the end that nobody heard", PATIENCE, || {
        let run = cluster.json(&server, &["task", "show", "nap", "r", "over"]);
        (run["state"] == "success").then_some(())
    });
    assert!(heard.is_some(), "{}\n{}", server.log(), worker_log(&cluster));
    std::fs::write(cluster.path("on-1"), "").unwrap();
    wait_run(&cluster, &server, "nap", "success");
    assert_eq!((starts(&cluster).len(), lost_tasks(&server)), (2, 0.0), "{:?}", starts(&cluster));

    push(&cluster, &server, "sleep", &format!("id: sleep\ntasks:\n{}", task("deep")));
    cluster.ok(&server, &["run", "trigger", "sleep", "--run-id", "r"]);
    wait_starts(&cluster, 3, PATIENCE);
    let pid = starts(&cluster)[2].2;
    old.signal(Signal::STOP);
    let _new = agent(&cluster, &server.url, "new");
    wait_heard(&cluster, &server, "new");
    wait_starts(&cluster, 4, THRESHOLD + HALF_OPEN + DELAYS);
    assert_eq!(starts(&cluster)[3].1, 2, "{:?}", starts(&cluster));
    assert!(alive(pid), "nobody could have told its agent");
    old.signal(Signal::CONT);
    let dead = wait_until("the end of what was given away", PATIENCE, || (!alive(pid)).then_some(()));
    assert!(dead.is_some(), "{}\n{}", server.log(), worker_log(&cluster));
    wait_let_go(&cluster, "old");
    std::fs::write(cluster.path("deep-2"), "").unwrap();
    wait_run(&cluster, &server, "sleep", "success");
    let events = events(&cluster, &server, "sleep");
    let times = |event: &str| count(&events, "deep", event);
    assert_eq!((times("claimed"), times("failed"), times("succeeded")), (2, 1, 1), "{events:?}");
    assert_eq!((starts(&cluster).len(), lost_tasks(&server)), (4, 1.0), "{:?}", starts(&cluster));
}

#[test]
fn messages_that_come_late_and_twice_over_links_that_break_start_and_end_every_task_once() {
    let cluster = Cluster::new();
    let server = cluster.server("a", &["--shards", "4"]);
    let bad = Weather { twice: true, late: Duration::from_millis(150), cut: false };
    let relays = ["x", "y", "z"].map(|name| (name, Relay::to(&server.url, bad)));
    let agents: Vec<Worker<'_>> =
        relays.iter().map(|(name, relay)| agent(&cluster, &relay.url, name)).collect();
    agents[0].wait_said("connected to", 3);
    let folder = cluster.path("");
    let script =
        format!("echo $TENURE_TASK_ID $TENURE_TRY_NUMBER $$ >> {}/starts; sleep 0.3", folder.display());
    let names: Vec<String> = (0..30).map(|number| format!("t{number}")).collect();
    let tasks: String = names.iter().map(|name| format!("  {name}: {{ bash: '{script}' }}\n")).collect();
    push(&cluster, &server, "storm", &format!("id: storm\ntasks:\n{tasks}"));
    cluster.ok(&server, &["run", "trigger", "storm", "--run-id", "r"]);
    // Links break while tasks are handed out, claimed and ended.
    for round in 1..=6 {
        wait_starts(&cluster, 4 * round, LONG);
        relays[round % relays.len()].1.blink();
    }
    wait_run(&cluster, &server, "storm", "success");
    let mut started: Vec<String> = starts(&cluster).into_iter().map(|(task, ..)| task).collect();
    started.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(started, expected, "each once");
    let events = events(&cluster, &server, "storm");
    for name in &names {
        let times = |event: &str| count(&events, name, event);
        assert_eq!((times("claimed"), times("succeeded"), times("failed")), (1, 1, 0), "{name}: {events:?}");
    }
}
