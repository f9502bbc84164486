//! Explores, and says what was found.

use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::model::{Event, Protocol};

/// A complete exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    pub states: usize,
    pub transitions: usize,
    pub depth: usize,
    pub took: Duration,
    pub kept: Vec<&'static str>,
    /// Promises that do not hold, with a story.
    pub broken: Vec<Found>,
    pub reached: Vec<&'static str>,
    /// What should have been possible, and was not.
    pub unreached: Vec<&'static str>,
    /// How often each kind of step was taken.
    pub events: Vec<(Event, u64)>,
}

/// A promise that does not hold.
#[derive(Clone, Debug)]
pub struct Found {
    pub property: &'static str,
    /// One step for each line.
    pub story: Vec<String>,
}

impl Exploration {
    /// Every promise is kept, and everything that should be possible has happened.
    pub fn is_fine(&self) -> bool {
        self.broken.is_empty() && self.unreached.is_empty() && self.events.iter().all(|(_, count)| *count > 0)
    }
}

/// What several worlds show together.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    /// Promises that no world has broken.
    pub kept: Vec<&'static str>,
    /// What happens in every world in which it should be possible.
    pub reached: Vec<&'static str>,
    /// The same for kinds of steps: how often they were taken, in all worlds together.
    pub events: Vec<(Event, u64)>,
}

impl Summary {
    pub fn of(worlds: &[Exploration]) -> Self {
        let broken = worlds.iter().flat_map(|world| &world.broken).map(|found| found.property).collect();
        let unreached = worlds.iter().flat_map(|world| world.unreached.clone()).collect();
        Self {
            kept: without(broken, worlds.iter().flat_map(|world| &world.kept)),
            reached: without(unreached, worlds.iter().flat_map(|world| &world.reached)),
            events: Event::ALL.into_iter().filter_map(|event| Some((event, taken(event, worlds)?))).collect(),
        }
    }
}

/// Each name once, in the order in which they first appear.
fn without<'a>(
    excluded: Vec<&'static str>,
    names: impl Iterator<Item = &'a &'static str>,
) -> Vec<&'static str> {
    let mut left = vec![];
    for name in names.filter(|name| !excluded.contains(name)) {
        if !left.contains(name) {
            left.push(*name);
        }
    }
    left
}

/// None: in no world, or not in one in which it should have been.
fn taken(event: Event, worlds: &[Exploration]) -> Option<u64> {
    let of_it = worlds.iter().flat_map(|world| &world.events).filter(|(known, _)| *known == event);
    let counts: Vec<u64> = of_it.map(|(_, count)| *count).collect();
    (!counts.is_empty() && !counts.contains(&0)).then(|| counts.iter().sum())
}

impl Found {
    /// How many steps it takes.
    pub fn depth(&self) -> usize {
        self.story.len()
    }
}

/// Visits every state.
pub fn explore(protocol: Protocol) -> Exploration {
    let counts = std::sync::Arc::clone(&protocol.counts);
    let possible: Vec<Event> = Event::ALL.into_iter().filter(|event| event.can_happen(&protocol)).collect();
    let properties = protocol.properties();
    let started = stopwatch();
    let checker = protocol.checker().threads(1).spawn_bfs().join();
    let took = started.elapsed();
    let mut exploration = Exploration {
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        took,
        kept: vec![],
        broken: vec![],
        reached: vec![],
        unreached: vec![],
        events: possible.into_iter().map(|event| (event, counts.of(event))).collect(),
    };
    for property in properties {
        let name = property.name;
        match (property.expectation, checker.discovery(name)) {
            (Expectation::Always | Expectation::Eventually, None) => exploration.kept.push(name),
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                let story = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
                exploration.broken.push(Found { property: name, story });
            }
            (Expectation::Sometimes, Some(_)) => exploration.reached.push(name),
            (Expectation::Sometimes, None) => exploration.unreached.push(name),
        }
    }
    exploration
}

/// Goes as deep as it takes to find a promise that does not hold.
pub fn hunt(protocol: Protocol) -> Option<Found> {
    let properties = protocol.properties();
    let checker = protocol.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = properties.iter().filter_map(|property| {
        let path = checker.discovery(property.name)?;
        let story = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        Some(Found { property: property.name, story })
    });
    found.min_by_key(Found::depth)
}

/// Real time, for people to read.
#[allow(clippy::disallowed_methods, reason = "a developer tool times itself; nothing is decided by it")]
pub fn stopwatch() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    //! Goal: what is said of all worlds is true in each of them. Method: two small reports.

    use super::*;

    fn world(kept: &[&'static str], broken: &[&'static str]) -> Exploration {
        let found = |property: &&'static str| Found { property, story: vec![] };
        Exploration {
            states: 1,
            transitions: 1,
            depth: 1,
            took: Duration::ZERO,
            kept: kept.to_vec(),
            broken: broken.iter().map(found).collect(),
            reached: vec![],
            unreached: vec![],
            events: vec![],
        }
    }

    #[test]
    fn a_promise_that_any_world_breaks_is_not_kept() {
        let worlds = [world(&["P1", "P2"], &[]), world(&["P2"], &["P1"])];
        assert_eq!(Summary::of(&worlds).kept, ["P2"]);
    }

    #[test]
    fn what_only_some_worlds_can_reach_counts_unless_one_of_them_has_not() {
        let first = Exploration { reached: vec!["a", "b"], ..world(&[], &[]) };
        let second = Exploration { reached: vec!["a", "c"], unreached: vec!["b"], ..world(&[], &[]) };
        assert_eq!(Summary::of(&[first, second]).reached, ["a", "c"]);
    }

    #[test]
    fn steps_are_added_up_unless_a_world_that_should_have_them_has_none() {
        let [takeover, fenced, reaped] = [Event::Takeover, Event::WriteFenced, Event::Reaped];
        let first = Exploration { events: vec![(takeover, 2), (fenced, 1), (reaped, 1)], ..world(&[], &[]) };
        let second = Exploration { events: vec![(takeover, 3), (reaped, 0)], ..world(&[], &[]) };
        assert_eq!(Summary::of(&[first, second]).events, [(takeover, 5), (fenced, 1)]);
    }
}
