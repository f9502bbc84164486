//! The two kinds of row that follow a change: an audit row for people, attention for the shard's owner.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use tenure_model::{DagId, RunId, ShardId, TenantId};
use tenure_store::{Attention, AuditEntry, Trigger};

use crate::errors::Fail;
use crate::rows::At;
use crate::writer::Tx;

/// Who did something, under which authority, and when.
#[derive(Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) actor: &'a str,
    pub(crate) at: Timestamp,
    /// Scope and epoch of a scheduling write.
    pub(crate) authority: Option<(&'a str, u64)>,
}

impl<'a> By<'a> {
    pub(crate) fn user(trigger: &'a Trigger) -> Self {
        Self { tenant: &trigger.tenant, actor: &trigger.actor, at: trigger.at, authority: None }
    }
}

pub(crate) fn audit(
    conn: &Connection,
    by: By<'_>,
    dag: Option<&DagId>,
    run: Option<&RunId>,
    entries: &[AuditEntry],
) -> Result<(), Fail> {
    let text = serde_json::to_string(entries).expect("audit entries are plain data");
    audit_text(conn, by, dag.map(DagId::as_str), run.map(RunId::as_str), &text)
}

/// With the entries already written as JSON.
pub(crate) fn audit_text(
    conn: &Connection,
    by: By<'_>,
    dag: Option<&str>,
    run: Option<&str>,
    entries: &str,
) -> Result<(), Fail> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO audit (tenant, dag_id, run_id, at, actor, scope, epoch, entries)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let (scope, epoch) = by.authority.unzip();
    let epoch = epoch.map(|epoch| epoch as i64);
    insert.execute(params![by.tenant.as_str(), dag, run, At(by.at), by.actor, scope, epoch, entries])?;
    Ok(())
}

/// One entry about a run or a dag as a whole.
pub(crate) fn entry(event: &str, from: impl Into<String>, to: impl Into<String>) -> AuditEntry {
    AuditEntry { from: from.into(), to: to.into(), ..AuditEntry::new(event) }
}

pub(crate) fn attention(tx: &Tx<'_>, shard: ShardId, what: &Attention) -> Result<(), Fail> {
    let text = serde_json::to_string(what).expect("attention is plain data");
    tx.prepare_cached("INSERT INTO attention (shard, what) VALUES (?1, ?2)")?.execute((shard.0, text))?;
    tx.wake(shard);
    Ok(())
}
