//! Goal: whatever the network, the processes and the store do, two terms of a scope are never valid at once, epochs
//! grow, nothing spins, everything stops when told to, and every scope has an owner soon after the trouble has ended.
//! Method: several `Protocol`s on one `MemoryLeases` in virtual time, with seeded faults between them, and the
//! promises checked at every step.
//!
//! `TENURE_SIM_SEED=n` replays one seed and prints its trace; `TENURE_SIM_SEEDS=n` runs so many of each kind.

mod sim;

use sim::world::{Kind, World};

/// Of each kind, so that all of them take a few seconds in a debug build.
const SEEDS: u64 = 100;

fn run(kind: Kind) {
    if let Some(seed) = number("TENURE_SIM_SEED") {
        World::new(kind, seed, true).run();
        return;
    }
    for seed in 0..number("TENURE_SIM_SEEDS").unwrap_or(SEEDS) {
        World::new(kind, seed, false).run();
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

#[test]
fn a_store_that_fences_by_itself_survives_honest_faults() {
    run(Kind { name: "a_store_that_fences_by_itself_survives_honest_faults", fenced: true, lies: false });
}

#[test]
fn a_store_that_leaves_fences_to_the_winner_survives_honest_faults() {
    let name = "a_store_that_leaves_fences_to_the_winner_survives_honest_faults";
    run(Kind { name, fenced: false, lies: false });
}

#[test]
fn a_store_that_fences_by_itself_survives_false_hints_and_lost_records() {
    let name = "a_store_that_fences_by_itself_survives_false_hints_and_lost_records";
    run(Kind { name, fenced: true, lies: true });
}

#[test]
fn a_store_that_leaves_fences_to_the_winner_survives_false_hints_and_lost_records() {
    let name = "a_store_that_leaves_fences_to_the_winner_survives_false_hints_and_lost_records";
    run(Kind { name, fenced: false, lies: true });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let kind = Kind { name: "the_same_seed_gives_the_same_trace", fenced: false, lies: true };
    let hashes: Vec<u64> = (0..20).map(|seed| World::new(kind, seed, false).run()).collect();
    let again: Vec<u64> = (0..20).map(|seed| World::new(kind, seed, false).run()).collect();
    assert_eq!(hashes, again);
    let distinct: std::collections::BTreeSet<&u64> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len(), "different seeds give different traces");
}
