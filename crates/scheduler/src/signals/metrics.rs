//! What is missing and what is idle, as numbers. Only the leader shows any: with several replicas, add them up.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::watch::{MOST_SHAPES, Sight};
use super::{Shortage, Signal};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Missing {
    shape: String,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Shape {
    shape: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    r#type: &'static str,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SignalMetrics {
    missing: Family<Missing, Gauge<f64, std::sync::atomic::AtomicU64>>,
    tasks: Family<Shape, Gauge>,
    idle: Gauge,
    told: Family<Kind, Counter>,
    errors: Counter,
}

impl SignalMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tenure_capacity_shortage",
            "What tasks ask for that no node has room for, in units of the resource",
            metrics.missing.clone(),
        );
        registry.register(
            "tenure_capacity_shortage_tasks",
            "Tasks that are ready and that no node can take",
            metrics.tasks.clone(),
        );
        registry.register(
            "tenure_idle_nodes",
            "Connected nodes that take work and have none",
            metrics.idle.clone(),
        );
        registry.register("tenure_signals", "Signals told, by their type", metrics.told.clone());
        registry.register(
            "tenure_signals_errors",
            "Looks for missing capacity that failed",
            metrics.errors.clone(),
        );
        metrics
    }

    pub(super) fn show(&self, sight: &Sight) {
        self.missing.clear();
        self.tasks.clear();
        for Shortage { shape, tasks, missing, .. } in sight.short.values().take(MOST_SHAPES) {
            self.tasks.get_or_create(&Shape { shape: shape.clone() }).set(i64::from(*tasks));
            for (resource, amount) in &missing.0 {
                let of = Missing { shape: shape.clone(), resource: resource.clone() };
                self.missing.get_or_create(&of).set(*amount as f64 / 1_000.0);
            }
        }
        self.idle.set(sight.idle.len() as i64);
    }

    pub(super) fn told(&self, signals: &[Signal]) {
        for signal in signals {
            self.told.get_or_create(&Kind { r#type: signal.kind() }).inc();
        }
    }

    pub(super) fn failed(&self) {
        self.errors.inc();
    }

    /// Whoever no longer leads shows nothing.
    pub(super) fn until_dropped(&self) -> ClearedAtTheEnd<'_> {
        ClearedAtTheEnd(self)
    }
}

pub(super) struct ClearedAtTheEnd<'a>(&'a SignalMetrics);

impl Drop for ClearedAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.show(&Sight::default());
    }
}
