//! Says what capacity is missing, and which nodes could go: a log line, an audit row, metrics, and whatever the wiring
//! hands in (a webhook).
//!
//! Done by whoever leads the controller, for all shards at once, from the database: tasks that are ready and wait are
//! counted by what they ask for, and those that no node has room for are a shortage. Approximate on purpose: a run's
//! own limits (`max_active_tasks`) are not looked at, so more tasks may be counted than could run at once. What has been
//! told is kept beside its audit row, so that a change of leaders neither repeats a word nor forgets to take one back.
//! Promised: the audit row is there before anybody hears. Not promised: that a listener hears, should this process end
//! in between.

mod metrics;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use tenure_lease::{Tenure, with_causes};
use tenure_model::{NodeId, QueueName, Resources};
use tenure_outlook::{Demand, Unmet};
use tenure_store::{AuditEntry, StoreError};

use crate::controller::ControllerParts;
pub(crate) use metrics::SignalMetrics;
pub use watch::SignalRules;
use watch::{Open, Sight, Watch};

/// Between two looks, at the most and at the least.
const LOOK_EVERY: Duration = Duration::from_secs(15);
const LOOK_SELDOM: Duration = Duration::from_millis(250);
/// A time after which something is told is met this well.
const LOOKS_PER_TIME: u32 = 4;
/// A look costs what is waiting. However much that is, it takes no more than a fiftieth of the time.
const PAUSE_PER_COST: u32 = 50;

/// Who hears of signals. Must not block: what cannot be passed on at once is the listener's to keep or to drop.
pub trait SignalListener: Send + Sync {
    fn hear(&self, at: Timestamp, signals: &[Signal]);
}

/// What is told, and to whom.
#[derive(Clone, Default)]
pub struct Signalling {
    pub rules: SignalRules,
    pub listener: Option<Arc<dyn SignalListener>>,
}

impl std::fmt::Debug for Signalling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signalling").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Tasks that ask for the same, and that no node can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortage {
    /// What each of them asks for, in words: `gpu 1, zone=b`. The name of the shortage.
    pub shape: String,
    /// What each of them asks for, in units.
    #[serde(serialize_with = "in_units")]
    pub each: Resources,
    /// What a node must carry to take them.
    pub labels: BTreeMap<String, String>,
    pub queue: QueueName,
    pub tasks: u32,
    /// What all of them ask for, in units.
    #[serde(serialize_with = "in_units")]
    pub missing: Resources,
    /// Why no node can take one of them.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Signal {
    CapacityShortage(Shortage),
    CapacityShortageOver {
        shape: String,
    },
    /// These have had nothing to do for long enough, and there are more nodes than must be kept.
    NodesIdle {
        nodes: Vec<NodeId>,
    },
    /// These were spoken of as idle; they have work again, are gone, or are among those that are kept.
    NodesNoLongerIdle {
        nodes: Vec<NodeId>,
    },
}

impl Signal {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CapacityShortage(_) => "capacity_shortage",
            Self::CapacityShortageOver { .. } => "capacity_shortage_over",
            Self::NodesIdle { .. } => "nodes_idle",
            Self::NodesNoLongerIdle { .. } => "nodes_no_longer_idle",
        }
    }

    /// One entry for a shape, one for each node.
    fn entries(&self) -> Vec<AuditEntry> {
        let entry = AuditEntry::new(self.kind());
        match self {
            Self::CapacityShortage(Shortage { shape, tasks, reason, .. }) => {
                let reason = Some(format!("{tasks} waiting: {reason}"));
                vec![AuditEntry { to: shape.clone(), reason, ..entry }]
            }
            Self::CapacityShortageOver { shape } => vec![AuditEntry { from: shape.clone(), ..entry }],
            Self::NodesIdle { nodes } | Self::NodesNoLongerIdle { nodes } => {
                let of = |node: &NodeId| AuditEntry { node: Some(node.clone()), ..entry.clone() };
                nodes.iter().map(of).collect()
            }
        }
    }

    fn log(&self) {
        let list = |nodes: &[NodeId]| nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ");
        match self {
            Self::CapacityShortage(Shortage { shape, tasks, reason, .. }) => {
                tracing::warn!(shape, tasks, reason, "capacity is missing: no node can take these tasks");
            }
            Self::CapacityShortageOver { shape } => tracing::info!(shape, "capacity is no longer missing"),
            Self::NodesIdle { nodes } => {
                tracing::info!(nodes = list(nodes), "these nodes have had nothing to do and could go");
            }
            Self::NodesNoLongerIdle { nodes } => {
                tracing::info!(nodes = list(nodes), "these nodes should stay");
            }
        }
    }
}

/// As people count: one gpu is 1, half a cpu 0.5, a kibibyte 1024.
fn in_units<S: Serializer>(resources: &Resources, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Amount {
        Whole(u64),
        Broken(f64),
    }
    let units = |amount: &u64| match amount % 1_000 {
        0 => Amount::Whole(amount / 1_000),
        _ => Amount::Broken(*amount as f64 / 1_000.0),
    };
    serializer.collect_map(resources.0.iter().map(|(name, amount)| (name, units(amount))))
}

impl From<Unmet> for Shortage {
    fn from(unmet: Unmet) -> Self {
        let Unmet { shape, each, labels, queue, tasks, missing, reason } = unmet;
        Self { shape, each, labels, queue, tasks, missing, reason }
    }
}

/// Look after look. Returns only when the fence says that somebody else does it now.
pub(crate) async fn keep_watch(parts: &ControllerParts, tenure: &Tenure) {
    let metrics = &parts.metrics.signals;
    let _silent_afterwards = metrics.until_dropped();
    let every = look_every(&parts.signals.rules);
    let mut watch = None;
    loop {
        let began = parts.clock.boottime();
        match turn(parts, tenure, &mut watch).await {
            Ok(()) => {}
            Err(StoreError::Fenced { .. }) => return tenure.fenced(),
            Err(error) => {
                metrics.failed();
                tracing::warn!(error = %with_causes(&error), "what capacity is missing cannot be told; later");
            }
        }
        let cost = parts.clock.boottime().saturating_since(began);
        let pause = every.max(cost * PAUSE_PER_COST);
        tokio::time::sleep(pause + parts.entropy.jitter(pause / 10)).await;
    }
}

fn look_every(rules: &SignalRules) -> Duration {
    let shortest = rules.shortage_after.min(rules.idle_after);
    (shortest / LOOKS_PER_TIME).clamp(LOOK_SELDOM, LOOK_EVERY)
}

/// One look, and what follows from it. `watch` is the state of things that everybody has been told of: whatever cannot
/// be told now is told by the next turn.
async fn turn(parts: &ControllerParts, tenure: &Tenure, watch: &mut Option<Watch>) -> Result<(), StoreError> {
    let mut next = match watch.take() {
        Some(watch) => watch,
        None => Watch::resume(parts.signals.rules.clone(), open(parts).await?, parts.clock.boottime()),
    };
    let before = watch.insert(next.clone());
    let Demand { unplaceable, idle, nodes } = Demand::read(&*parts.store).await?;
    let short = unplaceable.into_iter().map(|unmet| (unmet.shape.clone(), unmet.into())).collect();
    let sight = Sight { short, idle, nodes };
    parts.metrics.signals.show(&sight);
    let signals = next.observe(&sight, parts.clock.boottime());
    if !signals.is_empty() {
        let Ok(guard) = tenure.guard() else { return Ok(()) };
        let at = parts.clock.now();
        let entries: Vec<AuditEntry> = signals.iter().flat_map(Signal::entries).collect();
        let kept = serde_json::to_string(&next.open()).expect("names are plain data");
        match parts.store.tell_signals(&guard, at, &entries, &kept).await {
            Err(StoreError::Unknown { .. }) if open(parts).await? == next.open() => {} // it was committed
            told => told?,
        }
        signals.iter().for_each(Signal::log);
        parts.metrics.signals.told(&signals);
        if let Some(listener) = &parts.signals.listener {
            listener.hear(at, &signals);
        }
    }
    *before = next;
    Ok(())
}

/// What the last leader has told and not taken back.
async fn open(parts: &ControllerParts) -> Result<Open, StoreError> {
    let Some(kept) = parts.store.open_signals().await? else { return Ok(Open::default()) };
    // Another release may have written it: then a word is said twice, and none is lost.
    Ok(serde_json::from_str(&kept).unwrap_or_else(|error| {
        tracing::warn!(%error, "which signals are open cannot be read; they begin anew");
        Open::default()
    }))
}

#[cfg(test)]
mod tests {
    //! Goal: what a program receives says what to buy, in units that people use.

    use super::*;

    #[test]
    fn a_shortage_reads_in_units() {
        let each = Resources::default().with("gpu", 1_000).with("cpu", 500).with("memory", 1_024_000);
        let shortage = Signal::CapacityShortage(Shortage {
            shape: "cpu 0.5, gpu 1".into(),
            missing: Resources::default().with("gpu", 12_000),
            each,
            labels: [("zone".to_owned(), "b".to_owned())].into(),
            queue: QueueName::default(),
            tasks: 12,
            reason: "no node has gpu ≥ 1".into(),
        });
        let text = serde_json::to_string(&shortage).unwrap();
        expect_test::expect![[
            r#"{"type":"capacity_shortage","shape":"cpu 0.5, gpu 1","each":{"cpu":0.5,"gpu":1,"memory":1024},"labels":{"zone":"b"},"queue":"default","tasks":12,"missing":{"gpu":12},"reason":"no node has gpu ≥ 1"}"#
        ]]
        .assert_eq(&text);
        let over = Signal::CapacityShortageOver { shape: "gpu 1".into() };
        assert_eq!(
            serde_json::to_string(&over).unwrap(),
            r#"{"type":"capacity_shortage_over","shape":"gpu 1"}"#
        );
    }

    #[test]
    fn looks_are_as_frequent_as_the_times_need_them() {
        let with = |seconds: u64| {
            let shortage_after = Duration::from_secs(seconds);
            look_every(&SignalRules { shortage_after, ..SignalRules::default() })
        };
        assert_eq!((with(0), with(20)), (LOOK_SELDOM, Duration::from_secs(5)));
        assert_eq!(with(3_600), LOOK_EVERY);
    }
}
