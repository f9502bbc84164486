//! What happened, as a hash that is the same for the same seed, as a story for people, and as the matrix of faults and
//! boundaries that were reached.

use std::collections::BTreeMap;
use std::time::Duration;

/// What a fault did at a boundary.
pub type Met = (&'static str, &'static str);

#[derive(Debug, Default)]
pub struct Trace {
    hash: Fnv,
    pub events: u64,
    /// Of each kind.
    pub steps: BTreeMap<&'static str, u64>,
    /// Only kept for those who want to read it.
    pub story: Option<Vec<(Duration, String)>>,
    pub matrix: BTreeMap<Met, u64>,
    /// How often each fault was brought about.
    pub strikes: BTreeMap<&'static str, u64>,
}

impl Trace {
    pub fn new(telling: bool) -> Self {
        Self { story: telling.then(Vec::new), ..Self::default() }
    }

    /// Something happened at a boundary.
    pub fn event(&mut self, at: Duration, who: &str, what: &'static str, how: &str) {
        self.events += 1;
        *self.steps.entry(what).or_default() += 1;
        self.hash.eat(&(at.as_millis() as u64).to_be_bytes());
        for text in [who, what, how] {
            self.hash.eat(text.as_bytes());
            self.hash.eat(&[0]);
        }
    }

    /// Something that a reader should know.
    pub fn tell(&mut self, at: Duration, text: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push((at, text()));
        }
    }

    pub fn met(&mut self, fault: &'static str, boundary: &'static str) {
        *self.matrix.entry((fault, boundary)).or_default() += 1;
    }

    pub fn struck(&mut self, fault: &'static str) {
        *self.strikes.entry(fault).or_default() += 1;
    }

    pub fn hash(&self) -> u64 {
        self.hash.0
    }
}

#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn eat(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
