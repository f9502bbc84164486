//! Replicas that an agent can be linked to: real fleets behind real ports, with one book for all of them in place of the
//! database, and a wire to each that the test can cut and freeze.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::memory::InMemory;
use tenure_agent::{Access, Agent, AgentConfig, LinkState, Links, LinksConfig, Server};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_dispatch::Executor;
use tenure_fleet::{Fleet, FleetMetrics, FleetParts, Gate, ReportSink, Roster};
use tenure_model::{Ack, AttemptId, NodeId, QueueName, Report, ReportBody, Resources};
use tenure_store::{NodeRegistration, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Bench, eventually};

pub const TOKEN: &str = "open-sesame";

/// What all replicas know: who claimed what, and how it ended. As guarded as the real one.
#[derive(Default)]
pub struct Ledger {
    /// In the order of arrival, with the replica that took it in.
    log: Mutex<Vec<(String, Report)>>,
}

impl Ledger {
    pub fn claims(&self, attempt: AttemptId) -> Vec<String> {
        self.through(attempt, |body| matches!(body, ReportBody::Claim { .. }))
    }

    pub fn ends(&self, attempt: AttemptId) -> Vec<String> {
        self.through(attempt, |body| matches!(body, ReportBody::End { .. }))
    }

    fn through(&self, attempt: AttemptId, kind: impl Fn(&ReportBody) -> bool) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let of_attempt = |report: &Report| report.body.attempt() == attempt && kind(&report.body);
        log.iter().filter(|(_, report)| of_attempt(report)).map(|(replica, _)| replica.clone()).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Writes reports down and never answers: as if it died in between.
    Mute,
    /// Can do nothing with reports.
    AsksForRetry,
}

struct Desk {
    name: String,
    ledger: Arc<Ledger>,
    mood: Arc<Mutex<Mood>>,
}

#[async_trait]
impl ReportSink for Desk {
    async fn submit(&self, report: Report) -> Ack {
        let mood = *self.mood.lock().unwrap();
        if mood == Mood::AsksForRetry {
            return Ack::Retry;
        }
        self.ledger.log.lock().unwrap().push((self.name.clone(), report));
        match mood {
            Mood::Mute => std::future::pending().await,
            _ => Ack::Accepted,
        }
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

pub struct Replica {
    pub fleet: Fleet,
    pub logs: Arc<InMemory>,
    pub peers: watch::Sender<Vec<String>>,
    pub wire: Wire,
    /// Whether the right token opens it.
    pub open: Arc<AtomicBool>,
    mood: Arc<Mutex<Mood>>,
}

impl Replica {
    pub async fn start(name: &str, ledger: &Arc<Ledger>, logs: &Arc<InMemory>) -> Self {
        let peers = watch::channel(vec![]);
        let fleet = Fleet::start(FleetParts {
            replica: name.into(),
            roster: Arc::new(NoRoster),
            identities: None,
            logs: logs.clone(),
            peers: peers.1,
            clock: Arc::new(SystemClock),
            entropy: Entropy::from_os(),
            metrics: FleetMetrics::default(),
        });
        let mood = Arc::new(Mutex::default());
        let desk = Desk { name: name.into(), ledger: ledger.clone(), mood: Arc::clone(&mood) };
        let open = Arc::new(AtomicBool::new(true));
        let is_open = Arc::clone(&open);
        let admits = Arc::new(move |token: &str| token == TOKEN && is_open.load(Ordering::Acquire));
        let router = fleet.router(Gate { sink: Arc::new(desk), admits });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(tenure_api::serve(listener, router, CancellationToken::new()));
        let wire = Wire::to(address).await;
        Self { fleet, logs: logs.clone(), peers: peers.0, wire, open, mood }
    }

    pub fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    pub async fn linked(&self) {
        eventually("the node is linked", || !self.fleet.linked().is_empty()).await;
    }
}

/// A TCP proxy. Frozen, it is what a stopped process looks like: connections stay, nothing moves.
pub struct Wire {
    pub address: SocketAddr,
    frozen: watch::Sender<bool>,
    cut: Arc<Mutex<CancellationToken>>,
    dead: CancellationToken,
}

impl Wire {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, is_frozen) = watch::channel(false);
        let (cut, dead): (Arc<Mutex<CancellationToken>>, _) = (Arc::default(), CancellationToken::new());
        let current = Arc::clone(&cut);
        let accepting = async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(target).await.unwrap();
                let (near, far) = (near.into_split(), far.into_split());
                let cut = current.lock().unwrap().clone();
                let there = carry(near.0, far.1, is_frozen.clone());
                let back = carry(far.0, near.1, is_frozen.clone());
                tokio::spawn(cut.run_until_cancelled_owned(async move { tokio::join!(there, back) }));
            }
        };
        tokio::spawn(dead.clone().run_until_cancelled_owned(accepting));
        Self { address, frozen, cut, dead }
    }

    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Breaks every connection; new ones are welcome.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    /// As kill -9 of the replica: connections break, and nobody listens any more.
    pub fn kill(&self) {
        self.dead.cancel();
        self.cut();
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..length]).await.is_err()
        {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// An agent with its links.
pub struct Linked {
    pub agent: Arc<Agent>,
    pub links: Links,
}

impl Linked {
    pub async fn start(bench: &Bench, servers: &[String]) -> Self {
        let links = links(servers, TOKEN);
        let config = AgentConfig { logs: Arc::new(links.logs()), ..bench.config() };
        let control = Arc::new(links.clone());
        let agent = Agent::start(config, control, Arc::new(SystemClock), Entropy::from_os()).await.unwrap();
        let agent = Arc::new(agent);
        links.open(agent.clone());
        Self { agent, links }
    }

    /// Leaves tasks to their supervisors, and hangs up.
    pub async fn leave(self) {
        self.agent.shutdown().await;
        self.links.close().await;
    }
}

pub fn links(servers: &[String], token: &str) -> Links {
    let config = LinksConfig {
        trust: Default::default(),
        servers: servers.to_vec(),
        access: Access::Token(token.into()),
        node: NodeId::new("n1"),
        capacity: Resources::default().with(Resources::CPU, 1_000),
        labels: Default::default(),
        taints: Default::default(),
        queues: [QueueName::default()].into(),
        version: "test".into(),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Links::new(config, clock, Entropy::from_os()).unwrap()
}

pub async fn state_of(links: &Links, url: &str, fits: impl Fn(&LinkState) -> bool) -> LinkState {
    let (server, mut states) = (Server::parse(url).unwrap(), links.states());
    let waiting = states.wait_for(|states| states.get(&server).is_some_and(&fits));
    match tokio::time::timeout(super::PATIENCE, waiting).await {
        Ok(states) => states.unwrap()[&server].clone(),
        Err(_) => panic!("in vain waited for another state of {url} than {links:?}"),
    }
}

/// How often each attempt's effect was written.
pub fn starts(bench: &Bench) -> HashMap<String, usize> {
    let text = std::fs::read_to_string(bench.path("starts")).unwrap_or_default();
    let mut starts = HashMap::new();
    for line in text.lines() {
        *starts.entry(line.to_owned()).or_default() += 1;
    }
    starts
}
