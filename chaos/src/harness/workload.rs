//! What the cluster has to do: dags of every shape, clients that trigger through any replica, and users who clear
//! and cancel. Everything that a client asks for, and what it was told, is written down.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tenure_clock::{Clock, Entropy, SystemClock};

use super::api::{Answered, Api};
use super::cluster::{Cluster, SHARDS};
use super::load::Database;
use super::{below, wait_until};
use tenure_judge::history::{Answer, Asked, Call, RunName, Schedule};

/// A dag with a clock of its own.
const TICKS: &str = "ticks";
const TICK_EVERY: Duration = Duration::from_secs(2);
/// So many small dags that every shard has at least one of them.
const MOST_PULSES: usize = 200;
/// Fewer slots than there are shards, used by dags of all of them.
const POOL: &str = "few";
/// How long a client goes on asking after the faults are over.
const LAST_TRIES: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(350);
const MEDDLE_EVERY: Duration = Duration::from_millis(1_500);

/// No limit keeps a run waiting: what waits, waits for its owner. Some tasks wait for a slot or a place, moments only, and
/// every shard has others.
const HEAD: &str = "max_active_runs: 100000\nmax_active_tasks: 1000\n\
                    defaults: { retries: 3, retry_delay: 0s, grace: 1s }\ntasks:\n";

/// Clients of one run of the harness.
#[derive(Debug)]
pub struct Workload {
    api: Api,
    urls: Vec<String>,
    /// With their weights.
    dags: Vec<(String, u32)>,
    calls: Mutex<Vec<Call>>,
    stop: AtomicBool,
    ticks_from: Timestamp,
    /// What its task does.
    tick: String,
}

impl Workload {
    /// Registers the dags.
    pub fn set_up(cluster: &Cluster, database: &Database) -> Result<Self> {
        let pool = json!({ "name": POOL, "slots": 3 });
        let (status, answer) = cluster
            .api
            .post(&cluster.urls()[0], "/api/v2/pools", None, &pool)
            .with_context(|| format!("no answer to making pool {POOL}"))?;
        ensure!(status == 201, "making pool {POOL}: {status} {answer}");
        let effects = cluster.effects().display().to_string();
        let program = std::env::current_exe()?.display().to_string();
        let task = |work_ms: u64, more: &str| {
            format!(r#"exec: ["{program}", task, --effects, "{effects}", --work-ms, "{work_ms}"{more}]"#)
        };
        let quick = |work_ms: u64| task(work_ms, "");
        let ticks_from = Timestamp::from_second(SystemClock.now().as_second())?;
        let head = HEAD;
        let fan: String = (0..6)
            .map(|at| format!("  w{at}: {{ needs: [begin], pool: {POOL}, {} }}\n", quick(150)))
            .collect();
        let chain: String =
            (1..4).map(|at| format!("  c{at}: {{ needs: [c{}], {} }}\n", at - 1, quick(100))).collect();
        let shapes = [
            ("chain", 3, format!("{head}  c0: {{ {} }}\n{chain}", quick(100))),
            (
                "wide",
                2,
                format!(
                    "{head}  begin: {{ empty: true }}\n{fan}  join: {{ needs: [w0, w1, w2, w3, w4, w5], {} }}\n",
                    quick(50)
                ),
            ),
            (
                "flaky",
                3,
                format!(
                    "{head}  f: {{ {} }}\n  g: {{ needs: [f], {} }}\n",
                    task(100, r#", --fail-tries, "1""#),
                    quick(50)
                ),
            ),
            ("long", 2, format!("{head}  l: {{ {} }}\n  m: {{ needs: [l], {} }}\n", quick(6_000), quick(50))),
            ("marathon", 1, format!("{head}  m: {{ {} }}\n", quick(22_000))),
        ];
        let mut workload = Self {
            api: cluster.api.clone(),
            urls: cluster.urls(),
            dags: vec![],
            calls: Mutex::default(),
            stop: AtomicBool::new(false),
            ticks_from,
            tick: quick(50),
        };
        for (name, weight, text) in shapes {
            workload.register(name, &text)?;
            workload.dags.push((name.to_owned(), weight));
        }
        workload.register(TICKS, &ticks_dag(&workload.tick, ticks_from, None))?;
        for number in 0..MOST_PULSES {
            if number >= 12 && database.shards_in_use()? == usize::from(SHARDS) {
                return Ok(workload);
            }
            let name = format!("pulse-{number:02}");
            let pool = if number % 2 == 0 { POOL } else { "default_pool" };
            workload.register(&name, &format!("{head}  p: {{ pool: {pool}, {} }}\n", quick(60)))?;
            workload.dags.push((name, 1));
        }
        anyhow::bail!("{MOST_PULSES} dags do not reach all of {SHARDS} shards")
    }

    fn register(&self, name: &str, text: &str) -> Result<()> {
        let body = json!({ "source": format!("id: {name}\n{text}"), "file_name": format!("{name}.yaml") });
        let answer = self.api.post(&self.urls[0], "/api/tenure/dags?paused=false", None, &body);
        let (status, answer) = answer.with_context(|| format!("no answer to registering {name}"))?;
        ensure!(matches!(status, 200 | 201), "registering {name}: {status} {answer}");
        Ok(())
    }

    /// Triggers until it is told to stop, each under a key of its own, through any replica.
    pub fn trigger(&self, client: &str, chance: &Entropy) {
        for number in 0.. {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let run = RunName::new(self.pick(chance), format!("{client}-{number:05}"));
            let call = self.trigger_once(run, chance);
            self.calls.lock().expect("no client panics").push(call);
            std::thread::sleep(chance.jitter(PAUSE * 2));
        }
    }

    /// One run, asked for under one key until there is an answer.
    fn trigger_once(&self, run: RunName, chance: &Entropy) -> Call {
        let key = format!("{}.{}", run.dag, run.run);
        let path = format!("/api/v2/dags/{}/dagRuns", run.dag);
        let body = json!({ "dag_run_id": run.run, "logical_date": null });
        let sent_at = SystemClock.now();
        let mut in_doubt = false;
        let mut give_up_at = None;
        let answer = loop {
            let answer = judge(&self.api.post(self.anyone(chance), &path, Some(&key), &body));
            if answer == Answer::Acknowledged || (answer == Answer::Refused && !in_doubt) {
                break answer;
            }
            in_doubt = true;
            if self.stop.load(Ordering::SeqCst) {
                let deadline = *give_up_at.get_or_insert_with(|| SystemClock.boottime() + LAST_TRIES);
                if SystemClock.boottime() > deadline {
                    break Answer::Unknown;
                }
            }
            std::thread::sleep(Duration::from_millis(50) + chance.jitter(Duration::from_millis(100)));
        };
        Call { what: Asked::Trigger { key }, run, sent_at, answered_at: SystemClock.now(), answer }
    }

    /// Clears and cancels runs that others have triggered. Not repeated when the outcome is unknown.
    pub fn meddle(&self, chance: &Entropy) {
        while !self.stop.load(Ordering::SeqCst) {
            std::thread::sleep(chance.jitter(MEDDLE_EVERY * 2));
            let Some(run) = self.recent(chance) else { continue };
            let call = if below(chance, 2) == 0 { self.clear(run, chance) } else { self.cancel(run, chance) };
            self.calls.lock().expect("no client panics").push(call);
        }
    }

    fn clear(&self, run: RunName, chance: &Entropy) -> Call {
        let path = format!("/api/v2/dags/{}/clearTaskInstances", run.dag);
        let body =
            json!({ "dag_run_id": run.run, "dry_run": false, "only_failed": false, "reset_dag_runs": true });
        let sent_at = SystemClock.now();
        let answered = self.api.post(self.anyone(chance), &path, None, &body);
        let answered_at = SystemClock.now();
        let tasks = answered.as_ref().and_then(|(_, answer)| answer["task_instances"].as_array());
        // What nothing has happened to yet is in the answer and stays as it is.
        let cleared = tasks.map_or(0, |tasks| tasks.iter().filter(|task| !task["state"].is_null()).count());
        Call { what: Asked::Clear { cleared }, run, sent_at, answered_at, answer: judge(&answered) }
    }

    fn cancel(&self, run: RunName, chance: &Entropy) -> Call {
        let path = format!("/api/v2/dags/{}/dagRuns/{}", run.dag, run.run);
        let state = "failed".to_owned();
        let sent_at = SystemClock.now();
        let answered = self.api.patch(self.anyone(chance), &path, &json!({ "state": state }));
        let answered_at = SystemClock.now();
        Call { what: Asked::End { state }, run, sent_at, answered_at, answer: judge(&answered) }
    }

    /// No more triggers, and a last tick. Pausing the dag would also stop the runs that it has.
    pub fn wind_down(&self) -> Result<Schedule> {
        self.stop();
        let now = Timestamp::from_second(SystemClock.now().as_second())?;
        let until = now + SignedDuration::from_secs(3);
        let text = ticks_dag(&self.tick, self.ticks_from, Some(until));
        wait_until(LAST_TRIES, || self.register(TICKS, &text).ok())
            .context("the timetable could not be ended")?;
        Ok(Schedule { dag: TICKS.into(), first: self.ticks_from, every: TICK_EVERY, until })
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub fn into_calls(self) -> Vec<Call> {
        self.calls.into_inner().expect("no client panics")
    }

    fn anyone(&self, chance: &Entropy) -> &str {
        &self.urls[below(chance, self.urls.len())]
    }

    fn pick(&self, chance: &Entropy) -> &str {
        let total: u32 = self.dags.iter().map(|(_, weight)| weight).sum();
        let mut draw = below(chance, total as usize) as u32;
        for (name, weight) in &self.dags {
            match draw.checked_sub(*weight) {
                Some(rest) => draw = rest,
                None => return name,
            }
        }
        unreachable!("a draw is below the sum of all weights")
    }

    /// A run of the last few seconds, which may be in the middle of things.
    fn recent(&self, chance: &Entropy) -> Option<RunName> {
        let calls = self.calls.lock().expect("no client panics");
        let since = SystemClock.now() - SignedDuration::from_secs(8);
        let recent: Vec<&Call> = calls
            .iter()
            .rev()
            .take_while(|call| call.answered_at > since)
            .filter(|call| matches!(call.what, Asked::Trigger { .. }) && call.answer == Answer::Acknowledged)
            .collect();
        (!recent.is_empty()).then(|| recent[below(chance, recent.len())].run.clone())
    }
}

fn ticks_dag(task: &str, from: Timestamp, until: Option<Timestamp>) -> String {
    let every = TICK_EVERY.as_secs();
    let end = until.map_or(String::new(), |until| format!("end_date: {until}\n"));
    format!(
        "schedule: {{ every: {every}s }}\nstart_date: {from}\n{end}catchup: true\n{HEAD}  t: {{ {task} }}\n"
    )
}

/// Only a clear word counts: a server that is in trouble may have done it all the same.
fn judge(answered: &Answered) -> Answer {
    match answered {
        Some((200..=299, _)) => Answer::Acknowledged,
        Some((408 | 425 | 429, _)) => Answer::Unknown,
        Some((400..=499, _)) => Answer::Refused,
        Some(_) | None => Answer::Unknown,
    }
}
