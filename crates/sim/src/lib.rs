//! The control plane under virtual time and every fault that one seed can think of.
//!
//! The real scheduler, elector, planner, placement and dispatch, and the real decisions of agents, run on one thread with a
//! clock that jumps from timer to timer. The store is `tenure-store-memory`, which passes the suites of the real ones;
//! between it and each replica, and between replicas and agents, lies a network that delays, loses, doubles, reorders
//! and cuts. Replicas and agents are paused and killed at any boundary; clocks differ, drift and jump; leases are revoked
//! early and run out late. Afterwards `tenure-judge` holds the audit trail and what the tasks did against P1 to P9.
//!
//! One seed is one world: the same seed gives the same trace, bit for bit, and a failing one can be told as a story.
//!
//! What is not simulated: a killed replica's tasks are cut off from everything in the same instant, and then wound up; its
//! memory is not reused. A paused replica computes nothing that anybody could notice: its clock stands still, and what it
//! wants from others waits until it is woken. The gRPC streams and SQL are tested elsewhere, on real ones.

mod agent;
mod boundaries;
mod campaign;
mod dice;
mod fleet;
mod gate;
mod machine;
mod nemesis;
mod network;
mod operator;
mod panics;
mod plants;
mod record;
mod regressions;
mod replica;
mod rooms;
mod run;
mod scale;
mod silence;
mod store;
mod time;
mod trace;
mod workload;
mod world;

pub use campaign::{Campaign, Report, replay, run_campaign};
pub use plants::{PLANTS, Plant, Planted};
pub use run::{Options, Seen, run_seed};
pub use scale::{Measured, Scale, run_scale, write_plots};
