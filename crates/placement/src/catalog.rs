//! The nodes as they are, whatever runs on them. One catalog serves all schedulers of a process: each of them knows by itself
//! only of nodes that it has something on, so what a node costs does not grow with the number of schedulers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_model::NodeId;

use crate::filter;
use crate::score::MOST_POINTS;
use crate::{Node, Request};

/// Requests whose nodes are remembered. Beyond this somebody asks for something else every time.
pub(crate) const MOST_KNOWN: usize = 1_000;

/// Immutable: when a node changes there is another one.
#[derive(Debug, Default)]
pub struct Catalog {
    /// By name.
    entries: Vec<Entry>,
    known: Mutex<BTreeMap<Request, Arc<Prospects>>>,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub id: NodeId,
    pub node: Arc<Node>,
    /// Of its name, to put equals into an order that differs from one scheduler to the next.
    scatter: u64,
}

/// What can be said about a request before looking at what runs.
#[derive(Debug, Default)]
pub(crate) struct Prospects {
    /// In the order of the catalog.
    pub nodes: Vec<Prospect>,
    /// How many values of the label that it wants to be spread over there are.
    pub values: usize,
}

/// A node that could take it, if it had room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prospect {
    /// Its position in the catalog.
    pub entry: usize,
    /// Points.
    pub preferred: i64,
    pub value: Option<usize>,
}

impl Catalog {
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, Arc<Node>)>) -> Self {
        let entry = |(id, node): (NodeId, Arc<Node>)| Entry { scatter: scatter(&id), id, node };
        let mut entries: Vec<Entry> = nodes.into_iter().map(entry).collect();
        entries.sort_by(|one, other| one.id.cmp(&other.id));
        entries.dedup_by(|later, earlier| later.id == earlier.id);
        Self { entries, known: Mutex::default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn node(&self, id: &NodeId) -> Option<&Arc<Node>> {
        self.find(id).map(|at| &self.entries[at].node)
    }

    /// By name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn find(&self, id: &NodeId) -> Option<usize> {
        self.entries.binary_search_by(|entry| entry.id.cmp(id)).ok()
    }

    /// Found out once for each request, whoever asks.
    pub(crate) fn prospects(&self, request: &Request) -> Arc<Prospects> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prospects) = known.get(request) {
            return Arc::clone(prospects);
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        let prospects = Arc::new(self.look_for_prospects(request));
        known.insert(request.clone(), Arc::clone(&prospects));
        prospects
    }

    fn look_for_prospects(&self, request: &Request) -> Prospects {
        let mut values: BTreeMap<&str, usize> = BTreeMap::new();
        let mut nodes = vec![];
        for (entry, Entry { node, .. }) in self.entries.iter().enumerate() {
            if filter::lasting(node, request).next().is_some() {
                continue;
            }
            let value = request.affinity.spread.as_ref().and_then(|label| node.labels.get(label));
            let value = value.map(|value| {
                let next = values.len();
                *values.entry(value).or_insert(next)
            });
            nodes.push(Prospect { entry, preferred: preferred(node, request), value });
        }
        Prospects { nodes, values: values.len() }
    }
}

impl Entry {
    /// Where it comes among equals: with a salt in an order of the salt's own, without one by name.
    pub(crate) fn rank(&self, salt: u64) -> u64 {
        match salt {
            0 => 0,
            salt => mixed(self.scatter ^ mixed(salt)),
        }
    }
}

impl Prospects {
    pub fn of(&self, entry: usize) -> Option<&Prospect> {
        let found = self.nodes.binary_search_by_key(&entry, |prospect| prospect.entry).ok()?;
        Some(&self.nodes[found])
    }
}

/// The preferences that a node meets, as points.
fn preferred(node: &Node, request: &Request) -> i64 {
    let all: i64 = request.affinity.prefer.iter().map(|preference| i64::from(preference.weight)).sum();
    let met = request.affinity.prefer.iter().filter(|wish| node.labels.get(&wish.label) == Some(&wish.value));
    let met: i64 = met.map(|preference| i64::from(preference.weight)).sum();
    if all == 0 { 0 } else { met * MOST_POINTS / all }
}

/// FNV-1a: any function would do that scatters names and stays the same on every machine and in every release.
fn scatter(node: &NodeId) -> u64 {
    let bytes = node.as_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The last steps of SplitMix64: numbers that differ by little come out far apart.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
