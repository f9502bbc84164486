//! Who runs attempts: an agent in this process, a stream to a remote one, a pod.

use async_trait::async_trait;
use tenure_clock::BootTime;
use tenure_model::{Assignment, AttemptId, Held, NodeId};
use tokio::sync::watch;

#[async_trait]
pub trait Executor: Send + Sync {
    /// Hands an attempt over. Delivering it twice is harmless: it starts only after its claim.
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError>;

    /// How this process reaches the node. `None`: it does not, and placement leaves the node out.
    fn link(&self, node: &NodeId) -> Option<Link>;

    /// The nodes that this process reaches.
    fn linked(&self) -> Vec<NodeId>;

    /// Changes when a node comes, goes, or comes back.
    fn links(&self) -> watch::Receiver<u64>;

    /// Everything the node holds, as of some moment after this call was made. `None`: it did not answer.
    async fn inventory(&self, node: &NodeId) -> Option<Vec<Held>>;

    /// Asks for an attempt to be stopped. Safe to repeat; an attempt the node does not have is no error.
    async fn stop(&self, node: &NodeId, attempt: AttemptId);
}

/// A live connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Another one after every reconnect.
    pub id: u64,
    /// When the node last gave a sign of life on it.
    pub heard: BootTime,
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
