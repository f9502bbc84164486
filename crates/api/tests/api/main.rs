//! Goal: clients can rely on every route: what it answers, what it refuses and in which words. Method: the
//! router over a fresh SQLite in memory, a clock that stands still, one fact per test.

mod auth;
mod cluster;
mod dags;
mod harness;
mod logs;
mod openapi;
mod placement;
mod pools;
mod progress;
mod requests;
mod runs;
mod sockets;
mod task_instances;
