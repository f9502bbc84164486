//! What is reserved on the nodes, and the choice between them.
//!
//! Resources have columns: an amount is a number in a row, not an entry in a map, because comparing amounts is what
//! a decision consists of.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use tenure_model::{NodeId, Resources};

use crate::catalog::{MOST_KNOWN, Prospect, Prospects};
use crate::score::{Facts, MOST_POINTS, Policy, ScoreParts};
use crate::{Allowance, Catalog, History, Rejection, Request};

/// For how long a failure counts against a node, in minutes. Each minute takes a tenth of it away.
const FAILURES_COUNT_FOR: i64 = 10;

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    policy: Policy,
    salt: u64,
    catalog: Arc<Catalog>,
    /// Others place on these nodes too: nothing is this one's but what it was allowed.
    shared: bool,
    /// Nodes that there is more to be said of than the catalog says.
    places: Vec<Place>,
    by_name: BTreeMap<NodeId, usize>,
    /// Places that nobody has.
    vacant: Vec<usize>,
    /// Places that something may still be placed on. At full nodes they are few.
    roomy: BTreeSet<usize>,
    /// The place of each entry of the catalog, or `NO_PLACE`.
    place_of_entry: Vec<u32>,
    columns: BTreeMap<String, usize>,
    /// How many attempts of each group are at each place.
    groups: BTreeMap<String, BTreeMap<usize, u32>>,
    /// Places with failures that still count.
    failing: BTreeMap<usize, Timestamp>,
    known: BTreeMap<Request, Known>,
}

const NO_PLACE: u32 = u32::MAX;

/// How much of a node counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    Own,
    More,
    Whole,
}

/// A node that something of this cluster is on, or was, or that it was told something about.
#[derive(Clone, Debug, Default)]
struct Place {
    id: Option<NodeId>,
    /// Where it is in the catalog. `None`: it holds attempts but is not registered (yet, or any more), and has no room for
    /// new ones.
    entry: Option<usize>,
    capacity: Vec<u64>,
    reserved: Vec<u64>,
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

/// A request that was asked for before.
#[derive(Clone, Debug)]
struct Known {
    needs: Needs,
    prospects: Arc<Prospects>,
    /// The prospects as they would be chosen if nothing were known of any: positions in the list. Only found out for those who
    /// have to choose between nodes that they have nothing of.
    untouched_order: OnceLock<Vec<u32>>,
}

/// Amounts by column.
type Needs = Vec<(usize, u64)>;

/// How many attempts of the request's group are at each value of the label.
#[derive(Debug, Default)]
pub(crate) struct Crowds {
    at: Vec<u32>,
    least: u32,
}

/// What an attempt's history says about nodes.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    failed_on: Option<usize>,
    /// Points, by entry; few.
    near: Vec<(usize, i64)>,
}

/// A node and what it is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// In the catalog.
    pub entry: usize,
    pub parts: ScoreParts,
    load: u32,
}

impl Cluster {
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// With these nodes.
    pub fn of(policy: Policy, catalog: Catalog) -> Self {
        let mut cluster = Self::new(policy);
        cluster.follow(Arc::new(catalog));
        cluster
    }

    /// Several schedulers that know nothing of each other's next step should not all begin with the same node. With a
    /// salt, equals come in an order of its own; without one, by name.
    pub fn salted(mut self, salt: u64) -> Self {
        self.salt = salt;
        self
    }

    /// From now on nothing is this cluster's but what it is allowed; of nodes that it was told nothing about, all might be
    /// had by asking.
    pub fn share_with_others(&mut self) {
        self.shared = true;
        (0..self.places.len()).for_each(|at| self.count(at));
    }

    /// The nodes are these from now on. What is reserved on one that is gone stays on the books until it is released; should
    /// it come back, it is a new one.
    pub fn follow(&mut self, catalog: Arc<Catalog>) {
        self.known.clear();
        self.place_of_entry.clear();
        self.place_of_entry.resize(catalog.len(), NO_PLACE);
        for at in 0..self.places.len() {
            let Some(id) = &self.places[at].id else { continue };
            let entry = catalog.find(id);
            match entry {
                Some(entry) => {
                    self.place_of_entry[entry] = at as u32;
                    let capacity = &catalog.entries()[entry].node.capacity;
                    self.places[at].capacity = row(&mut self.columns, capacity);
                }
                None => (self.places[at].capacity, self.places[at].allowance) = (vec![], None),
            }
            self.places[at].entry = entry;
            self.count(at);
            self.vacate(at);
        }
        self.catalog = catalog;
    }

    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub fn allow(&mut self, node: &NodeId, allowance: Allowance) {
        let at = self.place_of(node);
        let allowed = Allowed { own: self.row(&allowance.own), more: self.row(&allowance.more) };
        self.places[at].allowance = Some(allowed);
        self.count(at);
    }

    /// What was said about the node before is out of date, and it has nothing that is this cluster's.
    pub fn forget_allowance(&mut self, node: &NodeId) {
        if let Some(at) = self.by_name.get(node).copied() {
            self.places[at].allowance = None;
            self.count(at);
            self.vacate(at);
        }
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
        self.count(at);
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
        self.count(at);
        if let Some(group) = &request.group {
            self.leave_group(group, at);
        }
        self.vacate(at);
    }

    /// An attempt has failed on a node: others are preferred to it for a while.
    pub fn note_failure(&mut self, node: &NodeId, at: Timestamp) {
        if self.catalog.find(node).is_some() {
            let place = self.place_of(node);
            let latest = self.failing.entry(place).or_insert(at);
            *latest = at.max(*latest);
        }
    }

    /// Time passes: failures count for less.
    pub fn advance(&mut self, now: Timestamp) {
        let mut forgotten = vec![];
        let places = &mut self.places;
        self.failing.retain(|place, at| {
            let minutes = (now.as_second() - at.as_second()).max(0) / 60;
            let points = MOST_POINTS * (FAILURES_COUNT_FOR - minutes).max(0) / FAILURES_COUNT_FOR;
            places[*place].failed_lately = points;
            forgotten.extend((points == 0).then_some(*place));
            points > 0
        });
        forgotten.into_iter().for_each(|place| self.vacate(place));
    }

    /// Nodes of which more was allowed than is reserved on them, or less, in any resource.
    pub fn uneven(&self) -> impl Iterator<Item = &NodeId> {
        let is_uneven = |place: &&Place| {
            let own = place.allowance.as_ref().map_or(&[][..], |allowed| &allowed.own);
            let columns = 0..own.len().max(place.reserved.len());
            columns.into_iter().any(|column| amount(own, column) != amount(&place.reserved, column))
        };
        self.places.iter().filter(is_uneven).filter_map(|place| place.id.as_ref())
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
        Some(self.name(&choice))
    }

    /// A node that meets the request's wishes better than the one that `place` would take, and that it would take if
    /// it had all that is to be had. Being near to what came before is no reason to ask.
    pub fn better_elsewhere(&mut self, request: &Request, history: &History) -> Option<NodeId> {
        if request.affinity.is_empty() && history.failed_on.is_none() {
            return None;
        }
        self.learn(request);
        let known = &self.known[request];
        let own = self.best(request, known, history, Reach::Own)?;
        let better = self.best(request, known, history, Reach::More)?;
        (better.parts.wishes() > own.parts.wishes()).then(|| self.name(&better))
    }

    /// The node that `place` would take if it had all that is to be had.
    pub fn attainable(&self, request: &Request) -> Option<NodeId> {
        self.best_of_all(request, Reach::More)
    }

    /// The node that `place` would take if the others gave up what they have of it.
    pub fn conceivable(&self, request: &Request) -> Option<NodeId> {
        self.best_of_all(request, Reach::Whole)
    }

    /// Whether any node can take it.
    pub(crate) fn has_room_for(&self, request: &Request, reach: Reach) -> bool {
        let (needs, whole) = (self.needs(request), !self.shared || !matches!(reach, Reach::Own));
        let fits = |entry| self.place_at(entry).map_or(whole, |place| place.fits(&needs, reach, self.shared));
        self.catalog.prospects(request).nodes.iter().any(|prospect| fits(prospect.entry))
    }

    fn best_of_all(&self, request: &Request, reach: Reach) -> Option<NodeId> {
        let choice = match self.known.get(request) {
            Some(known) => self.best(request, known, &History::default(), reach)?,
            None => self.best(request, &self.to_be_known(request), &History::default(), reach)?,
        };
        Some(self.name(&choice))
    }

    fn to_be_known(&self, request: &Request) -> Known {
        let prospects = self.catalog.prospects(request);
        Known { needs: self.needs(request), prospects, untouched_order: OnceLock::new() }
    }

    fn best(&self, request: &Request, known: &Known, history: &History, reach: Reach) -> Option<Choice> {
        let Known { needs, prospects, .. } = known;
        let traces = self.traces(history);
        let crowds = self.crowds(request, prospects);
        let mut best: Option<Choice> = None;
        let mut consider = |prospect: &Prospect| {
            let choice = self.judge(prospect, &crowds, &traces);
            if best.is_none_or(|best| self.order(&choice) < self.order(&best)) {
                best = Some(choice);
            }
        };
        // Those that nothing is known of are as good as each other but for what never changes: the first of them stands for
        // all. So what this cluster has decides how long this takes, not how many nodes there are.
        let alike = request.affinity.spread.is_none() && *history == History::default();
        let mut consider_place = |place: &Place| {
            if place.fits(needs, reach, self.shared) {
                place.entry.and_then(|entry| prospects.of(entry)).into_iter().for_each(&mut consider);
            }
        };
        if self.shared && matches!(reach, Reach::Own) {
            // Every request takes something, if only a slot.
            self.roomy.iter().for_each(|at| consider_place(&self.places[*at]));
        } else if self.shared && alike {
            self.places.iter().for_each(consider_place);
            self.first_untouched(known).into_iter().for_each(consider);
        } else {
            let fits =
                |at: usize| self.place_at(at).is_none_or(|place| place.fits(needs, reach, self.shared));
            prospects.nodes.iter().filter(|prospect| fits(prospect.entry)).for_each(consider);
        }
        best
    }

    /// Of nodes that this cluster knows nothing of, the one that it would choose.
    fn first_untouched<'a>(&self, known: &'a Known) -> Option<&'a Prospect> {
        let nodes = &known.prospects.nodes;
        let order = known.untouched_order.get_or_init(|| {
            let mut order: Vec<u32> = (0..nodes.len() as u32).collect();
            order.sort_by_cached_key(|at| {
                let Prospect { entry, preferred, .. } = nodes[*at as usize];
                (Reverse(preferred), self.catalog.entries()[entry].rank(self.salt), entry)
            });
            order
        });
        order.iter().map(|at| &nodes[*at as usize]).find(|prospect| self.place_at(prospect.entry).is_none())
    }

    pub(crate) fn judge(&self, prospect: &Prospect, crowds: &Crowds, traces: &Traces) -> Choice {
        let (load, failed_lately) =
            self.place_at(prospect.entry).map_or((0, 0), |place| (place.load, place.failed_lately));
        let parts = self.policy.score(&Facts {
            load,
            preferred: prospect.preferred,
            beyond_least: prospect.value.map(|value| crowds.at[value] - crowds.least),
            failed_here: traces.failed_on == Some(prospect.entry),
            failed_lately,
            locality: traces.near_to(prospect.entry),
        });
        Choice { entry: prospect.entry, parts, load }
    }

    /// Best first: by score, then exactly by load, then by the order of this cluster, then by name.
    pub(crate) fn order(&self, choice: &Choice) -> (Reverse<i64>, u32, u64, usize) {
        let rank = self.catalog.entries()[choice.entry].rank(self.salt);
        (Reverse(choice.parts.total()), self.policy.tie(choice.load), rank, choice.entry)
    }

    pub(crate) fn name(&self, choice: &Choice) -> NodeId {
        self.catalog.entries()[choice.entry].id.clone()
    }

    /// Nodes that are not there any more count for nothing, and make those that are no nearer.
    pub(crate) fn traces(&self, history: &History) -> Traces {
        let all: i64 = history.near.values().map(|count| i64::from(*count)).sum();
        let here = |(node, count): (&NodeId, &u32)| Some((self.catalog.find(node)?, i64::from(*count)));
        let points = |(entry, count)| (entry, MOST_POINTS * count / all.max(1));
        let mut near: Vec<(usize, i64)> = history.near.iter().filter_map(here).map(points).collect();
        near.sort_unstable();
        Traces { failed_on: history.failed_on.as_ref().and_then(|node| self.catalog.find(node)), near }
    }

    /// Makes sure that the request is known.
    fn learn(&mut self, request: &Request) {
        if !self.known.contains_key(request) {
            if self.known.len() >= MOST_KNOWN {
                self.known.clear();
            }
            // Every resource has its column before the first place that has some of it.
            row(&mut self.columns, &request.resources);
            let known = self.to_be_known(request);
            self.known.insert(request.clone(), known);
        }
    }

    fn needs(&self, request: &Request) -> Needs {
        // What has no column no place has any of.
        let column = |name: &String| self.columns.get(name).copied().unwrap_or(usize::MAX);
        request.resources.0.iter().map(|(name, amount)| (column(name), *amount)).collect()
    }

    pub(crate) fn crowds(&self, request: &Request, prospects: &Prospects) -> Crowds {
        let mut at = vec![0; prospects.values];
        let members = request.group.as_ref().and_then(|group| self.groups.get(group));
        for (place, count) in members.into_iter().flatten() {
            let entry = self.places[*place].entry;
            if let Some(value) = entry.and_then(|entry| prospects.of(entry)).and_then(|found| found.value) {
                at[value] += count;
            }
        }
        let least = at.iter().min().copied().unwrap_or(0);
        Crowds { at, least }
    }

    /// What is missing of each resource that a node has enough of when it is empty.
    pub(crate) fn busy(&self, entry: usize, request: &Request, reach: Reach) -> Vec<Rejection> {
        let capacity = &self.catalog.entries()[entry].node.capacity;
        let place = self.place_at(entry);
        let free = |resource: &str| match (place, self.columns.get(resource)) {
            (Some(place), Some(column)) => place.room(*column, reach, self.shared),
            _ if self.shared && matches!(reach, Reach::Own) => 0,
            _ => capacity.get(resource),
        };
        let needs = request.resources.0.iter().filter_map(|(resource, needed)| {
            let free = free(resource);
            let fits_when_empty = *needed <= capacity.get(resource);
            (fits_when_empty && *needed > free).then(|| Rejection::Busy {
                resource: resource.clone(),
                needed: *needed,
                free,
            })
        });
        needs.collect()
    }

    /// How much a node is short of, in each resource that it is short of.
    pub(crate) fn missing(&self, entry: usize, request: &Request, reach: Reach) -> BTreeMap<String, u64> {
        let missing = self.busy(entry, request, reach).into_iter().filter_map(|rejection| match rejection {
            Rejection::Busy { resource, needed, free } => Some((resource, needed - free)),
            _ => None,
        });
        missing.collect()
    }

    /// `None`: there is no more to be said of it than the catalog says.
    fn place_at(&self, entry: usize) -> Option<&Place> {
        self.places.get(self.place_of_entry[entry] as usize)
    }

    fn place_of(&mut self, node: &NodeId) -> usize {
        if let Some(at) = self.by_name.get(node) {
            return *at;
        }
        let entry = self.catalog.find(node);
        let mut place = Place { id: Some(node.clone()), entry, ..Place::default() };
        if let Some(entry) = entry {
            place.capacity = row(&mut self.columns, &self.catalog.entries()[entry].node.capacity);
        }
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
        if let Some(entry) = entry {
            self.place_of_entry[entry] = at as u32;
        }
        self.by_name.insert(node.clone(), at);
        self.count(at);
        at
    }

    /// What decisions read, after something has changed at a place.
    fn count(&mut self, at: usize) {
        let place = &mut self.places[at];
        place.count(self.shared);
        if place.room.iter().any(|amount| *amount > 0) {
            self.roomy.insert(at);
        } else {
            self.roomy.remove(&at);
        }
    }

    /// A place that there is nothing to be said of can be somebody else's. Where all nodes are this cluster's alone they are
    /// kept, because they will be used again.
    fn vacate(&mut self, at: usize) {
        let place = &mut self.places[at];
        let idle = place.attempts == 0 && place.allowance.is_none();
        let unknown = place.entry.is_none() || (self.shared && !self.failing.contains_key(&at));
        if !idle || !unknown || place.id.is_none() {
            return;
        }
        let Place { id, entry, .. } = std::mem::take(place);
        if let Some(entry) = entry {
            self.place_of_entry[entry] = NO_PLACE;
        }
        self.by_name.remove(&id.expect("it was there"));
        self.failing.remove(&at);
        self.roomy.remove(&at);
        self.vacant.push(at);
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

    fn row(&mut self, resources: &Resources) -> Vec<u64> {
        row(&mut self.columns, resources)
    }

    fn named(&self, row: &[u64]) -> Resources {
        let amounts = self.columns.iter().map(|(name, column)| (name.clone(), amount(row, *column)));
        Resources(amounts.filter(|(_, amount)| *amount > 0).collect())
    }
}

impl Traces {
    /// Points.
    fn near_to(&self, entry: usize) -> i64 {
        self.near.binary_search_by_key(&entry, |(at, _)| *at).map_or(0, |found| self.near[found].1)
    }
}

impl Place {
    fn fits(&self, needs: &[(usize, u64)], reach: Reach, shared: bool) -> bool {
        match reach {
            Reach::Own => needs.iter().all(|(column, needed)| *needed <= amount(&self.room, *column)),
            _ => needs.iter().all(|(column, needed)| *needed <= self.room(*column, reach, shared)),
        }
    }

    fn room(&self, column: usize, reach: Reach, shared: bool) -> u64 {
        let capacity = amount(&self.capacity, column);
        let allowed = match (&self.allowance, reach) {
            (None, Reach::Own) if shared => 0,
            (None, _) | (_, Reach::Whole) => capacity,
            (Some(Allowed { own, .. }), Reach::Own) => amount(own, column).min(capacity),
            (Some(Allowed { own, more }), Reach::More) => {
                amount(own, column).saturating_add(amount(more, column)).min(capacity)
            }
        };
        allowed.saturating_sub(amount(&self.reserved, column))
    }

    fn count(&mut self, shared: bool) {
        self.room = (0..self.capacity.len()).map(|column| self.room(column, Reach::Own, shared)).collect();
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

/// Amounts by column; names that are new get one.
fn row(columns: &mut BTreeMap<String, usize>, resources: &Resources) -> Vec<u64> {
    let mut row = vec![];
    for (name, amount) in &resources.0 {
        let next = columns.len();
        let column = match columns.get(name) {
            Some(column) => *column,
            None => *columns.entry(name.clone()).or_insert(next),
        };
        row.resize(row.len().max(column + 1), 0);
        row[column] = *amount;
    }
    row
}
