//! When a node could not speak: nobody who heard it could tell the owners of shards.
//!
//! Kept from the state of the world, not from the names of faults: whether a cut silences a node depends on all others.

use std::time::Duration;

use jiff::Timestamp;
use tenure_judge::history::{Aftermath, Fault};
use tenure_model::NodeId;

/// Shorter silences are no excuse for anything: a node is given up after 90 s of what its owner has seen, which begins up
/// to two heartbeats before the silence does and ends up to two later.
const EXCUSES: Duration = Duration::from_secs(60);

/// Who can speak for a moment has not spoken: it dies before its next heartbeat, and the silence goes on.
const NEXT_HEARTBEAT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Silence(Vec<Spell>);

/// The latest silence of one node.
#[derive(Clone, Copy, Debug, Default)]
struct Spell {
    since: Option<Timestamp>,
    /// Absent: it goes on, if it has begun.
    until: Option<Timestamp>,
}

impl Silence {
    /// Nobody is there yet.
    pub fn new(agents: usize) -> Self {
        Self(vec![Spell::default(); agents])
    }

    /// A silence that has just ended, if it was long enough to matter.
    pub fn look(&mut self, agent: usize, speaks: bool, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let spell = &mut self.0[agent];
        match (speaks, *spell) {
            (false, Spell { since: Some(_), until: None }) => None,
            (false, Spell { until, .. }) => {
                let goes_on = until.is_some_and(|until| elapsed(until, now) < NEXT_HEARTBEAT);
                spell.since = spell.since.filter(|_| goes_on).or(Some(now));
                spell.until = None;
                None
            }
            (true, Spell { since: Some(since), until: None }) => {
                spell.until = Some(now);
                (elapsed(since, now) >= EXCUSES).then_some((since, now))
            }
            (true, _) => None,
        }
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

pub fn fault(node: &NodeId, since: Timestamp, until: Timestamp) -> Fault {
    Fault {
        name: "silence".into(),
        target: node.to_string(),
        at: since,
        until,
        silenced: vec![node.to_string()],
        hit: vec![],
        bound: Duration::ZERO,
        aftermath: Aftermath::Unwatched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What looks at these seconds give, each with whether the node can speak.
    fn excused(looks: &[(i64, bool)]) -> Vec<(i64, i64)> {
        let mut silence = Silence::new(1);
        let at = |second: i64| Timestamp::from_second(second).expect("in range");
        let ended = looks.iter().filter_map(|(second, speaks)| silence.look(0, *speaks, at(*second)));
        ended.map(|(since, until)| (since.as_second(), until.as_second())).collect()
    }

    #[test]
    fn a_silence_counts_from_a_minute_on() {
        assert_eq!(excused(&[(0, false), (59, true)]), []);
        assert_eq!(excused(&[(0, false), (30, false), (60, true), (61, true)]), [(0, 60)]);
    }

    #[test]
    fn who_can_speak_for_a_moment_between_two_silences_was_silent_all_the_time() {
        assert_eq!(excused(&[(0, false), (50, true), (51, false), (70, true)]), [(0, 70)]);
        assert_eq!(excused(&[(0, false), (50, true), (60, false), (80, true)]), [], "it has spoken");
    }
}
