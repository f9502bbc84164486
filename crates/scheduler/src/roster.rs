//! Pools, quotas and nodes as all owners of this process see them. Read once for all of them, anew when one of them hears
//! that there is a newer version; and which of the nodes this process can reach, whenever that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_dispatch::Executor;
use tenure_model::NodeId;
use tenure_outlook::in_catalog;
use tenure_placement::{Catalog, Node};
use tenure_store::{DrainStage, Limits, PoolRecord, Quota, SharedStore, StoreError};
use tokio::sync::Notify;

/// How long links rest after they have changed, for each node: thousands of agents that come at once are a few changes, not
/// thousands. A change costs every owner far less than this.
const REST_PER_NODE: Duration = Duration::from_micros(20);
const SHORTEST_REST: Duration = Duration::from_millis(1);

pub(crate) struct Roster {
    store: SharedStore,
    executor: Arc<dyn Executor>,
    current: Mutex<Option<Arc<Roll>>>,
    /// One reads, the others wait for what it reads.
    reading: tokio::sync::Mutex<()>,
    changed: Notify,
}

/// As of one moment; never changed.
#[derive(Debug)]
pub(crate) struct Roll {
    /// Grows with each that replaces another.
    pub number: u64,
    /// How often the database has been read for it and those before it.
    pub read: u64,
    /// Of the limits in the database.
    pub version: u64,
    pub pools: Vec<PoolRecord>,
    pub quotas: Vec<Quota>,
    /// Nodes that nothing can be handed to are no place for anything, and say so.
    pub nodes: Arc<Catalog>,
    /// Nodes that are being emptied, and how far that is.
    pub drains: BTreeMap<NodeId, DrainStage>,
}

impl Roster {
    pub fn new(store: SharedStore, executor: Arc<dyn Executor>) -> Arc<Self> {
        let (current, reading, changed) = Default::default();
        Arc::new(Self { store, executor, current, reading, changed })
    }

    /// What there is in memory, if it will do; otherwise what the database says now.
    pub async fn get(&self, will_do: impl Fn(&Roll) -> bool) -> Result<Arc<Roll>, StoreError> {
        let known = || self.current().clone().filter(|roll| will_do(roll));
        if let Some(roll) = known() {
            return Ok(roll);
        }
        let _turn = self.reading.lock().await;
        if let Some(roll) = known() {
            return Ok(roll); // somebody has read it meanwhile
        }
        let limits = self.store.limits().await?;
        Ok(self.replace(|before| Some(self.enrol(limits, before))))
    }

    /// Resolves when there is another than this one.
    pub async fn changed_since(&self, number: u64) {
        loop {
            // Before the look: a change in between is not missed.
            let changed = self.changed.notified();
            if self.current().as_ref().is_some_and(|roll| roll.number != number) {
                return;
            }
            changed.await;
        }
    }

    /// Keeps up with who comes and goes. Never ends.
    pub async fn follow_links(&self) {
        let mut links = self.executor.links();
        loop {
            links.mark_unchanged();
            let known = self.current().as_ref().map_or(0, |roll| roll.nodes.len());
            if known > 0 {
                self.replace(|before| before.map(|before| self.relink(before)));
            }
            tokio::time::sleep((REST_PER_NODE * known as u32).max(SHORTEST_REST)).await;
            if links.changed().await.is_err() {
                return std::future::pending().await; // nobody will ever come or go any more
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Roll>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, next: impl FnOnce(Option<&Roll>) -> Option<Roll>) -> Arc<Roll> {
        let mut current = self.current();
        if let Some(roll) = next(current.as_deref()) {
            *current = Some(Arc::new(roll));
        }
        let roll = current.clone();
        drop(current);
        self.changed.notify_waiters();
        roll.expect("there is one, or it would not be replaced")
    }

    fn enrol(&self, limits: Limits, before: Option<&Roll>) -> Roll {
        let Limits { version, pools, quotas, nodes } = limits;
        let linked = self.linked();
        let drains = nodes.iter().filter_map(|node| Some((node.node.clone(), node.drain.as_ref()?.stage)));
        let drains = drains.collect();
        let entry = |record| in_catalog(record, |id| linked.contains(id));
        let nodes = Arc::new(Catalog::new(nodes.into_iter().map(entry)));
        let (number, read) = before.map_or((1, 1), |before| (before.number + 1, before.read + 1));
        Roll { number, read, version, pools, quotas, nodes, drains }
    }

    /// The same nodes, and who can be reached now. A node that came back has another link, so there is always something new.
    fn relink(&self, before: &Roll) -> Roll {
        let linked = self.linked();
        let is_new = |id: &NodeId, node: &Node| node.reachable != linked.contains(id);
        let entries = before.nodes.entries();
        let nodes = match entries.iter().any(|entry| is_new(&entry.id, &entry.node)) {
            false => Arc::clone(&before.nodes),
            true => Arc::new(Catalog::new(entries.iter().map(|entry| {
                let node = match is_new(&entry.id, &entry.node) {
                    true => Arc::new(Node { reachable: !entry.node.reachable, ..(*entry.node).clone() }),
                    false => Arc::clone(&entry.node),
                };
                (entry.id.clone(), node)
            }))),
        };
        let Roll { number, read, version, pools, quotas, drains, .. } = before;
        Roll {
            number: number + 1,
            read: *read,
            version: *version,
            pools: pools.clone(),
            quotas: quotas.clone(),
            nodes,
            drains: drains.clone(),
        }
    }

    fn linked(&self) -> BTreeSet<NodeId> {
        self.executor.linked().into_iter().collect()
    }
}
