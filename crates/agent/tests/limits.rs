//! Goal: a task gets what it asked for and no more, and nothing of it outlives it. Method: real groups where this
//! machine has them; where it has not, the test says so and is passed over, or fails if `TENURE_TEST_CGROUPS` is
//! `require`. What is said to the kernel, and what its answers mean, is tested everywhere (`src/limits/group.rs`).

mod common;

use std::path::PathBuf;

use common::host::{Host, running, signal};
use common::{Bench, alive, eventually, failed, unique_sleep};
use rustix::process::Signal;
use tenure_agent::{AgentError, Limits};
use tenure_model::{Assignment, FailReason, Outcome, Resources};

const MEBI: u64 = 1024 * 1024;

fn bench() -> Bench {
    Bench::with(|config| config.bare_groups = true)
}

/// What is missing on this machine, where nobody has said that nothing may be.
fn pass_over(missing: &str) {
    let required = std::env::var("TENURE_TEST_CGROUPS").is_ok_and(|word| word == "require");
    assert!(!required, "{missing} on this machine, and TENURE_TEST_CGROUPS says that it must");
    println!("skipped: {missing} on this machine");
}

/// The group that the attempt's supervisor was told to make; `None` where none can be made.
async fn group_of(bench: &Bench, task: &Assignment) -> Option<PathBuf> {
    let path = bench.folder_of(task.attempt).join("assignment.json");
    let read = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).ok()?).ok();
    eventually("the order is written", || read().is_some()).await;
    let order = read().unwrap();
    let group = order["group"]["path"].as_str().map(PathBuf::from);
    if group.is_none() {
        pass_over("no groups can be made");
    }
    group
}

/// Whether these can be limited here, found out by a task in a group.
async fn can_limit(bench: &Bench, agent: &tenure_agent::Agent, controller: &str) -> bool {
    let task = bench.bash("sleep 0.2");
    agent.assign(task.clone()).await.unwrap();
    let group = group_of(bench, &task).await;
    let can = group.is_some_and(|group| {
        let words = group.parent().map(|home| home.join("cgroup.subtree_control"));
        words.is_some_and(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(controller)))
    });
    if !can {
        pass_over(&format!("{controller} cannot be limited"));
    }
    bench.control.end_of(task.attempt).await;
    can
}

fn with(resources: Resources, task: Assignment) -> Assignment {
    Assignment { resources, ..task }
}

#[tokio::test]
async fn a_task_is_born_in_a_group_of_its_own_which_goes_with_it() {
    let bench = bench();
    let agent = bench.agent().await;
    let go = bench.path("go");
    let task = bench.bash(&format!(
        "cat /proc/self/cgroup; while [ ! -e {} ]; do sleep 0.02; done; exit 3",
        go.display()
    ));
    agent.assign(task.clone()).await.unwrap();
    let Some(group) = group_of(&bench, &task).await else { return };
    let pids = running(&bench, task.attempt).await;
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert!(members.lines().any(|pid| pid == pids[1].to_string()), "{members}");
    eventually("its supervisor is outside", || {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        members.lines().all(|pid| pid != pids[0].to_string())
    })
    .await;
    std::fs::write(go, "").unwrap();
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Exit { code: 3 }));
    assert!(!group.exists(), "the group is left behind");
    bench.gone(task.attempt).await;
    eventually("it is let go", || agent.inventory().is_empty()).await;
    drop(agent);
    assert!(!group.parent().unwrap().exists(), "an agent without tasks leaves a group behind");
    assert!(
        bench.log().await.contains(&task.attempt.to_string()),
        "it was not born there: {}",
        bench.log().await
    );
}

/// Without a supervisor, without its process group and with nothing in its environment: only its group knows it.
#[tokio::test]
async fn what_has_hidden_itself_dies_also_when_the_supervisor_was_killed() {
    let bench = bench();
    let agent = bench.agent().await;
    let [hidden, plain] = [unique_sleep(), unique_sleep()];
    let task = bench.bash(&format!("(env -i setsid /bin/sleep {hidden} &); sleep {plain}"));
    agent.assign(task.clone()).await.unwrap();
    let Some(group) = group_of(&bench, &task).await else { return };
    let pids = running(&bench, task.attempt).await;
    eventually("both sleep", || alive(&hidden) && alive(&plain)).await;
    signal(pids[0], Signal::KILL);
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Lost));
    assert!(!alive(&hidden) && !alive(&plain), "a process of a lost attempt lives on");
    assert!(!group.exists(), "the group is left behind");
}

#[tokio::test]
async fn a_group_outlives_the_agent_and_the_next_one_ends_what_is_in_it() {
    let bench = bench();
    let hidden = unique_sleep();
    let task = bench.bash(&format!("(env -i setsid /bin/sleep {hidden} &); sleep 1000"));
    let mut host = Host::start(&bench, &[&task], &[("TEST_BARE_GROUPS", "1")]);
    let Some(group) = group_of(&bench, &task).await else { return };
    let pids = running(&bench, task.attempt).await;
    eventually("it sleeps", || alive(&hidden)).await;
    host.kill();
    assert!(group.exists() && alive(&hidden), "a task outlives its agent");
    signal(pids[0], Signal::KILL);
    let _agent = bench.agent().await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Lost));
    assert!(!alive(&hidden) && !group.exists());
}

#[tokio::test]
async fn a_task_that_uses_more_memory_than_it_asked_for_fails_at_once_and_says_so() {
    let bench = bench();
    let agent = bench.agent().await;
    if !can_limit(&bench, &agent, "memory").await {
        return;
    }
    let beside = unique_sleep();
    let greedy = bench.bash(&format!("sleep {beside} & head -c 100M /dev/zero | tail -c 90M | wc -c"));
    let greedy = with(Resources::default().with(Resources::MEMORY, 24 * MEBI * 1_000), greedy);
    let ended = bench.run(&agent, greedy).await;
    assert_eq!(ended.outcome, failed(FailReason::OutOfMemory { limit_bytes: 24 * MEBI }));
    assert!(!alive(&beside), "all of a task dies together");
    let modest =
        with(Resources::default().with(Resources::MEMORY, 24 * MEBI * 1_000), bench.bash("kill -9 $$"));
    let ended = bench.run(&agent, modest).await;
    assert_eq!(
        ended.outcome,
        failed(FailReason::Signal { name: "SIGKILL".into() }),
        "not every kill is for memory"
    );
}

#[tokio::test]
async fn cpu_and_processes_are_limited_to_what_was_asked_for() {
    let bench = Bench::with(|config| (config.bare_groups, config.pids_most) = (true, 20));
    let agent = bench.agent().await;
    if !can_limit(&bench, &agent, "pids").await || !can_limit(&bench, &agent, "cpu").await {
        return;
    }
    let many = bench.bash("for i in $(seq 50); do sleep 1000 & done; wait");
    let group_file =
        "\"$(grep -o '/sys/fs/cgroup[^ ]*' /proc/mounts | head -1)$(grep ^0:: /proc/self/cgroup | cut -c4-)";
    let says = with(
        Resources::default().with(Resources::CPU, 1_500),
        bench.bash(&format!("cat {group_file}/cpu.max\" {group_file}/pids.max\"")),
    );
    assert_eq!(bench.run(&agent, says).await.outcome, Outcome::Success);
    assert_eq!(bench.log().await, "150000 100000\n20\n");
    let ended = bench.run(&agent, many).await;
    assert!(matches!(ended.outcome, Outcome::Failed { .. }), "{ended:?}");
    assert!(bench.log().await.contains("fork"), "{}", bench.log().await);
}

#[tokio::test]
async fn limits_that_are_required_and_cannot_be_had_keep_the_agent_from_starting() {
    let bench = Bench::with(|config| config.limits = Limits::Require);
    match bench.try_agent().await {
        Err(AgentError::NoLimits(why)) => {
            assert!(["Delegate=yes", "mount"].iter().any(|way_out| why.contains(way_out)), "{why}");
        }
        Ok(agent) => {
            println!("skipped: this machine can limit everything");
            assert_eq!(agent.unlimited(), None);
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_cannot_be_limited_is_said_and_tasks_run_all_the_same() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    match agent.unlimited() {
        Some(why) => assert!(["Delegate=yes", "mount"].iter().any(|way_out| why.contains(way_out)), "{why}"),
        None => println!("skipped: this machine can limit everything"),
    }
    let task = with(Resources::default().with(Resources::MEMORY, 24 * MEBI * 1_000), bench.bash("true"));
    assert_eq!(bench.run(&agent, task).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn without_limits_no_group_is_made() {
    let bench = Bench::with(|config| (config.bare_groups, config.limits) = (true, Limits::Off));
    let agent = bench.agent().await;
    let task = bench.bash("cat /proc/self/cgroup");
    assert_eq!(bench.run(&agent, task.clone()).await.outcome, Outcome::Success);
    assert!(!bench.log().await.contains(&task.attempt.to_string()));
    assert_eq!(agent.unlimited(), None, "nobody has asked for any");
}
