//! One node's stream: what is queued for it, when it was last heard, and what it has been asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use tenure_agent_proto::{ReplicaItem, batches, wire};
use tenure_clock::{BootTime, Clock};
use tenure_model::{Held, NodeId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;

use crate::FleetMetrics;
use crate::door::{Guest, Shown};

/// Assignments that may wait to be written: a second of work for the fastest node that was measured, and a bound on
/// what a node that does not read keeps in memory.
pub(crate) const ASSIGNMENTS_QUEUED: usize = 8192;
/// Reports of one link that are being worked on, or whose answers wait to be written. Beyond it nothing is read.
pub(crate) const REPORTS_IN_WORK: usize = 32 * 1024;

/// The replica's side of a conversation, whoever it will turn out to be with.
#[derive(Clone)]
pub(crate) struct Voice {
    queue: mpsc::UnboundedSender<ReplicaItem>,
    end: Arc<End>,
}

struct End {
    over: CancellationToken,
    status: OnceLock<Status>,
    /// Assignments in the queue.
    queued: AtomicUsize,
    /// What may still be taken into work.
    room: Semaphore,
}

impl Voice {
    /// The voice, and the stream of what it says.
    pub fn new(metrics: FleetMetrics) -> (Self, BoxStream<'static, Result<wire::ToAgent, Status>>) {
        let (queue, said) = mpsc::unbounded_channel();
        let end = End {
            over: CancellationToken::new(),
            status: OnceLock::new(),
            queued: AtomicUsize::new(0),
            room: Semaphore::new(REPORTS_IN_WORK),
        };
        let voice = Self { queue, end: Arc::new(end) };
        let stream = outgoing(said, Arc::clone(&voice.end), metrics);
        (voice, stream)
    }

    /// After the end nobody listens, and nothing that is said here must not be lost.
    pub fn say(&self, item: ReplicaItem) {
        let _ = self.queue.send(item);
    }

    /// False: the queue is full.
    pub fn assign(&self, assignment: wire::Assignment) -> bool {
        let before = self.end.queued.fetch_add(1, Ordering::AcqRel);
        if before >= ASSIGNMENTS_QUEUED {
            self.end.queued.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        self.say(ReplicaItem::Assignment(Box::new(assignment)));
        true
    }

    /// Waits until so many reports may be taken into work. They are out of it when their answers are written.
    pub async fn take_in(&self, reports: u32) {
        let room = self.end.room.acquire_many(reports).await;
        room.expect("nobody closes the semaphore").forget();
    }

    /// Ends the conversation, once what is queued has been said. The first reason is the one that is given.
    pub fn end(&self, status: Status) {
        let _ = self.end.status.set(status);
        self.end.over.cancel();
    }

    pub fn is_over(&self) -> bool {
        self.end.over.is_cancelled()
    }

    pub async fn over(&self) {
        self.end.over.cancelled().await;
    }
}

/// Ends the conversation when the stream is dropped: then the connection is gone.
struct Listener(Arc<End>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

fn outgoing(
    said: mpsc::UnboundedReceiver<ReplicaItem>,
    end: Arc<End>,
    metrics: FleetMetrics,
) -> BoxStream<'static, Result<wire::ToAgent, Status>> {
    let speaking = (batches::<wire::ToAgent>(said).boxed(), Listener(end));
    stream::unfold(Some(speaking), move |speaking| {
        let metrics = metrics.clone();
        async move {
            let (mut batches, listener) = speaking?;
            let end = &listener.0;
            let batch = tokio::select! {
                biased; // what is queued is said before the end
                batch = batches.next() => batch,
                () = end.over.cancelled() => None,
            };
            let Some(batch) = batch else { return Some((Err(end.status.get().cloned()?), None)) };
            end.queued.fetch_sub(batch.assignments.len(), Ordering::AcqRel);
            end.room.add_permits(batch.acks().count());
            metrics.messages_out.inc();
            metrics.assignments.inc_by(batch.assignments.len() as u64);
            Some((Ok(batch), Some((batches, listener))))
        }
    })
    .boxed()
}

/// A node that has said hello.
pub(crate) struct Link {
    /// Another one after every reconnect.
    pub id: u64,
    pub node: NodeId,
    /// Which process of the agent it is.
    pub session: Uuid,
    pub voice: Voice,
    /// The identity that it came in with, if it has one of its own.
    shown: Option<Mutex<Shown>>,
    /// Nanoseconds since boot.
    heard: AtomicU64,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    last: u64,
    waiting: HashMap<u64, oneshot::Sender<Vec<Held>>>,
}

impl Link {
    pub fn new(id: u64, node: NodeId, session: Uuid, voice: Voice, guest: Guest, clock: &dyn Clock) -> Self {
        let shown = match guest {
            Guest::Anybody => None,
            Guest::Node(shown) => Some(Mutex::new(shown)),
        };
        let (heard, requests) = (AtomicU64::new(0), Mutex::default());
        let link = Self { id, node, session, voice, shown, heard, requests };
        link.hear(clock);
        link
    }

    pub fn shown(&self) -> Option<Shown> {
        let shown = self.shown.as_ref()?;
        Some(shown.lock().expect("no panic while holding the identity").clone())
    }

    /// The node has another identity, which ends then.
    pub fn identified_until(&self, until: Timestamp) {
        if let Some(shown) = &self.shown {
            shown.lock().expect("no panic while holding the identity").until = until;
        }
    }

    pub fn hear(&self, clock: &dyn Clock) {
        let since_boot = clock.boottime().saturating_since(BootTime::since_boot(Duration::ZERO));
        self.heard.store(since_boot.as_nanos() as u64, Ordering::Release);
    }

    pub fn heard(&self) -> BootTime {
        BootTime::since_boot(Duration::from_nanos(self.heard.load(Ordering::Acquire)))
    }

    /// Asks for everything the node holds. The answer never comes when the link breaks first.
    pub fn ask_inventory(&self) -> oneshot::Receiver<Vec<Held>> {
        let (answer, answered) = oneshot::channel();
        let mut requests = self.requests.lock().expect("no panic while holding the requests");
        if self.voice.is_over() {
            return answered;
        }
        requests.last += 1;
        let request = requests.last;
        // Nobody waits for those any more.
        requests.waiting.retain(|_, waiting| !waiting.is_closed());
        requests.waiting.insert(request, answer);
        self.voice.say(ReplicaItem::InventoryRequest(request));
        answered
    }

    pub fn answer_inventory(&self, request: u64, held: Vec<Held>) {
        let mut requests = self.requests.lock().expect("no panic while holding the requests");
        if let Some(waiting) = requests.waiting.remove(&request) {
            // Whoever asked may have stopped waiting.
            let _ = waiting.send(held);
        }
    }

    /// Lets go of whoever waits for an answer.
    pub fn hang_up(&self, status: Status) {
        self.voice.end(status);
        self.requests.lock().expect("no panic while holding the requests").waiting.clear();
    }
}
