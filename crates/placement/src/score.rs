//! Which of the nodes that can take a request is the best.
//!
//! Every part is worth from 0 to 1,000 points, or as many off, times its weight. Whole numbers only: the same node
//! gets the same score on every machine.

use serde::{Deserialize, Serialize};

/// What makes a node good, for everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub strategy: Strategy,
    pub weights: Weights,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The emptiest node first: tasks disturb each other least.
    #[default]
    Spread,
    /// The fullest node first: others stay empty for large tasks, or can be switched off.
    Pack,
}

/// Each is at least twice the one before it, so that of two parts that differ as far as they can the heavier one decides, and
/// lighter ones cannot outvote it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// What the task needs has run on the node.
    pub locality: u16,
    /// Attempts that failed on the node lately, whoever's they were.
    pub failed_lately: u16,
    /// How full it is.
    pub load: u16,
    /// `affinity.prefer`.
    pub preferred: u16,
    /// `affinity.spread`.
    pub spread: u16,
    /// This task's previous try failed there.
    pub failed_here: u16,
}

impl Default for Weights {
    fn default() -> Self {
        Self { locality: 2, failed_lately: 5, load: 10, preferred: 20, spread: 40, failed_here: 80 }
    }
}

/// What a node is worth to a request, by what it is worth it for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoreParts {
    pub load: i64,
    pub preferred: i64,
    pub spread: i64,
    /// Never above zero.
    pub failed_here: i64,
    /// Never above zero.
    pub failed_lately: i64,
    pub locality: i64,
}

impl ScoreParts {
    pub fn total(&self) -> i64 {
        self.load + self.wishes() + self.failed_lately + self.locality
    }

    /// What the request itself has to say, not how the cluster is.
    pub(crate) fn wishes(&self) -> i64 {
        self.preferred + self.spread + self.failed_here
    }
}

pub(crate) const MOST_POINTS: i64 = 1_000;

/// What is known of a node when it is scored.
pub(crate) struct Facts {
    /// Millionths.
    pub load: u32,
    /// Points.
    pub preferred: i64,
    /// How many more of the group are at the node's value of the label than at the emptiest value. `None`: it has no
    /// value, which is worth nothing.
    pub beyond_least: Option<u32>,
    pub failed_here: bool,
    /// Points.
    pub failed_lately: i64,
    /// Points.
    pub locality: i64,
}

impl Policy {
    pub(crate) fn score(&self, facts: &Facts) -> ScoreParts {
        let load = i64::from(facts.load) / 1_000;
        let load = match self.strategy {
            Strategy::Spread => MOST_POINTS - load,
            Strategy::Pack => load,
        };
        let spread = facts.beyond_least.map_or(0, |beyond| MOST_POINTS / (1 + i64::from(beyond)));
        let failed_here = if facts.failed_here { -MOST_POINTS } else { 0 };
        let Weights {
            locality,
            failed_lately,
            load: by_load,
            preferred,
            spread: by_spread,
            failed_here: here,
        } = self.weights;
        ScoreParts {
            load: load * i64::from(by_load),
            preferred: facts.preferred * i64::from(preferred),
            spread: spread * i64::from(by_spread),
            failed_here: failed_here * i64::from(here),
            failed_lately: -facts.failed_lately * i64::from(failed_lately),
            locality: facts.locality * i64::from(locality),
        }
    }

    /// Among nodes of the same score, lower is better: exactly how full, in the direction of the strategy.
    pub(crate) fn tie(&self, load: u32) -> u32 {
        match self.strategy {
            Strategy::Spread => load,
            Strategy::Pack => u32::MAX - load,
        }
    }
}
