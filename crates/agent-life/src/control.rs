//! The way to the control plane, and the patience to be heard.

use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{BootTime, Clock, Entropy};
use tenure_model::{Ack, Report};
use tokio_util::sync::CancellationToken;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How an agent reaches the control plane. A call may take long, and may be dropped before it answers: its
/// outcome is then unknown, and the agent says the same thing again or something that settles it.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    async fn submit(&self, report: Report) -> Ack;

    /// When the latest word was said that the control plane has certainly heard. In one process with it: now.
    fn contact(&self, clock: &dyn Clock) -> Option<BootTime> {
        Some(clock.boottime())
    }
}

/// Sends until the answer is not `Retry`. `None`: the agent is shutting down.
pub async fn submit_until_heard(
    control: &dyn ControlPlane,
    report: Report,
    entropy: &Entropy,
    shutdown: &CancellationToken,
) -> Option<Ack> {
    let mut backoff = Backoff::new(entropy);
    let heard = async {
        loop {
            match control.submit(report.clone()).await {
                Ack::Retry => backoff.pause().await,
                ack => return ack,
            }
        }
    };
    shutdown.run_until_cancelled(heard).await
}

/// Pauses that double up to a bound, each shortened by chance so that many agents do not knock together.
#[derive(Debug)]
pub struct Backoff<'a> {
    entropy: &'a Entropy,
    next: Duration,
    longest: Duration,
}

impl<'a> Backoff<'a> {
    pub fn new(entropy: &'a Entropy) -> Self {
        Self::up_to(LONGEST_PAUSE, entropy)
    }

    pub fn up_to(longest: Duration, entropy: &'a Entropy) -> Self {
        Self { entropy, next: FIRST_PAUSE * 2, longest }
    }

    pub async fn pause(&mut self) {
        let least = self.next / 2;
        tokio::time::sleep(least + self.entropy.jitter(least)).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
