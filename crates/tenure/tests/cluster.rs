//! Goal: servers that share a database form a cluster, and an operator is told what is wrong when they cannot.
//! Method: real processes on a real Postgres, the real command line.

mod common;

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Duration;

use common::cluster::{Cluster, PATIENCE, Replica, TOKEN, wait_split};
use common::{text, wait_until};
use serde_json::json;
use tenure_clock::Entropy;
use tenure_model::NodeId;
use tenure_store::SchedulingStore;
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::{Etcd, Postgres, Settings};

const SHARDS: usize = 8;

#[test]
fn three_servers_share_eight_shards_out_and_take_over_from_each_other() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "8"]);
    wait_split(&[(&a, SHARDS)]);
    // Another one keeps the number it finds.
    let (b, c) = (cluster.server("b", &[]), cluster.server("c", &[]));
    let shares = |replicas: &[&Replica<'_>]| {
        let mut shares: Vec<usize> = replicas.iter().map(|replica| replica.owned().len()).collect();
        shares.sort();
        shares
    };
    let split = wait_until("the split", PATIENCE, || (shares(&[&a, &b, &c]) == [2, 3, 3]).then_some(()));
    assert!(split.is_some(), "{:?}", shares(&[&a, &b, &c]));

    // Who owns what is told by every replica, with the way to it.
    for replica in [&a, &b, &c] {
        let leases = cluster.json(replica, &["lease", "list", "scheduler"]);
        let addresses: BTreeSet<&str> =
            leases.as_array().unwrap().iter().map(|lease| lease["address"].as_str().unwrap()).collect();
        assert_eq!(addresses, BTreeSet::from([a.url.as_str(), b.url.as_str(), c.url.as_str()]));
        let members = cluster.ok(replica, &["member", "list", "scheduler"]);
        assert!(members.contains(&b.url) && members.contains("scheduler/shard-0"), "{members}");
    }

    c.kill();
    wait_split(&[(&a, 4), (&b, 4)]);
    assert_eq!(b.stop(), Some(0));
    wait_split(&[(&a, SHARDS)]);
    let said = cluster.ok(&a, &["health"]);
    assert!(said.contains("owns 8 of 8 shards"), "{said}");
    every_metric_of_reaping_and_dispatch_is_served(&a);
}

fn every_metric_of_reaping_and_dispatch_is_served(replica: &Replica<'_>) {
    let (_, served) = replica.api().get_text("/metrics").unwrap();
    for name in [
        "tenure_orphan_reaped_total",
        "tenure_orphan_reap_error_total",
        "tenure_orphan_list_error_total",
        "tenure_orphan_panic_total",
        "tenure_dispatch_queue_depth",
        "tenure_dispatch_at_capacity_total",
        "tenure_dispatch_latency_seconds_count",
        "tenure_agent_lost_tasks_total",
    ] {
        assert!(served.lines().any(|line| line.split(' ').next() == Some(name)), "no {name} in {served}");
    }
}

/// Without the hint of its broken connection they would be nobody's for a minute.
#[test]
fn the_shards_of_a_killed_server_are_taken_over_long_before_its_leases_run_out() {
    let cluster = Cluster::new();
    let long = ["--lease-duration", "60s"];
    let a = cluster.server("a", &["--shards", "8", "--lease-duration", "60s"]);
    wait_split(&[(&a, SHARDS)]);
    let b = cluster.server("b", &long);
    wait_split(&[(&a, SHARDS / 2), (&b, SHARDS / 2)]);
    a.kill();
    let all = || (b.owned().len() == SHARDS).then_some(());
    let taken = wait_until("the takeover", Duration::from_secs(15), all);
    assert!(taken.is_some(), "it owns {:?}\n{}", b.owned(), b.log());
}

#[test]
fn a_standby_of_a_single_leader_is_ready_and_says_that_it_owns_nothing() {
    let cluster = Cluster::new();
    let leader = cluster.server("leader", &["--shards", "1"]);
    wait_split(&[(&leader, 1)]);
    let standby = cluster.server("standby", &[]);
    let said = wait_until("it to know the leader", PATIENCE, || {
        let said = cluster.ok(&standby, &["health"]);
        said.contains(&leader.url).then_some(said)
    });
    let said = said.unwrap_or_else(|| cluster.ok(&standby, &["health"]));
    assert!(said.contains("owns none of 1 shard: stands by") && said.contains(&leader.url), "{said}");
    leader.kill();
    wait_split(&[(&standby, 1)]);
}

#[test]
fn up_tells_the_replicas_beside_it_that_its_node_is_there() {
    let cluster = Cluster::new();
    let mut command = cluster.command();
    command.args(["up", "--listen", "127.0.0.1:0", "--data", "up", "--database-url", &cluster.database_url]);
    let mut up = cluster.spawn("up", command);
    up.wait_ready();
    let node = NodeId::new(std::fs::read_to_string(cluster.path("up").join("node")).unwrap().trim());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = PostgresOptions::default();
        let store =
            PostgresStore::connect(&cluster.database_url, options, &Entropy::from_os()).await.unwrap();
        let here = || async {
            let present = store.present(std::slice::from_ref(&node), Duration::from_secs(60)).await.unwrap();
            (present == [node.clone()]).then_some(())
        };
        tenure_testkit::wait_for("its node", PATIENCE, here).await;
    });
}

#[test]
fn any_replica_takes_any_call_and_runs_go_on_when_their_owner_ends() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "4"]);
    let b = cluster.server("b", &[]);
    wait_split(&[(&a, 2), (&b, 2)]);
    let dags: Vec<String> = (0..8).map(|number| format!("d{number}")).collect();
    for (number, dag) in dags.iter().enumerate() {
        let file = cluster.path(&format!("{dag}.yaml"));
        std::fs::write(&file, format!("id: {dag}\ntasks: {{ a: {{ empty: true }} }}\n")).unwrap();
        let by = if number % 2 == 0 { &a } else { &b };
        cluster.ok(by, &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
    }
    for dag in &dags {
        let run = cluster.json(&a, &["run", "trigger", dag, "--run-id", "one", "--wait", "--timeout", "30s"]);
        assert_eq!(run["state"], "success", "{run}");
        let again = cluster.json(&b, &["run", "show", dag, "one"]);
        assert_eq!(again["state"], "success", "{again}");
    }
    assert_eq!(a.stop(), Some(0));
    for dag in &dags {
        let run = cluster.json(&b, &["run", "trigger", dag, "--run-id", "two", "--wait", "--timeout", "30s"]);
        assert_eq!(run["state"], "success", "{run}");
    }
}

#[test]
fn one_key_used_on_two_replicas_at_once_makes_one_run_and_another_request_is_a_conflict() {
    let cluster = Cluster::new();
    let replicas = [cluster.server("a", &["--shards", "2"]), cluster.server("b", &[])];
    let file = cluster.path("d.yaml");
    std::fs::write(&file, "id: d\ntasks: { a: { empty: true } }\n").unwrap();
    cluster.ok(&replicas[0], &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
    const CALLERS: usize = 8;
    for round in 0..20 {
        let (key, at_once) = (format!("k{round}"), Barrier::new(CALLERS));
        // In every other round each replica is asked for something else.
        let asked = |caller: usize| if round % 2 == 0 { 0 } else { caller % 2 };
        let call = |caller: usize| {
            let api = replicas[caller % 2].api();
            at_once.wait();
            let body = json!({ "conf": { "x": asked(caller) } });
            api.post("/api/v2/dags/d/dagRuns", Some(&key), &body).expect("an answer")
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || call(caller))).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        let (_, made) = answers.iter().find(|(status, _)| *status == 200).expect("somebody made it");
        for (caller, (status, run)) in answers.iter().enumerate() {
            match made["conf"]["x"] == asked(caller) {
                true => assert_eq!((*status, &run["dag_run_id"]), (200, &made["dag_run_id"]), "{run}"),
                false => assert_eq!(*status, 409, "{run}"),
            }
        }
        let (_, runs) = replicas[round % 2].api().get("/api/v2/dags/d/dagRuns").unwrap();
        assert_eq!(runs["total_entries"], round + 1, "{answers:?}");
    }
}

#[test]
fn a_new_database_needs_a_token_and_keeps_the_first_one() {
    let cluster = Cluster::new();
    let (code, said) = cluster.refused("first", cluster.server_command("a", &[]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("TENURE_BOOTSTRAP_TOKEN") && said.contains("openssl rand -hex 32"), "{said}");

    let a = cluster.server("a", &[]);
    let mut other = cluster.server_command("b", &[]);
    other.env("TENURE_BOOTSTRAP_TOKEN", "another-token-than-the-first");
    let mut b = cluster.spawn("b", other);
    b.wait_ready();
    let mut c = cluster.spawn("c", cluster.server_command("c", &[]));
    c.wait_ready();
    assert!(b.log().contains("it is ignored"), "{}", b.log());
    assert!(!b.log().contains("another-token") && !a.log().contains(TOKEN), "{}{}", a.log(), b.log());
    for replica in [&a, &b, &c] {
        let with = |token: &str| {
            let mut command = cluster.command();
            command.args(["dag", "list", "--server", &replica.url, "--token", token]);
            command.output().unwrap().status.code()
        };
        assert_eq!((with(TOKEN), with("another-token-than-the-first")), (Some(0), Some(1)));
    }
}

#[test]
fn another_number_of_shards_is_refused_and_reshard_changes_it() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "4"]);
    let (code, said) = cluster.refused("b", cluster.server_command("b", &["--shards", "6"]));
    assert_eq!(code, Some(1), "{said}");
    let told = "divided into 4 shards, and 6 were asked for";
    assert!(said.contains(told) && said.contains("tenure database reshard --shards 6"), "{said}");

    let reshard = |more: &[&str]| {
        let mut command = cluster.command();
        command.args(["database", "reshard", "--shards", "6", "--database-url", &cluster.database_url]);
        command.args(more).output().unwrap()
    };
    let unasked = reshard(&[]);
    assert_eq!(unasked.status.code(), Some(2), "{}", text(&unasked.stderr));
    assert!(text(&unasked.stderr).contains("--yes"), "{}", text(&unasked.stderr));
    let early = reshard(&["--yes"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(text(&early.stderr).contains("stop every server first"), "{}", text(&early.stderr));

    assert_eq!(a.stop(), Some(0));
    let done = reshard(&["--yes"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("4 shards are 6 now"), "{}", text(&done.stdout));
    let a = cluster.server("a", &[]);
    wait_split(&[(&a, 6)]);
}

#[test]
fn the_database_tells_how_it_is_without_being_changed() {
    let cluster = Cluster::new();
    let status = || {
        let mut command = cluster.command();
        command.args(["database", "status", "--output", "json", "--database-url", &cluster.database_url]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let new = status();
    assert_eq!((&new["schema_version"], &new["shards"]), (&json!(0), &json!(null)), "{new}");
    assert_eq!(status(), new, "looking makes no tables");
    let _a = cluster.server("a", &["--shards", "3"]);
    let made = status();
    assert_eq!(made["shards"], 3, "{made}");
    assert_eq!(made["schema_version"], made["known_version"], "{made}");
}

#[test]
fn a_database_that_is_away_is_waited_for_and_one_that_says_no_is_an_error() {
    let postgres = Postgres::own(Settings::default());
    let cluster = Cluster::on(&postgres.url());
    postgres.stop();
    let mut command = cluster.server_command("a", &[]);
    command.env("TENURE_BOOTSTRAP_TOKEN", TOKEN);
    let mut a = cluster.spawn("a", command);
    let waits =
        wait_until("it to wait", PATIENCE, || a.log().contains("waiting for the database").then_some(()));
    assert!(waits.is_some(), "{}", a.log());
    postgres.start();
    a.wait_ready();

    let elsewhere = Cluster::on(&postgres.url().replace("/postgres", "/nowhere"));
    let (code, said) = elsewhere.refused("a", elsewhere.server_command("a", &[]));
    assert!(code == Some(1) && said.contains("nowhere"), "{code:?} {said}");
}

#[test]
fn an_outage_of_the_database_is_waited_out_while_health_says_so() {
    let postgres = Postgres::own(Settings::default());
    let cluster = Cluster::on(&postgres.url());
    let a = cluster.server("a", &["--shards", "2"]);
    wait_split(&[(&a, 2)]);
    postgres.stop();
    let unready = wait_until("health to notice", PATIENCE, || {
        let (status, answer) = a.api().get("/health/ready")?;
        (status == 503).then(|| answer["detail"].as_str().unwrap_or_default().to_owned())
    });
    assert!(unready.is_some(), "{}", a.log());
    let (status, health) = a.api().get("/health").unwrap();
    assert_eq!((status, &health["database"]["ok"]), (200, &json!(false)), "{health}");
    assert_eq!(health["metadatabase"]["status"], "unhealthy", "{health}");
    assert_eq!(a.api().get_text("/health/live"), Some((200, "ok".into())));
    postgres.start();
    wait_split(&[(&a, 2)]);
    let ready = wait_until("health", PATIENCE, || (a.api().get("/health/ready")?.0 == 200).then_some(()));
    assert!(ready.is_some(), "{}", a.log());
}

#[test]
fn a_server_without_a_postgres_is_sent_to_tenure_up() {
    let cluster = Cluster::on("unused");
    let mut command = cluster.command();
    command.arg("server");
    let (code, said) = cluster.refused("a", command);
    assert!(code == Some(2) && said.contains("tenure up"), "{code:?} {said}");
    let (code, said) = cluster.refused("b", cluster.server_command("b", &[]));
    assert!(code == Some(2) && said.contains("is no Postgres database"), "{code:?} {said}");
}

#[test]
fn up_owns_every_shard_of_a_database_that_has_several() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "4"]);
    assert_eq!(a.stop(), Some(0));
    let mut command = cluster.command();
    command.args(["up", "--listen", "127.0.0.1:0", "--data", "up", "--database-url", &cluster.database_url]);
    let mut up = cluster.spawn("up", command);
    up.wait_ready();
    wait_split(&[(&up, 4)]);
}

#[test]
fn what_is_in_force_is_shown_with_where_it_came_from() {
    let cluster = Cluster::on("postgres://ada:secret@db/tenure");
    std::fs::write(cluster.path("tenure.toml"), "tick = \"2s\"\nshards = 4\n").unwrap();
    let check = |more: &[&str]| {
        let mut command = cluster.command();
        command
            .env("TENURE_DATABASE_URL", &cluster.database_url)
            .env("TENURE_SHARDS", "8")
            .env("TENURE_LOGS", "");
        command.args(["config", "check", "--config", "tenure.toml"]).args(more).output().unwrap()
    };
    let shown = check(&["--claim-timeout", "30s"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    let row = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("tick"), "tick 2s tenure.toml:1");
    assert_eq!(row("shards"), "shards 8 TENURE_SHARDS");
    assert_eq!(row("claim_timeout"), "claim_timeout 30s --claim-timeout");
    assert_eq!(row("dispatch_workers"), "dispatch_workers 16 default (pro)");
    assert_eq!(row("logs"), "logs - default (pro)", "an empty variable says nothing");
    assert!(!shown.contains("secret"), "{shown}");
    let json = check(&["--output", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let tick = json.as_array().unwrap().iter().find(|shown| shown["setting"] == "tick").unwrap();
    assert_eq!(tick, &json!({ "setting": "tick", "value": "2s", "from": "tenure.toml:1" }));

    std::fs::write(cluster.path("tenure.toml"), "tikc = \"2s\"\n").unwrap();
    let wrong = check(&[]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = text(&wrong.stderr);
    assert!(said.contains("tenure.toml:1") && said.contains("did you mean \"tick\"?"), "{said}");
}

#[test]
fn leases_in_etcd_move_shards_too_and_fences_stay_in_the_database() {
    let cluster = Cluster::new();
    let etcd = Etcd::shared().url();
    let wiring = ["--leases", &etcd, "--lease-duration", "2s", "--shards", "4"];
    let (a, b) = (cluster.server("a", &wiring), cluster.server("b", &wiring));
    wait_split(&[(&a, 2), (&b, 2)]);
    // What is lent to others is in the same place, so both can be seen there.
    let leases = cluster.json(&a, &["lease", "list", "scheduler"]);
    assert_eq!(leases.as_array().map(Vec::len), Some(4), "{leases}");
    let epochs = |replica: &Replica<'_>| {
        let fence = |shard: u16| {
            let path = format!("/api/leases/fence?scope=scheduler/shard-{shard:02}");
            replica.api().get(&path).unwrap().1["epoch"].as_u64().unwrap()
        };
        (0..4).map(fence).sum::<u64>()
    };
    let before = epochs(&a);
    b.kill();
    wait_split(&[(&a, 4)]);
    assert!(epochs(&a) > before, "the database's fences have moved on");
}

#[test]
fn old_runs_are_deleted_by_whoever_leads_the_controller_and_the_newest_stays() {
    let cluster = Cluster::new();
    let a = cluster.server("a", &["--shards", "2"]);
    std::fs::write(cluster.path("d.yaml"), "id: d\ntasks: { a: { empty: true } }\n").unwrap();
    cluster.ok(&a, &["dag", "push", "d.yaml", "--unpaused"]);
    for run in ["one", "two", "three"] {
        cluster.ok(&a, &["run", "trigger", "d", "--run-id", run, "--wait", "--timeout", "30s"]);
    }
    let (_, health) = a.api().get("/health").unwrap();
    assert_eq!(
        (&health["controller"]["leading"], &health["controller"]["scope"]),
        (&json!(true), &json!("controller/leader"))
    );
    assert_eq!(a.stop(), Some(0));
    let a = cluster.server("a", &["--keep-runs", "1ms"]);
    let left = wait_until("the old runs to go", PATIENCE, || {
        let runs = cluster.json(&a, &["run", "list", "d"]);
        let left: Vec<String> =
            runs.as_array()?.iter().map(|run| run["dag_run_id"].as_str().unwrap().into()).collect();
        (left == ["three"]).then_some(())
    });
    assert!(left.is_some(), "{}", a.log());
    let told =
        wait_until("it to be told", PATIENCE, || a.log().contains("deleted what was older").then_some(()));
    assert!(told.is_some(), "{}", a.log());
}
