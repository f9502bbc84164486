//! What tasks ask for that no node can give, and nodes that nobody asks for anything.

use std::collections::{BTreeMap, BTreeSet};

use tenure_model::{NodeId, QueueName, Resources, TaskSpec};
use tenure_placement::{Policy, Request};
use tenure_store::{NodeRecord, Store, StoreError, Waiting};

use crate::picture::{Picture, Specs, specs_of, times};

/// Tasks that ask for the same, and that no node has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// What each asks for, in words: `gpu 1, zone=b`.
    pub shape: String,
    /// What each asks for. A task that asks for nothing still needs a slot.
    pub each: Resources,
    /// Labels that a node must carry for them.
    pub labels: BTreeMap<String, String>,
    pub queue: QueueName,
    pub tasks: u32,
    /// What all of them ask for.
    pub missing: Resources,
    /// Why no node can take one.
    pub reason: String,
}

#[derive(Clone, Debug, Default)]
pub struct Demand {
    pub unplaceable: Vec<Unmet>,
    /// Connected nodes that take work and have none.
    pub idle: BTreeSet<NodeId>,
    /// Connected nodes that take work.
    pub nodes: usize,
}

impl Demand {
    /// Costs what is active and what waits, not what has finished.
    pub async fn read(store: &(impl Store + ?Sized)) -> Result<Self, StoreError> {
        let picture = Picture::read(store).await?;
        let mut waiting = store.waiting().await?;
        let dags: BTreeSet<_> = waiting.iter().map(|one| (one.tenant.clone(), one.dag.clone())).collect();
        let dags: Vec<_> = dags.into_iter().collect();
        let activity = store.dag_activity(&dags).await?;
        // What is paused would not run if there were room.
        let paused: BTreeSet<_> =
            activity.iter().filter(|dag| dag.paused).map(|dag| (&dag.tenant, &dag.dag)).collect();
        waiting.retain(|one| !paused.contains(&(&one.tenant, &one.dag)));
        let specs = specs_of(store, waiting.iter().map(|one| (&one.tenant, &one.dag, one.version))).await?;
        Ok(Self::of(&picture, &waiting, &specs))
    }

    fn of(picture: &Picture, waiting: &[Waiting], specs: &Specs) -> Self {
        let cluster = picture.cluster(Policy::default());
        let mut unplaceable: BTreeMap<String, Unmet> = BTreeMap::new();
        // Tasks that ask for the same are refused for the same reason, and there are many of them when nothing has room.
        let mut refusals: BTreeMap<Request, Option<String>> = BTreeMap::new();
        for Waiting { tenant, dag, version, task, count } in waiting {
            let version = specs.get(&(tenant.clone(), dag.clone(), *version));
            let Some(spec) = version.and_then(|spec| spec.tasks.iter().find(|spec| spec.id == *task)) else {
                continue;
            };
            if !picture.limits(tenant, dag, spec).is_empty() {
                continue; // it waits for something else first
            }
            let request = Request::of_task(spec, tenant, dag);
            let refusal = || cluster.refusal(&request).map(|why| why.to_string());
            let Some(why) = refusals.entry(request.clone()).or_insert_with(refusal) else { continue };
            let shape = shape(spec);
            let unmet = unplaceable.entry(shape.clone()).or_insert_with(|| Unmet {
                shape,
                each: match spec.resources.is_empty() {
                    true => request.resources.clone(),
                    false => spec.resources.clone(),
                },
                labels: spec.node_selector.clone(),
                queue: spec.queue.clone(),
                tasks: 0,
                missing: Resources::default(),
                reason: why.clone(),
            });
            unmet.tasks += count;
            unmet.missing.add(&times(&unmet.each, *count));
        }
        let takes_work = |node: &NodeId| {
            let takes = picture.node(node.as_str()).is_some_and(NodeRecord::takes_work);
            takes && !picture.heard_by(node).is_empty()
        };
        let working: Vec<&NodeId> =
            picture.nodes.iter().map(|node| &node.node).filter(|node| takes_work(node)).collect();
        let idle = working.iter().filter(|node| picture.bound(node) == 0).map(|node| (*node).clone());
        Self { unplaceable: unplaceable.into_values().collect(), idle: idle.collect(), nodes: working.len() }
    }
}

/// `cpu 2, gpu 1, zone=b`; `one task slot` where nothing is asked for.
fn shape(spec: &TaskSpec) -> String {
    let amounts = spec.resources.0.iter();
    let amounts = amounts.map(|(name, amount)| format!("{name} {}", Resources::shown(name, *amount)));
    let labels = spec.node_selector.iter().map(|(label, value)| format!("{label}={value}"));
    let queue = (!spec.queue.is_default()).then(|| format!("queue {}", spec.queue));
    let parts: Vec<String> = amounts.chain(labels).chain(queue).collect();
    if parts.is_empty() { "one task slot".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    //! Goal: a shortage is counted once for each shape, over all dags, and only what nodes lack is one.

    use std::sync::Arc;

    use tenure_model::{DagSpec, TaskKind, TenantId};

    use super::*;
    use crate::reasons::tests::{bound, picture};

    fn dag(id: &str, gpu: u64, pool: &str) -> DagSpec {
        let task = TaskSpec {
            resources: Resources::default().with("gpu", gpu * 1_000),
            pool: pool.into(),
            ..TaskSpec::new("a", TaskKind::Empty)
        };
        DagSpec::new(id, vec![task])
    }

    fn waiting(dag: &str, count: u32) -> Waiting {
        let (tenant, task) = (TenantId::default_tenant(), "a".into());
        Waiting { tenant, dag: dag.into(), version: 1, task, count }
    }

    #[test]
    fn tasks_of_many_dags_that_ask_for_the_same_are_one_shortage() {
        let dags = [dag("x", 1, "default_pool"), dag("y", 1, "default_pool"), dag("z", 0, "default_pool")];
        let specs: Specs = dags
            .iter()
            .map(|spec| ((TenantId::default_tenant(), spec.id.clone(), 1), Arc::new(spec.clone())))
            .collect();
        let seen = [waiting("x", 2), waiting("y", 3), waiting("z", 4), waiting("gone", 9)];
        let demand = Demand::of(&picture(&[bound(&dags[2], "a", "big")], &specs), &seen, &specs);
        let [unmet] = &demand.unplaceable[..] else { panic!("{:?}", demand.unplaceable) };
        assert_eq!((unmet.shape.as_str(), unmet.tasks, unmet.missing.get("gpu")), ("gpu 1", 5, 5_000));
        assert_eq!(demand.idle, [NodeId::new("small")].into(), "one is busy, one is not connected");
        assert_eq!(demand.nodes, 2);
    }

    #[test]
    fn a_shortage_says_what_a_node_would_have_to_have() {
        let mut spec = dag("x", 1, "default_pool");
        spec.tasks[0].node_selector = [("zone".to_owned(), "b".to_owned())].into();
        spec.tasks[0].queue = "gpus".into();
        let mut slots = dag("y", 0, "default_pool");
        slots.tasks[0].resources = Resources::default();
        slots.tasks[0].queue = "none".into();
        let specs: Specs = [spec, slots]
            .into_iter()
            .map(|spec| ((TenantId::default_tenant(), spec.id.clone(), 1), Arc::new(spec)))
            .collect();
        let demand = Demand::of(&picture(&[], &specs), &[waiting("x", 2), waiting("y", 3)], &specs);
        let [gpus, slots] = &demand.unplaceable[..] else { panic!("{:?}", demand.unplaceable) };
        assert_eq!((gpus.shape.as_str(), gpus.queue.as_str()), ("gpu 1, zone=b, queue gpus", "gpus"));
        assert_eq!((gpus.each.get("gpu"), gpus.each.get(Resources::TASKS)), (1_000, 0));
        assert_eq!(gpus.labels, [("zone".to_owned(), "b".to_owned())].into());
        assert_eq!((slots.shape.as_str(), slots.missing.get(Resources::TASKS)), ("queue none", 3_000));
    }

    #[test]
    fn a_full_pool_is_no_want_of_capacity() {
        let spec = dag("x", 1, "no such pool");
        let specs: Specs =
            [((TenantId::default_tenant(), spec.id.clone(), 1), Arc::new(spec.clone()))].into();
        let demand = Demand::of(&picture(&[], &specs), &[waiting("x", 2)], &specs);
        assert_eq!(demand.unplaceable, []);
    }
}
