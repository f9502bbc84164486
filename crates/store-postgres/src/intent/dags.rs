//! Dags: registered, paused, deleted.

use std::sync::Arc;

use tenure_model::timetable::ScheduleProgress;
use tenure_model::{DagId, DagSpec, ShardId, VersionHash};
use tenure_store::{
    Attention, AuditEntry, DagRegistration, Registered, StoreError, Trigger, VersionView, next_tick,
};

use super::{Deed, no_dag};
use crate::batch;
use crate::rows::{self, Cells};

/// Version 0 is no version: it stands for a dag whose first version comes in the same transaction.
const MAKE: &str =
    "INSERT INTO dags (tenant, dag_id, shard, version, paused, owner, tags, registered_at, updated_at)
    VALUES ($1, $2, $3, 0, $4, '', '{}', $5, $5) ON CONFLICT DO NOTHING";
/// Keeps other registrations out; runs may be created meanwhile, from the version before.
const LOCK: &str = "SELECT version, registered_at, last_tick, (SELECT value FROM meta WHERE name = 'shards')
    FROM dags WHERE tenant = $1 AND dag_id = $2 FOR NO KEY UPDATE OF dags";
const VERSION: &str = concat!(
    "SELECT ",
    rows::version_columns!(),
    " FROM dag_versions v WHERE v.tenant = $1 AND v.dag_id = $2 AND v.version = $3"
);
const ADD_VERSION: &str = "INSERT INTO dag_versions
        (tenant, dag_id, version, hash, spec, source, origin, created_at, task_ids, task_retries, task_pools)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const PUT_IN_FORCE: &str =
    "UPDATE dags SET version = $3, owner = $4, tags = $5, updated_at = $6, next_tick = $7
    WHERE tenant = $1 AND dag_id = $2";

const SET_PAUSED: &str =
    "UPDATE dags SET paused = $3 WHERE tenant = $1 AND dag_id = $2 AND paused <> $3 RETURNING shard";
const EXISTS: &str = "SELECT 1 FROM dags WHERE tenant = $1 AND dag_id = $2";

/// Waits for transactions that are creating runs of the dag, and keeps new ones out.
const LOCK_AWAY: &str = "SELECT shard FROM dags WHERE tenant = $1 AND dag_id = $2 FOR UPDATE";
const AN_ACTIVE_RUN: &str = "SELECT run_id FROM runs
    WHERE tenant = $1 AND dag_id = $2 AND state IN ('queued', 'running') LIMIT 1";
/// From the leaves to the root.
const DELETE: [&str; 6] = [
    "DELETE FROM results x USING runs r WHERE x.run = r.key AND r.tenant = $1 AND r.dag_id = $2",
    "DELETE FROM tries x USING runs r WHERE x.run = r.key AND r.tenant = $1 AND r.dag_id = $2",
    "DELETE FROM task_instances x USING runs r WHERE x.run = r.key AND r.tenant = $1 AND r.dag_id = $2",
    "DELETE FROM runs WHERE tenant = $1 AND dag_id = $2",
    "DELETE FROM dag_versions WHERE tenant = $1 AND dag_id = $2",
    "DELETE FROM dags WHERE tenant = $1 AND dag_id = $2",
];

/// What is stored of a dag as it was asked for.
pub(super) struct Canonical {
    json: String,
    hash: VersionHash,
    spec: Arc<DagSpec>,
}

impl Canonical {
    pub(super) fn of(asked: &DagRegistration) -> Self {
        let json = asked.spec.canonical_json();
        Self { hash: VersionHash::of(json.as_bytes()), json, spec: Arc::new(asked.spec.clone()) }
    }
}

pub(super) async fn register(
    deed: &Deed<'_>,
    asked: &DagRegistration,
    canonical: Canonical,
) -> Result<Registered, StoreError> {
    let DagRegistration { trigger, spec, .. } = asked;
    let (tenant, dag) = (trigger.tenant.as_str(), spec.id.as_str());
    let shard = ShardId::of(&trigger.tenant, &spec.id, deed.store.shards);
    let number = i32::from(shard.0);
    let made =
        deed.session.execute(MAKE, &[&tenant, &dag, &number, &asked.paused_if_new, &trigger.at]).await?;
    let row = deed.session.row(LOCK, &[&tenant, &dag]).await?.ok_or_else(|| {
        StoreError::Conflict(format!("dag {dag} was deleted while it was registered: register it again"))
    })?;
    let mut cells = Cells::of(&row);
    let before: i32 = cells.take()?;
    let progress = ScheduleProgress { anchor: Some(cells.take()?), last_tick: cells.take()? };
    deed.store.check_shards(cells.take()?)?;
    let new_dag = made == 1;

    if let Some(row) = deed.session.row(VERSION, &[&tenant, &dag, &before]).await? {
        let version = rows::version_view(&mut Cells::of(&row))?;
        if version.hash == canonical.hash {
            return Ok(Registered { version, changed: false, new_dag: false });
        }
    }
    let version = VersionView {
        dag: spec.id.clone(),
        version: before as u32 + 1,
        hash: canonical.hash,
        spec: canonical.spec,
        source: rows::storable(&asked.source),
        origin: rows::storable(&asked.origin),
        created_at: trigger.at,
    };
    add_version(deed, tenant, &version, &canonical.json).await?;
    let next = next_tick(spec, progress, trigger.at);
    let number = version.version as i32;
    deed.session
        .execute(
            PUT_IN_FORCE,
            &[&tenant, &dag, &number, &rows::storable(&spec.owner), &spec.tags, &trigger.at, &next],
        )
        .await?;
    let from = if new_dag { String::new() } else { format!("v{before}") };
    let entry = AuditEntry { from, to: format!("v{number}"), ..batch::entry("registered") };
    deed.trail(trigger, Some(&spec.id), None, entry).await?;
    let what = Attention::Dag { tenant: trigger.tenant.clone(), dag: spec.id.clone() };
    deed.attention(&[(shard, what)]).await?;
    Ok(Registered { version, changed: true, new_dag })
}

async fn add_version(
    deed: &Deed<'_>,
    tenant: &str,
    version: &VersionView,
    canonical: &str,
) -> Result<(), StoreError> {
    let tasks = &version.spec.tasks;
    let ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let retries: Vec<i32> = tasks.iter().map(|task| task.retries as i32).collect();
    let pools: Vec<&str> = tasks.iter().map(|task| task.pool.as_str()).collect();
    let (number, dag, hash) =
        (version.version as i32, version.dag.as_str(), VersionHash::as_str(&version.hash));
    deed.session
        .execute(
            ADD_VERSION,
            &[
                &tenant,
                &dag,
                &number,
                &hash,
                &canonical,
                &version.source,
                &version.origin,
                &version.created_at,
                &ids,
                &retries,
                &pools,
            ],
        )
        .await
        .map(drop)
}

pub(super) async fn set_paused(
    deed: &Deed<'_>,
    trigger: &Trigger,
    dag: &DagId,
    paused: bool,
) -> Result<(), StoreError> {
    let (tenant, name) = (trigger.tenant.as_str(), dag.as_str());
    let Some(row) = deed.session.row(SET_PAUSED, &[&tenant, &name, &paused]).await? else {
        return match deed.session.row(EXISTS, &[&tenant, &name]).await? {
            Some(_) => Ok(()), // it was so already
            None => Err(no_dag(dag)),
        };
    };
    let shard = ShardId(Cells::of(&row).number()?);
    let word = |paused| if paused { "paused" } else { "unpaused" };
    let (from, to) = (word(!paused).to_owned(), word(paused).to_owned());
    let entry = AuditEntry { from, to, ..batch::entry(word(paused)) };
    deed.trail(trigger, Some(dag), None, entry).await?;
    let what = Attention::Dag { tenant: trigger.tenant.clone(), dag: dag.clone() };
    deed.attention(&[(shard, what)]).await
}

pub(super) async fn delete(deed: &Deed<'_>, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
    let (tenant, name) = (trigger.tenant.as_str(), dag.as_str());
    let row = deed.session.row(LOCK_AWAY, &[&tenant, &name]).await?.ok_or_else(|| no_dag(dag))?;
    let shard = ShardId(Cells::of(&row).number()?);
    if let Some(row) = deed.session.row(AN_ACTIVE_RUN, &[&tenant, &name]).await? {
        let run: &str = Cells::of(&row).take()?;
        return Err(StoreError::Conflict(format!(
            "dag {dag} has an active run ({run}): end its runs before deleting it"
        )));
    }
    for sql in DELETE {
        deed.session.execute(sql, &[&tenant, &name]).await?;
    }
    deed.trail(trigger, Some(dag), None, batch::entry("deleted")).await?;
    let what = Attention::Dag { tenant: trigger.tenant.clone(), dag: dag.clone() };
    deed.attention(&[(shard, what)]).await
}
