//! Clears, marks and ended runs: the rows are locked and read, `tenure_store::edit` decides, and what it
//! decides is written, in one transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tenure_model::{
    AttemptId, DagId, DagSpec, NodeId, RunId, RunKey, RunState, ShardId, TaskInstance, TenantId, TiKey,
};
use tenure_store::{
    Attention, CachedTi, ClearRequest, Cleared, MarkRequest, RunEdit, RunHeader, RunSnapshot, RunView,
    StoreError, TiChange, TiView, Trigger, edit,
};

use super::{Deed, no_dag, no_run};
use crate::batch::{AuditColumns, Author, RunColumns, TiColumns, TiKeys, TryColumns};
use crate::errors;
use crate::reads::RUN_TIS;
use crate::rows::{self, Cells};

const LOCK_RUN: &str = concat!(
    "SELECT ",
    rows::run_columns!(),
    " FROM runs r WHERE r.tenant = $1 AND r.dag_id = $2 AND r.run_id = $3 FOR NO KEY UPDATE"
);
/// In the order of their keys, as owners do, so that nobody waits in a circle.
const LOCK_RUNS: &str = concat!(
    "SELECT ",
    rows::run_columns!(),
    " FROM runs r,
        (SELECT key, logical_date FROM runs WHERE tenant = $1 AND dag_id = $2 AND run_id = $3) AS centre
    WHERE r.tenant = $1 AND r.dag_id = $2 AND (r.key = centre.key
        OR $4 AND r.logical_date < centre.logical_date OR $5 AND r.logical_date > centre.logical_date)
    ORDER BY r.key FOR NO KEY UPDATE OF r"
);
const VERSION_IN_FORCE: &str = "SELECT version FROM dags WHERE tenant = $1 AND dag_id = $2";
const SPECS: &str =
    "SELECT version, spec FROM dag_versions WHERE tenant = $1 AND dag_id = $2 AND version = ANY($3)";
const ADD_TIS: &str = "INSERT INTO task_instances
        (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
    SELECT c.run, c.task_no, c.map_index, r.tenant, c.task_id, c.pool, 'none', 0, c.retries
    FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::integer[])
        AS c(run, task_no, map_index, task_id, pool, retries)
    JOIN runs r ON r.key = c.run";
const FORGET_RESULTS: &str = "DELETE FROM results x
    USING unnest($1::bigint[], $2::integer[], $3::integer[]) AS c(run, task_no, map_index)
    WHERE x.run = c.run AND x.task_no = c.task_no AND x.map_index = c.map_index";
const VIEW: &str = concat!("SELECT ", rows::run_view_columns!(), " FROM runs r WHERE r.key = $1");

/// A run that is locked, with everything an edit wants to know.
struct LockedRun {
    snapshot: RunSnapshot,
    /// Beside `snapshot.tis`.
    pools: Vec<String>,
    places: HashMap<TiKey, usize>,
}

/// The runs of one dag that an edit may touch, and the versions they follow.
struct Locked {
    runs: Vec<LockedRun>,
    in_force: u32,
    specs: BTreeMap<u32, Arc<DagSpec>>,
}

impl Locked {
    fn spec(&self, version: u32) -> Result<&DagSpec, StoreError> {
        self.specs.get(&version).map(|spec| &**spec).ok_or_else(|| {
            errors::corrupt(format!("version {version} of a dag"), "a run follows it and it is not there")
        })
    }
}

/// An edit together with the run it was decided from.
struct Decision<'a> {
    run: &'a LockedRun,
    edit: RunEdit,
    /// What the run follows afterwards.
    spec: &'a DagSpec,
}

pub(super) async fn clear(
    deed: &Deed<'_>,
    trigger: &Trigger,
    request: &ClearRequest,
) -> Result<Cleared, StoreError> {
    let around = (request.past, request.future);
    let locked = lock(deed, &trigger.tenant, &request.dag, &request.run, around).await?;
    let mut decisions = vec![];
    for run in &locked.runs {
        let own = run.snapshot.header.version;
        let spec = locked.spec(if request.latest_version { locked.in_force } else { own })?;
        let edit = edit::clear(&run.snapshot, locked.in_force, spec, request, trigger.at)?;
        decisions.push(Decision { run, edit, spec });
    }
    if !request.dry_run {
        write(deed, trigger, &decisions).await?;
    }
    Ok(Cleared { tis: decisions.iter().flat_map(Decision::views_before).collect() })
}

pub(super) async fn mark(
    deed: &Deed<'_>,
    trigger: &Trigger,
    request: &MarkRequest,
) -> Result<Vec<TiView>, StoreError> {
    let around = (request.past, request.future);
    let locked = lock(deed, &trigger.tenant, &request.dag, &request.run, around).await?;
    let mut decisions = vec![];
    for run in &locked.runs {
        let spec = locked.spec(run.snapshot.header.version)?;
        let edit = edit::mark(&run.snapshot, spec, request, trigger.at, &trigger.actor)?;
        decisions.push(Decision { run, edit, spec });
    }
    if !request.dry_run {
        write(deed, trigger, &decisions).await?;
    }
    Ok(decisions.iter().flat_map(Decision::views_after).collect())
}

pub(super) async fn set_run_state(
    deed: &Deed<'_>,
    trigger: &Trigger,
    dag: &DagId,
    run: &RunId,
    state: RunState,
) -> Result<RunView, StoreError> {
    let locked = lock(deed, &trigger.tenant, dag, run, (false, false)).await?;
    let run = &locked.runs[0];
    let spec = locked.spec(run.snapshot.header.version)?;
    let edit = edit::set_run_state(&run.snapshot, spec, state, trigger.at, &trigger.actor)?;
    write(deed, trigger, &[Decision { run, edit, spec }]).await?;
    let row = deed.session.row(VIEW, &[&run.snapshot.header.key.0]).await?;
    rows::run_view(&mut Cells::of(&row.expect("the run is locked")))
}

/// The named run, and with `around` its neighbours in time (past, future).
async fn lock(
    deed: &Deed<'_>,
    tenant: &TenantId,
    dag: &DagId,
    run: &RunId,
    around: (bool, bool),
) -> Result<Locked, StoreError> {
    let (session, names) = (&deed.session, (tenant.as_str(), dag.as_str(), run.as_str()));
    let found = match around {
        (false, false) => session.rows(LOCK_RUN, &[&names.0, &names.1, &names.2]).await?,
        (past, future) => session.rows(LOCK_RUNS, &[&names.0, &names.1, &names.2, &past, &future]).await?,
    };
    let headers = rows::all(&found, rows::run_header)?;
    if headers.is_empty() {
        return Err(no_run(dag, run));
    }
    let row = session.row(VERSION_IN_FORCE, &[&names.0, &names.1]).await?.ok_or_else(|| no_dag(dag))?;
    let in_force: u32 = Cells::of(&row).number()?;
    let mut versions: Vec<i32> = headers.iter().map(|header| header.version as i32).collect();
    versions.push(in_force as i32);
    versions.sort_unstable();
    versions.dedup();
    let specs = session.rows(SPECS, &[&names.0, &names.1, &versions]).await?;
    let specs = rows::all(&specs, |cells| Ok((cells.number()?, rows::spec(cells)?)))?;

    let keys: Vec<i64> = headers.iter().map(|header| header.key.0).collect();
    let mut of_run: HashMap<RunKey, Vec<rows::TiRow>> = HashMap::new();
    for ti in rows::all(&session.rows(RUN_TIS, &[&keys]).await?, rows::ti)? {
        of_run.entry(ti.run).or_default().push(ti);
    }
    let with_tis = |header: RunHeader| {
        let tis = of_run.remove(&header.key).unwrap_or_default();
        let key =
            |ti: &rows::TiRow| TiKey { run: ti.run, task: ti.cached.task, map_index: ti.cached.map_index };
        let places = tis.iter().map(key).zip(0..).collect();
        let (tis, pools) = tis.into_iter().map(|ti| (ti.cached, ti.pool)).unzip();
        LockedRun { snapshot: RunSnapshot { header, tis }, pools, places }
    };
    let runs = headers.into_iter().map(with_tis).collect();
    Ok(Locked { runs, in_force, specs: specs.into_iter().collect() })
}

async fn write(deed: &Deed<'_>, trigger: &Trigger, decisions: &[Decision<'_>]) -> Result<(), StoreError> {
    let decisions: Vec<&Decision<'_>> =
        decisions.iter().filter(|decision| !decision.edit.is_empty()).collect();
    if decisions.is_empty() {
        return Ok(());
    }
    let mut runs = RunColumns::default();
    let (mut tis, mut forgotten) = (TiColumns::default(), TiKeys::default());
    let (mut audit, mut attention) = (AuditColumns::default(), vec![]);
    for Decision { run, edit, .. } in &decisions {
        let header = &run.snapshot.header;
        runs.push(header.key, header.revision, edit.state.as_ref(), edit.version);
        edit.tis.iter().for_each(|change| tis.push(change));
        edit.forgotten_results().for_each(|key| forgotten.push(key));
        audit.push(header.key, &edit.audit);
        attention.extend(noticed(header.shard, edit));
    }
    let session = &deed.session;
    let written = runs.update(session, None, trigger.at).await?.len();
    assert_eq!(written, decisions.len(), "runs are locked, nobody else moves their revision");
    let updated = tis.update(session).await?;
    assert_eq!(updated, tis.len(), "task instances change only with their run locked");
    add_tis(deed, &decisions).await?;
    TryColumns::of(decisions.iter().flat_map(|decision| &decision.edit.past_tries)).insert(session).await?;
    if !forgotten.is_empty() {
        let TiKeys { runs, tasks, map_indexes } = &forgotten;
        session.execute(FORGET_RESULTS, &[runs, tasks, map_indexes]).await?;
    }
    let author = Author { at: trigger.at, actor: &trigger.actor, scope: None, epoch: None };
    audit.insert(session, &author).await?;
    deed.attention(&attention).await
}

/// Stops first: an owner that has seen the run reloaded has then also been told to stop its attempts.
fn noticed(shard: ShardId, edit: &RunEdit) -> impl Iterator<Item = (ShardId, Attention)> + '_ {
    let stop =
        |(node, attempt): &(NodeId, AttemptId)| Attention::Stop { node: node.clone(), attempt: *attempt };
    let run = std::iter::once(Attention::Run { run: edit.run });
    edit.stops.iter().map(stop).chain(run).map(move |what| (shard, what))
}

async fn add_tis(deed: &Deed<'_>, decisions: &[&Decision<'_>]) -> Result<(), StoreError> {
    let mut keys = TiKeys::default();
    let (mut ids, mut pools, mut retries) = (vec![], vec![], vec![]);
    for Decision { edit, spec, .. } in decisions {
        // A dag may have thousands of tasks: look each up once, not by walking the spec.
        let tasks: HashMap<&str, _> = match edit.added.is_empty() {
            true => HashMap::new(),
            false => spec.tasks.iter().map(|task| (task.id.as_str(), task)).collect(),
        };
        for added in &edit.added {
            let task = tasks[added.task_id.as_str()];
            keys.push(TiKey { run: edit.run, task: added.task, map_index: added.map_index });
            ids.push(added.task_id.as_str());
            pools.push(task.pool.as_str());
            retries.push(added.ti.max_tries as i32);
        }
    }
    if keys.is_empty() {
        return Ok(());
    }
    let TiKeys { runs, tasks, map_indexes } = &keys;
    deed.session.execute(ADD_TIS, &[runs, tasks, map_indexes, &ids, &pools, &retries]).await.map(drop)
}

impl Decision<'_> {
    /// The rows that change, as they were.
    fn views_before(&self) -> impl Iterator<Item = TiView> + '_ {
        self.views(|cached, _| cached.ti.clone())
    }

    /// The rows that change, as they become.
    fn views_after(&self) -> impl Iterator<Item = TiView> + '_ {
        self.views(|_, change| change.to.clone())
    }

    fn views(&self, shown: fn(&CachedTi, &TiChange) -> TaskInstance) -> impl Iterator<Item = TiView> + '_ {
        let header = &self.run.snapshot.header;
        self.edit.tis.iter().map(move |change| {
            let place = self.run.places[&change.ti];
            let cached = &self.run.snapshot.tis[place];
            TiView {
                key: change.ti,
                dag: header.dag.clone(),
                run_id: header.run_id.clone(),
                logical_date: header.logical_date,
                run_after: header.run_after,
                version: header.version,
                task_id: cached.task_id.clone(),
                task_no: cached.task,
                pool: self.run.pools[place].clone(),
                instance: shown(cached, change),
            }
        })
    }
}
