//! Live authority: what a holder has in hand between winning and losing.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{BootTime, Clock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::store::LossReason;
use crate::{Epoch, LeaseRecord, Scope, Term};

/// One term of one scope, held by this process. Cloning shares it; dropping the last clone resigns.
///
/// A worker's loop asks for a guard before every privileged write, stops when it is asked back, and is dropped where it
/// stands when the term is lost:
///
/// ```
/// # use tenure_lease::{EpochGuard, NotLeading, Tenure};
/// # async fn write(_: &EpochGuard<'_>) {}
/// async fn work(tenure: Tenure) -> Result<(), NotLeading> {
///     let passes = async {
///         while !tenure.asked_back().is_cancelled() {
///             let guard = tenure.guard()?;
///             write(&guard).await; // the store compares the epoch inside its transaction
///         }
///         Ok(())
///     };
///     tenure.while_leading(passes).await??;
///     tenure.resign().await; // the work has stopped; the successor acts within milliseconds
///     Ok(())
/// }
/// ```
///
/// Only the elector makes one:
///
/// ```compile_fail,E0624
/// # use std::sync::Arc;
/// # use tenure_clock::{BootTime, SystemClock};
/// fn forge(record: tenure_lease::LeaseRecord, until: BootTime) -> tenure_lease::Tenure {
///     tenure_lease::Tenure::begin(record, until, Arc::new(SystemClock)).0
/// }
/// ```
///
/// ```compile_fail,E0451
/// fn forge() -> tenure_lease::Tenure {
///     tenure_lease::Tenure { inner: unreachable!(), _resigns: unreachable!() }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Tenure {
    inner: Arc<Inner>,
    _resigns: Arc<ResignOnDrop>,
}

/// The elector's own grip on a term: it can end it, and does not keep it alive.
#[derive(Clone, Debug)]
pub(crate) struct Reins {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct ResignOnDrop(CancellationToken);

impl Drop for ResignOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[derive(Debug)]
struct Inner {
    record: LeaseRecord,
    clock: Arc<dyn Clock>,
    /// Nanoseconds since boot up to which privileged work may start.
    valid_until: AtomicU64,
    /// The same, for those who wait for it to move.
    renewals: watch::Sender<BootTime>,
    /// Milliseconds since 1970 of the latest successful renewal.
    renewed_at: AtomicI64,
    last_renewal_succeeded: AtomicBool,
    lost: CancellationToken,
    why: OnceLock<LossReason>,
    /// Set once: by the worker that takes the term up, or by the elector that takes it back before.
    offer: OnceLock<Offer>,
    asked_back: CancellationToken,
    resigned: CancellationToken,
    settled: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    TakenUp,
    TakenBack,
}

/// «I lead» and «my last renewal succeeded» are two facts; this shows both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalStatus {
    /// Privileged work may start.
    pub leading: bool,
    /// If not, and it leads, its deadline is coming closer.
    pub last_renewal_succeeded: bool,
    /// When the latest successful renewal was answered, or the term began.
    pub renewed_at: Timestamp,
    /// Until the deadline.
    pub valid_for: Duration,
}

impl Tenure {
    pub(crate) fn begin(record: LeaseRecord, valid_until: BootTime, clock: Arc<dyn Clock>) -> (Self, Reins) {
        let renewed_at = AtomicI64::new(record.renewed_at.as_millisecond());
        let resigned = CancellationToken::new();
        let inner = Arc::new(Inner {
            record,
            clock,
            valid_until: AtomicU64::new(nanos(valid_until)),
            renewals: watch::Sender::new(valid_until),
            renewed_at,
            last_renewal_succeeded: AtomicBool::new(true),
            lost: CancellationToken::new(),
            why: OnceLock::new(),
            offer: OnceLock::new(),
            asked_back: CancellationToken::new(),
            resigned: resigned.clone(),
            settled: CancellationToken::new(),
        });
        let reins = Reins { inner: Arc::clone(&inner) };
        (Self { inner, _resigns: Arc::new(ResignOnDrop(resigned)) }, reins)
    }

    /// True if work may begin under it: it has neither been taken back nor lost while nobody was listening.
    pub(crate) fn take_up(&self) -> bool {
        self.inner.offer.set(Offer::TakenUp).is_ok() && !self.inner.lost.is_cancelled()
    }

    /// What this term is for.
    pub fn scope(&self) -> &Scope {
        &self.inner.record.scope
    }

    /// The number that fences it.
    pub fn epoch(&self) -> Epoch {
        self.inner.record.epoch
    }

    /// Its own name, which no other holding of the scope ever has.
    pub fn term(&self) -> Term {
        self.inner.record.term
    }

    /// As it was when the term began.
    pub fn record(&self) -> &LeaseRecord {
        &self.inner.record
    }

    /// Permission for one privileged action, if it may start now.
    pub fn guard(&self) -> Result<EpochGuard<'_>, NotLeading> {
        if self.valid_for().is_zero() {
            return Err(NotLeading { scope: self.scope().clone(), epoch: self.epoch() });
        }
        Ok(EpochGuard { scope: self.scope(), epoch: self.epoch(), term: self.term(), _alive: PhantomData })
    }

    /// Runs `work` for as long as the term lasts, and drops it the moment the term is lost.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Result<T, NotLeading> {
        let done = self.inner.lost.run_until_cancelled(work).await;
        done.ok_or_else(|| NotLeading { scope: self.scope().clone(), epoch: self.epoch() })
    }

    /// How much longer privileged work may start. Zero once lost.
    pub fn valid_for(&self) -> Duration {
        self.inner.valid_for()
    }

    /// The holder's own deadline, as of the latest renewal.
    pub fn valid_until(&self) -> BootTime {
        self.inner.valid_until()
    }

    /// The deadline, each time it moves.
    pub fn renewals(&self) -> watch::Receiver<BootTime> {
        self.inner.renewals.subscribe()
    }

    /// Fires once, when the term is lost or has been given back.
    pub fn lost(&self) -> &CancellationToken {
        &self.inner.lost
    }

    /// Why it was lost; `None` while it lasts, and when it was given back in order.
    pub fn why_lost(&self) -> Option<&LossReason> {
        self.inner.why.get()
    }

    /// Fires when this scope should go to somebody else: finish what is in hand, then [`resign`](Self::resign).
    /// The lease is still renewed meanwhile, for a bounded time.
    pub fn asked_back(&self) -> &CancellationToken {
        &self.inner.asked_back
    }

    /// Ends the term in order. The caller has stopped its work before; the scope is free when this returns
    /// (or runs out by itself, when the store could not be told in time).
    pub async fn resign(&self) {
        self.inner.resigned.cancel();
        self.inner.settled.cancelled().await;
    }

    /// A write under this term was refused by the fence, whatever the lease says: somebody else has been told to
    /// write. Ends the authority at once, and gives back what there is to give back.
    pub fn fenced(&self) {
        if !self.inner.lost.is_cancelled() {
            // Another thread may be faster; then its reason stands.
            let _ = self.inner.why.set(LossReason::Fenced);
        }
        self.inner.lost.cancel();
        self.inner.resigned.cancel();
    }

    /// Whether it leads, and whether its latest renewal has succeeded.
    pub fn renewal_status(&self) -> RenewalStatus {
        self.inner.renewal_status()
    }
}

impl Inner {
    fn valid_until(&self) -> BootTime {
        BootTime::since_boot(Duration::from_nanos(self.valid_until.load(Ordering::Acquire)))
    }

    /// Zero once lost.
    fn valid_for(&self) -> Duration {
        if self.lost.is_cancelled() {
            return Duration::ZERO;
        }
        self.valid_until().saturating_since(self.clock.boottime())
    }

    fn renewal_status(&self) -> RenewalStatus {
        let renewed_at = self.renewed_at.load(Ordering::Relaxed);
        RenewalStatus {
            leading: !self.valid_for().is_zero(),
            last_renewal_succeeded: self.last_renewal_succeeded.load(Ordering::Relaxed),
            renewed_at: Timestamp::from_millisecond(renewed_at).unwrap_or(Timestamp::UNIX_EPOCH),
            valid_for: self.valid_for(),
        }
    }
}

impl Reins {
    pub(crate) fn scope(&self) -> &Scope {
        &self.inner.record.scope
    }

    pub(crate) fn term(&self) -> Term {
        self.inner.record.term
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.inner.record.epoch
    }

    pub(crate) fn valid_for(&self) -> Duration {
        self.inner.valid_for()
    }

    pub(crate) fn renewal_status(&self) -> RenewalStatus {
        self.inner.renewal_status()
    }

    /// The holder itself has found out that it must not write.
    pub(crate) fn was_fenced(&self) -> bool {
        self.inner.why.get() == Some(&LossReason::Fenced)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.inner.lost.is_cancelled()
    }

    pub(crate) fn extend(&self, valid_until: BootTime) {
        self.inner.valid_until.fetch_max(nanos(valid_until), Ordering::AcqRel);
        self.inner.renewed_at.store(self.inner.clock.now().as_millisecond(), Ordering::Relaxed);
        self.inner.last_renewal_succeeded.store(true, Ordering::Relaxed);
        self.inner.renewals.send_replace(self.inner.valid_until());
    }

    pub(crate) fn renewal_failed(&self) {
        self.inner.last_renewal_succeeded.store(false, Ordering::Relaxed);
    }

    /// A term that nobody has taken up yet is resigned on the spot: its work must not begin any more.
    pub(crate) fn ask_back(&self) {
        self.inner.asked_back.cancel();
        if self.inner.offer.set(Offer::TakenBack).is_ok() {
            self.inner.resigned.cancel();
        }
    }

    /// Returns when the holder has resigned, or nothing more happens to the term.
    pub(crate) async fn resigned(&self) {
        tokio::select! {
            biased;
            () = self.inner.resigned.cancelled() => {}
            () = self.inner.settled.cancelled() => {}
        }
    }

    /// Ends the authority because something went wrong. True for the call that did it.
    pub(crate) fn trip(&self, why: LossReason) -> bool {
        let first = !self.inner.lost.is_cancelled() && self.inner.why.set(why).is_ok();
        self.inner.lost.cancel();
        first
    }

    /// Ends the authority in order.
    pub(crate) fn end(&self) {
        self.inner.lost.cancel();
    }

    /// Nothing more happens to this term.
    pub(crate) fn settle(&self) {
        self.inner.lost.cancel();
        self.inner.settled.cancel();
    }
}

fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}

/// Proof that a live term stands behind a privileged write. Only a [`Tenure`] makes one.
///
/// It cannot be made up:
///
/// ```compile_fail,E0451
/// # use tenure_lease::{Epoch, EpochGuard, Scope, Term};
/// fn forge(scope: &Scope, term: Term) -> EpochGuard<'_> {
///     EpochGuard { scope, epoch: Epoch(7), term, _alive: std::marker::PhantomData }
/// }
/// ```
///
/// nor copied, to be used when the original would no longer be given out:
///
/// ```compile_fail,E0599
/// fn copy<'a>(guard: tenure_lease::EpochGuard<'a>) -> (tenure_lease::EpochGuard<'a>, tenure_lease::EpochGuard<'a>) {
///     (guard.clone(), guard)
/// }
/// ```
///
/// nor kept beyond its tenure:
///
/// ```compile_fail,E0505
/// fn keep(tenure: tenure_lease::Tenure) -> Result<(), tenure_lease::NotLeading> {
///     let guard = tenure.guard()?;
///     drop(tenure);
///     println!("{}", guard.epoch());
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct EpochGuard<'a> {
    scope: &'a Scope,
    epoch: Epoch,
    term: Term,
    _alive: PhantomData<&'a Tenure>,
}

impl EpochGuard<'_> {
    /// What may be acted in.
    pub fn scope(&self) -> &Scope {
        self.scope
    }

    /// What the write must carry, for the fence to compare.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Compared as well: an epoch that was lost with a database's latest writes may be minted again.
    pub fn term(&self) -> Term {
        self.term
    }
}

/// The term was lost, given back, or has passed its deadline: nothing privileged may start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no longer leading {scope}: the term at {epoch} was lost or has run out")]
pub struct NotLeading {
    pub scope: Scope,
    pub epoch: Epoch,
}
