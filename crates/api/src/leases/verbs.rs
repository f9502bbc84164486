//! The three verbs. Each is one call of the lease store; an acquire brings its fence along.

use std::future::Future;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Epoch, ExpiryClock, Holder, LeaseError, LeaseRecord, LeaseStore,
    ReleaseOutcome, RenewOutcome, Session, Takeover, Term, acquire_fenced,
};
use utoipa::ToSchema;
use uuid::Uuid;

use super::shapes::{Lease, Loss};
use super::{LeaseApi, check};
use crate::error::{ApiError, ApiResult, ErrorBody, Refusals};
use crate::input::JsonBody;

/// As long as a holder of the usual 15 s lease waits, and well below the limit of all requests, which answers with
/// less care.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// One process may hold a thousand scopes; ten of them may share a connection.
const MOST_CLAIMS: usize = 10_000;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// What to lead: `controller/leader`. May be left out when `component` is given.
    scope: Option<String>,
    holder: HolderBody,
    /// The type of component. Without a scope, its leader's: `COMPONENT/leader`.
    component: Option<String>,
    /// How long the lease lasts without a renewal: 100 ms to 24 h. This or `duration`.
    duration_ms: Option<u64>,
    /// The same as people write it: `15s`.
    duration: Option<String>,
    /// Made by you, fresh for every campaign, so that asking twice is asking once. Made here if absent; then a lost
    /// answer leaves you without the lease until it runs out.
    term: Option<Uuid>,
    takeover: Option<TakeoverBody>,
    /// For people; at most 4096 bytes.
    #[serde(default)]
    note: String,
}

/// Who asks. Only the term decides; this is for people, and for finding the holder.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseHolder)]
pub struct HolderBody {
    /// `host:port`, or whatever you call yourself.
    name: String,
    /// Stable across your restarts.
    #[serde(default)]
    instance: String,
    /// Fresh for every start of your process, and the same for all it takes: members are matched with what they
    /// hold by it.
    session: Option<Uuid>,
    /// Where others reach you.
    address: Option<String>,
}

/// Takes a lease although it is held. Being wrong costs the other holder its term and nothing else, as long as
/// every effect in the scope is fenced.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = LeaseTakeover)]
pub enum TakeoverBody {
    /// From this term, because its process is known to be gone.
    OfDead(Uuid),
    /// From this term if its record still has this version: nobody has renewed it for longer than it lasts.
    OfStalled { term: Uuid, resource_version: u64 },
}

impl TakeoverBody {
    /// Only where renewals move the version, and the clock can be set back, does an unmoved version say anything.
    fn allowed(self, leases: &dyn LeaseStore) -> Takeover {
        match self {
            Self::OfDead(term) => Takeover::OfDead(Term(term)),
            Self::OfStalled { .. } if leases.capabilities().clock != ExpiryClock::Store => Takeover::IfFree,
            Self::OfStalled { term, resource_version } => {
                Takeover::OfStalled { term: Term(term), resource_version }
            }
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Acquired {
    lease: Lease,
    /// Count from when you *sent* this request, and keep a margin.
    valid_for_ms: u64,
}

/// The loser's answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct Held {
    /// Names the holder, its epoch and the time left.
    detail: String,
    /// As it is held. Try again after its `remaining_ms`. Not under `lease`, so that a client that has not looked at
    /// the status does not take it for its own.
    held_by: Lease,
}

/// Become the leader of a scope, or learn who is.
///
/// Takes a lease that is absent, released or expired, and installs its epoch as the scope's fence. The same term
/// asking again gets the same answer. Validity counts from when you *sent* the request that was granted.
#[utoipa::path(post, path = "/api/leases/acquire", tag = "leases", request_body = AcquireBody, responses(
    (status = 200, description = "It is yours", body = Acquired),
    (status = 409, description = "It is somebody else's", body = Held),
    (status = 400, description = "The lease store refuses", body = ErrorBody),
    (status = 401, description = "No token, or a wrong one", body = ErrorBody),
    (status = 403, description = "The scope belongs to the server itself", body = ErrorBody),
    (status = 422, description = "A field cannot be used; it is named", body = ErrorBody),
    (status = 503, description = "The lease store cannot be reached; nothing was changed", body = ErrorBody),
    (status = 504, description = "The answer was lost, with `ambiguous: true`: repeat it with the same term",
        body = ErrorBody),
))]
pub async fn acquire(
    State(api): State<LeaseApi>,
    JsonBody(body): JsonBody<AcquireBody>,
) -> ApiResult<Response> {
    let request = body.checked(&api)?;
    match in_time(acquire_fenced(&*api.leases, &*api.fences, &request)).await? {
        AcquireOutcome::Granted(record) => {
            let valid_for = record.remaining.min(record.duration);
            let valid_for_ms = valid_for.as_millis() as u64;
            Ok(Json(Acquired { lease: record.into(), valid_for_ms }).into_response())
        }
        AcquireOutcome::Held(record) => {
            let detail = held_text(&record);
            Ok((StatusCode::CONFLICT, Json(Held { detail, held_by: record.into() })).into_response())
        }
        AcquireOutcome::Won(record) => {
            unreachable!("{} was answered as won without its fence", record.scope)
        }
    }
}

fn held_text(record: &LeaseRecord) -> String {
    let LeaseRecord { scope, holder, epoch, remaining, .. } = record;
    let left = remaining.as_millis().max(1);
    format!(
        "{scope} is held by {holder} at epoch {}, for another {left} ms unless it is renewed. Do nothing in its \
         name, and try again then.",
        epoch.0
    )
}

impl AcquireBody {
    fn checked(self, api: &LeaseApi) -> ApiResult<AcquireRequest> {
        let fresh = || api.entropy.uuid(api.clock.now());
        let HolderBody { name, instance, session, address } = self.holder;
        check::name("holder.name", &name)?;
        if !instance.is_empty() {
            check::name("holder.instance", &instance)?;
        }
        if let Some(address) = &address {
            check::name("holder.address", address)?;
        }
        check::note(&self.note)?;
        Ok(AcquireRequest {
            scope: check::contested(self.scope.as_deref(), self.component.as_deref())?,
            holder: Holder { name, instance, session: Session(session.unwrap_or_else(fresh)), address },
            term: Term(self.term.unwrap_or_else(fresh)),
            duration: check::lasting(&*api.leases, self.duration_ms, self.duration.as_deref())?,
            takeover: self.takeover.map_or(Takeover::IfFree, |takeover| takeover.allowed(&*api.leases)),
            note: self.note,
        })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// Everything that one process holds, in one request; at most 10,000.
    claims: Vec<ClaimBody>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseClaim)]
pub struct ClaimBody {
    scope: String,
    term: Uuid,
    epoch: u64,
    /// From now on. This or `duration`.
    duration_ms: Option<u64>,
    /// The same as people write it: `15s`.
    duration: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Renewals {
    /// One for each claim, in the order asked.
    outcomes: Vec<Renewal>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Renewal {
    scope: String,
    renewed: bool,
    /// With `renewed: false`. Final for this term: stop at once. Without it, whether this one was renewed is not
    /// known: ask again, and count on what you had.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Loss>,
}

/// Renew many leases in one go, with an outcome for each.
///
/// An expired term is lost, never revived. Validity counts from when you *sent* this request; no answer, or a 504,
/// leaves it as it was.
#[utoipa::path(post, path = "/api/leases/renew", tag = "leases", request_body = RenewBody, responses(
    (status = 200, body = Renewals),
    (status = 403, description = "A scope belongs to the server itself; nothing was renewed", body = ErrorBody),
    (status = 504, description = "The answer was lost, with `ambiguous: true`", body = ErrorBody),
    Refusals,
))]
pub async fn renew(
    State(api): State<LeaseApi>,
    JsonBody(body): JsonBody<RenewBody>,
) -> ApiResult<Json<Renewals>> {
    let claims = checked(body.claims, &api)?;
    let outcomes = in_time(api.leases.renew(&claims)).await?;
    assert_eq!(outcomes.len(), claims.len(), "the store answers every claim");
    let outcomes = claims.into_iter().zip(outcomes).map(|(Claim { scope, .. }, outcome)| {
        let (renewed, lost) = match outcome {
            RenewOutcome::Renewed => (true, None),
            RenewOutcome::Lost(reason) => (false, Some(Loss::from(reason))),
            RenewOutcome::Unanswered => (false, None),
        };
        Renewal { scope: scope.to_string(), renewed, lost }
    });
    Ok(Json(Renewals { outcomes: outcomes.collect() }))
}

fn checked(claims: Vec<ClaimBody>, api: &LeaseApi) -> ApiResult<Vec<Claim>> {
    if claims.len() > MOST_CLAIMS {
        let message = format!("holds {} claims, and at most {MOST_CLAIMS} fit", claims.len());
        return Err(ApiError::field("body", "claims", message));
    }
    let checked = claims.into_iter().map(|claim| {
        Ok(Claim {
            scope: check::free_scope("claims.scope", &claim.scope)?,
            term: Term(claim.term),
            epoch: Epoch(claim.epoch),
            duration: check::lasting(&*api.leases, claim.duration_ms, claim.duration.as_deref())?,
        })
    });
    checked.collect()
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    scope: String,
    term: Uuid,
    epoch: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Release {
    /// `false`: this very term did not hold it any more, and nothing was changed.
    released: bool,
}

/// Give a lease back, so that a successor need not wait for it to run out.
///
/// Only the very term and epoch that hold it can do so: a late release never blanks a successor. Stop your work
/// before you release.
#[utoipa::path(post, path = "/api/leases/release", tag = "leases", request_body = ReleaseBody, responses(
    (status = 200, body = Release),
    (status = 403, description = "The scope belongs to the server itself", body = ErrorBody),
    (status = 504, description = "The answer was lost, with `ambiguous: true`", body = ErrorBody),
    Refusals,
))]
pub async fn release(
    State(api): State<LeaseApi>,
    JsonBody(body): JsonBody<ReleaseBody>,
) -> ApiResult<Json<Release>> {
    let claim = Claim {
        scope: check::free_scope("scope", &body.scope)?,
        term: Term(body.term),
        epoch: Epoch(body.epoch),
        duration: Duration::ZERO, // nothing is left of it
    };
    let outcome = in_time(api.leases.release(&claim)).await?;
    Ok(Json(Release { released: outcome == ReleaseOutcome::Released }))
}

/// A store that does not answer has perhaps done it.
async fn in_time<T>(verb: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
    match tokio::time::timeout(ANSWER_WITHIN, verb).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(LeaseError::Ambiguous(elapsed.into())),
    }
}
