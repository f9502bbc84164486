//! One transaction on one borrowed connection.
//!
//! Promise: a connection returns to its pool only after its transaction has ended in order. A future that is
//! dropped half-way, or any failure of the database, takes the connection with it: nobody ever borrows a
//! session that is inside someone else's transaction, or queues behind a statement that still waits for a
//! lock. The server rolls back when it finds the socket closed.

use std::future::Future;
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures::future::try_join_all;
use tenure_store::StoreError;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::errors;

/// The server gives up on a statement after 30 s; a server that says nothing for longer is not there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(35);

pub(crate) const READ_WRITE: &str = "BEGIN";
/// Each statement sees what was committed while the one before it waited for its locks, whatever the database or the
/// URL says of isolation.
pub(crate) const READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Several queries of one read see one state of the database. A snapshot that is closed with [`CLOSE`] in the
/// same breath costs one round trip.
pub(crate) const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// As [`SNAPSHOT`], for questions of people, who may ask for half a table: every plan may be the right one.
pub(crate) const SURVEY: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = on;
    SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on";

pub(crate) const CLOSE: &str = "COMMIT";

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A borrowed connection, between BEGIN and COMMIT.
pub(crate) struct Session {
    client: Option<Object>,
    doing: &'static str,
    patience: Duration,
    /// A statement that was sent may commit, by itself or because a COMMIT was sent behind it.
    commits: bool,
}

impl Session {
    /// A connection on which nothing has begun yet.
    pub(crate) async fn borrow(pool: &Pool, doing: &'static str) -> Result<Self, StoreError> {
        let client = pool.get().await.map_err(|error| errors::no_connection(doing, error))?;
        Ok(Self { client: Some(client), doing, patience: PATIENCE, commits: false })
    }

    /// Waits for an answer no longer than this.
    pub(crate) fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// From now on an answer that is lost may hide a commit.
    pub(crate) fn committing(mut self) -> Self {
        self.commits = true;
        self
    }

    pub(crate) async fn begin(pool: &Pool, doing: &'static str) -> Result<Self, StoreError> {
        let session = Self::borrow(pool, doing).await?;
        session.batch(READ_WRITE).await?;
        Ok(session)
    }

    pub(crate) async fn snapshot(pool: &Pool, doing: &'static str) -> Result<Self, StoreError> {
        let session = Self::borrow(pool, doing).await?;
        session.batch(SNAPSHOT).await?;
        Ok(session)
    }

    /// A read of one statement, which is a transaction by itself.
    pub(crate) async fn once(
        pool: &Pool,
        doing: &'static str,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let session = Self::borrow(pool, doing).await?;
        let rows = session.rows(sql, params).await?;
        session.give_back();
        Ok(rows)
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("a session has its connection until it is finished")
    }

    /// Prepares what this connection has not seen yet, so that the statements can then be sent in one go.
    pub(crate) async fn prepare(&self, statements: &[&'static str]) -> Result<(), StoreError> {
        let client = self.client();
        self.bounded(try_join_all(statements.iter().map(|sql| client.prepare_cached(sql)))).await.map(drop)
    }

    /// Statements that return nothing and take no parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        self.bounded(self.client().batch_execute(sql)).await
    }

    /// Sent with the first poll once it is prepared: futures that are joined share a round trip.
    pub(crate) async fn rows(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.bounded(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().query(&statement, params).await
        })
        .await
    }

    pub(crate) async fn row(&self, sql: &'static str, params: Params<'_>) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    pub(crate) async fn execute(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        self.bounded(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().execute(&statement, params).await
        })
        .await
    }

    /// For statements that are put together as they are needed: planned for these very values, not kept.
    pub(crate) async fn rows_once(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, StoreError> {
        self.bounded(self.client().query_typed(sql, params)).await
    }

    /// For a session on which no transaction is open.
    pub(crate) fn give_back(mut self) {
        self.client = None;
    }

    /// Undoes everything, on purpose.
    pub(crate) async fn roll_back(mut self) -> Result<(), StoreError> {
        self.batch("ROLLBACK").await?;
        self.client = None;
        Ok(())
    }

    /// Commits what went well, rolls back what did not.
    pub(crate) async fn finish<T>(mut self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        let end = if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" };
        if outcome.as_ref().is_err_and(errors::spoils_session) {
            return outcome;
        }
        let ended = tokio::time::timeout(self.patience, self.client().batch_execute(end)).await;
        match (outcome, ended) {
            (outcome, Ok(Ok(()))) => {
                self.client = None; // back to the pool
                outcome
            }
            (Ok(_), Ok(Err(error))) => Err(errors::of_commit(self.doing, error)),
            (Ok(_), Err(_)) => Err(errors::no_answer_to_commit(self.doing)),
            // What was to be said is said already; the session goes away with its transaction.
            (Err(outcome), _) => Err(outcome),
        }
    }

    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        match (tokio::time::timeout(self.patience, work).await, self.commits) {
            (Ok(done), false) => done.map_err(|error| errors::of_statement(self.doing, error)),
            (Ok(done), true) => done.map_err(|error| errors::of_commit(self.doing, error)),
            (Err(_), false) => Err(errors::no_answer(self.doing)),
            (Err(_), true) => Err(errors::no_answer_to_commit(self.doing)),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}
