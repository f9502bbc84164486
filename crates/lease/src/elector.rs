//! One task that owns every lease operation of a process: it acquires, renews in batches, releases,
//! and trips a tenure the moment it is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{BootTime, Clock, Entropy};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::store::{AcquireOutcome, AcquireRequest, Claim, LeaseError, LeaseStore, RenewOutcome, Takeover};
use crate::{Holder, LeaseRecord, Scope, Tenure, Term};

#[derive(Clone, Debug)]
pub struct ElectorConfig {
    pub holder: Holder,
    pub duration: Duration,
    /// Between the holder's own deadline and the expiry that others see: room for clock rates that
    /// differ and for a write that was started just before the deadline.
    pub margin: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ElectorError {
    #[error(
        "a lease of {duration:?} with a margin of {margin:?} leaves no room: renewals go out every third of \
         the duration, so the margin must be below a third"
    )]
    NoSlack { duration: Duration, margin: Duration },
    #[error("{} holds {} at {} for another {:?}", .0.holder, .0.scope, .0.epoch, .0.remaining)]
    Held(Box<LeaseRecord>),
    #[error(transparent)]
    Store(#[from] LeaseError),
    #[error("the elector has stopped")]
    Stopped,
}

#[derive(Debug)]
pub struct Elector {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
enum Command {
    Acquire {
        scope: Scope,
        takeover: Takeover,
        note: String,
        answer: oneshot::Sender<Result<Tenure, ElectorError>>,
    },
    Release {
        scope: Scope,
        answer: oneshot::Sender<()>,
    },
}

impl Elector {
    pub fn start(
        store: Arc<dyn LeaseStore>,
        config: ElectorConfig,
        clock: Arc<dyn Clock>,
        entropy: Entropy,
    ) -> Result<Self, ElectorError> {
        if config.margin * 3 >= config.duration {
            return Err(ElectorError::NoSlack { duration: config.duration, margin: config.margin });
        }
        let (commands, inbox) = mpsc::channel(16);
        let office = Office { store, config, clock, entropy, held: BTreeMap::new() };
        Ok(Self { commands, task: tokio::spawn(office.run(inbox)) })
    }

    /// One try at a lease. Losers learn who holds it and for how long.
    pub async fn acquire(
        &self,
        scope: &Scope,
        takeover: Takeover,
        note: &str,
    ) -> Result<Tenure, ElectorError> {
        let (answer, result) = oneshot::channel();
        let command = Command::Acquire { scope: scope.clone(), takeover, note: note.to_owned(), answer };
        self.commands.send(command).await.map_err(|_| ElectorError::Stopped)?;
        result.await.map_err(|_| ElectorError::Stopped)?
    }

    /// Trips the tenure and gives the lease back. The caller has stopped its work before.
    pub async fn release(&self, scope: &Scope) {
        let (answer, done) = oneshot::channel();
        if self.commands.send(Command::Release { scope: scope.clone(), answer }).await.is_ok() {
            // The elector answers after its bounded call to the store; a closed channel means it stopped.
            let _ = done.await;
        }
    }

    /// Stops renewing. What is still held runs out by itself.
    pub async fn stop(self) {
        drop(self.commands);
        if let Err(panic) = self.task.await {
            tracing::error!(%panic, "the elector panicked");
        }
    }
}

/// The state behind the elector's task.
struct Office {
    store: Arc<dyn LeaseStore>,
    config: ElectorConfig,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    held: BTreeMap<Scope, Tenure>,
}

impl Office {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        // A moment, not a pause: commands must not push the renewal back.
        let mut renew_at = self.next_renewal();
        loop {
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => break,
                },
                () = tokio::time::sleep_until(renew_at) => {
                    if !self.held.is_empty() {
                        self.renew_until_settled().await;
                    }
                    renew_at = self.next_renewal();
                }
            }
        }
        for tenure in self.held.values() {
            tenure.trip();
        }
    }

    fn next_renewal(&self) -> tokio::time::Instant {
        let pause = self.config.duration / 3 - self.entropy.jitter(self.config.duration / 20);
        tokio::time::Instant::now() + pause
    }

    async fn handle(&mut self, command: Command) {
        match command {
            Command::Acquire { scope, takeover, note, answer } => {
                let outcome = self.acquire(scope, takeover, note).await;
                if let Err(Ok(tenure)) = answer.send(outcome) {
                    // Nobody waits for it any more: do not sit on a lease that no one works under.
                    self.release(tenure.scope().clone()).await;
                }
            }
            Command::Release { scope, answer } => {
                self.release(scope).await;
                let _ = answer.send(()); // the caller may have given up waiting
            }
        }
    }

    async fn acquire(
        &mut self,
        scope: Scope,
        takeover: Takeover,
        note: String,
    ) -> Result<Tenure, ElectorError> {
        let request = AcquireRequest {
            scope,
            holder: self.config.holder.clone(),
            term: Term(self.entropy.uuid(self.clock.now())),
            duration: self.config.duration,
            takeover,
            note,
        };
        let sent = self.clock.boottime();
        let outcome = match self.store.acquire(&request).await {
            // The term makes the call idempotent, so a lost answer is simply asked for again.
            Err(LeaseError::Ambiguous(_)) => self.store.acquire(&request).await?,
            other => other?,
        };
        match outcome {
            AcquireOutcome::Granted(record) => {
                let tenure = Tenure::new(record, self.deadline(sent), Arc::clone(&self.clock));
                self.held.insert(tenure.scope().clone(), tenure.clone());
                Ok(tenure)
            }
            AcquireOutcome::Won(record) | AcquireOutcome::Held(record) => Err(ElectorError::Held(Box::new(record))),
        }
    }

    /// Counted from when the request was sent: an answer that took long extends nothing.
    fn deadline(&self, sent: BootTime) -> BootTime {
        sent + (self.config.duration - self.config.margin)
    }

    /// Renews everything held; repeats quickly while the store does not answer, until deadlines pass.
    async fn renew_until_settled(&mut self) {
        let retry_pause = self.config.duration / 12;
        loop {
            if self.renew_once().await || self.held.is_empty() {
                return;
            }
            tokio::time::sleep(retry_pause + self.entropy.jitter(retry_pause / 2)).await;
            self.drop_expired();
        }
    }

    /// True once every held lease has an answer.
    async fn renew_once(&mut self) -> bool {
        let claims: Vec<Claim> = self.held.values().map(|tenure| self.claim(tenure)).collect();
        let sent = self.clock.boottime();
        let budget = self.config.duration / 3;
        let outcomes = match tokio::time::timeout(budget, self.store.renew(&claims)).await {
            Ok(Ok(outcomes)) => outcomes,
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => format!("no answer within {budget:?}"),
                };
                tracing::warn!(%why, leases = claims.len(), "renewal failed");
                self.held.values().for_each(Tenure::renewal_failed);
                return false;
            }
        };
        for (claim, outcome) in claims.iter().zip(outcomes) {
            match outcome {
                RenewOutcome::Renewed => {
                    let deadline = self.deadline(sent);
                    self.held[&claim.scope].extend(deadline, self.clock.now());
                }
                RenewOutcome::Lost(reason) => {
                    tracing::warn!(scope = %claim.scope, epoch = %claim.epoch, %reason, "lease lost");
                    self.forget(&claim.scope);
                }
            }
        }
        true
    }

    fn drop_expired(&mut self) {
        let expired: Vec<Scope> = self
            .held
            .values()
            .filter(|tenure| tenure.valid_for().is_zero())
            .map(|t| t.scope().clone())
            .collect();
        for scope in expired {
            tracing::warn!(%scope, "lease lost: its own deadline passed without a successful renewal");
            self.forget(&scope);
        }
    }

    fn forget(&mut self, scope: &Scope) {
        if let Some(tenure) = self.held.remove(scope) {
            tenure.trip();
        }
    }

    async fn release(&mut self, scope: Scope) {
        let Some(tenure) = self.held.remove(&scope) else { return };
        tenure.trip();
        let claim = self.claim(&tenure);
        match tokio::time::timeout(self.config.duration / 3, self.store.release(&claim)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%scope, %error, "release failed; the lease runs out by itself"),
            Err(_) => tracing::warn!(%scope, "release took too long; the lease runs out by itself"),
        }
    }

    fn claim(&self, tenure: &Tenure) -> Claim {
        Claim {
            scope: tenure.scope().clone(),
            term: tenure.term(),
            epoch: tenure.epoch(),
            duration: self.config.duration,
        }
    }
}
