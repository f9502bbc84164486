//! Real processes under faults, and a checker that reads the truth afterwards.
//!
//! [`history`] is what is left of a run, [`checker`] holds it against the promises P1 to P9 of the design, and
//! [`mutations`] break a good history in every way the checker claims to notice: a checker that lets one of them
//! pass proves nothing. [`harness`] makes histories: a cluster of real processes, clients, and a nemesis.
//! `cargo xtask chaos` runs all of it.

pub mod checker;
pub mod harness;
pub mod history;
pub mod mutations;
pub mod task;
