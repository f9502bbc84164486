//! Dag specs, parsed once. The key is the hash of the content, so an entry cannot go stale.
//!
//! There is room for so many tasks. Whoever needs a spec now gets it in, and what nobody has asked for longest makes way.
//! Reading ahead displaces only what nobody has asked for since the last time: where more is in force than there is room
//! for, going through all of it in order would otherwise throw out each spec just before its turn, round after round.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_model::{DagSpec, VersionHash};

/// About 1 kB each, so this many cost about 200 MB at the very most.
const MOST_TASKS: usize = 200_000;

#[derive(Debug)]
pub struct SpecCache {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    specs: HashMap<VersionHash, Entry>,
    /// By when they were last asked for, the longest ago first.
    order: BTreeMap<u64, VersionHash>,
    /// Counts the uses.
    now: u64,
    /// When the last two rounds of reading ahead began.
    rounds: [u64; 2],
    room: usize,
    all_room: usize,
}

#[derive(Debug)]
struct Entry {
    spec: Arc<DagSpec>,
    used: u64,
}

impl Default for SpecCache {
    fn default() -> Self {
        Self::with_room(MOST_TASKS)
    }
}

impl SpecCache {
    fn with_room(room: usize) -> Self {
        let (specs, order) = Default::default();
        Self { known: Mutex::new(Known { specs, order, now: 0, rounds: [0; 2], room, all_room: room }) }
    }

    pub fn get(&self, hash: &VersionHash) -> Option<Arc<DagSpec>> {
        self.known().get(hash)
    }

    /// For somebody who needs it now.
    pub fn remember(&self, hash: VersionHash, spec: Arc<DagSpec>) -> Arc<DagSpec> {
        self.known().insert(hash, &spec, u64::MAX);
        spec
    }

    /// A round of reading ahead begins.
    pub fn begin_round(&self) {
        let mut known = self.known();
        known.rounds = [known.rounds[1], known.now];
    }

    /// For nobody yet. False: there is no room for it.
    pub fn remember_ahead(&self, hash: VersionHash, spec: &Arc<DagSpec>) -> bool {
        let mut known = self.known();
        let cold = known.rounds[0];
        known.insert(hash, spec, cold)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Known {
    fn get(&mut self, hash: &VersionHash) -> Option<Arc<DagSpec>> {
        let entry = self.specs.get_mut(hash)?;
        self.order.remove(&entry.used);
        self.now += 1;
        entry.used = self.now;
        self.order.insert(self.now, hash.clone());
        Some(Arc::clone(&entry.spec))
    }

    /// Makes room by what nobody has asked for since `cold`, if that is enough.
    fn insert(&mut self, hash: VersionHash, spec: &Arc<DagSpec>, cold: u64) -> bool {
        if self.get(&hash).is_some() {
            return true;
        }
        let needed = weight(spec);
        if needed > self.all_room {
            return false;
        }
        while self.room < needed {
            let oldest = self.order.first_entry().filter(|oldest| *oldest.key() <= cold);
            let Some(oldest) = oldest else { return false };
            let gone = self.specs.remove(&oldest.remove()).expect("what is in order is known");
            self.room += weight(&gone.spec);
        }
        self.room -= needed;
        self.now += 1;
        self.order.insert(self.now, hash.clone());
        self.specs.insert(hash, Entry { spec: Arc::clone(spec), used: self.now });
        true
    }
}

/// A spec without tasks takes room too.
fn weight(spec: &DagSpec) -> usize {
    spec.tasks.len() + 1
}

#[cfg(test)]
mod tests {
    //! Goal: a full cache forgets little, and what is needed least.

    use tenure_model::{TaskKind, TaskSpec};

    use super::*;

    /// Takes four of whatever room there is.
    fn spec(name: &str) -> (VersionHash, Arc<DagSpec>) {
        let task = |n| TaskSpec::new(format!("t{n}"), TaskKind::Empty);
        let spec = DagSpec::new(name, (0..3).map(task).collect());
        (VersionHash::from_hex(name), Arc::new(spec))
    }

    fn remember(cache: &SpecCache, name: &str) {
        let (hash, spec) = spec(name);
        cache.remember(hash, spec);
    }

    /// One round over these, as a store does it. Answers with those it had to read.
    fn round(cache: &SpecCache, in_force: &[&str]) -> Vec<String> {
        cache.begin_round();
        let missing = in_force.iter().filter(|name| cache.get(&spec(name).0).is_none());
        let mut read = vec![];
        for name in missing {
            read.push((*name).to_owned());
            let (hash, spec) = spec(name);
            if !cache.remember_ahead(hash, &spec) {
                break;
            }
        }
        read
    }

    fn known(cache: &SpecCache) -> Vec<String> {
        let mut known: Vec<String> =
            cache.known().specs.values().map(|entry| entry.spec.id.to_string()).collect();
        known.sort();
        known
    }

    #[test]
    fn what_nobody_has_asked_for_longest_makes_way_and_nothing_else() {
        let cache = SpecCache::with_room(12);
        ["a", "b", "c"].iter().for_each(|name| remember(&cache, name));
        assert!(cache.get(&spec("a").0).is_some());
        remember(&cache, "d");
        assert_eq!(known(&cache), ["a", "c", "d"]);
    }

    #[test]
    fn a_spec_that_is_remembered_twice_takes_its_room_once() {
        let cache = SpecCache::with_room(8);
        ["a", "b", "b", "b"].iter().for_each(|name| remember(&cache, name));
        assert_eq!(known(&cache), ["a", "b"]);
    }

    #[test]
    fn where_more_is_in_force_than_fits_rounds_do_not_read_it_all_again() {
        let cache = SpecCache::with_room(8);
        assert_eq!(round(&cache, &["a", "b", "c", "d", "e"]), ["a", "b", "c"], "c finds no room");
        for _ in 0..3 {
            assert_eq!(round(&cache, &["a", "b", "c", "d", "e"]), ["c"]);
            assert_eq!(known(&cache), ["a", "b"]);
        }
    }

    #[test]
    fn what_is_no_longer_in_force_makes_way_for_what_is() {
        let cache = SpecCache::with_room(8);
        round(&cache, &["a", "b"]);
        for _ in 0..3 {
            round(&cache, &["a", "new"]);
        }
        assert_eq!(known(&cache), ["a", "new"]);
    }

    #[test]
    fn what_is_larger_than_all_the_room_there_is_displaces_nothing() {
        let cache = SpecCache::with_room(8);
        remember(&cache, "a");
        let tasks = (0..8).map(|n| TaskSpec::new(format!("t{n}"), TaskKind::Empty)).collect();
        cache.remember(VersionHash::from_hex("large"), Arc::new(DagSpec::new("large", tasks)));
        assert_eq!(known(&cache), ["a"]);
    }
}
