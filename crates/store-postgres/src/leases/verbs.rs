//! The verbs of leases and fences, in SQL. The database's clock decides (`clock_timestamp()`: `now()` stands
//! still inside a transaction).
//!
//! What each costs on a connection that is open: acquire, release, install_fence and every read one round
//! trip; renew one, or two if any claim was not renewed at once.
//!
//! Locks are taken in one order, lease row before fence row. Writers touch only the fence (in share mode),
//! so a takeover that waits for a writer in flight holds one lease row and nothing else.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use deadpool_postgres::Pool;
use futures::{join, try_join};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, HISTORY, Hint, Holder, LeaseRecord, LossReason, PastTerm,
    ReleaseOutcome, RenewOutcome, Scope, Session as Life, Succession, Takeover, Term,
};
use tenure_store::StoreError;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::EpochMint;
use super::hints::payload;
use crate::errors;
use crate::rows::{self, Cells};
use crate::session::{CLOSE, Params, Session};

/// Longer than the locks of an acquire are waited for (2 s, twice), shorter than any lease that is worth it.
const PATIENCE: Duration = Duration::from_secs(5);

macro_rules! lease_columns {
    () => {
        "l.scope, l.holder_name, l.holder_instance, l.holder_session, l.holder_address, l.term, l.epoch, \
         l.duration_ms, l.acquired_at, l.renewed_at, l.released, l.resource_version, l.transitions, \
         l.succession, l.note, extract(epoch FROM l.expires_at - clock_timestamp())::float8"
    };
}

macro_rules! term_columns {
    () => {
        "t.scope, t.epoch, t.term, t.holder_name, t.holder_instance, t.holder_session, t.holder_address, \
         t.acquired_at, t.succession, t.note, t.ended_at, t.ended_how"
    };
}

/// The next epoch of scope `$1`, above everything that lease (`$floor`), fence and history remember: neither a
/// deleted row nor one from a backup brings an epoch back. `$clock` says whether it is at least the time too.
/// The fence itself is compared when its row is locked.
macro_rules! minted {
    ($floor:literal, $clock:literal) => {
        concat!(
            "greatest(",
            $floor,
            " + 1, (SELECT max(past.epoch) + 1 FROM lease_terms past WHERE past.scope = $1),
                CASE WHEN ",
            $clock,
            "::boolean THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint END)"
        )
    };
}

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Makes the row if nobody ever held this lease, locks it otherwise: candidates meet here. A row that is made
/// never outlives its transaction as it is, because whoever made it goes on to take the lease.
pub(super) const MAKE_OR_LOCK: &str =
    "INSERT INTO leases (scope, holder_name, holder_instance, term, epoch, duration_ms, acquired_at, renewed_at,
        expires_at, released, resource_version, transitions, note)
    VALUES ($1, '', '', '00000000-0000-0000-0000-000000000000', 0, 0, '-infinity', '-infinity', '-infinity',
        true, 0, -1, '')
    ON CONFLICT (scope) DO UPDATE SET note = excluded.note WHERE false";
/// Decides, raises the fence, takes the lease, closes and opens the history and tells the others; or says who
/// holds it. Its snapshot is younger than the lock. `$3` and `$4` are what the takeover covers, in the words of
/// [`Takeover::covers`]. Raising the fence waits for every privileged transaction in flight, so the lease counts
/// from after that.
pub(super) const TAKE: &str = concat!(
    "WITH seen AS MATERIALIZED (
        SELECT l.*, clock_timestamp() AS seen_at FROM leases l WHERE l.scope = $1
    ), free AS MATERIALIZED (
        SELECT s.*, NOT s.released AND s.expires_at > s.seen_at AS held FROM seen s
        WHERE s.released OR s.expires_at <= s.seen_at
            OR s.term <> $2 AND s.term = $3::uuid
                AND ($4::bigint IS NULL OR s.resource_version = $4::bigint)
    ), fence AS (
        INSERT INTO fences (scope, epoch, term) SELECT f.scope, ",
    minted!("f.epoch", "$11"),
    ", $2 FROM free f
        ON CONFLICT (scope) DO UPDATE
            SET epoch = greatest(fences.epoch + 1, excluded.epoch), term = excluded.term
        RETURNING epoch, clock_timestamp() AS raised_at
    ), taken AS (
        UPDATE leases l SET term = $2, epoch = fence.epoch, holder_name = $5, holder_instance = $6,
            holder_session = $7, holder_address = $8, duration_ms = $9::bigint,
            acquired_at = fence.raised_at, renewed_at = fence.raised_at,
            expires_at = fence.raised_at + $9::bigint * interval '1 millisecond', released = false,
            resource_version = l.resource_version + 1, transitions = l.transitions + 1, note = $10,
            succession = CASE
                WHEN l.transitions < 0 THEN 'first'
                WHEN f.held AND $4::bigint IS NOT NULL THEN 'stalled'
                WHEN f.held THEN 'crashed'
                WHEN f.released THEN 'released'
                ELSE 'expired' END
        FROM free f, fence WHERE l.scope = f.scope RETURNING l.*
    ), ended AS (
        UPDATE lease_terms t SET ended_how = n.succession,
            ended_at = coalesce(t.ended_at, least(f.expires_at, n.acquired_at))
        FROM free f, taken n WHERE t.scope = f.scope AND t.epoch = f.epoch
    ), forgotten AS (
        DELETE FROM lease_terms t USING taken n WHERE t.scope = n.scope AND t.epoch <= (
            SELECT o.epoch FROM lease_terms o WHERE o.scope = $1 ORDER BY o.epoch DESC
            OFFSET $12::bigint - 1 LIMIT 1)
    ), begun AS (
        INSERT INTO lease_terms (scope, epoch, term, holder_name, holder_instance, holder_session,
            holder_address, acquired_at, succession, note)
        SELECT scope, epoch, term, holder_name, holder_instance, holder_session, holder_address,
            acquired_at, succession, note FROM taken
    ), told AS MATERIALIZED (
        SELECT pg_notify('tenure_lease', $13) FROM taken
    )
    SELECT ",
    lease_columns!(),
    " FROM taken l, told
    UNION ALL SELECT ",
    lease_columns!(),
    " FROM seen l WHERE NOT EXISTS (SELECT FROM free)"
);

/// What another transaction has locked is left for a second look, so that one lease that is being taken over
/// does not hold up the renewal of a thousand others.
macro_rules! renew {
    ($wait:literal) => {
        concat!(
            "WITH ours AS MATERIALIZED (
                SELECT l.scope, c.duration_ms, c.position FROM leases l
                JOIN unnest($1::text[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[])
                    AS c(scope, term, epoch, duration_ms, position)
                    ON l.scope = c.scope AND l.term = c.term AND l.epoch = c.epoch
                WHERE NOT l.released AND l.expires_at > clock_timestamp()
                FOR NO KEY UPDATE OF l ",
            $wait,
            ")
            UPDATE leases l SET renewed_at = clock_timestamp(), duration_ms = ours.duration_ms,
                expires_at = clock_timestamp() + ours.duration_ms * interval '1 millisecond',
                resource_version = l.resource_version + 1
            FROM ours WHERE l.scope = ours.scope AND l.expires_at > clock_timestamp()
            RETURNING ours.position"
        )
    };
}
pub(super) const RENEW: &str = renew!("SKIP LOCKED");
const RENEW_LOCKED: &str = renew!("");
const LOOK_AT: &str = concat!("SELECT ", lease_columns!(), " FROM leases l WHERE l.scope = ANY($1)");

pub(super) const RELEASE: &str = "WITH given AS (
        UPDATE leases l SET released = true, resource_version = l.resource_version + 1
        WHERE l.scope = $1 AND l.term = $2 AND l.epoch = $3
            AND NOT l.released AND l.expires_at > clock_timestamp()
        RETURNING l.scope, l.epoch
    ), ended AS (
        UPDATE lease_terms t SET ended_at = clock_timestamp(), ended_how = 'released'
        FROM given g WHERE t.scope = g.scope AND t.epoch = g.epoch
    ), told AS MATERIALIZED (
        SELECT pg_notify('tenure_lease', $4) FROM given
    )
    SELECT count(*) FROM told";

const FIND: &str = concat!("SELECT ", lease_columns!(), " FROM leases l WHERE l.scope = $1");
const LIST_FROM: &str =
    concat!("SELECT ", lease_columns!(), " FROM leases l WHERE l.scope >= $1 ORDER BY l.scope");
const LIST_BETWEEN: &str = concat!(
    "SELECT ",
    lease_columns!(),
    " FROM leases l WHERE l.scope >= $1 AND l.scope < $2 ORDER BY l.scope"
);
const PAST: &str = concat!(
    "SELECT ",
    term_columns!(),
    " FROM lease_terms t WHERE t.scope = $1 ORDER BY t.epoch DESC LIMIT $2"
);

/// The same term asking again changes nothing, but waits all the same: the answer means that no write of an
/// older epoch is in flight.
const INSTALL_FENCE: &str = concat!(
    "INSERT INTO fences (scope, epoch, term) SELECT $1, ",
    minted!("$3::bigint", "$4"),
    ", $2
    ON CONFLICT (scope) DO UPDATE SET term = excluded.term, epoch = CASE
        WHEN fences.term = excluded.term THEN fences.epoch
        ELSE greatest(fences.epoch + 1, excluded.epoch) END
    RETURNING epoch"
);
const FENCE: &str = "SELECT f.epoch, f.term FROM fences f WHERE f.scope = $1";

/// Fails where the tables of that name are not ours.
pub(super) const PROBES: [&str; 3] = [FIND, PAST, FENCE];

/// BEGIN, lock, take and COMMIT leave together. An answer that is lost is repaired by asking again.
pub(super) async fn acquire(
    pool: &Pool,
    request: &AcquireRequest,
    mint: EpochMint,
) -> Result<AcquireOutcome, StoreError> {
    let session = Session::borrow(pool, "acquiring a lease").await?.within(PATIENCE).committing();
    let (scope, holder) = (request.scope.as_str(), &request.holder);
    let (from, at_version) = match request.takeover {
        Takeover::IfFree => (None, None),
        Takeover::OfDead(term) => (Some(term.0), None),
        Takeover::OfStalled { term, resource_version } => (Some(term.0), Some(as_stored(resource_version))),
    };
    let take: [&(dyn ToSql + Sync); 13] = [
        &scope,
        &request.term.0,
        &from,
        &at_version,
        &rows::storable(&holder.name),
        &rows::storable(&holder.instance),
        &holder.session.0,
        &holder.address.as_deref().map(rows::storable),
        &millis(request.duration),
        &rows::storable(&request.note),
        &mint.by_clock(),
        &(HISTORY as i64),
        &payload(&Hint::Changed(request.scope.clone())),
    ];
    let lock: [&(dyn ToSql + Sync); 1] = [&scope];
    session.prepare(&[MAKE_OR_LOCK, TAKE]).await?;
    // The order of sending: `try_join!` polls from top to bottom. Where a statement fails, the COMMIT behind it
    // rolls back.
    let (_, _, rows, _) = try_join!(
        session.batch(BEGIN),
        session.execute(MAKE_OR_LOCK, &lock),
        session.rows(TAKE, &take),
        session.batch(CLOSE),
    )?;
    let nothing = || errors::corrupt("the lease", "the row that was locked just now is not to be seen");
    let record = record(&mut Cells::of(rows.first().ok_or_else(nothing)?))?;
    session.give_back();
    Ok(match record.term == request.term {
        true => AcquireOutcome::Granted(record),
        false => AcquireOutcome::Held(record),
    })
}

pub(super) async fn renew(pool: &Pool, claims: &[Claim]) -> Result<Vec<RenewOutcome>, StoreError> {
    if claims.is_empty() {
        return Ok(vec![]);
    }
    let session = Session::borrow(pool, "renewing leases").await?.within(PATIENCE).committing();
    let mut renewed = renewed_of(&session, RENEW, &ClaimColumns::of(claims, |_| true)).await?;
    let rest = ClaimColumns::of(claims, |position| !renewed.contains(&position));
    let (mut seen, mut all_answered) = (vec![], true);
    if rest.scopes.is_empty() {
        session.give_back();
    } else {
        // What was renewed above is committed and stays so, whatever becomes of the rest: a row that somebody has
        // locked for long must not cost the others their leases.
        match renew_the_rest(&session, &rest).await {
            Ok((late, looked)) => {
                all_answered = late.is_some();
                renewed.extend(late.into_iter().flatten());
                seen = looked;
                if all_answered {
                    session.give_back();
                }
            }
            Err(error) if renewed.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "some leases could not be renewed");
                return Ok((0..)
                    .zip(claims)
                    .map(|(position, _)| renewed_or_unanswered(&renewed, position))
                    .collect());
            }
        }
    }
    let seen: HashMap<&str, &LeaseRecord> =
        seen.iter().map(|record| (record.scope.as_str(), record)).collect();
    let outcome = |(position, claim): (i64, &Claim)| {
        if renewed.contains(&position) {
            return RenewOutcome::Renewed;
        }
        RenewOutcome::Lost(match seen.get(claim.scope.as_str()) {
            None => LossReason::Gone,
            Some(record) if record.term == claim.term && record.epoch == claim.epoch => match all_answered {
                true => LossReason::Expired,
                false => return RenewOutcome::Unanswered,
            },
            Some(record) => LossReason::Superseded { holder: record.holder.clone(), epoch: record.epoch },
        })
    };
    Ok((0..).zip(claims).map(outcome).collect())
}

fn renewed_or_unanswered(renewed: &HashSet<i64>, position: i64) -> RenewOutcome {
    match renewed.contains(&position) {
        true => RenewOutcome::Renewed,
        false => RenewOutcome::Unanswered,
    }
}

/// Waits for rows that are locked. `None` for the renewed ones: one of them stayed locked for too long.
async fn renew_the_rest(
    session: &Session,
    rest: &ClaimColumns<'_>,
) -> Result<(Option<HashSet<i64>>, Vec<LeaseRecord>), StoreError> {
    session.prepare(&[RENEW_LOCKED, LOOK_AT]).await?;
    let params: [&(dyn ToSql + Sync); 1] = [&rest.scopes];
    let (late, looked) = join!(renewed_of(session, RENEW_LOCKED, rest), session.rows(LOOK_AT, &params));
    let late = late.inspect_err(|error| tracing::warn!(%error, "a lease stays locked")).ok();
    Ok((late, rows::all(&looked?, record)?))
}

#[derive(Default)]
struct ClaimColumns<'a> {
    scopes: Vec<&'a str>,
    terms: Vec<Uuid>,
    epochs: Vec<i64>,
    durations: Vec<i64>,
    positions: Vec<i64>,
}

impl<'a> ClaimColumns<'a> {
    fn of(claims: &'a [Claim], wanted: impl Fn(i64) -> bool) -> Self {
        let mut columns = Self::default();
        for (position, claim) in (0..).zip(claims).filter(|(position, _)| wanted(*position)) {
            columns.scopes.push(claim.scope.as_str());
            columns.terms.push(claim.term.0);
            columns.epochs.push(as_stored(claim.epoch.0));
            columns.durations.push(millis(claim.duration));
            columns.positions.push(position);
        }
        columns
    }
}

async fn renewed_of(
    session: &Session,
    sql: &'static str,
    claims: &ClaimColumns<'_>,
) -> Result<HashSet<i64>, StoreError> {
    let ClaimColumns { scopes, terms, epochs, durations, positions } = claims;
    let renewed = session.rows(sql, &[scopes, terms, epochs, durations, positions]).await?;
    Ok(rows::all(&renewed, |cells| cells.take())?.into_iter().collect())
}

pub(super) async fn release(pool: &Pool, claim: &Claim) -> Result<ReleaseOutcome, StoreError> {
    let (scope, epoch) = (claim.scope.as_str(), as_stored(claim.epoch.0));
    let told = payload(&Hint::Changed(claim.scope.clone()));
    let given = write(pool, "releasing a lease", RELEASE, &[&scope, &claim.term.0, &epoch, &told]).await?;
    Ok(match Cells::of(&given).take::<i64>()? {
        0 => ReleaseOutcome::NotApplied,
        _ => ReleaseOutcome::Released,
    })
}

pub(super) async fn install_fence(
    pool: &Pool,
    scope: &Scope,
    term: Term,
    floor: Epoch,
    mint: EpochMint,
) -> Result<Epoch, StoreError> {
    let params: Params<'_> = &[&scope.as_str(), &term.0, &as_stored(floor.0), &mint.by_clock()];
    let row = write(pool, "installing a fence", INSTALL_FENCE, params).await?;
    Ok(Epoch(Cells::of(&row).big_number()?))
}

pub(super) async fn fence(pool: &Pool, scope: &Scope) -> Result<Option<(Epoch, Term)>, StoreError> {
    let found = read(pool, "reading a fence", FENCE, &[&scope.as_str()]).await?;
    let fences = rows::all(&found, |cells| Ok((Epoch(cells.big_number()?), Term(cells.take()?))))?;
    Ok(fences.into_iter().next())
}

pub(super) async fn find(pool: &Pool, scope: &Scope) -> Result<Option<LeaseRecord>, StoreError> {
    let found = read(pool, "reading a lease", FIND, &[&scope.as_str()]).await?;
    Ok(rows::all(&found, record)?.into_iter().next())
}

pub(super) async fn list(pool: &Pool, under: &str) -> Result<Vec<LeaseRecord>, StoreError> {
    const DOING: &str = "listing leases";
    if under.contains('\0') {
        return Ok(vec![]); // no text in Postgres holds one
    }
    let found = match after_all_under(under) {
        Some(end) => read(pool, DOING, LIST_BETWEEN, &[&under, &end]).await?,
        None => read(pool, DOING, LIST_FROM, &[&under]).await?,
    };
    rows::all(&found, record)
}

pub(super) async fn history(pool: &Pool, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = read(pool, "reading a lease's history", PAST, &[&scope.as_str(), &limit]).await?;
    rows::all(&found, past_term)
}

/// The smallest text that is greater than all that begin with `prefix`, in order of code points, which is the
/// order of bytes in UTF-8. There is none after the greatest character.
fn after_all_under(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // The range knows that surrogates are no characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

/// One statement that commits by itself and answers with one row.
async fn write(
    pool: &Pool,
    doing: &'static str,
    sql: &'static str,
    params: Params<'_>,
) -> Result<tokio_postgres::Row, StoreError> {
    let session = Session::borrow(pool, doing).await?.within(PATIENCE).committing();
    let row = session.row(sql, params).await?.expect("the statement always has a row to show");
    session.give_back();
    Ok(row)
}

async fn read(
    pool: &Pool,
    doing: &'static str,
    sql: &'static str,
    params: Params<'_>,
) -> Result<Vec<tokio_postgres::Row>, StoreError> {
    let session = Session::borrow(pool, doing).await?.within(PATIENCE);
    let rows = session.rows(sql, params).await?;
    session.give_back();
    Ok(rows)
}

fn record(cells: &mut Cells<'_>) -> Result<LeaseRecord, StoreError> {
    let (scope, holder) = (Scope::new(cells.take::<&str>()?), holder(cells)?);
    let (term, epoch) = (Term(cells.take()?), Epoch(cells.big_number()?));
    let duration = Duration::from_millis(cells.big_number()?);
    let (acquired_at, renewed_at, released) = (cells.take()?, cells.take()?, cells.take()?);
    let (resource_version, transitions) = (cells.big_number()?, cells.big_number()?);
    let succession = cells.parsed("a succession", Succession::parse)?;
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
        remaining: remaining.min(duration),
        resource_version,
        transitions,
        succession,
        note,
    })
}

fn past_term(cells: &mut Cells<'_>) -> Result<PastTerm, StoreError> {
    let succession = |name: &str| {
        Succession::parse(name)
            .ok_or_else(|| errors::corrupt("a succession", format!("{name:?} is unknown to this release")))
    };
    Ok(PastTerm {
        scope: Scope::new(cells.take::<&str>()?),
        epoch: Epoch(cells.big_number()?),
        term: Term(cells.take()?),
        holder: holder(cells)?,
        acquired_at: cells.take()?,
        succession: succession(cells.take()?)?,
        note: cells.take()?,
        ended_at: cells.take()?,
        end: cells.take::<Option<&str>>()?.map(succession).transpose()?,
    })
}

fn holder(cells: &mut Cells<'_>) -> Result<Holder, StoreError> {
    Ok(Holder {
        name: cells.take()?,
        instance: cells.take()?,
        session: Life(cells.take()?),
        address: cells.take()?,
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Postgres has no unsigned integers. What is beyond its range names nothing it holds.
fn as_stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_character_in_order_of_code_points() {
        let cases = [("", None), ("a", Some("b")), ("a/", Some("a0")), ("é", Some("ê"))];
        for (prefix, end) in cases {
            assert_eq!(after_all_under(prefix).as_deref(), end, "{prefix:?}");
        }
        assert_eq!(after_all_under("a\u{d7ff}").as_deref(), Some("a\u{e000}"), "over the surrogates");
        assert_eq!(after_all_under("a\u{10ffff}\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_all_under("\u{10ffff}"), None);
    }
}
