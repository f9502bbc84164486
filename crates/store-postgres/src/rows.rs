//! Rows as the domain's types. A column list and the function that reads it stand side by side.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tenure_lease::with_causes;
use tenure_model::timetable::ScheduleProgress;
use tenure_model::{
    AttemptId, DagId, DagSpec, DataInterval, NodeId, RunId, RunKey, RunState, RunType, ShardId, TaskId,
    TaskInstance, TaskNo, TaskState, TenantId, TiKey, VersionHash,
};
use tenure_store::{
    AuditView, CachedTi, DagSchedule, DagView, NodeRecord, PoolRecord, Quota, RunHeader, RunView, StoreError,
    TiView, TryView, VersionView,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::errors;

/// Reads the columns of a row from left to right.
pub(crate) struct Cells<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Cells<'a> {
    pub(crate) fn of(row: &'a Row) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn take<T: FromSql<'a>>(&mut self) -> Result<T, StoreError> {
        let column = self.next;
        self.next += 1;
        self.row.try_get(column).map_err(|error| {
            let name = self.row.columns().get(column).map_or("a missing column", |column| column.name());
            errors::corrupt(format!("column {name}"), error)
        })
    }

    pub(crate) fn text<T: From<&'a str>>(&mut self) -> Result<T, StoreError> {
        Ok(T::from(self.take()?))
    }

    pub(crate) fn optional_text<T: From<&'a str>>(&mut self) -> Result<Option<T>, StoreError> {
        Ok(self.take::<Option<&str>>()?.map(T::from))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, StoreError> {
        serde_json::from_str(self.take()?).map_err(|error| errors::corrupt(what, error))
    }

    pub(crate) fn optional_json<T: DeserializeOwned>(&mut self, what: &str) -> Result<Option<T>, StoreError> {
        let text = self.take::<Option<&str>>()?;
        text.map(|text| serde_json::from_str(text).map_err(|error| errors::corrupt(what, error))).transpose()
    }

    /// Counts and numbers are never negative; Postgres has no unsigned integers.
    pub(crate) fn number<N: TryFrom<i32>>(&mut self) -> Result<N, StoreError>
    where
        N::Error: Error + Send + Sync + 'static,
    {
        N::try_from(self.take()?).map_err(|error| errors::corrupt("a number", error))
    }

    pub(crate) fn big_number(&mut self) -> Result<u64, StoreError> {
        u64::try_from(self.take::<i64>()?).map_err(|error| errors::corrupt("a number", error))
    }

    pub(crate) fn parsed<T>(&mut self, what: &str, parse: fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let text: &str = self.take()?;
        parse(text).ok_or_else(|| errors::corrupt(what, format!("{text:?} is unknown to this release")))
    }
}

pub(crate) fn all<T>(
    rows: &[Row],
    read: impl Fn(&mut Cells<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    rows.iter().map(|row| read(&mut Cells::of(row))).collect()
}

/// What can be read; the rest is said and left out. For rows that belong to no run.
pub(crate) fn readable<T>(
    rows: &[Row],
    what: &str,
    read: impl Fn(&mut Cells<'_>) -> Result<T, StoreError>,
) -> Vec<T> {
    let each = rows.iter().map(|row| read(&mut Cells::of(row)));
    let said = |error: &StoreError| tracing::error!("{what} is left out: {}", with_causes(error));
    each.filter_map(|read| read.inspect_err(said).ok()).collect()
}

/// What can be read, and the runs to which the rest belongs. Every row begins with the key of its run.
pub(crate) fn readable_of_runs<T>(
    rows: &[Row],
    read: impl Fn(&mut Cells<'_>) -> Result<T, StoreError>,
) -> Result<(Vec<T>, BTreeMap<RunKey, String>), StoreError> {
    let (mut good, mut bad) = (vec![], BTreeMap::new());
    for row in rows {
        match read(&mut Cells::of(row)) {
            Ok(value) => good.push(value),
            Err(error) => {
                let run = RunKey(Cells::of(row).take()?);
                bad.entry(run).or_insert_with(|| with_causes(&error));
            }
        }
    }
    Ok((good, bad))
}

macro_rules! run_columns {
    () => {
        "r.key, r.tenant, r.dag_id, r.run_id, r.version, r.shard, r.state, r.revision, r.run_type, \
         r.logical_date, r.interval_start, r.interval_end, r.run_after, r.queued_at, r.started_at, r.conf"
    };
}
pub(crate) use run_columns;

pub(crate) fn run_header(cells: &mut Cells<'_>) -> Result<RunHeader, StoreError> {
    Ok(RunHeader {
        key: RunKey(cells.take()?),
        tenant: cells.text()?,
        dag: cells.text()?,
        run_id: cells.text()?,
        version: cells.number()?,
        shard: ShardId(cells.number()?),
        state: cells.parsed("the state of a run", RunState::parse)?,
        revision: cells.take()?,
        run_type: cells.parsed("the type of a run", RunType::parse)?,
        logical_date: cells.take()?,
        data_interval: interval(cells.take()?, cells.take()?),
        run_after: cells.take()?,
        queued_at: cells.take()?,
        started_at: cells.take()?,
        conf: cells.json("the conf of a run")?,
    })
}

fn interval(start: Option<Timestamp>, end: Option<Timestamp>) -> Option<DataInterval> {
    Some(DataInterval { start: start?, end: end? })
}

macro_rules! run_view_columns {
    () => {
        concat!(crate::rows::run_columns!(), ", r.ended_at, r.updated_at, r.note, r.triggered_by, r.reason")
    };
}
pub(crate) use run_view_columns;

pub(crate) fn run_view(cells: &mut Cells<'_>) -> Result<RunView, StoreError> {
    let header = run_header(cells)?;
    Ok(RunView {
        key: header.key,
        tenant: header.tenant,
        dag: header.dag,
        run_id: header.run_id,
        version: header.version,
        state: header.state,
        run_type: header.run_type,
        logical_date: header.logical_date,
        data_interval: header.data_interval,
        run_after: header.run_after,
        queued_at: header.queued_at,
        started_at: header.started_at,
        ended_at: cells.take()?,
        updated_at: cells.take()?,
        conf: header.conf,
        note: cells.take()?,
        triggered_by: cells.take()?,
        reason: cells.take()?,
    })
}

macro_rules! instance_columns {
    () => {
        "t.state, t.try_number, t.max_tries, t.attempt, t.node, t.scheduled_at, t.queued_at, t.started_at, \
         t.ended_at, t.reason"
    };
}
pub(crate) use instance_columns;

pub(crate) fn instance(cells: &mut Cells<'_>) -> Result<TaskInstance, StoreError> {
    Ok(TaskInstance {
        state: cells.parsed("the state of a task instance", TaskState::parse)?,
        try_number: cells.number()?,
        max_tries: cells.number()?,
        attempt: cells.take::<Option<Uuid>>()?.map(AttemptId),
        node: cells.optional_text::<NodeId>()?,
        scheduled_at: cells.take()?,
        queued_at: cells.take()?,
        started_at: cells.take()?,
        ended_at: cells.take()?,
        reason: cells.take()?,
    })
}

macro_rules! ti_columns {
    () => {
        concat!("t.run, t.task_no, t.map_index, t.task_id, t.pool, ", crate::rows::instance_columns!())
    };
}
pub(crate) use ti_columns;

/// A task instance with the pool it was created for.
#[derive(Clone, Debug)]
pub(crate) struct TiRow {
    pub(crate) run: RunKey,
    pub(crate) cached: CachedTi,
    pub(crate) pool: String,
}

pub(crate) fn ti(cells: &mut Cells<'_>) -> Result<TiRow, StoreError> {
    let run = RunKey(cells.take()?);
    let (task, map_index, task_id) = (TaskNo(cells.number()?), cells.take()?, cells.text::<TaskId>()?);
    let pool = cells.take()?;
    let ti = instance(cells)?;
    Ok(TiRow { run, cached: CachedTi { task, map_index, task_id, ti }, pool })
}

macro_rules! ti_view_columns {
    () => {
        concat!(crate::rows::ti_columns!(), ", r.dag_id, r.run_id, r.logical_date, r.run_after, r.version")
    };
}
pub(crate) use ti_view_columns;

pub(crate) fn ti_view(cells: &mut Cells<'_>) -> Result<TiView, StoreError> {
    let TiRow { run, cached, pool } = ti(cells)?;
    Ok(TiView {
        key: TiKey { run, task: cached.task, map_index: cached.map_index },
        dag: cells.text()?,
        run_id: cells.text()?,
        logical_date: cells.take()?,
        run_after: cells.take()?,
        version: cells.number()?,
        task_id: cached.task_id,
        task_no: cached.task,
        pool,
        instance: cached.ti,
    })
}

macro_rules! try_columns {
    () => {
        concat!("t.run, t.task_no, t.map_index, t.task_id, ", crate::rows::instance_columns!())
    };
}
pub(crate) use try_columns;

pub(crate) fn try_view(cells: &mut Cells<'_>) -> Result<TryView, StoreError> {
    let key = TiKey { run: RunKey(cells.take()?), task: TaskNo(cells.number()?), map_index: cells.take()? };
    Ok(TryView { key, task_id: cells.text()?, instance: instance(cells)?, current: cells.take()? })
}

macro_rules! dag_columns {
    () => {
        "d.tenant, d.dag_id, d.shard, d.version, d.paused, d.registered_at, d.last_tick"
    };
}
pub(crate) use dag_columns;

pub(crate) fn dag_schedule(cells: &mut Cells<'_>) -> Result<DagSchedule, StoreError> {
    Ok(DagSchedule {
        tenant: cells.text::<TenantId>()?,
        dag: cells.text::<DagId>()?,
        shard: ShardId(cells.number()?),
        version: cells.number()?,
        paused: cells.take()?,
        progress: ScheduleProgress { anchor: Some(cells.take()?), last_tick: cells.take()? },
    })
}

macro_rules! dag_view_columns {
    () => {
        "d.tenant, d.dag_id, d.shard, d.paused, d.version, v.hash, v.origin, v.spec, d.registered_at, \
         d.updated_at, d.last_tick, d.next_tick"
    };
}
pub(crate) use dag_view_columns;

pub(crate) fn dag_view(cells: &mut Cells<'_>) -> Result<DagView, StoreError> {
    Ok(DagView {
        tenant: cells.text()?,
        dag: cells.text()?,
        shard: ShardId(cells.number()?),
        paused: cells.take()?,
        version: cells.number()?,
        hash: VersionHash::from_hex(cells.take::<&str>()?),
        origin: cells.take()?,
        spec: spec(cells)?,
        registered_at: cells.take()?,
        updated_at: cells.take()?,
        last_tick: cells.take()?,
        next_tick: cells.take()?,
    })
}

pub(crate) fn spec(cells: &mut Cells<'_>) -> Result<Arc<DagSpec>, StoreError> {
    cells.json("the spec of a dag version").map(Arc::new)
}

macro_rules! version_columns {
    () => {
        "v.dag_id, v.version, v.hash, v.spec, v.source, v.origin, v.created_at"
    };
}
pub(crate) use version_columns;

pub(crate) fn version_view(cells: &mut Cells<'_>) -> Result<VersionView, StoreError> {
    Ok(VersionView {
        dag: cells.text()?,
        version: cells.number()?,
        hash: VersionHash::from_hex(cells.take::<&str>()?),
        spec: spec(cells)?,
        source: cells.take()?,
        origin: cells.take()?,
        created_at: cells.take()?,
    })
}

pub(crate) const AUDIT_COLUMNS: &str =
    "a.seq, a.at, a.dag_id, a.run_id, a.actor, a.scope, a.epoch, a.entries";

pub(crate) fn audit_view(cells: &mut Cells<'_>) -> Result<AuditView, StoreError> {
    Ok(AuditView {
        seq: cells.take()?,
        at: cells.take()?,
        dag: cells.optional_text()?,
        run_id: cells.optional_text::<RunId>()?,
        actor: cells.take()?,
        scope: cells.take()?,
        epoch: cells.take::<Option<i64>>()?.map(|epoch| epoch as u64),
        entries: cells.json("an audit row")?,
    })
}

pub(crate) const QUOTAS: &str = "SELECT tenant, most FROM quotas ORDER BY tenant";
pub(crate) const POOLS: &str = "SELECT name, slots, description FROM pools ORDER BY name";

pub(crate) fn quota(cells: &mut Cells<'_>) -> Result<Quota, StoreError> {
    Ok(Quota { tenant: cells.text()?, most: cells.json("a quota")? })
}

pub(crate) fn pool(cells: &mut Cells<'_>) -> Result<PoolRecord, StoreError> {
    Ok(PoolRecord { name: cells.text()?, slots: cells.number()?, description: cells.take()? })
}

macro_rules! node_columns {
    () => {
        "node, capacity, labels, taints, queues, version, registered_at, drain, removed_at IS NOT NULL"
    };
}
pub(crate) use node_columns;

/// Tasks that are bound to a node.
macro_rules! held {
    ($node:literal) => {
        concat!(
            "SELECT count(*) FROM runs r JOIN task_instances t ON t.run = r.key
             WHERE r.state IN ('queued', 'running') AND t.node = ",
            $node,
            " AND t.state IN ('queued', 'running', 'restarting')"
        )
    };
}
pub(crate) use held;

/// One that was removed is there while it holds something, and gets nothing more.
macro_rules! listed {
    () => {
        concat!("n.removed_at IS NULL OR (", crate::rows::held!("n.node"), ") > 0")
    };
}
pub(crate) use listed;

pub(crate) const NODES: &str =
    concat!("SELECT ", node_columns!(), " FROM nodes n WHERE ", listed!(), " ORDER BY node");

pub(crate) fn node(cells: &mut Cells<'_>) -> Result<NodeRecord, StoreError> {
    Ok(NodeRecord {
        node: cells.text()?,
        capacity: cells.json("the capacity of a node")?,
        labels: cells.json("the labels of a node")?,
        taints: cells.json("the taints of a node")?,
        queues: cells.json("the queues of a node")?,
        version: cells.take()?,
        registered_at: cells.take()?,
        drain: cells.optional_json("the drain of a node")?,
        removed: cells.take()?,
    })
}

/// Postgres keeps no NUL in a text; free-form words of users and tasks may hold one.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
