//! What goes wrong below a verb, and how it is told above.

use tenure_lease::LeaseError;
use tenure_store::{BoxError, StoreError};

/// Inside a verb: either the database failed, or the verb has an answer that is not a success.
#[derive(Debug)]
pub(crate) enum Fail {
    Sql(rusqlite::Error),
    Answer(StoreError),
}

impl Fail {
    pub(crate) fn corrupt(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Answer(StoreError::Corrupt { what: what.into(), source: source.into() })
    }

    pub(crate) fn conflict(text: impl Into<String>) -> Self {
        Self::Answer(StoreError::Conflict(text.into()))
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::Answer(StoreError::NotFound(text.into()))
    }

    /// Nothing of a failed verb is kept, so a database error is `Unavailable` here. Only a failed COMMIT
    /// leaves a doubt, and the writer says so itself.
    pub(crate) fn told(self, doing: &'static str) -> StoreError {
        match self {
            Self::Answer(error) => error,
            Self::Sql(source) if is_misread(&source) => {
                StoreError::Corrupt { what: format!("a value read while {doing}"), source: source.into() }
            }
            Self::Sql(source) => StoreError::Unavailable { doing, source: source.into() },
        }
    }
}

impl Fail {
    /// Why a row cannot be read, if that is what went wrong.
    pub(crate) fn unreadable(self) -> Result<String, Fail> {
        match self {
            Self::Answer(StoreError::Corrupt { what, source }) => Ok(format!("{what}: {source}")),
            Self::Sql(source) if is_misread(&source) => Ok(source.to_string()),
            other => Err(other),
        }
    }
}

/// The database works, but what it holds is not what was expected.
fn is_misread(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
    )
}

impl From<rusqlite::Error> for Fail {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        Self::Answer(error)
    }
}

pub(crate) fn lease_error(error: StoreError) -> LeaseError {
    match error {
        StoreError::Unknown { .. } => LeaseError::Ambiguous(error.into()),
        other => LeaseError::Unavailable(other.into()),
    }
}
