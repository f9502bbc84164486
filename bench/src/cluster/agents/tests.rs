//! Goal: what is measured with these nodes would happen with real ones. Method: real fleets behind a real server, with
//! sinks that answer as the test says.

use std::collections::BTreeMap;

use async_trait::async_trait;
use object_store::memory::InMemory;
use tenure_clock::{Entropy, SystemClock};
use tenure_dispatch::Executor;
use tenure_fleet::{Fleet, FleetMetrics, FleetParts, Gate, ReportSink, Roster};
use tenure_model::{Ack, Assignment, AttemptId, NodeId, Program, Report, ReportBody, RunKey, TaskNo, TiKey};
use tenure_store::{NodeRegistration, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const TOKEN: &str = "secret";

/// Remembers reports, and answers them while it is not silent.
#[derive(Default)]
struct Sink {
    silent: watch::Sender<bool>,
    reports: Mutex<Vec<Report>>,
}

#[async_trait]
impl ReportSink for Sink {
    async fn submit(&self, report: Report) -> Ack {
        self.reports.lock().unwrap().push(report);
        let spoke = self.silent.subscribe().wait_for(|silent| !silent).await.is_ok();
        if spoke { Ack::Accepted } else { Ack::Retry }
    }
}

struct Nobody;

#[async_trait]
impl Roster for Nobody {
    async fn register(&self, _: &NodeRegistration, _: jiff::Timestamp) -> Result<(), StoreError> {
        Ok(())
    }
    async fn record_presence(&self, _: &str, _: &[NodeId]) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Replica {
    fleet: Fleet,
    sink: Arc<Sink>,
    url: String,
}

async fn replica(name: &str) -> Replica {
    let fleet = Fleet::start(FleetParts {
        replica: name.into(),
        roster: Arc::new(Nobody),
        identities: None,
        logs: Arc::new(InMemory::new()),
        peers: watch::channel(vec![]).1,
        clock: Arc::new(SystemClock),
        entropy: Entropy::from_os(),
        metrics: FleetMetrics::default(),
    });
    let sink = Arc::new(Sink::default());
    let router = fleet.router(Gate { sink: sink.clone(), admits: Arc::new(|token| token == TOKEN) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(tenure_api::serve(listener, router, CancellationToken::new()));
    Replica { fleet, sink, url }
}

async fn agents(replicas: &[&Replica]) -> Agents {
    let config = AgentsConfig {
        replicas: replicas.iter().map(|replica| replica.url.clone()).collect(),
        token: TOKEN.into(),
        nodes: 1,
        capacity: 1_000,
        hold: Duration::ZERO,
    };
    let agents = tokio::task::spawn_blocking(move || Agents::start(&config)).await.unwrap().unwrap();
    // An agent is welcomed a moment before it can be given anything.
    for replica in replicas {
        until("a link to the node", || replica.fleet.link(&"node-00".into()).is_some()).await;
    }
    agents
}

fn assignment(number: u64, epoch: u64) -> Assignment {
    Assignment {
        attempt: AttemptId(uuid::Uuid::from_u64_pair(1, number + 1)),
        ti: TiKey::unmapped(RunKey(7), TaskNo(number as u32)),
        node: "node-00".into(),
        scope: ShardId(3).scope(),
        epoch,
        tenant: "default".into(),
        dag: "d".into(),
        run_id: "r".into(),
        task: "t".into(),
        try_number: 1,
        program: Program::Process { argv: vec!["true".into()] },
        env: BTreeMap::new(),
        files: BTreeMap::new(),
        timeout: None,
        grace: Duration::ZERO,
        secrets: vec![],
        resources: Default::default(),
        run_as: None,
        on_disconnect: Default::default(),
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    tenure_testkit::wait_for(what, PATIENCE, || std::future::ready(done().then_some(()))).await;
}

fn claims(sink: &Sink) -> usize {
    let is_claim = |report: &&Report| matches!(report.body, ReportBody::Claim { .. });
    sink.reports.lock().unwrap().iter().filter(is_claim).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_assigned_is_claimed_and_ended_once_however_often_it_comes() {
    let replica = replica("a").await;
    let agents = agents(&[&replica]).await;
    replica.sink.silent.send_replace(true);
    for number in (0..200).chain(0..200) {
        replica.fleet.assign(assignment(number, 5)).await.unwrap();
    }
    until("all to be claimed", || claims(&replica.sink) == 200).await;
    assert_eq!(agents.started(), 0, "nothing starts before its claim is accepted");
    replica.sink.silent.send_replace(false);
    until("all to end", || agents.ended() == 200).await;
    agents.starts(|starts| {
        assert_eq!(starts.len(), 200);
        assert!(starts.iter().all(|start| (start.shard, start.epoch, start.run) == (ShardId(3), 5, 7)));
    });
    assert_eq!(agents.trouble(), Trouble::default());
    assert_eq!(replica.sink.reports.lock().unwrap().len(), 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_replica_did_not_answer_is_asked_elsewhere_and_starts_once() {
    let (first, second) = (replica("a").await, replica("b").await);
    let agents = agents(&[&first, &second]).await;
    first.sink.silent.send_replace(true);
    first.fleet.assign(assignment(0, 5)).await.unwrap();
    until("the claim to be made", || claims(&first.sink) == 1).await;
    let held = second.fleet.inventory(&"node-00".into()).await.unwrap();
    assert_eq!(held.len(), 1, "what is held is told to everybody who asks");
    let closing = first.fleet.clone();
    tokio::spawn(async move { closing.close().await });
    until("the task to end", || agents.ended() == 1).await;
    assert_eq!((claims(&first.sink), claims(&second.sink)), (1, 1));
    agents.starts(|starts| assert_eq!((starts.len(), starts[0].replica), (1, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_owners_assignment_is_refused() {
    let replica = replica("a").await;
    let agents = agents(&[&replica]).await;
    replica.fleet.assign(assignment(0, 9)).await.unwrap();
    replica.fleet.assign(assignment(1, 8)).await.unwrap();
    until("a refusal", || agents.trouble().refused == 1).await;
    until("the other one to end", || agents.ended() == 1).await;
    assert_eq!(claims(&replica.sink), 1);
}
