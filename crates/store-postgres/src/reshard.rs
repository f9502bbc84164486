//! Changes the number of shards, offline.
//!
//! It begins with one transaction that says so in the database (no server starts from then on), gives the new number,
//! moves the epoch of every shard on, old and new, and throws away what shards have been told. From then on nobody
//! who led a shard can write: its epoch is over, and a server that was started before has another number of shards
//! in mind than the database, which refuses it. The rest is arithmetic, in small transactions that can be repeated:
//! after a crash in the middle the same command goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use deadpool_postgres::Pool;
use tenure_model::{DagId, ShardId, TenantId};
use tenure_store::StoreError;

use crate::connect::{self, ConnectError};
use crate::migrate;
use crate::rows::{self, Cells};
use crate::session::Session;

/// Small enough that nobody waits for long, should somebody look.
const BATCH: i64 = 2_000;
/// The first transaction counts all rows, and throws away as many as shards have been told of.
const LONG: Duration = Duration::from_secs(600);
const TAKE_YOUR_TIME: &str = "SET LOCAL statement_timeout = '10min'";

/// A live lease of any shard; the first one is named.
const A_LIVE_LEASE: &str = "SELECT scope, holder_name, holder_instance FROM leases
    WHERE scope >= 'scheduler/' AND scope < 'scheduler0' AND NOT released AND expires_at > clock_timestamp()
    ORDER BY scope LIMIT 1";
const BEGIN_IT: &str = "INSERT INTO meta (name, value) VALUES ('resharding', gen_random_uuid()::text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING value";
const SET_NUMBER: &str = "UPDATE meta SET value = $1 WHERE name = 'shards'";
const KNOWN_SCOPES: &str = "SELECT scope FROM fences WHERE scope >= 'scheduler/' AND scope < 'scheduler0'
    UNION SELECT scope FROM leases WHERE scope >= 'scheduler/' AND scope < 'scheduler0'";
/// Waits for whatever is being written under the old epoch. As in an acquire, above all that lease, fence and history
/// remember.
const RAISE_FENCES: &str = "INSERT INTO fences (scope, epoch, term)
    SELECT c.scope, greatest(1, (SELECT l.epoch + 1 FROM leases l WHERE l.scope = c.scope),
        (SELECT max(t.epoch) + 1 FROM lease_terms t WHERE t.scope = c.scope)), gen_random_uuid()
    FROM unnest($1::text[]) AS c(scope) ORDER BY c.scope
    ON CONFLICT (scope) DO UPDATE SET epoch = greatest(fences.epoch + 1, excluded.epoch), term = excluded.term";
/// Owners read everything when they take over; what they have been told until then says nothing new.
const FORGET: &str = "DELETE FROM attention; DELETE FROM shares";
const COUNT: &str = "SELECT (SELECT count(*) FROM dags) + (SELECT count(*) FROM runs)";

/// Nobody else has begun after us: then it is theirs to finish.
const STILL_OURS: &str = "SELECT value FROM meta WHERE name = 'resharding' FOR UPDATE";
const DAGS: &str = "SELECT tenant, dag_id, shard FROM dags WHERE (tenant, dag_id) > ($1, $2)
    ORDER BY tenant, dag_id LIMIT $3";
const MOVE_DAGS: &str = "UPDATE dags d SET shard = c.shard
    FROM unnest($1::text[], $2::text[], $3::integer[]) AS c(tenant, dag_id, shard)
    WHERE d.tenant = c.tenant AND d.dag_id = c.dag_id";
const RUNS: &str = "SELECT key, tenant, dag_id, shard FROM runs WHERE key > $1 ORDER BY key LIMIT $2";
const MOVE_RUNS: &str = "UPDATE runs r SET shard = c.shard
    FROM unnest($1::bigint[], $2::integer[]) AS c(key, shard) WHERE r.key = c.key";
const END_IT: &str = "DELETE FROM meta WHERE name = 'resharding'";

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resharded {
    pub from: u16,
    pub to: u16,
    pub moved_dags: u64,
    pub moved_runs: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ReshardError {
    #[error("a database has at least one shard")]
    NoShards,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing was changed.
    #[error("{scope} is led by {holder}: stop every server first, or wait until its lease has run out")]
    Led { scope: String, holder: String },
    #[error("another change of the number of shards has begun meanwhile, and goes on instead of this one")]
    Overtaken,
    /// What was begun is to be finished by the same command; no server starts before.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Divides the dags of a database anew. Every server must have been stopped. `progress` hears how many dags and runs
/// have been looked at, and of how many.
pub async fn reshard(
    url: &str,
    shards: u16,
    mut progress: impl FnMut(u64, u64),
) -> Result<Resharded, ReshardError> {
    if shards == 0 {
        return Err(ReshardError::NoShards);
    }
    let config = connect::configure(url, "tenure reshard")?;
    let target = connect::target(&config);
    let pool = connect::pool(&config, 1);
    connect::reach(&pool, &target).await?;
    let from = migrate::run(&pool, &target, shards).await?.shards;
    let (mine, total) = begin(&pool, shards).await?;
    let mut work = Work { pool, shards, mine, done: 0 };
    let mut report = |done: u64| progress(done, total.max(done));
    report(0);
    let moved_dags = work.move_dags(&mut report).await?;
    let moved_runs = work.move_runs(&mut report).await?;
    work.end().await?;
    Ok(Resharded { from, to: shards, moved_dags, moved_runs })
}

/// Answers with what tells this change from any other, and how many rows there are to be looked at.
async fn begin(pool: &Pool, shards: u16) -> Result<(String, u64), ReshardError> {
    let session = Session::begin(pool, "beginning to change the number of shards").await?.within(LONG);
    session.batch(migrate::ALONE).await?;
    session.batch(TAKE_YOUR_TIME).await?;
    if let Some(row) = session.row(A_LIVE_LEASE, &[]).await? {
        let mut cells = Cells::of(&row);
        let (scope, name, instance): (String, String, String) = (cells.take()?, cells.take()?, cells.take()?);
        session.roll_back().await?;
        return Err(ReshardError::Led { scope, holder: format!("{name} ({instance})") });
    }
    let outcome = lay_down(&session, shards).await;
    Ok(session.finish(outcome).await?)
}

async fn lay_down(session: &Session, shards: u16) -> Result<(String, u64), StoreError> {
    let mine = session.row(BEGIN_IT, &[]).await?;
    let mine: String = mine.expect("an upsert returns its row").get(0);
    session.execute(SET_NUMBER, &[&shards.to_string()]).await?;
    let known = rows::all(&session.rows(KNOWN_SCOPES, &[]).await?, |cells| cells.take::<String>())?;
    let old = known.into_iter().filter(|scope| ShardId::of_scope(scope).is_some());
    let scopes: BTreeSet<String> = old.chain((0..shards).map(|shard| ShardId(shard).scope())).collect();
    let scopes: Vec<String> = scopes.into_iter().collect();
    session.execute(RAISE_FENCES, &[&scopes]).await?;
    session.batch(FORGET).await?;
    let count = session.row(COUNT, &[]).await?;
    Ok((mine, count.expect("an aggregate has one row").get::<_, i64>(0) as u64))
}

struct Work {
    pool: Pool,
    shards: u16,
    mine: String,
    done: u64,
}

impl Work {
    async fn move_dags(&mut self, report: &mut impl FnMut(u64)) -> Result<u64, ReshardError> {
        let (mut after, mut moved) = ((String::new(), String::new()), 0);
        loop {
            let session = self.batch("moving dags to their shards").await?;
            let outcome = move_dags(&session, self.shards, &after).await;
            let part = session.finish(outcome).await?;
            self.done += part.seen;
            moved += part.moved;
            report(self.done);
            match part.last {
                Some(last) => after = last,
                None => return Ok(moved),
            }
        }
    }

    async fn move_runs(&mut self, report: &mut impl FnMut(u64)) -> Result<u64, ReshardError> {
        let (mut after, mut moved) = (i64::MIN, 0);
        loop {
            let session = self.batch("moving runs to their shards").await?;
            let outcome = move_runs(&session, self.shards, after).await;
            let part = session.finish(outcome).await?;
            self.done += part.seen;
            moved += part.moved;
            report(self.done);
            match part.last {
                Some(last) => after = last,
                None => return Ok(moved),
            }
        }
    }

    async fn end(&self) -> Result<(), ReshardError> {
        let session = self.batch("ending the change of the number of shards").await?;
        let outcome = session.execute(END_IT, &[]).await;
        session.finish(outcome).await?;
        Ok(())
    }

    /// A transaction in which nobody else can take the work over.
    async fn batch(&self, doing: &'static str) -> Result<Session, ReshardError> {
        let session = Session::begin(&self.pool, doing).await?;
        let row = session.row(STILL_OURS, &[]).await?;
        if row.is_some_and(|row| row.get::<_, &str>(0) == self.mine) {
            return Ok(session);
        }
        session.roll_back().await?;
        Err(ReshardError::Overtaken)
    }
}

/// Rows looked at in one transaction.
struct Part<Key> {
    seen: u64,
    moved: u64,
    /// `None`: there are no more.
    last: Option<Key>,
}

async fn move_dags(
    session: &Session,
    shards: u16,
    after: &(String, String),
) -> Result<Part<(String, String)>, StoreError> {
    let found = session.rows(DAGS, &[&after.0, &after.1, &BATCH]).await?;
    let read =
        |cells: &mut Cells<'_>| Ok((cells.take::<String>()?, cells.take::<String>()?, cells.take::<i32>()?));
    let found = rows::all(&found, read)?;
    let (mut tenants, mut dags, mut numbers) = (vec![], vec![], vec![]);
    for (tenant, dag, old) in &found {
        let new = shard_of(tenant, dag, shards);
        if new != *old {
            tenants.push(tenant.as_str());
            dags.push(dag.as_str());
            numbers.push(new);
        }
    }
    let moved = session.execute(MOVE_DAGS, &[&tenants, &dags, &numbers]).await?;
    let seen = found.len() as u64;
    Ok(Part { seen, moved, last: found.into_iter().last().map(|(tenant, dag, _)| (tenant, dag)) })
}

async fn move_runs(session: &Session, shards: u16, after: i64) -> Result<Part<i64>, StoreError> {
    let found = session.rows(RUNS, &[&after, &BATCH]).await?;
    let (mut keys, mut numbers) = (vec![], vec![]);
    let mut last = None;
    for row in &found {
        let mut cells = Cells::of(row);
        let (key, tenant, dag, old): (i64, &str, &str, i32) =
            (cells.take()?, cells.take()?, cells.take()?, cells.take()?);
        last = Some(key);
        let new = shard_of(tenant, dag, shards);
        if new != old {
            keys.push(key);
            numbers.push(new);
        }
    }
    let moved = session.execute(MOVE_RUNS, &[&keys, &numbers]).await?;
    Ok(Part { seen: found.len() as u64, moved, last })
}

fn shard_of(tenant: &str, dag: &str, shards: u16) -> i32 {
    i32::from(ShardId::of(&TenantId::new(tenant), &DagId::new(dag), shards).0)
}
