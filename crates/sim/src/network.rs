//! What lies between the processes: delays, losses, doubles, cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dice::Dice;
use crate::store::PATIENCE;

/// Slowest round trip of a healthy database, and of a healthy network to an agent.
const LATENCY: Duration = Duration::from_millis(3);
/// What a message takes at least.
pub const QUICK: Duration = Duration::from_millis(1);

/// Which way nothing gets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub there: bool,
    pub back: bool,
}

/// The state of all connections.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Between a replica and the store.
    pub store_cuts: BTreeMap<usize, Cut>,
    /// Between a replica and its leases, wherever they are.
    pub lease_cuts: BTreeMap<usize, Cut>,
    /// Between an agent (there: to the replica) and a replica.
    pub agent_cuts: BTreeMap<(usize, usize), Cut>,
    /// The store refuses everybody.
    pub store_down: bool,
    /// How long the store takes at most.
    pub store_slow: Option<Duration>,
    /// How many in a hundred answers of the store are lost.
    pub store_forgets: f64,
    /// Messages between agents and replicas.
    pub lossy: f64,
    pub doubling: f64,
    pub shuffling: Option<Duration>,
    /// Wakes and hints that do not arrive.
    pub deaf: BTreeSet<usize>,
}

/// What becomes of one call to the store.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub there: Duration,
    pub back: Duration,
    pub refused: bool,
    pub lost_there: bool,
    pub lost_back: bool,
    /// A lost connection is noticed at once, or only by waiting.
    pub noticed: bool,
    /// For the matrix.
    pub fault: Option<&'static str>,
}

impl Fate {
    /// Whether there will be an answer while somebody waits for it.
    pub fn is_in_time(&self) -> bool {
        !self.lost_there && !self.lost_back && self.there + self.back < PATIENCE
    }
}

impl Network {
    pub fn fate_of_call(&self, replica: usize, about_leases: bool, dice: &Dice) -> Fate {
        let cuts = if about_leases { &self.lease_cuts } else { &self.store_cuts };
        let cut = cuts.get(&replica).copied().unwrap_or_default();
        let slow = |dice: &Dice| self.store_slow.map_or(QUICK, |most| dice.between(QUICK, most));
        let (there, back) = (slow(dice), slow(dice));
        let forgotten = self.store_forgets > 0.0 && dice.chance(self.store_forgets);
        // Either way the caller does not know; half of what is lost never arrived.
        let on_its_way = forgotten && dice.chance(50.0);
        let (lost_there, lost_back) = (cut.there || on_its_way, cut.back || (forgotten && !on_its_way));
        let fault = match () {
            () if self.store_down => Some("store down"),
            () if cut.there => Some("cut from store"),
            () if cut.back => Some("answers cut"),
            () if on_its_way => Some("request lost"),
            () if forgotten => Some("answer lost"),
            () if self.store_slow.is_some() => Some("slow store"),
            () => None,
        };
        let noticed = forgotten && dice.chance(50.0);
        Fate { there, back, refused: self.store_down, lost_there, lost_back, noticed, fault }
    }

    pub fn cut_between(&self, agent: usize, replica: usize) -> Cut {
        self.agent_cuts.get(&(agent, replica)).copied().unwrap_or_default()
    }

    /// When each copy of a message arrives; none: it is lost.
    pub fn copies(&self, dice: &Dice) -> (Vec<Duration>, Option<&'static str>) {
        if self.lossy > 0.0 && dice.chance(self.lossy) {
            return (vec![], Some("message lost"));
        }
        let delay = |dice: &Dice| match self.shuffling {
            Some(most) => dice.spread(QUICK, most),
            None => dice.between(QUICK, LATENCY),
        };
        let mut copies = vec![delay(dice)];
        let doubled = self.doubling > 0.0 && dice.chance(self.doubling);
        if doubled {
            copies.push(delay(dice));
            copies.push(delay(dice));
        }
        let fault = match (doubled, self.shuffling) {
            (true, _) => Some("message doubled"),
            (false, Some(_)) => Some("message late"),
            (false, None) => None,
        };
        (copies, fault)
    }
}
