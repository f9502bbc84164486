//! *Where* an attempt runs: filter the nodes, score what is left, reserve on the best.
//!
//! Pure and deterministic: the same nodes and the same request give the same answer, and a request
//! that fits nowhere gets a reason from every node. Promise: nothing placed here ever exceeds a
//! node's capacity in any resource. Not promised: an optimal packing.

use std::collections::BTreeMap;
use std::fmt;

use tenure_model::{NodeId, Resources};

/// What an attempt asks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub resources: Resources,
    pub node_selector: BTreeMap<String, String>,
}

impl Request {
    /// Every attempt also takes one of the node's task slots.
    pub fn new(mut resources: Resources, node_selector: BTreeMap<String, String>) -> Self {
        resources.0.insert(Resources::TASKS.to_owned(), 1_000);
        Self { resources, node_selector }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub capacity: Resources,
    pub labels: BTreeMap<String, String>,
    /// Something can be handed to it now.
    pub reachable: bool,
    /// Finishes what it has, gets nothing new.
    pub draining: bool,
}

/// The nodes and what is reserved on them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<NodeId, Place>,
}

/// How much of a node counts.
#[derive(Clone, Copy, Debug)]
enum Reach {
    Own,
    More,
    Whole,
}

#[derive(Clone, Debug)]
struct Place {
    node: Node,
    reserved: Resources,
    allowance: Option<Allowance>,
}

/// Where several schedulers place on one node: how much of it is this one's to use, and how much more it could ask
/// for. Without one, the whole node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    pub own: Resources,
    pub more: Resources,
}

/// Why one node cannot take a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    Unreachable,
    Draining,
    LabelMissing {
        label: String,
        wanted: String,
    },
    /// Larger than the node would be when empty.
    TooSmall {
        resource: String,
    },
    /// It would fit if other attempts ended.
    Busy {
        resource: String,
    },
}

/// No node can take it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaceable {
    pub rejections: Vec<(NodeId, Rejection)>,
}

impl Cluster {
    pub fn put(&mut self, id: NodeId, node: Node) {
        self.nodes.entry(id).and_modify(|place| place.node = node.clone()).or_insert_with(|| Place {
            node,
            reserved: Resources::default(),
            allowance: None,
        });
    }

    pub fn allow(&mut self, node: &NodeId, allowance: Allowance) {
        self.place_of(node).allowance = Some(allowance);
    }

    /// Takes resources on a node. Recovered attempts are reserved as they are, even on a node whose
    /// capacity has shrunk since; new ones come through `place`.
    pub fn reserve(&mut self, node: &NodeId, resources: &Resources) {
        self.place_of(node).reserved.add(resources);
    }

    pub fn release(&mut self, node: &NodeId, resources: &Resources) {
        self.place_of(node).reserved.subtract(resources);
    }

    pub fn reserved(&self, node: &NodeId) -> Option<&Resources> {
        self.nodes.get(node).map(|place| &place.reserved)
    }

    /// Filter → score → reserve.
    pub fn place(&mut self, request: &Request) -> Result<NodeId, Unplaceable> {
        let node = self.choose(request)?;
        self.reserve(&node, &request.resources);
        Ok(node)
    }

    /// The node that `place` would take.
    pub fn choose(&self, request: &Request) -> Result<NodeId, Unplaceable> {
        self.best(request, Reach::Own)
    }

    /// The node that `place` would take if it had all that is to be had.
    pub fn attainable(&self, request: &Request) -> Result<NodeId, Unplaceable> {
        self.best(request, Reach::More)
    }

    /// The node that `place` would take if the others gave up what they have of it.
    pub fn conceivable(&self, request: &Request) -> Result<NodeId, Unplaceable> {
        self.best(request, Reach::Whole)
    }

    fn best(&self, request: &Request, reach: Reach) -> Result<NodeId, Unplaceable> {
        let mut rejections = vec![];
        let mut best: Option<(u64, &NodeId)> = None;
        for (id, place) in &self.nodes {
            match place.rejects(request, reach) {
                Some(rejection) => rejections.push((id.clone(), rejection)),
                // Spread: the least loaded node wins, the first by name among equals.
                None if best.is_none_or(|(load, _)| place.load() < load) => best = Some((place.load(), id)),
                None => {}
            }
        }
        best.map(|(_, id)| id.clone()).ok_or(Unplaceable { rejections })
    }

    fn place_of(&mut self, node: &NodeId) -> &mut Place {
        // A node that holds attempts but is not registered (yet) has no room for new ones.
        self.nodes.entry(node.clone()).or_insert_with(|| Place {
            node: Node {
                capacity: Resources::default(),
                labels: BTreeMap::new(),
                reachable: false,
                draining: false,
            },
            reserved: Resources::default(),
            allowance: None,
        })
    }
}

impl Place {
    fn rejects(&self, request: &Request, reach: Reach) -> Option<Rejection> {
        if !self.node.reachable {
            return Some(Rejection::Unreachable);
        }
        if self.node.draining {
            return Some(Rejection::Draining);
        }
        for (label, wanted) in &request.node_selector {
            if self.node.labels.get(label) != Some(wanted) {
                return Some(Rejection::LabelMissing { label: label.clone(), wanted: wanted.clone() });
            }
        }
        for (resource, amount) in &request.resources.0 {
            let capacity = self.node.capacity.get(resource);
            if *amount > capacity {
                return Some(Rejection::TooSmall { resource: resource.clone() });
            }
            let allowed = match (&self.allowance, reach) {
                (None, _) | (_, Reach::Whole) => capacity,
                (Some(Allowance { own, .. }), Reach::Own) => own.get(resource).min(capacity),
                (Some(Allowance { own, more }), Reach::More) => {
                    (own.get(resource) + more.get(resource)).min(capacity)
                }
            };
            if *amount > allowed.saturating_sub(self.reserved.get(resource)) {
                return Some(Rejection::Busy { resource: resource.clone() });
            }
        }
        None
    }

    /// The fullest resource, in millionths of its capacity.
    fn load(&self) -> u64 {
        let share = |(resource, used): (&String, &u64)| match self.node.capacity.get(resource) {
            0 => 0,
            capacity => (u128::from(*used) * 1_000_000 / u128::from(capacity)) as u64,
        };
        self.reserved.0.iter().map(share).max().unwrap_or(0)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("not connected"),
            Self::Draining => f.write_str("draining"),
            Self::LabelMissing { label, wanted } => write!(f, "without label {label}={wanted}"),
            Self::TooSmall { resource } => write!(f, "too small in {resource}"),
            Self::Busy { resource } => write!(f, "busy in {resource}"),
        }
    }
}

/// `no node can take it: 3 too small in gpu, 1 draining`.
impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rejections.is_empty() {
            return f.write_str("no node is registered");
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, rejection) in &self.rejections {
            *counts.entry(rejection.to_string()).or_default() += 1;
        }
        let parts: Vec<String> =
            counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        write!(f, "no node can take it: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests;
