//! Numbers, times and names on the wire, and what is refused among them.

use std::time::Duration;

use jiff::Timestamp;
use tenure_model::{AttemptId, RunKey, TaskNo, TiKey};
use uuid::Uuid;

use crate::wire;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A message of the other side that means nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field {field:?} {wrong}")]
pub struct Nonsense {
    pub field: &'static str,
    pub wrong: String,
}

impl Nonsense {
    pub(crate) fn new(field: &'static str, wrong: impl Into<String>) -> Self {
        Self { field, wrong: wrong.into() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, "is missing")
    }
}

impl From<Uuid> for wire::Id {
    fn from(id: Uuid) -> Self {
        let (high, low) = id.as_u64_pair();
        Self { high, low }
    }
}

impl From<AttemptId> for wire::Id {
    fn from(attempt: AttemptId) -> Self {
        attempt.0.into()
    }
}

impl From<wire::Id> for Uuid {
    fn from(id: wire::Id) -> Self {
        Uuid::from_u64_pair(id.high, id.low)
    }
}

/// An id of zeros is one that nobody has drawn.
pub(crate) fn attempt(id: Option<wire::Id>) -> Result<AttemptId, Nonsense> {
    let id: Uuid = id.ok_or_else(|| Nonsense::missing("attempt"))?.into();
    if id.is_nil() {
        return Err(Nonsense::new("attempt", "is all zeros"));
    }
    Ok(AttemptId(id))
}

impl From<TiKey> for wire::TaskInstance {
    fn from(ti: TiKey) -> Self {
        Self { run: ti.run.0, task: ti.task.0, map_index: ti.map_index }
    }
}

pub(crate) fn ti(ti: Option<wire::TaskInstance>) -> Result<TiKey, Nonsense> {
    let wire::TaskInstance { run, task, map_index } = ti.ok_or_else(|| Nonsense::missing("ti"))?;
    if map_index < TiKey::UNMAPPED {
        return Err(Nonsense::new("ti.map_index", format!("is {map_index}, and -1 is the least there is")));
    }
    Ok(TiKey { run: RunKey(run), task: TaskNo(task), map_index })
}

impl From<Duration> for wire::Span {
    fn from(span: Duration) -> Self {
        Self { seconds: span.as_secs(), nanos: span.subsec_nanos() }
    }
}

pub(crate) fn span(field: &'static str, span: wire::Span) -> Result<Duration, Nonsense> {
    match span.nanos {
        nanos if nanos < NANOS_PER_SECOND => Ok(Duration::new(span.seconds, nanos)),
        nanos => Err(Nonsense::new(field, format!("has {nanos} nanoseconds in its last second"))),
    }
}

impl From<Timestamp> for wire::Instant {
    fn from(at: Timestamp) -> Self {
        Self { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
    }
}

pub(crate) fn instant(field: &'static str, at: Option<wire::Instant>) -> Result<Timestamp, Nonsense> {
    let wire::Instant { seconds, nanos } = at.ok_or_else(|| Nonsense::missing(field))?;
    Timestamp::new(seconds, nanos).map_err(|error| Nonsense::new(field, format!("is no instant: {error}")))
}

pub(crate) fn name(field: &'static str, name: String) -> Result<String, Nonsense> {
    if name.is_empty() { Err(Nonsense::new(field, "is empty")) } else { Ok(name) }
}
