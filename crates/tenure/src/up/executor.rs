//! The agent in this process, and the scheduler in this process, introduced to each other.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use tenure_agent::{Agent, ControlPlane};
use tenure_clock::Clock;
use tenure_dispatch::{AssignError, Executor, Link};
use tenure_model::{Ack, Assignment, AttemptId, Held, NodeId, Report};
use tenure_scheduler::ReportDesk;
use tokio::sync::watch;

/// There is one link, from when the agent is there to the end of the process.
const LINK: u64 = 1;

/// Hands attempts to the local agent, once it is there.
pub(super) struct LocalExecutor {
    node: NodeId,
    clock: Arc<dyn Clock>,
    agent: OnceLock<Agent>,
    links: watch::Sender<u64>,
}

impl LocalExecutor {
    pub fn new(node: NodeId, clock: Arc<dyn Clock>) -> Self {
        Self { node, clock, agent: OnceLock::new(), links: watch::Sender::new(0) }
    }

    pub fn set(&self, agent: Agent) {
        assert!(self.agent.set(agent).is_ok(), "a process has one agent");
        self.links.send_replace(LINK);
    }

    /// Lets the agent go; answers with how many tasks run on without it.
    pub async fn shutdown(&self) -> usize {
        let Some(agent) = self.agent.get() else { return 0 };
        let running = agent.running();
        agent.shutdown().await;
        running
    }
}

#[async_trait]
impl Executor for LocalExecutor {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        let (node, scope, epoch) = (assignment.node.clone(), assignment.scope.clone(), assignment.epoch);
        let Some(agent) = self.agent.get() else {
            return Err(AssignError::NotTaken { node, reason: "the agent is not there yet".into() });
        };
        match agent.assign(assignment).await {
            Ok(()) => Ok(()),
            Err(tenure_agent::AssignError::StaleEpoch { .. }) => {
                Err(AssignError::StaleEpoch { node, scope, epoch })
            }
            Err(other) => Err(AssignError::NotTaken { node, reason: other.to_string() }),
        }
    }

    /// An agent in the same process is as alive as whoever asks.
    fn link(&self, node: &NodeId) -> Option<Link> {
        (*node == self.node && self.agent.get().is_some())
            .then(|| Link { id: LINK, heard: self.clock.boottime() })
    }

    fn linked(&self) -> Vec<NodeId> {
        self.agent.get().map(|_| self.node.clone()).into_iter().collect()
    }

    fn links(&self) -> watch::Receiver<u64> {
        self.links.subscribe()
    }

    async fn inventory(&self, node: &NodeId) -> Option<Vec<Held>> {
        self.agent.get().filter(|_| *node == self.node).map(Agent::inventory)
    }

    async fn stop(&self, _node: &NodeId, attempt: AttemptId) {
        if let Some(agent) = self.agent.get() {
            agent.stop(attempt).await;
        }
    }
}

/// Brings the agent's reports to the scheduler of the same process.
#[derive(Debug)]
pub(super) struct LocalControlPlane {
    desk: ReportDesk,
}

impl LocalControlPlane {
    pub fn new(desk: ReportDesk) -> Self {
        Self { desk }
    }
}

#[async_trait]
impl ControlPlane for LocalControlPlane {
    async fn submit(&self, report: Report) -> Ack {
        self.desk.submit(report).await
    }
}
