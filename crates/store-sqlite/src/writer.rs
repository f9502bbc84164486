//! The one thread that writes, and its group commit.
//!
//! It takes everything that waits, runs each job inside a savepoint of one transaction, commits once, and only
//! then answers all of them: under load a hundred jobs share one fsync, and a lonely job pays for one. A job
//! that fails or panics takes back its own savepoint and nobody else's. Leases go first: a flood of triggers
//! must not cost a scheduler its leadership.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tenure_clock::Clock;
use tenure_model::ShardId;
use tenure_store::{BoxError, StoreError};
use tokio::sync::oneshot;

use crate::errors::Fail;
use crate::wakes::Wakes;

/// No job joins a batch that is older than this, so whoever comes meanwhile waits for it, for one job and for a
/// commit. A hundred times what a commit takes: sharing it further would gain nothing.
const BATCH_FOR: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Waits for nobody but the urgent jobs before it.
    Lease,
    Ordinary,
}

/// What a job writes through.
pub(crate) struct Tx<'a> {
    conn: &'a Connection,
    woken: &'a RefCell<BTreeSet<ShardId>>,
}

impl Tx<'_> {
    /// This job leaves something behind that the shard's owner must look at.
    pub(crate) fn wake(&self, shard: ShardId) {
        self.woken.borrow_mut().insert(shard);
    }
}

impl std::ops::Deref for Tx<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.conn
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<mpsc::Sender<(Urgency, Box<dyn Job>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(conn: Connection, wakes: Wakes, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let mut desk = Desk { conn, wakes, clock, urgent: VecDeque::new(), ordinary: VecDeque::new() };
        let thread =
            std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || desk.run(&inbox))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `work` in a transaction and answers once it is on disk.
    pub(crate) async fn run<T, F>(
        &self,
        urgency: Urgency,
        doing: &'static str,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fail> + Send + 'static,
    {
        let (answer, reply) = oneshot::channel();
        let errand = Errand { doing, work: Some(work), outcome: None, answer };
        let jobs = self.jobs.as_ref().expect("taken only when the store is dropped");
        if jobs.send((urgency, Box::new(errand))).is_err() {
            return Err(StoreError::Unavailable {
                doing,
                source: "the database's writer has stopped".into(),
            });
        }
        let lost = |_| StoreError::Unknown { doing, source: "the database's writer stopped halfway".into() };
        reply.await.map_err(lost)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the database's writer had panicked");
        }
    }
}

/// How the transaction around a job ended.
#[derive(Clone, Copy)]
enum Ending<'a> {
    Committed,
    NothingKept(&'a str),
    InDoubt(&'a str),
}

trait Job: Send {
    /// False: take back what it did.
    fn work(&mut self, tx: &Tx<'_>) -> bool;
    fn fail(&mut self, why: BoxError);
    fn settle(self: Box<Self>, ending: Ending<'_>);
}

struct Errand<T, F> {
    doing: &'static str,
    work: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Errand<T, F>
where
    T: Send,
    F: FnOnce(&Tx<'_>) -> Result<T, Fail> + Send,
{
    fn work(&mut self, tx: &Tx<'_>) -> bool {
        let work = self.work.take().expect("a job runs once");
        let outcome = work(tx).map_err(|fail| fail.told(self.doing));
        self.outcome.insert(outcome).is_ok()
    }

    fn fail(&mut self, why: BoxError) {
        self.outcome = Some(Err(StoreError::Unavailable { doing: self.doing, source: why }));
    }

    fn settle(self: Box<Self>, ending: Ending<'_>) {
        let doing = self.doing;
        let answer = match (self.outcome, ending) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(value)), Ending::Committed) => Ok(value),
            (_, Ending::InDoubt(why)) => Err(StoreError::Unknown { doing, source: why.to_owned().into() }),
            (_, Ending::NothingKept(why)) => {
                Err(StoreError::Unavailable { doing, source: why.to_owned().into() })
            }
            (None, Ending::Committed) => unreachable!("only jobs that ran are committed"),
        };
        // The caller may have given up waiting; what was committed stays committed.
        let _ = self.answer.send(answer);
    }
}

struct Desk {
    conn: Connection,
    wakes: Wakes,
    clock: Arc<dyn Clock>,
    urgent: VecDeque<Box<dyn Job>>,
    ordinary: VecDeque<Box<dyn Job>>,
}

impl Desk {
    fn run(&mut self, inbox: &mpsc::Receiver<(Urgency, Box<dyn Job>)>) {
        while let Ok(job) = inbox.recv() {
            self.take_in(job);
            while !(self.urgent.is_empty() && self.ordinary.is_empty()) {
                inbox.try_iter().for_each(|job| self.take_in(job));
                self.commit_batch();
            }
        }
    }

    fn take_in(&mut self, (urgency, job): (Urgency, Box<dyn Job>)) {
        match urgency {
            Urgency::Lease => self.urgent.push_back(job),
            Urgency::Ordinary => self.ordinary.push_back(job),
        }
    }

    fn next_job(&mut self) -> Option<Box<dyn Job>> {
        self.urgent.pop_front().or_else(|| self.ordinary.pop_front())
    }

    /// One transaction of the jobs at hand; what does not fit stays for the next one.
    fn commit_batch(&mut self) {
        if let Err(error) = self.execute("BEGIN IMMEDIATE") {
            let jobs = self.urgent.drain(..).chain(self.ordinary.drain(..)).collect();
            settle(jobs, Ending::NothingKept(&error.to_string()));
            return;
        }
        let begun = self.clock.boottime();
        let mut woken = BTreeSet::new();
        let (mut ran, mut kept) = (vec![], false);
        while let Some(mut job) = self.next_job() {
            kept |= self.run_alone(job.as_mut(), &mut woken);
            ran.push(job);
            // A full disk or an I/O error makes SQLite give up the whole transaction, neighbours included.
            if self.conn.is_autocommit() {
                return settle(ran, Ending::NothingKept("the transaction was rolled back by the database"));
            }
            if self.clock.boottime().saturating_since(begun) > BATCH_FOR {
                break;
            }
        }
        match self.execute(if kept { "COMMIT" } else { "ROLLBACK" }) {
            Ok(()) => {
                woken.into_iter().for_each(|shard| self.wakes.ring(shard));
                settle(ran, Ending::Committed);
            }
            Err(error) => {
                tracing::error!(%error, "a commit failed; whether it is on disk is unknown");
                self.abandon();
                settle(ran, Ending::InDoubt(&error.to_string()));
            }
        }
    }

    /// True if the job's changes stay in the transaction.
    fn run_alone(&self, job: &mut dyn Job, woken: &mut BTreeSet<ShardId>) -> bool {
        if let Err(error) = self.execute("SAVEPOINT job") {
            job.fail(error.into());
            return false;
        }
        let wakes = RefCell::default();
        let tx = Tx { conn: &self.conn, woken: &wakes };
        let mut keep = catch_unwind(AssertUnwindSafe(|| job.work(&tx))).unwrap_or_else(|panic| {
            let text = panic_text(&*panic);
            tracing::error!(text, "a database job panicked");
            job.fail(format!("the job panicked: {text}").into());
            false
        });
        if keep && let Err(error) = self.execute("RELEASE job") {
            job.fail(error.into());
            keep = false;
        }
        if !keep && !self.conn.is_autocommit() {
            let undone = self.execute("ROLLBACK TO job").and_then(|()| self.execute("RELEASE job"));
            if let Err(error) = undone {
                tracing::error!(%error, "a failed job cannot be taken back alone; the transaction is given up");
                self.abandon();
            }
        }
        if keep {
            woken.append(&mut wakes.into_inner());
        }
        keep
    }

    fn abandon(&self) {
        if !self.conn.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "a transaction cannot be rolled back");
        }
    }

    fn execute(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.conn.prepare_cached(sql)?.execute([]).map(|_| ())
    }
}

fn settle(jobs: Vec<Box<dyn Job>>, ending: Ending<'_>) {
    jobs.into_iter().for_each(|job| job.settle(ending));
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests;
