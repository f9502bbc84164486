//! Goal: `kill -9` at any moment loses nothing that was acknowledged, and doubles nothing.
//! Method: a busy mix of dags; the whole server is killed fifty times at random moments and started
//! again; afterwards the audit trail and the tasks' own traces are compared.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::{Api, Site, Wiring, wait_until};
use serde_json::{Value, json};
use tenure_clock::{Clock, Entropy, SystemClock};

const KILLS: usize = 50;
const KINDS: [&str; 3] = ["wide", "chain", "flaky"];

/// Every attempt leaves one file: when it began, under which name, and when it ended.
const TRACE: &str = r#"echo "begin $(date +%s%N) $TENURE_DAG_ID/$TENURE_RUN_ID/$TENURE_TASK_ID" >> EFFECTS/$TENURE_ATTEMPT_ID; sleep 0.0$((RANDOM % 9 + 1)); echo "end $(date +%s%N)" >> EFFECTS/$TENURE_ATTEMPT_ID"#;

#[test]
fn fifty_kills_on_sqlite_lose_nothing_and_double_nothing() {
    survive(Wiring::Sqlite, KILLS);
}

#[test]
fn ten_kills_on_postgres_lose_nothing_and_double_nothing() {
    survive(Wiring::Postgres, 10);
}

fn survive(wiring: Wiring, kills: usize) {
    let seed = std::env::var("TENURE_KILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from_be_bytes(Entropy::from_os().bytes()));
    println!("replay with TENURE_KILL_SEED={seed}");
    let chance = Entropy::seeded(seed);

    let site = Site::new(wiring);
    write_dags(&site);
    let history = History::default();
    let server_pid = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| trigger_until(&done, &site, &server_pid, &history));
        for _ in 0..kills {
            let server = site.spawn();
            server_pid.store(server.pid(), Ordering::SeqCst);
            // Sometimes before it has started up, mostly in the middle of things.
            std::thread::sleep(Duration::from_millis(100) + chance.jitter(Duration::from_millis(1_100)));
            server.kill();
        }
        done.store(true, Ordering::SeqCst);
    });

    let server = site.start();
    let api = Api::of(&site, server.pid()).expect("the server has published itself");
    wait_for_all_runs(&api, &site, &history, kills);
    check(&api, &site, &history);
    // The schedule goes on while we look; what we have seen of it is checked, then it ends with the server.
    server.kill();
}

fn write_dags(site: &Site) {
    let wide: String = (0..6).map(|n| format!("  w{n}: {{ bash: '{TRACE}' }}\n")).collect();
    site.dag("wide.yaml", &format!("id: wide\nmax_active_runs: 4\ntasks:\n{wide}  join: {{ needs: [w0, w1, w2, w3, w4, w5], empty: true }}\n"));
    let chain: String =
        (1..5).map(|n| format!("  c{n}: {{ needs: [c{}], bash: '{TRACE}' }}\n", n - 1)).collect();
    site.dag(
        "chain.yaml",
        &format!("id: chain\nmax_active_runs: 4\ntasks:\n  c0: {{ bash: '{TRACE}' }}\n{chain}"),
    );
    site.dag(
        "flaky.yaml",
        &format!("id: flaky\nmax_active_runs: 4\ndefaults: {{ retries: 2, retry_delay: 0s }}\ntasks:\n  f: {{ bash: '{TRACE}; [ $TENURE_TRY_NUMBER -ge 2 ]' }}\n  g: {{ needs: [f], bash: '{TRACE}' }}\n"),
    );
    let start = jiff::Timestamp::from_second(SystemClock.now().as_second()).unwrap();
    site.dag(
        "ticks.yaml",
        &format!("id: ticks\nschedule: {{ every: 2s }}\nstart_date: {start}\ncatchup: true\nmax_active_runs: 2\ntasks:\n  t: {{ bash: '{TRACE}' }}\n"),
    );
}

/// What clients know: runs they were told exist.
#[derive(Default)]
struct History {
    acknowledged: Mutex<BTreeMap<(String, String), ()>>,
}

/// A client that triggers, and asks again with the same key until it has an answer.
fn trigger_until(done: &AtomicBool, site: &Site, server: &AtomicU32, history: &History) {
    let mut number = 0;
    while !done.load(Ordering::SeqCst) {
        number += 1;
        let dag = KINDS[number % KINDS.len()];
        let run_id = format!("run-{number:04}");
        let body = json!({"dag_run_id": run_id, "logical_date": null, "conf": {"n": number}});
        while !done.load(Ordering::SeqCst) {
            let answer = Api::of(site, server.load(Ordering::SeqCst))
                .and_then(|api| api.post(&format!("/api/v2/dags/{dag}/dagRuns"), Some(&run_id), &body));
            match answer {
                Some((200, _)) => {
                    history.acknowledged.lock().unwrap().insert((dag.to_owned(), run_id.clone()), ());
                    break;
                }
                // Not registered yet, or shutting down: the same request again.
                Some((404 | 503, _)) | None => std::thread::sleep(Duration::from_millis(20)),
                Some((status, answer)) => panic!("{dag}/{run_id}: {status} {answer}"),
            }
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn wait_for_all_runs(api: &Api, site: &Site, history: &History, kills: usize) {
    let expected = history.acknowledged.lock().unwrap().len();
    assert!(expected >= kills, "only {expected} triggers got through: the test is not busy enough");
    let unfinished = || {
        let mut left = 0;
        for dag in KINDS {
            for state in ["queued", "running"] {
                let (_, page) = api.get(&format!("/api/v2/dags/{dag}/dagRuns?state={state}&limit=1"))?;
                left += page["total_entries"].as_u64()?;
            }
        }
        Some(left)
    };
    let ended =
        wait_until("every run to end", Duration::from_secs(180), || (unfinished()? == 0).then_some(()));
    assert!(ended.is_some(), "{:?} runs never ended\n{}", unfinished(), site.server_log());
}

fn check(api: &Api, site: &Site, history: &History) {
    let acknowledged = history.acknowledged.lock().unwrap();
    for dag in KINDS {
        let runs = all(api, &format!("/api/v2/dags/{dag}/dagRuns"), "dag_runs");
        let ids: BTreeSet<&str> = runs.iter().filter_map(|run| run["dag_run_id"].as_str()).collect();
        assert_eq!(ids.len(), runs.len(), "a run exists twice");
        for (_, run) in acknowledged.keys().filter(|(of, _)| of == dag) {
            assert!(ids.contains(run.as_str()), "{dag}/{run} was acknowledged and is gone");
        }
        for run in &runs {
            assert_eq!(run["state"], "success", "{run}");
        }
    }
    let ticks = all(api, "/api/v2/dags/ticks/dagRuns", "dag_runs");
    let mut dates: Vec<jiff::Timestamp> =
        ticks.iter().map(|run| run["logical_date"].as_str().unwrap().parse().unwrap()).collect();
    dates.sort();
    for pair in dates.windows(2) {
        assert_eq!(pair[1].duration_since(pair[0]).as_secs(), 2, "every tick exactly once: {dates:?}");
    }
    check_attempts(api, site);
}

/// One attempt's life as the audit trail tells it.
#[derive(Debug, Default)]
struct Attempt {
    bound: usize,
    claimed: usize,
    ended: Vec<String>,
    task: String,
}

fn check_attempts(api: &Api, site: &Site) {
    let mut attempts: BTreeMap<String, Attempt> = BTreeMap::new();
    let mut states: BTreeMap<String, String> = BTreeMap::new();
    let mut epoch = 0;
    // The clock goes on ticking: what begins while the trail is being read need not be in it.
    let begun = traces(site);
    for row in audit(api) {
        let run = format!("{}/{}", row["dag"].as_str().unwrap_or("-"), row["run_id"].as_str().unwrap_or("-"));
        if let Some(of_row) = row["epoch"].as_u64() {
            assert!(of_row >= epoch, "an older epoch wrote after a newer one: {row}");
            epoch = of_row;
        }
        for entry in row["entries"].as_array().unwrap() {
            let Some(task) = entry["task"].as_str() else { continue };
            let task = format!("{run}/{task}");
            let (from, to) = (entry["from"].as_str().unwrap(), entry["to"].as_str().unwrap());
            let before = states.insert(task.clone(), to.to_owned()).unwrap_or_else(|| "none".into());
            assert_eq!(before, from, "the story of {task} has a gap: {entry}");
            let Some(id) = entry["attempt"].as_str() else { continue };
            let attempt = attempts.entry(id.to_owned()).or_default();
            attempt.task = task;
            match entry["event"].as_str().unwrap() {
                "bound" => attempt.bound += 1,
                "claimed" => attempt.claimed += 1,
                other => attempt.ended.push(other.to_owned()),
            }
            let reason = entry["reason"].as_str().unwrap_or_default();
            assert!(!reason.contains("lost"), "only the server was killed, yet a task was lost: {entry}");
        }
    }
    assert!(epoch >= 10, "the epoch is only {epoch}: the server was hardly restarted");
    for (id, attempt) in &attempts {
        assert_eq!(attempt.bound, 1, "{id} bound {} times: {attempt:?}", attempt.bound);
        assert!(attempt.claimed <= 1, "{id} claimed twice: {attempt:?}");
    }
    let count =
        |event: &str| attempts.values().filter(|attempt| attempt.ended.iter().any(|e| e == event)).count();
    println!(
        "{} attempts: {} succeeded, {} failed, {} withdrawn; {epoch} epochs",
        attempts.len(),
        count("succeeded"),
        count("failed"),
        count("withdrawn")
    );
    check_traces(site, &attempts, &begun);
}

/// Attempts that have left a trace so far.
fn traces(site: &Site) -> BTreeSet<String> {
    let entries = std::fs::read_dir(site.path("effects")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn check_traces(site: &Site, attempts: &BTreeMap<String, Attempt>, begun: &BTreeSet<String>) {
    let mut spans: BTreeMap<String, Vec<(u128, u128)>> = BTreeMap::new();
    let traced = traces(site);
    for id in begun {
        let trace = std::fs::read_to_string(site.path("effects").join(id)).unwrap();
        let begins: Vec<&str> = trace.lines().filter(|line| line.starts_with("begin")).collect();
        let ends: Vec<&str> = trace.lines().filter(|line| line.starts_with("end")).collect();
        assert_eq!(begins.len(), 1, "attempt {id} started {} times:\n{trace}", begins.len());
        let words: Vec<&str> = begins[0].split_whitespace().collect();
        let attempt =
            attempts.get(id).unwrap_or_else(|| panic!("{id} ran ({trace}) and the database never knew"));
        assert_eq!(attempt.claimed, 1, "{id} started without a claim: {attempt:?}");
        assert_eq!(attempt.task, words[2]);
        if let Some(end) = ends.first() {
            let at = |text: &str| text.parse::<u128>().unwrap();
            let end = at(end.split_whitespace().nth(1).unwrap());
            spans.entry(attempt.task.clone()).or_default().push((at(words[1]), end));
        }
    }
    for (id, attempt) in attempts {
        let succeeded = attempt.ended.iter().any(|event| event == "succeeded");
        assert!(!succeeded || traced.contains(id), "{id} succeeded without having run: {attempt:?}");
    }
    for (task, mut spans) in spans {
        spans.sort();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two attempts of {task} overlap: {spans:?}");
        }
    }
}

/// Every page of a collection.
fn all(api: &Api, path: &str, key: &str) -> Vec<Value> {
    let mut items: Vec<Value> = vec![];
    loop {
        let (status, page) =
            api.get(&format!("{path}?limit=100&offset={}&order_by=id", items.len())).expect("an answer");
        assert_eq!(status, 200, "{page}");
        let found = page[key].as_array().expect("a collection").clone();
        if found.is_empty() {
            return items;
        }
        items.extend(found);
    }
}

fn audit(api: &Api) -> Vec<Value> {
    let mut rows: Vec<Value> = vec![];
    loop {
        let after = rows.last().map_or(0, |row| row["seq"].as_i64().unwrap());
        let (status, page) =
            api.get(&format!("/api/tenure/audit?limit=500&after_seq={after}")).expect("an answer");
        assert_eq!(status, 200, "{page}");
        let found = page["audit"].as_array().expect("audit rows").clone();
        if found.is_empty() {
            return rows;
        }
        rows.extend(found);
    }
}
