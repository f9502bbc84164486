//! When is a want of capacity worth a word? Pure: what is seen and when goes in, what is to be said comes out.
//!
//! One word when a shape of request has fitted nowhere for long enough, however many tasks ask for it, and one when that
//! is over; the same for nodes that have had nothing to do. What comes and goes between two looks is not told, and after
//! a word there is silence for a while: what comes about meanwhile is told together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_clock::BootTime;
use tenure_model::NodeId;

use super::{Shortage, Signal};

/// More shapes than this are not told apart: the rest wait until one of these is over.
pub(super) const MOST_SHAPES: usize = 100;

/// What is told, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRules {
    /// A shape that has fitted nowhere for so long is a shortage.
    pub shortage_after: Duration,
    /// A node that has had nothing to do for so long could go.
    pub idle_after: Duration,
    /// So many connected nodes are never spoken of as idle.
    pub keep_nodes: usize,
    /// Between two words.
    pub interval: Duration,
}

impl Default for SignalRules {
    fn default() -> Self {
        Self {
            shortage_after: Duration::from_secs(60),
            idle_after: Duration::from_secs(600),
            keep_nodes: 1,
            interval: Duration::from_secs(30),
        }
    }
}

/// What one look shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    /// By shape.
    pub short: BTreeMap<String, Shortage>,
    /// Connected nodes that take work and have none.
    pub idle: BTreeSet<NodeId>,
    /// Connected nodes that take work.
    pub nodes: usize,
}

/// What has been told and not taken back: all that the next leader has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Open {
    short: BTreeSet<String>,
    idle: BTreeSet<NodeId>,
}

/// Since when something is so, until when it was last seen, and whether that was said.
#[derive(Clone, Copy, Debug)]
struct Spell {
    since: BootTime,
    seen: BootTime,
    said: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Watch {
    rules: SignalRules,
    short: BTreeMap<String, Spell>,
    idle: BTreeMap<NodeId, Spell>,
    spoke: Option<BootTime>,
}

impl Watch {
    /// Goes on where somebody else stopped. What has not been told yet begins anew.
    pub fn resume(rules: SignalRules, open: Open, now: BootTime) -> Self {
        let said = Spell { since: now, seen: now, said: true };
        Self {
            rules,
            short: open.short.into_iter().map(|shape| (shape, said)).collect(),
            idle: open.idle.into_iter().map(|node| (node, said)).collect(),
            spoke: None,
        }
    }

    pub fn open(&self) -> Open {
        Open { short: said(&self.short), idle: said(&self.idle) }
    }

    pub fn observe(&mut self, sight: &Sight, now: BootTime) -> Vec<Signal> {
        note(&mut self.short, sight.short.keys(), now, MOST_SHAPES);
        note(&mut self.idle, sight.idle.iter(), now, usize::MAX);
        // A task that ends makes room for a moment: that alone is not the end of a shortage.
        let calm = self.rules.shortage_after / 2;
        self.short.retain(|_, spell| spell.said || !spell.is_over(calm, now));
        self.idle.retain(|_, spell| spell.said || !spell.is_over(Duration::ZERO, now));
        if self.spoke.is_some_and(|at| now.saturating_since(at) < self.rules.interval) {
            return vec![];
        }
        let mut signals = self.shortages(sight, calm, now);
        signals.extend(self.idleness(sight, now));
        if !signals.is_empty() {
            self.spoke = Some(now);
        }
        signals
    }

    fn shortages(&mut self, sight: &Sight, calm: Duration, now: BootTime) -> Vec<Signal> {
        let mut signals = vec![];
        for (shape, spell) in &mut self.short {
            if let (Some(shortage), true) =
                (sight.short.get(shape), spell.is_due(self.rules.shortage_after, now))
            {
                spell.said = true;
                signals.push(Signal::CapacityShortage(shortage.clone()));
            }
        }
        let over = take_over(&mut self.short, calm, now);
        signals.extend(over.into_iter().map(|shape| Signal::CapacityShortageOver { shape }));
        signals
    }

    fn idleness(&mut self, sight: &Sight, now: BootTime) -> Vec<Signal> {
        let mut busy = take_over(&mut self.idle, Duration::ZERO, now);
        let may_go = sight.nodes.saturating_sub(self.rules.keep_nodes);
        let offered = self.idle.values().filter(|spell| spell.said).count();
        // Others have gone meanwhile: some of those that could have gone are needed now.
        for (node, spell) in
            self.idle.iter_mut().rev().filter(|(_, spell)| spell.said).take(offered.saturating_sub(may_go))
        {
            spell.said = false;
            busy.push(node.clone());
        }
        let due = self.idle.iter_mut().filter(|(_, spell)| spell.is_due(self.rules.idle_after, now));
        let idle: Vec<NodeId> = due
            .take(may_go.saturating_sub(offered))
            .map(|(node, spell)| {
                spell.said = true;
                node.clone()
            })
            .collect();
        let mut signals = vec![];
        if !busy.is_empty() {
            signals.push(Signal::NodesNoLongerIdle { nodes: busy });
        }
        if !idle.is_empty() {
            signals.push(Signal::NodesIdle { nodes: idle });
        }
        signals
    }
}

impl Spell {
    fn is_due(&self, after: Duration, now: BootTime) -> bool {
        !self.said && self.seen == now && now.saturating_since(self.since) >= after
    }

    fn is_over(&self, calm: Duration, now: BootTime) -> bool {
        self.seen < now && now.saturating_since(self.seen) >= calm
    }
}

fn said<K: Ord + Clone>(spells: &BTreeMap<K, Spell>) -> BTreeSet<K> {
    spells.iter().filter(|(_, spell)| spell.said).map(|(key, _)| key.clone()).collect()
}

fn note<'a, K: Ord + Clone + 'a>(
    spells: &mut BTreeMap<K, Spell>,
    seen: impl Iterator<Item = &'a K>,
    now: BootTime,
    most: usize,
) {
    for key in seen {
        if let Some(spell) = spells.get_mut(key) {
            spell.seen = now;
        } else if spells.len() < most {
            spells.insert(key.clone(), Spell { since: now, seen: now, said: false });
        }
    }
}

/// Forgets what has not been seen for so long, and answers with it.
fn take_over<K: Ord + Clone>(spells: &mut BTreeMap<K, Spell>, calm: Duration, now: BootTime) -> Vec<K> {
    let over: Vec<K> =
        spells.iter().filter(|(_, spell)| spell.is_over(calm, now)).map(|(key, _)| key.clone()).collect();
    for key in &over {
        spells.remove(key);
    }
    over
}

#[cfg(test)]
mod tests {
    //! Goal: one word for each shortage, not for each task, and none for what passes by itself.

    use tenure_model::Resources;

    use super::*;

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(seconds))
    }

    fn shortage(shape: &str, tasks: u32) -> Shortage {
        let each = Resources::default().with("gpu", 1_000);
        let missing = Resources::default().with("gpu", u64::from(tasks) * 1_000);
        let (shape, reason) = (shape.to_owned(), "no node has one".to_owned());
        Shortage { shape, each, labels: BTreeMap::new(), queue: Default::default(), tasks, missing, reason }
    }

    fn short(tasks: u32) -> Sight {
        short_of(&["gpu 1"], tasks)
    }

    fn short_of(shapes: &[&str], tasks: u32) -> Sight {
        let one = |shape: &&str| ((*shape).to_owned(), shortage(shape, tasks));
        Sight { short: shapes.iter().map(one).collect(), ..Sight::default() }
    }

    fn idle(names: &[&str], nodes: usize) -> Sight {
        Sight { idle: names.iter().map(NodeId::new).collect(), nodes, ..Sight::default() }
    }

    fn new(rules: SignalRules) -> Watch {
        Watch::resume(rules, Open::default(), at(0))
    }

    /// The defaults, with no silence after a word.
    fn talkative() -> SignalRules {
        SignalRules { interval: Duration::ZERO, ..SignalRules::default() }
    }

    fn names(signals: &[Signal]) -> Vec<String> {
        let joined = |nodes: &[NodeId]| nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(" ");
        let name = |signal: &Signal| match signal {
            Signal::CapacityShortage(shortage) => {
                format!("short of {} for {}", shortage.shape, shortage.tasks)
            }
            Signal::CapacityShortageOver { shape } => format!("{shape} over"),
            Signal::NodesIdle { nodes } => format!("idle {}", joined(nodes)),
            Signal::NodesNoLongerIdle { nodes } => format!("busy {}", joined(nodes)),
        };
        signals.iter().map(name).collect()
    }

    #[test]
    fn a_shortage_is_told_once_after_its_time_and_once_when_it_is_over() {
        let mut watch = new(talkative());
        assert!(watch.observe(&short(1), at(0)).is_empty());
        assert!(watch.observe(&short(5), at(59)).is_empty());
        assert_eq!(names(&watch.observe(&short(7), at(60))), ["short of gpu 1 for 7"]);
        assert!(watch.observe(&short(9), at(600)).is_empty(), "one for each shortage, not for each task");
        assert!(watch.observe(&Sight::default(), at(615)).is_empty(), "it may be only a moment");
        assert!(watch.observe(&short(9), at(630)).is_empty(), "it was");
        assert_eq!(names(&watch.observe(&Sight::default(), at(660))), ["gpu 1 over"]);
        assert!(watch.observe(&Sight::default(), at(700)).is_empty());
    }

    #[test]
    fn what_passes_before_its_time_is_never_spoken_of() {
        let mut watch = new(talkative());
        watch.observe(&short(1), at(0));
        assert!(watch.observe(&Sight::default(), at(40)).is_empty());
        assert!(watch.observe(&short(1), at(70)).is_empty(), "another one, with a time of its own");
        assert_eq!(names(&watch.observe(&short(1), at(130))), ["short of gpu 1 for 1"]);
    }

    #[test]
    fn after_a_word_there_is_silence_and_what_comes_and_goes_meanwhile_is_never_told() {
        let mut watch = new(SignalRules { interval: Duration::from_secs(300), ..SignalRules::default() });
        watch.observe(&short_of(&["a"], 1), at(0));
        assert_eq!(names(&watch.observe(&short_of(&["a", "b"], 1), at(60))), ["short of a for 1"]);
        assert!(watch.observe(&short_of(&["b", "c"], 1), at(130)).is_empty(), "b is due and a is over");
        assert!(watch.observe(&short_of(&["a", "b"], 1), at(359)).is_empty(), "a is there again, c is not");
        let told = watch.observe(&short_of(&["b"], 2), at(360));
        assert_eq!(names(&told), ["short of b for 2"], "all at once, when the silence is over");
        assert_eq!(names(&watch.observe(&Sight::default(), at(660))), ["a over", "b over"]);
    }

    #[test]
    fn however_many_shapes_there_are_only_so_many_are_told() {
        let shapes: Vec<String> = (0..MOST_SHAPES + 50).map(|number| format!("gpu {number:04}")).collect();
        let shapes: Vec<&str> = shapes.iter().map(String::as_str).collect();
        let mut watch = new(talkative());
        watch.observe(&short_of(&shapes, 1), at(0));
        assert_eq!(watch.observe(&short_of(&shapes, 1), at(60)).len(), MOST_SHAPES);
        assert!(watch.observe(&short_of(&shapes, 1), at(120)).is_empty());
    }

    #[test]
    fn idle_nodes_are_offered_above_the_number_that_is_kept() {
        let mut watch = new(SignalRules { keep_nodes: 2, ..talkative() });
        assert!(watch.observe(&idle(&["a", "b", "c"], 4), at(0)).is_empty());
        let told = watch.observe(&idle(&["a", "b", "c"], 4), at(600));
        assert_eq!(names(&told), ["idle a b"], "two of four stay");
        assert!(watch.observe(&idle(&["a", "b", "c"], 4), at(900)).is_empty());
        assert_eq!(names(&watch.observe(&idle(&["b", "c"], 4), at(960))), ["busy a", "idle c"]);
        let others_are_gone = watch.observe(&idle(&["b", "c"], 3), at(990));
        assert_eq!(names(&others_are_gone), ["busy c"], "two must stay, and only one of three may go");
    }

    #[test]
    fn the_next_leader_goes_on_where_the_last_one_stopped() {
        let mut first = new(SignalRules { keep_nodes: 0, ..talkative() });
        let sight = Sight { short: short(3).short, ..idle(&["a"], 1) };
        first.observe(&sight, at(0));
        assert_eq!(names(&first.observe(&sight, at(600))), ["short of gpu 1 for 3", "idle a"]);

        let kept = serde_json::to_string(&first.open()).unwrap();
        let open: Open = serde_json::from_str(&kept).unwrap();
        let mut next = Watch::resume(talkative(), open, at(1_000));
        assert!(next.observe(&Sight { nodes: 2, ..sight }, at(1_001)).is_empty(), "nothing is told twice");
        assert_eq!(names(&next.observe(&Sight::default(), at(1_040))), ["gpu 1 over", "busy a"]);
        assert_eq!(next.open(), Open::default());
    }
}
