//! Goal: one seed is one world, and its promises are kept; and a bug that breaks one is found. Few seeds here: `cargo xtask
//! test` runs two thousand.

use std::collections::BTreeSet;

use tenure_judge::checker::Promise;
use tenure_sim::{Options, PLANTS, Planted, run_seed};

fn plain(seed: u64) -> Options {
    Options { seed, telling: false, plant: None }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_does_not() {
    let (first, again, other) = (run_seed(plain(3)), run_seed(plain(3)), run_seed(plain(4)));
    assert_eq!((first.hash, first.events), (again.hash, again.events));
    assert_eq!(first.history, again.history);
    assert_ne!(first.hash, other.hash);
}

#[test]
fn telling_the_story_changes_nothing() {
    let told = run_seed(Options { telling: true, ..plain(5) });
    assert_eq!(told.hash, run_seed(plain(5)).hash);
    assert!(!told.story.is_empty());
}

#[test]
fn a_world_with_faults_keeps_its_promises() {
    let seen = run_seed(plain(2));
    assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
    assert!(seen.counts.attempts > 20, "it did nothing: {:?}", seen.counts);
    assert!(!seen.matrix.is_empty(), "it met no fault");
}

#[test]
fn in_a_world_short_of_room_tasks_wait_for_it_and_its_promises_are_kept() {
    let (short, plenty) = (run_seed(plain(1_000_004)), run_seed(plain(2)));
    assert!(short.violations.is_empty(), "{:#?}", short.violations);
    assert!(short.counts.filled > 100, "nobody waited: {:?}", short.counts);
    assert_eq!(plenty.counts.filled, 0, "not every world is short");
}

#[test]
fn every_planted_bug_is_found_as_what_it_is() {
    for Planted { name, plant, breaks, seed } in PLANTS {
        let sound = run_seed(plain(seed));
        assert!(sound.violations.is_empty(), "seed {seed}: {:#?}", sound.violations);
        let seen = run_seed(Options { plant: Some(plant), ..plain(seed) });
        let found = seen.violations.iter().any(|violation| violation.promise == breaks);
        assert!(
            found,
            "{name}: seed {seed} does not show it any more; `cargo xtask sim --self-test` finds one"
        );
    }
}

#[test]
fn every_promise_has_a_planted_bug() {
    use Promise::*;
    let broken: BTreeSet<Promise> = PLANTS.iter().map(|planted| planted.breaks).collect();
    assert!(broken.is_superset(&BTreeSet::from([P1, P2, P3, P4, P5, P6, P7, P8, P9])), "{broken:?}");
}
