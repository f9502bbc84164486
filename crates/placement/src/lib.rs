//! *Where* an attempt runs: filter the nodes, score what is left, reserve on the best.
//!
//! Pure and deterministic: the same nodes and the same request give the same answer, and a request that fits nowhere
//! gets every reason from every node. Promise: nothing placed here ever exceeds a node's capacity in any resource.
//! Not promised: an optimal packing.
//!
//! Which nodes could take a request at all, and what they are worth to it, is found out once and kept until a node
//! changes: in a [`Catalog`], which all schedulers of a process share. What is left for a decision is to go over those nodes
//! and compare a few numbers of each, so ten thousand attempts on a thousand nodes take a fraction of a second, however many
//! have run before. A scheduler that shares the nodes with others goes over those only that it has a part of.

mod catalog;
mod cluster;
mod explain;
mod filter;
mod holdup;
mod preempt;
mod reasons;
mod score;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tenure_model::{Affinity, DagId, NodeId, QueueName, Resources, Taint, TaskSpec, TenantId, Toleration};

pub use catalog::{Catalog, Entry};
pub use cluster::Cluster;
pub use explain::{Candidate, Explanation, Rejected, Use};
pub use filter::Rejection;
pub use holdup::Holdup;
pub use preempt::{Eviction, Occupant};
pub use reasons::Unplaceable;
pub use score::{Policy, ScoreParts, Strategy, Weights};

/// What an attempt asks of a node. Attempts that ask for the same share the work of finding one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Request {
    pub resources: Resources,
    /// Labels the node must carry.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    #[serde(default)]
    pub queue: QueueName,
    #[serde(default)]
    pub affinity: Affinity,
    /// Among whom `affinity.spread` spreads. Absent where it is.
    #[serde(default)]
    pub group: Option<String>,
}

impl Request {
    /// Every attempt also takes one of the node's task slots.
    pub fn new(mut resources: Resources, node_selector: BTreeMap<String, String>) -> Self {
        resources.0.insert(Resources::TASKS.to_owned(), 1_000);
        Self { resources, node_selector, ..Self::default() }
    }

    pub fn of_task(task: &TaskSpec, tenant: &TenantId, dag: &DagId) -> Self {
        Self {
            tolerations: task.tolerations.clone(),
            queue: task.queue.clone(),
            affinity: task.affinity.clone(),
            group: task.affinity.spread.is_some().then(|| format!("{tenant}/{dag}")),
            ..Self::new(task.resources.clone(), task.node_selector.clone())
        }
    }
}

/// What has happened before an attempt that makes nodes better or worse for it, and for it alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Where its previous try failed, or was not taken.
    pub failed_on: Option<NodeId>,
    /// Where what it needs has run, and how many of those.
    pub near: BTreeMap<NodeId, u32>,
}

impl History {
    pub fn failed_on(node: NodeId) -> Self {
        Self { failed_on: Some(node), ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub capacity: Resources,
    pub labels: BTreeMap<String, String>,
    pub taints: BTreeSet<Taint>,
    pub queues: BTreeSet<QueueName>,
    /// Something can be handed to it now.
    pub reachable: bool,
    /// Finishes what it has, gets nothing new.
    pub draining: bool,
}

/// Where several schedulers place on one node: how much of it is this one's to use, and how much more it could ask
/// for. Without one, the whole node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    pub own: Resources,
    pub more: Resources,
}

#[cfg(test)]
mod tests;
