//! The agent in this process, and the scheduler in this process, introduced to each other.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_agent::{Agent, ControlPlane};
use tenure_dispatch::{AssignError, Executor};
use tenure_model::{Ack, Assignment, AttemptId, NodeId, Report};
use tenure_scheduler::ReportInbox;
use tokio::sync::watch;

/// Hands attempts to the local agent, and holds them until it is there.
#[derive(Debug)]
pub(super) struct LocalExecutor {
    node: NodeId,
    agent: watch::Sender<Option<Slot>>,
}

#[derive(Clone)]
struct Slot(Arc<Mutex<Option<Arc<Agent>>>>);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl LocalExecutor {
    pub fn new(node: NodeId) -> Self {
        Self { node, agent: watch::channel(None).0 }
    }

    pub fn set(&self, agent: Agent) {
        self.agent.send_replace(Some(Slot(Arc::new(Mutex::new(Some(Arc::new(agent)))))));
    }

    /// Stops handing out and lets the agent go; answers with how many tasks run on without it.
    pub async fn shutdown(&self) -> usize {
        let slot = self.agent.borrow().clone();
        let agent = slot.and_then(|slot| slot.0.lock().expect("no panic while holding the agent").take());
        let Some(agent) = agent else { return 0 };
        let running = agent.running();
        // Hand-overs in progress hold the agent for an instant; dropping it then is a shutdown, too.
        if let Ok(agent) = Arc::try_unwrap(agent) {
            agent.shutdown().await;
        }
        running
    }

    /// `None` once it has been shut down.
    async fn agent(&self) -> Option<Arc<Agent>> {
        let mut agent = self.agent.subscribe();
        let slot = agent.wait_for(Option::is_some).await.ok()?.clone()?;
        slot.0.lock().expect("no panic while holding the agent").clone()
    }
}

#[async_trait]
impl Executor for LocalExecutor {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        let (node, scope, epoch) = (assignment.node.clone(), assignment.scope.clone(), assignment.epoch);
        let Some(agent) = self.agent().await else {
            return Err(AssignError::NotTaken { node, reason: "the agent has stopped".into() });
        };
        match agent.assign(assignment).await {
            Ok(()) => Ok(()),
            Err(tenure_agent::AssignError::StaleEpoch { .. }) => {
                Err(AssignError::StaleEpoch { node, scope, epoch })
            }
            Err(other) => Err(AssignError::NotTaken { node, reason: other.to_string() }),
        }
    }

    fn reaches(&self, node: &NodeId) -> bool {
        *node == self.node
    }

    async fn stop(&self, _node: &NodeId, attempt: AttemptId) {
        if let Some(agent) = self.agent().await {
            agent.stop(attempt).await;
        }
    }
}

/// Brings the agent's reports to the scheduler of the same process.
#[derive(Debug)]
pub(super) struct LocalControlPlane {
    inbox: ReportInbox,
}

impl LocalControlPlane {
    pub fn new(inbox: ReportInbox) -> Self {
        Self { inbox }
    }
}

#[async_trait]
impl ControlPlane for LocalControlPlane {
    async fn submit(&self, report: Report) -> Ack {
        self.inbox.submit(report).await
    }
}
