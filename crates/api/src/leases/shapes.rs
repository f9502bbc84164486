//! Leases as JSON. `holder` is a name everywhere; what else is known about it stands beside.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tenure_lease::{LeaseRecord, LossReason, PastTerm};
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Debug, Serialize, ToSchema)]
pub struct Lease {
    scope: String,
    /// Somebody holds it now: not released, not expired.
    held: bool,
    /// `host:port`, or whatever the latest holder calls itself.
    holder: String,
    /// Stable across restarts of the holder, where it has such a thing.
    instance: String,
    /// One life of the holder's process.
    session: Uuid,
    /// Where others reach the holder.
    address: Option<String>,
    term: Uuid,
    /// The fencing token: pass it with every write.
    epoch: u64,
    duration_ms: u64,
    /// On the store's clock at the moment of reading, rounded up; 0 when nobody holds it.
    remaining_ms: u64,
    acquired_at: Timestamp,
    renewed_at: Timestamp,
    released: bool,
    resource_version: u64,
    /// How often the holder has changed.
    transitions: u64,
    /// How this term succeeded the one before: `first`, `released`, `expired`, `crashed` or `stalled`.
    succession: &'static str,
    note: String,
}

impl From<LeaseRecord> for Lease {
    fn from(record: LeaseRecord) -> Self {
        Self {
            held: record.is_held(),
            scope: record.scope.to_string(),
            holder: record.holder.name,
            instance: record.holder.instance,
            session: record.holder.session.0,
            address: record.holder.address,
            term: record.term.0,
            epoch: record.epoch.0,
            duration_ms: record.duration.as_millis() as u64,
            remaining_ms: millis_rounded_up(record.remaining),
            acquired_at: record.acquired_at,
            renewed_at: record.renewed_at,
            released: record.released,
            resource_version: record.resource_version,
            transitions: record.transitions,
            succession: record.succession.as_str(),
            note: record.note,
        }
    }
}

/// Whoever waits for the end of a lease should not come too early, and what is held has time left.
pub fn millis_rounded_up(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000) as u64
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Leases {
    /// In order of scope.
    pub leases: Vec<Lease>,
    pub total_entries: u64,
}

impl From<Vec<LeaseRecord>> for Leases {
    fn from(records: Vec<LeaseRecord>) -> Self {
        let leases: Vec<Lease> = records.into_iter().map(Lease::from).collect();
        Self { total_entries: leases.len() as u64, leases }
    }
}

/// One unbroken holding of a lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseTerm {
    scope: String,
    epoch: u64,
    term: Uuid,
    holder: String,
    instance: String,
    session: Uuid,
    address: Option<String>,
    acquired_at: Timestamp,
    /// How it succeeded the one before.
    succession: &'static str,
    note: String,
    /// When it was given back, had run out, or was taken away; `null`: not that the store knows.
    ended_at: Option<Timestamp>,
    /// `released`, or what the successor found: `expired`, `crashed`, `stalled`.
    end: Option<&'static str>,
}

impl From<PastTerm> for LeaseTerm {
    fn from(past: PastTerm) -> Self {
        Self {
            scope: past.scope.to_string(),
            epoch: past.epoch.0,
            term: past.term.0,
            holder: past.holder.name,
            instance: past.holder.instance,
            session: past.holder.session.0,
            address: past.holder.address,
            acquired_at: past.acquired_at,
            succession: past.succession.as_str(),
            note: past.note,
            ended_at: past.ended_at,
            end: past.end.map(|end| end.as_str()),
        }
    }
}

/// Why a claim is worth nothing any more.
#[derive(Debug, Serialize, ToSchema)]
pub struct Loss {
    /// `superseded`, `expired` or `gone`.
    reason: &'static str,
    /// Who holds it now, with `superseded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    detail: String,
}

impl From<LossReason> for Loss {
    fn from(loss: LossReason) -> Self {
        let (reason, detail) = (loss.as_str(), loss.to_string());
        let by = match loss {
            LossReason::Superseded { holder, epoch } => Some((holder, epoch)),
            _ => None,
        };
        let (holder, epoch) = by.unzip();
        Self {
            reason,
            epoch: epoch.map(|epoch| epoch.0),
            instance: holder.as_ref().map(|holder| holder.instance.clone()),
            session: holder.as_ref().map(|holder| holder.session.0),
            address: holder.as_ref().and_then(|holder| holder.address.clone()),
            holder: holder.map(|holder| holder.name),
            detail,
        }
    }
}
