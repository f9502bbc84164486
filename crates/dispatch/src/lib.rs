//! The way from a committed binding to an agent: render its templates, hand it over, never block a pass.
//!
//! [`DispatchPool`] is bounded. The scheduler takes a [`place`](DispatchPool::place) before it binds, so a full
//! pool leaves tasks `scheduled` in the database instead of piling them up in memory. The queue is not
//! persisted: after a crash the bindings are read back from the database and offered again, and the
//! claim makes sure that an attempt still starts once.

mod executor;
mod pool;
mod prepare;
mod template;

pub use executor::{AssignError, Executor, Link};
pub use pool::{DispatchMetrics, DispatchPool, Place, PoolSize};
pub use prepare::{Binding, EnvSecrets, RunContext, SecretSource};
