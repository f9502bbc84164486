//! Hints that something was committed which an owner should look at: from this process at once, from others
//! by LISTEN/NOTIFY. A hint that is lost costs a tick of the scheduler, nothing else.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Entropy;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Config, NoTls};

pub(crate) const CHANNEL: &str = "tenure_wake";
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Wakes {
    sender: Arc<watch::Sender<u64>>,
    /// Tells this process's own notifications apart: it has woken itself already.
    origin: String,
    listener: JoinHandle<()>,
}

impl Wakes {
    pub(crate) fn start(config: Config, entropy: &Entropy) -> Self {
        let origin = u64::from_be_bytes(entropy.bytes()).to_string();
        let sender = Arc::new(watch::Sender::new(0));
        let listener = tokio::spawn(listen_for_ever(config, origin.clone(), Arc::clone(&sender)));
        Self { sender, origin, listener }
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

impl Drop for Wakes {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen_for_ever(config: Config, origin: String, sender: Arc<watch::Sender<u64>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Err(error) = listen(&config, &origin, &sender, &mut pause).await {
            tracing::debug!(%error, ?pause, "not listening for wakes; the tick still comes");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Until the connection ends.
async fn listen(
    config: &Config,
    origin: &str,
    sender: &watch::Sender<u64>,
    pause: &mut Duration,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let (begun, listening) = (client.batch_execute("LISTEN tenure_wake"), async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message?
                && note.payload() != origin
            {
                sender.send_modify(|count| *count += 1);
            }
        }
        Ok(())
    });
    futures::pin_mut!(begun, listening);
    match futures::future::select(begun, listening).await {
        futures::future::Either::Left((begun, listening)) => {
            begun?;
            *pause = FIRST_PAUSE;
            // Whatever was said while nobody listened is lost: look once.
            sender.send_modify(|count| *count += 1);
            listening.await
        }
        futures::future::Either::Right((ended, _)) => ended,
    }
}
