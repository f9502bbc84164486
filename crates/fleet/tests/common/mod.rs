//! A replica's fleet behind a real port, a book of what it was told, and an agent that says exactly what the test wants.
#![allow(dead_code, reason = "each test file uses its own part of the bench")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::memory::InMemory;
use tenure_agent_proto::wire::{self, FromAgent, Hello, NumberedReport, ToAgent};
use tenure_agent_proto::{AgentsClient, LARGEST_MESSAGE, PROTOCOL};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_fleet::{Fleet, FleetMetrics, FleetParts, Gate, Identities, ReportSink, Roster};
use tenure_model::{
    Ack, Assignment, AttemptId, NodeId, Program, Report, ReportBody, RunKey, TaskNo, TenantId, TiKey,
};
use tenure_store::{BoxError, NodeRegistration, StoreError};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

pub const TOKEN: &str = "open-sesame";
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the control plane behind the fleet was told.
#[derive(Default)]
pub struct Book {
    pub reports: Mutex<Vec<Report>>,
    pub registered: Mutex<Vec<NodeRegistration>>,
    pub presence: Mutex<Vec<(String, Vec<NodeId>)>>,
    /// Answers for the next reports; `Accepted` when there are none.
    pub answers: Mutex<VecDeque<Ack>>,
    /// So many registrations fail first.
    pub failing: Mutex<u32>,
}

#[async_trait]
impl ReportSink for Book {
    async fn submit(&self, report: Report) -> Ack {
        assert_ne!(report.scope, "panic", "the test has asked for it");
        let is_held = report.scope == "hold";
        self.reports.lock().unwrap().push(report);
        if is_held {
            std::future::pending::<()>().await;
        }
        self.answers.lock().unwrap().pop_front().unwrap_or(Ack::Accepted)
    }
}

/// So that one book serves as both.
pub struct BookRoster(pub Arc<Book>);

#[async_trait]
impl Roster for BookRoster {
    async fn register(&self, node: &NodeRegistration, _at: Timestamp) -> Result<(), StoreError> {
        let mut failing = self.0.failing.lock().unwrap();
        if *failing > 0 {
            *failing -= 1;
            let source: BoxError = "the test has unplugged it".into();
            return Err(StoreError::Unavailable { doing: "registering a node", source });
        }
        self.0.registered.lock().unwrap().push(node.clone());
        Ok(())
    }

    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        self.0.presence.lock().unwrap().push((replica.to_owned(), nodes.to_vec()));
        Ok(())
    }
}

pub struct Replica {
    pub fleet: Fleet,
    pub book: Arc<Book>,
    pub logs: Arc<InMemory>,
    pub peers: watch::Sender<Vec<String>>,
    pub address: SocketAddr,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Replica {
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    pub async fn start_with(identities: Option<Identities>) -> Self {
        let (book, logs, peers) =
            (Arc::new(Book::default()), Arc::new(InMemory::new()), watch::channel(vec![]));
        let fleet = Fleet::start(FleetParts {
            replica: "a".into(),
            roster: Arc::new(BookRoster(Arc::clone(&book))),
            identities,
            logs: logs.clone(),
            peers: peers.1,
            clock: Arc::new(SystemClock),
            entropy: Entropy::from_os(),
            metrics: FleetMetrics::default(),
        });
        let router = fleet.router(Gate { sink: book.clone(), admits: Arc::new(|token| token == TOKEN) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(tenure_api::serve(listener, router, shutdown.clone()));
        Self { fleet, book, logs, peers: peers.0, address, shutdown, serving }
    }

    pub async fn client(&self) -> AgentsClient<Channel> {
        // A small window, so that a reader who stops is soon felt.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        AgentsClient::new(endpoint.connect().await.unwrap()).max_decoding_message_size(LARGEST_MESSAGE)
    }

    /// An agent that has said hello and was welcomed.
    pub async fn agent(&self, node: &str) -> RawAgent {
        let mut agent = self.silent_agent(Some(TOKEN)).await.unwrap();
        agent.say(FromAgent { hello: Some(hello(node, 1)), ..Default::default() });
        let welcome = agent.hear().await.unwrap();
        assert_eq!(welcome.welcome.unwrap().replica, "a");
        agent
    }

    /// An agent that has not said anything yet.
    pub async fn silent_agent(&self, token: Option<&str>) -> Result<RawAgent, Status> {
        let (say, said) = mpsc::unbounded_channel();
        let said = futures::stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
        let mut request = Request::new(said);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let response = self.client().await.connect(request).await?;
        Ok(RawAgent { say: Some(say), incoming: response.into_inner() })
    }

    pub async fn stop(self) {
        self.fleet.close().await;
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("streams do not hold the server")
            .unwrap()
            .unwrap();
    }

    pub async fn reported(&self, count: usize) -> Vec<Report> {
        let reports = || async {
            let reports = self.book.reports.lock().unwrap();
            (reports.len() >= count).then(|| reports.clone())
        };
        tenure_testkit::wait_for("reports", PATIENCE, reports).await
    }
}

pub struct RawAgent {
    pub say: Option<mpsc::UnboundedSender<FromAgent>>,
    pub incoming: Streaming<ToAgent>,
}

impl RawAgent {
    pub fn say(&self, message: FromAgent) {
        self.say.as_ref().unwrap().send(message).unwrap();
    }

    pub async fn hear(&mut self) -> Result<ToAgent, Status> {
        let heard =
            tokio::time::timeout(PATIENCE, self.incoming.message()).await.expect("something is heard");
        heard.map(|message| message.expect("the stream has not ended without a status"))
    }

    /// Everything up to and including the first message that fits.
    pub async fn hear_until(&mut self, fits: impl Fn(&ToAgent) -> bool) -> Vec<ToAgent> {
        let mut heard = vec![];
        loop {
            heard.push(self.hear().await.unwrap());
            if fits(heard.last().unwrap()) {
                return heard;
            }
        }
    }

    pub async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear().await {
                return status;
            }
        }
    }
}

pub fn hello(node: &str, session: u64) -> Hello {
    Hello {
        protocol: PROTOCOL,
        agent_version: "9.9.9".into(),
        node: node.into(),
        session: Some(wire::Id { high: 1, low: session }),
        capacity: [("cpu".to_owned(), 4_000)].into(),
        labels: [("zone".to_owned(), "b".to_owned())].into(),
        taints: vec!["gpu=a100".into()],
        queues: vec!["big".into()],
    }
}

pub fn assignment(node: &str) -> Assignment {
    let entropy = Entropy::from_os();
    Assignment {
        attempt: AttemptId(entropy.uuid(SystemClock.now())),
        ti: TiKey::unmapped(RunKey(1), TaskNo(2)),
        node: NodeId::new(node),
        scope: "scheduler/shard-03".into(),
        epoch: 1,
        tenant: TenantId::default_tenant(),
        dag: "etl".into(),
        run_id: "r1".into(),
        task: "load".into(),
        try_number: 1,
        program: Program::Process { argv: vec!["true".into()] },
        env: Default::default(),
        files: Default::default(),
        timeout: None,
        grace: Duration::from_secs(5),
        secrets: Vec::new(),
        resources: Default::default(),
        run_as: None,
        on_disconnect: Default::default(),
    }
}

pub fn claim(number: u64, attempt: u128) -> NumberedReport {
    let (attempt, ti) = (AttemptId(Uuid::from_u128(attempt)), TiKey::unmapped(RunKey(1), TaskNo(2)));
    let body = ReportBody::Claim { attempt, ti };
    NumberedReport::new(number, Report { node: "x".into(), scope: "scheduler/shard-03".into(), body })
}

pub fn reports(reports: Vec<NumberedReport>) -> FromAgent {
    FromAgent { reports, ..Default::default() }
}
