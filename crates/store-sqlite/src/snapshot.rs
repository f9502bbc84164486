//! What an owner reads. Every query here follows an index to what is asked for; finished history costs nothing.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::Value;
use tenure_model::{DagId, RunKey, RunState, ShardId, TaskId, TenantId, TiKey, VersionHash};
use tenure_store::{
    AttentionItem, CachedTi, DagSchedule, DagVersion, DagVersionName, LoadedRuns, Look, PastRun, RunHeader,
    RunSnapshot, ShardSnapshot,
};

use crate::Office;
use crate::errors::Fail;
use crate::rows::{
    At, Cells, all, cached_ti, cached_ti_columns, dag_schedule, dag_schedule_columns, one, run_header,
    run_header_columns,
};
use crate::specs::no_version;
use crate::{limits, shares};

pub(crate) fn shard(conn: &Connection, shard: ShardId) -> Result<ShardSnapshot, Fail> {
    let mut snapshot = ShardSnapshot {
        dags: all(&mut conn.prepare_cached(sql::DAGS_OF_SHARD)?, [shard.0], dag_schedule)?,
        running: vec![],
        queued: vec![],
        unreadable: vec![],
        shares: shares::of_shard(conn, shard)?,
    };
    for (key, header) in unfinished(conn, shard)? {
        let run = header.and_then(|header| match header.state {
            RunState::Queued => Ok(Unfinished::Queued(header)),
            _ => with_tasks(conn, header).map(Unfinished::Running),
        });
        match run {
            Ok(Unfinished::Queued(header)) => snapshot.queued.push(header),
            Ok(Unfinished::Running(run)) => snapshot.running.push(run),
            Err(fail) => snapshot.unreadable.push((key, fail.unreadable()?)),
        }
    }
    Ok(snapshot)
}

enum Unfinished {
    Queued(RunHeader),
    Running(RunSnapshot),
}

/// Each with what could be read of it: one bad row is no reason not to see the others.
type Headers = Vec<(RunKey, Result<RunHeader, Fail>)>;

fn unfinished(conn: &Connection, shard: ShardId) -> Result<Headers, Fail> {
    all(&mut conn.prepare_cached(sql::UNFINISHED)?, [shard.0], |cells| {
        Ok((RunKey(cells.peek()?), run_header(cells)))
    })
}

pub(crate) fn load(conn: &Connection, keys: &[RunKey]) -> Result<LoadedRuns, Fail> {
    let mut loaded = LoadedRuns::default();
    for key in keys {
        match run(conn, *key) {
            Ok(run) => loaded.runs.extend(run),
            Err(fail) => loaded.unreadable.push((*key, fail.unreadable()?)),
        }
    }
    Ok(loaded)
}

pub(crate) fn orphans(
    conn: &Connection,
    shard: ShardId,
    untouched_since: Timestamp,
    limit: u32,
) -> Result<Vec<RunKey>, Fail> {
    let params = params![shard.0, At(untouched_since), limit];
    all(&mut conn.prepare_cached(sql::ORPHANS)?, params, |cells| Ok(RunKey(cells.take()?)))
}

pub(crate) fn runs(conn: &Connection, keys: &[RunKey]) -> Result<Vec<RunSnapshot>, Fail> {
    keys.iter().filter_map(|key| run(conn, *key).transpose()).collect()
}

pub(crate) fn header(conn: &Connection, key: RunKey) -> Result<Option<RunHeader>, Fail> {
    one(&mut conn.prepare_cached(sql::RUN)?, [key.0], run_header)
}

pub(crate) fn task(conn: &Connection, ti: TiKey) -> Result<Option<CachedTi>, Fail> {
    one(&mut conn.prepare_cached(sql::TASK)?, (ti.run.0, ti.task.0, ti.map_index), cached_ti)
}

fn run(conn: &Connection, key: RunKey) -> Result<Option<RunSnapshot>, Fail> {
    let header = header(conn, key)?;
    header.map(|header| with_tasks(conn, header)).transpose()
}

pub(crate) fn with_tasks(conn: &Connection, header: RunHeader) -> Result<RunSnapshot, Fail> {
    let tis: Vec<CachedTi> = all(&mut conn.prepare_cached(sql::TASKS_OF_RUN)?, [header.key.0], cached_ti)?;
    Ok(RunSnapshot { header, tis })
}

pub(crate) fn look(conn: &Connection, shard: ShardId, limit: u32) -> Result<Look, Fail> {
    let item = |cells: &mut Cells<'_>| {
        Ok(AttentionItem { seq: cells.take()?, what: cells.json("an attention row")? })
    };
    let items = all(&mut conn.prepare_cached(sql::ATTENTION)?, (shard.0, limit), item)?;
    Ok(Look { items, limits: limits::version(conn)? })
}

pub(crate) fn dag(conn: &Connection, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, Fail> {
    one(&mut conn.prepare_cached(sql::DAG)?, (tenant.as_str(), dag.as_str()), dag_schedule)
}

pub(crate) fn version(conn: &Connection, office: &Office, name: &DagVersionName) -> Result<DagVersion, Fail> {
    let DagVersionName { tenant, dag, version } = name;
    let params = (tenant.as_str(), dag.as_str(), version);
    let hash = one(&mut conn.prepare_cached(sql::VERSION_HASH)?, params, |cells| {
        Ok(VersionHash::from_hex(cells.text::<&str>()?))
    })?;
    let hash = hash.ok_or_else(|| no_version(dag, *version))?;
    let spec = office.specs.load(conn, tenant, dag, *version, &hash)?;
    Ok(DagVersion { tenant: tenant.clone(), dag: dag.clone(), version: *version, spec })
}

pub(crate) fn past_run(
    conn: &Connection,
    tenant: &TenantId,
    dag: &DagId,
    before: i64,
) -> Result<Option<PastRun>, Fail> {
    let params = (tenant.as_str(), dag.as_str(), before);
    let found = one(&mut conn.prepare_cached(sql::PAST_RUN)?, params, |cells| {
        Ok((RunKey(cells.take()?), cells.run_state()?))
    })?;
    let Some((key, state)) = found else { return Ok(None) };
    let tasks = all(&mut conn.prepare_cached(sql::STATES_OF_RUN)?, [key.0], |cells| {
        Ok((cells.text()?, cells.task_state()?))
    })?;
    Ok(Some(PastRun { key, state, tasks }))
}

pub(crate) fn results(conn: &Connection, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, Fail> {
    all(&mut conn.prepare_cached(sql::RESULTS)?, [run.0], |cells| {
        Ok((cells.text()?, cells.take()?, cells.json("a task's result")?))
    })
}

/// Apart from the functions, so that a test can ask SQLite how it would answer each.
mod sql {
    use super::{cached_ti_columns, dag_schedule_columns, run_header_columns};

    pub(super) const DAGS_OF_SHARD: &str = concat!(
        "SELECT ",
        dag_schedule_columns!(),
        " FROM dags d WHERE d.shard = ?1 ORDER BY d.tenant, d.dag_id"
    );
    /// Word for word the condition of the partial index, or SQLite would not use it.
    pub(super) const UNFINISHED: &str = concat!(
        "SELECT ",
        run_header_columns!(),
        " FROM runs r WHERE r.shard = ?1 AND r.state IN ('queued', 'running') ORDER BY r.key"
    );
    pub(super) const RUN: &str = concat!("SELECT ", run_header_columns!(), " FROM runs r WHERE r.key = ?1");
    pub(super) const TASKS_OF_RUN: &str = concat!(
        "SELECT ",
        cached_ti_columns!(),
        " FROM task_instances t WHERE t.run = ?1 ORDER BY t.task_no, t.map_index"
    );
    pub(super) const TASK: &str = concat!(
        "SELECT ",
        cached_ti_columns!(),
        " FROM task_instances t WHERE t.run = ?1 AND t.task_no = ?2 AND t.map_index = ?3"
    );
    /// A state that this release does not know is no reason to think that nothing goes on.
    pub(super) const ORPHANS: &str = "SELECT r.key FROM runs r
         WHERE r.shard = ?1 AND r.state IN ('queued', 'running') AND r.state = 'running' AND r.updated_at < ?2
           AND NOT EXISTS (SELECT 1 FROM task_instances t WHERE t.run = r.key AND t.state NOT IN
               ('none', 'success', 'failed', 'skipped', 'upstream_failed', 'removed'))
         ORDER BY r.updated_at, r.key LIMIT ?3";
    pub(super) const ATTENTION: &str =
        "SELECT seq, what FROM attention WHERE shard = ?1 ORDER BY seq LIMIT ?2";
    pub(super) const DAG: &str =
        concat!("SELECT ", dag_schedule_columns!(), " FROM dags d WHERE d.tenant = ?1 AND d.dag_id = ?2");
    pub(super) const VERSION_HASH: &str =
        "SELECT hash FROM dag_versions WHERE tenant = ?1 AND dag_id = ?2 AND version = ?3";
    pub(super) const PAST_RUN: &str = "SELECT key, state FROM runs
         WHERE tenant = ?1 AND dag_id = ?2 AND logical_date IS NOT NULL AND logical_date < ?3
         ORDER BY logical_date DESC LIMIT 1";
    pub(super) const STATES_OF_RUN: &str =
        "SELECT task_id, state FROM task_instances WHERE run = ?1 ORDER BY task_no, map_index";
    pub(super) const RESULTS: &str =
        "SELECT t.task_id, r.map_index, r.value FROM results r JOIN task_instances t USING (run, task_no, map_index)
         WHERE r.run = ?1 ORDER BY r.task_no, r.map_index";

    #[cfg(test)]
    pub(super) const ALL: [&str; 16] = [
        DAGS_OF_SHARD,
        UNFINISHED,
        RUN,
        TASK,
        ORPHANS,
        crate::limits::VERSION,
        crate::shares::OF_SHARD,
        crate::shares::OF_ONE,
        crate::chores::OLD_RUNS,
        TASKS_OF_RUN,
        ATTENTION,
        DAG,
        VERSION_HASH,
        PAST_RUN,
        STATES_OF_RUN,
        RESULTS,
    ];
}

#[cfg(test)]
mod tests {
    //! Goal: what an owner reads does not cost more as history grows.

    use super::*;

    #[test]
    fn no_query_of_an_owner_scans_a_table() {
        let mut conn = Connection::open_in_memory().expect("memory");
        crate::migrations::migrate(&mut conn, 1).expect("migrated");
        for query in sql::ALL {
            let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {query}")).expect("valid SQL");
            let nothing: Vec<Option<i64>> = vec![None; explain.parameter_count()];
            let plan: Vec<String> = explain
                .query_map(rusqlite::params_from_iter(nothing), |row| row.get("detail"))
                .expect("a plan")
                .collect::<Result<_, _>>()
                .expect("a plan");
            assert!(plan.iter().all(|step| !step.starts_with("SCAN")), "{query}\n{plan:#?}");
        }
    }
}
