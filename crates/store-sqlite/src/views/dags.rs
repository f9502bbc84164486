//! Dags and their versions, listed.

use rusqlite::Connection;
use tenure_model::{DagId, TenantId};
use tenure_store::{DagQuery, DagView, Page, Paging, VersionView};

use super::query::{Filter, Order, page};
use crate::errors::Fail;
use crate::registration;
use crate::rows::{dag_view, dag_view_columns, one, version_columns, version_view};
use crate::snapshot;
use crate::specs::Specs;

const DAG_ORDER: Order = Order {
    names: &[("dag_id", "d.dag_id"), ("next_run_at", "d.next_tick"), ("is_paused", "d.paused")],
    default: "dag_id",
    tie: "d.dag_id",
};

const VERSION_ORDER: Order =
    Order { names: &[("version", "v.version")], default: "-version", tie: "v.version" };

pub(super) fn list(conn: &Connection, specs: &Specs, query: &DagQuery) -> Result<Page<DagView>, Fail> {
    let mut filter = Filter::default();
    filter.and("d.tenant = ?", query.tenant.to_string());
    filter.and_if("d.dag_id LIKE ?", query.id_pattern.clone());
    filter.and_any("d.owner IN ({})", query.owners.iter().cloned());
    filter.and_any(
        "EXISTS (SELECT 1 FROM json_each(d.tags) tag WHERE tag.value IN ({}))",
        query.tags.iter().cloned(),
    );
    filter.and_if("d.paused = ?", query.paused);
    let read = |cells: &mut crate::rows::Cells<'_>| dag_view(cells, conn, specs);
    page(conn, dag_view_columns!(), "dags d", filter, &DAG_ORDER, &query.paging, read)
}

pub(super) fn get(
    conn: &Connection,
    specs: &Specs,
    tenant: &TenantId,
    dag: &DagId,
) -> Result<Option<DagView>, Fail> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        dag_view_columns!(),
        " FROM dags d WHERE d.tenant = ?1 AND d.dag_id = ?2"
    ))?;
    one(&mut select, (tenant.as_str(), dag.as_str()), |cells| dag_view(cells, conn, specs))
}

pub(super) fn list_versions(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    paging: &Paging,
) -> Result<Page<VersionView>, Fail> {
    let mut filter = Filter::default();
    filter.and("v.tenant = ?", tenant.to_string());
    filter.and("v.dag_id = ?", dag.to_string());
    page(conn, version_columns!(), "dag_versions v", filter, &VERSION_ORDER, paging, version_view)
}

pub(super) fn get_version(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    version: Option<u32>,
) -> Result<Option<VersionView>, Fail> {
    let in_force = || Ok::<_, Fail>(snapshot::dag(conn, tenant, dag)?.map(|dag| dag.version));
    let Some(version) = version.map_or_else(in_force, |version| Ok(Some(version)))? else { return Ok(None) };
    registration::version(conn, tenant, dag, version)
}
