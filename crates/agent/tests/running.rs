//! Goal: a task runs as its assignment says, and its end is told as it was. Method: a real agent, real
//! supervisors, real processes; the control plane is a recorder.

mod common;

use std::time::Duration;

use common::{Bench, Ended, alive, eventually, failed, unique_sleep};
use tenure_agent::{AgentError, AssignError};
use tenure_model::{Assignment, EmbeddedFile, FailReason, HttpRequest, Outcome, Program};

#[tokio::test]
async fn a_task_succeeds_with_output_and_result() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let task = bench.bash("echo out; echo err >&2; echo '{\"rows\": 3}' > $TENURE_RESULT");
    let ended = bench.run(&agent, task).await;
    assert_eq!(ended, Ended { outcome: Outcome::Success, result: Some(serde_json::json!({"rows": 3})) });
    assert_eq!(bench.log().await, "out\nerr\n");
    assert_eq!(agent.running(), 0);
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_as_they_were() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    for (script, expected) in [
        ("exit 3", failed(FailReason::Exit { code: 3 })),
        ("exit 99", Outcome::Skipped),
        ("kill -9 $$", failed(FailReason::Signal { name: "SIGKILL".into() })),
        ("kill -SEGV $$", failed(FailReason::Signal { name: "SIGSEGV".into() })),
        ("kill -INT $$; exit 0", failed(FailReason::Signal { name: "SIGINT".into() })),
        ("kill -HUP $$; exit 0", failed(FailReason::Signal { name: "SIGHUP".into() })),
    ] {
        assert_eq!(bench.run(&agent, bench.bash(script)).await.outcome, expected, "{script}");
    }
}

#[tokio::test]
async fn a_program_that_cannot_start_is_named_with_what_to_check() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    for (argv, words) in [
        (vec!["no-such-program-here", "x"], ["no-such-program-here", "PATH"]),
        (vec!["./missing"], ["./missing", "run folder"]),
        (vec!["./plain"], ["./plain", "chmod +x"]),
        (vec!["./no-interpreter"], ["./no-interpreter", "#!"]),
        (vec![], ["command", "empty"]),
    ] {
        let mut task = bench.assignment(&argv);
        let file = |content: &str, executable| EmbeddedFile { content: content.into(), executable };
        task.files.insert("plain".into(), file("echo", false));
        task.files.insert("no-interpreter".into(), file("#!/no/such/shell\n", true));
        match bench.run(&agent, task).await.outcome {
            Outcome::Failed { reason: FailReason::CannotStart { error } } => {
                assert!(words.iter().all(|word| error.contains(word)), "{argv:?}: {error}");
            }
            other => panic!("{argv:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn the_environment_is_clean_and_says_who_the_task_is() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let mut task = bench
        .bash("env | cut -d= -f1 | sort | tr '\\n' ' '; echo; echo $GREETING; pwd; cat; cat /proc/$$/stat");
    task.env.insert("GREETING".into(), "hello".into());
    let attempt = task.attempt;
    bench.run(&agent, task).await;
    let log = bench.log().await;
    let lines: Vec<&str> = log.lines().collect();
    // bash itself adds PWD, SHLVL, OLDPWD and _.
    let own = [
        "PWD", "SHLVL", "OLDPWD", "_", "PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR", "GREETING",
    ];
    for name in lines[0].split(' ').filter(|name| !name.is_empty()) {
        assert!(own.contains(&name) || name.starts_with("TENURE_"), "{name} has leaked into the task");
    }
    for name in ["DAG_ID", "RUN_ID", "TASK_ID", "MAP_INDEX", "TRY_NUMBER", "ATTEMPT_ID", "RESULT", "RUN_DIR"]
    {
        assert!(lines[0].contains(&format!("TENURE_{name} ")), "{name} is missing in {}", lines[0]);
    }
    assert_eq!(lines[1], "hello");
    assert!(lines[2].contains("/work/default/etl/manual__2026-01-01T00_00_00Z-"), "{}", lines[2]);
    assert_ne!(session(lines[3]), session(&std::fs::read_to_string("/proc/self/stat").unwrap()));
    assert!(!bench.folder_of(attempt).exists());
}

/// Read from `/proc/<pid>/stat`: it may be 0, which getsid's wrapper does not take, when the session was begun
/// outside a container's process namespace.
fn session(stat: &str) -> u32 {
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    after_name.split_ascii_whitespace().nth(3).unwrap().parse().unwrap()
}

#[tokio::test]
async fn embedded_files_are_there_and_tasks_of_a_run_share_a_folder() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let mut first = bench.assignment(&["./bin/hello"]);
    let script = EmbeddedFile { content: "#!/bin/sh\necho hello > left-here\n".into(), executable: true };
    first.files.insert("bin/hello".into(), script);
    assert_eq!(bench.run(&agent, first).await.outcome, Outcome::Success);
    assert_eq!(bench.run(&agent, bench.bash("grep -q hello left-here")).await.outcome, Outcome::Success);

    let mut outside = bench.bash("true");
    outside.files.insert("../x".into(), EmbeddedFile { content: String::new(), executable: false });
    let ended = bench.run(&agent, outside).await;
    assert!(matches!(ended.outcome, Outcome::Failed { reason: FailReason::CannotStart { .. } }), "{ended:?}");
}

#[tokio::test]
async fn a_bad_result_fails_the_task_and_says_why() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    for (script, words) in [
        ("head -c 120000 /dev/zero > $TENURE_RESULT", ["118 KiB", "64 KiB"]),
        ("echo hello > $TENURE_RESULT", ["not JSON", "$TENURE_RESULT"]),
    ] {
        match bench.run(&agent, bench.bash(script)).await.outcome {
            Outcome::Failed { reason: FailReason::BadResult { error } } => {
                assert!(words.iter().all(|word| error.contains(word)) && error.contains("load"), "{error}");
            }
            other => panic!("{script}: {other:?}"),
        }
    }
    let failing = bench.run(&agent, bench.bash("echo hello > $TENURE_RESULT; exit 4")).await;
    assert_eq!(failing.outcome, failed(FailReason::Exit { code: 4 }));
    let empty = bench.run(&agent, bench.bash("> $TENURE_RESULT")).await;
    assert_eq!(empty, Ended { outcome: Outcome::Success, result: None });
}

#[tokio::test]
async fn a_timeout_kills_grandchildren_even_in_sessions_of_their_own() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let [inside, escaped, deaf] = [unique_sleep(), unique_sleep(), unique_sleep()];
    // The deaf one ignores SIGTERM in a session of its own; `env -i` hides whose it is.
    let script = format!(
        "sleep {inside} & setsid sleep {escaped} & setsid bash -c \"trap '' TERM; env -i /bin/sleep {deaf}\" & wait"
    );
    let mut task = bench.bash(&script);
    task.timeout = Some(Duration::from_millis(700));
    task.grace = Duration::from_millis(200);
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    eventually("all three sleep", || [&inside, &escaped, &deaf].iter().all(|word| alive(word))).await;
    let ended = bench.control.end_of(attempt).await;
    assert_eq!(ended.outcome, failed(FailReason::TimedOut { after_ms: 700 }));
    for word in [&inside, &escaped, &deaf] {
        assert!(!alive(word), "a process of the task outlived its reported end");
    }
}

#[tokio::test]
async fn a_cancelled_task_takes_all_that_it_has_started_with_it() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let [child, session, forked_twice, deaf] = [(); 4].map(|()| unique_sleep());
    let script = format!(
        "sleep {child} & setsid sleep {session} & (setsid bash -c '(sleep {forked_twice} &)' &); \
         setsid bash -c \"trap '' TERM; sleep {deaf}; sleep {deaf}\" & wait"
    );
    let mut task = bench.bash(&script);
    task.grace = Duration::from_millis(300);
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    let all = [&child, &session, &forked_twice, &deaf];
    eventually("all of them sleep", || all.iter().all(|word| alive(word))).await;
    agent.stop(attempt).await;
    assert_eq!(bench.control.end_of(attempt).await.outcome, failed(FailReason::Stopped));
    assert!(!all.iter().any(|word| alive(word)), "a process of the task outlived its reported end");
}

#[tokio::test]
async fn a_cancel_at_any_moment_of_the_dispatch_leaves_no_orphan() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    for delay in 0..16 {
        let sleep = unique_sleep();
        let mut task = bench.assignment(&["sleep", &sleep]);
        task.grace = Duration::from_millis(200);
        let attempt = task.attempt;
        agent.assign(task).await.unwrap();
        tokio::time::sleep(Duration::from_millis(delay * 2)).await;
        agent.stop(attempt).await;
        let outcome = bench.control.end_of(attempt).await.outcome;
        let fits = outcome == Outcome::NeverStarted || outcome == failed(FailReason::Stopped);
        assert!(fits, "after {delay}: {outcome:?}");
        assert!(!alive(&sleep), "it runs on after {outcome:?}");
        bench.gone(attempt).await;
    }
}

#[tokio::test]
async fn what_a_task_leaves_behind_dies_with_it() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let [inside, escaped] = [unique_sleep(), unique_sleep()];
    let script = format!("sleep {inside} & (setsid sleep {escaped} &) ; exit 0");
    let ended = bench.run(&agent, bench.bash(&script)).await;
    assert_eq!(ended.outcome, Outcome::Success);
    assert!(!alive(&inside) && !alive(&escaped));
}

#[tokio::test]
async fn stop_lets_the_task_clean_up_within_its_grace() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let task =
        bench.bash("trap 'sleep 0.1; echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    while !bench.log().await.contains("ready") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(agent.running(), 1);
    agent.stop(attempt).await;
    assert_eq!(bench.control.end_of(attempt).await.outcome, failed(FailReason::Stopped));
    bench.gone(attempt).await;
    assert!(bench.log().await.contains("cleaned"));
    agent.stop(attempt).await; // unknown by now: nothing happens
}

#[tokio::test]
async fn the_next_attempt_of_a_task_begins_after_the_stopped_one_has_ended() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let trace = bench.path("trace").display().to_string();
    let slow = format!(
        "trap 'sleep 0.3; echo end >> {trace}; exit 0' TERM; echo begin >> {trace}; while :; do sleep 0.02; done"
    );
    let first = bench.bash(&slow);
    let second = Assignment { ti: first.ti, ..bench.bash(&format!("echo next >> {trace}")) };
    agent.assign(first.clone()).await.unwrap();
    let written = || std::fs::read_to_string(&trace).unwrap_or_default();
    eventually("the first one runs", || written().contains("begin")).await;
    agent.stop(first.attempt).await;
    let ended = bench.run(&agent, second).await;
    assert_eq!((ended.outcome, written().as_str()), (Outcome::Success, "begin\nend\nnext\n"));
}

#[tokio::test]
async fn stop_gives_children_of_a_script_their_grace_after_the_script_is_dead() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let mark = bench.path("cleaned");
    // bash dies of SIGTERM at once; its child takes its time.
    let child = format!(
        "trap 'sleep 0.2; touch {}; exit' TERM; touch ready; while :; do sleep 0.02; done",
        mark.display()
    );
    let task = bench.bash(&format!("bash -c \"{child}\" & exec sleep {}", unique_sleep()));
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    let work = bench.path("data").join("work");
    eventually("the child is ready", || find(&work, "ready")).await;
    agent.stop(attempt).await;
    assert_eq!(bench.control.end_of(attempt).await.outcome, failed(FailReason::Stopped));
    assert!(mark.exists(), "the child was killed within its grace");
}

fn find(folder: &std::path::Path, name: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name() == name || find(&entry.path(), name))
}

#[tokio::test]
async fn stop_before_the_claim_is_answered_starts_nothing() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    bench.control.answer(|answers| answers.hold_claims = true);
    let effect = bench.path("effect");
    let task = bench.bash(&format!("touch {}", effect.display()));
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    bench.control.claimed(attempt).await;
    agent.stop(attempt).await;
    assert_eq!(bench.control.end_of(attempt).await.outcome, Outcome::NeverStarted);
    bench.gone(attempt).await;
    assert!(!effect.exists());
}

#[tokio::test]
async fn a_refused_claim_starts_nothing_and_leaves_nothing() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    bench.control.answer(|answers| answers.refuse_claims = true);
    let effect = bench.path("effect");
    let task = bench.bash(&format!("touch {}", effect.display()));
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    bench.control.claimed(attempt).await;
    bench.gone(attempt).await;
    eventually("the agent has let it go", || agent.running() == 0).await;
    assert!(!effect.exists());
    assert!(bench.control.ends_of(attempt).is_empty());
}

#[tokio::test]
async fn duplicates_start_once_even_after_the_end() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let effect = bench.path("effect");
    let task = bench.bash(&format!("echo started >> {}; sleep 0.1", effect.display()));
    for _ in 0..3 {
        agent.assign(task.clone()).await.unwrap();
    }
    bench.control.end_of(task.attempt).await;
    bench.gone(task.attempt).await;
    agent.assign(task.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(std::fs::read_to_string(&effect).unwrap(), "started\n");
    assert_eq!(bench.control.claims_of(task.attempt), 1);
}

#[tokio::test]
async fn the_same_dispatch_delivered_three_times_to_two_agents_starts_once() {
    let (first, second) = (Bench::new(), Bench::with(|config| config.node = "n2".into()));
    let agents = [first.agent().await, second.agent().await];
    let effect = first.path("effect");
    let task = first.bash(&format!("echo started >> {}; sleep 0.1", effect.display()));
    for _ in 0..3 {
        assert!(agents[0].assign(task.clone()).await.is_ok());
        assert!(matches!(agents[1].assign(task.clone()).await, Err(AssignError::WrongNode { .. })));
    }
    first.control.end_of(task.attempt).await;
    first.gone(task.attempt).await;
    assert_eq!(std::fs::read_to_string(&effect).unwrap(), "started\n");
    assert_eq!(first.control.claims_of(task.attempt), 1);
    assert_eq!(second.control.bodies(), []);
}

#[tokio::test]
async fn a_deposed_owner_starts_nothing_also_after_a_restart() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let with_epoch = |epoch| {
        let mut task = bench.assignment(&["true"]);
        task.epoch = epoch;
        task
    };
    bench.run(&agent, with_epoch(7)).await;
    let stale = agent.assign(with_epoch(6)).await;
    assert!(matches!(stale, Err(AssignError::StaleEpoch { offered: 6, highest: 7, .. })), "{stale:?}");
    agent.shutdown().await;
    let agent = bench.agent().await;
    assert!(agent.assign(with_epoch(6)).await.is_err());
    bench.run(&agent, with_epoch(7)).await;
}

#[tokio::test]
async fn an_assignment_for_another_node_is_refused() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let mut task = bench.assignment(&["true"]);
    task.node = "n2".into();
    assert!(matches!(agent.assign(task).await, Err(AssignError::WrongNode { .. })));
}

#[tokio::test]
async fn a_second_agent_on_the_same_folder_is_refused() {
    let bench = Bench::new();
    let _first = bench.agent().await;
    let second = bench.try_agent().await;
    assert!(matches!(&second, Err(AgentError::InUse(_))), "{second:?}");
}

#[tokio::test]
async fn every_report_is_resent_until_it_is_heard() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let task = bench.bash("exit 5");
    let attempt = task.attempt;
    bench.control.answer(|answers| answers.retries = 3);
    agent.assign(task).await.unwrap();
    bench.control.end_of(attempt).await;
    assert_eq!(bench.control.claims_of(attempt), 4);
    bench.gone(attempt).await;

    let task = bench.bash("sleep 0.3; exit 5");
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    bench.control.claimed(attempt).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.control.answer(|answers| answers.retries = 3);
    bench.control.end_of(attempt).await;
    assert!(bench.folder_of(attempt).exists(), "the folder is kept until the end is acknowledged");
    bench.gone(attempt).await;
    let ends = bench.control.ends_of(attempt);
    assert_eq!(ends.len(), 4);
    assert!(ends.iter().all(|end| end.outcome == failed(FailReason::Exit { code: 5 })));
}

#[tokio::test]
async fn secrets_are_redacted_however_the_task_prints_them() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let mut task = bench.bash(
        "printf 'a hunt'; sleep 0.1; printf 'er/22 b\\n'; printf hunter/22 | base64; printf x:hunter/22 | base64; \
         echo hunter%2F22; echo end",
    );
    task.secrets = vec!["hunter/22".into(), "ab".into()];
    bench.run(&agent, task).await;
    let log = bench.log().await;
    assert!(log.starts_with("a *** b\n***\n") && log.ends_with("\n***\nend\n"), "{log}");
    assert!(!log.contains("aHVudGVyLzIy") && !log.contains("dW50ZXIvMj"), "{log}");
}

#[tokio::test]
async fn output_is_readable_while_the_task_runs() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let task = bench.bash("echo early; sleep 1000");
    let attempt = task.attempt;
    agent.assign(task).await.unwrap();
    let reading = async {
        while bench.log().await != "early\n" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(common::PATIENCE, reading)
        .await
        .expect("the first line arrives while the task runs");
    agent.stop(attempt).await;
    bench.control.end_of(attempt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_attempts_at_once_all_succeed() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let tasks: Vec<_> = (0..200).map(|_| bench.assignment(&["true"])).collect();
    for task in &tasks {
        agent.assign(task.clone()).await.unwrap();
    }
    for task in &tasks {
        assert_eq!(bench.control.end_of(task.attempt).await.outcome, Outcome::Success);
    }
    eventually("all are let go", || agent.running() == 0).await;
}

#[tokio::test]
async fn an_http_task_returns_json_and_fails_on_an_unexpected_status() {
    let bench = Bench::new();
    let agent = bench.agent().await;
    let address =
        serve(vec![("200 OK", "{\"x\": 1}"), ("503 Service Unavailable", "busy"), ("418 Teapot", "short")]);
    let request = |method: &str, expected: &[u16]| {
        bench.program(Program::Http {
            request: HttpRequest {
                method: method.into(),
                url: format!("http://{address}/orders"),
                headers: [("x-token".to_owned(), "t".to_owned())].into(),
                body: (method == "POST").then(|| "hello".into()),
                expected_status: expected.to_vec(),
            },
        })
    };
    let first = bench.run(&agent, request("POST", &[])).await;
    assert_eq!(first, Ended { outcome: Outcome::Success, result: Some(serde_json::json!({"x": 1})) });
    let second = bench.run(&agent, request("GET", &[])).await;
    assert_eq!(second.outcome, failed(FailReason::Exit { code: 1 }));
    let third = bench.run(&agent, request("GET", &[418])).await;
    assert_eq!(third, Ended { outcome: Outcome::Success, result: None });
    let log = bench.log().await;
    assert!(
        log.contains("503") && log.contains("busy") && log.contains("any 2xx") && log.contains("short"),
        "{log}"
    );
}

/// A server that answers one connection after the other and then is gone.
fn serve(answers: Vec<(&'static str, &'static str)>) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let mut read = stream.read(&mut request).unwrap();
            while request.starts_with(b"POST") && !request[..read].ends_with(b"hello") {
                read += stream.read(&mut request[read..]).unwrap();
            }
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    address
}
