//! Amounts of named resources: what a task asks for, what a node has.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Amounts in thousandths of a unit (`cpu: 0.5` is 500; memory counts bytes, so 1 Ki is 1 024 000),
/// which keeps fractions exact and sums free of rounding.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(pub BTreeMap<String, u64>);

impl Resources {
    pub const CPU: &'static str = "cpu";
    pub const MEMORY: &'static str = "memory";
    /// Every attempt takes one of these, so that a node has an upper bound of processes.
    pub const TASKS: &'static str = "tasks";

    /// What may stand behind an amount of it, and how many it counts for.
    pub fn units(name: &str) -> &'static [(&'static str, f64)] {
        const KIBI: f64 = 1024.0;
        match name {
            Self::CPU => &[("m", 0.001)],
            Self::MEMORY => &[
                ("Ki", KIBI),
                ("Mi", KIBI * KIBI),
                ("Gi", KIBI * KIBI * KIBI),
                ("Ti", KIBI * KIBI * KIBI * KIBI),
                ("k", 1e3),
                ("M", 1e6),
                ("G", 1e9),
                ("T", 1e12),
            ],
            _ => &[],
        }
    }

    /// An amount as people write it: `2`, `0.5`, `1.5 GiB`.
    pub fn shown(name: &str, thousandths: u64) -> String {
        let units = thousandths as f64 / 1_000.0;
        match name {
            Self::MEMORY => format!("{:.1} GiB", units / f64::from(1 << 30)),
            _ => units.to_string(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn with(mut self, name: &str, thousandths: u64) -> Self {
        self.0.insert(name.to_owned(), thousandths);
        self
    }

    pub fn add(&mut self, other: &Resources) {
        for (name, amount) in &other.0 {
            match self.0.get_mut(name) {
                Some(have) => *have += amount,
                None => drop(self.0.insert(name.clone(), *amount)),
            }
        }
    }

    /// Gives back what was added before; taking more than is there is a bookkeeping error of ours.
    pub fn subtract(&mut self, other: &Resources) {
        for (name, amount) in &other.0 {
            let have = self.0.entry(name.clone()).or_default();
            *have = have.checked_sub(*amount).expect("a reservation is released once");
        }
    }
}

/// `cpu 2, memory 1.5 GiB`.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, amount)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", Self::shown(name, *amount))?;
        }
        Ok(())
    }
}
