//! What follows a change: an audit row for people, attention for the shard's owner.

use jiff::Timestamp;
use tenure_model::{DagId, NodeId, RunId, ShardId, TenantId};
use tenure_store::{Attention, AuditEntry, AuditView, Trigger};

use crate::Authority;
use crate::tables::{AuditRow, Tables};

/// Who did something, under which authority, and when.
#[derive(Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) actor: &'a str,
    pub(crate) at: Timestamp,
    pub(crate) authority: Option<&'a Authority>,
}

impl<'a> By<'a> {
    pub(crate) fn user(trigger: &'a Trigger) -> Self {
        Self { tenant: &trigger.tenant, actor: &trigger.actor, at: trigger.at, authority: None }
    }
}

/// One entry about a run, a dag or a node as a whole.
pub(crate) fn entry(event: &str, from: impl Into<String>, to: impl Into<String>) -> AuditEntry {
    AuditEntry { from: from.into(), to: to.into(), ..AuditEntry::new(event) }
}

impl Tables {
    pub(crate) fn audit(
        &mut self,
        by: By<'_>,
        dag: Option<&DagId>,
        run: Option<&RunId>,
        entries: Vec<AuditEntry>,
    ) {
        self.last_audit += 1;
        let view = AuditView {
            seq: self.last_audit,
            at: by.at,
            dag: dag.cloned(),
            run_id: run.cloned(),
            actor: by.actor.to_owned(),
            scope: by.authority.map(|authority| authority.scope.to_string()),
            epoch: by.authority.map(|authority| authority.epoch.0),
            entries,
        };
        let row = AuditRow { tenant: by.tenant.clone(), committed_at: self.now, view };
        self.audit.insert(self.last_audit, row);
    }

    /// About a node, or what lets nodes in.
    pub(crate) fn note(&mut self, by: By<'_>, event: &str, to: String, node: Option<NodeId>) {
        self.audit(by, None, None, vec![AuditEntry { node, ..entry(event, "", to) }]);
    }

    pub(crate) fn attend(&mut self, shard: ShardId, what: Attention) {
        self.last_attention += 1;
        self.attention.insert((shard, self.last_attention), what);
        self.attention_of.insert(self.last_attention, shard);
        self.woken.insert(shard);
    }

    /// For what concerns every owner.
    pub(crate) fn limits_changed(&mut self) {
        self.limits_version += 1;
        self.woken.extend((0..self.shards).map(ShardId));
    }

    pub(crate) fn attended(&mut self, seq: i64) {
        if let Some(shard) = self.attention_of.remove(&seq) {
            self.attention.remove(&(shard, seq));
        }
    }
}
