//! Where reports wait for the next pass. Answers go out only after the commit that used them.

use std::sync::{Arc, Mutex};

use tenure_model::{Ack, Report};
use tokio::sync::{Notify, oneshot};

/// The scheduler's ear: agents submit, the owner drains. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct ReportInbox {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Vec<Envelope>>,
    arrived: Notify,
}

#[derive(Debug)]
pub(crate) struct Envelope {
    pub report: Report,
    pub answer: Option<oneshot::Sender<Ack>>,
}

impl Envelope {
    pub fn acknowledge(self, ack: Ack) {
        if let Some(answer) = self.answer {
            let _ = answer.send(ack); // an agent that has gone away will ask again
        }
    }
}

impl ReportInbox {
    /// Resolves once the report's effect is committed, or with `Retry` when it could not be.
    pub async fn submit(&self, report: Report) -> Ack {
        let (answer, ack) = oneshot::channel();
        self.push(Envelope { report, answer: Some(answer) });
        ack.await.unwrap_or(Ack::Retry)
    }

    /// For those that need no answer.
    pub fn post(&self, report: Report) {
        self.push(Envelope { report, answer: None });
    }

    fn push(&self, envelope: Envelope) {
        self.shared.waiting.lock().expect("no panic while holding the inbox").push(envelope);
        self.shared.arrived.notify_one();
    }

    pub(crate) fn drain(&self) -> Vec<Envelope> {
        std::mem::take(&mut *self.shared.waiting.lock().expect("no panic while holding the inbox"))
    }

    pub(crate) async fn arrived(&self) {
        self.shared.arrived.notified().await;
    }
}
