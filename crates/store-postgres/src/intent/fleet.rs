//! Pools, quotas and nodes: what placement may use. Every shard is told.

use jiff::Timestamp;
use tenure_model::{NodeId, PoolName, TenantId};
use tenure_store::{
    AuditEntry, Common, Drain, DrainStage, NodeRecord, NodeRegistration, PoolRecord, Quota, StoreError,
    Trigger,
};
use tokio_postgres::types::ToSql;

use super::Deed;
use crate::batch;
use crate::rows::{self, Cells, node_columns};

const PUT_POOL: &str = "INSERT INTO pools (tenant, name, slots, description) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant, name) DO UPDATE SET slots = excluded.slots, description = excluded.description";
const DELETE_POOL: &str = "DELETE FROM pools WHERE tenant = $1 AND name = $2";
const FORGET_SHARES: &str = "DELETE FROM shares WHERE what = $1";
const PUT_QUOTA: &str = "INSERT INTO quotas (tenant, most) VALUES ($1, $2)
    ON CONFLICT (tenant) DO UPDATE SET most = excluded.most";
const DELETE_QUOTA: &str = "DELETE FROM quotas WHERE tenant = $1";
/// Nothing that anybody decides by has changed.
const SEEN_AGAIN: &str = concat!(
    "UPDATE nodes SET version = $6, registered_at = $7
    WHERE node = $1 AND capacity = $2 AND labels = $3 AND taints = $4 AND queues = $5
        AND removed_at IS NULL
    RETURNING ",
    node_columns!()
);
/// A node that comes back keeps what operators have decided about it.
const PUT_NODE: &str = concat!(
    "INSERT INTO nodes (node, capacity, labels, taints, queues, version, registered_at, draining)
    VALUES ($1, $2, $3, $4, $5, $6, $7, false)
    ON CONFLICT (node) DO UPDATE SET capacity = excluded.capacity, labels = excluded.labels,
        taints = excluded.taints, queues = excluded.queues,
        version = excluded.version, registered_at = excluded.registered_at, removed_at = NULL
    RETURNING ",
    node_columns!()
);

/// Locked, so that two that decide about one node decide one after the other.
const LOCK_NODE: &str = concat!("SELECT ", node_columns!(), " FROM nodes WHERE node = $1 FOR NO KEY UPDATE");
/// `draining` is kept for releases that know nothing more about it.
const PUT_DRAIN: &str = "UPDATE nodes SET drain = $2::text, draining = $2::text IS NOT NULL WHERE node = $1";

pub(super) async fn put_pool(
    deed: &Deed<'_>,
    trigger: &Trigger,
    pool: &PoolRecord,
) -> Result<(), StoreError> {
    let slots = i32::try_from(pool.slots).map_err(|_| {
        StoreError::Conflict(format!(
            "pool {} cannot have {} slots: the most is {}",
            pool.name,
            pool.slots,
            i32::MAX
        ))
    })?;
    let (tenant, name) = (trigger.tenant.as_str(), pool.name.as_str());
    deed.session.execute(PUT_POOL, &[&tenant, &name, &slots, &rows::storable(&pool.description)]).await?;
    let to = format!("{name}: {slots} slots");
    deed.trail(trigger, None, None, AuditEntry { to, ..batch::entry("pool_set") }).await?;
    deed.limits_changed();
    Ok(())
}

pub(super) async fn delete_pool(
    deed: &Deed<'_>,
    trigger: &Trigger,
    pool: &PoolName,
) -> Result<(), StoreError> {
    if *pool == PoolName::default_pool() {
        return Err(StoreError::Conflict(format!("{pool} serves every task that names no pool: it stays")));
    }
    let (tenant, name) = (trigger.tenant.as_str(), pool.as_str());
    if deed.session.execute(DELETE_POOL, &[&tenant, &name]).await? == 0 {
        return Err(StoreError::NotFound(format!("there is no pool {pool}")));
    }
    deed.session.execute(FORGET_SHARES, &[&Common::Pool(pool.clone()).key()]).await?;
    let from = pool.to_string();
    deed.trail(trigger, None, None, AuditEntry { from, ..batch::entry("pool_deleted") }).await?;
    deed.limits_changed();
    Ok(())
}

pub(super) async fn put_quota(deed: &Deed<'_>, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError> {
    let most = serde_json::to_string(&quota.most).expect("amounts are plain data");
    deed.session.execute(PUT_QUOTA, &[&quota.tenant.as_str(), &most]).await?;
    let to = format!("{}: {}", quota.tenant, quota.most);
    deed.trail(trigger, None, None, AuditEntry { to, ..batch::entry("quota_set") }).await?;
    deed.limits_changed();
    Ok(())
}

pub(super) async fn delete_quota(
    deed: &Deed<'_>,
    trigger: &Trigger,
    tenant: &TenantId,
) -> Result<(), StoreError> {
    if deed.session.execute(DELETE_QUOTA, &[&tenant.as_str()]).await? == 0 {
        return Err(StoreError::NotFound(format!("tenant {tenant} has no quota")));
    }
    deed.session.execute(FORGET_SHARES, &[&Common::Quota(tenant.clone()).key()]).await?;
    let from = tenant.to_string();
    deed.trail(trigger, None, None, AuditEntry { from, ..batch::entry("quota_deleted") }).await?;
    deed.limits_changed();
    Ok(())
}

pub(super) async fn register_node(
    deed: &Deed<'_>,
    node: &NodeRegistration,
    at: Timestamp,
) -> Result<NodeRecord, StoreError> {
    let capacity = serde_json::to_string(&node.capacity).expect("a capacity is plain data");
    let labels = serde_json::to_string(&node.labels).expect("labels are plain data");
    let taints = serde_json::to_string(&node.taints).expect("taints are plain data");
    let queues = serde_json::to_string(&node.queues).expect("queues are plain data");
    let (name, version) = (node.node.as_str(), rows::storable(&node.version));
    let params: [&(dyn ToSql + Sync); 7] = [&name, &capacity, &labels, &taints, &queues, &version, &at];
    if let Some(row) = deed.session.row(SEEN_AGAIN, &params).await? {
        return rows::node(&mut Cells::of(&row));
    }
    let row = deed.session.row(PUT_NODE, &params).await?;
    let record = rows::node(&mut Cells::of(&row.expect("an upsert returns its row")))?;
    deed.limits_changed();
    Ok(record)
}

pub(super) async fn drain_node(
    deed: &Deed<'_>,
    trigger: &Trigger,
    name: &NodeId,
    deadline: Timestamp,
) -> Result<NodeRecord, StoreError> {
    let mut record = lock_node(deed, name).await?.ok_or_else(|| no_node(name))?;
    record.drain = Some(Drain::asked(record.drain.as_ref(), deadline, &trigger.actor, trigger.at));
    put_drain(deed, name, record.drain.as_ref()).await?;
    let entry = AuditEntry {
        node: Some(name.clone()),
        to: "draining".into(),
        reason: Some(format!("until {deadline}")),
        ..batch::entry("node_drained")
    };
    deed.trail(trigger, None, None, entry).await?;
    Ok(record)
}

pub(super) async fn undrain_node(
    deed: &Deed<'_>,
    trigger: &Trigger,
    name: &NodeId,
) -> Result<NodeRecord, StoreError> {
    let mut record = lock_node(deed, name).await?.ok_or_else(|| no_node(name))?;
    if record.drain.take().is_some() {
        put_drain(deed, name, None).await?;
        let (node, from) = (Some(name.clone()), "draining".into());
        deed.trail(trigger, None, None, AuditEntry { node, from, ..batch::entry("node_undrained") }).await?;
    }
    Ok(record)
}

/// The caller has passed the fence of the node's drain.
pub(crate) async fn advance_drain(
    deed: &Deed<'_>,
    name: &NodeId,
    since: Timestamp,
    to: DrainStage,
) -> Result<bool, StoreError> {
    let drain = lock_node(deed, name).await?.and_then(|record| record.drain);
    let Some(next) = drain.and_then(|drain| drain.advanced(since, to)) else { return Ok(false) };
    put_drain(deed, name, Some(&next)).await?;
    Ok(true)
}

async fn lock_node(deed: &Deed<'_>, name: &NodeId) -> Result<Option<NodeRecord>, StoreError> {
    let row = deed.session.row(LOCK_NODE, &[&name.as_str()]).await?;
    row.map(|row| rows::node(&mut Cells::of(&row))).transpose()
}

async fn put_drain(deed: &Deed<'_>, name: &NodeId, drain: Option<&Drain>) -> Result<(), StoreError> {
    let text = drain.map(|drain| serde_json::to_string(drain).expect("a drain is plain data"));
    deed.session.execute(PUT_DRAIN, &[&name.as_str(), &text]).await?;
    deed.limits_changed();
    Ok(())
}

fn no_node(name: &NodeId) -> StoreError {
    StoreError::NotFound(format!("there is no node {name}"))
}
