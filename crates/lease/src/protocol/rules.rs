//! The arithmetic of durations, and whose lease may be taken although it is held.

use std::time::Duration;

use tenure_clock::{BootTime, Entropy};

use super::SHORTEST_BACKOFF;
use super::seat::Seat;
use super::words::Failure;
use crate::store::Takeover;
use crate::{Holder, LeaseRecord};

/// What the protocol goes by. Made from an [`ElectorConfig`](crate::ElectorConfig), which checks it.
#[derive(Clone, Debug)]
pub struct Rules {
    pub holder: Holder,
    pub duration: Duration,
    pub margin: Duration,
    pub drain_for: Duration,
    /// Take over from a process that is said to have died, before its lease runs out.
    pub crash_hints: bool,
    /// The store's clock can be set back, so a lease that nobody renews is not waited for endlessly.
    pub clock_may_step: bool,
}

impl Rules {
    /// So early that a renewal which fails can be repeated before the deadline.
    pub fn renew_every(&self) -> Duration {
        self.duration / 3
    }

    /// Until the next renewal, a little less each time: processes that began together do not renew together.
    pub(super) fn next_renewal(&self, entropy: &Entropy) -> Duration {
        self.renew_every() - entropy.jitter(self.duration / 20)
    }

    pub(super) fn retry_every(&self) -> Duration {
        self.duration / 12
    }

    /// How long one call may take: a third of what the holder has.
    pub fn call_budget(&self) -> Duration {
        self.duration.saturating_sub(self.margin) / 3
    }

    pub(super) fn valid_until(&self, sent: BootTime, lasts: Duration) -> BootTime {
        sent + lasts.min(self.duration).saturating_sub(self.margin)
    }

    /// Candidates spread over this much time when a lease runs out.
    pub(super) fn spread(&self) -> Duration {
        (self.duration / 50).min(Duration::from_millis(100))
    }

    /// A store that comes back is noticed within a fraction of the duration, however long it was away.
    pub(super) fn longest_backoff(&self) -> Duration {
        (self.duration / 4).clamp(SHORTEST_BACKOFF, Duration::from_secs(5))
    }

    /// How long a seat whose call has failed waits before the next one.
    pub(super) fn pause(&self, seat: &mut Seat, why: Failure, entropy: &Entropy) -> Duration {
        seat.problem = Some(why);
        seat.backoff = (seat.backoff * 2).clamp(SHORTEST_BACKOFF, self.longest_backoff());
        seat.backoff + entropy.jitter(seat.backoff / 4)
    }

    /// Until what is seen of a moving picture can be trusted: others take what has come free before whoever gave it
    /// back, and nobody gives back what only seemed too much.
    pub(super) fn settling(&self) -> Duration {
        (self.duration / 20).min(Duration::from_millis(500))
    }

    /// A free scope that nobody takes for this long is anybody's.
    pub(super) fn overdue(&self) -> Duration {
        self.duration
    }

    /// How a lease that is still held may be taken all the same.
    pub(super) fn takeover_of(
        &self,
        record: &LeaseRecord,
        sole_instance: bool,
        stalled_for: Duration,
    ) -> Option<Takeover> {
        let own = &self.holder;
        let (theirs, term) = (&record.holder, record.term);
        // A term of this very process that it no longer works under.
        let left_behind = theirs.session == own.session;
        let predecessor = sole_instance && theirs.instance == own.instance;
        if left_behind || predecessor {
            return Some(Takeover::OfDead(term));
        }
        let stalled = self.clock_may_step && stalled_for >= stall_after(record.duration);
        stalled.then_some(Takeover::OfStalled { term, resource_version: record.resource_version })
    }
}

/// Nobody who is alive leaves a lease unrenewed for this long.
pub(super) fn stall_after(duration: Duration) -> Duration {
    duration * 3 / 2
}
