//! A state database in memory: for the simulator, where a verb has to cost microseconds, and for tests.
//!
//! It passes the same suites as SQLite and Postgres, so what runs well on it runs well on them. Each verb is one
//! transaction: it looks at everything that could refuse it before it changes anything, and never waits inside.
//! Deterministic: no threads, no wall clock but the one it is given, no map in hash order. What it does not promise
//! is in its name: it is gone with its process.

mod bells;
mod chores;
mod dags;
mod edits;
mod identities;
mod intent;
mod leases;
mod limits;
mod pass;
mod runs;
mod scheduling;
mod shares;
mod tables;
mod trail;
mod views;

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use tenure_clock::Clock;
use tenure_lease::{Epoch, EpochGuard, MemoryLeases, Scope, Term};
use tenure_model::{RunKey, ShardId, TiKey};
use tenure_store::{AuditView, RunView, StoreError};

pub use bells::Bells;
use tables::{Run, Tables};

#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    leases: MemoryLeases,
    tables: Mutex<Tables>,
    bells: Vec<Bells>,
    flaw: Option<Flaw>,
}

/// Bugs on purpose: whoever checks histories shows with them that it would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A deposed owner's writes are taken as they are.
    NoFence,
    /// A deposed owner's trades of shares are taken.
    UnfencedTrades,
    /// What an agent says of an attempt is taken for whatever attempt the task has now.
    AnyAttempt,
    /// It is not remembered which ticks have made their runs, and a second run for one is taken.
    DueRunsTwice,
    /// The end of an attempt that has ended is taken again.
    EndsTwice,
    /// One in some runs is acknowledged and gone.
    LosesRuns,
}

/// What a guard said when a call was sent. A request that is under way outlives whoever sent it, so the simulator has to
/// carry this in its place; everybody else shows a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    pub(crate) scope: Scope,
    pub(crate) epoch: Epoch,
    pub(crate) term: Term,
}

impl From<&EpochGuard<'_>> for Authority {
    fn from(guard: &EpochGuard<'_>) -> Self {
        Self { scope: guard.scope().clone(), epoch: guard.epoch(), term: guard.term() }
    }
}

impl MemoryStore {
    pub fn new(shards: u16, clock: Arc<dyn Clock>) -> Self {
        Self {
            leases: MemoryLeases::new(Arc::clone(&clock)),
            tables: Mutex::new(Tables::new(shards)),
            bells: (0..shards).map(|_| Bells::default()).collect(),
            clock,
            flaw: None,
        }
    }

    /// The same with a bug.
    pub fn flawed(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    /// The same with leases that leave fences to the winner, as where they are in another database than the work.
    pub fn with_leases_apart(self) -> Self {
        Self { leases: MemoryLeases::unfenced(Arc::clone(&self.clock)), ..self }
    }

    /// The leases themselves, for those that make them misbehave.
    pub fn leases(&self) -> &MemoryLeases {
        &self.leases
    }

    /// The whole audit trail, each row with when it was committed by this store's own clock.
    pub fn trail(&self) -> Vec<(Timestamp, AuditView)> {
        self.read(|tables| tables.audit.values().map(|row| (row.committed_at, row.view.clone())).collect())
    }

    /// Every run with the key of the request that made it, if it had one, and its shard.
    pub fn all_runs(&self) -> Vec<(RunView, ShardId, Option<String>)> {
        self.read(|tables| {
            let key = |run: &Run| run.idempotency.as_ref().map(|(key, _)| key.clone());
            tables.runs.values().map(|run| (run.view.clone(), run.shard, key(run))).collect()
        })
    }

    /// Forgets finished runs that ended before, and the whole trail: for worlds too large to be remembered.
    pub fn forget(&self, before: Timestamp) {
        self.read(|tables| {
            let ended = |run: &Run| run.view.ended_at.is_some_and(|ended| ended < before);
            let old = tables.runs.iter().filter(|(_, run)| run.view.state.is_finished() && ended(run));
            let old: Vec<RunKey> = old.map(|(key, _)| *key).collect();
            old.into_iter().for_each(|key| tables.forget_run(key));
            tables.audit.clear();
        });
    }

    /// Makes a run unreadable, as a row that another release has written may be.
    pub fn spoil_run(&self, run: RunKey) {
        self.read(|tables| tables.spoiled_runs.insert(run));
    }

    /// The same for one task instance.
    pub fn spoil_task(&self, ti: TiKey) {
        self.read(|tables| tables.spoiled_tasks.insert(ti));
    }

    fn read<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        // Whoever panics with them is heard of; those who come after find what it has left.
        work(&mut self.tables.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A transaction; whom it concerns is woken after it.
    fn write<T>(&self, work: impl FnOnce(&mut Tables) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let now = self.clock.now();
        let (done, woken) = self.read(|tables| {
            tables.now = now;
            let done = work(tables);
            (done, std::mem::take(&mut tables.woken))
        });
        for shard in woken {
            self.ring(shard);
        }
        done
    }

    /// A transaction under a fence, which cannot move while it goes on.
    fn fenced<T>(
        &self,
        authority: &Authority,
        work: impl FnOnce(&mut Tables) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.leases.with_fence(&authority.scope, |fence| {
            let ours = authority.epoch;
            let holds = fence == Some((ours, authority.term));
            if !holds && self.flaw != Some(Flaw::NoFence) {
                return Err(StoreError::Fenced { ours, current: fence.map(|(epoch, _)| epoch) });
            }
            self.write(|tables| {
                tables.careless = !holds;
                work(tables)
            })
        })
    }

    fn ring(&self, shard: ShardId) {
        if let Some(bell) = self.bells.get(usize::from(shard.0)) {
            bell.ring();
        }
    }
}
