//! What operators see of leases, for every scope that this process stands for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tenure_clock::Clock;

use crate::protocol::{Phase, ScopeStatus};
use crate::store::LossReason;
use crate::tenure::Reins;
use crate::{Scope, Succession};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabel {
    scope: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HolderLabel {
    scope: String,
    holder: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    scope: String,
    reason: String,
}

/// Counters, and a board of the current state that is read when somebody asks. Cloning shares it.
#[derive(Clone, Debug)]
pub struct LeaseMetrics {
    renewal_seconds: Histogram,
    renewal_errors: Family<ScopeLabel, Counter>,
    takeovers: Family<ReasonLabel, Counter>,
    losses: Family<ReasonLabel, Counter>,
    fenced_writes: Family<ScopeLabel, Counter>,
    board: Board,
}

impl Default for LeaseMetrics {
    fn default() -> Self {
        Self {
            // 0.25 ms … 16 s in steps of four.
            renewal_seconds: Histogram::new(exponential_buckets(0.00025, 4.0, 9)),
            renewal_errors: Family::default(),
            takeovers: Family::default(),
            losses: Family::default(),
            fenced_writes: Family::default(),
            board: Board::default(),
        }
    }
}

impl LeaseMetrics {
    pub fn register(registry: &mut Registry, clock: Arc<dyn Clock>) -> Self {
        let metrics = Self::default();
        let m = metrics.clone();
        registry.register(
            "tenure_lease_renewal_seconds",
            "Time of one renewal of all held leases",
            m.renewal_seconds,
        );
        registry.register("tenure_lease_renewal_errors", "Renewals without an answer", m.renewal_errors);
        registry.register(
            "tenure_lease_takeovers",
            "Terms won, by how the one before had ended",
            m.takeovers,
        );
        registry.register("tenure_lease_losses", "Terms lost, by reason", m.losses);
        registry.register(
            "tenure_lease_fenced_writes",
            "Writes refused because the epoch had moved on",
            m.fenced_writes,
        );
        registry.register_collector(Box::new(BoardCollector { board: m.board, clock }));
        metrics
    }

    /// A privileged write was refused by the fence.
    pub fn fenced_write(&self, scope: &Scope) {
        self.fenced_writes.get_or_create(&label(scope)).inc();
    }

    /// So that what has not happened yet is there as a zero.
    pub(crate) fn stands_for(&self, scope: &Scope) {
        drop(self.renewal_errors.get_or_create(&label(scope)));
        drop(self.fenced_writes.get_or_create(&label(scope)));
    }

    pub(crate) fn renewal_took(&self, time: Duration) {
        self.renewal_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn renewal_failed(&self, scope: &Scope) {
        self.renewal_errors.get_or_create(&label(scope)).inc();
    }

    pub(crate) fn won(&self, scope: &Scope, succession: Succession) {
        let label = ReasonLabel { scope: scope.to_string(), reason: succession.to_string() };
        self.takeovers.get_or_create(&label).inc();
    }

    pub(crate) fn lost(&self, scope: &Scope, reason: &LossReason) {
        let label = ReasonLabel { scope: scope.to_string(), reason: reason.as_str().into() };
        self.losses.get_or_create(&label).inc();
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }
}

fn label(scope: &Scope) -> ScopeLabel {
    ScopeLabel { scope: scope.to_string() }
}

/// Where every scope stands right now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<Scope, Line>>>);

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) status: ScopeStatus,
    /// Of the term that this process holds.
    pub(crate) reins: Option<Reins>,
}

impl Board {
    pub(crate) fn lines(&self) -> MutexGuard<'_, BTreeMap<Scope, Line>> {
        self.0.lock().expect("no panic while holding the board")
    }
}

#[derive(Debug)]
struct BoardCollector {
    board: Board,
    clock: Arc<dyn Clock>,
}

impl Collector for BoardCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = self.clock.boottime();
        let lines: Vec<Line> =
            self.board.lines().values().filter(|line| !line.status.is_member_seat).cloned().collect();
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Line) -> Option<f64>| {
            let mut metric =
                encoder.encode_descriptor(name, help, None, prometheus_client::metrics::MetricType::Gauge)?;
            for line in &lines {
                if let Some(value) = value(line) {
                    let labels = label(&line.status.scope);
                    ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
                }
            }
            Ok::<(), fmt::Error>(())
        };
        gauge("tenure_lease_epoch", "The scope's epoch, as last seen here", &|line| {
            line.status.record.as_ref().map(|record| record.epoch.0 as f64)
        })?;
        gauge("tenure_lease_leading", "1 while this process may act in the scope", &|line| {
            Some(f64::from(u8::from(line.leads())))
        })?;
        gauge(
            "tenure_lease_renewed_timestamp_seconds",
            "When it was last renewed, as far as known here",
            &|line| {
                let renewed_at = match &line.reins {
                    Some(reins) => Some(reins.renewal_status().renewed_at),
                    None => line.status.record.as_ref().map(|record| record.renewed_at),
                };
                renewed_at.map(|at| at.as_millisecond() as f64 / 1000.0)
            },
        )?;
        gauge(
            "tenure_lease_valid_seconds",
            "How much longer this process may act without a renewal",
            &|line| {
                Some(line.reins.as_ref().map_or(0.0, |reins| reins.renewal_status().valid_for.as_secs_f64()))
            },
        )?;
        gauge(
            "tenure_lease_ownerless_seconds",
            "For how long nobody has held it, as seen from here",
            &|line| {
                Some(
                    line.status
                        .ownerless_since
                        .map_or(0.0, |since| now.saturating_since(since).as_secs_f64()),
                )
            },
        )?;
        let mut metric = encoder.encode_descriptor(
            "tenure_lease_holder",
            "Who holds the scope, as last seen here",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for line in &lines {
            if let Some(record) = line.status.record.as_ref().filter(|record| record.is_held()) {
                let labels =
                    HolderLabel { scope: record.scope.to_string(), holder: record.holder.name.clone() };
                ConstGauge::new(1u64).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Line {
    fn leads(&self) -> bool {
        matches!(self.status.phase, Phase::Leading | Phase::Draining)
            && self.reins.as_ref().is_some_and(|reins| reins.renewal_status().leading)
    }
}
