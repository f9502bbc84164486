//! One live stream to a replica: what waits for its answer there, and when it last gave a sign of life.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_agent_proto::wire::{NumberedReport, ToAgent};
use tenure_agent_proto::{AgentItem, AgentsClient};
use tenure_clock::{BootTime, Clock};
use tenure_model::{Ack, Report};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;
use uuid::Uuid;

use super::lock;

/// With a report waiting, so long a silence makes the agent ask whether anybody is there, …
const ASK_AFTER: Duration = Duration::from_secs(1);
/// … and so long a silence makes it go elsewhere.
const LEAVE_AFTER: Duration = Duration::from_secs(3);
/// A replica that lives but does not answer a report may be cut off from its database.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Three heartbeats without an echo.
const SILENT_FOR: Duration = Duration::from_secs(15);

pub(super) struct Wire {
    /// Which process of which replica is at the other end.
    pub replica: Uuid,
    /// For calls beside the stream.
    pub client: AgentsClient<Channel>,
    queue: mpsc::UnboundedSender<AgentItem>,
    waiting: Mutex<Waiting>,
    /// Nanoseconds since boot.
    heard: AtomicU64,
    /// It has let a report wait in silence.
    suspect: AtomicBool,
    /// The other replicas that this one knows.
    pub peers: Mutex<Vec<super::Server>>,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    last: u64,
    /// In the order they were sent.
    reports: BTreeMap<u64, (BootTime, oneshot::Sender<Ack>)>,
}

/// What the state of a link asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Fine,
    /// Ask for a sign of life.
    Ask,
    /// Nothing has been heard for too long.
    Dead,
}

impl Wire {
    pub fn new(
        replica: Uuid,
        client: AgentsClient<Channel>,
        queue: mpsc::UnboundedSender<AgentItem>,
        now: BootTime,
    ) -> Self {
        Self {
            replica,
            client,
            queue,
            waiting: Mutex::default(),
            heard: AtomicU64::new(nanos(now)),
            suspect: AtomicBool::new(false),
            peers: Mutex::default(),
        }
    }

    pub fn is_well(&self) -> bool {
        !self.suspect.load(Ordering::Acquire)
    }

    pub fn say(&self, item: AgentItem) {
        // A stream that has ended listens no more; its end is being dealt with.
        let _ = self.queue.send(item);
    }

    /// `None`: the link broke, or its silence became too long.
    pub async fn submit(&self, report: &Report, clock: &dyn Clock) -> Option<Ack> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.closed {
                return None;
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.reports.insert(number, (clock.boottime(), answer));
            // Under the lock, so that numbers are in order on the wire too.
            self.say(AgentItem::Report(NumberedReport::new(number, report.clone())));
        }
        answered.await.ok()
    }

    /// Answers that come too late find nobody waiting.
    pub fn take_acks(&self, message: &ToAgent) {
        let mut waiting = lock(&self.waiting);
        for (number, ack) in message.acks() {
            if let Some((_, answer)) = waiting.reports.remove(&number) {
                let _ = answer.send(ack);
            }
        }
    }

    /// True if it had been silent for too long.
    pub fn hear(&self, now: BootTime) -> bool {
        self.heard.store(nanos(now), Ordering::Release);
        self.suspect.swap(false, Ordering::AcqRel)
    }

    /// Lets go of reports that have waited for too long.
    pub fn look(&self, now: BootTime) -> Look {
        let heard = BootTime::since_boot(Duration::from_nanos(self.heard.load(Ordering::Acquire)));
        let silent = now.saturating_since(heard);
        if silent >= SILENT_FOR {
            return Look::Dead;
        }
        let mut waiting = lock(&self.waiting);
        let Some((_, (since, _))) = waiting.reports.first_key_value() else { return Look::Fine };
        let waited = now.saturating_since(*since);
        // Silence counts while something waits: an idle link is silent between two heartbeats.
        if silent.min(waited) >= LEAVE_AFTER {
            self.suspect.store(true, Ordering::Release);
            waiting.reports.clear();
            return Look::Ask;
        }
        while let Some(oldest) = waiting.reports.first_entry() {
            if now.saturating_since(oldest.get().0) < ANSWER_WITHIN {
                break;
            }
            // It counts as an answer, so that others are asked first.
            let _ = oldest.remove().1.send(Ack::Retry);
        }
        if silent.min(waited) >= ASK_AFTER { Look::Ask } else { Look::Fine }
    }

    /// Nothing waits here any more, and nothing will.
    pub fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.reports.clear();
    }
}

fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}
