//! The nodes that are connected to this replica: one gRPC stream each, on the port of the HTTP API.
//!
//! [`Fleet`] is the scheduler's way to them (it is an [`Executor`](tenure_dispatch::Executor)) and theirs to the
//! scheduler (their reports go to a [`ReportSink`]). It holds nothing that must not be lost: a stream that breaks takes
//! its queue with it, agents repeat what was not answered, and owners ask what a node holds when its link is another.
//!
//! Promises: handing over never waits; a node that does not read is told nothing more once its queue is full. A node
//! has one link here at a time, the latest. A node that came in with an identity of its own is that node and no other,
//! until it is removed. An agent that sends nonsense costs its own link and nothing else.
//!
//! Does not promise that what was handed over arrives: the owner withdraws what is not claimed in time.

mod conversation;
mod door;
mod fleet;
mod link;
mod logs;
mod metrics;
mod presence;
mod refusal;
mod service;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{Ack, NodeId, Report};
use tenure_store::{NodeRegistration, SharedStore, StoreError};

pub use door::Identities;
pub use fleet::{Fleet, FleetParts};
pub use metrics::FleetMetrics;
pub use service::Gate;

/// Where reports go. It answers when the report's fate is known, or with `Retry`.
#[async_trait]
pub trait ReportSink: Send + Sync {
    async fn submit(&self, report: Report) -> Ack;
}

/// Where nodes are written down.
#[async_trait]
pub trait Roster: Send + Sync {
    async fn register(&self, node: &NodeRegistration, at: Timestamp) -> Result<(), StoreError>;
    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError>;
}

#[async_trait]
impl Roster for SharedStore {
    async fn register(&self, node: &NodeRegistration, at: Timestamp) -> Result<(), StoreError> {
        self.register_node(node, at).await.map(drop)
    }

    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        (**self).record_presence(replica, nodes).await
    }
}
