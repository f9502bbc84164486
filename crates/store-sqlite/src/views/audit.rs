//! The audit trail, listed.

use rusqlite::Connection;
use tenure_store::{AuditQuery, AuditView, Page};

use super::query::{Filter, Order, page};
use crate::errors::Fail;
use crate::rows::audit_view;

const ORDER: Order = Order { names: &[("seq", "a.seq"), ("at", "a.at")], default: "seq", tie: "a.seq" };

pub(super) fn list(conn: &Connection, query: &AuditQuery) -> Result<Page<AuditView>, Fail> {
    let mut filter = Filter::default();
    filter.and("a.tenant = ?", query.tenant.to_string());
    filter.and_if("a.dag_id = ?", query.dag.as_ref().map(ToString::to_string));
    filter.and_if("a.run_id = ?", query.run.as_ref().map(ToString::to_string));
    filter.and_if("a.seq > ?", query.after_seq);
    let columns = "a.seq, a.at, a.dag_id, a.run_id, a.actor, a.scope, a.epoch, a.entries";
    page(conn, columns, "audit a", filter, &ORDER, &query.paging, audit_view)
}
