//! Who holds what, who held it, who stands for it. Reads need no fence.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_lease::{HISTORY, LeaseRecord, Scope, Session};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::LeaseApi;
use super::shapes::{Lease, LeaseTerm, Leases, millis_rounded_up};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::Query;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Under {
    /// Only scopes that begin with this; all without it.
    pub under: String,
}

/// Every lease that was ever taken, with its latest holder and epoch.
#[utoipa::path(get, path = "/api/leases", tag = "leases", params(Under),
    responses((status = 200, body = Leases), Refusals))]
pub async fn list(State(api): State<LeaseApi>, Query(query): Query<Under>) -> ApiResult<Json<Leases>> {
    Ok(Json(api.leases.list_leases(&query.under).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OneScope {
    scope: String,
}

/// One lease.
#[utoipa::path(get, path = "/api/leases/record", tag = "leases", params(OneScope),
    responses((status = 200, body = Lease), Refusals))]
pub async fn record(State(api): State<LeaseApi>, Query(query): Query<OneScope>) -> ApiResult<Json<Lease>> {
    let scope = Scope::new(&query.scope);
    match api.leases.find_lease(&scope).await? {
        Some(record) => Ok(Json(record.into())),
        None => Err(ApiError::NotFound(match Scope::parse(&query.scope) {
            Ok(_) => format!(
                "Nobody has taken the lease of {scope} yet, or it was removed; GET /api/leases lists those that \
                 exist."
            ),
            Err(error) => format!("There is no such lease: {error}."),
        })),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HistoryParams {
    scope: String,
    /// At most 1000; 50 without it. Stores keep at least the latest 50.
    limit: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseHistory {
    /// Newest first. Empty for a scope that nobody has held.
    history: Vec<LeaseTerm>,
    total_entries: u64,
}

/// The latest terms of a scope: who held it, from when to when, and how it ended.
#[utoipa::path(get, path = "/api/leases/history", tag = "leases", params(HistoryParams),
    responses((status = 200, body = LeaseHistory), Refusals))]
pub async fn history(
    State(api): State<LeaseApi>,
    Query(query): Query<HistoryParams>,
) -> ApiResult<Json<LeaseHistory>> {
    let scope = Scope::new(&query.scope);
    let limit = query.limit.filter(|limit| *limit > 0).map_or(HISTORY, |limit| limit.min(1000) as usize);
    let terms = api.leases.lease_history(&scope, limit).await?;
    let history: Vec<LeaseTerm> = terms.into_iter().map(LeaseTerm::from).collect();
    Ok(Json(LeaseHistory { total_entries: history.len() as u64, history }))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Fence {
    scope: String,
    epoch: u64,
    term: Uuid,
}

/// The only epoch and term that may write in a scope, as of now.
///
/// For people and tests. A write checks its fence in its own transaction, not here.
#[utoipa::path(get, path = "/api/leases/fence", tag = "leases", params(OneScope),
    responses((status = 200, body = Fence), Refusals))]
pub async fn fence(State(api): State<LeaseApi>, Query(query): Query<OneScope>) -> ApiResult<Json<Fence>> {
    let scope = Scope::new(&query.scope);
    match api.fences.fence(&scope).await? {
        Some((epoch, term)) => Ok(Json(Fence { scope: scope.to_string(), epoch: epoch.0, term: term.0 })),
        None => Err(ApiError::NotFound(format!("No fence was ever installed for {scope}."))),
    }
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MembersParams {
    /// Of this component only; of all without it.
    component: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Members {
    /// By component, then by name.
    members: Vec<Member>,
    total_entries: u64,
}

/// A process that stands for the scopes of its component, and is alive as far as its seat says.
#[derive(Debug, Serialize, ToSchema)]
pub struct Member {
    component: String,
    member: String,
    holder: String,
    instance: String,
    address: Option<String>,
    session: Uuid,
    /// When it took its seat.
    since: Timestamp,
    /// Until its seat runs out, unless it is renewed.
    remaining_ms: u64,
    note: String,
    /// What its session holds now, its seat apart.
    scopes: Vec<String>,
}

/// Who stands for what: the members of one component, or of all, with the scopes that each holds.
///
/// A member is whoever holds a seat `members/COMPONENT/NAME`; a seat that has run out or was given back is not
/// listed.
#[utoipa::path(get, path = "/api/leases/members", tag = "leases", params(MembersParams),
    responses((status = 200, body = Members), Refusals))]
pub async fn members(
    State(api): State<LeaseApi>,
    Query(query): Query<MembersParams>,
) -> ApiResult<Json<Members>> {
    let records = api.leases.list_leases("").await?;
    let members = members_among(&records, query.component.as_deref());
    Ok(Json(Members { total_entries: members.len() as u64, members }))
}

fn members_among(records: &[LeaseRecord], component: Option<&str>) -> Vec<Member> {
    let held = || records.iter().filter(|record| record.is_held());
    let mut scopes = BTreeMap::<Session, Vec<String>>::new();
    for record in held().filter(|record| record.scope.as_member().is_none()) {
        scopes.entry(record.holder.session).or_default().push(record.scope.to_string());
    }
    let seats = held().filter_map(|record| Some((record.scope.as_member()?, record)));
    let wanted = seats.filter(|((of, _), _)| component.is_none_or(|component| component == *of));
    let members = wanted.map(|((component, member), seat)| Member {
        component: component.into(),
        member: member.into(),
        holder: seat.holder.name.clone(),
        instance: seat.holder.instance.clone(),
        address: seat.holder.address.clone(),
        session: seat.holder.session.0,
        since: seat.acquired_at,
        remaining_ms: millis_rounded_up(seat.remaining),
        note: seat.note.clone(),
        scopes: scopes.get(&seat.holder.session).cloned().unwrap_or_default(),
    });
    let mut members: Vec<Member> = members.collect();
    members.sort_by(|a, b| (&a.component, &a.member).cmp(&(&b.component, &b.member)));
    members
}
