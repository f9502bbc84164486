//! One shard in this process, from one term to the next: reads it, works, starts over when memory cannot be trusted,
//! and stops the moment the term is lost. A database that is away is waited out; nothing here gives up for good.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::BootTime;
use tenure_lease::{LeaseMetrics, Scope, Tenure, with_causes};
use tenure_model::ShardId;
use tenure_store::StoreError;
use tokio::sync::watch;

use crate::desk::ReportDesk;
use crate::inbox::ReportInbox;
use crate::muster::Muster;
use crate::owner::{Carried, Deps, OwnerConfig, ShardOwner};
use crate::pass::PassError;
use crate::scheduler::OwnerStatus;

pub(crate) struct Office {
    pub deps: Deps,
    pub shard: ShardId,
    pub scope: Scope,
    pub desk: ReportDesk,
    pub muster: Arc<Muster>,
    pub lease_metrics: LeaseMetrics,
    pub status: watch::Sender<OwnerStatus>,
    pub changes: watch::Sender<u64>,
    /// One term at a time: the last one's work has ended before the next one's begins.
    pub in_office: tokio::sync::Mutex<()>,
    /// Terms in a row whose work panicked.
    pub panics: AtomicU32,
    /// Terms in a row that ended in doubt about a commit.
    pub doubts: AtomicU32,
    /// When the database last answered this shard's owner.
    pub answered: Mutex<BootTime>,
    /// Terms in a row that ended because it did not.
    pub cut_offs: AtomicU32,
    /// Told then: the whole process had better stand back.
    pub stranded: watch::Sender<()>,
}

/// Why an owner stopped working.
enum Ended {
    /// This process stops, or the shard should go to another one.
    AskedBack,
    Lost,
    /// The lease is kept somewhere else than the state: it can be renewed while no work can be done. Others may be better off.
    CutOff,
    /// Memory can no longer be trusted: read everything again, under the same term.
    Reload,
    /// The answer to a commit was lost, and the commit itself may still be under way: whatever is read under this term
    /// may be older than it, and room that it gives away or takes would be used twice. Only the next term's fence has
    /// waited for it, or keeps it out.
    InDoubt,
}

const SHORTEST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

impl Office {
    /// Works under one term to its end.
    pub async fn serve(&self, tenure: Tenure) {
        let _in_office = self.in_office.lock().await;
        let setbacks = self.panics.load(Ordering::Relaxed) + self.doubts.load(Ordering::Relaxed);
        if setbacks > 0 {
            let pause = SHORTEST_BACKOFF * 2u32.saturating_pow(setbacks.min(16));
            self.pause(pause.min(LONGEST_BACKOFF), &tenure).await;
        }
        self.status.send_modify(|status| status.tenure = Some(tenure.clone()));
        self.answered();
        // Whatever is under way when the term is lost is dropped with it: the fence has the last word on commits.
        let ended = tokio::select! {
            biased;
            () = tenure.lost().cancelled() => Ended::Lost,
            ended = self.lead(&tenure) => ended,
            () = self.cut_off() => Ended::CutOff,
        };
        let reason = match ended {
            Ended::Lost => {
                tracing::warn!(scope = %self.scope, epoch = %tenure.epoch(), "no longer leading");
                "leadership was lost"
            }
            Ended::CutOff => {
                tracing::warn!(scope = %self.scope, "the database does not answer; giving the shard back");
                self.cut_offs.fetch_add(1, Ordering::Relaxed);
                self.stranded.send_replace(());
                "the database does not answer"
            }
            Ended::InDoubt => {
                self.doubts.fetch_add(1, Ordering::Relaxed);
                "the answer to a commit was lost"
            }
            Ended::AskedBack | Ended::Reload => "the shard was given back",
        };
        self.deps.metrics.forget_shard(self.shard);
        self.status.send_modify(|status| *status = OwnerStatus::idle(self.scope.clone(), reason));
        tenure.resign().await;
    }

    /// The work of a term panicked: a defect, but not the end.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.deps.metrics.loop_panics.inc();
        self.deps.metrics.forget_shard(self.shard);
        // Nobody works under the term any more: with the last clone of it goes the lease.
        let reason = "the scheduler's loop panicked";
        self.status.send_modify(|status| *status = OwnerStatus::idle(self.scope.clone(), reason));
    }

    fn answered(&self) {
        *self.answered.lock().expect("a plain value") = self.deps.clock.boottime();
    }

    /// Resolves when the database has not answered for too long, however often it was asked.
    async fn cut_off(&self) {
        let OwnerConfig { yield_after, tick, .. } = self.deps.config;
        // A shard that takes long to read must not go round for ever: each time it gets twice as long.
        let times = self.cut_offs.load(Ordering::Relaxed).min(4);
        let patience = yield_after.max(tick * 3) * 2u32.pow(times);
        loop {
            let answered = *self.answered.lock().expect("a plain value");
            let silent = self.deps.clock.boottime().saturating_since(answered);
            match patience.checked_sub(silent) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                _ => return,
            }
        }
    }

    /// Reads the shard anew as often as needed.
    async fn lead(&self, tenure: &Tenure) -> Ended {
        let mut backoff = SHORTEST_BACKOFF;
        let cautious = self.doubts.load(Ordering::Relaxed) > 0;
        let mut carried = Carried { orphans_sought: self.deps.clock.boottime(), cautious };
        loop {
            let (inbox, deps) = (ReportInbox::default(), self.deps.clone());
            let owner = ShardOwner::take_over(deps, inbox.clone(), self.shard, tenure.clone(), carried).await;
            let ended = match owner {
                Ok(mut owner) => {
                    self.answered();
                    let _route = self.desk.route(self.scope.as_str(), inbox);
                    self.muster.call();
                    let ended = self.work(&mut owner, tenure, &mut backoff).await;
                    carried = Carried { cautious: true, ..owner.carried };
                    ended
                }
                Err(error) => {
                    self.not_ready(&with_causes(&error));
                    Ended::Reload
                }
            };
            match ended {
                Ended::Reload if !tenure.asked_back().is_cancelled() => {
                    self.pause(backoff, tenure).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                ended => return ended,
            }
        }
    }

    async fn work(&self, owner: &mut ShardOwner, tenure: &Tenure, backoff: &mut Duration) -> Ended {
        let mut wakes = self.deps.store.wakes(self.shard);
        let mut freed = self.deps.dispatch.freed();
        let mut look = true;
        let mut next_look = self.deps.clock.boottime() + self.deps.config.tick;
        loop {
            // Intents that were committed before a report was made are seen before it.
            look |= wakes.has_changed().unwrap_or(false);
            wakes.mark_unchanged();
            let again = match owner.pass(look).await {
                Ok(report) => {
                    if report.whole {
                        *backoff = SHORTEST_BACKOFF;
                        self.doubts.store(0, Ordering::Relaxed);
                    }
                    self.leading(owner, look);
                    if report.committed {
                        self.changes.send_modify(|count| *count += 1);
                    }
                    report.again
                }
                Err(PassError::NotLeading(_)) => return Ended::Lost,
                Err(PassError::Store(StoreError::Fenced { .. })) => {
                    self.lease_metrics.fenced_write(&self.scope);
                    tenure.fenced();
                    return Ended::Lost;
                }
                Err(PassError::Store(error)) => {
                    self.deps.metrics.failed_passes.inc();
                    let in_doubt = matches!(error, StoreError::Unknown { .. });
                    let error = with_causes(&error);
                    let what = if in_doubt { "in doubt; ending the term" } else { "reading the shard again" };
                    tracing::warn!(scope = %self.scope, error, "pass failed; {what}");
                    self.not_ready(&error);
                    return if in_doubt { Ended::InDoubt } else { Ended::Reload };
                }
            };
            if look {
                next_look = self.deps.clock.boottime() + self.deps.config.tick;
            }
            look = again;
            if tenure.asked_back().is_cancelled() {
                return Ended::AskedBack;
            }
            if again {
                continue;
            }
            let until_look = next_look.saturating_since(self.deps.clock.boottime());
            tokio::select! {
                biased;
                () = tenure.asked_back().cancelled() => return Ended::AskedBack,
                () = owner.inbox.arrived() => {}
                changed = wakes.changed() => look = changed.is_ok(),
                () = self.deps.roster.changed_since(owner.roll.number) => look = true,
                changed = freed.changed(), if owner.ready.has_work() => {
                    changed.expect("the pool outlives its owners");
                }
                () = tokio::time::sleep(self.until_timer(owner).min(until_look)) => {}
            }
            look |= next_look <= self.deps.clock.boottime();
        }
    }

    /// Until time itself gives the owner something to do.
    fn until_timer(&self, owner: &ShardOwner) -> Duration {
        let (now, boottime) = (self.deps.clock.now(), self.deps.clock.boottime());
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let timer = owner.next_wake().map(until);
        let trade = owner.trades.next().map(|at| at.saturating_since(boottime));
        timer.into_iter().chain(trade).min().unwrap_or(Duration::MAX)
    }

    fn leading(&self, owner: &ShardOwner, look: bool) {
        self.panics.store(0, Ordering::Relaxed);
        self.cut_offs.store(0, Ordering::Relaxed);
        self.answered();
        self.status.send_modify(|status| {
            status.ready = true;
            status.reason = String::new();
            status.active_runs = owner.runs.len();
            status.last_pass_at = Some(self.deps.clock.now());
            if look {
                status.waiting = owner.waiting();
            }
        });
    }

    fn not_ready(&self, reason: &str) {
        self.status.send_modify(|status| {
            status.ready = false;
            status.reason = reason.to_owned();
        });
    }

    async fn pause(&self, pause: Duration, tenure: &Tenure) {
        let pause = pause + self.deps.entropy.jitter(pause / 4);
        tokio::select! {
            biased;
            () = tenure.asked_back().cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
