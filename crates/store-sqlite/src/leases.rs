//! Leases and fences. A takeover writes both in one transaction; the fence is never deleted, so that an epoch
//! cannot come back even when somebody deletes lease rows by hand.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, EpochGuard, Holder, LeaseError, LeaseRecord, LeaseStore,
    LossReason, ReleaseOutcome, RenewOutcome, Scope, Takeover, Term,
};
use tenure_store::StoreError;

use crate::errors::{Fail, lease_error};
use crate::rows::{Cells, all, one};
use crate::writer::Tx;
use crate::{Office, SqliteStore};

macro_rules! lease_select {
    () => {
        "SELECT scope, holder_name, holder_instance, holder_address, term, epoch, duration, acquired_at, renewed_at, \
         released, resource_version, transitions, note, expires_at FROM leases"
    };
}
#[async_trait]
impl LeaseStore for SqliteStore {
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let request = request.clone();
        self.write_lease("acquiring a lease", move |tx, office| acquire(tx, &request, office.micros())).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let claims = claims.to_vec();
        let renew_all = move |tx: &Tx<'_>, office: &Office| {
            let now = office.micros();
            claims.iter().map(|claim| renew(tx, claim, now)).collect()
        };
        self.write_lease("renewing leases", renew_all).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let claim = claim.clone();
        self.write_lease("releasing a lease", move |tx, _| release(tx, &claim)).await
    }

    async fn list_leases(&self) -> Result<Vec<LeaseRecord>, LeaseError> {
        let work = self.read("listing leases", |conn, office| {
            let now = office.micros();
            let mut select = conn.prepare_cached(concat!(lease_select!(), " ORDER BY scope"))?;
            all(&mut select, [], |cells| Ok(lease(cells)?.shown(now)))
        });
        work.await.map_err(lease_error)
    }
}

/// The first statement of every privileged transaction. With one writer at a time nothing can bump the fence
/// between this check and the commit.
pub(crate) fn check_fence(conn: &Connection, authority: &Authority) -> Result<(), Fail> {
    match fence(conn, &authority.scope)? {
        Some((epoch, term)) if epoch == authority.epoch && term == authority.term => Ok(()),
        other => {
            let current = other.map(|(epoch, _)| epoch);
            Err(StoreError::Fenced { ours: authority.epoch, current }.into())
        }
    }
}

/// What a guard says, for the writer's thread. Made from a live guard only.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    pub(crate) scope: Scope,
    pub(crate) epoch: Epoch,
    pub(crate) term: Term,
}

impl From<&EpochGuard<'_>> for Authority {
    fn from(guard: &EpochGuard<'_>) -> Self {
        Self { scope: guard.scope().clone(), epoch: guard.epoch(), term: guard.term() }
    }
}

/// A lease row; what remains of it depends on when it is looked at.
struct Lease {
    record: LeaseRecord,
    expires_at: i64,
}

impl Lease {
    fn shown(self, now: i64) -> LeaseRecord {
        let left = if self.record.released { 0 } else { self.expires_at.saturating_sub(now).max(0) };
        LeaseRecord { remaining: Duration::from_micros(left as u64), ..self.record }
    }
}

fn lease(cells: &mut Cells<'_>) -> Result<Lease, Fail> {
    let record = LeaseRecord {
        scope: Scope::new(cells.text::<&str>()?),
        holder: Holder { name: cells.take()?, instance: cells.take()?, address: cells.take()? },
        term: Term(cells.uuid()?),
        epoch: Epoch(cells.take::<i64>()? as u64),
        duration: Duration::from_micros(cells.take::<i64>()? as u64),
        acquired_at: cells.instant()?,
        renewed_at: cells.instant()?,
        released: cells.take()?,
        remaining: Duration::ZERO,
        resource_version: cells.take::<i64>()? as u64,
        transitions: cells.take::<i64>()? as u64,
        note: cells.take()?,
    };
    Ok(Lease { record, expires_at: cells.take()? })
}

fn find(conn: &Connection, scope: &Scope, now: i64) -> Result<Option<LeaseRecord>, Fail> {
    let mut select = conn.prepare_cached(concat!(lease_select!(), " WHERE scope = ?1"))?;
    one(&mut select, [scope.as_str()], |cells| Ok(lease(cells)?.shown(now)))
}

fn fence(conn: &Connection, scope: &Scope) -> Result<Option<(Epoch, Term)>, Fail> {
    let mut select = conn.prepare_cached("SELECT epoch, term FROM fences WHERE scope = ?1")?;
    one(&mut select, [scope.as_str()], |cells| Ok((Epoch(cells.take::<i64>()? as u64), Term(cells.uuid()?))))
}

fn acquire(conn: &Connection, request: &AcquireRequest, now: i64) -> Result<AcquireOutcome, Fail> {
    let previous = find(conn, &request.scope, now)?;
    if let Some(held) = previous.as_ref().filter(|record| !record.remaining.is_zero()) {
        if held.term == request.term {
            return Ok(AcquireOutcome::Granted(held.clone()));
        }
        if request.takeover != Takeover::OfDead(held.term) {
            return Ok(AcquireOutcome::Held(held.clone()));
        }
    }
    let floor = fence(conn, &request.scope)?.map_or(0, |(epoch, _)| epoch.0);
    let epoch = Epoch(floor.max(previous.as_ref().map_or(0, |record| record.epoch.0)) + 1);
    let mut install = conn.prepare_cached(
        "INSERT INTO fences (scope, epoch, term) VALUES (?1, ?2, ?3)
         ON CONFLICT (scope) DO UPDATE SET epoch = excluded.epoch, term = excluded.term",
    )?;
    install.execute(params![request.scope.as_str(), epoch.0 as i64, request.term.0.as_bytes()])?;
    put_lease(conn, request, epoch, previous.as_ref(), now)?;
    let record = find(conn, &request.scope, now)?.expect("it was written just now");
    Ok(AcquireOutcome::Granted(record))
}

fn put_lease(
    conn: &Connection,
    request: &AcquireRequest,
    epoch: Epoch,
    previous: Option<&LeaseRecord>,
    now: i64,
) -> Result<(), Fail> {
    let mut put = conn.prepare_cached(
        "INSERT OR REPLACE INTO leases (scope, holder_name, holder_instance, holder_address, term, epoch, duration,
             acquired_at, renewed_at, expires_at, released, resource_version, transitions, note)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?8 + ?7, 0, ?9, ?10, ?11)",
    )?;
    put.execute(params![
        request.scope.as_str(),
        request.holder.name,
        request.holder.instance,
        request.holder.address,
        request.term.0.as_bytes(),
        epoch.0 as i64,
        micros_of(request.duration),
        now,
        previous.map_or(1, |record| record.resource_version + 1) as i64,
        previous.map_or(0, |record| record.transitions + 1) as i64,
        request.note,
    ])?;
    Ok(())
}

fn renew(conn: &Connection, claim: &Claim, now: i64) -> Result<RenewOutcome, Fail> {
    let Some(record) = find(conn, &claim.scope, now)? else {
        return Ok(RenewOutcome::Lost(LossReason::Gone));
    };
    if record.term != claim.term || record.epoch != claim.epoch {
        let reason = LossReason::Superseded { holder: record.holder, epoch: record.epoch };
        return Ok(RenewOutcome::Lost(reason));
    }
    if record.remaining.is_zero() {
        return Ok(RenewOutcome::Lost(LossReason::Expired));
    }
    let mut update = conn.prepare_cached(
        "UPDATE leases SET renewed_at = ?2, duration = ?3, expires_at = ?2 + ?3, resource_version = resource_version + 1
         WHERE scope = ?1",
    )?;
    update.execute(params![claim.scope.as_str(), now, micros_of(claim.duration)])?;
    Ok(RenewOutcome::Renewed)
}

fn release(conn: &Connection, claim: &Claim) -> Result<ReleaseOutcome, Fail> {
    let mut update = conn.prepare_cached(
        "UPDATE leases SET released = 1, resource_version = resource_version + 1
         WHERE scope = ?1 AND term = ?2 AND epoch = ?3 AND released = 0",
    )?;
    let changed =
        update.execute(params![claim.scope.as_str(), claim.term.0.as_bytes(), claim.epoch.0 as i64])?;
    Ok(if changed == 1 { ReleaseOutcome::Released } else { ReleaseOutcome::NotApplied })
}

fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}
