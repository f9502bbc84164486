//! Dags: registered, paused, deleted.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tenure_model::timetable::ScheduleProgress;
use tenure_model::{DagId, ShardId, TenantId, VersionHash};
use tenure_store::{Attention, DagRegistration, DagSchedule, Registered, Trigger, VersionView, next_tick};

use crate::Office;
use crate::errors::Fail;
use crate::rows::{At, at, one, version_columns, version_view};
use crate::snapshot;
use crate::specs::no_version;
use crate::trail::{self, By};
use crate::writer::Tx;

pub(crate) fn register(
    tx: &Tx<'_>,
    office: &Office,
    registration: &DagRegistration,
    canonical: &str,
) -> Result<Registered, Fail> {
    let DagRegistration { trigger, spec, .. } = registration;
    let hash = VersionHash::of(canonical.as_bytes());
    let known = snapshot::dag(tx, &trigger.tenant, &spec.id)?;
    if let Some(dag) = &known {
        let in_force = version(tx, &trigger.tenant, &spec.id, dag.version)?
            .ok_or_else(|| no_version(&spec.id, dag.version))?;
        if in_force.hash == hash {
            return Ok(Registered { version: in_force, changed: false, new_dag: false });
        }
    }
    let number = known.as_ref().map_or(1, |dag| dag.version + 1);
    let shard =
        known.as_ref().map_or_else(|| ShardId::of(&trigger.tenant, &spec.id, office.shards), |dag| dag.shard);
    put_dag(tx, registration, known.as_ref(), number, &hash, shard)?;
    put_version(tx, registration, number, &hash, canonical)?;
    let before = known.as_ref().map_or(String::new(), |dag| format!("v{}", dag.version));
    let entry = trail::entry("registered", before, format!("v{number}"));
    trail::audit(tx, By::user(trigger), Some(&spec.id), None, &[entry])?;
    notice(tx, shard, &trigger.tenant, &spec.id)?;
    let view = VersionView {
        dag: spec.id.clone(),
        version: number,
        hash: hash.clone(),
        spec: office.specs.remember(hash, Arc::new(spec.clone())),
        source: registration.source.clone(),
        origin: registration.origin.clone(),
        created_at: trigger.at,
    };
    Ok(Registered { version: view, changed: true, new_dag: known.is_none() })
}

fn put_dag(
    conn: &Connection,
    registration: &DagRegistration,
    known: Option<&DagSchedule>,
    version: u32,
    hash: &VersionHash,
    shard: ShardId,
) -> Result<(), Fail> {
    let DagRegistration { trigger, spec, origin, paused_if_new, .. } = registration;
    let progress =
        known.map_or(ScheduleProgress { anchor: Some(trigger.at), last_tick: None }, |dag| dag.progress);
    let mut put = conn.prepare_cached(
        "INSERT INTO dags (tenant, dag_id, shard, paused, version, hash, origin, owner, tags, anchor, next_tick,
             registered_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?10, ?10)
         ON CONFLICT (tenant, dag_id) DO UPDATE SET version = excluded.version, hash = excluded.hash,
             origin = excluded.origin, owner = excluded.owner, tags = excluded.tags, next_tick = excluded.next_tick,
             updated_at = excluded.updated_at",
    )?;
    put.execute(params![
        trigger.tenant.as_str(),
        spec.id.as_str(),
        shard.0,
        paused_if_new,
        version,
        hash.as_str(),
        origin,
        spec.owner,
        serde_json::to_string(&spec.tags).expect("tags are plain data"),
        At(trigger.at),
        at(next_tick(spec, progress, trigger.at)),
    ])?;
    Ok(())
}

fn put_version(
    conn: &Connection,
    registration: &DagRegistration,
    version: u32,
    hash: &VersionHash,
    canonical: &str,
) -> Result<(), Fail> {
    let DagRegistration { trigger, spec, source, origin, .. } = registration;
    let mut put = conn.prepare_cached(
        "INSERT INTO dag_versions (tenant, dag_id, version, hash, spec, source, origin, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let (tenant, dag) = (trigger.tenant.as_str(), spec.id.as_str());
    put.execute(params![tenant, dag, version, hash.as_str(), canonical, source, origin, At(trigger.at)])?;
    Ok(())
}

pub(crate) fn version(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    version: u32,
) -> Result<Option<VersionView>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        version_columns!(),
        " FROM dag_versions v WHERE v.tenant = ?1 AND v.dag_id = ?2 AND v.version = ?3"
    ))?;
    one(&mut select, (tenant.as_str(), dag.as_str(), version), version_view)
}

pub(crate) fn set_paused(tx: &Tx<'_>, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), Fail> {
    let known = snapshot::dag(tx, &trigger.tenant, dag)?.ok_or_else(|| no_dag(dag))?;
    if known.paused == paused {
        return Ok(());
    }
    let mut update = tx.prepare_cached("UPDATE dags SET paused = ?3 WHERE tenant = ?1 AND dag_id = ?2")?;
    update.execute(params![trigger.tenant.as_str(), dag.as_str(), paused])?;
    let name = |paused| if paused { "paused" } else { "active" };
    let entry = trail::entry(if paused { "paused" } else { "unpaused" }, name(!paused), name(paused));
    trail::audit(tx, By::user(trigger), Some(dag), None, &[entry])?;
    notice(tx, known.shard, &trigger.tenant, dag)
}

/// Versions, runs and all that belongs to them go with it; its audit stays.
pub(crate) fn delete(tx: &Tx<'_>, trigger: &Trigger, dag: &DagId) -> Result<(), Fail> {
    let known = snapshot::dag(tx, &trigger.tenant, dag)?.ok_or_else(|| no_dag(dag))?;
    let mut select = tx.prepare_cached(
        "SELECT run_id FROM runs
         WHERE shard = ?1 AND state IN ('queued', 'running') AND tenant = ?2 AND dag_id = ?3 LIMIT 1",
    )?;
    let params = (known.shard.0, trigger.tenant.as_str(), dag.as_str());
    if let Some(run) = one(&mut select, params, |cells| cells.take::<String>())? {
        let text = format!("dag {dag} has an active run, {run}; end its runs before deleting it");
        return Err(Fail::conflict(text));
    }
    let mut delete = tx.prepare_cached("DELETE FROM dags WHERE tenant = ?1 AND dag_id = ?2")?;
    delete.execute((trigger.tenant.as_str(), dag.as_str()))?;
    let entry = trail::entry("deleted", format!("v{}", known.version), "");
    trail::audit(tx, By::user(trigger), Some(dag), None, &[entry])?;
    notice(tx, known.shard, &trigger.tenant, dag)
}

fn notice(tx: &Tx<'_>, shard: ShardId, tenant: &TenantId, dag: &DagId) -> Result<(), Fail> {
    trail::attention(tx, shard, &Attention::Dag { tenant: tenant.clone(), dag: dag.clone() })
}

pub(crate) fn no_dag(dag: &DagId) -> Fail {
    Fail::not_found(format!("there is no dag {dag}"))
}

pub(crate) fn admin_token(conn: &Connection) -> Result<Option<String>, Fail> {
    let mut select = conn.prepare_cached("SELECT value FROM meta WHERE name = 'admin_token'")?;
    one(&mut select, [], |cells| cells.take())
}

/// Kept unless there is one already; answers with the one that counts.
pub(crate) fn offer_admin_token(conn: &Connection, offered: &str) -> Result<Option<String>, Fail> {
    let mut insert = conn
        .prepare_cached("INSERT INTO meta (name, value) VALUES ('admin_token', ?1) ON CONFLICT DO NOTHING")?;
    insert.execute([offered])?;
    admin_token(conn)
}
