//! Goal: whatever a task prints, however fast, and however slow its log can be stored: the task is not held up, the disk is
//! not filled, and the end of what it said is there. Method: a log store behind a door that the test opens late.

mod common;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use common::Bench;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use tenure_agent::{Agent, AgentConfig, BoxError, LogStore};
use tenure_clock::{Entropy, SystemClock};
use tenure_logs::{LogCursor, Part};
use tenure_model::{AttemptId, Outcome};
use tokio::sync::watch;

const MOST: u64 = 1024 * 1024;

#[derive(Debug)]
struct BehindADoor {
    store: LocalFileSystem,
    open: watch::Receiver<bool>,
}

#[async_trait]
impl LogStore for BehindADoor {
    async fn put_part(&self, prefix: &Path, part: Part, text: Bytes) -> Result<(), BoxError> {
        self.open.clone().wait_for(|open| *open).await?;
        self.store.put_part(prefix, part, text).await
    }

    async fn stored_until(&self, prefix: &Path, attempt: AttemptId) -> Result<u64, BoxError> {
        self.store.stored_until(prefix, attempt).await
    }
}

/// The whole log, which may be more than one read gives.
async fn whole_log(bench: &Bench) -> String {
    let sample = bench.assignment(&[]);
    let prefix =
        tenure_logs::prefix(&sample.tenant, &sample.dag, &sample.run_id, &sample.task, -1, sample.try_number);
    let (mut text, mut cursor) = (String::new(), LogCursor::Start);
    loop {
        let chunk = tenure_logs::read(&bench.log_store(), &prefix, cursor).await.unwrap();
        text.push_str(&chunk.text);
        cursor = chunk.next;
        if !chunk.more {
            return text;
        }
    }
}

#[tokio::test]
async fn a_flood_of_output_holds_nobody_up_fills_no_disk_and_keeps_its_end() {
    let bench = Bench::new();
    let (door, open) = watch::channel(false);
    let logs = Arc::new(BehindADoor { store: bench.log_store(), open });
    let config = AgentConfig { logs, output_most: MOST, ..bench.config() };
    let agent = Agent::start(config, bench.control.clone(), Arc::new(SystemClock), Entropy::from_os());
    let agent = agent.await.unwrap();
    let task = bench.bash(
        "echo first words; for i in $(seq 1 80); do seq -f \"$i %g\" 1 20000; sleep 0.03; done; echo last words",
    );
    agent.assign(task.clone()).await.unwrap();
    // Nothing is stored at all, and the task ends.
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, Outcome::Success);
    let output = std::fs::metadata(bench.folder_of(task.attempt).join("output")).unwrap();
    assert!(output.len() > 8 * MOST, "the flood was too small to show anything: {} bytes", output.len());
    // Between two looks comes what is printed in about a second.
    assert!(
        output.blocks() * 512 < output.len() / 2,
        "{} of {} bytes are kept",
        output.blocks() * 512,
        output.len()
    );

    door.send_replace(true);
    bench.gone(task.attempt).await;
    let log = whole_log(&bench).await;
    assert!(log.starts_with("first words\n1 1\n1 2\n"), "{:?}", &log[..60]);
    assert!(log.ends_with("\n80 19999\n80 20000\nlast words\n"), "{:?}", &log[log.len() - 60..]);
    let marks: Vec<&str> = log.lines().filter(|line| line.starts_with("tenure: ")).collect();
    assert!(marks.len() == 1 && marks[0].contains("KiB of output are left out here"), "{marks:?}");
    assert!(!log.contains('\0'), "a hole was taken for output");
    // What is there is what was printed, line by line.
    let whole = |line: &&str| {
        let numbers =
            line.split_once(' ').and_then(|(i, n)| Some((i.parse::<u32>().ok()?, n.parse::<u32>().ok()?)));
        !numbers.is_some_and(|(i, n)| (1..=80).contains(&i) && (1..=20_000).contains(&n))
    };
    let odd: Vec<&str> = log.lines().filter(whole).collect();
    assert_eq!(odd.len(), 3, "{odd:?}");
}

#[tokio::test]
async fn much_output_that_can_be_stored_is_stored_whole() {
    let bench = Bench::with(|config| config.output_most = MOST * 64);
    let agent = bench.agent().await;
    let task = bench.bash("for i in $(seq 1 30); do seq 1 20000; done; echo last words");
    assert_eq!(bench.run(&agent, task).await.outcome, Outcome::Success);
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(whole_log(&bench).await == expected.repeat(30) + "last words\n");
}
