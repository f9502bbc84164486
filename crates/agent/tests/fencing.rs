//! Goal: a task that must not run on without the control plane does not, and others do. Method: real tasks, and a
//! control plane that falls silent; or an agent that is killed, or links that are cut.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::cluster::{Ledger, Linked, Replica};
use common::host::{Host, running, signal};
use common::{Bench, alive, eventually, unique_sleep};
use object_store::memory::InMemory;
use rustix::process::Signal;
use tenure_clock::{Clock, SystemClock};
use tenure_dispatch::Executor;
use tenure_model::{Assignment, FailReason, OnDisconnect, Outcome};

const FENCE: Duration = Duration::from_millis(1_500);

fn bench() -> Bench {
    Bench::with(|config| config.fence_after = FENCE)
}

fn stops(task: Assignment) -> Assignment {
    Assignment { on_disconnect: OnDisconnect::Stop, ..task }
}

fn cut_off_after(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Failed { reason: FailReason::CutOff { silent_ms } } => Duration::from_millis(*silent_ms),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_task_that_asks_for_it_is_stopped_in_silence_and_others_run_on() {
    let bench = bench();
    let agent = bench.agent().await;
    let [stopped, goes_on] = [unique_sleep(), unique_sleep()];
    let fenced = stops(bench.bash(&format!("trap 'echo cleaned; exit 0' TERM; sleep {stopped} & wait")));
    let plain = bench.assignment(&["sleep", &goes_on]);
    for task in [&fenced, &plain] {
        agent.assign(task.clone()).await.unwrap();
        running(&bench, task.attempt).await;
    }
    // Longer than the fence, with contact: nothing happens.
    tokio::time::sleep(FENCE * 2).await;
    assert!(bench.control.ends_of(fenced.attempt).is_empty() && alive(&stopped));
    bench.control.answer(|answers| answers.silent_since = Some(SystemClock.boottime()));
    let ended = bench.control.end_of(fenced.attempt).await;
    assert!(cut_off_after(&ended.outcome) >= FENCE, "{ended:?}");
    assert!(!alive(&stopped));
    bench.gone(fenced.attempt).await;
    let log = bench.log().await;
    assert!(log.contains("no replica was heard") && log.contains("cleaned"), "{log}");
    assert!(alive(&goes_on) && bench.control.ends_of(plain.attempt).is_empty());
    agent.stop(plain.attempt).await;
    bench.control.end_of(plain.attempt).await;
}

#[tokio::test]
async fn a_task_whose_agent_is_dead_is_stopped_all_the_same_and_the_next_agent_says_so() {
    let bench = bench();
    let [stopped, goes_on] = [unique_sleep(), unique_sleep()];
    let (fenced, plain) =
        (stops(bench.assignment(&["sleep", &stopped])), bench.assignment(&["sleep", &goes_on]));
    let millis = FENCE.as_millis().to_string();
    let mut host = Host::start(&bench, &[&fenced, &plain], &[("TEST_FENCE_AFTER_MS", &millis)]);
    running(&bench, fenced.attempt).await;
    running(&bench, plain.attempt).await;
    host.kill();
    let exit = bench.folder_of(fenced.attempt).join("exit.json");
    eventually("it is stopped while no agent lives", || exit.exists()).await;
    assert!(!alive(&stopped) && alive(&goes_on));
    let agent = bench.agent().await;
    let ended = bench.control.end_of(fenced.attempt).await;
    assert!(cut_off_after(&ended.outcome) >= FENCE, "{ended:?}");
    agent.stop(plain.attempt).await;
    bench.control.end_of(plain.attempt).await;
}

/// What a machine finds that wakes up: the time that it slept has passed, and its links are back before its supervisors
/// have looked.
#[tokio::test]
async fn contact_that_is_back_does_not_save_a_task_that_was_cut_off_for_too_long() {
    let bench = bench();
    let agent = bench.agent().await;
    let sleep = unique_sleep();
    let task = stops(bench.assignment(&["sleep", &sleep]));
    agent.assign(task.clone()).await.unwrap();
    let pids = running(&bench, task.attempt).await;
    signal(pids[0], Signal::STOP);
    let since = || {
        let text = std::fs::read_to_string(bench.path("data").join("contact")).unwrap();
        text.split(' ').nth(1).unwrap().to_owned()
    };
    let before = since();
    bench.control.answer(|answers| answers.silent_since = Some(SystemClock.boottime()));
    tokio::time::sleep(FENCE + FENCE / 2).await;
    bench.control.answer(|answers| answers.silent_since = None);
    eventually("there is contact again", || since() != before).await;
    signal(pids[0], Signal::CONT);
    let ended = bench.control.end_of(task.attempt).await;
    assert!(cut_off_after(&ended.outcome) >= FENCE, "{ended:?}");
    assert!(!alive(&sleep));
    drop(agent);
}

#[tokio::test]
async fn links_that_are_cut_fence_and_the_end_is_told_when_they_are_back() {
    let (ledger, logs): (Arc<Ledger>, _) = (Arc::default(), Arc::new(InMemory::new()));
    let replica = Replica::start("a", &ledger, &logs).await;
    let bench = bench();
    let linked = Linked::start(&bench, &[replica.url()]).await;
    replica.linked().await;
    let sleep = unique_sleep();
    let task = stops(bench.assignment(&["sleep", &sleep]));
    replica.fleet.assign(task.clone()).await.unwrap();
    running(&bench, task.attempt).await;
    replica.wire.freeze(true);
    replica.wire.cut();
    let exit = bench.folder_of(task.attempt).join("exit.json");
    eventually("it is stopped", || exit.exists()).await;
    assert!(!alive(&sleep) && std::fs::read_to_string(exit).unwrap().contains("silence"));
    assert!(ledger.ends(task.attempt).is_empty());
    replica.wire.freeze(false);
    eventually("its end is told", || !ledger.ends(task.attempt).is_empty()).await;
    linked.leave().await;
}
