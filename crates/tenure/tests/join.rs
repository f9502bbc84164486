//! Goal: a machine joins with a token that is needed once, is itself from then on, and is out when it is removed.
//! Method: real servers on a real Postgres, real agents, the real command line.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use common::cluster::{Cluster, PATIENCE, Replica};
use common::{text, wait_until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// An agent in a process of its own, killed with its handle.
struct Agent<'a> {
    cluster: &'a Cluster,
    child: Child,
}

impl<'a> Agent<'a> {
    fn command(cluster: &Cluster, server: &str, token: Option<&str>) -> Command {
        let mut command = cluster.command();
        command.args(["agent", "--server", server, "--name", "worker", "--data", "worker"]);
        if let Some(token) = token {
            command.env("TENURE_TOKEN", token);
        }
        command
    }

    fn start(cluster: &'a Cluster, server: &str, token: Option<&str>) -> Self {
        let log = cluster.path("worker.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Self::command(cluster, server, token);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { cluster, child }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.path("worker.log")).unwrap_or_default()
    }

    fn wait_said(&self, words: &str, times: usize) {
        let said =
            wait_until("its words", PATIENCE, || (self.log().matches(words).count() >= times).then_some(()));
        assert!(said.is_some(), "in vain waited for {words:?}, {times} times:\n{}", self.log());
    }

    fn wait_end(&mut self) -> Option<i32> {
        let ended = wait_until("its end", PATIENCE, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it goes on:\n{}", self.log())).code()
    }

    fn terminate(mut self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.wait_end(), Some(0), "{}", self.log());
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent that must end by itself, with its words.
fn refused(cluster: &Cluster, server: &str, token: Option<&str>) -> String {
    let mut command = Agent::command(cluster, server, token);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if wait_until("its end", PATIENCE, || child.try_wait().unwrap()).is_none() {
        child.kill().unwrap();
    }
    let output: Output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr)
}

fn nodes(cluster: &Cluster, replica: &Replica<'_>) -> Vec<String> {
    let nodes = cluster.json(replica, &["node", "list"]);
    nodes.as_array().unwrap().iter().map(|node| node["node"].as_str().unwrap().to_owned()).collect()
}

fn secret(cluster: &Cluster) -> String {
    let kept = std::fs::read_to_string(cluster.path("worker/identity.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    kept["secret"].as_str().unwrap().to_owned()
}

#[test]
fn a_machine_joins_once_comes_back_by_itself_and_is_out_when_it_is_removed() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "2"]);
    let b = cluster.server("b", &[]);

    let told = refused(&cluster, &a.url, None);
    assert!(told.contains("tenure node token"), "{told}");
    let token = cluster.ok(&a, &["node", "token", "--expires", "10m"]).trim().to_owned();
    assert!(token.starts_with("tenure-join-"), "{token}");
    let agent = Agent::start(&cluster, &a.url, Some(&token));
    agent.wait_said("connected to", 2);
    let mode = std::fs::metadata(cluster.path("worker/identity.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let file = cluster.path("hello.yaml");
    std::fs::write(&file, "id: hello\ntasks:\n  a:\n    bash: echo hello\n").unwrap();
    cluster.ok(&b, &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
    cluster.ok(&b, &["run", "trigger", "hello", "--wait", "--timeout", "30s"]);
    assert_eq!(nodes(&cluster, &b), ["worker"]);
    let tokens = cluster.json(&b, &["node", "token", "list"]);
    assert_eq!((&tokens[0]["used"], &tokens[0]["uses"]), (&Value::from(1), &Value::from(1)));
    assert!(!tokens.to_string().contains(&token), "what opens the door is not kept");

    // Its identity is no key to the API.
    let shown = secret(&cluster);
    for key in [&shown, &token] {
        let mut command = cluster.command();
        let output = command.args(["dag", "list", "--server", &a.url, "--token", key]).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains("does not accept"), "{output:?}");
    }

    agent.terminate();
    let mut agent = Agent::start(&cluster, &a.url, None);
    agent.wait_said("connected to", 4);
    assert_eq!(secret(&cluster), shown, "no token, no other identity");
    cluster.ok(&a, &["run", "trigger", "hello", "--wait", "--timeout", "30s"]);

    let removed = cluster.json(&b, &["node", "remove", "worker", "--yes"]);
    assert_eq!((&removed["removed"], &removed["had_identity"]), (&true.into(), &true.into()), "{removed}");
    assert_eq!(agent.wait_end(), Some(1), "{}", agent.log());
    assert!(agent.log().contains("node worker was removed"), "{}", agent.log());
    assert_eq!(nodes(&cluster, &a), Vec::<String>::new());
    let told = refused(&cluster, &b.url, None);
    assert!(told.contains("removed") && told.contains("tenure node token --name worker"), "{told}");
    let told = refused(&cluster, &b.url, Some(&token));
    assert!(told.contains("tenure node token"), "{told}");

    // Somebody wants it back.
    let token = cluster.ok(&a, &["node", "token", "--name", "worker"]).trim().to_owned();
    let agent = Agent::start(&cluster, &a.url, Some(&token));
    agent.wait_said("connected to", 6);
    assert_ne!(secret(&cluster), shown);
    assert_eq!(nodes(&cluster, &a), ["worker"]);
}

#[test]
fn an_identity_is_renewed_long_before_it_ends() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--identity-lifetime", "10s", "--shards", "1"]);
    let token = cluster.json(&a, &["node", "token"])["token"].as_str().unwrap().to_owned();
    let agent = Agent::start(&cluster, &a.url, Some(&token));
    agent.wait_said("connected to", 1);
    let first = secret(&cluster);
    let next = wait_until("the next one", PATIENCE, || Some(secret(&cluster)).filter(|next| *next != first));
    let next = next.unwrap_or_else(|| panic!("{}", agent.log()));
    let another =
        wait_until("one more", PATIENCE, || Some(secret(&cluster)).filter(|another| *another != next));
    assert!(another.is_some(), "{}", agent.log());
    assert!(!agent.log().contains("disconnected"), "the first one has ended by now:\n{}", agent.log());
}

#[test]
fn join_tokens_are_listed_and_revoked() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &[]);
    let made = cluster.json(&a, &["node", "token", "--uses", "3", "--name", "worker", "--expires", "2d"]);
    assert_eq!((&made["uses"], &made["node"]), (&3.into(), &"worker".into()));
    let id = made["id"].as_str().unwrap();
    let listed = cluster.ok(&a, &["node", "token", "list"]);
    assert!(listed.contains(id) && listed.contains("worker"), "{listed}");
    cluster.ok(&a, &["node", "token", "revoke", id]);
    assert!(!cluster.json(&a, &["node", "token", "list"])[0]["revoked_at"].is_null());
    let told = refused(&cluster, &a.url, made["token"].as_str());
    assert!(told.contains("revoked") && told.contains(id), "{told}");
    let wrong = cluster.cli(&a, &["node", "token", "--expires", "90d"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("30 days"), "{wrong:?}");
    let wrong = cluster.cli(&a, &["node", "remove", "nobody", "--yes"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("nobody"), "{wrong:?}");
}
