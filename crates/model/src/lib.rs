//! The words of Tenure as types: ids, dag specs, states and their legal transitions, trigger rules,
//! timetables, retry policy, and what the control plane and an agent say to each other.
//!
//! Promises: no I/O, no clock, no randomness. Time and ids arrive as arguments.

pub mod assignment;
pub mod credential;
pub mod duration;
pub mod ids;
pub mod instance;
pub mod params;
pub mod preferences;
pub mod report;
pub mod resources;
pub mod retry;
pub mod run;
pub mod spec;
pub mod state;
pub mod timetable;
pub mod trigger;

pub use assignment::{Assignment, EmbeddedFile, HttpRequest, Program};
pub use ids::{
    AttemptId, DagId, NodeId, PoolName, QueueName, RunId, RunKey, ShardId, TaskId, TaskNo, TenantId, TiKey,
    VersionHash,
};
pub use instance::{AttemptVerdict, TaskInstance, TiStep, Told};
pub use preferences::{Affinity, BadTaint, OnDisconnect, Preference, Taint, Toleration};
pub use report::{Ack, FailReason, Held, Outcome, Report, ReportBody};
pub use resources::Resources;
pub use run::{DataInterval, NewRun, RunType};
pub use spec::{DagSpec, EnvValue, ParamSpec, Schedule, TaskKind, TaskSpec, WeightRule};
pub use state::{IllegalTransition, RunState, TaskEvent, TaskState};
pub use trigger::{Tally, TriggerRule, Verdict};
