//! The commit of a pass: everything an owner has decided, in one fenced transaction.
//!
//! BEGIN, the fence and every write leave together, in the hope that nothing has changed since the owner
//! looked; the answers are compared, and COMMIT follows: two round trips, whatever the size. Where a run's
//! revision or one of its rows was not as expected, the transaction is rolled back and sent again without
//! that run. That is simpler than a savepoint for each run and costs nothing while there is no conflict,
//! which is nearly always. Each round leaves out at least one run, but for one that finds out which, so the
//! rounds end.

use std::collections::{HashMap, HashSet};

use deadpool_postgres::Pool;
use futures::try_join;
use jiff::Timestamp;
use tenure_lease::EpochGuard;
use tenure_model::{NewRun, RunKey, RunState, ShardId};
use tenure_store::{
    AuditEntry, Committed, NewRunOutcome, Pass, RunChange, RunHeader, ScheduleChange, StoreError,
    request_fingerprint,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::batch::{self, AuditColumns, Author, ResultColumns, RunColumns, TiColumns, TryColumns};
use crate::fence::FENCE;
use crate::rows::{self, Cells};
use crate::session::{READ_WRITE, Session};

const DOING: &str = "committing a pass";

const ADVANCE_SCHEDULES: &str = "UPDATE dags d SET last_tick = c.last_tick, next_tick = c.next_tick
    FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[])
        AS c(tenant, dag_id, last_tick, next_tick)
    WHERE d.tenant = c.tenant AND d.dag_id = c.dag_id AND d.shard = $5";

const ATTENDED: &str = "DELETE FROM attention WHERE seq = ANY($1)";

const OUTSIDE: &str =
    "SELECT r.key, r.shard FROM runs r WHERE r.key = ANY($1) AND r.shard <> $2 ORDER BY r.key";

/// Runs with their task instances, copied from the version in force without leaving the database. The dag's
/// row is locked against deletion; a run whose id, logical date or idempotency key exists is left out.
pub(crate) const CREATE_RUNS: &str = concat!(
    "WITH asked AS (
        SELECT c.*, d.version, d.shard
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[],
            $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
            WITH ORDINALITY
            AS c(tenant, dag_id, run_id, run_type, logical_date, interval_start, interval_end, run_after, conf, note,
                triggered_by, idempotency_key, fingerprint, position)
        JOIN dags d ON d.tenant = c.tenant AND d.dag_id = c.dag_id
        ORDER BY c.position
        FOR KEY SHARE OF d
    ), r AS (
        INSERT INTO runs (tenant, dag_id, run_id, version, shard, state, revision, run_type, logical_date,
            interval_start, interval_end, run_after, queued_at, updated_at, conf, note, triggered_by,
            idempotency_key, fingerprint)
        SELECT tenant, dag_id, run_id, version, shard, 'queued', 0, run_type, logical_date, interval_start,
            interval_end, run_after, $14, $14, conf, note, triggered_by, idempotency_key, fingerprint
        FROM asked ORDER BY position
        ON CONFLICT DO NOTHING
        RETURNING *
    ), instances AS (
        INSERT INTO task_instances (run, task_no, map_index, tenant, task_id, pool, state, try_number, max_tries)
        SELECT r.key, t.number - 1, -1, r.tenant, t.id, t.pool, 'none', 0, t.retries
        FROM r JOIN dag_versions v ON v.tenant = r.tenant AND v.dag_id = r.dag_id AND v.version = r.version
        CROSS JOIN LATERAL unnest(v.task_ids, v.task_retries, v.task_pools)
            WITH ORDINALITY AS t(id, retries, pool, number)
    ), trail AS (
        INSERT INTO audit (at, tenant, dag_id, run_id, actor, scope, epoch, entries)
        SELECT $14, r.tenant, r.dag_id, r.run_id, $15, $16, $17, $18 FROM r
    )
    SELECT asked.position, asked.shard, r.key IS NOT NULL, ",
    rows::run_columns!(),
    " FROM asked LEFT JOIN r ON r.tenant = asked.tenant AND r.dag_id = asked.dag_id AND r.run_id = asked.run_id
    ORDER BY asked.position"
);

impl PostgresStore {
    pub(crate) async fn write_pass(
        &self,
        guard: &EpochGuard<'_>,
        pass: &Pass,
    ) -> Result<Committed, StoreError> {
        let shard = self.guarded_shard(guard)?;
        let (mut conflicts, mut tally) = (HashSet::new(), Tally::Total);
        loop {
            let round = Round::of(pass, &conflicts, guard, shard, tally);
            let session = Session::borrow(&self.pool, DOING).await?;
            let outcome = round.write(self, &session).await;
            match outcome {
                Ok(Written::Whole(created)) => {
                    let in_order = pass.runs.iter().map(|change| change.run);
                    let conflicts = in_order.filter(|run| conflicts.contains(run)).collect();
                    return session.finish(Ok(Committed { conflicts, created })).await;
                }
                Ok(Written::Conflicts(more)) => {
                    session.roll_back().await?;
                    conflicts.extend(more);
                    conflicts.extend(pass.fallen(&conflicts));
                }
                Ok(Written::Unclear) => {
                    session.roll_back().await?;
                    tally = Tally::ByRun;
                }
                Err(error) => return session.finish(Err(error)).await,
            }
        }
    }
}

/// A standby that takes a shard over should not have to wait for its first plans.
pub(crate) async fn prepare_ahead(pool: &Pool) -> Result<(), StoreError> {
    let session = Session::borrow(pool, "preparing statements").await?;
    let statements = [
        FENCE,
        batch::UPDATE_RUNS,
        batch::UPDATE_TIS,
        batch::INSERT_TRIES,
        batch::PUT_RESULTS,
        batch::INSERT_AUDIT,
        ADVANCE_SCHEDULES,
        ATTENDED,
        CREATE_RUNS,
    ];
    session.prepare(&statements).await?;
    session.give_back();
    Ok(())
}

enum Written {
    Whole(Vec<NewRunOutcome>),
    /// Not to be committed: these runs were not as expected.
    Conflicts(Vec<RunKey>),
    /// Not to be committed: some task instance was not as expected, of some run.
    Unclear,
}

/// How task instances that were as expected are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tally {
    /// All in all, which costs nothing. Where a run's revision is as expected, so are its task instances.
    Total,
    ByRun,
}

/// Task instances that were as expected.
enum AsExpected {
    Total(usize),
    ByRun(HashMap<RunKey, usize>),
}

/// One attempt at a pass, without the runs that are known to conflict.
struct Round<'a> {
    pass: &'a Pass,
    guard: &'a EpochGuard<'a>,
    shard: i32,
    tally: Tally,
    changes: Vec<&'a RunChange>,
    runs: RunColumns,
    tis: TiColumns,
    tries: TryColumns,
    results: ResultColumns,
    audit: AuditColumns,
}

impl<'a> Round<'a> {
    fn of(
        pass: &'a Pass,
        without: &HashSet<RunKey>,
        guard: &'a EpochGuard<'a>,
        shard: ShardId,
        tally: Tally,
    ) -> Self {
        let mut changes: Vec<&RunChange> =
            pass.runs.iter().filter(|change| !without.contains(&change.run)).collect();
        changes.sort_by_key(|change| change.run);
        let mut runs = RunColumns::default();
        let mut tis = TiColumns::default();
        let mut audit = AuditColumns::default();
        for change in &changes {
            runs.push(change.run, change.revision, change.state.as_ref(), None);
            audit.push(change.run, &change.audit);
        }
        let mut rows: Vec<_> = changes.iter().flat_map(|change| &change.tis).collect();
        rows.sort_by_key(|change| change.ti);
        rows.into_iter().for_each(|change| tis.push(change));
        let tries = TryColumns::of(changes.iter().flat_map(|change| &change.past_tries));
        let results = ResultColumns::of(changes.iter().flat_map(|change| &change.results));
        Self { pass, guard, shard: i32::from(shard.0), tally, changes, runs, tis, tries, results, audit }
    }

    async fn write(&self, store: &PostgresStore, session: &Session) -> Result<Written, StoreError> {
        session.prepare(&self.statements()).await?;
        let (author, scope) = (self.author(), self.guard.scope().as_str());
        let fence: [&(dyn ToSql + Sync); 1] = [&scope];
        // The order of sending: `try_join!` polls from top to bottom.
        let (_, fence, runs, tis, _, _, _, _, _, created) = try_join!(
            session.batch(READ_WRITE),
            session.rows(FENCE, &fence),
            self.runs.update(session, Some(self.shard), self.pass.at),
            self.move_tis(session),
            self.tries.insert(session),
            self.results.put(session),
            self.audit.insert(session, &author),
            advance_schedules(session, &self.pass.schedules, self.shard),
            attend(session, &self.pass.attended),
            create_runs(session, &self.pass.new_runs, &author),
        )?;
        store.check_fence(&fence, self.guard)?;
        let conflicts = self.conflicts(&runs, &tis)?;
        if !conflicts.is_empty() {
            self.check_shard(session, &conflicts).await?;
            return Ok(Written::Conflicts(conflicts));
        }
        if matches!(tis, AsExpected::Total(count) if count != self.tis.len()) {
            return Ok(Written::Unclear);
        }
        Ok(Written::Whole(self.outcomes(&created)?))
    }

    /// What [`Round::write`] sends.
    fn statements(&self) -> Vec<&'static str> {
        let sent = [
            (FENCE, true),
            (batch::UPDATE_RUNS, !self.runs.is_empty()),
            (batch::UPDATE_TIS, !self.tis.is_empty() && self.tally == Tally::Total),
            (batch::UPDATE_AND_COUNT_TIS, !self.tis.is_empty() && self.tally == Tally::ByRun),
            (batch::INSERT_TRIES, !self.tries.is_empty()),
            (batch::PUT_RESULTS, !self.results.is_empty()),
            (batch::INSERT_AUDIT, !self.audit.is_empty()),
            (ADVANCE_SCHEDULES, !self.pass.schedules.is_empty()),
            (ATTENDED, !self.pass.attended.is_empty()),
            (CREATE_RUNS, !self.pass.new_runs.is_empty()),
        ];
        sent.into_iter().filter(|(_, sent)| *sent).map(|(sql, _)| sql).collect()
    }

    fn author(&self) -> Author<'_> {
        Author {
            at: self.pass.at,
            actor: &self.pass.actor,
            scope: Some(self.guard.scope().as_str()),
            epoch: Some(self.guard.epoch().0 as i64),
        }
    }

    async fn move_tis(&self, session: &Session) -> Result<AsExpected, StoreError> {
        match self.tally {
            Tally::Total => self.tis.update(session).await.map(AsExpected::Total),
            Tally::ByRun => self.tis.update_and_count(session).await.map(AsExpected::ByRun),
        }
    }

    /// Runs that were left alone, and runs of which a row was, as far as that was counted.
    fn conflicts(&self, runs: &[Row], tis: &AsExpected) -> Result<Vec<RunKey>, StoreError> {
        let runs: HashSet<i64> = rows::all(runs, |cells| cells.take())?.into_iter().collect();
        let rows_of = |change: &RunChange| match tis {
            AsExpected::Total(_) => change.tis.len(),
            AsExpected::ByRun(counts) => counts.get(&change.run).copied().unwrap_or(0),
        };
        let as_expected =
            |change: &RunChange| runs.contains(&change.run.0) && rows_of(change) == change.tis.len();
        Ok(self.changes.iter().filter(|change| !as_expected(change)).map(|change| change.run).collect())
    }

    /// A run of another shard is no conflict to be resolved by looking again: this owner has no say there.
    async fn check_shard(&self, session: &Session, conflicts: &[RunKey]) -> Result<(), StoreError> {
        let keys: Vec<i64> = conflicts.iter().map(|run| run.0).collect();
        match session.row(OUTSIDE, &[&keys, &self.shard]).await? {
            None => Ok(()),
            Some(row) => {
                let mut cells = Cells::of(&row);
                Err(self.outside(RunKey(cells.take()?), ShardId(cells.number()?)))
            }
        }
    }

    fn outside(&self, what: impl std::fmt::Display, shard: ShardId) -> StoreError {
        let scope = self.guard.scope();
        StoreError::Conflict(format!("{what} belongs to {shard}, which {scope} does not cover"))
    }

    fn outcomes(&self, rows: &[Row]) -> Result<Vec<NewRunOutcome>, StoreError> {
        let mut outcomes = vec![NewRunOutcome::NoDag; self.pass.new_runs.len()];
        let mut made = HashSet::new();
        for row in rows {
            let found = CreatedRow::of(row)?;
            let position = found.position;
            if found.shard.0 != self.shard as u16 {
                return Err(self.outside(format!("dag {}", self.pass.new_runs[position].dag), found.shard));
            }
            outcomes[position] = match found.header {
                // The same run asked for twice in one pass is made once.
                Some(header) if made.insert(header.key) => NewRunOutcome::Created(Box::new(header)),
                _ => NewRunOutcome::Exists,
            };
        }
        Ok(outcomes)
    }
}

/// A row of [`CREATE_RUNS`]: one for each run whose dag exists.
pub(crate) struct CreatedRow {
    pub(crate) position: usize,
    pub(crate) shard: ShardId,
    /// Absent: it existed already.
    pub(crate) header: Option<RunHeader>,
}

impl CreatedRow {
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let mut cells = Cells::of(row);
        let (position, shard) = (cells.take::<i64>()? as usize - 1, ShardId(cells.number()?));
        let header = if cells.take()? { Some(rows::run_header(&mut cells)?) } else { None };
        Ok(Self { position, shard, header })
    }
}

async fn advance_schedules(
    session: &Session,
    schedules: &[ScheduleChange],
    shard: i32,
) -> Result<(), StoreError> {
    if schedules.is_empty() {
        return Ok(());
    }
    let tenants: Vec<&str> = schedules.iter().map(|change| change.tenant.as_str()).collect();
    let dags: Vec<&str> = schedules.iter().map(|change| change.dag.as_str()).collect();
    let last: Vec<Timestamp> = schedules.iter().map(|change| change.last_tick).collect();
    let next: Vec<Option<Timestamp>> = schedules.iter().map(|change| change.next_tick).collect();
    session.execute(ADVANCE_SCHEDULES, &[&tenants, &dags, &last, &next, &shard]).await.map(drop)
}

async fn attend(session: &Session, attended: &[i64]) -> Result<(), StoreError> {
    if attended.is_empty() {
        return Ok(());
    }
    session.execute(ATTENDED, &[&attended]).await.map(drop)
}

/// Rows of [`CreatedRow`], in order.
pub(crate) async fn create_runs(
    session: &Session,
    runs: &[NewRun],
    author: &Author<'_>,
) -> Result<Vec<Row>, StoreError> {
    if runs.is_empty() {
        return Ok(vec![]);
    }
    fn column<'a, T>(runs: &'a [NewRun], cell: impl Fn(&'a NewRun) -> T) -> Vec<T> {
        runs.iter().map(cell).collect()
    }
    let fingerprint = |run: &NewRun| run.idempotency_key.as_ref().map(|_| request_fingerprint(run));
    let entry = AuditEntry { to: RunState::Queued.to_string(), ..batch::entry("created") };
    session
        .rows(
            CREATE_RUNS,
            &[
                &column(runs, |run| run.tenant.as_str()),
                &column(runs, |run| run.dag.as_str()),
                &column(runs, |run| run.run_id.as_str()),
                &column(runs, |run| run.run_type.as_str()),
                &column(runs, |run| run.logical_date),
                &column(runs, |run| run.data_interval.map(|interval| interval.start)),
                &column(runs, |run| run.data_interval.map(|interval| interval.end)),
                &column(runs, |run| run.run_after),
                &column(runs, |run| run.conf.to_string()),
                &column(runs, |run| run.note.as_deref().map(rows::storable)),
                &column(runs, |run| rows::storable(&run.triggered_by)),
                &column(runs, |run| run.idempotency_key.as_deref()),
                &column(runs, fingerprint),
                &author.at,
                &rows::storable(author.actor),
                &author.scope,
                &author.epoch,
                &batch::entries_text(&[entry]),
            ],
        )
        .await
}
