//! Who runs attempts: an agent in this process, a stream to a remote one, a pod.

use async_trait::async_trait;
use tenure_model::{Assignment, AttemptId, NodeId};

#[async_trait]
pub trait Executor: Send + Sync {
    /// Hands an attempt over. Delivering it twice is harmless: it starts only after its claim.
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError>;

    /// Whether attempts can be handed to this node at all; placement leaves the others out.
    fn reaches(&self, node: &NodeId) -> bool;

    /// Asks for an attempt to be stopped. Safe to repeat; an attempt the node does not have is no error.
    async fn stop(&self, node: &NodeId, attempt: AttemptId);
}

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    /// The attempt was certainly not taken over: it may be placed elsewhere.
    #[error("node {node} did not take it: {reason}")]
    NotTaken { node: NodeId, reason: String },
    /// The node has seen a newer owner of the scope: whoever bound this is deposed.
    #[error("node {node} has seen a newer epoch of {scope} than e{epoch}")]
    StaleEpoch { node: NodeId, scope: String, epoch: u64 },
}
