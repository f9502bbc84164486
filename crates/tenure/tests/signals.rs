//! Goal: whoever scales a cluster hears once what is missing, hears that it is there, and which nodes could go.
//! Method: a real server and real agents on a real Postgres, and a webhook in the test.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use common::cluster::{Cluster, PATIENCE, TOKEN};
use common::wait_until;
use common::worker::Worker;
use serde_json::{Value, json};

const SECRET: &str = "T0PS3CRET";

/// A webhook that keeps what it is sent. The first POST of all is refused, as if it had been busy.
struct Hook {
    url: String,
    signals: Arc<Mutex<Vec<Value>>>,
}

impl Hook {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/{SECRET}?key={SECRET}", listener.local_addr().unwrap());
        let signals = Arc::new(Mutex::new(vec![]));
        let kept = Arc::clone(&signals);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut reader = BufReader::new(stream.unwrap());
                let mut length = 0;
                for line in reader.by_ref().lines() {
                    let line = line.unwrap().to_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let code = if number == 0 { 503 } else { 200 };
                if code == 200 {
                    let mut body: Value = serde_json::from_slice(&body).unwrap();
                    assert!(body["at"].is_string() && body["replica"].is_string(), "{body}");
                    let Value::Array(told) = body["signals"].take() else { panic!("no signals: {body}") };
                    kept.lock().unwrap().extend(told);
                }
                let answer = format!("HTTP/1.1 {code} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        Self { url, signals }
    }

    fn told(&self, kind: &str) -> Vec<Value> {
        let signals = self.signals.lock().unwrap();
        signals.iter().filter(|signal| signal["type"] == kind).cloned().collect()
    }

    fn wait(&self, kind: &str) -> Value {
        let told = wait_until(kind, PATIENCE, || self.told(kind).pop());
        told.unwrap_or_else(|| panic!("{kind} was not told: {:?}", self.signals.lock().unwrap()))
    }
}

fn agent<'a>(cluster: &'a Cluster, server: &str, name: &str, capacity: &str) -> Worker<'a> {
    let mut command = cluster.command();
    command.args(["agent", "--server", server, "--token", TOKEN, "--name", name, "--data", name]);
    command.args(["--capacity", capacity]);
    Worker::spawn(cluster, command)
}

#[test]
fn a_webhook_hears_of_a_shortage_once_of_its_end_and_of_nodes_that_could_go() {
    let cluster = Cluster::new();
    let hook = Hook::open();
    let server = cluster.server(
        "a",
        &[
            "--shards",
            "4",
            "--signals-webhook",
            &hook.url,
            "--signals-shortage-after",
            "1s",
            "--signals-idle-after",
            "2s",
            "--signals-interval",
            "100ms",
        ],
    );
    let _plain = agent(&cluster, &server.url, "plain", "cpu=2");
    for dag in ["x", "y"] {
        let file = cluster.path(&format!("{dag}.yaml"));
        let task = |name: &str| format!("  {name}: {{ exec: [\"true\"], resources: {{ gpu: 1 }} }}\n");
        std::fs::write(&file, format!("id: {dag}\ntasks:\n{}{}", task("a"), task("b"))).unwrap();
        cluster.ok(&server, &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
        for run in ["1", "2", "3"] {
            cluster.ok(&server, &["run", "trigger", dag, "--run-id", run]);
        }
    }
    let shortage = hook.wait("capacity_shortage");
    assert_eq!((&shortage["shape"], &shortage["each"]), (&json!("gpu 1"), &json!({ "gpu": 1 })));
    let tasks = shortage["tasks"].as_u64().unwrap();
    assert_eq!(shortage["missing"], json!({ "gpu": tasks }));
    assert!(shortage["reason"].as_str().unwrap().contains("no node has gpu ≥ 1"), "{shortage}");
    // More of the same is the same shortage.
    for run in ["4", "5"] {
        cluster.ok(&server, &["run", "trigger", "x", "--run-id", run]);
    }
    let metrics = || server.api().get_text("/metrics").map(|(_, text)| text).unwrap_or_default();
    let all = wait_until("all are counted", PATIENCE, || {
        metrics().contains("tenure_capacity_shortage_tasks{shape=\"gpu 1\"} 16").then_some(())
    });
    assert!(all.is_some(), "{}", metrics());

    let _gpus = agent(&cluster, &server.url, "gpus", "cpu=2,gpu=4");
    assert_eq!(hook.wait("capacity_shortage_over")["shape"], "gpu 1");
    let idle = hook.wait("nodes_idle");
    assert_eq!(idle["nodes"].as_array().unwrap().len(), 1, "one of two is kept: {idle}");
    assert_eq!(hook.told("capacity_shortage").len(), 1, "however many tasks: {:?}", hook.signals);
    assert!(metrics().contains("tenure_webhook_posts_total{outcome=\"delivered\"}"), "{}", metrics());

    let (_, audit) = server.api().get("/api/tenure/audit?limit=1000").unwrap();
    let rows = audit["audit"].as_array().unwrap().iter();
    let events: Vec<&str> = rows
        .filter(|row| row["scope"] == "controller/leader")
        .flat_map(|row| row["entries"].as_array().unwrap())
        .map(|entry| entry["event"].as_str().unwrap())
        .collect();
    for kind in ["capacity_shortage", "capacity_shortage_over", "nodes_idle"] {
        assert_eq!(events.iter().filter(|event| **event == kind).count(), 1, "{kind} in {events:?}");
    }
    assert!(server.log().contains("capacity is missing"), "{}", server.log());
    assert!(!server.log().contains(SECRET), "{}", server.log());
}
