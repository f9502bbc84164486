//! How a command ends when it does not succeed: what is said, and the exit code that scripts rely on.

use std::process::ExitCode;

/// The run failed, or the thing asked for did.
pub const FAILED: u8 = 1;
pub const WRONG_USAGE: u8 = 2;
pub const UNREACHABLE: u8 = 3;
/// «Not the master»: somebody else holds the lease, or it was lost.
pub const NOT_THE_MASTER: u8 = 73;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The message has been given already: a run that ended badly, diagnostics, a closed pipe.
    #[error("")]
    Told(u8),
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Lost(String),
    /// The server understood, and said no.
    #[error("{detail}")]
    Refused { status: u16, detail: String, path: String },
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Told(code) => *code,
            Self::Failed(_) | Self::Refused { .. } => FAILED,
            Self::Usage(_) => WRONG_USAGE,
            Self::Unreachable(_) => UNREACHABLE,
            Self::Lost(_) => NOT_THE_MASTER,
        })
    }
}

impl From<std::io::Error> for Failure {
    /// Output that nobody reads any more (`tenure run list | head`) ends the command in silence.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Told(0),
            _ => Self::Failed(error.to_string()),
        }
    }
}
