//! Who has what, and who uses it, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::try_join;
use jiff::Timestamp;
use serde::Serialize;
use tenure_model::{DagId, DagSpec, NodeId, PoolName, Resources, TaskId, TaskSpec, TenantId};
use tenure_placement::{Catalog, Cluster, Holdup, Node, Policy, Request};
use tenure_store::{DagVersionName, NodeRecord, Occupancy, PoolRecord, PresenceView, Store, StoreError};

/// Replicas say every five seconds whom they hear. One that has missed two turns is not counted on.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

/// A replica that hears a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hearing {
    pub replica: String,
    /// When it last said so.
    pub at: Timestamp,
}

#[derive(Debug, Default)]
pub struct Picture {
    pub nodes: Vec<NodeRecord>,
    pools: BTreeMap<PoolName, u32>,
    heard_by: BTreeMap<NodeId, Vec<Hearing>>,
    /// What is bound where, and how often.
    requests: BTreeMap<(NodeId, Request), u32>,
    bound: BTreeMap<NodeId, u32>,
    slots_used: BTreeMap<PoolName, u32>,
    quotas: BTreeMap<TenantId, Resources>,
    taken: BTreeMap<TenantId, Resources>,
    in_dags: BTreeMap<(TenantId, DagId, TaskId), u32>,
}

/// Dag versions by name; one that cannot be read is missing.
pub(crate) type Specs = BTreeMap<(TenantId, DagId, u32), Arc<DagSpec>>;

impl Picture {
    /// Six reads, whatever is going on. They see slightly different moments, which is good enough for a picture.
    pub async fn read(store: &(impl Store + ?Sized)) -> Result<Self, StoreError> {
        let (nodes, pools, quotas, bound, heard) = try_join!(
            store.list_nodes(),
            store.list_pools(),
            store.list_quotas(),
            store.occupancy(),
            store.list_presence(HEARD_WITHIN),
        )?;
        let specs = specs_of(store, bound.iter().map(|one| (&one.tenant, &one.dag, one.version))).await?;
        let quotas = quotas.into_iter().map(|quota| (quota.tenant, quota.most)).collect();
        Ok(Self { quotas, ..Self::of(nodes, &pools, &bound, heard, &specs) })
    }

    pub(crate) fn of(
        nodes: Vec<NodeRecord>,
        pools: &[PoolRecord],
        bound: &[Occupancy],
        heard: Vec<PresenceView>,
        specs: &Specs,
    ) -> Self {
        let pools = pools.iter().map(|pool| (pool.name.clone(), pool.slots)).collect();
        let mut picture = Self { nodes, pools, ..Self::default() };
        for PresenceView { replica, at, nodes } in heard {
            for node in nodes {
                let hearing = Hearing { replica: replica.clone(), at };
                picture.heard_by.entry(node).or_default().push(hearing);
            }
        }
        for one in bound {
            picture.add(one, specs);
        }
        picture
    }

    fn add(&mut self, bound: &Occupancy, specs: &Specs) {
        let Occupancy { node, tenant, dag, version, task, count, .. } = bound;
        *self.bound.entry(node.clone()).or_default() += count;
        *self.in_dags.entry((tenant.clone(), dag.clone(), task.clone())).or_default() += count;
        let version = specs.get(&(tenant.clone(), dag.clone(), *version));
        let spec = version.and_then(|spec| spec.tasks.iter().find(|spec| spec.id == *task));
        // Of a task that its version does not have only the slot on the node is known.
        let request = spec.map_or_else(
            || Request::new(Resources::default(), BTreeMap::new()),
            |spec| Request::of_task(spec, tenant, dag),
        );
        self.taken.entry(tenant.clone()).or_default().add(&times(&request.resources, *count));
        *self.requests.entry((node.clone(), request)).or_default() += count;
        if let Some(spec) = spec {
            *self.slots_used.entry(spec.pool.clone()).or_default() += spec.pool_slots * count;
        }
    }

    #[cfg(test)]
    pub(crate) fn with_quota(mut self, tenant: TenantId, most: Resources) -> Self {
        self.quotas.insert(tenant, most);
        self
    }

    pub fn node(&self, name: &str) -> Option<&NodeRecord> {
        self.nodes.iter().find(|node| node.node.as_str() == name)
    }

    /// What attempts that are bound there take.
    pub fn used(&self, node: &NodeId) -> Resources {
        let mut used = Resources::default();
        for ((at, request), count) in &self.requests {
            if at == node {
                used.add(&times(&request.resources, *count));
            }
        }
        used
    }

    /// What the tasks of a tenant take of all nodes.
    pub fn taken(&self, tenant: &TenantId) -> Resources {
        self.taken.get(tenant).cloned().unwrap_or_default()
    }

    /// How many attempts are bound there.
    pub fn bound(&self, node: &NodeId) -> u32 {
        self.bound.get(node).copied().unwrap_or(0)
    }

    pub fn heard_by(&self, node: &NodeId) -> &[Hearing] {
        self.heard_by.get(node).map_or(&[], Vec::as_slice)
    }

    /// The slots of a pool, if it exists, and how many of them are used.
    pub(crate) fn pool(&self, pool: &PoolName) -> (Option<u32>, u32) {
        (self.pools.get(pool).copied(), self.slots_used.get(pool).copied().unwrap_or(0))
    }

    /// The nodes as placement sees them, with what is reserved. The policy ranks those that could take a request; who
    /// could does not depend on it.
    pub fn cluster(&self, policy: Policy) -> Cluster {
        let node = |node: &NodeRecord| in_catalog(node.clone(), |id| !self.heard_by(id).is_empty());
        let mut cluster = Cluster::of(policy, Catalog::new(self.nodes.iter().map(node)));
        for ((node, request), count) in &self.requests {
            (0..*count).for_each(|_| cluster.reserve(node, request));
        }
        cluster
    }

    /// What is in the way of one more attempt of this task in its dag, its pool, and on the nodes.
    pub(crate) fn holdup(
        &self,
        cluster: &Cluster,
        tenant: &TenantId,
        dag: &DagId,
        spec: &TaskSpec,
    ) -> Option<Holdup> {
        let limit = self.limits(tenant, dag, spec).into_iter().next();
        limit.or_else(|| cluster.refusal(&Request::of_task(spec, tenant, dag)).map(Holdup::Nowhere))
    }

    /// What is in the way in its dag, in its pool, and of its tenant.
    pub(crate) fn limits(&self, tenant: &TenantId, dag: &DagId, spec: &TaskSpec) -> Vec<Holdup> {
        let mut limits = vec![];
        let in_dag = self.in_dags.get(&(tenant.clone(), dag.clone(), spec.id.clone())).copied().unwrap_or(0);
        if spec.max_active_per_dag.is_some_and(|most| in_dag >= most) {
            limits.push(Holdup::TaskInDag { task: spec.id.clone() });
        }
        let (slots, used) = self.pool(&spec.pool);
        if slots.unwrap_or(0).saturating_sub(used) < spec.pool_slots {
            limits.push(Holdup::pool(spec.pool.clone(), slots, spec.pool_slots));
        }
        let asked = Request::of_task(spec, tenant, dag).resources;
        let quota = self.quotas.get(tenant);
        limits.extend(quota.and_then(|most| Holdup::quota(tenant, most, &self.taken(tenant), &asked)));
        limits
    }
}

/// A registered node as placement sees it, given who can be reached.
pub fn in_catalog(record: NodeRecord, is_reachable: impl Fn(&NodeId) -> bool) -> (NodeId, Arc<Node>) {
    let draining = !record.takes_work();
    let NodeRecord { node: id, capacity, labels, taints, queues, .. } = record;
    let reachable = is_reachable(&id);
    (id, Arc::new(Node { capacity, labels, taints, queues, reachable, draining }))
}

/// The versions of these names that can be read, in one go.
pub(crate) async fn specs_of<'a>(
    store: &(impl Store + ?Sized),
    names: impl Iterator<Item = (&'a TenantId, &'a DagId, u32)>,
) -> Result<Specs, StoreError> {
    let name = |(tenant, dag, version): (&TenantId, &DagId, u32)| DagVersionName {
        tenant: tenant.clone(),
        dag: dag.clone(),
        version,
    };
    let names: BTreeSet<DagVersionName> = names.map(name).collect();
    let names: Vec<DagVersionName> = names.into_iter().collect();
    let versions = store.dag_versions(&names).await?;
    let readable = versions.into_iter().flatten();
    Ok(readable.map(|read| ((read.tenant, read.dag, read.version), read.spec)).collect())
}

/// What so many of them take together.
pub(crate) fn times(resources: &Resources, count: u32) -> Resources {
    Resources(resources.0.iter().map(|(name, amount)| (name.clone(), amount * u64::from(count))).collect())
}
