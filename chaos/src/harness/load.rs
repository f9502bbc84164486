//! Reads the truth: straight from the database, past everybody who could colour it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use tokio::runtime::Handle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};
use uuid::Uuid;

use tenure_judge::history::{
    FenceRow, Need, Place, Room, RunName, RunRow, Schedule, TaskRow, TermRow, TrailRow, TryRow,
};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Database {
    url: String,
    runtime: Handle,
}

/// The tables at the end.
#[derive(Debug, Default)]
pub struct Tables {
    pub trail: Vec<TrailRow>,
    pub runs: Vec<RunRow>,
    pub tasks: Vec<TaskRow>,
    pub tries: Vec<TryRow>,
    pub terms: Vec<TermRow>,
    pub fences: Vec<FenceRow>,
    pub rooms: Vec<Room>,
    pub needs: Vec<Need>,
}

impl Database {
    pub fn new(url: String, runtime: Handle) -> Self {
        Self { url, runtime }
    }

    pub fn shards_in_use(&self) -> Result<usize> {
        let rows = self.rows("SELECT count(DISTINCT shard) FROM dags", &[])?;
        Ok(usize::try_from(rows[0].get::<_, i64>(0))?)
    }

    pub fn unfinished_runs(&self) -> Result<i64> {
        let rows = self.rows("SELECT count(*) FROM runs WHERE state IN ('queued', 'running')", &[])?;
        Ok(rows[0].get(0))
    }

    /// Of its last tick.
    pub fn has_run_of(&self, schedule: &Schedule) -> Result<bool> {
        let every = schedule.every.as_secs_f64();
        let count = schedule.until.duration_since(schedule.first).as_secs_f64() / every;
        let last = schedule.first + SignedDuration::from_secs_f64(count.floor() * every);
        let sql = "SELECT count(*) FROM runs WHERE dag_id = $1 AND logical_date = $2";
        Ok(self.rows(sql, &[&schedule.dag, &last])?[0].get::<_, i64>(0) > 0)
    }

    pub fn read(&self) -> Result<Tables> {
        let runs = self.rows(
            "SELECT key, dag_id, run_id, shard, state, run_type, logical_date, idempotency_key FROM runs ORDER BY key",
            &[],
        )?;
        let name = |row: &Row| RunName::new(row.get::<_, &str>("dag_id"), row.get::<_, &str>("run_id"));
        let names: BTreeMap<i64, RunName> = runs.iter().map(|row| (row.get("key"), name(row))).collect();
        let of_run =
            |row: &Row| names.get(&row.get::<_, i64>("run")).cloned().context("a task without a run");
        Ok(Tables {
            trail: self.trail()?,
            runs: runs
                .iter()
                .map(|row| {
                    Ok(RunRow {
                        name: name(row),
                        shard: u16::try_from(row.get::<_, i32>("shard"))?,
                        state: row.get("state"),
                        scheduled: row.get::<_, &str>("run_type") == "scheduled",
                        logical_date: row.get("logical_date"),
                        idempotency_key: row.get("idempotency_key"),
                    })
                })
                .collect::<Result<_>>()?,
            tasks: self
                .rows("SELECT run, task_id, state, try_number, attempt FROM task_instances ORDER BY run, task_no", &[])?
                .iter()
                .map(|row| {
                    Ok(TaskRow {
                        run: of_run(row)?,
                        task: row.get("task_id"),
                        state: row.get("state"),
                        try_number: u32::try_from(row.get::<_, i32>("try_number"))?,
                        attempt: row.get::<_, Option<Uuid>>("attempt").map(|id| id.to_string()),
                    })
                })
                .collect::<Result<_>>()?,
            tries: self
                .rows("SELECT run, task_id, try_number, attempt FROM tries ORDER BY run, task_no, try_number", &[])?
                .iter()
                .map(|row| {
                    Ok(TryRow {
                        run: of_run(row)?,
                        task: row.get("task_id"),
                        try_number: u32::try_from(row.get::<_, i32>("try_number"))?,
                        attempt: row.get::<_, Option<Uuid>>("attempt").map(|id| id.to_string()),
                    })
                })
                .collect::<Result<_>>()?,
            terms: self
                .rows("SELECT scope, epoch, term, holder_name FROM lease_terms ORDER BY scope, epoch", &[])?
                .iter()
                .map(|row| {
                    Ok(TermRow {
                        scope: row.get("scope"),
                        epoch: u64::try_from(row.get::<_, i64>("epoch"))?,
                        term: row.get::<_, Uuid>("term").to_string(),
                        holder: row.get("holder_name"),
                    })
                })
                .collect::<Result<_>>()?,
            fences: self
                .rows("SELECT scope, epoch FROM fences ORDER BY scope", &[])?
                .iter()
                .map(|row| Ok(FenceRow { scope: row.get("scope"), epoch: u64::try_from(row.get::<_, i64>("epoch"))? }))
                .collect::<Result<_>>()?,
            rooms: self.rooms()?,
            needs: self.needs()?,
        })
    }

    fn rooms(&self) -> Result<Vec<Room>> {
        let mut rooms = vec![];
        for row in self.rows("SELECT node, capacity FROM nodes ORDER BY node", &[])? {
            let has: String = row.get("capacity");
            let has = serde_json::from_str(&has).with_context(|| format!("a capacity: {has}"))?;
            rooms.push(Room { of: Place::Node(row.get("node")), has });
        }
        for row in self.rows("SELECT name, slots FROM pools ORDER BY name", &[])? {
            let slots = u64::try_from(row.get::<_, i32>("slots"))?;
            rooms.push(Room { of: Place::Pool(row.get("name")), has: [("slots".to_owned(), slots)].into() });
        }
        Ok(rooms)
    }

    /// The workload's tasks ask for nothing but a place on a node (in thousandths, as nodes count) and a slot.
    fn needs(&self) -> Result<Vec<Need>> {
        let sql =
            "SELECT DISTINCT r.dag_id, t.task_id, t.pool FROM task_instances t JOIN runs r ON r.key = t.run
            ORDER BY r.dag_id, t.task_id";
        let need = |row: &Row| Need {
            dag: row.get("dag_id"),
            task: row.get("task_id"),
            of_node: [("tasks".to_owned(), 1_000)].into(),
            pool: row.get("pool"),
            of_pool: [("slots".to_owned(), 1)].into(),
        };
        Ok(self.rows(sql, &[])?.iter().map(need).collect())
    }

    fn trail(&self) -> Result<Vec<TrailRow>> {
        let rows = self.rows(
            "SELECT seq, pg_xact_commit_timestamp(xmin) AS committed_at, dag_id, run_id, actor, scope, epoch, entries
             FROM audit ORDER BY seq",
            &[],
        )?;
        let row = |row: &Row| {
            let dag: Option<String> = row.get("dag_id");
            let run: Option<String> = row.get("run_id");
            let entries: String = row.get("entries");
            Ok(TrailRow {
                seq: row.get("seq"),
                committed_at: row
                    .get::<_, Option<Timestamp>>("committed_at")
                    .context("the database does not say when a row was committed")?,
                run: dag.zip(run).map(|(dag, run)| RunName { dag, run }),
                actor: row.get("actor"),
                scope: row.get("scope"),
                epoch: row.get::<_, Option<i64>>("epoch").map(u64::try_from).transpose()?,
                entries: serde_json::from_str(&entries)
                    .with_context(|| format!("an audit row: {entries}"))?,
            })
        };
        rows.iter().map(row).collect()
    }

    /// On a connection of its own: any other may have died with the server.
    fn rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.runtime.block_on(async {
            let asking = async {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
                let connection = tokio::spawn(connection);
                let rows = client.query(sql, parameters).await;
                connection.abort();
                Ok::<_, anyhow::Error>(rows?)
            };
            let answered = tokio::time::timeout(PATIENCE, asking).await;
            answered.context("the database does not answer")?.with_context(|| format!("asking {sql:?}"))
        })
    }
}
