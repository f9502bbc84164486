//! Leases in memory: for tests and for the simulator. Its clock is the one it is given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{BootTime, Clock};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::store::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, ExpiryClock, FenceStore, HISTORY, Hint, LeaseError,
    LeaseStore, Lifeline, LossReason, ReleaseOutcome, RenewOutcome, Takeover,
};
use crate::{Epoch, LeaseRecord, PastTerm, Scope, Session, Succession, Term};

/// How many hints a slow watcher may lag behind.
const HINTS: usize = 256;

#[derive(Debug)]
pub struct MemoryLeases {
    clock: Arc<dyn Clock>,
    /// Whether an acquire installs the fence itself, as a database does, or leaves it to the winner, as etcd does.
    fenced: bool,
    books: Arc<Mutex<Books>>,
    hints: broadcast::Sender<Hint>,
}

#[derive(Debug, Default)]
struct Books {
    leases: BTreeMap<Scope, Lease>,
    history: BTreeMap<Scope, Vec<PastTerm>>,
    /// Never removed, so epochs never start over.
    fences: BTreeMap<Scope, (Epoch, Term)>,
    /// Who is tied to this store, and whom they watch.
    attached: BTreeMap<Session, Attached>,
}

#[derive(Debug, Default)]
struct Attached {
    cut: CancellationToken,
    peers: BTreeSet<Session>,
}

#[derive(Debug)]
struct Lease {
    record: LeaseRecord,
    expires: BootTime,
    /// Won, but its epoch is not on record yet.
    unconfirmed: bool,
}

impl Lease {
    fn shown(&self, now: BootTime) -> LeaseRecord {
        let left = if self.record.released { Duration::ZERO } else { self.expires.saturating_since(now) };
        LeaseRecord { remaining: left, ..self.record.clone() }
    }
}

impl MemoryLeases {
    /// Installs fences in the same step, as a database does.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, true)
    }

    /// Leaves fences to the winner, as etcd and Kubernetes do.
    pub fn unfenced(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, false)
    }

    fn with(clock: Arc<dyn Clock>, fenced: bool) -> Self {
        Self { clock, fenced, books: Arc::default(), hints: broadcast::Sender::new(HINTS) }
    }

    /// Deletes every lease, as an operator might. Fences stay.
    pub fn forget_leases(&self) {
        self.books().leases.clear();
    }

    /// Deletes one lease, as etcd does when it revokes it, early or late. Its fence stays.
    pub fn forget_lease(&self, scope: &Scope) {
        if self.books().leases.remove(scope).is_some() {
            self.tell(Hint::Changed(scope.clone()));
        }
    }

    /// Deletes a fence, which nobody may: the next epoch is one that there was before.
    pub fn forget_fence(&self, scope: &Scope) {
        self.books().fences.remove(scope);
    }

    /// Deletes leases whose scope begins with `under` and that ran out before `before`, at most `limit` of them, with
    /// their history. Fences stay. Answers with how many.
    pub fn forget_expired(&self, under: &str, before: jiff::Timestamp, limit: usize) -> usize {
        let mut books = self.books();
        let old = |lease: &Lease| lease.record.renewed_at + lease.record.duration < before;
        let scopes =
            books.leases.iter().filter(|(scope, lease)| scope.as_str().starts_with(under) && old(lease));
        let scopes: Vec<Scope> = scopes.map(|(scope, _)| scope.clone()).take(limit).collect();
        for scope in &scopes {
            books.leases.remove(scope);
            books.history.remove(scope);
        }
        scopes.len()
    }

    /// Does something while this fence cannot move, as a transaction that locks its row does.
    pub fn with_fence<T>(&self, scope: &Scope, work: impl FnOnce(Option<(Epoch, Term)>) -> T) -> T {
        let books = self.books();
        work(books.fences.get(scope).copied())
    }

    /// Says that this process has died, true or not: to all that watch it, and to itself if it lives.
    pub fn crash(&self, session: Session) {
        let mut books = self.books();
        if let Some(attached) = books.attached.remove(&session) {
            attached.cut.cancel();
        }
        if books.attached.values().any(|other| other.peers.contains(&session)) {
            self.tell(Hint::Crashed(session));
        }
    }

    /// Passes a hint on as if the store had found it.
    pub fn tell(&self, hint: Hint) {
        // Nobody may be listening.
        let _ = self.hints.send(hint);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no panic while holding the books")
    }
}

impl Books {
    fn install_fence(&mut self, scope: &Scope, term: Term, floor: Epoch) -> Epoch {
        match self.fences.get(scope) {
            Some((epoch, same)) if *same == term => *epoch,
            _ => self.raise_fence(scope, term, floor),
        }
    }

    /// Always a new epoch: a term that asks for its lease again after it was lost does not get its old one back.
    fn raise_fence(&mut self, scope: &Scope, term: Term, floor: Epoch) -> Epoch {
        let known = self.fences.get(scope).map_or(0, |(epoch, _)| epoch.0);
        let epoch = Epoch(known.max(floor.0) + 1);
        self.fences.insert(scope.clone(), (epoch, term));
        epoch
    }

    fn remember(&mut self, record: &LeaseRecord, ended: Option<jiff::Timestamp>) {
        let terms = self.history.entry(record.scope.clone()).or_default();
        if let (Some(previous), Some(at)) = (terms.last_mut(), ended) {
            previous.end = Some(record.succession);
            previous.ended_at.get_or_insert(at);
        }
        terms.push(PastTerm {
            scope: record.scope.clone(),
            epoch: record.epoch,
            term: record.term,
            holder: record.holder.clone(),
            acquired_at: record.acquired_at,
            succession: record.succession,
            note: record.note.clone(),
            ended_at: None,
            end: None,
        });
        let surplus = terms.len().saturating_sub(HISTORY);
        terms.drain(..surplus);
    }
}

#[async_trait]
impl LeaseStore for MemoryLeases {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            minimum_duration: Duration::from_millis(1),
            clock: ExpiryClock::Store,
            fenced_transactions: self.fenced,
            crash_hints: true,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let mut books = self.books();
        let (now, boot) = (self.clock.now(), self.clock.boottime());
        let previous = books.leases.get(&request.scope).map(|lease| (lease.shown(boot), lease.unconfirmed));
        let mut succession = Succession::First;
        if let Some((previous, unconfirmed)) = &previous {
            if previous.is_held() && previous.term == request.term {
                return Ok(match unconfirmed {
                    true => AcquireOutcome::Won(previous.clone()),
                    false => AcquireOutcome::Granted(previous.clone()),
                });
            }
            if previous.is_held() && !request.takeover.covers(previous.term, previous.resource_version) {
                return Ok(AcquireOutcome::Held(previous.clone()));
            }
            succession = match (previous.is_held(), request.takeover) {
                (true, Takeover::OfStalled { .. }) => Succession::Stalled,
                (true, _) => Succession::Crashed,
                (false, _) if previous.released => Succession::Released,
                (false, _) => Succession::Expired,
            };
        }
        let previous = previous.map(|(record, _)| record);
        let floor = previous.as_ref().map_or(Epoch(0), |record| record.epoch);
        let epoch = match self.fenced {
            true => books.raise_fence(&request.scope, request.term, floor),
            false => floor,
        };
        let record = LeaseRecord {
            scope: request.scope.clone(),
            holder: request.holder.clone(),
            term: request.term,
            epoch,
            duration: request.duration,
            acquired_at: now,
            renewed_at: now,
            released: false,
            remaining: request.duration,
            resource_version: previous.as_ref().map_or(1, |record| record.resource_version + 1),
            transitions: previous.as_ref().map_or(0, |record| record.transitions + 1),
            succession,
            note: request.note.clone(),
        };
        let ended = previous.map(|previous| previous.renewed_at + previous.duration).map(|end| end.min(now));
        books.remember(&record, ended);
        let lease =
            Lease { record: record.clone(), expires: boot + request.duration, unconfirmed: !self.fenced };
        books.leases.insert(request.scope.clone(), lease);
        self.tell(Hint::Changed(request.scope.clone()));
        Ok(if self.fenced { AcquireOutcome::Granted(record) } else { AcquireOutcome::Won(record) })
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let mut books = self.books();
        let (now, boot) = (self.clock.now(), self.clock.boottime());
        let mut confirmed = vec![];
        let outcomes = claims.iter().map(|claim| {
            let Some(Lease { record, expires, unconfirmed }) = books.leases.get_mut(&claim.scope) else {
                return RenewOutcome::Lost(LossReason::Gone);
            };
            if record.term != claim.term || (record.epoch != claim.epoch && !*unconfirmed) {
                let (holder, epoch) = (record.holder.clone(), record.epoch);
                return RenewOutcome::Lost(LossReason::Superseded { holder, epoch });
            }
            if record.released || *expires <= boot {
                return RenewOutcome::Lost(LossReason::Expired);
            }
            if std::mem::take(unconfirmed) {
                record.epoch = claim.epoch;
                confirmed.push(claim.clone());
            }
            record.renewed_at = now;
            record.duration = claim.duration;
            record.resource_version += 1;
            *expires = boot + claim.duration;
            RenewOutcome::Renewed
        });
        let outcomes = outcomes.collect();
        for claim in confirmed {
            let terms = books.history.get_mut(&claim.scope).into_iter().flatten();
            terms.filter(|past| past.term == claim.term).for_each(|past| past.epoch = claim.epoch);
        }
        Ok(outcomes)
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let mut books = self.books();
        let boot = self.clock.boottime();
        match books.leases.get_mut(&claim.scope) {
            Some(Lease { record, unconfirmed, expires })
                if record.term == claim.term
                    && (record.epoch == claim.epoch || *unconfirmed)
                    && !record.released
                    && *expires > boot =>
            {
                record.released = true;
                record.resource_version += 1;
            }
            _ => return Ok(ReleaseOutcome::NotApplied),
        }
        let now = self.clock.now();
        let past = books.history.get_mut(&claim.scope).and_then(|terms| terms.last_mut());
        if let Some(past) = past {
            (past.ended_at, past.end) = (Some(now), Some(Succession::Released));
        }
        self.tell(Hint::Changed(claim.scope.clone()));
        Ok(ReleaseOutcome::Released)
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        let now = self.clock.boottime();
        let books = self.books();
        // What begins with it stands side by side, from the text itself on.
        let listed = books.leases.range(Scope::new(under)..);
        let listed = listed.take_while(|(scope, _)| scope.as_str().starts_with(under));
        Ok(listed.map(|(_, lease)| lease.shown(now)).collect())
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        Ok(self.books().leases.get(scope).map(|lease| lease.shown(self.clock.boottime())))
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        let books = self.books();
        let terms = books.history.get(scope).into_iter().flatten();
        Ok(terms.rev().take(limit).cloned().collect())
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        let cut = CancellationToken::new();
        let attached = Attached { cut: cut.clone(), peers: BTreeSet::new() };
        self.books().attached.insert(session, attached);
        Ok(Some(Box::new(MemoryLifeline { session, cut, books: Arc::clone(&self.books) })))
    }
}

#[async_trait]
impl FenceStore for MemoryLeases {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        Ok(self.books().install_fence(scope, term, floor))
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        Ok(self.books().fences.get(scope).copied())
    }
}

#[derive(Debug)]
struct MemoryLifeline {
    session: Session,
    cut: CancellationToken,
    books: Arc<Mutex<Books>>,
}

impl Lifeline for MemoryLifeline {
    fn watch_peers(&self, peers: &[Session]) {
        let mut books = self.books.lock().expect("no panic while holding the books");
        if let Some(attached) = books.attached.get_mut(&self.session) {
            attached.peers = peers.iter().copied().collect();
        }
    }

    fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    fn working(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for MemoryLifeline {
    fn drop(&mut self) {
        self.books.lock().expect("no panic while holding the books").attached.remove(&self.session);
    }
}
