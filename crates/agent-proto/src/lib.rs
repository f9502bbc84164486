//! The contract between agents and the control plane: the messages, the stubs, and their meaning in our own words.
//!
//! Promises: what was converted from a word of the model converts back to the same word; what makes no sense is
//! refused with an error that names the field. A batch never grows past what the other side reads.

mod assignment;
mod batch;
mod convert;
mod report;

/// Generated from `proto/agents.proto`.
pub mod wire {
    #![allow(
        missing_debug_implementations,
        clippy::all,
        reason = "generated code follows the generator's taste"
    )]
    tonic::include_proto!("tenure.agent.v1");
}

pub use batch::{AgentItem, Batch, ReplicaItem, batches};
pub use convert::Nonsense;
pub use report::{Refusal, Why};
pub use wire::agents_client::AgentsClient;
pub use wire::agents_server::{Agents, AgentsServer};

/// Both sides of a stream must speak the same one.
pub const PROTOCOL: u32 = 1;

/// The metadata key under which a replica gives its name before anything is said.
pub const REPLICA_KEY: &str = "tenure-replica";

/// The metadata key of a refusal that will not change by asking again: the agent ends.
pub const REFUSED_KEY: &str = "tenure-refused";

/// The largest message that is read. The largest assignment is a dag's: 8 MiB of files, and what is rendered of it.
pub const LARGEST_MESSAGE: usize = 32 * 1024 * 1024;

#[cfg(test)]
mod tests;
