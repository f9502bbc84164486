//! The simulator behind `simulation.rs`: a world with a store and a network, nodes in it, and the checks.

pub mod check;
pub mod dice;
pub mod node;
pub mod world;
