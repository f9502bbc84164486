//! Who is connected, and how work gets to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ObjectStore;
use prost::Message;
use tenure_agent_proto::{LARGEST_MESSAGE, Refusal, ReplicaItem, Why, wire};
use tenure_clock::{Clock, Entropy};
use tenure_dispatch::{AssignError, Executor, Link as LinkState};
use tenure_model::{Assignment, AttemptId, Held, NodeId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use uuid::Uuid;

use crate::door::{self, Identities, Known};
use crate::link::{ASSIGNMENTS_QUEUED, Link};
use crate::service::{Gate, Service};
use crate::{FleetMetrics, ReportSink, Roster, presence, refusal};

/// An agent lists from memory; a node that takes longer is as good as silent.
const INVENTORY_WITHIN: Duration = Duration::from_secs(5);
/// For streams to be closed and registrations to be let go.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// What surrounds an assignment in its message is small.
const LARGEST_ASSIGNMENT: usize = LARGEST_MESSAGE - 64 * 1024;

#[derive(Clone)]
pub struct FleetParts {
    /// What this replica is called in records of presence, and by agents.
    pub replica: String,
    pub roster: Arc<dyn Roster>,
    /// Where nodes' own identities are known; without it, only tokens of the API open the door.
    pub identities: Option<Identities>,
    /// Where the logs of other machines' tasks are stored.
    pub logs: Arc<dyn ObjectStore>,
    /// Where agents reach the other replicas.
    pub peers: watch::Receiver<Vec<String>>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub metrics: FleetMetrics,
}

impl std::fmt::Debug for FleetParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetParts").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// All nodes that are connected to this replica.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub parts: FleetParts,
    /// Tells this process of the replica from all others, whatever they are called.
    pub session: Uuid,
    pub closing: CancellationToken,
    pub tasks: TaskTracker,
    pub known: Known,
    sink: OnceLock<Arc<dyn ReportSink>>,
    links: RwLock<HashMap<NodeId, Arc<Link>>>,
    last_link: AtomicU64,
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("replica", &self.shared.parts.replica).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Also begins to record which nodes are heard here, and to look for those that were removed, until it is closed.
    pub fn start(parts: FleetParts) -> Self {
        let shared = Arc::new(Shared {
            session: parts.entropy.uuid(parts.clock.now()),
            parts,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            known: Known::default(),
            sink: OnceLock::new(),
            links: RwLock::default(),
            last_link: AtomicU64::new(0),
            changes: watch::channel(0).0,
        });
        shared.tasks.spawn(presence::record(Arc::clone(&shared)));
        if let Some(identities) = shared.parts.identities.clone() {
            shared.tasks.spawn(door::watch(Arc::clone(&shared), identities));
        }
        Self { shared }
    }

    /// What agents call. To be merged into the HTTP API outside of its limits on time and size: streams are long.
    pub fn router(&self, gate: Gate) -> axum::Router {
        // The first one stays: a fleet has one scheduler.
        let _ = self.shared.sink.set(Arc::clone(&gate.sink));
        Service::new(Arc::clone(&self.shared), gate).into_router()
    }

    /// Ends all streams, after what is queued on them has been said, and takes no new ones: agents go to other
    /// replicas at once.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        for link in self.shared.take_all() {
            link.hang_up(Status::unavailable("this replica is stopping"));
        }
        self.shared.tasks.close();
        if tokio::time::timeout(CLOSE_WITHIN, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("some agents' reports are still being worked on; they will be sent again");
        }
    }
}

impl Shared {
    pub fn new_link_id(&self) -> u64 {
        self.last_link.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn find(&self, node: &NodeId) -> Option<Arc<Link>> {
        self.links.read().expect("no panic while holding the links").get(node).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Link>> {
        self.links.read().expect("no panic while holding the links").values().cloned().collect()
    }

    /// The link that was there before is not any more.
    pub fn add(&self, link: Arc<Link>) -> Option<Arc<Link>> {
        let before = self.change(|links| links.insert(link.node.clone(), link));
        // A close that has just passed by did not see it.
        if self.closing.is_cancelled() {
            self.take_all()
                .iter()
                .for_each(|link| link.hang_up(Status::unavailable("this replica is stopping")));
        }
        before
    }

    pub fn remove(&self, link: &Link) {
        self.change(|links| {
            if links.get(&link.node).is_some_and(|current| current.id == link.id) {
                links.remove(&link.node);
            }
        });
    }

    fn take_all(&self) -> Vec<Arc<Link>> {
        self.change(std::mem::take).into_values().collect()
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<NodeId, Arc<Link>>) -> T) -> T {
        let mut links = self.links.write().expect("no panic while holding the links");
        let result = change(&mut links);
        self.parts.metrics.connected.set(links.len() as i64);
        drop(links);
        self.changes.send_modify(|count| *count += 1);
        result
    }

    /// Changes when a node comes or goes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn sink(&self) -> Option<&Arc<dyn ReportSink>> {
        self.sink.get()
    }
}

#[async_trait]
impl Executor for Fleet {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        let node = assignment.node.clone();
        let not_taken = |reason: String| AssignError::NotTaken { node: node.clone(), reason };
        let Some(link) = self.shared.find(&node) else {
            return Err(not_taken("it is not connected to this replica".into()));
        };
        let (attempt, ti, scope) = (assignment.attempt, assignment.ti, assignment.scope.clone());
        let assignment = wire::Assignment::from(assignment);
        let size = assignment.encoded_len();
        if size > LARGEST_ASSIGNMENT {
            let reason = format!(
                "its files and values come to {size} bytes, and {LARGEST_ASSIGNMENT} is what an agent takes"
            );
            let refusal = Refusal { attempt, ti, scope, why: Why::Unreadable { reason } };
            if let Some(sink) = self.shared.sink() {
                let told =
                    refusal::tell(refusal, node, Arc::clone(sink), Arc::clone(&self.shared.parts.clock));
                self.shared.tasks.spawn(told);
            }
            return Ok(());
        }
        // Looked at before it is queued: what is queued may arrive, whatever happens to the link then.
        if link.voice.is_over() {
            return Err(not_taken("its connection has just ended".into()));
        }
        match link.voice.assign(assignment) {
            true => Ok(()),
            false => Err(not_taken(format!("{ASSIGNMENTS_QUEUED} assignments wait for it to read them"))),
        }
    }

    fn link(&self, node: &NodeId) -> Option<LinkState> {
        self.shared.find(node).map(|link| LinkState { id: link.id, heard: link.heard() })
    }

    fn linked(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.shared.all().iter().map(|link| link.node.clone()).collect();
        nodes.sort();
        nodes
    }

    fn links(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    async fn inventory(&self, node: &NodeId) -> Option<Vec<Held>> {
        let answer = self.shared.find(node)?.ask_inventory();
        tokio::time::timeout(INVENTORY_WITHIN, answer).await.ok()?.ok()
    }

    async fn stop(&self, node: &NodeId, attempt: AttemptId) {
        if let Some(link) = self.shared.find(node) {
            link.voice.say(ReplicaItem::Stop(attempt));
        }
    }
}
