//! How an attempt ended that left neither a verdict nor an exit code.

/// How the supervisor's end was come to know, which decides what a missing beginning means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// We started the supervisor and saw it end.
    Eye,
    /// We found the lock free.
    Lock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did not begin, and never will: it may be placed again.
    NeverStarted,
    /// It could not begin. Placing it again for free would repeat this for ever.
    CannotStart,
    Stopped,
    /// It may have begun: only that can be said, and it is the careful thing to say.
    Lost,
}

/// `begun`: it may have begun; `same_boot`: the machine has not restarted since it was ordered; `stopped`: somebody
/// asked for its end.
pub fn unwatched(begun: bool, same_boot: bool, stopped: bool, witness: Witness) -> Ending {
    match (begun, same_boot, witness) {
        _ if stopped => Ending::Stopped,
        (false, true, Witness::Lock) => Ending::NeverStarted,
        (false, true, Witness::Eye) => Ending::CannotStart,
        (true, _, _) | (false, false, _) => Ending::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_never_began_may_be_placed_again_for_free() {
        for (begun, same_boot, stopped, witness, ending) in [
            (false, true, false, Witness::Lock, Ending::NeverStarted),
            (false, true, false, Witness::Eye, Ending::CannotStart),
            (false, true, true, Witness::Lock, Ending::Stopped),
            (false, false, false, Witness::Lock, Ending::Lost),
            (false, false, true, Witness::Lock, Ending::Stopped),
            (true, true, false, Witness::Eye, Ending::Lost),
            (true, false, true, Witness::Lock, Ending::Stopped),
        ] {
            assert_eq!(unwatched(begun, same_boot, stopped, witness), ending);
        }
    }
}
