//! A few threads with a read-only connection each. Readers never wait for the writer, nor it for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tenure_store::StoreError;
use tokio::sync::oneshot;

use crate::errors::Fail;
use crate::writer::panic_text;

type Job = Box<dyn FnOnce(&Connection) + Send>;

#[derive(Debug)]
pub(crate) struct Readers {
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn start(connections: Vec<Connection>) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let inbox = Arc::new(Mutex::new(inbox));
        let threads = connections.into_iter().map(|conn| {
            let inbox = Arc::clone(&inbox);
            let name = std::thread::Builder::new().name("sqlite-reader".into());
            name.spawn(move || {
                // The lock is held only while waiting for the next job, never while doing it.
                while let Ok(job) = { inbox.lock().expect("no job runs under this lock").recv() } {
                    job(&conn);
                }
            })
        });
        Ok(Self { threads: threads.collect::<Result<_, _>>()?, jobs: Some(jobs) })
    }

    /// Everything that `work` reads is from one moment.
    pub(crate) async fn run<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fail> + Send + 'static,
    {
        let (answer, reply) = oneshot::channel();
        let job: Job = Box::new(move |conn| {
            let outcome = catch_unwind(AssertUnwindSafe(|| at_one_moment(conn, work)));
            let outcome = outcome.unwrap_or_else(|panic| {
                tracing::error!(text = panic_text(&*panic), doing, "a read panicked");
                let source = format!("the read panicked: {}", panic_text(&*panic)).into();
                Err(Fail::Answer(StoreError::Unavailable { doing, source }))
            });
            // The caller may have given up waiting.
            let _ = answer.send(outcome.map_err(|fail| fail.told(doing)));
        });
        let stopped =
            || StoreError::Unavailable { doing, source: "the database's readers have stopped".into() };
        let jobs = self.jobs.as_ref().expect("taken only when the store is dropped");
        jobs.send(job).map_err(|_| stopped())?;
        reply.await.map_err(|_| stopped())?
    }
}

fn at_one_moment<T>(conn: &Connection, work: impl FnOnce(&Connection) -> Result<T, Fail>) -> Result<T, Fail> {
    // Dropped without a commit, which for a read is the same as with one.
    let moment = conn.unchecked_transaction()?;
    work(&moment)
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a database reader had panicked");
            }
        }
    }
}
