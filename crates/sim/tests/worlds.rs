//! Goal: one seed is one world, and its promises are kept. Few seeds here, because this is built without
//! optimisation; `cargo xtask test` runs as many as fit into its time, and plants bugs.

use tenure_sim::{Options, run_seed};

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
