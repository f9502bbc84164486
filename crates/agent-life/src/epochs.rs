//! The highest epoch an agent has seen for each scope: a deposed owner cannot start work here.

use std::collections::BTreeMap;
use std::io;

/// Remembers epochs where a restart does not lose them.
pub trait EpochMemory {
    /// Remembers the epoch, or says which higher one it has seen.
    fn admit(&mut self, scope: &str, epoch: u64) -> io::Result<Result<(), u64>>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Highest(pub BTreeMap<String, u64>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Seen before.
    Known,
    /// To be kept before anything is done under it.
    Newer(Highest),
    /// This higher one has been seen.
    Stale(u64),
}

impl Highest {
    pub fn admit(&self, scope: &str, epoch: u64) -> Admission {
        match self.0.get(scope) {
            Some(highest) if *highest > epoch => Admission::Stale(*highest),
            Some(highest) if *highest == epoch => Admission::Known,
            _ => {
                let mut grown = self.0.clone();
                grown.insert(scope.to_owned(), epoch);
                Admission::Newer(Self(grown))
            }
        }
    }
}
