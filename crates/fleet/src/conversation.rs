//! One stream from its hello to its end: who it is, what it says, who answers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tenure_agent_proto::wire::{FromAgent, Hello, NumberedReport, Welcome};
use tenure_agent_proto::{PROTOCOL, Refusal, ReplicaItem};
use tenure_model::{Ack, BadTaint, Held, NodeId, QueueName, Resources};
use tenure_store::NodeRegistration;
use tokio::sync::watch;
use tonic::{Status, Streaming};
use uuid::Uuid;

use crate::door::Guest;
use crate::fleet::Shared;
use crate::link::{Link, REPORTS_IN_WORK, Voice};
use crate::{ReportSink, refusal};

const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Four heartbeats. The connection's own pings notice most dead peers earlier.
const SILENT_FOR: Duration = Duration::from_secs(20);
const REGISTER_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) async fn hold(
    fleet: Arc<Shared>,
    sink: Arc<dyn ReportSink>,
    mut incoming: Streaming<FromAgent>,
    voice: Voice,
    guest: Guest,
) {
    let hello = tokio::select! {
        hello = hello(&mut incoming, &guest) => hello,
        () = voice.over() => return,
        () = fleet.closing.cancelled() => Err(Status::unavailable("this replica is stopping")),
    };
    let (registration, session) = match hello {
        Ok(hello) => hello,
        Err(status) => {
            tracing::debug!(%status, "an agent did not get past its hello");
            return voice.end(status);
        }
    };
    let clock = &*fleet.parts.clock;
    let node = registration.node.clone();
    let link = Arc::new(Link::new(fleet.new_link_id(), node.clone(), session, voice, guest, clock));
    welcome(&fleet, &link);
    if let Some(before) = fleet.add(Arc::clone(&link)) {
        replace(&before, &link);
    }
    tracing::info!(%node, link = link.id, version = registration.version, "agent connected");

    let talking = Conversation { fleet: Arc::clone(&fleet), sink, link: Arc::clone(&link) };
    let ended = tokio::select! {
        status = talking.listen(&mut incoming) => Some(status),
        () = talking.keep_welcome_true() => unreachable!("the list of replicas has no end"),
        () = talking.register(&registration) => unreachable!("registering goes on quietly"),
        () = link.voice.over() => None,
    };
    fleet.remove(&link);
    link.hang_up(ended.clone().unwrap_or_else(|| Status::cancelled("the connection ended")));
    tracing::info!(%node, link = link.id, status = ended.as_ref().map(Status::message), "agent disconnected");
}

/// Who is there, which must be who was let in.
async fn hello(
    incoming: &mut Streaming<FromAgent>,
    guest: &Guest,
) -> Result<(NodeRegistration, Uuid), Status> {
    let first = tokio::time::timeout(HELLO_WITHIN, incoming.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded(format!("no hello within {HELLO_WITHIN:?}")))?;
    let hello = first?.and_then(|message| message.hello);
    let Hello { protocol, agent_version, node, session, capacity, labels, taints, queues } =
        hello.ok_or_else(|| Status::invalid_argument("the first message is no hello"))?;
    if protocol != PROTOCOL {
        return Err(Status::failed_precondition(format!(
            "this replica (Tenure {}) speaks protocol {PROTOCOL} with agents, and this agent ({agent_version}) speaks \
             {protocol}: install the same version on both sides",
            env!("CARGO_PKG_VERSION")
        )));
    }
    if node.is_empty() {
        return Err(Status::invalid_argument("the node has no name"));
    }
    let session = session.ok_or_else(|| Status::invalid_argument("the session is missing"))?.into();
    let taints: Result<_, BadTaint> = taints.iter().map(|taint| taint.parse()).collect();
    let taints = taints.map_err(|bad| Status::invalid_argument(format!("a taint makes no sense: {bad}")))?;
    let mut plain = NodeRegistration::new(NodeId::from(node), Resources(capacity), agent_version);
    if !queues.is_empty() {
        plain.queues = queues.into_iter().map(QueueName::from).collect();
    }
    guest.may_be(&plain.node)?;
    Ok((NodeRegistration { labels, taints, ..plain }, session))
}

fn welcome(fleet: &Shared, link: &Link) {
    let peers = fleet.parts.peers.borrow().clone();
    link.voice.say(ReplicaItem::Welcome(Welcome { replica: fleet.parts.replica.clone(), peers }));
}

fn replace(before: &Link, after: &Link) {
    if before.session == after.session {
        return before.hang_up(Status::cancelled("replaced by a newer connection of the same agent"));
    }
    // Most often the agent was restarted. If both live, each will throw the other out again and again.
    tracing::warn!(node = %after.node, "another process of this node's agent has taken over");
    before.hang_up(Status::aborted(format!(
        "another agent has connected as node {}: give each agent a name of its own (--name) and a data folder of \
         its own (--data)",
        after.node
    )));
}

struct Conversation {
    fleet: Arc<Shared>,
    sink: Arc<dyn ReportSink>,
    link: Arc<Link>,
}

impl Conversation {
    /// Until the agent has nothing more to say, or makes no sense.
    async fn listen(&self, incoming: &mut Streaming<FromAgent>) -> Status {
        loop {
            let message = match tokio::time::timeout(SILENT_FOR, incoming.message()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None)) => return Status::cancelled("the agent has ended the stream"),
                Ok(Err(status)) => return status,
                Err(_) => return Status::deadline_exceeded(format!("nothing was heard for {SILENT_FOR:?}")),
            };
            self.link.hear(&*self.fleet.parts.clock);
            self.fleet.parts.metrics.messages_in.inc();
            if let Err(status) = self.take_in(message).await {
                tracing::warn!(node = %self.link.node, %status, "an agent makes no sense; its link is closed");
                return status;
            }
        }
    }

    async fn take_in(&self, message: FromAgent) -> Result<(), Status> {
        if message.hello.is_some() {
            return Err(Status::invalid_argument("a second hello"));
        }
        if message == FromAgent::default() {
            self.link.voice.say(ReplicaItem::Heartbeat);
            return Ok(());
        }
        if message.ping > 0 {
            self.link.voice.say(ReplicaItem::Pong(message.ping));
        }
        for refused in message.refusals {
            let refused = Refusal::try_from(refused).map_err(|nonsense| {
                Status::invalid_argument(format!("a refusal makes no sense: {nonsense}"))
            })?;
            self.fleet.parts.metrics.refusals.inc();
            let (sink, clock) = (Arc::clone(&self.sink), Arc::clone(&self.fleet.parts.clock));
            self.fleet.tasks.spawn(refusal::tell(refused, self.link.node.clone(), sink, clock));
        }
        if !message.reports.is_empty() {
            self.take_reports(message.reports).await?;
        }
        for answer in message.inventories {
            let held: Result<Vec<Held>, _> = answer.held.into_iter().map(TryInto::try_into).collect();
            let held = held.map_err(|nonsense| {
                Status::invalid_argument(format!("an inventory makes no sense: {nonsense}"))
            })?;
            self.link.answer_inventory(answer.request, held);
        }
        Ok(())
    }

    async fn take_reports(&self, reports: Vec<NumberedReport>) -> Result<(), Status> {
        let count = reports.len();
        if count > REPORTS_IN_WORK {
            let text =
                format!("{count} reports in one message, and {REPORTS_IN_WORK} is the most that is read");
            return Err(Status::resource_exhausted(text));
        }
        self.fleet.parts.metrics.reports.inc_by(count as u64);
        self.link.voice.take_in(count as u32).await;
        self.fleet.tasks.spawn(answer(reports, Arc::clone(&self.link), Arc::clone(&self.sink)));
        Ok(())
    }

    async fn keep_welcome_true(&self) {
        let mut peers: watch::Receiver<Vec<String>> = self.fleet.parts.peers.clone();
        peers.mark_unchanged();
        while peers.changed().await.is_ok() {
            welcome(&self.fleet, &self.link);
        }
        std::future::pending().await
    }

    /// A database that is away keeps no node from finishing its work.
    async fn register(&self, registration: &NodeRegistration) {
        let parts = &self.fleet.parts;
        while let Err(error) = parts.roster.register(registration, parts.clock.now()).await {
            tracing::warn!(node = %registration.node, %error, "the node cannot be registered yet; trying again");
            tokio::time::sleep(REGISTER_AGAIN_AFTER).await;
        }
        std::future::pending().await
    }
}

/// Each report is answered as soon as its own fate is known.
async fn answer(reports: Vec<NumberedReport>, link: Arc<Link>, sink: Arc<dyn ReportSink>) {
    let answers = reports.into_iter().map(|report| answer_one(report, &link, &*sink));
    let mut answers: FuturesUnordered<_> = answers.collect();
    while let Some((number, ack)) = answers.next().await {
        link.voice.say(ReplicaItem::Ack { number, ack });
    }
}

/// `Retry` for what cannot be read or cannot be handled: neither is a reason to stop or to forget a task.
async fn answer_one(report: NumberedReport, link: &Link, sink: &dyn ReportSink) -> (u64, Ack) {
    let number = report.number;
    let report = match report.read(link.node.clone()) {
        Ok(report) => report,
        Err(nonsense) => {
            tracing::warn!(node = %link.node, %nonsense, "a report makes no sense");
            return (number, Ack::Retry);
        }
    };
    let ack = AssertUnwindSafe(sink.submit(report)).catch_unwind().await;
    (
        number,
        ack.unwrap_or_else(|_| {
            tracing::error!(node = %link.node, number, "taking a report in has panicked");
            Ack::Retry
        }),
    )
}
