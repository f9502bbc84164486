//! Why a node cannot take a request.

use std::fmt;

use serde::{Deserialize, Serialize};
use tenure_model::{QueueName, Taint};

use crate::{Node, Request};

/// One reason why one node cannot take a request, those that last longest first. Amounts are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Rejection {
    /// Larger than the node would be when empty.
    TooSmall {
        resource: String,
        needed: u64,
        capacity: u64,
    },
    /// It has another value of the label, or none.
    Label {
        label: String,
        wanted: String,
    },
    /// It does not serve the request's queue.
    Queue {
        queue: QueueName,
    },
    /// A taint that the request does not tolerate.
    Taint {
        taint: Taint,
    },
    Draining,
    /// Nothing can be handed to it now.
    NotConnected,
    /// It would fit if other attempts ended.
    Busy {
        resource: String,
        needed: u64,
        free: u64,
    },
}

/// Everything that speaks against a node whatever runs on it.
pub(crate) fn lasting(node: &Node, request: &Request) -> impl Iterator<Item = Rejection> {
    let sizes = request.resources.0.iter().filter_map(|(resource, needed)| {
        let capacity = node.capacity.get(resource);
        (*needed > capacity).then(|| Rejection::TooSmall {
            resource: resource.clone(),
            needed: *needed,
            capacity,
        })
    });
    let labels =
        request.node_selector.iter().filter(|(label, wanted)| node.labels.get(*label) != Some(wanted));
    let labels =
        labels.map(|(label, wanted)| Rejection::Label { label: label.clone(), wanted: wanted.clone() });
    let queue =
        (!node.queues.contains(&request.queue)).then(|| Rejection::Queue { queue: request.queue.clone() });
    let tolerated = |taint: &Taint| request.tolerations.iter().any(|toleration| toleration.covers(taint));
    let taints = node.taints.iter().filter(move |taint| !tolerated(taint));
    let taints = taints.map(|taint| Rejection::Taint { taint: taint.clone() });
    let now = [(node.draining, Rejection::Draining), (!node.reachable, Rejection::NotConnected)];
    let now = now.into_iter().filter_map(|(holds, rejection)| holds.then_some(rejection));
    sizes.chain(labels).chain(queue).chain(taints).chain(now)
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => f.write_str("not connected"),
            Self::Draining => f.write_str("draining"),
            Self::Queue { queue } => write!(f, "not serving queue {queue}"),
            Self::Taint { taint } => write!(f, "with taint {taint} (not tolerated)"),
            Self::Label { label, wanted } => write!(f, "without label {label}={wanted}"),
            Self::TooSmall { resource, .. } => write!(f, "too small in {resource}"),
            Self::Busy { resource, .. } => write!(f, "busy in {resource}"),
        }
    }
}
