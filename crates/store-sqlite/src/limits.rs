//! Pools, quotas and nodes: what every owner shares out.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use tenure_model::{NodeId, PoolName, ShardId, TenantId};
use tenure_store::{
    AuditEntry, Common, Drain, DrainStage, Limits, NodeRecord, NodeRegistration, PoolRecord, Quota, Trigger,
    drain_scope,
};

use crate::Office;
use crate::errors::Fail;
use crate::identities::held;
use crate::leases::{Authority, check_fence};
use crate::rows::{At, all, node, node_columns, one, pool, quota};
use crate::trail::{self, By};
use crate::writer::Tx;

pub(crate) const VERSION: &str = "SELECT version FROM limits WHERE id = 1";

pub(crate) fn version(conn: &Connection) -> Result<u64, Fail> {
    let found = one(&mut conn.prepare_cached(VERSION)?, [], |cells| cells.take::<i64>())?;
    found
        .map(|version| version as u64)
        .ok_or_else(|| Fail::corrupt("the version of the limits", "it is missing"))
}

/// For what concerns every owner.
pub(crate) fn next_version(tx: &Tx<'_>, office: &Office) -> Result<(), Fail> {
    tx.prepare_cached("UPDATE limits SET version = version + 1 WHERE id = 1")?.execute([])?;
    (0..office.shards).for_each(|shard| tx.wake(ShardId(shard)));
    Ok(())
}

pub(crate) fn limits(conn: &Connection) -> Result<Limits, Fail> {
    Ok(Limits { version: version(conn)?, pools: pools(conn)?, quotas: quotas(conn)?, nodes: nodes(conn)? })
}

pub(crate) fn pools(conn: &Connection) -> Result<Vec<PoolRecord>, Fail> {
    all(&mut conn.prepare_cached("SELECT name, slots, description FROM pools ORDER BY name")?, [], pool)
}

pub(crate) fn quotas(conn: &Connection) -> Result<Vec<Quota>, Fail> {
    all(&mut conn.prepare_cached("SELECT tenant, most FROM quotas ORDER BY tenant")?, [], quota)
}

pub(crate) fn quota_of(conn: &Connection, tenant: &TenantId) -> Result<Option<Quota>, Fail> {
    let mut select = conn.prepare_cached("SELECT tenant, most FROM quotas WHERE tenant = ?1")?;
    one(&mut select, [tenant.as_str()], quota)
}

pub(crate) fn put_quota(tx: &Tx<'_>, office: &Office, trigger: &Trigger, quota: &Quota) -> Result<(), Fail> {
    let tenant = &quota.tenant;
    let before = quota_of(tx, tenant)?.map_or(String::new(), |before| before.most.to_string());
    let mut put = tx.prepare_cached(
        "INSERT INTO quotas (tenant, most) VALUES (?1, ?2) ON CONFLICT (tenant) DO UPDATE SET most = excluded.most",
    )?;
    let most = serde_json::to_string(&quota.most).expect("amounts are plain data");
    put.execute(params![tenant.as_str(), most])?;
    changed(tx, office, trigger, "quota_set", format!("quota {tenant}"), before, quota.most.to_string())
}

pub(crate) fn delete_quota(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    tenant: &TenantId,
) -> Result<(), Fail> {
    let Some(before) = quota_of(tx, tenant)? else {
        return Err(Fail::not_found(format!("tenant {tenant} has no quota")));
    };
    tx.prepare_cached("DELETE FROM quotas WHERE tenant = ?1")?.execute([tenant.as_str()])?;
    tx.prepare_cached("DELETE FROM shares WHERE what = ?1")?
        .execute([Common::Quota(tenant.clone()).key()])?;
    let what = format!("quota {tenant}");
    changed(tx, office, trigger, "quota_deleted", what, before.most.to_string(), String::new())
}

pub(crate) fn nodes(conn: &Connection) -> Result<Vec<NodeRecord>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        node_columns!(),
        " FROM nodes WHERE removed_at IS NULL OR (",
        held!("nodes.node"),
        ") > 0 ORDER BY node"
    ))?;
    all(&mut select, [], node)
}

pub(crate) fn put_pool(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    pool: &PoolRecord,
) -> Result<(), Fail> {
    let before = slots(tx, &pool.name)?.map_or(String::new(), |slots| format!("{slots} slots"));
    let mut put = tx.prepare_cached(
        "INSERT INTO pools (name, tenant, slots, description) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, description = excluded.description",
    )?;
    put.execute(params![pool.name.as_str(), trigger.tenant.as_str(), pool.slots, pool.description])?;
    let what = format!("pool {}", pool.name);
    changed(tx, office, trigger, "pool_set", what, before, format!("{} slots", pool.slots))
}

pub(crate) fn delete_pool(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    name: &PoolName,
) -> Result<(), Fail> {
    let Some(slots) = slots(tx, name)? else {
        return Err(Fail::not_found(format!("there is no pool {name}")));
    };
    if *name == PoolName::default_pool() {
        return Err(Fail::conflict(format!("{name} is the pool of every task that names none; it stays")));
    }
    tx.prepare_cached("DELETE FROM pools WHERE name = ?1")?.execute([name.as_str()])?;
    let what = format!("pool {name}");
    changed(tx, office, trigger, "pool_deleted", what, format!("{slots} slots"), String::new())
}

fn slots(conn: &Connection, name: &PoolName) -> Result<Option<u32>, Fail> {
    let mut select = conn.prepare_cached("SELECT slots FROM pools WHERE name = ?1")?;
    one(&mut select, [name.as_str()], |cells| cells.take())
}

fn changed(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    event: &str,
    what: String,
    from: String,
    to: String,
) -> Result<(), Fail> {
    let entry = AuditEntry { reason: Some(what), ..trail::entry(event, from, to) };
    trail::audit(tx, By::user(trigger), None, None, &[entry])?;
    next_version(tx, office)
}

/// A node that was being drained still is: a restart of its agent is no reason to send it work. Every replica
/// hears of every node, so one that has nothing new to say wakes nobody.
pub(crate) fn register_node(
    tx: &Tx<'_>,
    office: &Office,
    registration: &NodeRegistration,
    at: Timestamp,
) -> Result<NodeRecord, Fail> {
    let NodeRegistration { node: name, capacity, labels, taints, queues, version } = registration;
    let mut select = tx.prepare_cached(concat!(
        "SELECT ",
        node_columns!(),
        " FROM nodes WHERE node = ?1 AND removed_at IS NULL"
    ))?;
    let same = |known: &NodeRecord| {
        (&known.capacity, &known.labels, &known.taints, &known.queues, &known.version)
            == (capacity, labels, taints, queues, version)
    };
    let news = !one(&mut select, [name.as_str()], node)?.is_some_and(|known| same(&known));
    let mut put = tx.prepare_cached(concat!(
        "INSERT INTO nodes (node, capacity, labels, taints, queues, version, registered_at, draining)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)
         ON CONFLICT (node) DO UPDATE SET capacity = excluded.capacity, labels = excluded.labels,
             taints = excluded.taints, queues = excluded.queues,
             version = excluded.version, registered_at = excluded.registered_at, removed_at = NULL
         RETURNING ",
        node_columns!()
    ))?;
    let capacity = serde_json::to_string(capacity).expect("amounts are plain data");
    let labels = serde_json::to_string(labels).expect("labels are plain data");
    let taints = serde_json::to_string(taints).expect("taints are plain data");
    let queues = serde_json::to_string(queues).expect("queues are plain data");
    let values = params![name.as_str(), capacity, labels, taints, queues, version, At(at)];
    let record = one(&mut put, values, node)?;
    if news {
        next_version(tx, office)?;
    }
    Ok(record.expect("an upsert returns its row"))
}

fn node_named(tx: &Tx<'_>, name: &NodeId) -> Result<NodeRecord, Fail> {
    let mut select = tx.prepare_cached(concat!("SELECT ", node_columns!(), " FROM nodes WHERE node = ?1"))?;
    one(&mut select, [name.as_str()], node)?
        .ok_or_else(|| Fail::not_found(format!("there is no node {name}")))
}

/// `draining` is kept for releases that know nothing more about it.
fn put_drain(tx: &Tx<'_>, office: &Office, name: &NodeId, drain: Option<&Drain>) -> Result<(), Fail> {
    let text = drain.map(|drain| serde_json::to_string(drain).expect("a drain is plain data"));
    let mut update =
        tx.prepare_cached("UPDATE nodes SET drain = ?2, draining = ?2 IS NOT NULL WHERE node = ?1")?;
    update.execute(params![name.as_str(), text])?;
    next_version(tx, office)
}

pub(crate) fn drain_node(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    name: &NodeId,
    deadline: Timestamp,
) -> Result<NodeRecord, Fail> {
    let mut record = node_named(tx, name)?;
    record.drain = Some(Drain::asked(record.drain.as_ref(), deadline, &trigger.actor, trigger.at));
    put_drain(tx, office, name, record.drain.as_ref())?;
    let entry = AuditEntry {
        node: Some(name.clone()),
        reason: Some(format!("until {deadline}")),
        ..trail::entry("node_drained", "", "draining")
    };
    trail::audit(tx, By::user(trigger), None, None, &[entry])?;
    Ok(record)
}

pub(crate) fn undrain_node(
    tx: &Tx<'_>,
    office: &Office,
    trigger: &Trigger,
    name: &NodeId,
) -> Result<NodeRecord, Fail> {
    let mut record = node_named(tx, name)?;
    if record.drain.take().is_some() {
        put_drain(tx, office, name, None)?;
        let entry = AuditEntry { node: Some(name.clone()), ..trail::entry("node_undrained", "draining", "") };
        trail::audit(tx, By::user(trigger), None, None, &[entry])?;
    }
    Ok(record)
}

pub(crate) fn advance_drain(
    tx: &Tx<'_>,
    office: &Office,
    authority: &Authority,
    name: &NodeId,
    since: Timestamp,
    to: DrainStage,
) -> Result<bool, Fail> {
    let (scope, wanted) = (authority.scope.as_str(), drain_scope(name));
    if scope != wanted.as_str() {
        return Err(Fail::conflict(format!(
            "{scope} has no authority over the drain of {name}; {wanted} has"
        )));
    }
    check_fence(tx, authority)?;
    let mut select = tx.prepare_cached("SELECT drain FROM nodes WHERE node = ?1")?;
    let drain: Option<Option<Drain>> =
        one(&mut select, [name.as_str()], |cells| cells.optional_json("the drain of a node"))?;
    let Some(next) = drain.flatten().and_then(|drain| drain.advanced(since, to)) else { return Ok(false) };
    put_drain(tx, office, name, Some(&next))?;
    Ok(true)
}
