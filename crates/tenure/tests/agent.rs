//! Goal: `tenure agent` runs a cluster's tasks, leaves them alone when it leaves, and says what is wrong when it cannot
//! connect. Method: real servers and agents on a real Postgres, the real command line.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::cluster::{Cluster, PATIENCE, Replica, TOKEN};
use common::worker::{Worker, to_its_end};
use common::{BINARY, text, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

fn with_arguments(mut command: Command, servers: &str, token: &str) -> Command {
    command.args(["agent", "--server", servers, "--token", token, "--name", "worker", "--data", "worker"]);
    command.args(["--label", "zone=b", "--label", "disk=ssd", "--capacity", "cpu=1500m,gpu=2"]);
    command
}

fn start<'a>(cluster: &'a Cluster, servers: &str) -> Worker<'a> {
    Worker::spawn(cluster, with_arguments(cluster.command(), servers, TOKEN))
}

/// From another file than the one of the build.
fn start_from<'a>(program: &Path, cluster: &'a Cluster, servers: &str) -> Worker<'a> {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.current_dir(cluster.path("")).env_clear().env("PATH", path);
    Worker::spawn(cluster, with_arguments(command, servers, TOKEN))
}

fn push(cluster: &Cluster, replica: &Replica<'_>, dag: &str, script: &str) {
    let file = cluster.path(&format!("{dag}.yaml"));
    std::fs::write(&file, format!("id: {dag}\ntasks:\n  a:\n    bash: |\n      {script}\n")).unwrap();
    cluster.ok(replica, &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
}

fn run(cluster: &Cluster, replica: &Replica<'_>, dag: &str) -> String {
    let run = cluster.json(replica, &["run", "trigger", dag, "--wait", "--timeout", "30s"]);
    run["state"].as_str().unwrap().to_owned()
}

fn fails(cluster: &Cluster, servers: &str, token: &str) -> Output {
    to_its_end(with_arguments(cluster.command(), servers, token))
}

#[test]
fn an_agent_runs_tasks_for_every_replica_that_it_hears_of() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "4"]);
    let b = cluster.server("b", &[]);
    let agent = start(&cluster, &a.url);
    agent.wait_said("connected to", 2);
    for (number, by) in [&a, &b, &a, &b].into_iter().enumerate() {
        let dag = format!("d{number}");
        push(&cluster, by, &dag, "echo hello from $TENURE_DAG_ID");
        assert_eq!(run(&cluster, by, &dag), "success", "{}", agent.log());
        let log = cluster.ok(by, &["task", "logs", &dag, "latest", "a"]);
        assert!(log.contains(&format!("hello from {dag}")), "{log}");
    }
    let nodes = cluster.json(&b, &["node", "list"]);
    let worker =
        nodes.as_array().unwrap().iter().find(|node| node["node"] == "worker").expect("it is listed");
    assert_eq!(worker["labels"], json!({ "zone": "b", "disk": "ssd" }));
    assert_eq!((&worker["capacity"]["cpu"], &worker["capacity"]["gpu"]), (&json!(1_500), &json!(2_000)));
    assert!(worker["capacity"]["memory"].as_u64().unwrap() > 0, "what was not said is what the machine has");

    a.kill();
    agent.wait_said("disconnected from", 1);
    for number in 0..4 {
        assert_eq!(run(&cluster, &b, &format!("d{number}")), "success", "{}", agent.log());
    }
    assert_eq!(agent.log().matches("disconnected from").count(), 1, "said once:\n{}", agent.log());
}

#[test]
fn a_terminated_agent_leaves_its_tasks_running_and_the_next_one_picks_them_up() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &[]);
    let agent = start(&cluster, &a.url);
    agent.wait_said("connected to", 1);
    let (begun, go) = (cluster.path("begun"), cluster.path("go"));
    let script = format!(
        "echo begun >> {}; while [ ! -e {} ]; do sleep 0.05; done; echo done",
        begun.display(),
        go.display()
    );
    push(&cluster, &a, "slow", &script);
    cluster.ok(&a, &["run", "trigger", "slow"]);
    assert!(wait_until("its begin", PATIENCE, || begun.exists().then_some(())).is_some(), "{}", agent.log());
    agent.terminate();
    let agent = start(&cluster, &a.url);
    assert!(agent.log().contains("1 task keeps running"), "{}", agent.log());
    agent.wait_said("1 task from before goes on", 1);
    std::fs::write(go, "").unwrap();
    let state = || {
        let run = cluster.json(&a, &["run", "show", "slow", "latest"]);
        (run["state"] != "running" && run["state"] != "queued").then(|| run["state"].clone())
    };
    assert_eq!(wait_until("the run's end", PATIENCE, state), Some(json!("success")), "{}", agent.log());
    assert_eq!(std::fs::read_to_string(begun).unwrap(), "begun\n", "it was started once");
}

/// What an upgrade is: kill -9 in the worst case, the old file gone, another one in another place.
#[test]
fn an_agent_upgraded_under_running_tasks_tells_every_end_as_it_was() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &[]);
    let [old, new] = ["tenure-old", "tenure-new"].map(|name| cluster.path(name));
    for path in [&old, &new] {
        std::fs::hard_link(BINARY, path).or_else(|_| std::fs::copy(BINARY, path).map(drop)).unwrap();
    }
    let agent = start_from(&old, &cluster, &a.url);
    agent.wait_said("connected to", 1);
    let starts = cluster.path("starts");
    let started = || std::fs::read_to_string(&starts).unwrap_or_default();
    for (dag, code) in [("later", 0), ("alone", 7), ("lost", 0)] {
        let script = format!(
            "echo {dag} $PPID >> {}; while [ ! -e {} ]; do sleep 0.05; done; exit {code}",
            starts.display(),
            cluster.path(&format!("go-{dag}")).display()
        );
        push(&cluster, &a, dag, &script);
        cluster.ok(&a, &["run", "trigger", dag]);
    }
    let all = wait_until("three starts", PATIENCE, || (started().lines().count() == 3).then_some(()));
    assert!(all.is_some(), "{}\n{}", started(), agent.log());
    agent.kill();
    std::fs::remove_file(&old).unwrap();
    std::fs::write(cluster.path("go-alone"), "").unwrap();
    let supervisor = started().lines().find_map(|line| line.strip_prefix("lost ")?.parse().ok()).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    let exits = || {
        let attempts = std::fs::read_dir(cluster.path("worker").join("attempts")).unwrap().flatten();
        attempts.filter(|attempt| attempt.path().join("exit.json").exists()).count()
    };
    assert!(wait_until("an end without an agent", PATIENCE, || (exits() == 1).then_some(())).is_some());

    let agent = start_from(&new, &cluster, &a.url);
    agent.wait_said("connected to", 2);
    std::fs::write(cluster.path("go-later"), "").unwrap();
    for (dag, state, words) in
        [("later", "success", ""), ("alone", "failed", "exit code 7"), ("lost", "failed", "lost")]
    {
        let ended = wait_until("the run's end", PATIENCE, || {
            let run = cluster.json(&a, &["run", "show", dag, "latest"]);
            (run["state"] == state).then(|| run.to_string())
        });
        let told = ended.unwrap_or_else(|| panic!("{dag} is not {state}:\n{}", agent.log()));
        assert!(told.contains(words), "{dag}: {told}");
    }
    assert_eq!(started().lines().count(), 3, "each was started once:\n{}", started());
}

#[test]
fn an_agent_that_cannot_connect_says_why_and_what_to_do() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &[]);
    let said = |output: &Output| text(&output.stderr);

    let refused = fails(&cluster, &a.url, "wrong");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains(&a.url) && said(&refused).contains("--token"), "{}", said(&refused));

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let elsewhere = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(tenure_api::serve(listener, axum::Router::new(), CancellationToken::new()));
        url
    });
    let refused = fails(&cluster, &elsewhere, TOKEN);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("takes no agents") && said(&refused).contains("--server"),
        "{}",
        said(&refused)
    );

    for (servers, words) in [("ftp://x", "http://"), ("http://", "http://"), ("http://a:1/path", "http://")] {
        let refused = fails(&cluster, servers, TOKEN);
        assert!(!refused.status.success() && said(&refused).contains(words), "{servers}: {}", said(&refused));
    }

    // One that is not there yet is waited for.
    let port = tenure_testkit::free_port();
    let agent = start(&cluster, &format!("http://127.0.0.1:{port}"));
    agent.wait_said("cannot be reached", 1);
    let mut late = cluster.server_command("b", &[]);
    late.env("TENURE_LISTEN", format!("127.0.0.1:{port}"));
    let mut late = cluster.spawn("b", late);
    late.wait_ready();
    agent.wait_said("connected to", 1);
    assert_eq!(agent.log().matches("cannot be reached").count(), 1, "said once:\n{}", agent.log());

    // A second agent in the same folder would fight the first.
    let second = fails(&cluster, &a.url, TOKEN);
    assert!(!second.status.success() && said(&second).contains("--data"), "{}", said(&second));
}
