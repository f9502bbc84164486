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

#[derive(Debug)]
pub struct Silence(Vec<Option<Timestamp>>);

impl Silence {
    /// Nobody is there yet.
    pub fn new(agents: usize) -> Self {
        Self(vec![None; agents])
    }

    /// A silence that has just ended, if it was long enough to matter.
    pub fn look(&mut self, agent: usize, speaks: bool, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        match (speaks, self.0[agent]) {
            (false, None) => self.0[agent] = Some(now),
            (true, Some(since)) => {
                self.0[agent] = None;
                let lasted = now.duration_since(since);
                let long = Duration::try_from(lasted).is_ok_and(|lasted| lasted >= EXCUSES);
                return long.then_some((since, now));
            }
            (true, None) | (false, Some(_)) => {}
        }
        None
    }
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
