//! What would become of a task now: who could take it and what speaks for each, who could not and why, and what would
//! hold it up besides. Reads, and changes nothing.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure_model::{DagId, NodeId, PoolName, RunId, TaskKind, TaskSpec, TenantId};
use tenure_placement::{Explanation, History, Policy, Request};
use tenure_store::{DagView, Paging, Store, StoreError, TiQuery};

use crate::picture::Picture;
use crate::reasons::runs_are_full;

#[derive(Debug)]
pub struct Preview {
    pub request: Request,
    pub pool: PoolUse,
    /// In words, what lasts longest first. None: it would be placed at once.
    pub held_up_by: Vec<String>,
    pub explanation: Explanation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolUse {
    pub name: PoolName,
    /// `None`: it does not exist.
    pub slots: Option<u32>,
    pub used: u32,
    pub asked: u32,
}

impl Preview {
    /// One more attempt of `task` in a new run, or in `run` of its dag. `dag`: whose task it is; none has no limits of its
    /// own.
    pub async fn read(
        store: &(impl Store + ?Sized),
        policy: Policy,
        tenant: &TenantId,
        dag: Option<&DagView>,
        task: &TaskSpec,
        run: Option<&RunId>,
    ) -> Result<Self, StoreError> {
        let picture = Picture::read(store).await?;
        let name = dag.map_or_else(|| DagId::new(""), |dag| dag.dag.clone());
        let mut held_up_by = vec![];
        if let Some(dag) = dag {
            let activity = store.dag_activity(&[(tenant.clone(), name.clone())]).await?;
            if dag.paused {
                held_up_by.push(tenure_placement::Holdup::Paused.to_string());
            }
            held_up_by.extend(activity.first().and_then(|activity| runs_are_full(&dag.spec, activity)));
        }
        let near = match run {
            Some(run) => upstream_on(store, tenant, &name, run, task).await?,
            None => BTreeMap::new(),
        };
        let history = History { near, ..History::default() };
        Ok(Self::of(&picture, policy, tenant, &name, task, &history, held_up_by))
    }

    pub(crate) fn of(
        picture: &Picture,
        policy: Policy,
        tenant: &TenantId,
        dag: &DagId,
        task: &TaskSpec,
        history: &History,
        mut held_up_by: Vec<String>,
    ) -> Self {
        let request = Request::of_task(task, tenant, dag);
        let (slots, used) = picture.pool(&task.pool);
        let pool = PoolUse { name: task.pool.clone(), slots, used, asked: task.pool_slots };
        // What has nothing to run is done as soon as its turn comes, wherever that is.
        if matches!(task.kind, TaskKind::Empty) {
            return Self { request, pool, held_up_by, explanation: Explanation::default() };
        }
        held_up_by.extend(picture.limits(tenant, dag, task).iter().map(ToString::to_string));
        let explanation = picture.cluster(policy).explain(&request, history);
        held_up_by.extend(explanation.refusal().map(|why| why.to_string()));
        Self { request, pool, held_up_by, explanation }
    }
}

/// Where what a task needs has ended in a run, as its owner counts it.
async fn upstream_on(
    store: &(impl Store + ?Sized),
    tenant: &TenantId,
    dag: &DagId,
    run: &RunId,
    task: &TaskSpec,
) -> Result<BTreeMap<NodeId, u32>, StoreError> {
    let mut query = TiQuery::of_run(tenant.clone(), dag.clone(), run.clone());
    query.paging = Paging { limit: u32::MAX, ..Paging::default() };
    let mut nodes = BTreeMap::new();
    for ti in store.list_tis(&query).await?.items {
        let ended = task.needs.contains(&ti.task_id) && ti.instance.state.is_finished();
        if let Some(node) = ti.instance.node.filter(|_| ended) {
            *nodes.entry(node).or_default() += 1;
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    //! Goal: a preview names the node that a task would go to, and everything that is in the way.

    use std::sync::Arc;

    use tenure_model::{DagSpec, Resources};
    use tenure_placement::Strategy;

    use super::*;
    use crate::picture::Specs;
    use crate::reasons::tests::{bound, picture};

    fn asking(cpu: u64, pool: &str) -> TaskSpec {
        TaskSpec {
            resources: Resources::default().with(Resources::CPU, cpu * 1_000),
            pool: pool.into(),
            ..TaskSpec::new("a", TaskKind::Bash { script: "true".into() })
        }
    }

    /// With one attempt of one cpu bound to the larger of the two nodes that are connected, where its need has run too.
    fn preview(policy: Policy, task: &TaskSpec) -> Preview {
        let dag = DagSpec::new("x", vec![asking(1, "etl")]);
        let tenant = TenantId::default_tenant();
        let specs: Specs = [((tenant.clone(), dag.id.clone(), 1), Arc::new(dag.clone()))].into();
        let picture = picture(&[bound(&dag, "a", "big")], &specs);
        let near = [("big".into(), 1)].into();
        Preview::of(&picture, policy, &tenant, &dag.id, task, &History { near, ..History::default() }, vec![])
    }

    fn places(preview: &Preview) -> Vec<&str> {
        preview.explanation.candidates.iter().map(|candidate| candidate.node.as_str()).collect()
    }

    #[test]
    fn candidates_are_ranked_by_the_policy_in_force_with_their_use_before_and_after() {
        let task = asking(1, "default_pool");
        let spread = preview(Policy::default(), &task);
        assert_eq!((places(&spread), &spread.held_up_by[..]), (vec!["small", "big"], &[][..]));
        let pack = preview(Policy { strategy: Strategy::Pack, ..Policy::default() }, &task);
        assert_eq!(places(&pack), ["big", "small"]);
        let cpu = pack.explanation.candidates[0].uses[Resources::CPU];
        assert_eq!((cpu.before, cpu.after, cpu.capacity), (1_000, 2_000, 4_000));
        let near = spread.explanation.candidates.iter().map(|one| one.parts.locality);
        assert_eq!(near.collect::<Vec<_>>(), [0, 2_000], "what it needs has run on the other one");
        let rejected: Vec<_> = spread.explanation.rejected.iter().map(|one| one.node.as_str()).collect();
        assert_eq!(rejected, ["silent"]);
    }

    #[test]
    fn everything_that_is_in_the_way_is_told() {
        let full = preview(Policy::default(), &asking(64, "etl"));
        assert_eq!(full.pool, PoolUse { name: "etl".into(), slots: Some(1), used: 1, asked: 1 });
        let [pool, nodes] = &full.held_up_by[..] else { panic!("{:?}", full.held_up_by) };
        assert_eq!(pool, "pool etl is full (1 slots)");
        assert!(nodes.starts_with("no node has cpu ≥ 64"), "{nodes}");
        let limited = TaskSpec { max_active_per_dag: Some(1), ..asking(1, "nowhere") };
        let limited = preview(Policy::default(), &limited);
        assert!(limited.held_up_by[0].contains("max_active_per_dag"), "{:?}", limited.held_up_by);
        assert!(limited.held_up_by[1].contains("pool nowhere does not exist"), "{:?}", limited.held_up_by);
        assert_eq!(places(&limited), ["small", "big"], "where it would go is told all the same");
    }

    #[test]
    fn what_has_nothing_to_run_needs_no_node() {
        let task = TaskSpec { kind: TaskKind::Empty, ..asking(64, "etl") };
        let empty = preview(Policy::default(), &task);
        assert!(empty.held_up_by.is_empty() && empty.explanation == Explanation::default());
    }
}
