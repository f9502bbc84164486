//! What this machine has to offer.

use tenure_model::NodeId;
use tenure_store::NodeRegistration;

/// The node is this installation, not this machine: two data folders on one host are two nodes, and an
/// installation that moves stays the node it was. Its name is therefore the folder's own.
pub fn describe(name: &str) -> NodeRegistration {
    NodeRegistration::new(NodeId::new(name), tenure_agent::capacity(), env!("CARGO_PKG_VERSION"))
}
