//! Listings: filtered, ordered, paged, with the words of the other stores.

use std::cmp::Ordering;

use tenure_model::{DagId, TenantId};
use tenure_store::{
    AuditQuery, AuditView, DagQuery, DagView, Page, Paging, RunQuery, RunView, StoreError, TiQuery, TiView,
    VersionView,
};

use crate::tables::{AuditRow, Dag, Tables};

type Compare<T> = fn(&T, &T) -> Ordering;

/// One page of what is given in the order of the natural key, which breaks ties.
fn page<T>(
    mut items: Vec<T>,
    paging: &Paging,
    default: &str,
    orders: &[(&str, Compare<T>)],
) -> Result<Page<T>, StoreError> {
    let asked = paging.order_by.as_deref().unwrap_or(default);
    let (name, descending) = asked.strip_prefix('-').map_or((asked, false), |name| (name, true));
    let Some((_, compare)) = orders.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = orders.iter().map(|(known, _)| *known).collect();
        let text = format!("cannot order by {name:?}; known are {}", known.join(", "));
        return Err(StoreError::Conflict(text));
    };
    items.sort_by(|a, b| if descending { compare(b, a) } else { compare(a, b) });
    let total = items.len() as u64;
    let items = items.into_iter().skip(paging.offset as usize).take(paging.limit as usize).collect();
    Ok(Page { items, total })
}

/// `%` is any text, `_` any character; letters of either case are alike.
fn like(pattern: &str, text: &str) -> bool {
    fn matches(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('%', rest)) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
            Some((one, rest)) => match text.split_first() {
                Some((first, left)) => {
                    (*one == '_' || one.eq_ignore_ascii_case(first)) && matches(rest, left)
                }
                None => false,
            },
        }
    }
    let chars = |text: &str| text.chars().collect::<Vec<_>>();
    matches(&chars(pattern), &chars(text))
}

/// No values mean no condition.
fn any<T: PartialEq>(wanted: &[T], value: &T) -> bool {
    wanted.is_empty() || wanted.contains(value)
}

pub(super) fn dag_view(tenant: &TenantId, dag: &Dag) -> DagView {
    let version = dag.in_force();
    DagView {
        tenant: tenant.clone(),
        dag: version.dag.clone(),
        shard: dag.shard,
        paused: dag.paused,
        version: version.version,
        hash: version.hash.clone(),
        origin: dag.origin.clone(),
        spec: version.spec.clone(),
        registered_at: dag.registered_at,
        updated_at: dag.updated_at,
        last_tick: dag.progress.last_tick,
        next_tick: dag.next_tick,
    }
}

pub(super) fn dags(tables: &Tables, query: &DagQuery) -> Result<Page<DagView>, StoreError> {
    let found = tables.dags.iter().filter(|((tenant, _), _)| *tenant == query.tenant);
    let fits = |dag: &DagView| {
        query.id_pattern.as_ref().is_none_or(|pattern| like(pattern, dag.dag.as_str()))
            && any(&query.owners, &dag.spec.owner)
            && (query.tags.is_empty() || dag.spec.tags.iter().any(|tag| query.tags.contains(tag)))
            && query.paused.is_none_or(|paused| paused == dag.paused)
    };
    let found = found.map(|((tenant, _), dag)| dag_view(tenant, dag)).filter(fits).collect();
    page(
        found,
        &query.paging,
        "dag_id",
        &[
            ("dag_id", |a, b| a.dag.cmp(&b.dag)),
            ("next_run_at", |a, b| a.next_tick.cmp(&b.next_tick)),
            ("is_paused", |a, b| a.paused.cmp(&b.paused)),
        ],
    )
}

pub(super) fn versions(
    tables: &Tables,
    tenant: &TenantId,
    dag: &DagId,
    paging: &Paging,
) -> Result<Page<VersionView>, StoreError> {
    let found = tables.dag(tenant, dag).map(|dag| dag.versions.clone()).unwrap_or_default();
    page(found, paging, "-version", &[("version", |a, b| a.version.cmp(&b.version))])
}

pub(super) fn runs(tables: &Tables, query: &RunQuery) -> Result<Page<RunView>, StoreError> {
    let at_least =
        |value: Option<_>, bound: Option<_>| bound.is_none() || (value.is_some() && value >= bound);
    let at_most = |value: Option<_>, bound: Option<_>| bound.is_none() || (value.is_some() && value <= bound);
    let fits = |run: &&RunView| {
        run.tenant == query.tenant
            && query.dag.as_ref().is_none_or(|dag| *dag == run.dag)
            && any(&query.states, &run.state)
            && any(&query.run_types, &run.run_type)
            && query.run_id_pattern.as_ref().is_none_or(|pattern| like(pattern, run.run_id.as_str()))
            && at_least(run.logical_date, query.logical_date_gte)
            && at_most(run.logical_date, query.logical_date_lte)
            && at_least(Some(run.run_after), query.run_after_gte)
            && at_most(Some(run.run_after), query.run_after_lte)
            && at_least(run.started_at, query.started_at_gte)
            && at_most(run.started_at, query.started_at_lte)
            && at_least(run.ended_at, query.ended_at_gte)
            && at_most(run.ended_at, query.ended_at_lte)
    };
    let found = tables.runs.values().map(|run| &run.view).filter(fits).cloned().collect();
    page(
        found,
        &query.paging,
        "id",
        &[
            ("id", |a, b| a.key.cmp(&b.key)),
            ("state", |a, b| a.state.as_str().cmp(b.state.as_str())),
            ("dag_id", |a, b| a.dag.cmp(&b.dag)),
            ("run_id", |a, b| a.run_id.cmp(&b.run_id)),
            ("logical_date", |a, b| a.logical_date.cmp(&b.logical_date)),
            ("run_after", |a, b| a.run_after.cmp(&b.run_after)),
            ("start_date", |a, b| a.started_at.cmp(&b.started_at)),
            ("end_date", |a, b| a.ended_at.cmp(&b.ended_at)),
            ("queued_at", |a, b| a.queued_at.cmp(&b.queued_at)),
        ],
    )
}

pub(super) fn tis(tables: &Tables, query: &TiQuery) -> Result<Page<TiView>, StoreError> {
    let runs = tables.runs.values().filter(|run| {
        run.view.tenant == query.tenant
            && query.dag.as_ref().is_none_or(|dag| *dag == run.view.dag)
            && query.run.as_ref().is_none_or(|wanted| *wanted == run.view.run_id)
            && (query.bound_to.is_none() || !run.view.state.is_finished())
    });
    let rows = runs.flat_map(|run| run.tis.iter().map(move |(place, row)| run.ti_view(*place, row)));
    let bound = |ti: &TiView| {
        query.bound_to.is_none() || (ti.instance.state.is_bound() && ti.instance.node == query.bound_to)
    };
    let fits = |ti: &TiView| {
        query.task.as_ref().is_none_or(|task| *task == ti.task_id)
            && query.map_index.is_none_or(|index| index == ti.key.map_index)
            && any(&query.states, &ti.instance.state)
            && any(&query.pools, &ti.pool)
            && bound(ti)
    };
    page(
        rows.filter(fits).collect(),
        &query.paging,
        "id",
        &[
            ("id", |a, b| a.key.cmp(&b.key)),
            ("task_id", |a, b| a.task_id.cmp(&b.task_id)),
            ("state", |a, b| a.instance.state.as_str().cmp(b.instance.state.as_str())),
            ("start_date", |a, b| a.instance.started_at.cmp(&b.instance.started_at)),
            ("end_date", |a, b| a.instance.ended_at.cmp(&b.instance.ended_at)),
        ],
    )
}

pub(super) fn audit(tables: &Tables, query: &AuditQuery) -> Result<Page<AuditView>, StoreError> {
    let rows = tables.audit.range(query.after_seq.map_or(i64::MIN, |seq| seq + 1)..);
    let fits = |row: &&AuditRow| {
        row.tenant == query.tenant
            && (query.dag.is_none() || row.view.dag == query.dag)
            && (query.run.is_none() || row.view.run_id == query.run)
    };
    let found = rows.map(|(_, row)| row).filter(fits).map(|row| row.view.clone());
    page(
        found.collect(),
        &query.paging,
        "seq",
        &[("seq", |a, b| a.seq.cmp(&b.seq)), ("at", |a, b| a.at.cmp(&b.at))],
    )
}
