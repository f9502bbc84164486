//! From what Postgres says to what callers branch on.

use deadpool_postgres::PoolError;
use tenure_store::{BoxError, StoreError};
use tokio_postgres::error::{Severity, SqlState};

/// Of a statement inside a transaction: whatever is wrong, nothing has been changed.
pub(crate) fn of_statement(doing: &'static str, error: tokio_postgres::Error) -> StoreError {
    if error.code() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE) {
        return StoreError::Conflict("a name holds a character that the database cannot keep (NUL)".into());
    }
    unavailable(doing, error)
}

/// Before COMMIT was sent: nothing has been changed, and nothing will be.
pub(crate) fn unavailable(doing: &'static str, source: impl Into<BoxError>) -> StoreError {
    StoreError::Unavailable { doing, source: source.into() }
}

pub(crate) fn no_connection(doing: &'static str, error: PoolError) -> StoreError {
    unavailable(doing, error)
}

pub(crate) fn no_answer(doing: &'static str) -> StoreError {
    unavailable(doing, NoAnswer)
}

/// Of a COMMIT, or of a statement that commits by itself. Only a refusal by a server that lives on is
/// certain; a server that ends the session may have written the commit before.
pub(crate) fn of_commit(doing: &'static str, error: tokio_postgres::Error) -> StoreError {
    let refused = error.as_db_error().is_some_and(|refusal| {
        let session_lives = matches!(refusal.parsed_severity(), Some(Severity::Error));
        session_lives && *refusal.code() != SqlState::TRANSACTION_RESOLUTION_UNKNOWN
    });
    if refused { of_statement(doing, error) } else { StoreError::Unknown { doing, source: error.into() } }
}

pub(crate) fn no_answer_to_commit(doing: &'static str) -> StoreError {
    StoreError::Unknown { doing, source: NoAnswer.into() }
}

pub(crate) fn corrupt(what: impl Into<String>, source: impl Into<BoxError>) -> StoreError {
    StoreError::Corrupt { what: what.into(), source: source.into() }
}

/// A server that lives on has refused one statement: the reason lies in a row or in a lock, not in the way there.
pub(crate) fn is_about_a_row(error: &StoreError) -> bool {
    match error {
        StoreError::Unavailable { source, .. } => source
            .downcast_ref::<tokio_postgres::Error>()
            .and_then(tokio_postgres::Error::as_db_error)
            .is_some_and(|refusal| matches!(refusal.parsed_severity(), Some(Severity::Error))),
        StoreError::Conflict(_) | StoreError::Corrupt { .. } | StoreError::NotFound(_) => true,
        StoreError::Unknown { .. } | StoreError::Fenced { .. } => false,
    }
}

/// The session is in doubt: it is not lent to anybody again.
pub(crate) fn spoils_session(error: &StoreError) -> bool {
    match error {
        StoreError::Unknown { .. } | StoreError::Unavailable { .. } => true,
        StoreError::Fenced { .. }
        | StoreError::Conflict(_)
        | StoreError::NotFound(_)
        | StoreError::Corrupt { .. } => false,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the server did not answer in time")]
struct NoAnswer;
