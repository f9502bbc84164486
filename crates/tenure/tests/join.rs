//! Goal: a machine joins with a token that is needed once, is itself from then on, and is out when it is removed.
//! Method: real servers on a real Postgres, real agents, the real command line.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::cluster::{Cluster, PATIENCE, Replica};
use common::worker::{Worker, to_its_end};
use common::{text, wait_until};
use serde_json::Value;

fn command(cluster: &Cluster, server: &str, token: Option<&str>) -> Command {
    let mut command = cluster.command();
    command.args(["agent", "--server", server, "--name", "worker", "--data", "worker"]);
    if let Some(token) = token {
        command.env("TENURE_TOKEN", token);
    }
    command
}

fn start<'a>(cluster: &'a Cluster, server: &str, token: Option<&str>) -> Worker<'a> {
    Worker::spawn(cluster, command(cluster, server, token))
}

/// What an agent says that must end by itself.
fn refused(cluster: &Cluster, server: &str, token: Option<&str>) -> String {
    let output = to_its_end(command(cluster, server, token));
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
    let agent = start(&cluster, &a.url, Some(&token));
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
    let mut agent = start(&cluster, &a.url, None);
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
    assert!(told.contains("node worker was removed") && told.contains("has been used"), "{told}");

    // Somebody wants it back.
    let token = cluster.ok(&a, &["node", "token", "--name", "worker"]).trim().to_owned();
    let agent = start(&cluster, &a.url, Some(&token));
    agent.wait_said("connected to", 6);
    assert_ne!(secret(&cluster), shown);
    assert_eq!(nodes(&cluster, &a), ["worker"]);
}

#[test]
fn an_identity_is_renewed_long_before_it_ends() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--identity-lifetime", "10s", "--shards", "1"]);
    let token = cluster.json(&a, &["node", "token"])["token"].as_str().unwrap().to_owned();
    let agent = start(&cluster, &a.url, Some(&token));
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
