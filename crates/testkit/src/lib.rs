//! What tests need from the outside world: real servers, free ports, scratch folders, bounded waits.
//!
//! Promises: nothing started here outlives its users for long, not even when a test is killed; tests in
//! different processes may use it at the same time. It is not for production code.

mod etcd;
mod guarded;
mod pgbouncer;
mod postgres;

use std::future::Future;
use std::net::TcpListener;
use std::time::Duration;

pub use etcd::{Etcd, OwnEtcd};
pub use pgbouncer::PgBouncer;
pub use postgres::{OwnPostgres, Postgres, Settings, TestDatabase};
pub use tempfile::TempDir;

/// A scratch folder that goes away with its handle.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("tenure-test-").tempdir().expect("the temp folder is writable")
}

/// A TCP port on 127.0.0.1 that nobody listened on a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback interface has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// Asks again every few milliseconds until there is an answer.
///
/// # Panics
/// When `timeout` passes first; the message says what was waited for.
#[track_caller]
pub fn wait_for<T, F>(what: &str, timeout: Duration, mut ask: impl FnMut() -> F) -> impl Future<Output = T>
where
    F: Future<Output = Option<T>>,
{
    let caller = std::panic::Location::caller();
    async move {
        let asking = async {
            loop {
                if let Some(answer) = ask().await {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(timeout, asking).await {
            Ok(answer) => answer,
            Err(_) => panic!("{caller}: waited {timeout:?} in vain for {what}"),
        }
    }
}
