//! Who holds what: pool slots, quotas, places in a run and in a dag, resources of nodes.
//!
//! A task instance occupies from its binding until its attempt has ended. What was taken is written
//! down with it, so that exactly that is given back even when the dag has changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tenure_model::{NodeId, PoolName, Resources, RunKey, TaskId, TaskNo, TenantId, TiKey};
use tenure_placement::{Allowance, Catalog, Cluster, History, Policy, Request};
use tenure_store::{Common, PoolRecord, Quota, Share};

use crate::dags::DagNo;

/// Something that can hold a task back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// The dag is paused.
    Paused(DagNo),
    /// `max_active_tasks` of a run.
    Run(RunKey),
    /// `max_active_per_dag` of a task.
    TaskInDag(DagNo, TaskId),
    /// `max_active_per_run` of a task.
    TaskInRun(RunKey, TaskId),
    /// A pool, for tasks that take so many of its slots.
    Pool(PoolName, u32),
    /// What a tenant may take of all nodes, for requests of this shape.
    Quota(TenantId, Shape),
    /// No node has room for this shape of request.
    Capacity(Shape),
    /// The last attempt of the task was ended by a user, and its node has not said yet that it is gone.
    Leaving(TiKey),
    /// A node that suits the task better could be had, if this shard asked for a share of it. Waited for until it has
    /// been asked for, whatever the answer, and a few times at the most.
    BetterNode(TiKey),
}

impl Limit {
    /// Those that dags share come one after the other, from here on.
    pub fn first_shared() -> Self {
        Self::Pool(PoolName::new(""), 0)
    }

    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Pool(..) | Self::Quota(..) | Self::Capacity(_))
    }

    /// In a word or two. What exactly a task waits for is told by `tenure-outlook` to whoever asks.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Paused(_) => "paused",
            Self::Run(_) => "run",
            Self::TaskInDag(..) => "task in dag",
            Self::TaskInRun(..) => "task in run",
            Self::Pool(..) => "pool",
            Self::Quota(..) => "quota",
            Self::Capacity(_) | Self::BetterNode(_) => "node",
            Self::Leaving(_) => "last attempt",
        }
    }
}

/// A distinct request: tasks that ask for the same wait together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape(u32);

impl Shape {
    pub const FIRST: Self = Self(0);
    pub const LAST: Self = Self(u32::MAX);
}

/// What a task wants to occupy.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub tenant: TenantId,
    pub dag: DagNo,
    pub run: RunKey,
    pub task: TaskId,
    /// As its author gave it, without that of the tasks behind it.
    pub priority: i64,
    pub pool: PoolName,
    pub pool_slots: u32,
    pub request: Request,
    pub history: History,
    pub max_active_in_run: u32,
    pub max_active_per_dag: Option<u32>,
    pub max_active_per_run: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    cluster: Cluster,
    pools: BTreeMap<PoolName, Slots>,
    /// Of tenants that have one, or have had one.
    quotas: BTreeMap<TenantId, Budget>,
    /// What each tenant takes.
    taken: BTreeMap<TenantId, Resources>,
    runs: BTreeMap<RunKey, u32>,
    tasks_in_dags: BTreeMap<(DagNo, TaskId), u32>,
    tasks_in_runs: BTreeMap<(RunKey, TaskId), u32>,
    held: BTreeMap<TiKey, Held>,
    /// The same by node, without nodes that hold nothing.
    held_on: BTreeMap<NodeId, BTreeSet<TiKey>>,
    /// Other shards draw from the same pools and nodes.
    shared: bool,
    /// This shard's shares of nodes, where it has any.
    allowed: BTreeMap<NodeId, Resources>,
    shapes: Vec<Request>,
    shape_of: BTreeMap<Request, Shape>,
    /// Tasks that have waited for a better node.
    asked: BTreeMap<TiKey, Asked>,
    /// The caps that parked candidates last ran into, to know when there is room again.
    caps: BTreeMap<Limit, u32>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Absent: the pool does not exist, or no longer.
    total: Option<u32>,
    used: u32,
    /// What this shard may use of it. Absent: all of it, because there is no other shard.
    share: Option<u32>,
}

/// A tenant's quota.
#[derive(Debug, Default)]
struct Budget {
    /// Absent: there is no limit, or no longer.
    most: Option<Resources>,
    /// What this shard may use of it. Absent: all of it, because there is no other shard.
    share: Option<Resources>,
}

/// How a shard stands with something that all shards draw from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Account {
    pub total: Resources,
    pub share: Resources,
    pub used: Resources,
}

/// What a task has waited for last, and how often it has waited.
#[derive(Debug)]
struct Asked {
    node: NodeId,
    one: Resources,
    times: u8,
}

/// Each costs a trade of shares. Tasks that ask together all name the same node at first, so that one that wants to be
/// spread may have to name another.
const MOST_ASKED: u8 = 3;

/// How a pool's slots are called among the resources.
pub(crate) const SLOTS: &str = "slots";

#[derive(Debug)]
struct Held {
    node: NodeId,
    wish: Wish,
}

impl Ledger {
    /// `salt` is this shard's own: see [`Cluster::salted`].
    pub fn new(policy: Policy, salt: u64) -> Self {
        Self { cluster: Cluster::new(policy).salted(salt), ..Self::default() }
    }

    pub fn set_limits(&mut self, pools: &[PoolRecord], quotas: &[Quota], nodes: &Arc<Catalog>) {
        self.pools.values_mut().for_each(|slots| slots.total = None);
        for pool in pools {
            let slots = self.pools.entry(pool.name.clone()).or_default();
            slots.total = Some(pool.slots);
            if self.shared {
                slots.share.get_or_insert(0);
            }
        }
        self.quotas.values_mut().for_each(|budget| budget.most = None);
        for quota in quotas {
            let budget = self.quotas.entry(quota.tenant.clone()).or_default();
            budget.most = Some(quota.most.clone());
            if self.shared {
                budget.share.get_or_insert_default();
            }
        }
        if !Arc::ptr_eq(nodes, self.cluster.catalog()) {
            self.cluster.follow(Arc::clone(nodes));
            // A node that comes back is a new one to the cluster: nothing is this shard's until it has asked.
            self.allowed.retain(|node, _| nodes.node(node).is_some());
        }
    }

    /// Several shards draw from the same pools and nodes: nothing is this one's but its shares.
    pub fn share_with_others(&mut self) {
        self.shared = true;
        self.cluster.share_with_others();
    }

    pub fn set_share(&mut self, share: &Share) {
        match &share.of {
            Common::Pool(pool) => {
                let slots = (share.amount.get(SLOTS) / 1_000) as u32;
                self.pools.entry(pool.clone()).or_default().share = Some(slots);
            }
            Common::Quota(tenant) => {
                self.quotas.entry(tenant.clone()).or_default().share = Some(share.amount.clone());
            }
            Common::Node(node) => {
                let own = share.amount.clone();
                self.cluster.allow(node, Allowance { own: own.clone(), more: share.free.clone() });
                match own.is_empty() {
                    true => drop(self.allowed.remove(node)),
                    false => drop(self.allowed.insert(node.clone(), own)),
                }
            }
        }
    }

    /// What others had of a node was heard long ago. Nothing is forgotten that is this shard's.
    pub fn forget_others_on(&mut self, node: &NodeId) {
        if !self.allowed.contains_key(node) {
            self.cluster.forget_allowance(node);
        }
    }

    /// What there is of it, what this shard may use, and what it does use.
    pub fn account(&self, of: &Common) -> Account {
        match of {
            Common::Pool(pool) => {
                let slots = |count: u32| Resources::default().with(SLOTS, u64::from(count) * 1_000);
                let Some(pool) = self.pools.get(pool) else { return Account::default() };
                Account {
                    total: slots(pool.total.unwrap_or(0)),
                    share: slots(pool.share.unwrap_or(0)),
                    used: slots(pool.used),
                }
            }
            Common::Quota(tenant) => {
                let Some(Budget { most: Some(most), share }) = self.quotas.get(tenant) else {
                    return Account::default();
                };
                let taken = self.taken.get(tenant);
                let counted =
                    most.0.keys().map(|name| (name.clone(), taken.map_or(0, |taken| taken.get(name))));
                Account {
                    total: most.clone(),
                    share: share.clone().unwrap_or_default(),
                    used: Resources(counted.filter(|(_, used)| *used > 0).collect()),
                }
            }
            Common::Node(node) => Account {
                total: self
                    .cluster
                    .catalog()
                    .node(node)
                    .map(|node| node.capacity.clone())
                    .unwrap_or_default(),
                share: self.allowed.get(node).cloned().unwrap_or_default(),
                used: self.cluster.reserved(node).unwrap_or_default(),
            },
        }
    }

    /// What this shard may use more of than it does, or uses more of than it may.
    pub fn uneven(&self) -> impl Iterator<Item = Common> {
        let pools =
            self.pools.iter().filter(|(_, slots)| slots.share.is_some_and(|share| share != slots.used));
        let pools = pools.map(|(pool, _)| Common::Pool(pool.clone()));
        let quotas = self.quotas.keys().map(|tenant| Common::Quota(tenant.clone()));
        let quotas = quotas.filter(|of| {
            let Account { share, used, .. } = self.account(of);
            share != used
        });
        pools.chain(quotas).chain(self.cluster.uneven().cloned().map(Common::Node))
    }

    /// Everything this shard has a share of, or should have.
    pub fn shares(&self) -> Vec<Common> {
        let pools = self.pools.iter().filter(|(_, slots)| slots.share.is_some_and(|share| share > 0));
        // What runs already counts against a quota that comes later.
        let quotas = self.quotas.keys().filter(|tenant| self.taken.contains_key(*tenant));
        pools
            .map(|(pool, _)| Common::Pool(pool.clone()))
            .chain(quotas.map(|tenant| Common::Quota(tenant.clone())))
            .chain(self.allowed.keys().map(|node| Common::Node(node.clone())))
            .collect()
    }

    /// What tasks that wait at this limit ask for, and of what. `None`: more of a share would not help them.
    pub fn demand(&self, limit: &Limit) -> Option<(Common, Resources)> {
        match limit {
            Limit::Pool(pool, slots) => {
                let one = Resources::default().with(SLOTS, u64::from(*slots) * 1_000);
                Some((Common::Pool(pool.clone()), one))
            }
            Limit::Quota(tenant, shape) => {
                let most = self.quotas.get(tenant)?.most.as_ref()?;
                let asked = &self.shapes[shape.0 as usize].resources.0;
                let limited = asked.iter().filter(|(name, _)| most.0.contains_key(*name));
                let one = Resources(limited.map(|(name, amount)| (name.clone(), *amount)).collect());
                Some((Common::Quota(tenant.clone()), one))
            }
            Limit::Capacity(shape) => {
                let request = &self.shapes[shape.0 as usize];
                let node = self.cluster.attainable(request).or_else(|| self.cluster.conceivable(request))?;
                Some((Common::Node(node), request.resources.clone()))
            }
            Limit::BetterNode(ti) => {
                let Asked { node, one, .. } = self.asked.get(ti)?;
                Some((Common::Node(node.clone()), one.clone()))
            }
            _ => None,
        }
    }

    /// Takes everything the wish asks for, or nothing and says what is in the way.
    pub fn take(&mut self, ti: TiKey, wish: Wish) -> Result<NodeId, Limit> {
        if let Some(limit) = self.blocked(&wish) {
            return Err(limit);
        }
        let times = self.asked.get(&ti).map_or(0, |asked| asked.times);
        if self.shared
            && times < MOST_ASKED
            && let Some(node) = self.cluster.better_elsewhere(&wish.request, &wish.history)
        {
            self.asked.insert(ti, Asked { node, one: wish.request.resources, times: times + 1 });
            return Err(Limit::BetterNode(ti));
        }
        match self.cluster.place(&wish.request, &wish.history) {
            Some(node) => {
                self.asked.remove(&ti);
                self.note(ti, node.clone(), wish);
                Ok(node)
            }
            None => Err(Limit::Capacity(self.shape(wish.request))),
        }
    }

    /// An attempt has failed on this node.
    pub fn note_failure(&mut self, node: &NodeId, at: Timestamp) {
        self.cluster.note_failure(node, at);
    }

    /// Old failures count for less.
    pub fn advance(&mut self, now: Timestamp) {
        self.cluster.advance(now);
    }

    /// Writes down what an attempt that is already bound occupies.
    pub fn recover(&mut self, ti: TiKey, node: NodeId, wish: Wish) {
        self.cluster.reserve(&node, &wish.request);
        self.note(ti, node, wish);
    }

    /// The nodes, with what is taken of them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Everything that occupies something, where, and what it asked for.
    pub fn held(&self) -> impl Iterator<Item = (TiKey, &NodeId, &Wish)> {
        self.held.iter().map(|(ti, held)| (*ti, &held.node, &held.wish))
    }

    /// Nodes on which something is bound, by name.
    pub fn nodes_in_use(&self) -> impl Iterator<Item = &NodeId> {
        self.held_on.keys()
    }

    pub fn is_in_use(&self, node: &NodeId) -> bool {
        self.held_on.contains_key(node)
    }

    /// What is bound on a node.
    pub fn held_on<'a>(&'a self, node: &NodeId) -> impl Iterator<Item = TiKey> + 'a {
        self.held_on.get(node).into_iter().flatten().copied()
    }

    /// Gives back what `ti` holds, if anything; answers with what may have room now.
    pub fn give_back(&mut self, ti: TiKey) -> Vec<Limit> {
        let Some(Held { node, wish }) = self.held.remove(&ti) else { return vec![] };
        self.cluster.release(&node, &wish.request);
        let on_node = self.held_on.get_mut(&node).expect("what is given back was taken");
        on_node.remove(&ti);
        if on_node.is_empty() {
            self.held_on.remove(&node);
        }
        self.pools.entry(wish.pool.clone()).or_default().used -= wish.pool_slots;
        let taken = self.taken.get_mut(&wish.tenant).expect("what is given back was taken");
        taken.subtract(&wish.request.resources);
        taken.0.retain(|_, amount| *amount > 0);
        if taken.is_empty() {
            self.taken.remove(&wish.tenant);
        }
        if decrement(&mut self.runs, &wish.run) == 0 {
            // A cap that is not known lets candidates through to be checked again.
            self.caps.remove(&Limit::Run(wish.run));
        }
        decrement(&mut self.tasks_in_dags, &(wish.dag, wish.task.clone()));
        decrement(&mut self.tasks_in_runs, &(wish.run, wish.task.clone()));
        vec![
            Limit::Quota(wish.tenant, Shape::FIRST),
            Limit::Run(wish.run),
            Limit::TaskInDag(wish.dag, wish.task.clone()),
            Limit::TaskInRun(wish.run, wish.task),
            Limit::Pool(wish.pool, wish.pool_slots),
        ]
    }

    /// Gives back everything the tasks of a run hold.
    pub fn give_back_run(&mut self, run: RunKey) -> Vec<Limit> {
        let first = TiKey { run, task: TaskNo(0), map_index: i32::MIN };
        let asked: Vec<TiKey> =
            self.asked.range(first..).map(|(ti, _)| *ti).take_while(|ti| ti.run == run).collect();
        asked.iter().for_each(|ti| drop(self.asked.remove(ti)));
        let held: Vec<TiKey> =
            self.held.range(first..).map(|(ti, _)| *ti).take_while(|ti| ti.run == run).collect();
        held.into_iter().flat_map(|ti| self.give_back(ti)).collect()
    }

    /// Every limit that could hold a wish back.
    pub fn limits_of(&self, ti: TiKey, wish: &Wish) -> Vec<Limit> {
        let shape = self.shape_of.get(&wish.request);
        let of_shape =
            shape.map(|shape| [Limit::Quota(wish.tenant.clone(), *shape), Limit::Capacity(*shape)]);
        let others = [
            Limit::BetterNode(ti),
            Limit::Leaving(ti),
            Limit::Paused(wish.dag),
            Limit::Run(wish.run),
            Limit::TaskInDag(wish.dag, wish.task.clone()),
            Limit::TaskInRun(wish.run, wish.task.clone()),
            Limit::Pool(wish.pool.clone(), wish.pool_slots),
        ];
        others.into_iter().chain(of_shape.into_iter().flatten()).collect()
    }

    /// How many more could pass this limit; for `Capacity` one at a time.
    pub fn room(&mut self, limit: &Limit) -> usize {
        let cap = self.caps.get(limit).copied().unwrap_or(u32::MAX);
        let below = |used: Option<&u32>| cap.saturating_sub(used.copied().unwrap_or(0)) as usize;
        match limit {
            // Freed only when the dag is unpaused.
            Limit::Paused(_) => usize::MAX,
            // Freed only when the share has been asked for, or when the attempt is gone.
            Limit::BetterNode(_) | Limit::Leaving(_) => 1,
            Limit::Run(run) => below(self.runs.get(run)),
            Limit::TaskInDag(dag, task) => below(self.tasks_in_dags.get(&(*dag, task.clone()))),
            Limit::TaskInRun(run, task) => below(self.tasks_in_runs.get(&(*run, task.clone()))),
            Limit::Pool(pool, slots) => {
                (self.pools.get(pool).map_or(0, Slots::free) / (*slots).max(1)) as usize
            }
            Limit::Quota(tenant, shape) => {
                self.room_of_quota(tenant, &self.shapes[shape.0 as usize].resources)
            }
            Limit::Capacity(shape) => usize::from(
                self.cluster.choose(&self.shapes[shape.0 as usize], &History::default()).is_some(),
            ),
        }
    }

    fn blocked(&mut self, wish: &Wish) -> Option<Limit> {
        let count = |used: Option<&u32>| used.copied().unwrap_or(0);
        let task_in_dag = Limit::TaskInDag(wish.dag, wish.task.clone());
        let task_in_run = Limit::TaskInRun(wish.run, wish.task.clone());
        let in_dag = count(self.tasks_in_dags.get(&(wish.dag, wish.task.clone())));
        let in_run = count(self.tasks_in_runs.get(&(wish.run, wish.task.clone())));
        let caps = [
            (Limit::Run(wish.run), count(self.runs.get(&wish.run)), Some(wish.max_active_in_run)),
            (task_in_dag, in_dag, wish.max_active_per_dag),
            (task_in_run, in_run, wish.max_active_per_run),
        ];
        for (limit, used, cap) in caps {
            if let Some(cap) = cap.filter(|cap| used >= *cap) {
                self.caps.insert(limit.clone(), cap);
                return Some(limit);
            }
        }
        let free = self.pools.get(&wish.pool).map_or(0, Slots::free);
        if free < wish.pool_slots {
            return Some(Limit::Pool(wish.pool.clone(), wish.pool_slots));
        }
        (self.room_of_quota(&wish.tenant, &wish.request.resources) == 0)
            .then(|| Limit::Quota(wish.tenant.clone(), self.shape(wish.request.clone())))
    }

    /// How many of them the tenant may still take.
    fn room_of_quota(&self, tenant: &TenantId, one: &Resources) -> usize {
        let Some(Budget { most: Some(most), share }) = self.quotas.get(tenant) else { return usize::MAX };
        let taken = |name: &str| self.taken.get(tenant).map_or(0, |taken| taken.get(name));
        let room = |(name, most): (&String, &u64)| {
            let mine = share.as_ref().map_or(*most, |share| share.get(name).min(*most));
            mine.saturating_sub(taken(name)).checked_div(one.get(name))
        };
        most.0.iter().filter_map(room).min().map_or(usize::MAX, |room| room as usize)
    }

    fn note(&mut self, ti: TiKey, node: NodeId, wish: Wish) {
        self.pools.entry(wish.pool.clone()).or_default().used += wish.pool_slots;
        match self.taken.get_mut(&wish.tenant) {
            Some(taken) => taken.add(&wish.request.resources),
            None => drop(self.taken.insert(wish.tenant.clone(), wish.request.resources.clone())),
        }
        *self.runs.entry(wish.run).or_default() += 1;
        *self.tasks_in_dags.entry((wish.dag, wish.task.clone())).or_default() += 1;
        *self.tasks_in_runs.entry((wish.run, wish.task.clone())).or_default() += 1;
        // What came before it has mattered until now.
        let wish = Wish { history: History::default(), ..wish };
        match self.held_on.get_mut(&node) {
            Some(on_node) => drop(on_node.insert(ti)),
            None => drop(self.held_on.insert(node.clone(), BTreeSet::from([ti]))),
        }
        let before = self.held.insert(ti, Held { node, wish });
        assert!(before.is_none(), "{ti:?} occupies twice");
    }

    /// Shapes are few: tasks of a dag mostly ask for the same.
    fn shape(&mut self, request: Request) -> Shape {
        if let Some(shape) = self.shape_of.get(&request) {
            return *shape;
        }
        let shape = Shape(self.shapes.len() as u32);
        self.shapes.push(request.clone());
        self.shape_of.insert(request, shape);
        shape
    }
}

impl Slots {
    fn free(&self) -> u32 {
        let total = self.total.unwrap_or(0);
        self.share.map_or(total, |share| share.min(total)).saturating_sub(self.used)
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) -> u32 {
    let count = counts.get_mut(key).expect("what is given back was taken");
    *count -= 1;
    let left = *count;
    if left == 0 {
        counts.remove(key);
    }
    left
}

#[cfg(test)]
mod tests;
