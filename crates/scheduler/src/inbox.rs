//! Where reports wait for the next pass of one shard's owner. Answers go out only after the commit that used
//! them. What is dropped unanswered was not used: whoever waits takes another way.

use std::sync::{Arc, Mutex, MutexGuard};

use tenure_model::{Ack, AttemptId, Held, NodeId, Report, TiKey};
use tokio::sync::{Notify, oneshot};

/// Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportInbox {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    mail: Mail,
    /// Nobody will look again.
    closed: bool,
}

/// Everything that has come in since the last look.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub reports: Vec<Envelope>,
    pub inventories: Vec<Inventory>,
    /// Attempts of this shard that nodes have named, without having been asked about them.
    pub found: Vec<(NodeId, Vec<Held>)>,
}

#[derive(Debug)]
pub(crate) struct Envelope {
    pub report: Report,
    /// Memory spoke against it, and the database has been asked since.
    pub checked: bool,
    answer: oneshot::Sender<Ack>,
}

impl Envelope {
    pub fn acknowledge(self, ack: Ack) {
        let _ = self.answer.send(ack); // an agent that has gone away will ask again
    }
}

/// What a node has answered, and what it was asked about.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub node: NodeId,
    /// Which ran there, as far as the owner knew, when it asked.
    pub ran: Vec<(TiKey, AttemptId)>,
    /// Absent: no answer came.
    pub held: Option<Vec<Held>>,
}

impl ReportInbox {
    /// The answer after the commit that used the report; `None`: no owner has used it.
    pub async fn submit(&self, report: Report) -> Option<Ack> {
        let (answer, ack) = oneshot::channel();
        self.put(|mail| mail.reports.push(Envelope { report, checked: false, answer }));
        ack.await.ok()
    }

    pub fn put_inventory(&self, inventory: Inventory) {
        self.put(|mail| mail.inventories.push(inventory));
    }

    pub fn put_found(&self, node: NodeId, held: Vec<Held>) {
        self.put(|mail| mail.found.push((node, held)));
    }

    fn put(&self, add: impl FnOnce(&mut Mail)) {
        let mut waiting = self.waiting();
        if !waiting.closed {
            add(&mut waiting.mail);
            drop(waiting);
            self.shared.arrived.notify_one();
        }
    }

    pub fn drain(&self) -> Mail {
        std::mem::take(&mut self.waiting().mail)
    }

    /// Lets everybody who waits, and who will come, know that no owner looks here any more.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.mail = Mail::default();
    }

    pub async fn arrived(&self) {
        self.shared.arrived.notified().await;
    }

    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.shared.waiting.lock().expect("no panic while holding the inbox")
    }
}
