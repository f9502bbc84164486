//! Where the logs of a try live in the object store, and how they are read back.
//!
//! Layout: `<tenant>/<dag>/<run>/<task>/<map index>/<try>/<attempt>/<start>-<end>.log`. Start and end are
//! offsets into the raw output of the attempt, before redaction: writing a part again is harmless, and an
//! agent that restarts goes on at the largest end.
//!
//! Promises: parts are read in order; a reader that follows with the cursor it was given misses nothing; a
//! try without output is empty, not an error. Does not promise that an offset can be found back inside the
//! text, because redaction changes lengths: a cursor stands between parts.

use std::fmt;
use std::str::FromStr;

use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::{Path, PathPart};
use object_store::{ObjectStore, ObjectStoreExt};
use tenure_model::{AttemptId, DagId, RunId, TaskId, TenantId};
use uuid::Uuid;

/// How much text one call of [`read`] is content with. It may go over by one part.
pub const READ_LIMIT: usize = 1024 * 1024;

/// File systems end names at 255 bytes; what would come close is cut and told apart by a hash.
const LONGEST_NAME: usize = 200;
/// Follows small parts quickly on a remote store without holding many connections.
const PARALLEL_READS: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log store failed while {doing} {at}")]
    Store {
        doing: &'static str,
        at: Path,
        #[source]
        source: object_store::Error,
    },
}

/// The folder of everything that one try has printed.
pub fn prefix(
    tenant: &TenantId,
    dag: &DagId,
    run_id: &RunId,
    task: &TaskId,
    map_index: i32,
    try_number: u32,
) -> Path {
    Path::from_iter([
        bounded(tenant.as_str()),
        bounded(dag.as_str()),
        bounded(run_id.as_str()),
        bounded(task.as_str()),
        map_index.to_string(),
        try_number.to_string(),
    ])
}

/// One object: the output of one attempt from `start` up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub attempt: AttemptId,
    pub start: u64,
    pub end: u64,
}

impl Part {
    pub fn path(&self, prefix: &Path) -> Path {
        attempt_folder(prefix, self.attempt).join(format!("{:012}-{:012}.log", self.start, self.end))
    }

    fn parse(prefix: &Path, path: &Path) -> Option<Self> {
        let mut rest = path.prefix_match(prefix)?;
        let (attempt, name) = (rest.next()?, rest.next()?);
        if rest.next().is_some() {
            return None;
        }
        let (start, end) = name.as_ref().strip_suffix(".log")?.split_once('-')?;
        Some(Self {
            attempt: AttemptId(Uuid::parse_str(attempt.as_ref()).ok()?),
            start: start.parse().ok()?,
            end: end.parse().ok()?,
        })
    }
}

/// Up to where the output of this attempt is stored already.
pub async fn stored_until(
    store: &dyn ObjectStore,
    prefix: &Path,
    attempt: AttemptId,
) -> Result<u64, LogError> {
    let parts = parts(store, prefix, &attempt_folder(prefix, attempt)).await?;
    Ok(parts.iter().map(|(part, _)| part.end).max().unwrap_or(0))
}

/// A place between two parts of a try's log. Opaque to clients, who send back the text they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogCursor {
    #[default]
    Start,
    After {
        attempt: AttemptId,
        end: u64,
    },
}

impl LogCursor {
    fn is_before(&self, part: &Part) -> bool {
        match *self {
            Self::Start => true,
            Self::After { attempt, end } => (part.attempt, part.end) > (attempt, end),
        }
    }
}

impl fmt::Display for LogCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::After { attempt, end } => write!(f, "{attempt}.{end}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a log cursor (send back the one that came with the last piece, or none)")]
pub struct BadCursor {
    pub text: String,
}

impl FromStr for LogCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        if text == "start" {
            return Ok(Self::Start);
        }
        let after = || {
            let (attempt, end) = text.split_once('.')?;
            Some(Self::After { attempt: AttemptId(Uuid::parse_str(attempt).ok()?), end: end.parse().ok()? })
        };
        after().ok_or_else(|| BadCursor { text: text.to_owned() })
    }
}

/// What [`read`] found after the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub text: String,
    pub next: LogCursor,
    /// More is stored already: ask again at once.
    pub more: bool,
}

/// The text of a try from a cursor on, about [`READ_LIMIT`] at most.
pub async fn read(store: &dyn ObjectStore, prefix: &Path, from: LogCursor) -> Result<LogChunk, LogError> {
    read_up_to(store, prefix, from, READ_LIMIT).await
}

async fn read_up_to(
    store: &dyn ObjectStore,
    prefix: &Path,
    from: LogCursor,
    limit: usize,
) -> Result<LogChunk, LogError> {
    let mut stored = parts(store, prefix, prefix).await?;
    // Where two parts begin alike, the longer one first: it makes the other superfluous.
    stored.sort_by_key(|(part, _)| (part.attempt, part.start, std::cmp::Reverse(part.end)));
    let (chosen, next, more) = choose(&stored, from, limit);

    let pieces = stream::iter(chosen.into_iter().map(|part| fetch(store, part.path(prefix))));
    let pieces: Vec<Vec<u8>> = pieces.buffered(PARALLEL_READS).try_collect().await?;
    Ok(LogChunk { text: String::from_utf8_lossy(&pieces.concat()).into_owned(), next, more })
}

/// The parts to read next. A part that ends within what was read already is a late twin and is passed over.
fn choose(stored: &[(Part, u64)], from: LogCursor, limit: usize) -> (Vec<Part>, LogCursor, bool) {
    let (mut chosen, mut next, mut size) = (Vec::new(), from, 0);
    for (part, bytes) in stored {
        if !next.is_before(part) {
            continue;
        }
        if size >= limit {
            return (chosen, next, true);
        }
        chosen.push(*part);
        next = LogCursor::After { attempt: part.attempt, end: part.end };
        size += *bytes as usize;
    }
    (chosen, next, false)
}

async fn fetch(store: &dyn ObjectStore, path: Path) -> Result<Vec<u8>, LogError> {
    let found = async { store.get(&path).await?.bytes().await };
    match found.await {
        Ok(bytes) => Ok(bytes.to_vec()),
        // Logs may be deleted while someone reads them.
        Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
        Err(source) => Err(LogError::Store { doing: "reading", at: path, source }),
    }
}

async fn parts(store: &dyn ObjectStore, prefix: &Path, below: &Path) -> Result<Vec<(Part, u64)>, LogError> {
    store
        .list(Some(below))
        .try_filter_map(|object| async move {
            Ok(Part::parse(prefix, &object.location).map(|part| (part, object.size)))
        })
        .try_collect()
        .await
        .map_err(|source| LogError::Store { doing: "listing", at: below.clone(), source })
}

fn attempt_folder(prefix: &Path, attempt: AttemptId) -> Path {
    prefix.clone().join(attempt.to_string())
}

fn bounded(name: &str) -> String {
    if PathPart::from(name).as_ref().len() <= LONGEST_NAME {
        return name.to_owned();
    }
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
    let beginning: String = name.chars().filter(char::is_ascii_alphanumeric).take(100).collect();
    format!("{beginning}~{hash}")
}

#[cfg(test)]
mod tests;
