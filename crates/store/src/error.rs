//! What can go wrong with a verb, as far as callers act differently on it.

use tenure_lease::Epoch;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The writer's authority is gone: stop everything done in its name.
    #[error("write fenced: epoch {ours} was superseded by {current:?}")]
    Fenced { ours: Epoch, current: Option<Epoch> },
    /// The state is not what the caller expected; nothing was changed. The text is for users.
    #[error("{0}")]
    Conflict(String),
    /// What was named does not exist. The text is for users.
    #[error("{0}")]
    NotFound(String),
    /// The transaction may or may not have been committed: read again, never assume.
    #[error("the database's answer was lost while {doing}")]
    Unknown {
        doing: &'static str,
        #[source]
        source: BoxError,
    },
    /// Nothing was changed; the database cannot be reached or refuses to work.
    #[error("the database is unavailable while {doing}")]
    Unavailable {
        doing: &'static str,
        #[source]
        source: BoxError,
    },
    /// A row that this release cannot read.
    #[error("{what} in the database cannot be read")]
    Corrupt {
        what: String,
        #[source]
        source: BoxError,
    },
}

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
