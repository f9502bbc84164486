//! Rows as the domain's types. A column list and the function that reads it stand side by side.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::types::{FromSql, ToSqlOutput, Value as SqlValue, ValueRef};
use rusqlite::{Connection, Row, ToSql};
use serde::de::DeserializeOwned;
use tenure_lease::Succession;
use tenure_model::timetable::ScheduleProgress;
use tenure_model::{
    AttemptId, DataInterval, NodeId, RunKey, RunState, RunType, ShardId, TaskInstance, TaskNo, TaskState,
    TiKey, VersionHash,
};
use tenure_store::{
    AuditView, CachedTi, DagSchedule, DagView, NodeRecord, PoolRecord, Quota, RunHeader, RunView, TiView,
    VersionView,
};
use uuid::Uuid;

use crate::errors::Fail;
use crate::specs::Specs;

/// Reads the columns of a row from left to right.
pub(crate) struct Cells<'a> {
    row: &'a Row<'a>,
    next: usize,
}

impl<'a> Cells<'a> {
    pub(crate) fn of(row: &'a Row<'a>) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn take<T: FromSql>(&mut self) -> Result<T, Fail> {
        let column = self.next;
        self.next += 1;
        Ok(self.row.get(column)?)
    }

    /// What `take` will give next.
    pub(crate) fn peek<T: FromSql>(&self) -> Result<T, Fail> {
        Ok(self.row.get(self.next)?)
    }

    fn borrowed(&mut self) -> Result<ValueRef<'a>, Fail> {
        let column = self.next;
        self.next += 1;
        Ok(self.row.get_ref(column)?)
    }

    fn str(&mut self) -> Result<&'a str, Fail> {
        self.borrowed()?.as_str().map_err(|error| Fail::corrupt("a text", error))
    }

    pub(crate) fn text<T: From<&'a str>>(&mut self) -> Result<T, Fail> {
        self.str().map(T::from)
    }

    pub(crate) fn optional_text<T: From<&'a str>>(&mut self) -> Result<Option<T>, Fail> {
        let text = self.borrowed()?.as_str_or_null().map_err(|error| Fail::corrupt("a text", error))?;
        Ok(text.map(T::from))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, Fail> {
        serde_json::from_str(self.str()?).map_err(|error| Fail::corrupt(what, error))
    }

    pub(crate) fn optional_json<T: DeserializeOwned>(&mut self, what: &str) -> Result<Option<T>, Fail> {
        let text = self.borrowed()?.as_str_or_null().map_err(|error| Fail::corrupt("a text", error))?;
        text.map(|text| serde_json::from_str(text).map_err(|error| Fail::corrupt(what, error))).transpose()
    }

    fn parsed<T>(&mut self, what: &str, parse: fn(&str) -> Option<T>) -> Result<T, Fail> {
        let text = self.str()?;
        parse(text).ok_or_else(|| Fail::corrupt(what, format!("{text:?} is unknown to this release")))
    }

    pub(crate) fn task_state(&mut self) -> Result<TaskState, Fail> {
        self.parsed("a task state", TaskState::parse)
    }

    pub(crate) fn run_state(&mut self) -> Result<RunState, Fail> {
        self.parsed("a run state", RunState::parse)
    }

    pub(crate) fn succession(&mut self) -> Result<Succession, Fail> {
        self.parsed("how a term began", Succession::parse)
    }

    pub(crate) fn optional_succession(&mut self) -> Result<Option<Succession>, Fail> {
        let unknown = |text: String| format!("{text:?} is unknown to this release");
        let text = self.take::<Option<String>>()?;
        let parse =
            |text: String| Succession::parse(&text).ok_or_else(|| Fail::corrupt("an end", unknown(text)));
        text.map(parse).transpose()
    }

    pub(crate) fn instant(&mut self) -> Result<Timestamp, Fail> {
        to_instant(self.take()?)
    }

    pub(crate) fn optional_instant(&mut self) -> Result<Option<Timestamp>, Fail> {
        self.take::<Option<i64>>()?.map(to_instant).transpose()
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, Fail> {
        let bytes = self.borrowed()?.as_blob().map_err(|error| Fail::corrupt("an id", error))?;
        Uuid::from_slice(bytes).map_err(|error| Fail::corrupt("an id", error))
    }

    fn optional_uuid(&mut self) -> Result<Option<Uuid>, Fail> {
        let bytes = self.borrowed()?.as_blob_or_null().map_err(|error| Fail::corrupt("an id", error))?;
        bytes.map(Uuid::from_slice).transpose().map_err(|error| Fail::corrupt("an id", error))
    }
}

fn to_instant(micros: i64) -> Result<Timestamp, Fail> {
    Timestamp::from_microsecond(micros).map_err(|error| Fail::corrupt("an instant", error))
}

/// An instant as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At(pub(crate) Timestamp);

impl ToSql for At {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(SqlValue::Integer(self.0.as_microsecond())))
    }
}

/// What will be read back of an instant: the answer to a write says what was kept.
pub(crate) fn kept(instant: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(instant.as_microsecond()).expect("rounding towards zero stays in range")
}

pub(crate) fn at(instant: Option<Timestamp>) -> Option<i64> {
    instant.map(Timestamp::as_microsecond)
}

/// Every row of a prepared query, read by `read`.
pub(crate) fn all<T>(
    statement: &mut rusqlite::CachedStatement<'_>,
    params: impl rusqlite::Params,
    read: impl Fn(&mut Cells<'_>) -> Result<T, Fail>,
) -> Result<Vec<T>, Fail> {
    let mut rows = statement.query(params)?;
    let mut found = vec![];
    while let Some(row) = rows.next()? {
        found.push(read(&mut Cells::of(row))?);
    }
    Ok(found)
}

/// The row of a prepared query that has at most one.
pub(crate) fn one<T>(
    statement: &mut rusqlite::CachedStatement<'_>,
    params: impl rusqlite::Params,
    read: impl Fn(&mut Cells<'_>) -> Result<T, Fail>,
) -> Result<Option<T>, Fail> {
    let mut rows = statement.query(params)?;
    rows.next()?.map(|row| read(&mut Cells::of(row))).transpose()
}

macro_rules! run_header_columns {
    () => {
        "r.key, r.tenant, r.dag_id, r.run_id, r.version, r.shard, r.state, r.revision, r.run_type, r.logical_date, \
         r.interval_start, r.interval_end, r.run_after, r.queued_at, r.started_at, r.conf"
    };
}
pub(crate) use run_header_columns;

pub(crate) fn run_header(cells: &mut Cells<'_>) -> Result<RunHeader, Fail> {
    Ok(RunHeader {
        key: RunKey(cells.take()?),
        tenant: cells.text()?,
        dag: cells.text()?,
        run_id: cells.text()?,
        version: cells.take()?,
        shard: ShardId(cells.take()?),
        state: cells.run_state()?,
        revision: cells.take()?,
        run_type: cells.parsed("a run type", RunType::parse)?,
        logical_date: cells.optional_instant()?,
        data_interval: data_interval(cells)?,
        run_after: cells.instant()?,
        queued_at: cells.instant()?,
        started_at: cells.optional_instant()?,
        conf: cells.json("the conf of a run")?,
    })
}

fn data_interval(cells: &mut Cells<'_>) -> Result<Option<DataInterval>, Fail> {
    let (start, end) = (cells.optional_instant()?, cells.optional_instant()?);
    Ok(start.zip(end).map(|(start, end)| DataInterval { start, end }))
}

macro_rules! run_view_columns {
    () => {
        "r.key, r.tenant, r.dag_id, r.run_id, r.version, r.state, r.run_type, r.logical_date, r.interval_start, \
         r.interval_end, r.run_after, r.queued_at, r.started_at, r.ended_at, r.updated_at, r.conf, r.note, \
         r.triggered_by, r.reason"
    };
}
pub(crate) use run_view_columns;

pub(crate) fn run_view(cells: &mut Cells<'_>) -> Result<RunView, Fail> {
    Ok(RunView {
        key: RunKey(cells.take()?),
        tenant: cells.text()?,
        dag: cells.text()?,
        run_id: cells.text()?,
        version: cells.take()?,
        state: cells.run_state()?,
        run_type: cells.parsed("a run type", RunType::parse)?,
        logical_date: cells.optional_instant()?,
        data_interval: data_interval(cells)?,
        run_after: cells.instant()?,
        queued_at: cells.instant()?,
        started_at: cells.optional_instant()?,
        ended_at: cells.optional_instant()?,
        updated_at: cells.instant()?,
        conf: cells.json("the conf of a run")?,
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

pub(crate) fn instance(cells: &mut Cells<'_>) -> Result<TaskInstance, Fail> {
    Ok(TaskInstance {
        state: cells.task_state()?,
        try_number: cells.take()?,
        max_tries: cells.take()?,
        attempt: cells.optional_uuid()?.map(AttemptId),
        node: cells.optional_text::<NodeId>()?,
        scheduled_at: cells.optional_instant()?,
        queued_at: cells.optional_instant()?,
        started_at: cells.optional_instant()?,
        ended_at: cells.optional_instant()?,
        reason: cells.take()?,
    })
}

macro_rules! cached_ti_columns {
    () => {
        concat!("t.task_no, t.map_index, t.task_id, ", crate::rows::instance_columns!())
    };
}
pub(crate) use cached_ti_columns;

pub(crate) fn cached_ti(cells: &mut Cells<'_>) -> Result<CachedTi, Fail> {
    Ok(CachedTi {
        task: TaskNo(cells.take()?),
        map_index: cells.take()?,
        task_id: cells.text()?,
        ti: instance(cells)?,
    })
}

macro_rules! ti_view_columns {
    () => {
        concat!(
            "t.run, t.task_no, t.map_index, r.dag_id, r.run_id, r.logical_date, r.run_after, r.version, t.task_id, \
             t.pool, ",
            crate::rows::instance_columns!()
        )
    };
}
pub(crate) use ti_view_columns;

pub(crate) fn ti_view(cells: &mut Cells<'_>) -> Result<TiView, Fail> {
    let key = TiKey { run: RunKey(cells.take()?), task: TaskNo(cells.take()?), map_index: cells.take()? };
    Ok(TiView {
        key,
        dag: cells.text()?,
        run_id: cells.text()?,
        logical_date: cells.optional_instant()?,
        run_after: cells.instant()?,
        version: cells.take()?,
        task_id: cells.text()?,
        task_no: key.task,
        pool: cells.take()?,
        instance: instance(cells)?,
    })
}

macro_rules! dag_schedule_columns {
    () => {
        "d.tenant, d.dag_id, d.shard, d.version, d.paused, d.anchor, d.last_tick"
    };
}
pub(crate) use dag_schedule_columns;

pub(crate) fn dag_schedule(cells: &mut Cells<'_>) -> Result<DagSchedule, Fail> {
    Ok(DagSchedule {
        tenant: cells.text()?,
        dag: cells.text()?,
        shard: ShardId(cells.take()?),
        version: cells.take()?,
        paused: cells.take()?,
        progress: ScheduleProgress {
            anchor: cells.optional_instant()?,
            last_tick: cells.optional_instant()?,
        },
    })
}

macro_rules! dag_view_columns {
    () => {
        "d.tenant, d.dag_id, d.shard, d.paused, d.version, d.hash, d.origin, d.registered_at, d.updated_at, \
         d.last_tick, d.next_tick"
    };
}
pub(crate) use dag_view_columns;

pub(crate) fn dag_view(cells: &mut Cells<'_>, conn: &Connection, specs: &Specs) -> Result<DagView, Fail> {
    let (tenant, dag) = (cells.text()?, cells.text()?);
    let (shard, paused) = (ShardId(cells.take()?), cells.take()?);
    let (version, hash) = (cells.take()?, VersionHash::from_hex(cells.str()?));
    let spec = specs.load(conn, &tenant, &dag, version, &hash)?;
    Ok(DagView {
        tenant,
        dag,
        shard,
        paused,
        version,
        hash,
        origin: cells.take()?,
        spec,
        registered_at: cells.instant()?,
        updated_at: cells.instant()?,
        last_tick: cells.optional_instant()?,
        next_tick: cells.optional_instant()?,
    })
}

macro_rules! version_columns {
    () => {
        "v.dag_id, v.version, v.hash, v.spec, v.source, v.origin, v.created_at"
    };
}
pub(crate) use version_columns;

pub(crate) fn version_view(cells: &mut Cells<'_>) -> Result<VersionView, Fail> {
    Ok(VersionView {
        dag: cells.text()?,
        version: cells.take()?,
        hash: VersionHash::from_hex(cells.str()?),
        spec: Arc::new(cells.json("a dag version")?),
        source: cells.take()?,
        origin: cells.take()?,
        created_at: cells.instant()?,
    })
}

pub(crate) fn audit_view(cells: &mut Cells<'_>) -> Result<AuditView, Fail> {
    Ok(AuditView {
        seq: cells.take()?,
        at: cells.instant()?,
        dag: cells.optional_text()?,
        run_id: cells.optional_text()?,
        actor: cells.take()?,
        scope: cells.take()?,
        epoch: cells.take::<Option<i64>>()?.map(|epoch| epoch as u64),
        entries: cells.json("an audit row")?,
    })
}

pub(crate) fn quota(cells: &mut Cells<'_>) -> Result<Quota, Fail> {
    Ok(Quota { tenant: cells.text()?, most: cells.json("a quota")? })
}

pub(crate) fn pool(cells: &mut Cells<'_>) -> Result<PoolRecord, Fail> {
    Ok(PoolRecord { name: cells.text()?, slots: cells.take()?, description: cells.take()? })
}

macro_rules! node_columns {
    () => {
        "node, capacity, labels, taints, queues, version, registered_at, drain, removed_at IS NOT NULL"
    };
}
pub(crate) use node_columns;

pub(crate) fn node(cells: &mut Cells<'_>) -> Result<NodeRecord, Fail> {
    Ok(NodeRecord {
        node: cells.text()?,
        capacity: cells.json("the capacity of a node")?,
        labels: cells.json("the labels of a node")?,
        taints: cells.json("the taints of a node")?,
        queues: cells.json("the queues of a node")?,
        version: cells.take()?,
        registered_at: cells.instant()?,
        drain: cells.optional_json("the drain of a node")?,
        removed: cells.take()?,
    })
}
