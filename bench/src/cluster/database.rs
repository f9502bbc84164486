//! A database of one measurement, seen past the servers: what it costs, what is in it, what it could do at most.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure_clock::Entropy;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::server::Stat;

/// Tasks that the floor writes in one statement: what a busy pass holds.
const FLOOR_BATCH: i64 = 1_000;
/// Connections that write at once: one for each core of a small machine.
const FLOOR_WRITERS: i64 = 2;

pub struct Database {
    pub url: String,
    name: String,
    server: String,
    runtime: Runtime,
    client: Client,
    postmaster: u32,
}

impl Database {
    /// On the server with this URL. It is dropped with its handle.
    pub fn create(server: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let name = format!("bench_{:x}", u64::from_be_bytes(Entropy::from_os().bytes()));
        let (base, _) = server.rsplit_once('/').context("a database URL has a path")?;
        let url = format!("{base}/{name}");
        let (client, postmaster) = runtime.block_on(async {
            let admin = connect(server).await?;
            admin.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
            let client = connect(&url).await?;
            let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
            anyhow::Ok((client, Stat::of(backend as u32)?.parent))
        })?;
        Ok(Self { url, name, server: server.to_owned(), runtime, client, postmaster })
    }

    /// Processor time of the whole Postgres server, with the processes that have ended.
    pub fn cpu(&self) -> Result<Duration> {
        let server = Stat::of(self.postmaster)?;
        let mut sum = server.own + server.children;
        for entry in std::fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // It may have ended meanwhile: then the server has its time.
            if let Ok(stat) = Stat::of(pid)
                && stat.parent == self.postmaster
            {
                sum += stat.own;
            }
        }
        Ok(sum)
    }

    pub fn execute(&self, sql: &str) -> Result<()> {
        self.runtime.block_on(self.client.batch_execute(sql)).with_context(|| format!("in {sql}"))
    }

    pub fn count(&self, sql: &str) -> Result<i64> {
        let row =
            self.runtime.block_on(self.client.query_one(sql, &[])).with_context(|| format!("in {sql}"))?;
        Ok(row.get(0))
    }

    /// The rows of a query whose first column is text.
    pub fn lines(&self, sql: &str) -> Result<Vec<String>> {
        let rows = self.runtime.block_on(self.client.query(sql, &[])).with_context(|| format!("in {sql}"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub fn seconds(&self, sql: &str) -> Result<f64> {
        let row =
            self.runtime.block_on(self.client.query_one(sql, &[])).with_context(|| format!("in {sql}"))?;
        Ok(row.get(0))
    }

    /// So that no measurement pays for what was written before it.
    pub fn settle(&self) -> Result<()> {
        self.execute("VACUUM (ANALYZE)")?;
        self.execute("CHECKPOINT")
    }

    /// What this Postgres could do at most: each task is one insert and three guarded updates, a thousand of them in a
    /// statement, each statement a commit; nothing is planned, fenced, audited or sent to anybody.
    pub fn floor(&self, tasks: i64) -> Result<f64> {
        self.execute(
            "CREATE TABLE floor (run bigint NOT NULL, task_no integer NOT NULL, task_id text NOT NULL,
                state text NOT NULL, attempt uuid, node text, scheduled_at timestamptz, queued_at timestamptz,
                started_at timestamptz, ended_at timestamptz, PRIMARY KEY (run, task_no)) WITH (fillfactor = 70)",
        )?;
        let each = tasks / FLOOR_WRITERS;
        let began = Instant::now();
        self.runtime.block_on(async {
            let writers = (0..FLOOR_WRITERS).map(|writer| {
                let url = self.url.clone();
                tokio::spawn(async move { write_floor(&url, writer * each, each).await })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.await??;
            }
            anyhow::Ok(())
        })?;
        let took = began.elapsed();
        let done = self.count("SELECT count(*) FROM floor WHERE state = 'success'")?;
        ensure!(done == each * FLOOR_WRITERS, "the floor wrote {done} tasks");
        self.execute("DROP TABLE floor")?;
        Ok(done as f64 / took.as_secs_f64())
    }

    /// Where Postgres has spent its time since it was asked to count anew: calls, total and mean milliseconds, rows.
    pub fn statements(&self) -> Result<String> {
        let rows = self.runtime.block_on(self.client.query(
            "SELECT calls, total_exec_time, rows, wal_bytes::bigint, regexp_replace(query, '\\s+', ' ', 'g')
             FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 25",
            &[],
        ))?;
        let mut text = String::new();
        for row in rows {
            let (calls, total, count, wal): (i64, f64, i64, i64) =
                (row.get(0), row.get(1), row.get(2), row.get(3));
            let query: String = row.get(4);
            let query: String = query.chars().take(160).collect();
            text += &format!(
                "{calls:>8} calls {total:>9.0} ms {:>8.2} ms each {count:>9} rows {:>7.1} MB WAL  {query}\n",
                total / calls as f64,
                wal as f64 / 1e6
            );
        }
        Ok(text)
    }

    pub fn count_statements(&self) -> Result<()> {
        self.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let dropped = self.runtime.block_on(async {
            let admin = connect(&self.server).await?;
            anyhow::Ok(admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await?)
        });
        if let Err(error) = dropped {
            eprintln!("the database {} stays until its server ends: {error:#}", self.name);
        }
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection); // ends with its client
    Ok(client)
}

async fn write_floor(url: &str, first: i64, count: i64) -> Result<()> {
    let client = connect(url).await?;
    let insert = client
        .prepare(
            "INSERT INTO floor (run, task_no, task_id, state, scheduled_at)
             SELECT n / 100, n % 100, 't' || n % 100, 'scheduled', now() FROM generate_series($1::bigint, $2::bigint) n",
        )
        .await?;
    let guarded = |set: &str, from: &str| {
        format!(
            "UPDATE floor SET {set} FROM generate_series($1::bigint, $2::bigint) n
             WHERE run = n / 100 AND task_no = n % 100 AND state = '{from}'"
        )
    };
    let bind = "state = 'queued', attempt = gen_random_uuid(), node = 'node-00', queued_at = now()";
    let steps = [
        client.prepare(&guarded(bind, "scheduled")).await?,
        client.prepare(&guarded("state = 'running', started_at = now()", "queued")).await?,
        client.prepare(&guarded("state = 'success', ended_at = now()", "running")).await?,
    ];
    for start in (first..first + count).step_by(FLOOR_BATCH as usize) {
        let end = (start + FLOOR_BATCH).min(first + count) - 1;
        client.execute(&insert, &[&start, &end]).await?;
        for step in &steps {
            client.execute(step, &[&start, &end]).await?;
        }
    }
    Ok(())
}
