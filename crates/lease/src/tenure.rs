//! Live authority: what a holder has in hand between winning and losing.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tenure_clock::{BootTime, Clock};
use tokio_util::sync::CancellationToken;

use crate::{Epoch, LeaseRecord, Scope, Term};

/// One term of one scope, held by this process. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Tenure {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    record: LeaseRecord,
    clock: Arc<dyn Clock>,
    /// Nanoseconds since boot up to which privileged work may start.
    valid_until: AtomicU64,
    /// Milliseconds since 1970 of the latest successful renewal.
    renewed_at: AtomicU64,
    renewal_failures: AtomicU64,
    lost: CancellationToken,
}

/// «I lead» and «my last renewal succeeded» are two facts; this shows both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalStatus {
    pub leading: bool,
    pub last_renewal_succeeded: bool,
    pub renewed_at: Timestamp,
    pub valid_for: Duration,
}

impl Tenure {
    pub(crate) fn new(record: LeaseRecord, valid_until: BootTime, clock: Arc<dyn Clock>) -> Self {
        let renewed_at = AtomicU64::new(record.renewed_at.as_millisecond().max(0) as u64);
        Self {
            inner: Arc::new(Inner {
                record,
                clock,
                valid_until: AtomicU64::new(nanos(valid_until)),
                renewed_at,
                renewal_failures: AtomicU64::new(0),
                lost: CancellationToken::new(),
            }),
        }
    }

    pub fn scope(&self) -> &Scope {
        &self.inner.record.scope
    }

    pub fn epoch(&self) -> Epoch {
        self.inner.record.epoch
    }

    pub fn term(&self) -> Term {
        self.inner.record.term
    }

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

    /// How much longer privileged work may start. Zero once lost.
    pub fn valid_for(&self) -> Duration {
        if self.inner.lost.is_cancelled() {
            return Duration::ZERO;
        }
        let now = nanos(self.inner.clock.boottime());
        Duration::from_nanos(self.inner.valid_until.load(Ordering::Acquire).saturating_sub(now))
    }

    /// Fires once, when the term is lost or given back.
    pub fn lost(&self) -> &CancellationToken {
        &self.inner.lost
    }

    pub fn renewal_status(&self) -> RenewalStatus {
        let renewed_ms = self.inner.renewed_at.load(Ordering::Relaxed) as i64;
        RenewalStatus {
            leading: !self.valid_for().is_zero(),
            last_renewal_succeeded: self.inner.renewal_failures.load(Ordering::Relaxed) == 0,
            renewed_at: Timestamp::from_millisecond(renewed_ms).unwrap_or(Timestamp::UNIX_EPOCH),
            valid_for: self.valid_for(),
        }
    }

    pub(crate) fn extend(&self, valid_until: BootTime, at: Timestamp) {
        self.inner.valid_until.fetch_max(nanos(valid_until), Ordering::AcqRel);
        self.inner.renewed_at.store(at.as_millisecond().max(0) as u64, Ordering::Relaxed);
        self.inner.renewal_failures.store(0, Ordering::Relaxed);
    }

    pub(crate) fn renewal_failed(&self) {
        self.inner.renewal_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn trip(&self) {
        self.inner.lost.cancel();
    }
}

fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}

/// Proof that a live term stands behind a privileged write. Only a [`Tenure`] makes one.
#[derive(Debug)]
pub struct EpochGuard<'a> {
    scope: &'a Scope,
    epoch: Epoch,
    term: Term,
    _alive: PhantomData<&'a Tenure>,
}

impl EpochGuard<'_> {
    pub fn scope(&self) -> &Scope {
        self.scope
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn term(&self) -> Term {
        self.term
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no longer leading {scope}: the term at {epoch} was lost or has run out")]
pub struct NotLeading {
    pub scope: Scope,
    pub epoch: Epoch,
}
