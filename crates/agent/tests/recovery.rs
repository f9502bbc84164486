//! Goal: whatever dies, the next agent tells the truth about every attempt and starts none twice. Method:
//! an agent in a process of its own is killed with SIGKILL; a new one, in the test, takes up its folder.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::host::{Host, running, signal};
use common::{Bench, EXECUTABLE, alive, eventually, failed, unique_sleep};
use rustix::process::Signal;
use tenure_agent::Agent;
use tenure_model::{Assignment, AttemptId, FailReason, Held, Outcome};

fn reported(bench: &Bench) -> String {
    std::fs::read_to_string(bench.path("reports")).unwrap_or_default()
}

#[tokio::test]
async fn a_task_outlives_its_agent_and_its_exit_code_is_told_by_the_next() {
    let bench = Bench::new();
    let effect = bench.path("effect");
    let script = "echo started >> EFFECT; echo one; while [ ! -e GO ]; do sleep 0.02; done; echo two; echo 7 > $TENURE_RESULT; exit CODE";
    let script = script
        .replace("EFFECT", &effect.display().to_string())
        .replace("GO", &bench.path("go").display().to_string());
    let (fails, succeeds) =
        (bench.bash(&script.replace("CODE", "42")), bench.bash(&script.replace("CODE", "0")));
    let mut host = Host::start(&bench, &[&fails, &succeeds], &[]);
    running(&bench, fails.attempt).await;
    running(&bench, succeeds.attempt).await;
    host.kill();

    let agent = bench.agent().await;
    let held: BTreeSet<AttemptId> = agent.inventory().iter().map(|held| held.attempt).collect();
    assert_eq!(held, BTreeSet::from([fails.attempt, succeeds.attempt]));
    assert_eq!(agent.running(), 2);
    agent.assign(fails.clone()).await.unwrap(); // a duplicate of what was recovered
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(bench.control.end_of(fails.attempt).await.outcome, failed(FailReason::Exit { code: 42 }));
    let success = bench.control.end_of(succeeds.attempt).await;
    assert_eq!((success.outcome, success.result), (Outcome::Success, Some(7.into())));
    bench.gone(fails.attempt).await;
    bench.gone(succeeds.attempt).await;
    assert_eq!(std::fs::read_to_string(effect).unwrap(), "started\nstarted\n");
    assert_eq!(bench.control.claims_of(fails.attempt), 0, "what was claimed once is not claimed again");
}

#[tokio::test]
async fn a_task_that_ends_while_no_agent_lives_is_told_with_its_exit_code_and_its_whole_log() {
    let bench = Bench::new();
    let task = bench.bash("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.05; done; printf tail; exit 6");
    let mut host = Host::start(&bench, &[&task], &[]);
    let mut early = String::new();
    while early.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        early = bench.log().await;
    }
    host.kill();
    let folder = bench.folder_of(task.attempt);
    eventually("the supervisor has written the exit", || folder.join("exit.json").exists()).await;
    assert!(bench.log().await.len() < 40, "the log was not complete when the agent died");

    let _agent = bench.agent().await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Exit { code: 6 }));
    bench.gone(task.attempt).await;
    assert_eq!(bench.log().await, "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\ntail");
}

/// An upgrade puts another file in another place, and takes the old one away.
#[tokio::test]
async fn an_agent_from_another_binary_takes_up_tasks_and_exit_codes_and_starts_nothing_that_is_lost() {
    let bench = Bench::new();
    let [old, new] = ["tenure-old", "tenure-new"].map(|name| bench.path(name));
    for path in [&old, &new] {
        std::fs::hard_link(EXECUTABLE, path).or_else(|_| std::fs::copy(EXECUTABLE, path).map(drop)).unwrap();
    }
    let waits = |word: &str, code: u32| {
        let (effect, go) = (bench.path("effect"), bench.path(word));
        bench.bash(&format!(
            "echo {word} >> {}; while [ ! -e {} ]; do sleep 0.02; done; exit {code}",
            effect.display(),
            go.display()
        ))
    };
    let (running_on, ended_alone, lost) = (waits("later", 4), waits("alone", 5), waits("lost", 6));
    let mut host = Host::of(&old, &bench, &[&running_on, &ended_alone, &lost], &[]);
    for task in [&running_on, &ended_alone] {
        running(&bench, task.attempt).await;
    }
    let pids = running(&bench, lost.attempt).await;
    host.kill();
    std::fs::remove_file(&old).unwrap();
    std::fs::write(bench.path("alone"), "").unwrap();
    let exit = bench.folder_of(ended_alone.attempt).join("exit.json");
    eventually("it has ended while no agent was there", || exit.exists()).await;
    signal(pids[0], Signal::KILL);

    let _host = Host::of(&new, &bench, &[], &[]);
    eventually("the lost one and the ended one are told", || {
        reported(&bench).matches("\"end\"").count() == 2
    })
    .await;
    std::fs::write(bench.path("later"), "").unwrap();
    eventually("all ends are told", || reported(&bench).matches("\"end\"").count() == 3).await;
    let told = reported(&bench);
    for (task, end) in [
        (&running_on, "{\"type\":\"exit\",\"code\":4}"),
        (&ended_alone, "{\"type\":\"exit\",\"code\":5}"),
        (&lost, "{\"type\":\"lost\"}"),
    ] {
        let name = task.attempt.to_string();
        let ends: Vec<&str> =
            told.lines().filter(|line| line.contains("\"end\"") && line.contains(&name)).collect();
        assert!(ends.len() == 1 && ends[0].contains(end), "{end}: {ends:?}");
        bench.gone(task.attempt).await;
    }
    let mut starts: Vec<String> =
        std::fs::read_to_string(bench.path("effect")).unwrap().lines().map(str::to_owned).collect();
    starts.sort();
    assert_eq!(starts, ["alone", "later", "lost"], "each was started once");
}

#[tokio::test]
async fn an_agent_killed_between_claim_and_start_has_never_started_it() {
    let bench = Bench::new();
    let effect = bench.path("effect");
    let task = bench.bash(&format!("touch {}", effect.display()));
    let mut host = Host::start(&bench, &[&task], &[("TEST_SILENT_AFTER_CLAIM", "1")]);
    eventually("the claim is sent", || reported(&bench).contains("claim")).await;
    host.kill();

    let _agent = bench.agent().await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, Outcome::NeverStarted);
    bench.gone(task.attempt).await;
    assert!(!effect.exists());
    assert_eq!(bench.control.claims_of(task.attempt), 0);
}

#[tokio::test]
async fn a_killed_supervisor_makes_the_attempt_lost_and_nothing_of_it_lives_on() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let [inside, escaped] = [unique_sleep(), unique_sleep()];
    let task = bench.bash(&format!("setsid sleep {escaped} & env -i /bin/sleep {inside}"));
    agent.assign(task.clone()).await.unwrap();
    let pids = running(&bench, task.attempt).await;
    eventually("both sleep", || alive(&inside) && alive(&escaped)).await;
    signal(pids[0], Signal::KILL);
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Lost));
    assert!(!alive(&inside) && !alive(&escaped), "a process of a lost attempt lives on");
}

#[tokio::test]
async fn neither_ctrl_c_nor_a_closed_terminal_reaches_a_task() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let go = bench.path("go");
    let task = bench.bash(&format!("while [ ! -e {} ]; do sleep 0.02; done; exit 3", go.display()));
    agent.assign(task.clone()).await.unwrap();
    let pids = running(&bench, task.attempt).await;
    signal(pids[0], Signal::INT);
    signal(pids[0], Signal::HUP);
    std::fs::write(go, "").unwrap();
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Exit { code: 3 }));
}

#[tokio::test]
async fn agent_and_supervisor_killed_together_make_the_attempt_lost_and_nothing_of_it_lives_on() {
    let bench = Bench::new();
    let [inside, escaped] = [unique_sleep(), unique_sleep()];
    let task = bench.bash(&format!("setsid sleep {escaped} & sleep {inside}"));
    let mut host = Host::start(&bench, &[&task], &[]);
    let pids = running(&bench, task.attempt).await;
    eventually("both sleep", || alive(&inside) && alive(&escaped)).await;
    host.kill();
    signal(pids[0], Signal::KILL);
    let _agent = bench.agent().await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Lost));
    assert!(!alive(&inside) && !alive(&escaped), "a process of a lost attempt lives on");
    bench.gone(task.attempt).await;
}

#[tokio::test]
async fn a_recovered_attempt_can_be_stopped() {
    let bench = Bench::new();
    let sleep = unique_sleep();
    let task = bench.assignment(&["sleep", &sleep]);
    let mut host = Host::start(&bench, &[&task], &[]);
    running(&bench, task.attempt).await;
    host.kill();
    let agent = bench.agent().await;
    agent.stop(task.attempt).await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Stopped));
    assert!(!alive(&sleep));
}

#[tokio::test]
async fn an_end_that_was_not_acknowledged_is_told_again_by_the_next_agent() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    bench.control.answer(|answers| answers.hold_ends = true);
    let task = bench.bash("echo 1 > $TENURE_RESULT");
    agent.assign(task.clone()).await.unwrap();
    let first = bench.control.end_of(task.attempt).await;
    agent.shutdown().await;
    bench.control.answer(|answers| answers.hold_ends = false);
    let _agent = bench.agent().await;
    bench.gone(task.attempt).await;
    assert_eq!(bench.control.ends_of(task.attempt), [first.clone(), first]);
}

#[tokio::test]
async fn a_clean_shutdown_leaves_tasks_running_for_the_next_agent() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let go = bench.path("go");
    let task = bench
        .bash(&format!("echo one; while [ ! -e {} ]; do sleep 0.02; done; echo two; exit 8", go.display()));
    agent.assign(task.clone()).await.unwrap();
    let output = bench.folder_of(task.attempt).join("output");
    eventually("it has printed", || std::fs::read_to_string(&output).is_ok_and(|text| text == "one\n")).await;
    agent.shutdown().await;
    assert_eq!(bench.log().await, "one\n", "a shutdown flushes what is there");
    let agent = bench.agent().await;
    std::fs::write(go, "").unwrap();
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Exit { code: 8 }));
    bench.gone(task.attempt).await;
    assert_eq!(bench.log().await, "one\ntwo\n");
    drop(agent);
}

#[tokio::test]
async fn what_is_held_is_ordered_running_or_ended_and_not_yet_heard() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let (go, held) = (bench.path("go"), |task: &Assignment| Held {
        attempt: task.attempt,
        ti: task.ti,
        scope: task.scope.clone(),
    });
    bench.control.answer(|answers| answers.hold_claims = true);
    let mut ordered = bench.bash("true");
    ordered.scope = "scheduler/shard-07".into();
    agent.assign(ordered.clone()).await.unwrap();
    bench.control.claimed(ordered.attempt).await;
    bench.control.answer(|answers| (answers.hold_claims, answers.hold_ends) = (false, true));
    let runs = bench.bash(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    agent.assign(runs.clone()).await.unwrap();
    running(&bench, runs.attempt).await;
    let ended = bench.bash("true");
    agent.assign(ended.clone()).await.unwrap();
    bench.control.end_of(ended.attempt).await;

    let mut all = [&ordered, &runs, &ended].map(held);
    all.sort_by_key(|held| held.attempt);
    let listed = |agent: &Agent| {
        let mut listed = agent.inventory();
        listed.sort_by_key(|held| held.attempt);
        listed
    };
    assert_eq!(listed(&agent), all);
    agent.shutdown().await;
    assert_eq!(listed(&agent), all, "an agent that leaves does not say that its tasks are gone");
    assert!(agent.assign(runs.clone()).await.is_ok(), "what runs is never called «not taken»");
    drop(agent);

    bench.control.answer(|answers| answers.hold_ends = false);
    std::fs::write(go, "").unwrap();
    let agent = bench.agent().await;
    eventually("all is heard", || agent.inventory().is_empty()).await;
    let scopes = bench.control.scopes_of(ordered.attempt);
    assert!(!scopes.is_empty() && scopes.iter().all(|scope| scope == "scheduler/shard-07"), "{scopes:?}");
}

#[tokio::test]
async fn after_a_reboot_an_unreported_attempt_is_lost_also_without_a_trace_of_a_start() {
    let bench = Bench::new();
    let task = bench.assignment(&["true"]);
    let mut host = Host::start(&bench, &[&task], &[("TEST_SILENT_AFTER_CLAIM", "1")]);
    eventually("the claim is sent", || reported(&bench).contains("claim")).await;
    host.kill();
    let path = bench.folder_of(task.attempt).join("assignment.json");
    let mut order: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    order["boot_id"] = "another-boot".into();
    std::fs::write(&path, order.to_string()).unwrap();
    let _agent = bench.agent().await;
    assert_eq!(bench.control.end_of(task.attempt).await.outcome, failed(FailReason::Lost));
}

#[tokio::test]
async fn a_half_written_folder_is_cleared_away_and_not_in_the_inventory() {
    let bench = Bench::new();
    let task = bench.assignment(&["true"]);
    let folder = bench.folder_of(task.attempt);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("assignment.json"), "{\"boot_id\": \"x").unwrap();
    let agent = bench.agent().await;
    assert_eq!((agent.inventory(), bench.control.bodies()), (vec![], vec![]));
    assert_eq!(bench.run(&agent, task).await.outcome, Outcome::Success);
}

/// Agents are killed at random moments while tasks come and go; every task starts at most once, and every
/// one that was handed over is told about by some agent.
#[tokio::test]
async fn under_many_kills_nothing_starts_twice_and_every_attempt_ends() {
    let bench = Bench::new();
    let effects = bench.path("effects");
    std::fs::create_dir(&effects).unwrap();
    let mut tasks = Vec::new();
    for round in 0..12u64 {
        let fresh: Vec<Assignment> = (0..5)
            .map(|_| {
                bench.bash(&format!("echo x >> {}/$TENURE_ATTEMPT_ID; sleep 0.03; exit 9", effects.display()))
            })
            .collect();
        let mut host = Host::start(&bench, &fresh.iter().collect::<Vec<_>>(), &[]);
        tokio::time::sleep(Duration::from_millis(round * 7)).await;
        host.kill();
        tasks.extend(fresh);
    }
    let agent = bench.agent().await;
    eventually("all are let go", || agent.running() == 0).await;
    eventually("no folder is left", || {
        std::fs::read_dir(bench.path("data").join("attempts")).unwrap().next().is_none()
    })
    .await;
    let earlier = reported(&bench);
    let mut told_with_code = 0;
    for task in &tasks {
        let name = task.attempt.to_string();
        let starts = std::fs::read_to_string(effects.join(&name)).unwrap_or_default();
        assert!(starts.len() <= 2, "attempt {name} started twice: {starts:?}");
        let by_earlier = earlier.lines().filter(|line| line.contains("\"end\"") && line.contains(&name));
        let here = bench.control.ends_of(task.attempt);
        let ends: Vec<String> =
            by_earlier.map(str::to_owned).chain(here.iter().map(|end| format!("{end:?}"))).collect();
        if starts.is_empty() {
            assert!(
                ends.iter().all(|end| end.contains("never_started") || end.contains("NeverStarted")),
                "{ends:?}"
            );
        } else {
            assert!(!ends.is_empty(), "attempt {name} began and nobody told its end");
            assert!(
                ends.iter().all(|end| end.contains('9') && end.to_lowercase().contains("exit")),
                "{ends:?}"
            );
            told_with_code += 1;
        }
    }
    assert!(told_with_code > 0, "the kills came too early to show anything");
}
