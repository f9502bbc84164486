//! What a process says at its address while it waits for its database: that it lives, and what it waits for.

use anyhow::{Context, Result};
use tenure_api::Door;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub struct Porch {
    door: Door,
    why: watch::Sender<String>,
    shutdown: CancellationToken,
    task: AbortOnDropHandle<std::io::Result<()>>,
}

impl Porch {
    /// Answers on a second handle of the same socket, so that no call is refused when the house opens.
    pub fn open(door: Door) -> Result<Self> {
        let again = "cannot use the address twice";
        let Door { listener, tls } = door;
        let listener = listener.into_std().context(again)?;
        let second = listener.try_clone().and_then(TcpListener::from_std).context(again)?;
        let listener = TcpListener::from_std(listener).context(again)?;
        let (why, reason) = watch::channel("starting: connecting to the database".to_owned());
        let shutdown = CancellationToken::new();
        let second = Door { listener: second, tls: tls.clone() };
        let serving = tenure_api::serve(second, tenure_api::waiting_router(reason), shutdown.clone());
        Ok(Self {
            door: Door { listener, tls },
            why,
            shutdown,
            task: AbortOnDropHandle::new(tokio::spawn(serving)),
        })
    }

    pub fn say(&self, why: String) {
        self.why.send_replace(why);
    }

    /// Finishes its answers and hands the address back.
    pub async fn close(self) -> Result<Door> {
        self.shutdown.cancel();
        match self.task.await {
            Ok(served) => served.context("the HTTP server failed")?,
            Err(panic) => tracing::error!(%panic, "the HTTP server panicked"),
        }
        Ok(self.door)
    }
}
