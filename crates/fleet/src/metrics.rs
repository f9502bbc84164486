//! What an operator can see of the fleet.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Default)]
pub struct FleetMetrics {
    pub(crate) connected: Gauge,
    pub(crate) messages_in: Counter,
    pub(crate) messages_out: Counter,
    pub(crate) reports: Counter,
    pub(crate) assignments: Counter,
    pub(crate) refusals: Counter,
}

impl FleetMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tenure_agents_connected",
            "Nodes with a stream to this replica",
            metrics.connected.clone(),
        );
        for (name, help, counter) in [
            ("tenure_agent_messages_in", "Messages from agents, each a batch", &metrics.messages_in),
            ("tenure_agent_messages_out", "Messages to agents, each a batch", &metrics.messages_out),
            ("tenure_agent_reports", "Reports from agents", &metrics.reports),
            ("tenure_agent_assignments", "Assignments written to agents", &metrics.assignments),
            ("tenure_agent_refusals", "Assignments that agents did not take", &metrics.refusals),
        ] {
            registry.register(name, help, counter.clone());
        }
        metrics
    }
}
