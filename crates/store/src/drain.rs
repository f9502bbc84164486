//! Emptying a node: what an operator asked for and how far it has come.
//!
//! It stands in the node's row, so that it outlives every process. Owners of shards read it with their limits: a
//! draining node gets nothing new, and from [`DrainStage::Stopping`] on each owner stops what it has there. The stage
//! is moved on only by whoever holds the lease of [`drain_scope`], under its fence: two cannot fight over a node.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_lease::Scope;
use tenure_model::NodeId;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// When it was first asked for; tells this drain from a later one.
    pub since: Timestamp,
    /// Until then what runs there may finish by itself.
    pub deadline: Timestamp,
    /// Who asked.
    pub by: String,
    pub stage: DrainStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainStage {
    /// Nothing new comes; what runs may finish.
    Finishing,
    /// The deadline has passed: what still runs is being stopped and goes elsewhere.
    Stopping,
    /// Nothing is bound there any more.
    Drained,
}

impl DrainStage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finishing => "finishing",
            Self::Stopping => "stopping",
            Self::Drained => "drained",
        }
    }
}

/// What is led while a node is emptied.
pub fn drain_scope(node: &NodeId) -> Scope {
    Scope::new(format!("node/{node}/drain"))
}

impl Drain {
    /// Asked for again, a drain goes on with another deadline. What was stopped is not taken back.
    pub fn asked(before: Option<&Self>, deadline: Timestamp, by: &str, at: Timestamp) -> Self {
        let by = by.to_owned();
        match before {
            None => Self { since: at, deadline, by, stage: DrainStage::Finishing },
            Some(before) => Self { since: before.since, deadline, by, stage: before.stage },
        }
    }

    /// The next step of the drain that began at `since`. `None`: it is another one by now, or has come that far.
    pub fn advanced(&self, since: Timestamp, to: DrainStage) -> Option<Self> {
        (self.since == since && self.stage < to).then(|| Self { stage: to, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a drain only ever goes forward, and a step meant for one drain never moves another.

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn asking_again_moves_the_deadline_and_nothing_else() {
        let first = Drain::asked(None, at(60), "ada", at(0));
        let stopping = first.advanced(at(0), DrainStage::Stopping).unwrap();
        let again = Drain::asked(Some(&stopping), at(90), "bob", at(30));
        let expected =
            Drain { since: at(0), deadline: at(90), by: "bob".into(), stage: DrainStage::Stopping };
        assert_eq!(again, expected);
    }

    #[test]
    fn a_step_counts_once_and_for_its_own_drain() {
        let drain = Drain::asked(None, at(60), "ada", at(0));
        assert_eq!(drain.advanced(at(1), DrainStage::Stopping), None);
        let drained = drain.advanced(at(0), DrainStage::Drained).unwrap();
        assert_eq!(drained.advanced(at(0), DrainStage::Stopping), None);
        assert_eq!(drained.advanced(at(0), DrainStage::Drained), None);
    }
}
