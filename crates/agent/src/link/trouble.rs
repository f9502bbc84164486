//! How it stands with a link, and what to do about it.

use std::error::Error;
use std::fmt;

use tenure_agent_proto::REFUSED_KEY;
use tonic::{Code, Status};

/// How it stands with one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    Connecting,
    Up {
        replica: String,
    },
    /// It leads to a replica that is reached by another address already.
    Alias,
    Down(Trouble),
}

/// Why a link is down. The text names the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Unreachable {
        error: String,
    },
    /// No TLS that both sides agree to.
    Tls {
        said: String,
    },
    /// The token is not accepted.
    WrongToken {
        said: String,
    },
    /// There is nothing to show, or no place to keep it.
    NoIdentity {
        said: String,
    },
    /// This node may not come in, and asking again will not change that.
    Refused {
        said: String,
    },
    /// The replica speaks another protocol.
    OtherVersion {
        said: String,
    },
    /// Something answers there, and it is no replica.
    NotTenure {
        said: String,
    },
    /// Another agent goes by this node's name.
    NameTaken {
        said: String,
    },
    Silent,
    /// The replica has ended the stream.
    Ended {
        said: String,
    },
}

/// How tonic ends its complaint when a server that knows no gRPC, or a proxy, answers with a page: its text is read as
/// a message, and fails to be one.
const PAGE: &str = "while receiving response with status: ";

impl Trouble {
    /// Trying again soon will not help; somebody has to change something.
    pub fn needs_somebody(&self) -> bool {
        match self {
            Self::Tls { .. }
            | Self::WrongToken { .. }
            | Self::NoIdentity { .. }
            | Self::Refused { .. }
            | Self::OtherVersion { .. }
            | Self::NotTenure { .. }
            | Self::NameTaken { .. } => true,
            Self::Unreachable { .. } | Self::Silent | Self::Ended { .. } => false,
        }
    }

    /// What was shown is not good enough here.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::WrongToken { .. } | Self::Refused { .. })
    }

    pub(super) fn unreachable(error: &(dyn Error + 'static)) -> Self {
        match tenure_tls::explain(error) {
            Some(said) => Self::Tls { said },
            None => Self::Unreachable { error: with_causes(error) },
        }
    }

    pub(super) fn from_status(status: &Status) -> Self {
        let said = status.message().to_owned();
        if let Some((_, page)) = said.split_once(PAGE) {
            return match page.starts_with('4') {
                true => Self::NotTenure { said: page.to_owned() },
                false => Self::Unreachable { error: page.to_owned() },
            };
        }
        match status.code() {
            Code::PermissionDenied if status.metadata().contains_key(REFUSED_KEY) => Self::Refused { said },
            Code::Unauthenticated | Code::PermissionDenied => Self::WrongToken { said },
            Code::FailedPrecondition => Self::OtherVersion { said },
            Code::Aborted => Self::NameTaken { said },
            Code::Unimplemented => Self::NotTenure { said },
            // The connection's own troubles come with their cause.
            _ => match status.source() {
                Some(source) => Self::unreachable(source),
                None => Self::Ended { said },
            },
        }
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some wrappers repeat what they wrap.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { error } => write!(f, "it cannot be reached ({error})"),
            Self::WrongToken { said } => {
                write!(f, "it does not accept the token ({said}): give the right one with --token")
            }
            Self::NoIdentity { said } => {
                write!(f, "{said}: give a join token with --token (tenure node token makes one)")
            }
            Self::Tls { said } | Self::Refused { said } | Self::OtherVersion { said } => f.write_str(said),
            Self::NotTenure { said } => {
                write!(
                    f,
                    "what answers there takes no agents ({said}): check --server (tenure up runs its tasks itself)"
                )
            }
            Self::NameTaken { said } => f.write_str(said),
            Self::Silent => f.write_str("it gives no sign of life"),
            Self::Ended { said } => write!(f, "it has ended the connection ({said})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_instead_of_an_answer_is_told_by_its_status() {
        let page = |status: &str| {
            let said =
                format!("protocol error: received message with invalid compression flag: 123 {PAGE}{status}");
            Trouble::from_status(&Status::internal(said))
        };
        let told = page("404 Not Found");
        assert!(
            told.needs_somebody() && told.to_string().contains("takes no agents (404 Not Found)"),
            "{told}"
        );
        let told = page("503 Service Unavailable");
        assert!(!told.needs_somebody() && told.to_string().contains("503"), "{told}");
    }
}
