//! Real processes under faults, and whether they have kept their promises.
//!
//! [`harness`] makes histories: a cluster of real processes, clients, and a nemesis. `tenure-judge` reads them.
//! `cargo xtask chaos` runs all of it.

pub mod harness;
pub mod task;
