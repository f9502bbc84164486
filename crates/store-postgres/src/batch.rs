//! Changes to runs and their task instances as columns: one statement for each table, however many rows.
//!
//! Owners and users write through the same statements; they differ in how the expected revision was come by.
//! Inputs are sorted by key, so that two writers lock rows in the same order.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde_json::Value;
use tenure_model::{NodeId, RunKey, TaskInstance, TiKey};
use tenure_store::{AuditEntry, StateChange, StoreError, TiChange, TryRecord};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::rows::{self, Cells};
use crate::session::Session;

/// A revision that has moved on, or a state that is not as expected, leaves the row alone. A run may begin and
/// end in one pass; then it has taken no time.
pub(crate) const UPDATE_RUNS: &str = "UPDATE runs r SET revision = r.revision + 1, updated_at = $9,
        version = coalesce(c.version, r.version), state = coalesce(c.state, r.state),
        queued_at = CASE WHEN c.state = 'queued' THEN c.at ELSE r.queued_at END,
        started_at = CASE WHEN c.state = 'queued' THEN NULL ELSE coalesce(r.started_at, c.at) END,
        ended_at = CASE WHEN c.state IS NULL THEN r.ended_at WHEN c.state IN ('success', 'failed') THEN c.at END,
        reason = CASE WHEN c.state IS NULL THEN r.reason ELSE c.reason END
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::timestamptz[], $6::text[], $7::integer[])
        AS c(key, revision, from_state, state, at, reason, version)
    WHERE r.key = c.key AND r.revision = c.revision AND (c.state IS NULL OR r.state = c.from_state)
        AND r.shard = coalesce($8, r.shard)
    RETURNING r.key";

/// The arrays are unrolled side by side in a select list: in a FROM clause, each of the fifteen would first be
/// written to a store of its own, which costs as much as finding the row.
macro_rules! update_tis {
    () => {
        "UPDATE task_instances t SET state = c.state, try_number = c.try_number, max_tries = c.max_tries,
            attempt = c.attempt, node = c.node, scheduled_at = c.scheduled_at, queued_at = c.queued_at,
            started_at = c.started_at, ended_at = c.ended_at, reason = c.reason
        FROM (SELECT unnest($1::bigint[]) AS run, unnest($2::integer[]) AS task_no,
                unnest($3::integer[]) AS map_index, unnest($4::text[]) AS from_state,
                unnest($5::uuid[]) AS from_attempt, unnest($6::text[]) AS state,
                unnest($7::integer[]) AS try_number, unnest($8::integer[]) AS max_tries,
                unnest($9::uuid[]) AS attempt, unnest($10::text[]) AS node,
                unnest($11::timestamptz[]) AS scheduled_at, unnest($12::timestamptz[]) AS queued_at,
                unnest($13::timestamptz[]) AS started_at, unnest($14::timestamptz[]) AS ended_at,
                unnest($15::text[]) AS reason) AS c
        WHERE t.run = c.run AND t.task_no = c.task_no AND t.map_index = c.map_index
            AND t.state = c.from_state AND t.attempt IS NOT DISTINCT FROM c.from_attempt"
    };
}
pub(crate) const UPDATE_TIS: &str = update_tis!();
/// The same, and how many rows of each run were as expected: for whoever has to find the one that was not.
pub(crate) const UPDATE_AND_COUNT_TIS: &str = concat!(
    "WITH updated AS (",
    update_tis!(),
    " RETURNING t.run) SELECT run, count(*) FROM updated GROUP BY run"
);

pub(crate) const INSERT_TRIES: &str = "INSERT INTO tries (run, task_no, map_index, tenant, task_id, state,
        try_number, max_tries, attempt, node, scheduled_at, queued_at, started_at, ended_at, reason)
    SELECT c.run, c.task_no, c.map_index, r.tenant, c.task_id, c.state, c.try_number, c.max_tries, c.attempt,
        c.node, c.scheduled_at, c.queued_at, c.started_at, c.ended_at, c.reason
    FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::integer[],
        $8::uuid[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[],
        $14::text[])
        AS c(run, task_no, map_index, task_id, state, try_number, max_tries, attempt, node, scheduled_at,
            queued_at, started_at, ended_at, reason)
    JOIN runs r ON r.key = c.run
    ON CONFLICT (run, task_no, map_index, try_number) DO UPDATE SET state = excluded.state,
        max_tries = excluded.max_tries, attempt = excluded.attempt, node = excluded.node,
        scheduled_at = excluded.scheduled_at, queued_at = excluded.queued_at, started_at = excluded.started_at,
        ended_at = excluded.ended_at, reason = excluded.reason";

pub(crate) const PUT_RESULTS: &str = "INSERT INTO results (run, task_no, map_index, tenant, value)
    SELECT c.run, c.task_no, c.map_index, r.tenant, c.value
    FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[]) AS c(run, task_no, map_index, value)
    JOIN runs r ON r.key = c.run
    ON CONFLICT (run, task_no, map_index) DO UPDATE SET value = excluded.value";

/// One row for each run. `$3` and `$4`: the authority of an owner; users have none.
pub(crate) const INSERT_AUDIT: &str =
    "INSERT INTO audit (at, tenant, dag_id, run_id, actor, scope, epoch, entries)
    SELECT $1, r.tenant, r.dag_id, r.run_id, $2, $3, $4, c.entries
    FROM unnest($5::bigint[], $6::text[]) AS c(run, entries) JOIN runs r ON r.key = c.run";

/// The columns of [`UPDATE_RUNS`].
#[derive(Default)]
pub(crate) struct RunColumns {
    keys: Vec<i64>,
    revisions: Vec<i64>,
    from_states: Vec<Option<&'static str>>,
    states: Vec<Option<&'static str>>,
    ats: Vec<Option<Timestamp>>,
    reasons: Vec<Option<String>>,
    versions: Vec<Option<i32>>,
}

impl RunColumns {
    pub(crate) fn push(
        &mut self,
        key: RunKey,
        revision: i64,
        change: Option<&StateChange>,
        version: Option<u32>,
    ) {
        self.keys.push(key.0);
        self.revisions.push(revision);
        self.from_states.push(change.map(|change| change.from.as_str()));
        self.states.push(change.map(|change| change.to.as_str()));
        self.ats.push(change.map(|change| change.at));
        self.reasons.push(change.and_then(|change| change.reason.as_deref()).map(rows::storable));
        self.versions.push(version.map(|version| version as i32));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The runs that were as expected. `shard`: only runs of that shard are.
    pub(crate) async fn update(
        &self,
        session: &Session,
        shard: Option<i32>,
        at: Timestamp,
    ) -> Result<Vec<Row>, StoreError> {
        if self.is_empty() {
            return Ok(vec![]);
        }
        let Self { keys, revisions, from_states, states, ats, reasons, versions } = self;
        session
            .rows(UPDATE_RUNS, &[keys, revisions, from_states, states, ats, reasons, versions, &shard, &at])
            .await
    }
}

/// The columns of a task instance's row, for [`UPDATE_TIS`] and [`INSERT_TRIES`].
#[derive(Default)]
pub(crate) struct InstanceColumns {
    runs: Vec<i64>,
    tasks: Vec<i32>,
    map_indexes: Vec<i32>,
    states: Vec<&'static str>,
    try_numbers: Vec<i32>,
    max_tries: Vec<i32>,
    attempts: Vec<Option<Uuid>>,
    nodes: Vec<Option<String>>,
    scheduled: Vec<Option<Timestamp>>,
    queued: Vec<Option<Timestamp>>,
    started: Vec<Option<Timestamp>>,
    ended: Vec<Option<Timestamp>>,
    reasons: Vec<Option<String>>,
}

impl InstanceColumns {
    fn push(&mut self, key: TiKey, to: &TaskInstance) {
        self.runs.push(key.run.0);
        self.tasks.push(key.task.0 as i32);
        self.map_indexes.push(key.map_index);
        self.states.push(to.state.as_str());
        self.try_numbers.push(to.try_number as i32);
        self.max_tries.push(to.max_tries as i32);
        self.attempts.push(to.attempt.map(|attempt| attempt.0));
        self.nodes.push(to.node.as_ref().map(NodeId::to_string));
        self.scheduled.push(to.scheduled_at);
        self.queued.push(to.queued_at);
        self.started.push(to.started_at);
        self.ended.push(to.ended_at);
        self.reasons.push(to.reason.as_deref().map(rows::storable));
    }
}

#[derive(Default)]
pub(crate) struct TiColumns {
    from_states: Vec<&'static str>,
    from_attempts: Vec<Option<Uuid>>,
    to: InstanceColumns,
}

impl TiColumns {
    pub(crate) fn push(&mut self, change: &TiChange) {
        self.from_states.push(change.from.as_str());
        self.from_attempts.push(change.from_attempt.map(|attempt| attempt.0));
        self.to.push(change.ti, &change.to);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.from_states.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.from_states.len()
    }

    /// How many rows were as expected.
    pub(crate) async fn update(&self, session: &Session) -> Result<usize, StoreError> {
        if self.is_empty() {
            return Ok(0);
        }
        Ok(session.execute(UPDATE_TIS, &self.params()).await? as usize)
    }

    /// How many rows of each run were as expected.
    pub(crate) async fn update_and_count(
        &self,
        session: &Session,
    ) -> Result<HashMap<RunKey, usize>, StoreError> {
        if self.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = session.rows(UPDATE_AND_COUNT_TIS, &self.params()).await?;
        let count = |cells: &mut Cells<'_>| Ok((RunKey(cells.take()?), cells.take::<i64>()? as usize));
        Ok(rows::all(&rows, count)?.into_iter().collect())
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 15] {
        let to = &self.to;
        [
            &to.runs,
            &to.tasks,
            &to.map_indexes,
            &self.from_states,
            &self.from_attempts,
            &to.states,
            &to.try_numbers,
            &to.max_tries,
            &to.attempts,
            &to.nodes,
            &to.scheduled,
            &to.queued,
            &to.started,
            &to.ended,
            &to.reasons,
        ]
    }
}

#[derive(Default)]
pub(crate) struct TryColumns {
    task_ids: Vec<String>,
    rows: InstanceColumns,
}

impl TryColumns {
    /// A try that is recorded twice is kept as it was told last.
    pub(crate) fn of<'a>(tries: impl IntoIterator<Item = &'a TryRecord>) -> Self {
        let latest: BTreeMap<(TiKey, u32), &TryRecord> =
            tries.into_iter().map(|record| ((record.ti, record.instance.try_number), record)).collect();
        let mut columns = Self::default();
        for record in latest.values() {
            columns.task_ids.push(record.task_id.to_string());
            columns.rows.push(record.ti, &record.instance);
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.task_ids.is_empty()
    }

    pub(crate) async fn insert(&self, session: &Session) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let to = &self.rows;
        session
            .execute(
                INSERT_TRIES,
                &[
                    &to.runs,
                    &to.tasks,
                    &to.map_indexes,
                    &self.task_ids,
                    &to.states,
                    &to.try_numbers,
                    &to.max_tries,
                    &to.attempts,
                    &to.nodes,
                    &to.scheduled,
                    &to.queued,
                    &to.started,
                    &to.ended,
                    &to.reasons,
                ],
            )
            .await
            .map(drop)
    }
}

/// Values that tasks have returned.
#[derive(Default)]
pub(crate) struct ResultColumns {
    keys: TiKeys,
    values: Vec<String>,
}

impl ResultColumns {
    /// A task instance has one value: the one it returned last.
    pub(crate) fn of<'a>(results: impl IntoIterator<Item = &'a (TiKey, Value)>) -> Self {
        let latest: BTreeMap<TiKey, &Value> = results.into_iter().map(|(ti, value)| (*ti, value)).collect();
        let mut columns = Self::default();
        for (ti, value) in latest {
            columns.keys.push(ti);
            columns.values.push(value.to_string());
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) async fn put(&self, session: &Session) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let TiKeys { runs, tasks, map_indexes } = &self.keys;
        session.execute(PUT_RESULTS, &[runs, tasks, map_indexes, &self.values]).await.map(drop)
    }
}

/// Who writes, when, and under which authority.
pub(crate) struct Author<'a> {
    pub(crate) at: Timestamp,
    pub(crate) actor: &'a str,
    pub(crate) scope: Option<&'a str>,
    pub(crate) epoch: Option<i64>,
}

#[derive(Default)]
pub(crate) struct AuditColumns {
    runs: Vec<i64>,
    entries: Vec<String>,
}

impl AuditColumns {
    pub(crate) fn push(&mut self, run: RunKey, entries: &[AuditEntry]) {
        if !entries.is_empty() {
            self.runs.push(run.0);
            self.entries.push(entries_text(entries));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) async fn insert(&self, session: &Session, author: &Author<'_>) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let Author { at, actor, scope, epoch } = author;
        session
            .execute(INSERT_AUDIT, &[at, &rows::storable(actor), scope, epoch, &self.runs, &self.entries])
            .await
            .map(drop)
    }
}

pub(crate) fn entries_text(entries: &[AuditEntry]) -> String {
    serde_json::to_string(entries).expect("audit entries are plain data")
}

/// An entry about a run or a dag as a whole.
pub(crate) fn entry(event: &str) -> AuditEntry {
    AuditEntry::new(event)
}

/// Task instances by their numbers, for statements that take nothing else of them.
#[derive(Default)]
pub(crate) struct TiKeys {
    pub(crate) runs: Vec<i64>,
    pub(crate) tasks: Vec<i32>,
    pub(crate) map_indexes: Vec<i32>,
}

impl TiKeys {
    pub(crate) fn push(&mut self, key: TiKey) {
        self.runs.push(key.run.0);
        self.tasks.push(key.task.0 as i32);
        self.map_indexes.push(key.map_index);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}
