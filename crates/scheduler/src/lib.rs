//! The owners of shards at work: wake → inbox → plan → place → commit → dispatch.
//!
//! Everything it knows is a cache of the database. Each pass writes what it has decided in one fenced
//! transaction, then acknowledges the reports it has used and hands new bindings out. Whatever goes
//! wrong with a commit, the answer is the same: forget, read again, go on.
//!
//! Promises: planning waits for nothing remote; one run that makes the code panic costs that run alone;
//! no limit (pool, run, dag, node) is exceeded; dags of equal priority take turns.

mod changes;
mod controller;
mod dags;
mod departures;
mod desk;
mod drains;
mod inbox;
mod isolation;
mod leavers;
mod ledger;
mod metrics;
mod muster;
mod office;
mod orphans;
mod owner;
mod pass;
mod preemption;
mod ready;
mod reports;
mod roster;
mod scheduler;
mod shares;
mod signals;
mod tireless;
mod watch;

pub use controller::{CONTROLLER_SCOPE, Controller, ControllerMetrics, ControllerParts, Retention};
pub use desk::ReportDesk;
pub use isolation::{Step, Trap, Work};
pub use metrics::SchedulerMetrics;
pub use owner::OwnerConfig;
pub use scheduler::{OwnerStatus, Scheduler, SchedulerHandle, SchedulerParts};
pub use signals::{Shortage, Signal, SignalListener, SignalRules, Signalling};
pub use tenure_placement::{Policy, Strategy, Weights};
