//! Leases and fences. The database's clock decides (`clock_timestamp()`: `now()` stands still inside a
//! transaction).
//!
//! Locks are taken in one order, lease row before fence row. Writers touch only the fence (in share mode)
//! and renewals only leases, so a takeover that waits for a writer in flight holds up nobody's renewal.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use futures::try_join;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, Holder, LeaseError, LeaseRecord, LeaseStore, LossReason,
    ReleaseOutcome, RenewOutcome, Scope, Takeover, Term,
};
use tenure_store::StoreError;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::PostgresStore;
use crate::rows::{self, Cells};
use crate::session::{READ_WRITE, Session};

macro_rules! lease_columns {
    () => {
        "l.scope, l.holder_name, l.holder_instance, l.holder_address, l.term, l.epoch, l.duration_ms, \
         l.acquired_at, l.renewed_at, l.released, l.resource_version, l.transitions, l.note, \
         extract(epoch FROM l.expires_at - clock_timestamp())::float8"
    };
}

const LIST: &str = concat!("SELECT ", lease_columns!(), " FROM leases l ORDER BY l.scope");
/// A row to lock, so that candidates for a lease that nobody ever held meet each other. It never outlives
/// its transaction as it is: whoever made it goes on to take the lease.
const MAKE_LOCKABLE: &str = "INSERT INTO leases VALUES
    ($1, '', '', NULL, '00000000-0000-0000-0000-000000000000', 0, 0, '-infinity', '-infinity', '-infinity',
     true, 0, -1, '')
    ON CONFLICT DO NOTHING";
const LOCK: &str = "SELECT l.term, l.epoch, NOT l.released AND l.expires_at > clock_timestamp()
    FROM leases l WHERE l.scope = $1 FOR UPDATE";
const READ: &str = concat!("SELECT ", lease_columns!(), " FROM leases l WHERE l.scope = $1");
/// Waits for every privileged transaction in flight. The floor is the larger of what fence and lease
/// remember, so neither a deleted lease row nor a restored fence brings an epoch back.
const RAISE_FENCE: &str = "INSERT INTO fences (scope, epoch, term) VALUES ($1, $3::bigint + 1, $2)
    ON CONFLICT (scope) DO UPDATE SET epoch = greatest(fences.epoch + 1, excluded.epoch), term = excluded.term
    RETURNING epoch";
const TAKE: &str = concat!(
    "WITH moment AS (SELECT clock_timestamp() AS now)
    UPDATE leases l SET holder_name = $2, holder_instance = $3, holder_address = $4, term = $5, epoch = $6,
        duration_ms = $7::bigint, acquired_at = moment.now, renewed_at = moment.now,
        expires_at = moment.now + $7::bigint * interval '1 millisecond', released = false,
        resource_version = l.resource_version + 1, transitions = l.transitions + 1, note = $8
    FROM moment WHERE l.scope = $1 RETURNING ",
    lease_columns!()
);
const RENEW: &str = "UPDATE leases l SET renewed_at = clock_timestamp(), duration_ms = c.duration_ms,
        expires_at = clock_timestamp() + c.duration_ms * interval '1 millisecond',
        resource_version = l.resource_version + 1
    FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::bigint[]) AS c(scope, term, epoch, duration_ms)
    WHERE l.scope = c.scope AND l.term = c.term AND l.epoch = c.epoch
        AND NOT l.released AND l.expires_at > clock_timestamp()
    RETURNING l.scope";
const LOOK_AT: &str = concat!("SELECT ", lease_columns!(), " FROM leases l WHERE l.scope = ANY($1)");
const RELEASE: &str = "UPDATE leases l SET released = true, resource_version = l.resource_version + 1
    WHERE l.scope = $1 AND l.term = $2 AND l.epoch = $3 AND NOT l.released";

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let session = Session::begin(&self.leases, "acquiring a lease").await.map_err(lost)?;
        let outcome = acquire(&session, request).await;
        session.finish(outcome).await.map_err(lost)
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let session = Session::borrow(&self.leases, "renewing leases").await.map_err(lost)?;
        let outcome = renew(&session, claims).await;
        session.finish(outcome).await.map_err(lost)
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let session = Session::begin(&self.leases, "releasing a lease").await.map_err(lost)?;
        let (scope, epoch) = (claim.scope.as_str(), claim.epoch.0 as i64);
        let released = session.execute(RELEASE, &[&scope, &claim.term.0, &epoch]).await;
        let outcome = released.map(|rows| match rows {
            0 => ReleaseOutcome::NotApplied,
            _ => ReleaseOutcome::Released,
        });
        session.finish(outcome).await.map_err(lost)
    }

    async fn list_leases(&self) -> Result<Vec<LeaseRecord>, LeaseError> {
        let session = Session::snapshot(&self.pool, "listing leases").await.map_err(lost)?;
        let outcome = session.rows(LIST, &[]).await.and_then(|rows| rows::all(&rows, record));
        session.finish(outcome).await.map_err(lost)
    }
}

async fn acquire(session: &Session, request: &AcquireRequest) -> Result<AcquireOutcome, StoreError> {
    let scope = request.scope.as_str();
    session.execute(MAKE_LOCKABLE, &[&scope]).await?;
    let row = session.row(LOCK, &[&scope]).await?.expect("the row was made or was there");
    let mut cells = Cells::of(&row);
    let (term, epoch, held): (Uuid, i64, bool) = (cells.take()?, cells.take()?, cells.take()?);
    let dead = request.takeover == Takeover::OfDead(Term(term));
    if held && term == request.term.0 {
        return Ok(AcquireOutcome::Granted(read(session, scope).await?));
    }
    if held && !dead {
        return Ok(AcquireOutcome::Held(read(session, scope).await?));
    }
    let fence = session.row(RAISE_FENCE, &[&scope, &request.term.0, &epoch]).await?;
    let epoch: i64 = fence.expect("an upsert returns its row").get(0);
    let holder = &request.holder;
    let taken = session
        .row(
            TAKE,
            &[
                &scope,
                &rows::storable(&holder.name),
                &rows::storable(&holder.instance),
                &holder.address.as_deref().map(rows::storable),
                &request.term.0,
                &epoch,
                &millis(request.duration),
                &rows::storable(&request.note),
            ],
        )
        .await?;
    let taken = taken.expect("the row is locked");
    Ok(AcquireOutcome::Granted(record(&mut Cells::of(&taken))?))
}

async fn read(session: &Session, scope: &str) -> Result<LeaseRecord, StoreError> {
    let row = session.row(READ, &[&scope]).await?.expect("the row is locked");
    record(&mut Cells::of(&row))
}

async fn renew(session: &Session, claims: &[Claim]) -> Result<Vec<RenewOutcome>, StoreError> {
    let scopes: Vec<&str> = claims.iter().map(|claim| claim.scope.as_str()).collect();
    let terms: Vec<Uuid> = claims.iter().map(|claim| claim.term.0).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch.0 as i64).collect();
    let durations: Vec<i64> = claims.iter().map(|claim| millis(claim.duration)).collect();
    session.prepare(&[RENEW]).await?;
    let columns: [&(dyn ToSql + Sync); 4] = [&scopes, &terms, &epochs, &durations];
    let (_, renewed) = try_join!(session.batch(READ_WRITE), session.rows(RENEW, &columns))?;
    let renewed: HashSet<String> = rows::all(&renewed, |cells| cells.take())?.into_iter().collect();
    let lost: Vec<&str> = scopes.iter().copied().filter(|scope| !renewed.contains(*scope)).collect();
    let seen = match lost[..] {
        [] => vec![],
        _ => rows::all(&session.rows(LOOK_AT, &[&lost]).await?, record)?,
    };
    let seen: HashMap<&str, &LeaseRecord> =
        seen.iter().map(|record| (record.scope.as_str(), record)).collect();
    let outcome = |claim: &Claim| {
        if renewed.contains(claim.scope.as_str()) {
            return RenewOutcome::Renewed;
        }
        RenewOutcome::Lost(match seen.get(claim.scope.as_str()) {
            None => LossReason::Gone,
            Some(record) if record.term == claim.term && record.epoch == claim.epoch => LossReason::Expired,
            Some(record) => LossReason::Superseded { holder: record.holder.clone(), epoch: record.epoch },
        })
    };
    Ok(claims.iter().map(outcome).collect())
}

fn record(cells: &mut Cells<'_>) -> Result<LeaseRecord, StoreError> {
    let scope = Scope::new(cells.take::<&str>()?);
    let holder = Holder { name: cells.take()?, instance: cells.take()?, address: cells.take()? };
    let (term, epoch) = (Term(cells.take()?), Epoch(cells.big_number()?));
    let duration = Duration::from_millis(cells.big_number()?);
    let (acquired_at, renewed_at, released) = (cells.take()?, cells.take()?, cells.take()?);
    let (resource_version, transitions) = (cells.big_number()?, cells.big_number()?);
    let (note, seconds_left): (String, f64) = (cells.take()?, cells.take()?);
    let remaining = match released {
        true => Duration::ZERO,
        false => Duration::try_from_secs_f64(seconds_left.max(0.0)).unwrap_or(Duration::ZERO),
    };
    Ok(LeaseRecord {
        scope,
        holder,
        term,
        epoch,
        duration,
        acquired_at,
        renewed_at,
        released,
        // The two readings of the clock are a moment apart; a lease never has more left than it lasts.
        remaining: remaining.min(duration),
        resource_version,
        transitions,
        note,
    })
}

fn millis(duration: Duration) -> i64 {
    duration.as_millis().min(i64::MAX as u128) as i64
}

fn lost(error: StoreError) -> LeaseError {
    match error {
        StoreError::Unknown { .. } => LeaseError::Ambiguous(error.into()),
        other => LeaseError::Unavailable(other.into()),
    }
}
