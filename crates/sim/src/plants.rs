//! Bugs on purpose, to show that they are found: for every promise at least one that breaks it.

use tenure_judge::checker::Promise;
use tenure_store_memory::Flaw;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A bug of the store.
    Store(Flaw),
    /// With a lease that is revoked its epoch is forgotten.
    EpochsStartOver,
    /// An agent does not wait for the answer to its claim.
    StartUnclaimed,
    /// Nodes are given up after a moment of silence.
    HastyReaper,
    /// Leases last for half an hour, and nobody says who has died.
    LongLeases,
}

impl Plant {
    pub fn of_store(self) -> Option<Flaw> {
        match self {
            Self::Store(flaw) => Some(flaw),
            _ => None,
        }
    }

    /// The verb at which replicas have to be struck, where few worlds would do it by chance.
    pub fn weak_spot(self) -> Option<&'static str> {
        (self == Self::Store(Flaw::UnfencedTrades)).then_some("trade_shares")
    }
}

/// A bug, the promise that it breaks, and a seed that shows it.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    pub name: &'static str,
    pub plant: Plant,
    pub breaks: Promise,
    pub seed: u64,
}

pub const PLANTS: [Planted; 10] = [
    Planted::new("epochs start over when a lease is revoked", Plant::EpochsStartOver, Promise::P1, 1),
    Planted::new("a deposed owner's writes are taken", Plant::Store(Flaw::NoFence), Promise::P2, 3),
    Planted::new("an agent starts without its claim", Plant::StartUnclaimed, Promise::P3, 1),
    Planted::new("a due run is made twice", Plant::Store(Flaw::DueRunsTwice), Promise::P4, 1),
    Planted::new("the end of an attempt is taken twice", Plant::Store(Flaw::EndsTwice), Promise::P5, 3),
    Planted::new("nodes are given up after a moment of silence", Plant::HastyReaper, Promise::P6, 1),
    Planted::new("a report is taken for any attempt", Plant::Store(Flaw::AnyAttempt), Promise::P7, 5),
    Planted::new("a run is acknowledged and lost", Plant::Store(Flaw::LosesRuns), Promise::P8, 1),
    Planted::new("leases last for half an hour", Plant::LongLeases, Promise::P9, 2),
    Planted::new("a deposed owner's trade is taken", Plant::Store(Flaw::UnfencedTrades), Promise::Room, 250),
];

impl Planted {
    const fn new(name: &'static str, plant: Plant, breaks: Promise, seed: u64) -> Self {
        Self { name, plant, breaks, seed }
    }
}
