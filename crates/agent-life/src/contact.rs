//! Since when, and until when, a node has been in contact with the control plane.
//!
//! A contact counts from when the word that was answered had been *sent*: the control plane has been hearing nothing for
//! no longer than that.

use std::time::Duration;

use tenure_clock::BootTime;

/// Contact that was never interrupted for as long as the fence allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    pub since: BootTime,
    pub until: BootTime,
}

impl Contact {
    /// The same contact, longer, or a new one after a gap.
    pub fn extended(before: Option<Self>, at: BootTime, allowed: Duration) -> Self {
        match before {
            Some(before) if at <= before.until => before,
            Some(before) if at.saturating_since(before.until) < allowed => Self { until: at, ..before },
            _ => Self { since: at, until: at },
        }
    }

    /// What a task that runs under this contact makes of the latest one: after a gap there may be contact again, but
    /// somebody may have taken the task for lost in it.
    pub fn follow(&mut self, latest: Self) {
        if latest.since <= self.until {
            self.until = latest.until;
        }
    }
}
