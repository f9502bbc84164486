//! What is said on the channel `tenure_lease`, and how it is read again. Someone else may write there too:
//! what cannot be read is no hint.

use tenure_clock::Entropy;
use tenure_lease::{Hint, Scope, Session};
use tokio::sync::broadcast;
use tokio_postgres::Config;
use tokio_util::task::AbortOnDropHandle;

use crate::listen::{Heard, listen};

pub(super) const CHANNEL: &str = "tenure_lease";
/// Postgres refuses 8,000 bytes and more, and with them the transaction.
const LONGEST: usize = 7_999;

pub(super) fn payload(hint: &Hint) -> String {
    let said = match hint {
        Hint::Changed(scope) => format!("changed {scope}"),
        Hint::Crashed(session) => format!("crashed {session}"),
        Hint::Resync => "resync".into(),
    };
    if said.len() <= LONGEST { said } else { payload(&Hint::Resync) }
}

fn read(payload: &str) -> Option<Hint> {
    match payload.split_once(' ') {
        Some(("changed", scope)) => Some(Hint::Changed(Scope::new(scope))),
        Some(("crashed", session)) => session.parse().ok().map(|id| Hint::Crashed(Session(id))),
        None if payload == "resync" => Some(Hint::Resync),
        _ => None,
    }
}

/// Passes on what is said until the answer is dropped.
pub(super) fn follow(
    config: Config,
    entropy: &Entropy,
    hints: broadcast::Sender<Hint>,
) -> AbortOnDropHandle<()> {
    listen(config, CHANNEL, entropy.clone(), move |heard| {
        let hint = match heard {
            Heard::Begun => Some(Hint::Resync),
            Heard::Note(payload) => read(payload),
        };
        if let Some(hint) = hint {
            let _nobody_watches = hints.send(hint);
        }
    })
}

#[cfg(test)]
mod tests {
    use tenure_clock::{Clock, Entropy, SystemClock};

    use super::*;

    #[test]
    fn every_hint_is_read_as_it_was_said() {
        let session = Session(Entropy::seeded(1).uuid(SystemClock.now()));
        for hint in [Hint::Changed(Scope::new("a b/ü")), Hint::Crashed(session), Hint::Resync] {
            assert_eq!(read(&payload(&hint)), Some(hint));
        }
    }

    #[test]
    fn a_scope_that_is_too_long_to_be_told_makes_everybody_look_at_everything() {
        let hint = Hint::Changed(Scope::new("x".repeat(8_000)));
        assert_eq!(read(&payload(&hint)), Some(Hint::Resync));
    }

    #[test]
    fn what_strangers_say_is_no_hint() {
        for payload in ["", "changed", "crashed", "crashed x", "hello world", "resync now"] {
            assert_eq!(read(payload), None, "{payload:?}");
        }
    }
}
