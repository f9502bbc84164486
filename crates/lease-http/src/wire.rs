//! The lease API's JSON. Unknown fields are passed over: a newer server may say more.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_lease::{
    AcquireRequest, Claim, Epoch, Holder, LeaseError, LeaseRecord, LossReason, PastTerm, RenewOutcome, Scope,
    Session, Succession, Takeover, Term,
};
use uuid::Uuid;

use crate::calls::strange;

#[derive(Debug, Serialize)]
pub struct AcquireBody<'a> {
    scope: &'a Scope,
    holder: HolderBody<'a>,
    duration_ms: u64,
    term: Term,
    #[serde(skip_serializing_if = "Option::is_none")]
    takeover: Option<TakeoverBody>,
    note: &'a str,
}

#[derive(Debug, Serialize)]
struct HolderBody<'a> {
    name: &'a str,
    instance: &'a str,
    session: Session,
    address: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum TakeoverBody {
    OfDead(Term),
    OfStalled { term: Term, resource_version: u64 },
}

impl<'a> AcquireBody<'a> {
    pub fn of(request: &'a AcquireRequest) -> Self {
        let Holder { name, instance, session, address } = &request.holder;
        Self {
            scope: &request.scope,
            holder: HolderBody { name, instance, session: *session, address: address.as_deref() },
            duration_ms: millis(request.duration),
            term: request.term,
            takeover: match request.takeover {
                Takeover::IfFree => None,
                Takeover::OfDead(term) => Some(TakeoverBody::OfDead(term)),
                Takeover::OfStalled { term, resource_version } => {
                    Some(TakeoverBody::OfStalled { term, resource_version })
                }
            },
            note: &request.note,
        }
    }
}

/// Rounded up: the server must not take for expired what the holder still trusts.
fn millis(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000) as u64
}

#[derive(Debug, Serialize)]
pub struct RenewBody<'a> {
    claims: Vec<ClaimBody<'a>>,
}

#[derive(Debug, Serialize)]
struct ClaimBody<'a> {
    scope: &'a Scope,
    term: Term,
    epoch: Epoch,
    duration_ms: u64,
}

impl<'a> RenewBody<'a> {
    pub fn of(claims: &'a [Claim]) -> Self {
        let claims = claims.iter().map(|claim| ClaimBody {
            scope: &claim.scope,
            term: claim.term,
            epoch: claim.epoch,
            duration_ms: millis(claim.duration),
        });
        Self { claims: claims.collect() }
    }
}

#[derive(Debug, Serialize)]
pub struct ReleaseBody<'a> {
    scope: &'a Scope,
    term: Term,
    epoch: Epoch,
}

impl<'a> ReleaseBody<'a> {
    pub fn of(claim: &'a Claim) -> Self {
        Self { scope: &claim.scope, term: claim.term, epoch: claim.epoch }
    }
}

#[derive(Debug, Deserialize)]
pub struct Acquired {
    pub lease: Lease,
}

#[derive(Debug, Deserialize)]
pub struct Held {
    pub held_by: Lease,
}

#[derive(Debug, Deserialize)]
pub struct Release {
    pub released: bool,
}

#[derive(Debug, Deserialize)]
pub struct Leases {
    pub leases: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
pub struct History {
    pub history: Vec<LeaseTerm>,
}

#[derive(Debug, Deserialize)]
pub struct Fence {
    pub epoch: u64,
    pub term: Uuid,
}

/// What an event of the watch is about.
#[derive(Debug, Deserialize)]
pub struct OfScope {
    pub scope: Scope,
}

/// What a refusal says.
#[derive(Debug, Deserialize)]
pub struct Refusal {
    pub detail: serde_json::Value,
}

#[derive(Debug, Deserialize)]
pub struct Lease {
    scope: Scope,
    holder: String,
    instance: String,
    session: Session,
    address: Option<String>,
    term: Term,
    epoch: Epoch,
    duration_ms: u64,
    remaining_ms: u64,
    acquired_at: Timestamp,
    renewed_at: Timestamp,
    released: bool,
    resource_version: u64,
    transitions: u64,
    succession: String,
    note: String,
}

impl TryFrom<Lease> for LeaseRecord {
    type Error = LeaseError;

    fn try_from(lease: Lease) -> Result<Self, LeaseError> {
        Ok(Self {
            scope: lease.scope,
            holder: Holder {
                name: lease.holder,
                instance: lease.instance,
                session: lease.session,
                address: lease.address,
            },
            term: lease.term,
            epoch: lease.epoch,
            duration: Duration::from_millis(lease.duration_ms),
            acquired_at: lease.acquired_at,
            renewed_at: lease.renewed_at,
            released: lease.released,
            remaining: Duration::from_millis(lease.remaining_ms),
            resource_version: lease.resource_version,
            transitions: lease.transitions,
            succession: succession(&lease.succession)?,
            note: lease.note,
        })
    }
}

#[derive(Debug, Deserialize)]
pub struct LeaseTerm {
    scope: Scope,
    epoch: Epoch,
    term: Term,
    holder: String,
    instance: String,
    session: Session,
    address: Option<String>,
    acquired_at: Timestamp,
    succession: String,
    note: String,
    ended_at: Option<Timestamp>,
    end: Option<String>,
}

impl TryFrom<LeaseTerm> for PastTerm {
    type Error = LeaseError;

    fn try_from(past: LeaseTerm) -> Result<Self, LeaseError> {
        Ok(Self {
            scope: past.scope,
            epoch: past.epoch,
            term: past.term,
            holder: Holder {
                name: past.holder,
                instance: past.instance,
                session: past.session,
                address: past.address,
            },
            acquired_at: past.acquired_at,
            succession: succession(&past.succession)?,
            note: past.note,
            ended_at: past.ended_at,
            end: past.end.as_deref().map(succession).transpose()?,
        })
    }
}

fn succession(name: &str) -> Result<Succession, LeaseError> {
    Succession::parse(name).ok_or_else(|| strange(&format!("{name:?} is no succession known here")))
}

#[derive(Debug, Deserialize)]
pub struct Renewals {
    outcomes: Vec<Renewal>,
}

#[derive(Debug, Deserialize)]
struct Renewal {
    scope: Scope,
    renewed: bool,
    lost: Option<Loss>,
}

#[derive(Debug, Deserialize)]
struct Loss {
    reason: String,
    holder: Option<String>,
    #[serde(default)]
    instance: String,
    session: Option<Session>,
    address: Option<String>,
    epoch: Option<Epoch>,
}

impl Renewals {
    /// One outcome for each claim, if the answer is to these claims at all.
    pub fn of(self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let asked = claims.iter().map(|claim| &claim.scope);
        if !asked.eq(self.outcomes.iter().map(|outcome| &outcome.scope)) {
            return Err(strange("it answers other claims than those that were sent"));
        }
        self.outcomes.into_iter().map(Renewal::outcome).collect()
    }
}

impl Renewal {
    fn outcome(self) -> Result<RenewOutcome, LeaseError> {
        let Some(lost) = self.lost.filter(|_| !self.renewed) else {
            return match self.renewed {
                true => Ok(RenewOutcome::Renewed),
                false => Ok(RenewOutcome::Unanswered),
            };
        };
        Ok(RenewOutcome::Lost(match (lost.reason.as_str(), lost.holder, lost.session, lost.epoch) {
            ("superseded", Some(name), Some(session), Some(epoch)) => LossReason::Superseded {
                holder: Holder { name, instance: lost.instance, session, address: lost.address },
                epoch,
            },
            ("gone", ..) => LossReason::Gone,
            // Whatever else a newer server may call it: this term is over.
            _ => LossReason::Expired,
        }))
    }
}
