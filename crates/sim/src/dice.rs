//! The one source of chance.

use std::time::Duration;

use tenure_clock::Entropy;

#[derive(Clone, Debug)]
pub struct Dice(Entropy);

impl Dice {
    pub fn seeded(seed: u64) -> Self {
        Self(Entropy::seeded(seed))
    }

    /// A source of its own for a part of the world: how often one part asks changes nothing for the others.
    pub fn child(&self) -> Self {
        Self(self.entropy())
    }

    pub fn entropy(&self) -> Entropy {
        Entropy::seeded(self.draw())
    }

    fn draw(&self) -> u64 {
        u64::from_be_bytes(self.0.bytes())
    }

    /// From 0 to `count`, which is not reached.
    pub fn below(&self, count: usize) -> usize {
        (self.draw() % count as u64) as usize
    }

    pub fn chance(&self, percent: f64) -> bool {
        (self.draw() as f64 / u64::MAX as f64) * 100.0 < percent
    }

    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// In whole milliseconds.
    pub fn between(&self, from: Duration, to: Duration) -> Duration {
        let (from, to) = (from.as_millis() as u64, to.as_millis() as u64);
        Duration::from_millis(from + self.draw() % (to - from + 1))
    }

    /// Small values are likely, large ones possible: every order of magnitude is as likely as any other.
    pub fn spread(&self, from: Duration, to: Duration) -> Duration {
        let (low, high) = ((from.as_millis() as f64).max(1.0).ln(), (to.as_millis() as f64).ln());
        let at = low + (high - low) * (self.draw() as f64 / u64::MAX as f64);
        Duration::from_millis(at.exp() as u64)
    }
}
