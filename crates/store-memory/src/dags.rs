//! Dags: registered, paused, deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_model::timetable::ScheduleProgress;
use tenure_model::{DagId, ShardId, TenantId, VersionHash};
use tenure_store::{Attention, DagRegistration, Registered, StoreError, Trigger, VersionView, next_tick};

use crate::tables::{Dag, Tables};
use crate::trail::{By, entry};

pub(crate) fn register(
    tables: &mut Tables,
    registration: &DagRegistration,
) -> Result<Registered, StoreError> {
    let DagRegistration { trigger, spec, source, origin, paused_if_new } = registration;
    let hash = VersionHash::of(spec.canonical_json().as_bytes());
    let key = (trigger.tenant.clone(), spec.id.clone());
    let known = tables.dags.get(&key);
    if let Some(dag) = known.filter(|dag| dag.in_force().hash == hash) {
        return Ok(Registered { version: dag.in_force().clone(), changed: false, new_dag: false });
    }
    let new_dag = known.is_none();
    let before = known.map_or(0, Dag::version);
    let view = VersionView {
        dag: spec.id.clone(),
        version: before + 1,
        hash,
        spec: Arc::new(spec.clone()),
        source: source.clone(),
        origin: origin.clone(),
        created_at: trigger.at,
    };
    let shards = tables.shards;
    let dag = tables.dags.entry(key).or_insert_with(|| Dag {
        shard: ShardId::of(&trigger.tenant, &spec.id, shards),
        paused: *paused_if_new,
        origin: String::new(),
        progress: ScheduleProgress { anchor: Some(trigger.at), last_tick: None },
        next_tick: None,
        registered_at: trigger.at,
        updated_at: trigger.at,
        versions: vec![],
        runs: BTreeMap::new(),
        by_date: BTreeMap::new(),
        by_key: BTreeMap::new(),
    });
    dag.versions.push(view.clone());
    dag.origin.clone_from(origin);
    dag.next_tick = next_tick(spec, dag.progress, trigger.at);
    dag.updated_at = trigger.at;
    let shard = dag.shard;
    let from = if new_dag { String::new() } else { format!("v{before}") };
    let registered = entry("registered", from, format!("v{}", view.version));
    tables.audit(By::user(trigger), Some(&spec.id), None, vec![registered]);
    notice(tables, shard, &trigger.tenant, &spec.id);
    Ok(Registered { version: view, changed: true, new_dag })
}

pub(crate) fn set_paused(
    tables: &mut Tables,
    trigger: &Trigger,
    dag: &DagId,
    paused: bool,
) -> Result<(), StoreError> {
    let known = tables.dag(&trigger.tenant, dag)?;
    if known.paused == paused {
        return Ok(());
    }
    let shard = known.shard;
    tables.dags.get_mut(&(trigger.tenant.clone(), dag.clone())).expect("found just now").paused = paused;
    let name = |paused| if paused { "paused" } else { "active" };
    let event = if paused { "paused" } else { "unpaused" };
    tables.audit(By::user(trigger), Some(dag), None, vec![entry(event, name(!paused), name(paused))]);
    notice(tables, shard, &trigger.tenant, dag);
    Ok(())
}

/// Versions, runs and all that belongs to them go with it; its audit stays.
pub(crate) fn delete(tables: &mut Tables, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
    let known = tables.dag(&trigger.tenant, dag)?;
    let (shard, version) = (known.shard, known.version());
    let runs: Vec<_> = known.runs.values().copied().collect();
    if let Some(active) = runs.iter().find(|key| !tables.runs[key].view.state.is_finished()) {
        let run = &tables.runs[active].view.run_id;
        let text = format!("dag {dag} has an active run, {run}; end its runs before deleting it");
        return Err(StoreError::Conflict(text));
    }
    runs.into_iter().for_each(|run| tables.forget_run(run));
    tables.dags.remove(&(trigger.tenant.clone(), dag.clone()));
    let deleted = entry("deleted", format!("v{version}"), "");
    tables.audit(By::user(trigger), Some(dag), None, vec![deleted]);
    notice(tables, shard, &trigger.tenant, dag);
    Ok(())
}

fn notice(tables: &mut Tables, shard: ShardId, tenant: &TenantId, dag: &DagId) {
    tables.attend(shard, Attention::Dag { tenant: tenant.clone(), dag: dag.clone() });
}
