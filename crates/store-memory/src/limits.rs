//! Pools, quotas and nodes: what every owner shares out; and which replica hears which node.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_model::{NodeId, PoolName, Resources, TenantId};
use tenure_store::{
    AuditEntry, Common, Drain, DrainStage, Limits, NodeRecord, NodeRegistration, PoolRecord, Quota,
    StoreError, Trigger, drain_scope,
};

use crate::Authority;
use crate::tables::Tables;
use crate::trail::{By, entry};

pub(crate) fn limits(tables: &Tables) -> Limits {
    Limits {
        version: tables.limits_version,
        pools: pools(tables),
        quotas: quotas(tables),
        nodes: nodes(tables),
    }
}

pub(crate) fn pools(tables: &Tables) -> Vec<PoolRecord> {
    tables.pools.values().cloned().collect()
}

pub(crate) fn put_pool(tables: &mut Tables, trigger: &Trigger, pool: &PoolRecord) {
    let before = tables.pools.insert(pool.name.clone(), pool.clone());
    let before = before.map_or(String::new(), |pool| format!("{} slots", pool.slots));
    changed(
        tables,
        trigger,
        "pool_set",
        format!("pool {}", pool.name),
        before,
        format!("{} slots", pool.slots),
    );
}

pub(crate) fn delete_pool(tables: &mut Tables, trigger: &Trigger, name: &PoolName) -> Result<(), StoreError> {
    if !tables.pools.contains_key(name) {
        return Err(StoreError::NotFound(format!("there is no pool {name}")));
    }
    if *name == PoolName::default_pool() {
        return Err(StoreError::Conflict(format!(
            "{name} is the pool of every task that names none; it stays"
        )));
    }
    let gone = tables.pools.remove(name).expect("found just now");
    changed(
        tables,
        trigger,
        "pool_deleted",
        format!("pool {name}"),
        format!("{} slots", gone.slots),
        String::new(),
    );
    Ok(())
}

pub(crate) fn put_quota(tables: &mut Tables, trigger: &Trigger, Quota { tenant, most }: &Quota) {
    let before = tables.quotas.insert(tenant.clone(), most.clone()).unwrap_or_default();
    changed(tables, trigger, "quota_set", format!("quota {tenant}"), before.to_string(), most.to_string());
}

pub(crate) fn delete_quota(
    tables: &mut Tables,
    trigger: &Trigger,
    tenant: &TenantId,
) -> Result<(), StoreError> {
    let Some(before) = tables.quotas.remove(tenant) else {
        return Err(StoreError::NotFound(format!("tenant {tenant} has no quota")));
    };
    tables.shares.remove(&Common::Quota(tenant.clone()).key());
    let what = format!("quota {tenant}");
    changed(tables, trigger, "quota_deleted", what, before.to_string(), String::new());
    Ok(())
}

pub(crate) fn quotas(tables: &Tables) -> Vec<Quota> {
    let quota =
        |(tenant, most): (&TenantId, &Resources)| Quota { tenant: tenant.clone(), most: most.clone() };
    tables.quotas.iter().map(quota).collect()
}

fn changed(tables: &mut Tables, trigger: &Trigger, event: &str, what: String, from: String, to: String) {
    let changed = AuditEntry { reason: Some(what), ..entry(event, from, to) };
    tables.audit(By::user(trigger), None, None, vec![changed]);
    tables.limits_changed();
}

/// Those that are nodes, and those that were removed and still hold something.
pub(crate) fn nodes(tables: &Tables) -> Vec<NodeRecord> {
    let listed = |record: &&NodeRecord| !record.removed || held(tables, &record.node) > 0;
    tables.nodes.values().filter(listed).cloned().collect()
}

/// Tasks that are bound to a node.
pub(crate) fn held(tables: &Tables, node: &NodeId) -> u64 {
    let tis = tables.unfinished(None).flat_map(|run| tables.runs[&run].tis.values());
    tis.filter(|row| row.ti.state.is_bound() && row.ti.node.as_ref() == Some(node)).count() as u64
}

/// A node that was being drained still is: a restart of its agent is no reason to send it work. Every replica
/// hears of every node, so one that has nothing new to say wakes nobody.
pub(crate) fn register_node(
    tables: &mut Tables,
    registration: &NodeRegistration,
    at: Timestamp,
) -> NodeRecord {
    let NodeRegistration { node, capacity, labels, taints, queues, version } = registration.clone();
    let known = tables.nodes.get(&node);
    let drain = known.and_then(|known| known.drain.clone());
    let record = NodeRecord {
        node,
        capacity,
        labels,
        taints,
        queues,
        version,
        registered_at: at,
        drain,
        removed: false,
    };
    let news = known.is_none_or(|known| NodeRecord { registered_at: at, ..known.clone() } != record);
    tables.nodes.insert(record.node.clone(), record.clone());
    if news {
        tables.limits_changed();
    }
    record
}

fn node_named<'a>(tables: &'a mut Tables, name: &NodeId) -> Result<&'a mut NodeRecord, StoreError> {
    tables.nodes.get_mut(name).ok_or_else(|| StoreError::NotFound(format!("there is no node {name}")))
}

pub(crate) fn drain_node(
    tables: &mut Tables,
    trigger: &Trigger,
    name: &NodeId,
    deadline: Timestamp,
) -> Result<NodeRecord, StoreError> {
    let record = node_named(tables, name)?;
    record.drain = Some(Drain::asked(record.drain.as_ref(), deadline, &trigger.actor, trigger.at));
    let record = record.clone();
    tables.limits_changed();
    let drained = AuditEntry {
        node: Some(name.clone()),
        reason: Some(format!("until {deadline}")),
        ..entry("node_drained", "", "draining")
    };
    tables.audit(By::user(trigger), None, None, vec![drained]);
    Ok(record)
}

pub(crate) fn undrain_node(
    tables: &mut Tables,
    trigger: &Trigger,
    name: &NodeId,
) -> Result<NodeRecord, StoreError> {
    let record = node_named(tables, name)?;
    let was_draining = record.drain.take().is_some();
    let record = record.clone();
    if was_draining {
        tables.limits_changed();
        let undrained = AuditEntry { node: Some(name.clone()), ..entry("node_undrained", "draining", "") };
        tables.audit(By::user(trigger), None, None, vec![undrained]);
    }
    Ok(record)
}

pub(crate) fn check_drain(authority: &Authority, name: &NodeId) -> Result<(), StoreError> {
    let (scope, wanted) = (&authority.scope, drain_scope(name));
    if *scope == wanted {
        return Ok(());
    }
    Err(StoreError::Conflict(format!("{scope} has no authority over the drain of {name}; {wanted} has")))
}

pub(crate) fn advance_drain(tables: &mut Tables, name: &NodeId, since: Timestamp, to: DrainStage) -> bool {
    let Some(record) = tables.nodes.get_mut(name) else { return false };
    let Some(next) = record.drain.as_ref().and_then(|drain| drain.advanced(since, to)) else { return false };
    record.drain = Some(next);
    tables.limits_changed();
    true
}

/// Those of `nodes` that some replica has heard from, in the order of the question.
pub(crate) fn present(tables: &Tables, now: Timestamp, nodes: &[NodeId], within: Duration) -> Vec<NodeId> {
    let since = back(now, within);
    let heard = tables.presence.values().filter(|(at, _)| *at >= since).flat_map(|(_, nodes)| nodes);
    let heard: BTreeSet<&NodeId> = heard.collect();
    nodes.iter().filter(|node| heard.contains(node)).cloned().collect()
}

pub(crate) fn back(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    now.saturating_sub(by).unwrap_or(Timestamp::MIN)
}
