//! Goal: whichever replicas live, die or fall silent, a task starts once and its end is heard. Method: a real agent with
//! real processes, linked over TCP to real fleets; the test plays the schedulers behind them and holds the wires.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::cluster::{Ledger, Linked, Mood, Replica, TOKEN, links, starts, state_of};
use common::{Bench, PATIENCE, eventually};
use object_store::memory::InMemory;
use tenure_agent::{LinkState, Trouble};
use tenure_dispatch::Executor;
use tenure_logs::LogCursor;
use tenure_model::{Assignment, NodeId};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

struct Cluster {
    bench: Bench,
    ledger: Arc<Ledger>,
    replicas: Vec<Replica>,
}

impl Cluster {
    async fn of(names: &[&str]) -> Self {
        let (ledger, logs) = (Arc::default(), Arc::new(InMemory::new()));
        let mut replicas = vec![];
        for name in names {
            replicas.push(Replica::start(name, &ledger, &logs).await);
        }
        Self { bench: Bench::new(), ledger, replicas }
    }

    async fn agent(&self) -> Linked {
        let urls: Vec<String> = self.replicas.iter().map(Replica::url).collect();
        let linked = Linked::start(&self.bench, &urls).await;
        for replica in &self.replicas {
            replica.linked().await;
        }
        linked
    }

    /// Leaves a line for each start, and then does what the script says.
    fn task(&self, script: &str) -> Assignment {
        let starts = self.bench.path("starts");
        self.bench.bash(&format!("echo $TENURE_ATTEMPT_ID >> {}; {script}", starts.display()))
    }

    async fn ended(&self, task: &Assignment) {
        eventually("its end is heard", || !self.ledger.ends(task.attempt).is_empty()).await;
        assert_eq!(starts(&self.bench).get(&task.attempt.to_string()), Some(&1), "it starts once");
    }
}

fn node() -> NodeId {
    NodeId::new("n1")
}

#[tokio::test]
async fn a_task_is_assigned_claimed_run_and_ended_over_a_stream_and_its_log_is_stored() {
    let cluster = Cluster::of(&["a"]).await;
    let linked = cluster.agent().await;
    let task = cluster.task("echo hello; echo world");
    cluster.replicas[0].fleet.assign(task.clone()).await.unwrap();
    cluster.ended(&task).await;
    assert_eq!(cluster.ledger.claims(task.attempt).len(), 1);
    cluster.bench.gone(task.attempt).await;
    assert_eq!(linked.agent.inventory(), []);
    let prefix = tenure_logs::prefix(&task.tenant, &task.dag, &task.run_id, &task.task, -1, 1);
    let log = tenure_logs::read(&*cluster.replicas[0].logs, &prefix, LogCursor::Start).await.unwrap();
    assert_eq!(log.text, "hello\nworld\n");
}

#[tokio::test]
async fn a_stop_reaches_the_process() {
    let cluster = Cluster::of(&["a"]).await;
    let _linked = cluster.agent().await;
    let task = cluster.task("sleep 1000");
    let fleet = &cluster.replicas[0].fleet;
    fleet.assign(task.clone()).await.unwrap();
    eventually("it runs", || starts(&cluster.bench).contains_key(&task.attempt.to_string())).await;
    fleet.stop(&node(), task.attempt).await;
    cluster.ended(&task).await;
}

#[tokio::test]
async fn after_a_reconnect_the_link_is_another_and_the_inventory_names_what_runs() {
    let cluster = Cluster::of(&["a"]).await;
    let linked = cluster.agent().await;
    let (replica, go) = (&cluster.replicas[0], cluster.bench.path("go"));
    let task = cluster.task(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    replica.fleet.assign(task.clone()).await.unwrap();
    eventually("it runs", || starts(&cluster.bench).contains_key(&task.attempt.to_string())).await;
    let before = replica.fleet.link(&node()).unwrap().id;

    replica.wire.cut();
    let is_another = || replica.fleet.link(&node()).is_some_and(|link| link.id != before);
    eventually("it is linked anew", is_another).await;
    let held = replica.fleet.inventory(&node()).await.expect("the node answers");
    assert_eq!(held.iter().map(|held| held.attempt).collect::<Vec<_>>(), [task.attempt]);
    assert_eq!((held[0].ti, held[0].scope.as_str()), (task.ti, task.scope.as_str()));

    linked.leave().await;
    eventually("the link is gone", || replica.fleet.link(&node()).is_none()).await;
    let linked = cluster.agent().await;
    let held = replica.fleet.inventory(&node()).await.expect("the node answers");
    assert_eq!(
        held.iter().map(|held| held.attempt).collect::<Vec<_>>(),
        [task.attempt],
        "another process too"
    );
    std::fs::write(go, "").unwrap();
    cluster.ended(&task).await;
    eventually("nothing is held", || linked.agent.inventory().is_empty()).await;
    assert_eq!(replica.fleet.inventory(&node()).await, Some(vec![]));
}

#[tokio::test]
async fn reports_go_to_whoever_handed_the_work_out() {
    let cluster = Cluster::of(&["a", "b", "c"]).await;
    let _linked = cluster.agent().await;
    for (shard, replica, name) in [(1, 0, "a"), (2, 1, "b"), (3, 2, "c"), (1, 2, "c"), (2, 0, "a")] {
        for _ in 0..4 {
            let mut task = cluster.task("true");
            (task.scope, task.epoch) = (format!("scheduler/shard-{shard:02}"), 1 + replica as u64);
            if (shard, name) == (2, "a") {
                task.epoch = 9; // its owner has changed
            }
            cluster.replicas[replica].fleet.assign(task.clone()).await.unwrap();
            cluster.ended(&task).await;
            assert_eq!(cluster.ledger.claims(task.attempt), [name]);
            assert_eq!(cluster.ledger.ends(task.attempt), [name]);
        }
    }
}

#[tokio::test]
async fn a_replica_killed_in_the_middle_of_a_claim_is_replaced_by_another_and_the_task_starts_once() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let _linked = cluster.agent().await;
    let [a, _] = &cluster.replicas[..] else { unreachable!() };
    a.be(Mood::Mute);
    let task = cluster.task("true");
    a.fleet.assign(task.clone()).await.unwrap();
    eventually("a has the claim", || cluster.ledger.claims(task.attempt) == ["a"]).await;
    assert!(starts(&cluster.bench).is_empty(), "nothing starts before the answer");
    a.wire.kill();
    cluster.ended(&task).await;
    assert_eq!(cluster.ledger.claims(task.attempt), ["a", "b"]);
    assert_eq!(cluster.ledger.ends(task.attempt), ["b"]);
}

#[tokio::test]
async fn a_stopped_replica_holds_no_report_and_its_late_answers_change_nothing() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let linked = cluster.agent().await;
    let [a, b] = &cluster.replicas[..] else { unreachable!() };
    // Two scopes, both owned by a: one task waits for its claim there, the other one ends there.
    let (go, early) = (cluster.bench.path("go"), cluster.task("true"));
    let late = cluster.task(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    a.fleet.assign(late.clone()).await.unwrap();
    eventually("it runs", || starts(&cluster.bench).contains_key(&late.attempt.to_string())).await;
    a.be(Mood::Mute);
    a.fleet.assign(early.clone()).await.unwrap();
    eventually("a has the claim", || cluster.ledger.claims(early.attempt) == ["a"]).await;
    a.wire.freeze(true);
    std::fs::write(go, "").unwrap();
    cluster.ended(&early).await;
    cluster.ended(&late).await;
    assert_eq!(cluster.ledger.claims(early.attempt), ["a", "b"]);
    assert_eq!(cluster.ledger.ends(late.attempt), ["b"]);
    // What comes next goes to b at once: nobody waits for a again before it gives a sign of life.
    let next = cluster.task("true");
    b.fleet.assign(next.clone()).await.unwrap();
    cluster.ended(&next).await;

    a.be(Mood::Well);
    a.wire.freeze(false);
    eventually("a has heard the rest", || cluster.ledger.ends(late.attempt).contains(&"a".into())).await;
    let again = cluster.task("true");
    a.fleet.assign(again.clone()).await.unwrap();
    cluster.ended(&again).await;
    eventually("nothing is held", || linked.agent.inventory().is_empty()).await;
    assert!(starts(&cluster.bench).values().all(|count| *count == 1), "{:?}", starts(&cluster.bench));
}

#[tokio::test]
async fn an_owner_that_can_do_nothing_with_a_report_is_not_the_only_one_asked() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let _linked = cluster.agent().await;
    cluster.replicas[0].be(Mood::AsksForRetry);
    let task = cluster.task("true");
    cluster.replicas[0].fleet.assign(task.clone()).await.unwrap();
    cluster.ended(&task).await;
    assert_eq!(cluster.ledger.claims(task.attempt), ["b"]);

    cluster.replicas[1].be(Mood::AsksForRetry);
    let patient = cluster.task("true");
    cluster.replicas[0].fleet.assign(patient.clone()).await.unwrap();
    eventually("it is prepared", || cluster.bench.folder_of(patient.attempt).exists()).await;
    cluster.replicas[1].be(Mood::Well);
    cluster.ended(&patient).await;
}

#[tokio::test]
async fn the_same_assignment_delivered_by_two_replicas_and_after_a_reconnect_starts_once() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let _linked = cluster.agent().await;
    let [a, b] = &cluster.replicas[..] else { unreachable!() };
    let go = cluster.bench.path("go");
    let task = cluster.task(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    for fleet in [&a.fleet, &a.fleet, &b.fleet] {
        fleet.assign(task.clone()).await.unwrap();
    }
    eventually("it runs", || starts(&cluster.bench).contains_key(&task.attempt.to_string())).await;
    let before = b.fleet.link(&node()).unwrap().id;
    b.wire.cut();
    let is_another = || b.fleet.link(&node()).is_some_and(|link| link.id != before);
    eventually("it is linked anew", is_another).await;
    b.fleet.assign(task.clone()).await.unwrap();
    std::fs::write(go, "").unwrap();
    cluster.ended(&task).await;
    cluster.bench.gone(task.attempt).await;
    a.fleet.assign(task.clone()).await.unwrap();
    // Answered only after the assignment before it was taken in.
    assert_eq!(a.fleet.inventory(&node()).await, Some(vec![]));
    assert_eq!(cluster.ledger.claims(task.attempt).len(), 1);
}

#[tokio::test]
async fn a_deposed_owner_is_refused_and_its_assignment_is_nobodys_end() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let _linked = cluster.agent().await;
    let [a, b] = &cluster.replicas[..] else { unreachable!() };
    let (mut new, mut stale) = (cluster.task("true"), cluster.task("true"));
    (new.epoch, stale.epoch) = (8, 7);
    b.fleet.assign(new.clone()).await.unwrap();
    cluster.ended(&new).await;
    a.fleet.assign(stale.clone()).await.unwrap();
    assert_eq!(a.fleet.inventory(&node()).await, Some(vec![]));
    assert_eq!(cluster.ledger.claims(stale.attempt).len() + cluster.ledger.ends(stale.attempt).len(), 0);
}

#[tokio::test]
async fn tasks_end_while_no_replica_lives_and_are_told_when_one_is_back() {
    let cluster = Cluster::of(&["a"]).await;
    let _linked = cluster.agent().await;
    let (replica, go) = (&cluster.replicas[0], cluster.bench.path("go"));
    let task = cluster.task(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    replica.fleet.assign(task.clone()).await.unwrap();
    eventually("it runs", || starts(&cluster.bench).contains_key(&task.attempt.to_string())).await;
    replica.wire.freeze(true);
    replica.wire.cut();
    std::fs::write(go, "").unwrap();
    let exit = cluster.bench.folder_of(task.attempt).join("exit.json");
    eventually("it has ended", || exit.exists()).await;
    assert_eq!(cluster.ledger.ends(task.attempt).len(), 0);
    replica.wire.freeze(false);
    cluster.ended(&task).await;
    cluster.bench.gone(task.attempt).await;
}

#[tokio::test]
async fn a_replica_that_closes_sends_its_agents_elsewhere() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let _linked = cluster.agent().await;
    let [a, _] = &cluster.replicas[..] else { unreachable!() };
    let go = cluster.bench.path("go");
    let task = cluster.task(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    a.fleet.assign(task.clone()).await.unwrap();
    eventually("it runs", || starts(&cluster.bench).contains_key(&task.attempt.to_string())).await;
    a.fleet.close().await;
    std::fs::write(go, "").unwrap();
    cluster.ended(&task).await;
    assert_eq!(cluster.ledger.ends(task.attempt), ["b"]);
}

#[tokio::test]
async fn replicas_that_others_tell_of_are_linked_too() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let [a, b] = &cluster.replicas[..] else { unreachable!() };
    let linked = Linked::start(&cluster.bench, &[a.url()]).await;
    a.linked().await;
    a.peers.send_replace(vec![format!("{}/", b.url())]);
    b.linked().await;
    b.wire.kill();
    state_of(&linked.links, &b.url(), |state| matches!(state, LinkState::Down(_))).await;
    a.peers.send_replace(vec![]);
    let forgotten = || linked.links.states().borrow().len() == 1;
    eventually("a replica that is gone for good is forgotten", forgotten).await;
}

#[tokio::test]
async fn a_replica_that_another_one_tells_of_is_tried_at_once() {
    let cluster = Cluster::of(&["a", "b"]).await;
    let [a, b] = &cluster.replicas[..] else { unreachable!() };
    b.open.store(false, Ordering::Release);
    let linked = Linked::start(&cluster.bench, &[a.url(), b.url()]).await;
    a.linked().await;
    state_of(&linked.links, &b.url(), |state| matches!(state, LinkState::Down(_))).await;
    b.open.store(true, Ordering::Release);
    a.peers.send_replace(vec![b.url()]);
    // By itself it would be tried again after five seconds at the earliest.
    tokio::time::timeout(Duration::from_secs(4), b.linked()).await.expect("it is linked at once");
}

#[tokio::test]
async fn two_addresses_of_one_replica_make_one_link() {
    let cluster = Cluster::of(&["a"]).await;
    let replica = &cluster.replicas[0];
    let port = replica.wire.address.port();
    let urls = [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")];
    let linked = Linked::start(&cluster.bench, &urls).await;
    let is_alias = |url: &str| {
        let server = tenure_agent::Server::parse(url).unwrap();
        linked.links.states().borrow().get(&server) == Some(&LinkState::Alias)
    };
    eventually("one of them is an alias", || urls.iter().any(|url| is_alias(url))).await;
    // The later one was the link until it was known for what it is; the earlier one may be on its way back.
    let current = || replica.fleet.link(&node()).map(|link| link.id);
    let settled = async {
        loop {
            let before = current();
            tokio::time::sleep(Duration::from_millis(300)).await;
            match current() {
                Some(link) if before == Some(link) => return link,
                _ => {}
            }
        }
    };
    let link = tokio::time::timeout(PATIENCE, settled).await.expect("a link that lasts");
    let task = cluster.task("true");
    replica.fleet.assign(task.clone()).await.unwrap();
    cluster.ended(&task).await;
    assert_eq!(replica.fleet.link(&node()).unwrap().id, link, "they do not throw each other out");
}

#[tokio::test]
async fn troubles_are_told_apart() {
    let cluster = Cluster::of(&["a"]).await;
    let agent = cluster.agent().await.agent;
    let trouble = async |url: &str, token: &str| {
        let links = links(&[url.to_owned()], token);
        links.open(agent.clone());
        let state = state_of(&links, url, |state| matches!(state, LinkState::Down(_))).await;
        links.close().await;
        match state {
            LinkState::Down(trouble) => trouble,
            other => panic!("{other:?}"),
        }
    };
    let wrong = trouble(&cluster.replicas[0].url(), "guess").await;
    assert!(matches!(&wrong, Trouble::WrongToken { .. }) && wrong.to_string().contains("--token"), "{wrong}");

    let serving = async |router: axum::Router| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(tenure_api::serve(listener, router, CancellationToken::new()));
        url
    };
    let other = trouble(&serving(axum::Router::new()).await, TOKEN).await;
    assert!(matches!(&other, Trouble::NotTenure { .. }) && other.to_string().contains("--server"), "{other}");

    let away = axum::Router::new().fallback(async || axum::http::StatusCode::SERVICE_UNAVAILABLE);
    let balancer = trouble(&serving(away).await, TOKEN).await;
    assert!(!balancer.needs_somebody(), "what stands in front of replicas may just have none: {balancer:?}");

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = trouble(&format!("http://{closed}"), TOKEN).await;
    assert!(
        matches!(&nobody, Trouble::Unreachable { .. }) && nobody.to_string().contains("refused"),
        "{nobody}"
    );
}
