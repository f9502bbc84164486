//! How many attempts a second one stream carries: assigned, claimed and ended, with nothing behind either side. The
//! control plane here accepts every report at once, and the node's tasks are over as soon as they are claimed, so what is
//! measured is the interface: conversion, batching, HTTP/2 and the two runtimes, on one machine.
//!
//! `cargo run --release -p tenure-fleet --example throughput [-- ATTEMPTS [IN FLIGHT [REPLICAS]]]`
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::memory::InMemory;
use tenure_agent::{Access, AssignError, ControlPlane, Links, LinksConfig, Worker};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_dispatch::Executor;
use tenure_fleet::{Fleet, FleetMetrics, FleetParts, Gate, ReportSink, Roster};
use tenure_model::{
    Ack, Assignment, AttemptId, Held, NodeId, Outcome, Program, QueueName, Report, ReportBody, Resources,
    RunKey, TaskNo, TenantId, TiKey,
};
use tenure_store::{NodeRegistration, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "token";

/// Accepts everything; an end makes room for another attempt.
struct Desk {
    room: Arc<Semaphore>,
    ended: Arc<AtomicU64>,
}

#[async_trait]
impl ReportSink for Desk {
    async fn submit(&self, report: Report) -> Ack {
        if matches!(report.body, ReportBody::End { .. }) {
            self.ended.fetch_add(1, Ordering::Relaxed);
            self.room.add_permits(1);
        }
        Ack::Accepted
    }
}

struct NoRoster;

#[async_trait]
impl Roster for NoRoster {
    async fn register(&self, _node: &NodeRegistration, _at: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn record_presence(&self, _replica: &str, _nodes: &[NodeId]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A node whose tasks take no time.
struct Player {
    links: Links,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl Worker for Player {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        let (links, clock) = (self.links.clone(), Arc::clone(&self.clock));
        tokio::spawn(async move {
            let Assignment { attempt, ti, node, scope, .. } = assignment;
            let report = |body| Report { node: node.clone(), scope: scope.clone(), body };
            let claim = ReportBody::Claim { attempt, ti };
            if links.submit(report(claim)).await == Ack::Accepted {
                let outcome = Outcome::Success;
                let end = ReportBody::End { attempt, ti, outcome, ended_at: clock.now(), result: None };
                links.submit(report(end)).await;
            }
        });
        Ok(())
    }

    async fn stop(&self, _attempt: AttemptId) {}

    fn inventory(&self) -> Vec<Held> {
        Vec::new()
    }
}

fn assignment(number: u64, entropy: &Entropy, clock: &dyn Clock) -> Assignment {
    Assignment {
        attempt: AttemptId(entropy.uuid(clock.now())),
        ti: TiKey::unmapped(RunKey((number / 100) as i64), TaskNo((number % 100) as u32)),
        node: NodeId::new("player"),
        scope: format!("scheduler/shard-{:02}", number % 16),
        epoch: 1,
        tenant: TenantId::default_tenant(),
        dag: "throughput".into(),
        run_id: "manual__2026-01-01T00:00:00Z".into(),
        task: "a_task_of_a_hundred".into(),
        try_number: 1,
        program: Program::Process { argv: vec!["bash".into(), "-c".into(), "true".into()] },
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        files: Default::default(),
        timeout: Some(Duration::from_secs(3_600)),
        grace: Duration::from_secs(30),
        secrets: Vec::new(),
        resources: Default::default(),
        run_as: None,
        on_disconnect: Default::default(),
    }
}

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let attempts = numbers.next().unwrap_or(500_000);
    let in_flight = numbers.next().unwrap_or(4_000);
    let replicas = numbers.next().unwrap_or(1);
    let (clock, entropy): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Entropy::from_os());
    let (room, ended) = (Arc::new(Semaphore::new(in_flight as usize)), Arc::new(AtomicU64::new(0)));

    let (mut fleets, mut servers) = (vec![], vec![]);
    for number in 0..replicas {
        let fleet = Fleet::start(FleetParts {
            replica: format!("replica-{number}"),
            roster: Arc::new(NoRoster),
            identities: None,
            logs: Arc::new(InMemory::new()),
            peers: watch::channel(vec![]).1,
            clock: Arc::clone(&clock),
            entropy: entropy.clone(),
            metrics: FleetMetrics::default(),
        });
        let sink = Arc::new(Desk { room: Arc::clone(&room), ended: Arc::clone(&ended) });
        let router = fleet.router(Gate { sink, admits: Arc::new(|token| token == TOKEN) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        servers.push(format!("http://{}", listener.local_addr().expect("a bound socket has an address")));
        tokio::spawn(tenure_api::serve(listener, router, CancellationToken::new()));
        fleets.push(fleet);
    }
    let config = LinksConfig {
        trust: Default::default(),
        servers,
        access: Access::Token(TOKEN.into()),
        node: NodeId::new("player"),
        capacity: Resources::default(),
        labels: Default::default(),
        taints: Default::default(),
        queues: [QueueName::default()].into(),
        version: "example".into(),
    };
    let links = Links::new(config, Arc::clone(&clock), entropy.clone()).expect("the addresses are right");
    links.open(Arc::new(Player { links: links.clone(), clock: Arc::clone(&clock) }));
    while fleets.iter().any(|fleet| fleet.linked().is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let began = Instant::now();
    for number in 0..attempts {
        room.acquire().await.expect("nobody closes it").forget();
        let fleet = &fleets[(number % 16 % replicas) as usize];
        fleet.assign(assignment(number, &entropy, &*clock)).await.expect("the queue holds what is in flight");
    }
    while ended.load(Ordering::Relaxed) < attempts {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    println!(
        "{attempts} attempts assigned, claimed and ended in {took:.2?}: {:.0} a second, {in_flight} in flight, {replicas} replica(s)",
        attempts as f64 / took.as_secs_f64()
    );
}
