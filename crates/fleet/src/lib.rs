//! The nodes that are connected to this replica.
