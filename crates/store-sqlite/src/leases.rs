//! Leases and fences in tables. A takeover writes both in one transaction; the fence is never deleted, so that
//! an epoch cannot come back even when somebody deletes lease rows by hand.
//!
//! The functions here work inside a transaction that is alone in writing, and take the time as an argument.
//! Who calls them: [`verbs`], for a state database and for a file of leases alike.

mod changes;
mod file;
mod lifeline;
mod verbs;

use std::time::Duration;

use rusqlite::{Connection, params};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, EpochGuard, HISTORY, Hint, Holder, LeaseRecord, LossReason,
    PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Succession, Takeover, Term,
};
use tenure_store::StoreError;
use tokio::sync::broadcast;

use crate::errors::Fail;
use crate::rows::{Cells, all, one};
pub use file::SqliteLeases;

/// How many hints a slow watcher may lag behind.
const HINTS: usize = 256;

pub(crate) fn hints() -> broadcast::Sender<Hint> {
    broadcast::Sender::new(HINTS)
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

macro_rules! lease_select {
    () => {
        "SELECT scope, holder_name, holder_instance, holder_session, holder_address, term, epoch, duration, \
         acquired_at, renewed_at, released, resource_version, transitions, succession, note, expires_at FROM leases"
    };
}

fn lease(cells: &mut Cells<'_>, now: i64) -> Result<LeaseRecord, Fail> {
    let mut record = LeaseRecord {
        scope: Scope::new(cells.text::<&str>()?),
        holder: holder(cells)?,
        term: Term(cells.uuid()?),
        epoch: Epoch(cells.take::<i64>()? as u64),
        duration: Duration::from_micros(cells.take::<i64>()? as u64),
        acquired_at: cells.instant()?,
        renewed_at: cells.instant()?,
        released: cells.take()?,
        remaining: Duration::ZERO,
        resource_version: cells.take::<i64>()? as u64,
        transitions: cells.take::<i64>()? as u64,
        succession: cells.succession()?,
        note: cells.take()?,
    };
    let left = cells.take::<i64>()?.saturating_sub(now).max(0);
    if !record.released {
        // After the clock was set back more than the whole duration seems to be left.
        record.remaining = Duration::from_micros(left as u64).min(record.duration);
    }
    Ok(record)
}

fn holder(cells: &mut Cells<'_>) -> Result<Holder, Fail> {
    Ok(Holder {
        name: cells.take()?,
        instance: cells.take()?,
        session: Session(cells.uuid()?),
        address: cells.take()?,
    })
}

fn find(conn: &Connection, scope: &Scope, now: i64) -> Result<Option<LeaseRecord>, Fail> {
    let mut select = conn.prepare_cached(concat!(lease_select!(), " WHERE scope = ?1"))?;
    one(&mut select, [scope.as_str()], |cells| lease(cells, now))
}

/// Scopes that begin alike are neighbours in byte order, which is the order of the primary key.
fn list(conn: &Connection, under: &str, now: i64) -> Result<Vec<LeaseRecord>, Fail> {
    let mut select = conn.prepare_cached(concat!(lease_select!(), " WHERE scope >= ?1 ORDER BY scope"))?;
    let mut rows = select.query([under])?;
    let mut listed = vec![];
    while let Some(row) = rows.next()? {
        let record = lease(&mut Cells::of(row), now)?;
        if !record.scope.as_str().starts_with(under) {
            break;
        }
        listed.push(record);
    }
    Ok(listed)
}

fn history(conn: &Connection, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, Fail> {
    let mut select = conn.prepare_cached(
        "SELECT scope, epoch, term, holder_name, holder_instance, holder_session, holder_address, acquired_at,
             succession, note, ended_at, ending
         FROM lease_terms WHERE scope = ?1 ORDER BY epoch DESC LIMIT ?2",
    )?;
    all(&mut select, params![scope.as_str(), i64::try_from(limit).unwrap_or(i64::MAX)], |cells| {
        Ok(PastTerm {
            scope: Scope::new(cells.text::<&str>()?),
            epoch: Epoch(cells.take::<i64>()? as u64),
            term: Term(cells.uuid()?),
            holder: holder(cells)?,
            acquired_at: cells.instant()?,
            succession: cells.succession()?,
            note: cells.take()?,
            ended_at: cells.optional_instant()?,
            end: cells.optional_succession()?,
        })
    })
}

fn fence(conn: &Connection, scope: &Scope) -> Result<Option<(Epoch, Term)>, Fail> {
    let mut select = conn.prepare_cached("SELECT epoch, term FROM fences WHERE scope = ?1")?;
    one(&mut select, [scope.as_str()], |cells| Ok((Epoch(cells.take::<i64>()? as u64), Term(cells.uuid()?))))
}

fn install_fence(conn: &Connection, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, Fail> {
    match fence(conn, scope)? {
        Some((epoch, same)) if same == term => Ok(epoch),
        _ => raise_fence(conn, scope, term, floor),
    }
}

/// Always a new epoch: a term that asks for its lease again after it was lost does not get its old one back.
fn raise_fence(conn: &Connection, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, Fail> {
    let known = fence(conn, scope)?.map_or(0, |(epoch, _)| epoch.0).max(floor.0);
    let next = known.checked_add(1).and_then(|next| i64::try_from(next).ok());
    let next = next.ok_or_else(|| Fail::corrupt("an epoch", format!("nothing comes after {known}")))?;
    let mut install = conn.prepare_cached(
        "INSERT INTO fences (scope, epoch, term) VALUES (?1, ?2, ?3)
         ON CONFLICT (scope) DO UPDATE SET epoch = excluded.epoch, term = excluded.term",
    )?;
    install.execute(params![scope.as_str(), next, term.0.as_bytes()])?;
    Ok(Epoch(next as u64))
}

fn acquire(conn: &Connection, request: &AcquireRequest, now: i64) -> Result<AcquireOutcome, Fail> {
    let previous = find(conn, &request.scope, now)?;
    if let Some(held) = previous.as_ref().filter(|record| record.is_held()) {
        if held.term == request.term {
            return Ok(AcquireOutcome::Granted(held.clone()));
        }
        if !request.takeover.covers(held.term, held.resource_version) {
            return Ok(AcquireOutcome::Held(held.clone()));
        }
    }
    let floor = previous.as_ref().map_or(Epoch(0), |record| record.epoch);
    let epoch = raise_fence(conn, &request.scope, request.term, floor)?;
    let succession = succession(previous.as_ref(), request.takeover);
    if let Some(previous) = &previous {
        let ran_out = previous.renewed_at.as_microsecond().saturating_add(micros_of(previous.duration));
        end_term(conn, &previous.scope, previous.epoch, ran_out.min(now), succession)?;
    }
    put_lease(conn, request, epoch, previous.as_ref(), succession, now)?;
    begin_term(conn, request, epoch, succession, now)?;
    let record = find(conn, &request.scope, now)?.expect("it was written just now");
    Ok(AcquireOutcome::Granted(record))
}

/// How whoever takes it now comes after the one on record.
fn succession(previous: Option<&LeaseRecord>, takeover: Takeover) -> Succession {
    match (previous, takeover) {
        (None, _) => Succession::First,
        (Some(record), _) if record.released => Succession::Released,
        (Some(record), _) if !record.is_held() => Succession::Expired,
        (Some(_), Takeover::OfStalled { .. }) => Succession::Stalled,
        (Some(_), Takeover::OfDead(_) | Takeover::IfFree) => Succession::Crashed,
    }
}

fn put_lease(
    conn: &Connection,
    request: &AcquireRequest,
    epoch: Epoch,
    previous: Option<&LeaseRecord>,
    succession: Succession,
    now: i64,
) -> Result<(), Fail> {
    let mut put = conn.prepare_cached(
        "INSERT OR REPLACE INTO leases (scope, holder_name, holder_instance, holder_session, holder_address, term,
             epoch, duration, acquired_at, renewed_at, expires_at, released, resource_version, transitions,
             succession, note)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?9 + ?8, 0, ?10, ?11, ?12, ?13)",
    )?;
    put.execute(params![
        request.scope.as_str(),
        request.holder.name,
        request.holder.instance,
        request.holder.session.0.as_bytes(),
        request.holder.address,
        request.term.0.as_bytes(),
        epoch.0 as i64,
        micros_of(request.duration),
        now,
        previous.map_or(1, |record| record.resource_version + 1) as i64,
        previous.map_or(0, |record| record.transitions + 1) as i64,
        succession.as_str(),
        request.note,
    ])?;
    Ok(())
}

fn begin_term(
    conn: &Connection,
    request: &AcquireRequest,
    epoch: Epoch,
    succession: Succession,
    now: i64,
) -> Result<(), Fail> {
    let mut begin = conn.prepare_cached(
        "INSERT INTO lease_terms (scope, epoch, term, holder_name, holder_instance, holder_session, holder_address,
             acquired_at, succession, note)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    begin.execute(params![
        request.scope.as_str(),
        epoch.0 as i64,
        request.term.0.as_bytes(),
        request.holder.name,
        request.holder.instance,
        request.holder.session.0.as_bytes(),
        request.holder.address,
        now,
        succession.as_str(),
        request.note,
    ])?;
    let mut forget = conn.prepare_cached(
        "DELETE FROM lease_terms WHERE scope = ?1 AND epoch <=
             (SELECT epoch FROM lease_terms WHERE scope = ?1 ORDER BY epoch DESC LIMIT 1 OFFSET ?2)",
    )?;
    forget.execute(params![request.scope.as_str(), HISTORY as i64])?;
    Ok(())
}

/// What was known before about when it ended stays.
fn end_term(conn: &Connection, scope: &Scope, epoch: Epoch, at: i64, how: Succession) -> Result<(), Fail> {
    let mut end = conn.prepare_cached(
        "UPDATE lease_terms SET ended_at = coalesce(ended_at, max(?3, acquired_at)), ending = ?4
         WHERE scope = ?1 AND epoch = ?2",
    )?;
    end.execute(params![scope.as_str(), epoch.0 as i64, at, how.as_str()])?;
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
    if !record.is_held() {
        return Ok(RenewOutcome::Lost(LossReason::Expired));
    }
    let mut update = conn.prepare_cached(
        "UPDATE leases SET renewed_at = ?2, duration = ?3, expires_at = ?2 + ?3, resource_version = resource_version + 1
         WHERE scope = ?1",
    )?;
    update.execute(params![claim.scope.as_str(), now, micros_of(claim.duration)])?;
    Ok(RenewOutcome::Renewed)
}

fn release(conn: &Connection, claim: &Claim, now: i64) -> Result<ReleaseOutcome, Fail> {
    let mut update = conn.prepare_cached(
        "UPDATE leases SET released = 1, resource_version = resource_version + 1
         WHERE scope = ?1 AND term = ?2 AND epoch = ?3 AND released = 0 AND expires_at > ?4",
    )?;
    let (scope, epoch) = (claim.scope.as_str(), claim.epoch.0 as i64);
    if update.execute(params![scope, claim.term.0.as_bytes(), epoch, now])? == 0 {
        return Ok(ReleaseOutcome::NotApplied);
    }
    end_term(conn, &claim.scope, claim.epoch, now, Succession::Released)?;
    Ok(ReleaseOutcome::Released)
}

fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}
