//! The nodes, what is reserved on them, and the choice between them.
//!
//! Resources have columns: an amount is a number in a row, not an entry in a map, because comparing amounts is what
//! a decision consists of.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tenure_model::{NodeId, Resources};

use crate::filter;
use crate::score::{Facts, MOST_POINTS, Policy, ScoreParts};
use crate::{Allowance, History, Node, Rejection, Request};

/// For how long a failure counts against a node, in minutes. Each minute takes a tenth of it away.
const FAILURES_COUNT_FOR: i64 = 10;
/// Requests whose nodes are remembered. Beyond this somebody asks for something else every time.
const MOST_KNOWN: usize = 1_000;

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    policy: Policy,
    salt: u64,
    places: Vec<Place>,
    by_name: BTreeMap<NodeId, usize>,
    /// Places that nobody has.
    vacant: Vec<usize>,
    columns: BTreeMap<String, usize>,
    /// How many attempts of each group are at each place.
    groups: BTreeMap<String, BTreeMap<usize, u32>>,
    /// Nodes with failures that still count.
    failing: BTreeMap<usize, Timestamp>,
    known: BTreeMap<Request, Prospects>,
}

/// How much of a node counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    Own,
    More,
    Whole,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub id: Option<NodeId>,
    /// `None`: it holds attempts but is not registered (yet, or any more), and has no room for new ones.
    pub node: Option<Node>,
    /// Decides between equals, before their names do.
    rank: u64,
    capacity: Vec<u64>,
    pub reserved: Vec<u64>,
    attempts: usize,
    allowance: Option<Allowed>,
    /// What may still be placed on it, kept because every decision reads it.
    room: Vec<u64>,
    /// The fullest resource, in millionths of its capacity.
    load: u32,
    failed_lately: i64,
}

#[derive(Clone, Debug)]
struct Allowed {
    own: Vec<u64>,
    more: Vec<u64>,
}

/// What can be said about a request before looking at what runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prospects {
    needs: Vec<(usize, u64)>,
    pub nodes: Vec<Prospect>,
    /// How many values of the label that it wants to be spread over there are.
    values: usize,
}

/// A node that could take it, if it had room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prospect {
    pub place: usize,
    preferred: i64,
    value: Option<usize>,
}

/// How many attempts of the request's group are at each value of the label.
#[derive(Debug, Default)]
pub(crate) struct Crowds {
    at: Vec<u32>,
    least: u32,
}

/// What an attempt's history says about places.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    failed_on: Option<usize>,
    /// Points, by place; few.
    near: Vec<(usize, i64)>,
}

/// A node and what it is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub place: usize,
    pub parts: ScoreParts,
}

impl Cluster {
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Several schedulers that know nothing of each other's next step should not all begin with the same node. With a
    /// salt, equals come in an order of its own; without one, by name. To be set before there are nodes.
    pub fn salted(mut self, salt: u64) -> Self {
        assert!(self.places.is_empty(), "the order of nodes that are there already would change");
        self.salt = salt;
        self
    }

    pub fn put(&mut self, id: NodeId, node: Node) {
        let at = self.place_of(&id);
        if self.places[at].node.as_ref() == Some(&node) {
            return;
        }
        self.known.clear();
        let capacity = self.row(&node.capacity);
        let place = &mut self.places[at];
        (place.capacity, place.node) = (capacity, Some(node));
        place.count();
    }

    /// Nodes that are not among these are gone. What is reserved on one stays on the books until it is released.
    pub fn keep_only<'a>(&mut self, nodes: impl IntoIterator<Item = &'a NodeId>) {
        let kept: BTreeSet<&NodeId> = nodes.into_iter().collect();
        let gone: Vec<usize> =
            self.by_name.iter().filter(|(id, _)| !kept.contains(id)).map(|(_, at)| *at).collect();
        for at in gone {
            let place = &mut self.places[at];
            if place.node.take().is_some() {
                (place.capacity, place.allowance) = (vec![], None);
                place.count();
                self.known.clear();
            }
            self.vacate(at);
        }
    }

    pub fn allow(&mut self, node: &NodeId, allowance: Allowance) {
        let at = self.place_of(node);
        let allowed = Allowed { own: self.row(&allowance.own), more: self.row(&allowance.more) };
        self.places[at].allowance = Some(allowed);
        self.places[at].count();
    }

    /// Takes what an attempt asks for on a node. Recovered attempts are reserved as they are, even on a node whose
    /// capacity has shrunk since; new ones come through `place`.
    pub fn reserve(&mut self, node: &NodeId, request: &Request) {
        let at = self.place_of(node);
        let amounts = self.row(&request.resources);
        let place = &mut self.places[at];
        place.reserved.resize(place.reserved.len().max(amounts.len()), 0);
        place.reserved.iter_mut().zip(&amounts).for_each(|(reserved, amount)| *reserved += amount);
        place.attempts += 1;
        place.count();
        if let Some(group) = &request.group {
            *self.groups.entry(group.clone()).or_default().entry(at).or_default() += 1;
        }
    }

    /// Gives back what was taken for the same request.
    pub fn release(&mut self, node: &NodeId, request: &Request) {
        let at = *self.by_name.get(node).expect("a reservation is released once, where it was made");
        let amounts = self.row(&request.resources);
        let place = &mut self.places[at];
        for (reserved, amount) in place.reserved.iter_mut().zip(&amounts) {
            *reserved = reserved.checked_sub(*amount).expect("a reservation is released once");
        }
        place.attempts = place.attempts.checked_sub(1).expect("a reservation is released once");
        place.count();
        if let Some(group) = &request.group {
            self.leave_group(group, at);
        }
        self.vacate(at);
    }

    /// An attempt has failed on a node: others are preferred to it for a while.
    pub fn note_failure(&mut self, node: &NodeId, at: Timestamp) {
        if let Some(place) = self.by_name.get(node) {
            let latest = self.failing.entry(*place).or_insert(at);
            *latest = at.max(*latest);
        }
    }

    /// Time passes: failures count for less.
    pub fn advance(&mut self, now: Timestamp) {
        let places = &mut self.places;
        self.failing.retain(|place, at| {
            let minutes = (now.as_second() - at.as_second()).max(0) / 60;
            let points = MOST_POINTS * (FAILURES_COUNT_FOR - minutes).max(0) / FAILURES_COUNT_FOR;
            places[*place].failed_lately = points;
            points > 0
        });
    }

    pub fn reserved(&self, node: &NodeId) -> Option<Resources> {
        self.by_name.get(node).map(|at| self.named(&self.places[*at].reserved))
    }

    /// Filter → score → reserve.
    pub fn place(&mut self, request: &Request, history: &History) -> Option<NodeId> {
        let node = self.choose(request, history)?;
        self.reserve(&node, request);
        Some(node)
    }

    /// The node that `place` would take.
    pub fn choose(&mut self, request: &Request, history: &History) -> Option<NodeId> {
        self.learn(request);
        let choice = self.best(request, &self.known[request], history, Reach::Own)?;
        self.places[choice.place].id.clone()
    }

    /// A node that meets the request's wishes better than the one that `place` would take, and that it would take if
    /// it had all that is to be had. Being near to what came before is no reason to ask.
    pub fn better_elsewhere(&mut self, request: &Request, history: &History) -> Option<NodeId> {
        if request.affinity.is_empty() && history.failed_on.is_none() {
            return None;
        }
        self.learn(request);
        let prospects = &self.known[request];
        let own = self.best(request, prospects, history, Reach::Own)?;
        let better = self.best(request, prospects, history, Reach::More)?;
        (better.parts.wishes() > own.parts.wishes()).then(|| self.places[better.place].id.clone())?
    }

    /// The node that `place` would take if it had all that is to be had.
    pub fn attainable(&self, request: &Request) -> Option<NodeId> {
        self.best_of_all(request, Reach::More)
    }

    /// The node that `place` would take if the others gave up what they have of it.
    pub fn conceivable(&self, request: &Request) -> Option<NodeId> {
        self.best_of_all(request, Reach::Whole)
    }

    fn best_of_all(&self, request: &Request, reach: Reach) -> Option<NodeId> {
        let choice = self.best(request, &self.prospects(request), &History::default(), reach)?;
        self.places[choice.place].id.clone()
    }

    fn best(
        &self,
        request: &Request,
        prospects: &Prospects,
        history: &History,
        reach: Reach,
    ) -> Option<Choice> {
        let traces = self.traces(history);
        let crowds = self.crowds(request, prospects);
        let mut best: Option<Choice> = None;
        for prospect in &prospects.nodes {
            if !self.places[prospect.place].fits(&prospects.needs, reach) {
                continue;
            }
            let choice = self.judge(prospect, &crowds, &traces);
            if best.is_none_or(|best| self.order(&choice) < self.order(&best)) {
                best = Some(choice);
            }
        }
        best
    }

    pub(crate) fn judge(&self, prospect: &Prospect, crowds: &Crowds, traces: &Traces) -> Choice {
        let place = &self.places[prospect.place];
        let parts = self.policy.score(&Facts {
            load: place.load,
            preferred: prospect.preferred,
            beyond_least: prospect.value.map(|value| crowds.at[value] - crowds.least),
            failed_here: traces.failed_on == Some(prospect.place),
            failed_lately: place.failed_lately,
            locality: traces.near_to(prospect.place),
        });
        Choice { place: prospect.place, parts }
    }

    /// Best first: by score, then exactly by load, then by the order of this cluster, then by name.
    pub(crate) fn order(&self, choice: &Choice) -> (Reverse<i64>, u32, u64, Option<&NodeId>) {
        let place = &self.places[choice.place];
        (Reverse(choice.parts.total()), self.policy.tie(place.load), place.rank, place.id.as_ref())
    }

    /// Nodes that are not there any more count for nothing, and make those that are no nearer.
    pub(crate) fn traces(&self, history: &History) -> Traces {
        let place = |node: &NodeId| self.by_name.get(node).copied();
        let all: i64 = history.near.values().map(|count| i64::from(*count)).sum();
        let near = history.near.iter().filter_map(|(node, count)| Some((place(node)?, i64::from(*count))));
        let points = |(place, count)| (place, MOST_POINTS * count / all.max(1));
        let mut near: Vec<(usize, i64)> = near.map(points).collect();
        near.sort_unstable();
        Traces { failed_on: history.failed_on.as_ref().and_then(place), near }
    }

    pub(crate) fn place_at(&self, at: usize) -> &Place {
        &self.places[at]
    }

    /// Nodes that are registered, by name.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (&NodeId, usize, &Node)> {
        self.by_name.iter().filter_map(|(id, at)| Some((id, *at, self.places[*at].node.as_ref()?)))
    }

    /// Makes sure that the request's prospects are known.
    fn learn(&mut self, request: &Request) {
        if !self.known.contains_key(request) {
            if self.known.len() >= MOST_KNOWN {
                self.known.clear();
            }
            self.known.insert(request.clone(), self.prospects(request));
        }
    }

    pub(crate) fn prospects(&self, request: &Request) -> Prospects {
        let mut values: BTreeMap<&str, usize> = BTreeMap::new();
        let mut nodes = vec![];
        for (_, place, node) in self.registered() {
            if filter::lasting(node, request).next().is_some() {
                continue;
            }
            let value = request.affinity.spread.as_ref().and_then(|label| node.labels.get(label));
            let value = value.map(|value| {
                let next = values.len();
                *values.entry(value).or_insert(next)
            });
            nodes.push(Prospect { place, preferred: preferred(node, request), value });
        }
        // What no node has speaks against every node, and none is left.
        let needs = request.resources.0.iter();
        let needs = needs.filter_map(|(name, amount)| Some((*self.columns.get(name)?, *amount))).collect();
        Prospects { needs, nodes, values: values.len() }
    }

    pub(crate) fn crowds(&self, request: &Request, prospects: &Prospects) -> Crowds {
        let mut at = vec![0; prospects.values];
        if let Some(members) = request.group.as_ref().and_then(|group| self.groups.get(group)) {
            for Prospect { place, value, .. } in &prospects.nodes {
                if let (Some(value), Some(count)) = (value, members.get(place)) {
                    at[*value] += count;
                }
            }
        }
        let least = at.iter().min().copied().unwrap_or(0);
        Crowds { at, least }
    }

    /// What is missing of each resource that a node has enough of when it is empty.
    pub(crate) fn busy(&self, at: usize, request: &Request, reach: Reach) -> Vec<Rejection> {
        let place = &self.places[at];
        let needs = request.resources.0.iter().filter_map(|(resource, needed)| {
            let column = *self.columns.get(resource)?;
            let free = place.room(column, reach);
            let fits_when_empty = *needed <= amount(&place.capacity, column);
            (fits_when_empty && *needed > free).then(|| Rejection::Busy {
                resource: resource.clone(),
                needed: *needed,
                free,
            })
        });
        needs.collect()
    }

    /// How much a node is short of, in each resource that it is short of.
    pub(crate) fn missing(&self, at: usize, request: &Request, reach: Reach) -> BTreeMap<String, u64> {
        let missing = self.busy(at, request, reach).into_iter().filter_map(|rejection| match rejection {
            Rejection::Busy { resource, needed, free } => Some((resource, needed - free)),
            _ => None,
        });
        missing.collect()
    }

    fn place_of(&mut self, node: &NodeId) -> usize {
        if let Some(at) = self.by_name.get(node) {
            return *at;
        }
        let place = Place { id: Some(node.clone()), rank: rank(self.salt, node), ..Place::default() };
        let at = match self.vacant.pop() {
            Some(at) => {
                self.places[at] = place;
                at
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        };
        self.by_name.insert(node.clone(), at);
        at
    }

    /// A place that is neither registered nor in use can be somebody else's.
    fn vacate(&mut self, at: usize) {
        let place = &mut self.places[at];
        if place.node.is_none() && place.attempts == 0 {
            if let Some(id) = place.id.take() {
                self.by_name.remove(&id);
            }
            self.failing.remove(&at);
            self.vacant.push(at);
        }
    }

    fn leave_group(&mut self, group: &str, at: usize) {
        let members = self.groups.get_mut(group).expect("whoever leaves has come");
        let count = members.get_mut(&at).expect("whoever leaves has come");
        *count -= 1;
        if *count == 0 {
            members.remove(&at);
        }
        if members.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Amounts by column; names that are new get one.
    fn row(&mut self, resources: &Resources) -> Vec<u64> {
        let mut row = vec![];
        for (name, amount) in &resources.0 {
            let next = self.columns.len();
            let column = match self.columns.get(name) {
                Some(column) => *column,
                None => *self.columns.entry(name.clone()).or_insert(next),
            };
            row.resize(row.len().max(column + 1), 0);
            row[column] = *amount;
        }
        row
    }

    fn named(&self, row: &[u64]) -> Resources {
        let amounts = self.columns.iter().map(|(name, column)| (name.clone(), amount(row, *column)));
        Resources(amounts.filter(|(_, amount)| *amount > 0).collect())
    }
}

impl Traces {
    /// Points.
    fn near_to(&self, place: usize) -> i64 {
        self.near.binary_search_by_key(&place, |(at, _)| *at).map_or(0, |found| self.near[found].1)
    }
}

impl Place {
    fn fits(&self, needs: &[(usize, u64)], reach: Reach) -> bool {
        match reach {
            Reach::Own => needs.iter().all(|(column, needed)| *needed <= amount(&self.room, *column)),
            _ => needs.iter().all(|(column, needed)| *needed <= self.room(*column, reach)),
        }
    }

    fn room(&self, column: usize, reach: Reach) -> u64 {
        let capacity = amount(&self.capacity, column);
        let allowed = match (&self.allowance, reach) {
            (None, _) | (_, Reach::Whole) => capacity,
            (Some(Allowed { own, .. }), Reach::Own) => amount(own, column).min(capacity),
            (Some(Allowed { own, more }), Reach::More) => {
                amount(own, column).saturating_add(amount(more, column)).min(capacity)
            }
        };
        allowed.saturating_sub(amount(&self.reserved, column))
    }

    /// What decisions read, after something has changed.
    fn count(&mut self) {
        self.room = (0..self.capacity.len()).map(|column| self.room(column, Reach::Own)).collect();
        let share = |(used, capacity): (&u64, &u64)| match capacity {
            0 => 0,
            capacity => (u128::from(*used) * 1_000_000 / u128::from(*capacity)).min(1_000_000) as u32,
        };
        self.load = self.reserved.iter().zip(&self.capacity).map(share).max().unwrap_or(0);
    }
}

/// Rows are as long as they need to be.
fn amount(row: &[u64], column: usize) -> u64 {
    row.get(column).copied().unwrap_or(0)
}

/// The preferences that a node meets, as points.
fn preferred(node: &Node, request: &Request) -> i64 {
    let all: i64 = request.affinity.prefer.iter().map(|preference| i64::from(preference.weight)).sum();
    let met = request.affinity.prefer.iter().filter(|wish| node.labels.get(&wish.label) == Some(&wish.value));
    let met: i64 = met.map(|preference| i64::from(preference.weight)).sum();
    if all == 0 { 0 } else { met * MOST_POINTS / all }
}

/// FNV-1a: any function would do that scatters names and stays the same on every machine and in every release.
fn rank(salt: u64, node: &NodeId) -> u64 {
    if salt == 0 {
        return 0;
    }
    let bytes = salt.to_le_bytes();
    let bytes = bytes.iter().chain(node.as_str().as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
