//! The elector: one task that owns every lease operation of a process, and carries out what the
//! [`Protocol`] decides.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tenure_clock::{BootTime, Clock, Entropy};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::metrics::{LeaseMetrics, Line};
use crate::protocol::{
    Campaign, CampaignId, Effect, Event, Failure, Listing, Now, Protocol, Rules, ScopeStatus,
};
use crate::store::{ExpiryClock, FenceStore, Hint, LeaseError, LeaseStore, Lifeline, LossReason};
use crate::tenure::Reins;
use crate::watchdog::{Watchdog, WatchdogKind};
use crate::{Holder, LeaseRecord, Scope, Session, Tenure, Term};

/// What an elector works with.
#[allow(missing_debug_implementations, reason = "made of trait objects")]
pub struct ElectorParts {
    pub leases: Arc<dyn LeaseStore>,
    /// The state database. The same as `leases` where that is a database.
    pub fences: Arc<dyn FenceStore>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub metrics: LeaseMetrics,
}

/// How an elector behaves. [`ElectorConfig::new`] has the defaults, and the README their arithmetic.
#[derive(Clone, Debug)]
pub struct ElectorConfig {
    /// Who this process is in the lease records.
    pub holder: Holder,
    /// How long a lease lasts without a renewal: the price of a crash that nobody tells.
    pub duration: Duration,
    /// Between the holder's own deadline and the expiry that others see: room for clock rates that
    /// differ and for a write that was started just before the deadline.
    pub margin: Duration,
    /// How long a scope that is asked back may take to stop its work. It is renewed meanwhile.
    pub drain_for: Duration,
    /// Take over from a process that is seen to die, before its lease runs out. Right where every effect in
    /// the scope is fenced.
    pub crash_hints: bool,
    /// What losing a term does to the process.
    pub on_loss: LossPolicy,
    /// Who ends authority at its deadline when nobody else does.
    pub watchdog: WatchdogKind,
}

/// What losing a term does to the process. Giving one back in order is no loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// The work stops; the elector stands for the scope again.
    Demote,
    /// The whole process ends at once with this code. If its exit hangs it is killed, before others can see the lease end.
    Exit(i32),
}

/// «Not the master»: what a supervisor sees when a process has lost its lease.
pub const NOT_THE_MASTER: i32 = 73;

impl ElectorConfig {
    /// A tenth of the duration as margin, one duration to drain, demotion on loss, no crash hints.
    pub fn new(holder: Holder, duration: Duration) -> Self {
        Self {
            holder,
            duration,
            margin: duration / 10,
            drain_for: duration,
            crash_hints: false,
            on_loss: LossPolicy::Demote,
            watchdog: WatchdogKind::Thread,
        }
    }

    fn rules(&self, leases: &dyn LeaseStore) -> Result<Rules, ElectorError> {
        let able = leases.capabilities();
        if self.duration < able.minimum_duration {
            let (backend, minimum) = (able.name, able.minimum_duration);
            return Err(ElectorError::TooShort { duration: self.duration, backend, minimum });
        }
        // A renewal goes out after a third of the duration, may take up to a third, and is tried once more after
        // up to an eighth; that second try must have a chance before the holder's own deadline.
        let second_try = self.duration * 2 / 3 + self.duration / 8;
        if second_try >= self.duration.saturating_sub(self.margin) || self.margin.is_zero() {
            return Err(ElectorError::NoSlack { duration: self.duration, margin: self.margin, second_try });
        }
        Ok(Rules {
            holder: self.holder.clone(),
            duration: self.duration,
            margin: self.margin,
            drain_for: self.drain_for,
            crash_hints: self.crash_hints,
            clock_may_step: able.clock == ExpiryClock::Store,
        })
    }
}

/// Why an elector cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ElectorError {
    #[error(
        "a lease of {duration:?} with a margin of {margin:?} leaves no room: a renewal goes out after {:?}, may \
         take up to as long, and is tried again at {second_try:?} at the latest, which must be before {:?} (the \
         duration less the margin, which must not be zero)",
        *duration / 3, duration.saturating_sub(*margin)
    )]
    NoSlack { duration: Duration, margin: Duration, second_try: Duration },
    #[error("a lease of {duration:?} is too short for {backend}, which needs at least {minimum:?}")]
    TooShort { duration: Duration, backend: &'static str, minimum: Duration },
    #[error("the watchdog's thread could not be started")]
    Watchdog(#[source] std::io::Error),
}

/// Stands for scopes, renews what it holds, gives it back in order. Dropping it stops all that at once, and what
/// is held runs out by itself; [`Elector::stop`] is the orderly way. One per process and
/// [`Session`](crate::Session): a lease of its own session that an elector does not work under is one left behind to it.
///
/// Many scopes, shared between members; each of them gets its half:
///
/// ```
/// use std::collections::BTreeMap;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure_clock::{Clock, Entropy, SystemClock};
/// # use tenure_lease::{Campaign, Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, MemoryLeases};
/// # use tenure_lease::{Scope, Session, Tenure};
/// # fn start(store: &Arc<MemoryLeases>, name: &str) -> Elector {
/// #     let (clock, entropy) = (Arc::new(SystemClock), Entropy::from_os());
/// #     let session = Session(entropy.uuid(clock.now()));
/// #     let holder = Holder { name: name.into(), instance: name.into(), session, address: None };
/// #     let (leases, fences, metrics) = (store.clone() as _, store.clone() as _, LeaseMetrics::default());
/// #     let parts = ElectorParts { leases, fences, clock, entropy, metrics };
/// #     Elector::start(parts, ElectorConfig::new(holder, Duration::from_secs(15))).unwrap()
/// # }
/// # #[tokio::main]
/// # async fn main() {
/// # let store = Arc::new(MemoryLeases::new(Arc::new(SystemClock)));
/// let scopes: Vec<Scope> = (0..8).map(|shard| Scope::new(format!("scheduler/shard-{shard:02}"))).collect();
/// let campaign =
///     Campaign { component: "scheduler".into(), scopes, note: String::new(), sole_instance: false };
/// let (alice, bob) = (start(&store, "alice"), start(&store, "bob")); // two processes, really
/// let (mut hers, mut his) = (alice.campaign(campaign.clone()), bob.campaign(campaign));
///
/// let mut held: BTreeMap<Scope, (&str, Tenure)> = BTreeMap::new();
/// let even = |held: &BTreeMap<Scope, (&str, Tenure)>| {
///     held.len() == 8 && held.values().filter(|(who, _)| *who == "alice").count() == 4
/// };
/// while !even(&held) {
///     let (who, tenure) = tokio::select! {
///         tenure = hers.elected() => ("alice", tenure.unwrap()),
///         tenure = his.elected() => ("bob", tenure.unwrap()),
///         // Whoever has too many is asked for one; dropping it gives it back.
///         () = tokio::time::sleep(Duration::from_millis(5)) => {
///             held.retain(|_, (_, tenure)| !tenure.asked_back().is_cancelled());
///             continue;
///         }
///     };
///     held.insert(tenure.scope().clone(), (who, tenure));
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Elector {
    commands: mpsc::UnboundedSender<Command>,
    metrics: LeaseMetrics,
    campaigns: AtomicU64,
    task: JoinHandle<()>,
    /// Fires when the task has ended, however it ended.
    ended: CancellationToken,
    patience: Duration,
}

#[derive(Debug)]
enum Command {
    Stand(CampaignId, Campaign, mpsc::UnboundedSender<Tenure>),
    Withdraw(CampaignId, Option<oneshot::Sender<()>>),
    Stop,
}

/// A standing application for the scopes of one campaign. Dropping it withdraws.
#[derive(Debug)]
pub struct Candidacy {
    id: CampaignId,
    elected: mpsc::UnboundedReceiver<Tenure>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Candidacy {
    /// The next scope that was won. `None` when the elector has stopped.
    pub async fn elected(&mut self) -> Option<Tenure> {
        loop {
            let tenure = self.elected.recv().await?;
            // It may have been asked back or lost while it waited here. Dropping it gives it back.
            if tenure.take_up() {
                return Some(tenure);
            }
        }
    }

    /// Asks back what is held, and returns when all of it has been given back or lost.
    pub async fn withdraw(self) {
        let (done, waiting) = oneshot::channel();
        if self.commands.send(Command::Withdraw(self.id, Some(done))).is_ok() {
            // A closed channel means that the elector has stopped, and nothing is held any more.
            let _ = waiting.await;
        }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        // An elector that has stopped holds nothing.
        let _ = self.commands.send(Command::Withdraw(self.id, None));
    }
}

impl Elector {
    /// Starts the elector's task and its watchdog. Needs a tokio runtime.
    pub fn start(parts: ElectorParts, config: ElectorConfig) -> Result<Self, ElectorError> {
        let rules = config.rules(&*parts.leases)?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let (trips, tripped) = mpsc::unbounded_channel();
        let (metrics, on_loss, margin) = (parts.metrics.clone(), config.on_loss, rules.margin);
        let watching = metrics.clone();
        let on_trip = move |reins: &Reins, reason: LossReason| {
            // First what matters: a full pipe behind the log must not keep it. The elector may have gone; then
            // nobody needs to know.
            let _ = trips.send((reins.scope().clone(), reins.term()));
            told_lost(&watching, reins, &reason, on_loss, margin);
        };
        let watchdog = Watchdog::start(config.watchdog, Arc::clone(&parts.clock), margin, on_trip);
        let watchdog = watchdog.map_err(ElectorError::Watchdog)?;
        let patience = rules.drain_for + rules.call_budget() * 4;
        let now = Now { boot: parts.clock.boottime(), wall: parts.clock.now() };
        let office = Office {
            hints: Some(parts.leases.watch()),
            protocol: Protocol::new(rules.clone(), parts.entropy.clone(), now),
            rules,
            parts,
            on_loss,
            watchdog,
            reins: BTreeMap::new(),
            voters: BTreeMap::new(),
            withdrawals: BTreeMap::new(),
            calls: FuturesUnordered::new(),
            campaigns: BTreeMap::new(),
            lifeline: Tie::Absent,
            peers: vec![],
            stopping: false,
        };
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _end = end;
            office.run(inbox, tripped).await;
        });
        Ok(Self { commands, metrics, campaigns: AtomicU64::new(0), task, ended, patience })
    }

    /// Stands for these scopes until the candidacy is withdrawn.
    pub fn campaign(&self, campaign: Campaign) -> Candidacy {
        let id = CampaignId(self.campaigns.fetch_add(1, Ordering::Relaxed));
        let (voter, elected) = mpsc::unbounded_channel();
        // A stopped elector drops the sender, and the candidacy ends at once.
        let _ = self.commands.send(Command::Stand(id, campaign, voter));
        Candidacy { id, elected, commands: self.commands.clone() }
    }

    /// Where every scope stands, as of now.
    pub fn status(&self) -> Vec<ScopeStatus> {
        let lines = self.metrics.board().lines();
        lines.values().filter(|line| !line.status.is_member_seat).map(|line| line.status.clone()).collect()
    }

    /// Where one scope stands, if this elector stands for it.
    pub fn scope_status(&self, scope: &Scope) -> Option<ScopeStatus> {
        self.metrics.board().lines().get(scope).map(|line| line.status.clone())
    }

    /// Asks everything back, keeps renewing until it is, releases, and ends. Bounded: what is not given back in time
    /// is taken from under its workers.
    pub async fn stop(&self) {
        if self.commands.send(Command::Stop).is_err() {
            return;
        }
        if tokio::time::timeout(self.patience, self.ended.cancelled()).await.is_err() {
            tracing::warn!("the elector took too long to stop; what it holds runs out by itself");
        }
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How long a process that must end waits for its last line to be written.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Before a lifeline that could not be tied is tried again.
const TIE_AGAIN_AFTER: Duration = Duration::from_secs(2);

type Call = Pin<Box<dyn Future<Output = Happening> + Send>>;

/// What wakes the elector.
enum Happening {
    Event(Box<Event>),
    Tied(Result<Option<Box<dyn Lifeline>>, Failure>),
    TieAgain,
}

enum Tie {
    Absent,
    Tying,
    Tied(Box<dyn Lifeline>),
    /// This backend has none.
    Never,
}

/// The state behind the elector's task.
struct Office {
    protocol: Protocol,
    rules: Rules,
    parts: ElectorParts,
    on_loss: LossPolicy,
    watchdog: Watchdog,
    reins: BTreeMap<Scope, Reins>,
    voters: BTreeMap<CampaignId, mpsc::UnboundedSender<Tenure>>,
    withdrawals: BTreeMap<CampaignId, Vec<oneshot::Sender<()>>>,
    calls: FuturesUnordered<Call>,
    /// What is stood for, in case everything has to be begun anew.
    campaigns: BTreeMap<CampaignId, Campaign>,
    hints: Option<broadcast::Receiver<Hint>>,
    lifeline: Tie,
    peers: Vec<Session>,
    stopping: bool,
}

impl Office {
    async fn run(
        mut self,
        mut inbox: mpsc::UnboundedReceiver<Command>,
        mut tripped: mpsc::UnboundedReceiver<(Scope, Term)>,
    ) {
        self.tie();
        loop {
            let due = wait(self.until_due());
            let event = tokio::select! {
                // Answers first: an answer may be what keeps a deadline from passing.
                biased;
                Some(happening) = self.calls.next() => match happening {
                    Happening::Event(event) => *event,
                    Happening::Tied(outcome) => { self.tied(outcome); continue }
                    Happening::TieAgain => { self.tie(); continue }
                },
                Some((scope, term)) = tripped.recv() => Event::Tripped { scope, term },
                command = inbox.recv() => match self.command(command) {
                    Some(event) => event,
                    None => continue,
                },
                hint = next_hint(&mut self.hints) => Event::Hint(hint),
                () = cut(&self.lifeline) => {
                    tracing::warn!("the tie to the lease store was cut; others may take this process for dead");
                    self.lifeline = Tie::Absent;
                    self.tie();
                    Event::Cut
                }
                () = due => Event::Tick,
            };
            if let Event::Resign { scope, .. } = &event
                && let Some(reins) = self.reins.get(scope).filter(|reins| reins.was_fenced())
            {
                self.told_lost(reins, &LossReason::Fenced);
            }
            self.stopping |= matches!(event, Event::Stop);
            let step = AssertUnwindSafe(|| {
                let now = self.now();
                self.protocol.step(now, event)
            });
            let mut effects = catch_unwind(step).unwrap_or_else(|_| self.start_over());
            // Nothing comes after it.
            let stopped = matches!(effects.last(), Some(Effect::Stopped));
            effects.drain(..).for_each(|effect| self.carry_out(effect));
            self.protocol.reuse(effects);
            self.post_changes();
            if stopped {
                return;
            }
        }
    }

    fn told_lost(&self, reins: &Reins, reason: &LossReason) {
        told_lost(&self.parts.metrics, reins, reason, self.on_loss, self.rules.margin);
    }

    fn now(&self) -> Now {
        Now { boot: self.parts.clock.boottime(), wall: self.parts.clock.now() }
    }

    /// A panic in a decision is a defect, but not the end: everything held is let go of, and stood for anew.
    fn start_over(&mut self) -> Vec<Effect> {
        tracing::error!("the elector's decisions have panicked; it starts over");
        for reins in std::mem::take(&mut self.reins).into_values() {
            if reins.trip(LossReason::Confused) {
                self.told_lost(&reins, &LossReason::Confused);
            }
            reins.settle();
        }
        for (id, done) in std::mem::take(&mut self.withdrawals) {
            self.campaigns.remove(&id);
            self.voters.remove(&id);
            drop(done); // nothing of it is held any more, which is what they wait for
        }
        // Answers to what was asked before would be taken for answers to what is asked from now on.
        self.calls = FuturesUnordered::new();
        if !matches!(self.lifeline, Tie::Tied(_) | Tie::Never) {
            self.lifeline = Tie::Absent;
            self.tie();
        }
        let now = self.now();
        self.protocol = Protocol::new(self.rules.clone(), self.parts.entropy.clone(), now);
        if self.stopping {
            return vec![Effect::Stopped];
        }
        let campaigns = self.campaigns.clone();
        campaigns
            .into_iter()
            .flat_map(|(id, campaign)| self.protocol.step(now, Event::Stand(id, campaign)))
            .collect()
    }

    fn until_due(&self) -> Option<Duration> {
        let now = self.parts.clock.boottime();
        // At least a moment, so that a mistake here costs speed and not a core.
        self.protocol.wake_at(now).map(|at| at.saturating_since(now).max(Duration::from_millis(1)))
    }

    fn command(&mut self, command: Option<Command>) -> Option<Event> {
        match command {
            Some(Command::Stand(id, campaign, voter)) => {
                self.voters.insert(id, voter);
                campaign.scopes.iter().for_each(|scope| self.parts.metrics.stands_for(scope));
                self.campaigns.insert(id, campaign.clone());
                Some(Event::Stand(id, campaign))
            }
            Some(Command::Withdraw(id, done)) => {
                if !self.voters.contains_key(&id) {
                    return None; // withdrawn before: dropping `done` says so
                }
                self.withdrawals.entry(id).or_default().extend(done);
                Some(Event::Withdraw(id))
            }
            // Nobody is left who could want anything.
            Some(Command::Stop) | None => Some(Event::Stop),
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let (leases, fences) = (Arc::clone(&self.parts.leases), Arc::clone(&self.parts.fences));
        let clock = Arc::clone(&self.parts.clock);
        let budget = self.rules.call_budget();
        match effect {
            Effect::Acquire(request) => {
                self.call(async move {
                    let (scope, term, sent) = (request.scope.clone(), request.term, clock.boottime());
                    let outcome = bounded(budget, async move { leases.acquire(&request).await }).await;
                    Event::Acquired { scope, term, sent, outcome }
                });
            }
            Effect::Install { scope, term, floor } => self.call(async move {
                let asked = scope.clone();
                let work = async move { fences.install_fence(&asked, term, floor).await };
                Event::Installed { scope, term, outcome: bounded(budget, work).await }
            }),
            Effect::Renew(claims) => {
                let metrics = self.parts.metrics.clone();
                self.call(async move {
                    let sent = clock.boottime();
                    let outcome = bounded(budget, async move { leases.renew(&claims).await }).await;
                    metrics.renewal_took(clock.boottime().saturating_since(sent));
                    Event::Renewed { sent, outcome }
                });
            }
            Effect::Release(claim) => self.call(async move {
                let (scope, term) = (claim.scope.clone(), claim.term);
                if let Err(failure) = bounded(budget, async move { leases.release(&claim).await }).await {
                    tracing::warn!(%scope, why = failure.text(), "release failed; the lease runs out by itself");
                }
                Event::Released { scope, term }
            }),
            Effect::Look(scope) => self.call(async move {
                let asked = scope.clone();
                let outcome = bounded(budget, async move { leases.find_lease(&asked).await }).await;
                Event::Looked { scope, outcome }
            }),
            Effect::List { campaign, members_under, leases_under } => self.call(async move {
                let work = async move {
                    let members = leases.list_leases(&members_under).await?;
                    let leases = match leases_under {
                        Some(under) => Some(leases.list_leases(&under).await?),
                        None => None,
                    };
                    Ok(Listing { members, leases })
                };
                Event::Listed { campaign, outcome: bounded(budget, work).await }
            }),
            Effect::Elect { campaign, record, valid_until } => self.elect(campaign, record, valid_until),
            Effect::Extend { scope, valid_until } => {
                if let Some(reins) = self.reins.get(&scope) {
                    reins.extend(valid_until);
                }
            }
            Effect::RenewalFailed { scopes, why } => {
                tracing::warn!(%why, leases = scopes.len(), "renewal failed");
                for scope in &scopes {
                    self.parts.metrics.renewal_failed(scope);
                    if let Some(reins) = self.reins.get(scope) {
                        reins.renewal_failed();
                    }
                }
            }
            Effect::AskBack(scope) => {
                if let Some(reins) = self.reins.get(&scope) {
                    tracing::info!(%scope, epoch = %reins.epoch(), "asked back");
                    reins.ask_back();
                }
            }
            Effect::Trip { scope, reason } => {
                if let Some(reins) = self.reins.get(&scope)
                    && reins.trip(reason.clone())
                {
                    self.told_lost(reins, &reason);
                }
            }
            Effect::End(scope) => {
                if let Some(reins) = self.reins.get(&scope) {
                    reins.end();
                }
            }
            Effect::Settle { scope, term } => {
                if let Some(reins) = self.reins.get(&scope).filter(|reins| reins.term() == term) {
                    reins.settle();
                    self.reins.remove(&scope);
                }
            }
            Effect::WatchPeers(peers) => {
                self.peers = peers;
                if let Tie::Tied(lifeline) = &self.lifeline {
                    lifeline.watch_peers(&self.peers);
                }
            }
            Effect::Withdrawn(id) => {
                self.voters.remove(&id);
                self.campaigns.remove(&id);
                for done in self.withdrawals.remove(&id).into_iter().flatten() {
                    let _ = done.send(()); // the caller may have given up waiting
                }
            }
            Effect::Stopped => {}
        }
    }

    fn call(&mut self, work: impl Future<Output = Event> + Send + 'static) {
        self.calls.push(Box::pin(async move { Happening::Event(Box::new(work.await)) }));
    }

    fn elect(&mut self, campaign: CampaignId, record: LeaseRecord, valid_until: BootTime) {
        let (scope, term, epoch) = (record.scope.clone(), record.term, record.epoch);
        tracing::info!(%scope, %epoch, succession = %record.succession, "leading");
        self.parts.metrics.won(&scope, record.succession);
        let (tenure, reins) = Tenure::begin(record, valid_until, Arc::clone(&self.parts.clock));
        self.watchdog.watch(reins.clone());
        self.reins.insert(scope.clone(), reins.clone());
        self.call(async move {
            reins.resigned().await;
            Event::Resign { scope, term }
        });
        if let Some(voter) = self.voters.get(&campaign) {
            // A candidacy that nobody listens to drops the tenure, which resigns.
            let _ = voter.send(tenure);
        }
    }

    fn post_changes(&mut self) {
        if !self.protocol.has_changes() {
            return;
        }
        let mut lines = self.parts.metrics.board().lines();
        self.protocol.tell_changes(|scope, news| {
            let Some(news) = news else {
                lines.remove(scope);
                return;
            };
            let reins = self.reins.get(scope);
            match lines.get_mut(scope) {
                Some(line) => {
                    news.write_over(&mut line.status);
                    if line.reins.as_ref().map(Reins::term) != reins.map(Reins::term) {
                        line.reins = reins.cloned();
                    }
                }
                None => {
                    lines.insert(scope.clone(), Line { status: news.status(), reins: reins.cloned() });
                }
            }
        });
    }

    // ── The lifeline ────────────────────────────────────────────────────────────────────────────────────

    fn tie(&mut self) {
        if !matches!(self.lifeline, Tie::Absent) || !self.rules.crash_hints {
            return;
        }
        self.lifeline = Tie::Tying;
        let (leases, session) = (Arc::clone(&self.parts.leases), self.rules.holder.session);
        let work = async move { leases.attach(session).await };
        let budget = self.rules.call_budget();
        self.calls.push(Box::pin(async move { Happening::Tied(bounded(budget, work).await) }));
    }

    fn tied(&mut self, outcome: Result<Option<Box<dyn Lifeline>>, Failure>) {
        let failure = match outcome {
            Ok(Some(lifeline)) => {
                match lifeline.working() {
                    Ok(()) => tracing::debug!("crash hints are on"),
                    Err(why) => {
                        tracing::warn!(%why, "crash hints are off; a crash is noticed when its lease runs out")
                    }
                }
                lifeline.watch_peers(&self.peers);
                self.lifeline = Tie::Tied(lifeline);
                return;
            }
            Ok(None) => {
                self.lifeline = Tie::Never;
                return;
            }
            Err(failure) => failure,
        };
        tracing::warn!(error = failure.text(), "no tie to the lease store; trying again");
        self.lifeline = Tie::Absent;
        self.calls.push(Box::pin(async {
            tokio::time::sleep(TIE_AGAIN_AFTER).await;
            Happening::TieAgain
        }));
    }
}

impl Drop for Office {
    /// However the task ends, no authority outlives it.
    fn drop(&mut self) {
        self.reins.values().for_each(Reins::settle);
    }
}

/// Logs and counts a loss, and ends the process if that is the policy: within the margin, after which others may lead.
fn told_lost(
    metrics: &LeaseMetrics,
    reins: &Reins,
    reason: &LossReason,
    on_loss: LossPolicy,
    margin: Duration,
) {
    let (scope, epoch) = (reins.scope(), reins.epoch());
    metrics.lost(scope, reason);
    match on_loss {
        LossPolicy::Demote => tracing::warn!(%scope, %epoch, %reason, "lease lost"),
        LossPolicy::Exit(code) => {
            kill_after(margin * 3 / 4);
            let (scope, reason) = (scope.clone(), reason.clone());
            let (said, waiting) = std::sync::mpsc::channel();
            let speaking = std::thread::Builder::new().spawn(move || {
                tracing::error!(%scope, %epoch, %reason, code, "lease lost; this process ends now");
                // The process may be over by then.
                let _ = said.send(());
            });
            if speaking.is_ok() {
                // Whoever reads the log gets this long; the exit does not depend on it.
                let _ = waiting.recv_timeout(LAST_WORDS.min(margin / 4));
            }
            std::process::exit(code);
        }
    }
}

/// An exit still does what is left for the end of a process: it writes the rest of standard output, and calls what C code has
/// registered. Any of that may hang.
fn kill_after(patience: Duration) {
    let kill = move || {
        std::thread::sleep(patience);
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        killed.expect("a process may kill itself");
    };
    // Without a thread there is still the exit.
    let _ = std::thread::Builder::new().spawn(kill);
}

async fn next_hint(hints: &mut Option<broadcast::Receiver<Hint>>) -> Hint {
    let Some(receiver) = hints else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(hint) => hint,
        Err(RecvError::Lagged(_)) => Hint::Resync,
        Err(RecvError::Closed) => {
            *hints = None;
            std::future::pending().await
        }
    }
}

async fn wait(nap: Option<Duration>) {
    match nap {
        Some(nap) => tokio::time::sleep(nap).await,
        None => std::future::pending().await,
    }
}

async fn cut(tie: &Tie) {
    match tie {
        Tie::Tied(lifeline) => lifeline.cut().cancelled().await,
        Tie::Absent | Tie::Tying | Tie::Never => std::future::pending().await,
    }
}

/// A task of its own, so that a panic in a backend is a failed call and not the end of the elector.
async fn bounded<T: Send + 'static>(
    budget: Duration,
    work: impl Future<Output = Result<T, LeaseError>> + Send + 'static,
) -> Result<T, Failure> {
    let mut task = tokio::spawn(work);
    match tokio::time::timeout(budget, &mut task).await {
        Ok(Ok(outcome)) => outcome.map_err(Failure::from),
        Ok(Err(panic)) => Err(Failure::Ambiguous(format!("the call to the lease store panicked: {panic}"))),
        Err(_) => {
            task.abort();
            Err(Failure::Ambiguous(format!("no answer from the lease store within {budget:?}")))
        }
    }
}
