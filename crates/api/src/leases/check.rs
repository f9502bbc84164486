//! What a client may ask for: well-formed scopes that are not the server's own, sensible durations, short texts.

use std::time::Duration;

use tenure_lease::{LeaseStore, MEMBERS, Scope};
use tenure_model::duration;

use crate::error::{ApiError, ApiResult};

/// A request over a network has to fit into a third of the lease with room to spare.
const SHORTEST: Duration = Duration::from_millis(100);
/// Whoever needs longer does not renew, and should not be trusted to be alive.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Host and port, instance, address: room for the longest host name (253) and then some.
const LONGEST_NAME: usize = 300;
pub const LONGEST_NOTE: usize = 4096;

/// The component whose leases and members' seats only the server itself takes.
const OWN: &str = "scheduler";

/// A scope that a client may change.
pub fn free_scope(field: &str, text: &str) -> ApiResult<Scope> {
    let scope = Scope::parse(text).map_err(|error| ApiError::field("body", field, error.to_string()))?;
    let name = scope.as_str();
    let name = name.strip_prefix(MEMBERS).unwrap_or(name);
    if name == OWN || name.strip_prefix(OWN).is_some_and(|rest| rest.starts_with('/')) {
        return Err(ApiError::Forbidden(format!(
            "{scope} belongs to the server itself: only its own replicas take leases under {OWN}/ and seats under \
             {MEMBERS}{OWN}/. Choose another name; anything else is free."
        )));
    }
    Ok(scope)
}

/// The scope to compete for, from its own name, its component's, or both.
pub fn contested(scope: Option<&str>, component: Option<&str>) -> ApiResult<Scope> {
    let Some(component) = component else {
        let scope = scope.ok_or_else(|| ApiError::field("body", "scope", "Field required"))?;
        return free_scope("scope", scope);
    };
    let leader = free_scope("component", &format!("{component}/leader"))?;
    let Some(scope) = scope else { return Ok(leader) };
    let scope = free_scope("scope", scope)?;
    let of_component = scope.as_str().strip_prefix(component).is_some_and(|rest| rest.starts_with('/'));
    match of_component || scope.as_member().is_some_and(|(of, _)| of == component) {
        true => Ok(scope),
        false => Err(ApiError::field(
            "body",
            "scope",
            format!(
                "{scope} is not of the component {component:?}: its scopes begin with {component}/ or {}. Leave \
                 the component out to use any scope",
                Scope::members_of(component)
            ),
        )),
    }
}

/// A duration in milliseconds, or as people write it.
pub fn lasting(store: &dyn LeaseStore, millis: Option<u64>, text: Option<&str>) -> ApiResult<Duration> {
    let (field, asked) = match (millis, text) {
        (Some(millis), None) => ("duration_ms", Duration::from_millis(millis)),
        (None, Some(text)) => {
            let asked = duration::parse(text);
            ("duration", asked.map_err(|error| ApiError::field("body", "duration", error.to_string()))?)
        }
        (None, None) => return Err(ApiError::field("body", "duration_ms", "Field required")),
        (Some(_), Some(_)) => {
            return Err(ApiError::field("body", "duration", "give duration_ms or duration, not both"));
        }
    };
    let shortest = SHORTEST.max(store.capabilities().minimum_duration);
    match (shortest..=LONGEST).contains(&asked) {
        true => Ok(asked),
        false => Err(ApiError::field(
            "body",
            field,
            format!("a lease lasts between {shortest:?} and 24h, and {asked:?} does not fit"),
        )),
    }
}

/// A text for people: short, and on one line.
pub fn name(field: &str, text: &str) -> ApiResult<()> {
    let wrong = match text {
        "" => "must not be empty".to_owned(),
        _ if text.len() > LONGEST_NAME => {
            format!("has {} bytes, and at most {LONGEST_NAME} fit", text.len())
        }
        _ if text.chars().any(char::is_control) => "holds a control character".to_owned(),
        _ => return Ok(()),
    };
    Err(ApiError::field("body", field, wrong))
}

pub fn note(text: &str) -> ApiResult<()> {
    match text.len() > LONGEST_NOTE {
        true => Err(ApiError::field(
            "body",
            "note",
            format!("has {} bytes, and at most {LONGEST_NOTE} fit", text.len()),
        )),
        // A zero byte is no text in Postgres.
        false if text.contains('\0') => Err(ApiError::field("body", "note", "holds a zero byte")),
        false => Ok(()),
    }
}
