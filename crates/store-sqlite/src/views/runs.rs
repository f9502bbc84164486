//! Runs, listed.

use rusqlite::Connection;
use tenure_store::{Page, RunQuery, RunView};

use super::query::{Filter, Order, page, text};
use crate::errors::Fail;
use crate::rows::{run_view, run_view_columns};

const ORDER: Order = Order {
    names: &[
        ("id", "r.key"),
        ("state", "r.state"),
        ("dag_id", "r.dag_id"),
        ("run_id", "r.run_id"),
        ("logical_date", "r.logical_date"),
        ("run_after", "r.run_after"),
        ("start_date", "r.started_at"),
        ("end_date", "r.ended_at"),
        ("queued_at", "r.queued_at"),
    ],
    default: "id",
    tie: "r.key",
};

pub(super) fn list(conn: &Connection, query: &RunQuery) -> Result<Page<RunView>, Fail> {
    let mut filter = Filter::default();
    filter.and("r.tenant = ?", query.tenant.to_string());
    filter.and_if("r.dag_id = ?", query.dag.as_ref().map(ToString::to_string));
    filter.and_any("r.state IN ({})", query.states.iter().map(|state| text(state.as_str())));
    filter.and_any("r.run_type IN ({})", query.run_types.iter().map(|kind| text(kind.as_str())));
    filter.and_if("r.run_id LIKE ?", query.run_id_pattern.clone());
    for (condition, instant) in [
        ("r.logical_date >= ?", query.logical_date_gte),
        ("r.logical_date <= ?", query.logical_date_lte),
        ("r.run_after >= ?", query.run_after_gte),
        ("r.run_after <= ?", query.run_after_lte),
        ("r.started_at >= ?", query.started_at_gte),
        ("r.started_at <= ?", query.started_at_lte),
        ("r.ended_at >= ?", query.ended_at_gte),
        ("r.ended_at <= ?", query.ended_at_lte),
    ] {
        filter.and_instant(condition, instant);
    }
    page(conn, run_view_columns!(), "runs r", filter, &ORDER, &query.paging, run_view)
}
