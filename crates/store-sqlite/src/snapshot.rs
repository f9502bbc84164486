//! What an owner reads. Every query here follows an index to what is asked for; finished history costs nothing.

use rusqlite::Connection;
use serde_json::Value;
use tenure_model::{DagId, RunKey, RunState, ShardId, TaskId, TenantId, VersionHash};
use tenure_store::{
    AttentionItem, CachedTi, DagSchedule, DagVersion, PastRun, RunHeader, RunSnapshot, ShardSnapshot,
};

use crate::Office;
use crate::errors::Fail;
use crate::limits;
use crate::rows::{
    Cells, all, cached_ti, cached_ti_columns, dag_schedule, dag_schedule_columns, one, run_header,
    run_header_columns,
};
use crate::specs::no_version;

pub(crate) fn shard(conn: &Connection, shard: ShardId) -> Result<ShardSnapshot, Fail> {
    let (queued, running): (Vec<RunHeader>, Vec<RunHeader>) =
        unfinished(conn, shard)?.into_iter().partition(|run| run.state == RunState::Queued);
    Ok(ShardSnapshot {
        dags: all(&mut conn.prepare_cached(sql::DAGS_OF_SHARD)?, [shard.0], dag_schedule)?,
        running: running.into_iter().map(|header| with_tasks(conn, header)).collect::<Result<_, _>>()?,
        queued,
        pools: limits::pools(conn)?,
        nodes: limits::nodes(conn)?,
    })
}

fn unfinished(conn: &Connection, shard: ShardId) -> Result<Vec<RunHeader>, Fail> {
    all(&mut conn.prepare_cached(sql::UNFINISHED)?, [shard.0], run_header)
}

pub(crate) fn runs(conn: &Connection, keys: &[RunKey]) -> Result<Vec<RunSnapshot>, Fail> {
    keys.iter().filter_map(|key| run(conn, *key).transpose()).collect()
}

pub(crate) fn run(conn: &Connection, key: RunKey) -> Result<Option<RunSnapshot>, Fail> {
    let header = one(&mut conn.prepare_cached(sql::RUN)?, [key.0], run_header)?;
    header.map(|header| with_tasks(conn, header)).transpose()
}

pub(crate) fn with_tasks(conn: &Connection, header: RunHeader) -> Result<RunSnapshot, Fail> {
    let tis: Vec<CachedTi> = all(&mut conn.prepare_cached(sql::TASKS_OF_RUN)?, [header.key.0], cached_ti)?;
    Ok(RunSnapshot { header, tis })
}

pub(crate) fn attention(conn: &Connection, shard: ShardId, limit: u32) -> Result<Vec<AttentionItem>, Fail> {
    let item = |cells: &mut Cells<'_>| {
        Ok(AttentionItem { seq: cells.take()?, what: cells.json("an attention row")? })
    };
    all(&mut conn.prepare_cached(sql::ATTENTION)?, (shard.0, limit), item)
}

pub(crate) fn dag(conn: &Connection, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, Fail> {
    one(&mut conn.prepare_cached(sql::DAG)?, (tenant.as_str(), dag.as_str()), dag_schedule)
}

pub(crate) fn version(
    conn: &Connection,
    office: &Office,
    tenant: &TenantId,
    dag: &DagId,
    version: u32,
) -> Result<DagVersion, Fail> {
    let params = (tenant.as_str(), dag.as_str(), version);
    let hash = one(&mut conn.prepare_cached(sql::VERSION_HASH)?, params, |cells| {
        Ok(VersionHash::from_hex(cells.text::<&str>()?))
    })?;
    let hash = hash.ok_or_else(|| no_version(dag, version))?;
    let spec = office.specs.load(conn, tenant, dag, version, &hash)?;
    Ok(DagVersion { tenant: tenant.clone(), dag: dag.clone(), version, spec })
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
    pub(super) const ALL: [&str; 10] = [
        DAGS_OF_SHARD,
        UNFINISHED,
        RUN,
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
