//! Goal: what a user sees is the same with `tenure up` on SQLite, on Postgres, and with replicas and an agent.
//! Method: one suite of facts, three wirings; real processes, the real command line.

mod common;

use std::time::Duration;

use common::{Site, Wiring, tasks, text, wait_until};
use tenure_clock::{Clock, SystemClock};
use tenure_testkit::{Postgres, Settings};

macro_rules! on_every_wiring {
    ($($fact:ident),* $(,)?) => {
        mod sqlite { $( #[test] fn $fact() { super::$fact(&super::Site::new(super::Wiring::Sqlite)); } )* }
        mod postgres { $( #[test] fn $fact() { super::$fact(&super::Site::new(super::Wiring::Postgres)); } )* }
        mod cluster { $( #[test] fn $fact() { super::$fact(&super::Site::new(super::Wiring::Cluster)); } )* }
    };
}

on_every_wiring!(
    a_dag_runs_and_its_logs_can_be_read,
    values_flow_from_task_to_task,
    failures_retries_and_skips_end_as_documented,
    a_timeout_and_a_cancel_kill_grandchildren_too,
    a_cleared_task_runs_again_and_keeps_its_history,
    a_cancelled_task_has_ended_before_it_runs_again,
    a_broken_file_leaves_the_last_good_version_in_force,
    a_schedule_creates_its_runs_exactly_once,
    a_pool_and_a_quota_bound_what_runs_at_once,
    a_preview_names_the_node_that_the_task_goes_to_and_what_would_hold_it_up,
    a_killed_server_goes_on_where_it_was,
    a_graceful_stop_leaves_tasks_running_and_picks_them_up,
    secrets_never_reach_a_log,
    ten_thousand_tasks_and_a_chain_of_a_thousand_work,
);

/// Waits for the run itself, whatever its tasks are.
fn wait_run(site: &Site, dag: &str, run: &str, state: &str) {
    let reached = wait_until("the run", Duration::from_secs(40), || {
        let shown = site.cli(&["run", "show", dag, run, "--output", "json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
        (shown["state"] == state).then_some(())
    });
    assert!(reached.is_some(), "{dag}/{run} did not become {state}:\n{}", site.server_log());
}

fn a_dag_runs_and_its_logs_can_be_read(site: &Site) {
    site.dag("hello.yaml", "id: hello\ntasks:\n  greet:\n    bash: echo hello from $TENURE_TASK_ID\n  wave: { needs: [greet], exec: [echo, '{{ run_id }}'] }\n");
    let _server = site.start();
    let run = site.run("hello", &["--run-id", "first"]);
    assert_eq!(
        (run["state"].as_str(), tasks(&run).as_str()),
        (Some("success"), "greet:success wave:success")
    );
    assert!(run["started_at"].is_string() && run["ended_at"].is_string());
    let log = wait_until("the log", Duration::from_secs(10), || {
        let log = site.ok(&["task", "logs", "hello", "first", "greet"]);
        log.contains("hello from greet").then_some(log)
    });
    assert!(log.is_some());
    assert!(site.ok(&["task", "logs", "hello", "latest", "wave", "-f"]).contains("first"));
    assert!(site.ok(&["run", "list", "hello"]).contains("first"));
    let audit = site.ok(&["run", "audit", "hello", "first"]);
    for word in ["claimed", "bound", "succeeded", "finished"] {
        assert!(audit.contains(word), "{word} is not in the audit trail:\n{audit}");
    }
}

fn values_flow_from_task_to_task(site: &Site) {
    site.dag(
        "values.yaml",
        r#"
id: values
params: { region: { type: string, default: eu } }
tasks:
  count: { bash: 'echo "{\"rows\": 42}" > "$TENURE_RESULT"' }
  use:
    needs: [count]
    python: |
      import os
      print("rows", os.environ["ROWS"], "in", os.environ["REGION"])
    env: { ROWS: "{{ results.count.rows }}", REGION: "{{ params.region }}" }
  typo: { needs: [count], exec: [echo, "{{ results.cuont }}"] }
"#,
    );
    let _server = site.start();
    let run = site.run("values", &["--param", "region=us; rm -rf /"]);
    assert_eq!(tasks(&run), "count:success use:success typo:failed");
    let log = site.ok(&["task", "logs", "values", "latest", "use", "-f"]);
    assert!(log.contains("rows 42 in us; rm -rf /"), "{log}");
    let typo = site.json(&["task", "show", "values", "latest", "typo"]).to_string();
    assert!(typo.contains("could not start: template in exec, line 1"), "{typo}");
    let refused = site.cli(&["run", "trigger", "values", "--conf", r#"{"region": 7}"#]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("region"), "{}", text(&refused.stderr));
}

fn failures_retries_and_skips_end_as_documented(site: &Site) {
    site.dag(
        "mixed.yaml",
        r#"
id: mixed
tasks:
  flaky: { bash: '[ "$TENURE_TRY_NUMBER" -ge 2 ]', retries: 1, retry_delay: 0s }
  skip: { bash: exit 99 }
  after_skip: { needs: [skip], exec: ["true"] }
  killed: { bash: kill -KILL $$ }
  after_kill: { needs: [killed], exec: ["true"] }
  cleanup: { needs: [killed, skip], trigger_rule: all_done, exec: ["true"] }
  missing: { exec: [no-such-program-here] }
"#,
    );
    let _server = site.start();
    let run = site.run("mixed", &[]);
    assert_eq!(run["state"], "failed");
    let expected = "flaky:success skip:skipped after_skip:skipped killed:failed after_kill:upstream_failed \
                    cleanup:success missing:failed";
    assert_eq!(tasks(&run), expected);
    assert_eq!(run["tasks"][0]["try_number"], 2);
    let tries = site.json(&["task", "tries", "mixed", "latest", "flaky"]);
    assert_eq!(tries.as_array().map(Vec::len), Some(2), "{tries}");
    let killed = site.json(&["task", "show", "mixed", "latest", "killed"]).to_string();
    assert!(killed.contains("killed by SIGKILL"), "{killed}");
    let missing = site.json(&["task", "show", "mixed", "latest", "missing"]).to_string();
    assert!(missing.contains("no-such-program-here"), "{missing}");
    let failed = site.cli(&["run", "trigger", "mixed", "--wait"]);
    assert_eq!(failed.status.code(), Some(1), "the exit code follows the outcome");
}

fn a_timeout_and_a_cancel_kill_grandchildren_too(site: &Site) {
    // Each grandchild says that it lives every 50 ms, in a session of its own.
    let family = |name: &str| {
        format!("setsid bash -c 'while :; do date +%s%N > EFFECTS/{name}; sleep 0.05; done' & wait")
    };
    site.dag(
        "family.yaml",
        &format!(
            "id: family\ntasks:\n  slow:\n    bash: \"{}\"\n    timeout: 500ms\n    grace: 1s\n  long:\n    bash: \"{}\"\n    grace: 1s\n",
            family("slow"),
            family("long")
        ),
    );
    let _server = site.start();
    site.ok(&["run", "trigger", "family", "--run-id", "r"]);
    let alive = |name: &str| site.effect(name).is_some_and(|beat| !beat.is_empty());
    wait_until("the long task", Duration::from_secs(20), || alive("long").then_some(())).expect("it runs");
    wait_until("the timeout", Duration::from_secs(20), || {
        site.json(&["task", "show", "family", "r", "slow"])
            .to_string()
            .contains("timed out after")
            .then_some(())
    })
    .expect("it times out");
    site.ok(&["run", "cancel", "family", "r"]);
    let silent = wait_until("silence", Duration::from_secs(20), || {
        let before = (site.effect("slow"), site.effect("long"));
        std::thread::sleep(Duration::from_millis(300));
        (before == (site.effect("slow"), site.effect("long"))).then_some(())
    });
    assert!(silent.is_some(), "grandchildren live on");
    wait_run(site, "family", "r", "failed");
}

fn a_cleared_task_runs_again_and_keeps_its_history(site: &Site) {
    site.dag(
        "again.yaml",
        "id: again\ntasks:\n  a: { bash: 'echo $TENURE_TRY_NUMBER >> EFFECTS/a' }\n  b: { needs: [a], bash: 'test -e EFFECTS/fixed' }\n  c: { needs: [b], exec: ['true'] }\n",
    );
    let _server = site.start();
    let run = site.run("again", &["--run-id", "r"]);
    assert_eq!(tasks(&run), "a:success b:failed c:upstream_failed");
    std::fs::write(site.path("effects").join("fixed"), "").unwrap();
    site.ok(&["run", "clear", "again", "r", "--only-failed", "--yes"]);
    wait_run(site, "again", "r", "success");
    let list = site.json(&["task", "list", "again", "r"]).to_string();
    assert!(!list.contains("failed"), "{list}");
    assert_eq!(site.effect("a").as_deref(), Some("1\n"), "what succeeded is left alone");
    let tries = site.json(&["task", "tries", "again", "r", "b"]);
    assert_eq!(tries.as_array().map(Vec::len), Some(2), "{tries}");
}

fn a_cancelled_task_has_ended_before_it_runs_again(site: &Site) {
    site.dag(
        "slow.yaml",
        "id: slow\ntasks:\n  a:\n    grace: 5s\n    bash: |\n      trap 'sleep 1; date +%s%N >> EFFECTS/ends; exit 1' TERM\n      date +%s%N >> EFFECTS/begins\n      test -e EFFECTS/second && exit 0\n      sleep 60 & wait\n",
    );
    let _server = site.start();
    site.ok(&["run", "trigger", "slow", "--run-id", "r"]);
    wait_until("the task", Duration::from_secs(20), || site.effect("begins")).expect("it runs");
    site.ok(&["run", "cancel", "slow", "r"]);
    std::fs::write(site.path("effects").join("second"), "").unwrap();
    site.ok(&["run", "clear", "slow", "r", "--yes"]);
    let begins = wait_until("the second attempt", Duration::from_secs(30), || {
        site.effect("begins").filter(|begins| begins.lines().count() == 2)
    })
    .expect("it runs again");
    let ended = site.effect("ends").expect("the first attempt has ended before the second one begins");
    let at = |line: Option<&str>| line.unwrap().parse::<u128>().unwrap();
    assert!(at(ended.lines().next()) <= at(begins.lines().nth(1)), "ends {ended}begins {begins}");
}

fn a_broken_file_leaves_the_last_good_version_in_force(site: &Site) {
    site.dag("d.yaml", "id: d\ntasks:\n  a: { exec: [echo, one] }\n");
    let _server = site.start();
    site.dag("d.yaml", "id: d\ntasks:\n  a: { exec: [echo, two], needs: [bb] }\n  b: { empty: true }\n");
    let error = wait_until("the error", Duration::from_secs(20), || {
        let errors = site.ok(&["dag", "errors"]);
        errors.contains("did you mean \"b\"?").then_some(errors)
    })
    .expect("the error is shown");
    assert!(error.contains("d.yaml") && error.contains('3'), "{error}");
    assert_eq!(tasks(&site.run("d", &[])), "a:success", "the last good version is in force");
    site.dag("d.yaml", "id: d\ntasks:\n  a: { exec: [echo, two] }\n  b: { empty: true }\n");
    let whole = wait_until("the new version", Duration::from_secs(20), || {
        (tasks(&site.run("d", &[])) == "a:success b:success").then_some(())
    });
    assert!(whole.is_some());
    let said = site.cli(&["dag", "validate", "dags/d.yaml"]);
    assert!(said.status.success());
}

fn a_schedule_creates_its_runs_exactly_once(site: &Site) {
    let start = jiff::Timestamp::from_second(SystemClock.now().as_second() - 5).unwrap();
    site.dag(
        "ticks.yaml",
        &format!("id: ticks\nschedule: {{ every: 1s }}\nstart_date: {start}\ncatchup: true\nmax_active_runs: 3\ntasks:\n  t: {{ exec: ['true'] }}\n"),
    );
    let server = site.start();
    std::thread::sleep(Duration::from_secs(2));
    server.kill();
    std::thread::sleep(Duration::from_secs(2));
    let _server = site.start();
    // Three are active at a time and may end in any order: the tenth success is not the tenth tick.
    let dates = wait_until("the first ten runs", Duration::from_secs(30), || {
        let listed = site.json(&["run", "list", "ticks", "--limit", "100"]);
        let mut runs: Vec<(jiff::Timestamp, bool)> = listed
            .as_array()?
            .iter()
            .filter_map(|run| Some((run["logical_date"].as_str()?.parse().ok()?, run["state"] == "success")))
            .collect();
        runs.sort();
        let ended = runs.len() >= 10 && runs[..10].iter().all(|(_, success)| *success);
        ended.then(|| runs.into_iter().map(|(date, _)| date).collect::<Vec<_>>())
    })
    .expect("the schedule catches up");
    for (number, date) in dates.iter().enumerate() {
        let expected = start + Duration::from_secs(number as u64);
        assert_eq!(*date, expected, "every tick once and none left out: {dates:?}");
    }
}

fn a_preview_names_the_node_that_the_task_goes_to_and_what_would_hold_it_up(site: &Site) {
    site.dag("where.yaml", "id: where\ntasks:\n  a: { exec: [\"true\"], resources: { cpu: 0.1 } }\n");
    let _server = site.start();
    let asked = wait_until("a node is heard", Duration::from_secs(30), || {
        let answer = site.json(&["place", "preview", "where", "a"]);
        answer["node"].is_string().then_some(answer)
    });
    let asked = asked.unwrap_or_else(|| panic!("{}", site.ok(&["place", "preview", "where", "a"])));
    let node = asked["node"].as_str().unwrap();
    let uses = &asked["candidates"][0]["uses"]["cpu"];
    assert_eq!((uses["before"].as_u64(), uses["after"].as_u64()), (Some(0), Some(100)), "{asked}");
    assert_eq!(site.run("where", &["--run-id", "r"])["state"], "success");
    let audit = site.json(&["run", "audit", "where", "r"]).to_string();
    assert!(audit.contains(&format!("\"node\":\"{node}\"")), "{node} is not in {audit}");

    site.ok(&["dag", "pause", "where"]);
    let table = site.ok(&["place", "preview", "where", "a", "--resource", "gpu=3", "--pool", "none"]);
    for words in
        ["it would wait", "its dag is paused", "pool none does not exist", "no node has gpu ≥ 3", node]
    {
        assert!(table.contains(words), "{words:?} is not in\n{table}");
    }
    let wrong = site.cli(&["place", "preview", "where", "b"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("it has a."), "{}", text(&wrong.stderr));
}

/// Six tasks that take a while each.
fn six_tasks(site: &Site, dag: &str, of_task: &str) {
    let tasks_text: String = (0..6)
        .map(|n| format!("  t{n}: {{ {of_task} bash: 'date +%s%N >> EFFECTS/{dag}{n}; sleep 0.2; date +%s%N >> EFFECTS/{dag}{n}' }}\n"))
        .collect();
    site.dag(&format!("{dag}.yaml"), &format!("id: {dag}\ntasks:\n{tasks_text}"));
}

/// How many of the six ran at once.
fn most_at_once(site: &Site, dag: &str) -> i32 {
    assert_eq!(site.run(dag, &[])["state"], "success");
    let mut edges: Vec<(u128, i32)> = vec![];
    for n in 0..6 {
        let times = site.effect(&format!("{dag}{n}")).unwrap();
        let times: Vec<u128> = times.lines().map(|line| line.parse().unwrap()).collect();
        edges.extend([(times[0], 1), (times[1], -1)]);
    }
    edges.sort();
    let running = edges.iter().scan(0, |now, (_, step)| {
        *now += step;
        Some(*now)
    });
    running.max().unwrap()
}

fn a_pool_and_a_quota_bound_what_runs_at_once(site: &Site) {
    six_tasks(site, "pool", "pool: narrow,");
    six_tasks(site, "quota", "");
    let _server = site.start();
    site.ok(&["pool", "set", "narrow", "2"]);
    assert_eq!(most_at_once(site, "pool"), 2);
    let set = site.ok(&["quota", "set", "tasks=1,cpu=3"]);
    assert!(set.contains("cpu 0 of 3, tasks 0 of 1"), "{set}");
    assert_eq!(most_at_once(site, "quota"), 1);
    assert!(site.ok(&["quota", "list"]).contains("tasks 0 of 1"));
    site.ok(&["quota", "delete"]);
    let gone = site.cli(&["quota", "delete"]);
    assert!(text(&gone.stderr).contains("tenant default has no quota"), "{}", text(&gone.stderr));
}

fn a_killed_server_goes_on_where_it_was(site: &Site) {
    site.dag(
        "long.yaml",
        "id: long\ntasks:\n  work: { bash: 'echo start >> EFFECTS/work; sleep 2; echo end >> EFFECTS/work; exit 0' }\n  code: { bash: 'sleep 2; exit 7' }\n  after: { needs: [work], bash: echo after >> EFFECTS/work }\n",
    );
    let server = site.start();
    site.ok(&["run", "trigger", "long", "--run-id", "r"]);
    wait_until("the work", Duration::from_secs(20), || site.effect("work")).expect("it starts");
    server.kill();
    let _server = site.start();
    wait_run(site, "long", "r", "failed");
    assert_eq!(site.effect("work").as_deref(), Some("start\nend\nafter\n"), "started once, ended, went on");
    let code = site.json(&["task", "show", "long", "r", "code"]).to_string();
    assert!(code.contains("exit code 7"), "the exit code survived: {code}");
}

fn a_graceful_stop_leaves_tasks_running_and_picks_them_up(site: &Site) {
    site.dag(
        "long.yaml",
        "id: long\ntasks:\n  work: { bash: 'echo start >> EFFECTS/w; sleep 2; echo end >> EFFECTS/w' }\n",
    );
    let server = site.start();
    site.ok(&["run", "trigger", "long", "--run-id", "r"]);
    wait_until("the work", Duration::from_secs(20), || site.effect("w")).expect("it starts");
    assert_eq!(server.stop(), Some(0));
    assert!(site.server_log().contains("1 task keeps running"), "{}", site.server_log());
    assert_eq!(site.cli(&["dag", "list"]).status.code(), Some(3), "no server, no answer");
    let _server = site.start();
    wait_run(site, "long", "r", "success");
    assert_eq!(site.effect("w").as_deref(), Some("start\nend\n"));
}

fn secrets_never_reach_a_log(site: &Site) {
    site.dag(
        "secret.yaml",
        "id: secret\ntasks:\n  leak:\n    bash: echo \"pw=$PGPASSWORD key=$API_KEY\"; echo -n \"$PGPASSWORD\" | base64\n    env: { PGPASSWORD: { secret: DB }, API_KEY: \"k-123456\" }\n",
    );
    let _server = site.start();
    assert_eq!(site.run("secret", &[])["state"], "success");
    let log = site.ok(&["task", "logs", "secret", "latest", "leak", "-f"]);
    assert!(log.contains("pw=***"), "{log}");
    for secret in ["s3cr3t-value", "k-123456", "czNjcjN0LXZhbHVl"] {
        assert!(!log.contains(secret), "{secret} leaked: {log}");
    }
}

fn ten_thousand_tasks_and_a_chain_of_a_thousand_work(site: &Site) {
    let wide: String = (0..10_000).map(|n| format!("  t{n}: {{ empty: true }}\n")).collect();
    site.dag("wide.yaml", &format!("id: wide\ntasks:\n{wide}"));
    let chain: String =
        (1..1_000).map(|n| format!("  t{n}: {{ empty: true, needs: [t{}] }}\n", n - 1)).collect();
    site.dag("chain.yaml", &format!("id: chain\ntasks:\n  t0: {{ empty: true }}\n{chain}"));
    let _server = site.start();
    for (dag, count) in [("wide", 10_000), ("chain", 1_000)] {
        let run = site.run(dag, &[]);
        assert_eq!(
            (run["state"].as_str(), run["tasks"].as_array().map(Vec::len)),
            (Some("success"), Some(count))
        );
    }
}

#[test]
fn a_postgres_that_restarts_is_waited_out_and_running_tasks_report_afterwards() {
    let postgres = Postgres::own(Settings::default());
    let site = Site::on(Some(postgres.url()));
    site.dag("long.yaml", "id: long\ntasks:\n  a: { bash: 'echo start >> EFFECTS/a; sleep 2; echo end >> EFFECTS/a' }\n  b: { needs: [a], exec: ['true'] }\n");
    let _server = site.start();
    site.ok(&["run", "trigger", "long", "--run-id", "r"]);
    wait_until("the task", Duration::from_secs(20), || site.effect("a")).expect("it starts");
    postgres.stop();
    let unready = wait_until("health to notice", Duration::from_secs(20), || {
        let health = site.cli(&["health"]);
        (!health.status.success()).then(|| text(&health.stdout) + &text(&health.stderr))
    });
    assert!(unready.is_some_and(|said| said.contains("database")), "the reason is said");
    // The task ends while nobody can write it down.
    std::thread::sleep(Duration::from_secs(3));
    postgres.start();
    wait_run(&site, "long", "r", "success");
    assert_eq!(site.effect("a").as_deref(), Some("start\nend\n"), "nothing ran twice");
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let site = Site::new(Wiring::Sqlite);
    let server = site.start();
    let second = site.up_fails();
    assert_eq!(second.status.code(), Some(1));
    let said = text(&second.stderr);
    assert!(said.contains("in use") && said.contains(&server.pid().to_string()), "{said}");
}

#[test]
fn a_pushed_dag_takes_its_scripts_along() {
    let site = Site::new(Wiring::Sqlite);
    let _server = site.start();
    std::fs::write(site.path("pushed.yaml"), "id: pushed\ntasks: { a: { python: a.py } }\n").unwrap();
    std::fs::write(site.path("a.py"), "print('from the file')").unwrap();
    site.ok(&["dag", "push", "pushed.yaml", "--unpaused"]);
    assert_eq!(site.run("pushed", &[])["state"], "success");
    let late = site.cli(&["run", "cancel", "pushed", "latest"]);
    assert_eq!(late.status.code(), Some(1));
    assert!(text(&late.stderr).contains("has ended already (success)"), "{}", text(&late.stderr));
    assert!(site.ok(&["task", "logs", "pushed", "latest", "a", "-f"]).contains("from the file"));
}

#[test]
fn wrong_usage_and_unknown_things_have_their_exit_codes() {
    let site = Site::new(Wiring::Sqlite);
    site.dag("hello.yaml", "id: hello\ntasks: { a: { empty: true } }\n");
    assert_eq!(site.cli(&["dag", "list"]).status.code(), Some(3));
    assert_eq!(site.cli(&["run", "trigger"]).status.code(), Some(2));
    let _server = site.start();
    let unknown = site.cli(&["run", "trigger", "helo"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("did you mean hello?"), "{}", text(&unknown.stderr));
    assert_eq!(site.cli(&["dag", "list", "--token", "wrong"]).status.code(), Some(1));
    let bad = site.path("bad.yaml");
    std::fs::write(&bad, "id: bad\ntasks: { a: { needs: [a], empty: true } }\n").unwrap();
    let refused = site.cli(&["dag", "push", "bad.yaml"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("bad.yaml:2"), "{}", text(&refused.stderr));
}

#[test]
fn the_examples_run() {
    let site = Site::new(Wiring::Sqlite);
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dags");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, site.path("dags").join(path.file_name().unwrap())).unwrap();
    }
    let _server = site.start();
    let dags = site.json(&["dag", "list"]);
    let names: Vec<&str> = dags.as_array().unwrap().iter().filter_map(|dag| dag["dag_id"].as_str()).collect();
    assert!(names.len() >= 5, "{names:?}");
    for dag in names {
        let run = site.run(dag, &[]);
        assert_eq!(run["state"], "success", "{dag}: {}", tasks(&run));
    }
}
