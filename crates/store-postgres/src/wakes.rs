//! Hints that something was committed which an owner should look at: from this process at once, from others
//! by LISTEN/NOTIFY. A hint that is lost costs a tick of the scheduler, nothing else.

use std::sync::Arc;

use tenure_clock::Entropy;
use tokio::sync::watch;
use tokio_postgres::Config;
use tokio_util::task::AbortOnDropHandle;

use crate::listen::{Heard, listen};

pub(crate) const CHANNEL: &str = "tenure_wake";

pub(crate) struct Wakes {
    sender: Arc<watch::Sender<u64>>,
    /// Tells this process's own notifications apart: it has woken itself already.
    origin: String,
    _listener: AbortOnDropHandle<()>,
}

impl Wakes {
    pub(crate) fn start(config: Config, entropy: &Entropy) -> Self {
        let origin = u64::from_be_bytes(entropy.bytes()).to_string();
        let sender = Arc::new(watch::Sender::new(0));
        let (own, woken) = (origin.clone(), Arc::clone(&sender));
        let listener = listen(config, CHANNEL, entropy.clone(), move |heard| match heard {
            Heard::Note(origin) if origin == own => {}
            // Whatever was said while nobody listened is lost: look once.
            Heard::Note(_) | Heard::Begun => woken.send_modify(|count| *count += 1),
        });
        Self { sender, origin, _listener: listener }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.sender.subscribe()
    }

    pub(crate) fn wake(&self) {
        self.sender.send_modify(|count| *count += 1);
    }

    /// The payload of a notification from this process.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }
}
