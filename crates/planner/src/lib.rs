//! *What* should happen: a run's state in memory and the decisions that follow from it.
//!
//! Pure: the same inputs give the same decisions, in production, in tests and under the simulator.
//! Time arrives as an argument; nothing here reads a clock, a database or a map in hash order.
//!
//! Cost follows change. Every task counts its upstreams' outcomes as they come in, and only tasks
//! whose counts have moved are looked at again, so one finished task in a run of ten thousand costs
//! as much as in a run of ten.

mod graph;
mod run_plan;

pub use graph::DagGraph;
pub use run_plan::{Changes, ClaimVerdict, EndVerdict, Past, RunFacts, RunPlan, RunStep, Step, Touched};
