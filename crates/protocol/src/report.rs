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
