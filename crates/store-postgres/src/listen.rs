//! Listening for notifications on a connection of its own, for ever: a lost connection is opened again, and
//! whoever listens is told, because what was said meanwhile is lost. A connection that has gone silent is
//! found out by asking it.

use std::future::poll_fn;
use std::time::Duration;

use futures::future::{Either, select};
use tenure_clock::Entropy;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Config, NoTls};
use tokio_util::task::AbortOnDropHandle;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(5);
/// For connecting, and for any answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) enum Heard<'a> {
    /// From now on nothing is missed; what was said before may have been.
    Begun,
    Note(&'a str),
}

/// Listens until the answer is dropped.
pub(crate) fn listen(
    config: Config,
    channel: &'static str,
    entropy: Entropy,
    heard: impl Fn(Heard<'_>) + Send + Sync + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = |said: Heard<'_>| heard(said);
            if let Err(error) = listen_once(&config, channel, &begun, &mut pause).await {
                tracing::debug!(%error, channel, ?pause, "not listening; whoever looks on a timer still sees");
            }
            // Processes that lost the same server do not come back to it all at once.
            sleep(pause + entropy.jitter(pause / 2)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }))
}

/// Until the connection ends or says nothing any more.
async fn listen_once(
    config: &Config,
    channel: &str,
    heard: &(impl Fn(Heard<'_>) + Sync),
    pause: &mut Duration,
) -> Result<(), ListenError> {
    let (client, mut connection) = timeout(PATIENCE, config.connect(NoTls)).await??;
    let hearing = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message? {
                heard(Heard::Note(note.payload()));
            }
        }
        Ok(())
    };
    let asking = async {
        timeout(PATIENCE, client.batch_execute(&format!("LISTEN {channel}"))).await??;
        *pause = FIRST_PAUSE;
        heard(Heard::Begun);
        loop {
            sleep(PING_EVERY).await;
            timeout(PATIENCE, client.batch_execute("")).await??;
        }
    };
    futures::pin_mut!(hearing, asking);
    match select(hearing, asking).await {
        Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
    }
}

#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
    #[error("the server did not answer in time")]
    Silent(#[from] tokio::time::error::Elapsed),
}
