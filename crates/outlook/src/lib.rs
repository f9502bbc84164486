//! How things stand, read from the database alone, by any replica and without being anybody's owner: what is used of
//! nodes and pools, why a task waits, where it would go.
//!
//! The placement code is the owners' own. What it is given differs a little: an owner places on nodes that are linked
//! to *its* replica, and within its share of them; here a node counts when any replica hears it, with all it has.
//! Nothing here decides anything.

mod demand;
mod picture;
mod preview;
mod reasons;

pub use demand::{Demand, Unmet};
pub use picture::{Hearing, Picture, in_catalog};
pub use preview::{PoolUse, Preview};
pub use reasons::{Reasons, why_run_waits};
pub use tenure_placement::{Candidate, Policy, Rejection, Request};
