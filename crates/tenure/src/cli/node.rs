//! `tenure node …`: the machines that tasks run on.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::{Value, json};
use tenure_clock::{Clock, SystemClock};
use tenure_model::{Resources, duration};

use super::client::{Client, Path};
use super::failure::Failure;
use super::screen::{self, Screen, cell, elapsed, instant, number, text};
use super::{Context, joining, tell};

/// How often `drain --wait` looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A server that restarts, or fails over, is back well within this.
const PATIENT_LOOKS: u32 = 60;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes, what they have and what is used of it
    List,
    /// Show a node: what it has, who hears it, what runs there, how far its drain is
    Show {
        /// Name of the node
        node: String,
    },
    /// Empty a node: nothing new from now on, and what runs there goes elsewhere after the deadline
    #[command(after_help = "Examples:\n  tenure node drain gpu-7 --deadline 30m --wait\n  \
                            tenure node undrain gpu-7\n\nA task that is stopped by a drain uses up no try.")]
    Drain(DrainArgs),
    /// Let a node take work again
    Undrain {
        /// Name of the node
        node: String,
    },
    /// Make a token that lets a machine join as a node, list such tokens, or revoke one
    #[command(after_help = joining::TOKEN_HELP)]
    Token(joining::TokenArgs),
    /// Refuse a node from now on: its agent is cut off and cannot come back without a new join token
    #[command(visible_alias = "revoke", after_help = joining::REMOVE_HELP)]
    Remove {
        /// Name of the node
        node: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Name of the node
    node: String,
    /// How long what runs there may take to finish; then it is stopped and placed elsewhere
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    deadline: Duration,
    /// Stay until the node is empty
    #[arg(long)]
    wait: bool,
}

pub fn run(command: NodeCommand, context: &Context) -> Result<(), Failure> {
    match command {
        NodeCommand::List => list(context),
        NodeCommand::Show { node } => show(&node, context),
        NodeCommand::Drain(args) => drain(&args, context),
        NodeCommand::Undrain { node } => undrain(&node, context),
        NodeCommand::Token(args) => joining::token(&args, context),
        NodeCommand::Remove { node, yes } => joining::remove(&node, yes, context),
    }
}

fn path(node: &str) -> Path {
    Path::new("/api/tenure/nodes").then(node)
}

fn list(context: &Context) -> Result<(), Failure> {
    let nodes = context.client()?.items(&Path::new("/api/tenure/nodes"), "nodes")?;
    let screen = &context.screen;
    let header = ["NODE", "STATE", "TASKS", "USED", "LABELS", "VERSION", "REGISTERED"];
    screen.list(
        &nodes,
        "no nodes; `tenure agent` brings one, and `tenure up` is one itself",
        &header,
        |node| {
            vec![
                cell(text(node, "node")),
                screen.state(&state(node)),
                number(text(node, "tasks").unwrap_or_else(|| "-".into())),
                cell(in_use(node)),
                cell(pairs(&node["labels"])),
                cell(text(node, "version")),
                cell(screen.time(node, "registered_at")),
            ]
        },
    )
}

/// `ready`, `not connected`, or how far its drain is.
fn state(node: &Value) -> String {
    let connected = node["heard_by"].as_array().is_some_and(|heard| !heard.is_empty());
    match (text(&node["drain"], "stage").as_deref(), connected) {
        (Some("drained"), _) => "drained".into(),
        (Some(_), _) => "draining".into(),
        (None, true) => "ready".into(),
        (None, false) => "not connected".into(),
    }
}

fn show(node: &str, context: &Context) -> Result<(), Failure> {
    let node = context.client()?.get(&path(node))?;
    tell(context, &node, &page(&context.screen, &node))
}

fn page(screen: &Screen, node: &Value) -> String {
    let heard = node["heard_by"].as_array().map_or(&[][..], Vec::as_slice);
    let replicas: Vec<String> = heard.iter().filter_map(|hearing| text(hearing, "replica")).collect();
    let connected = match (replicas.is_empty(), screen.time(node, "registered_at")) {
        (true, _) => "no".to_owned(),
        (false, Some(since)) => format!("to {}; last (re)connected {since}", replicas.join(", ")),
        (false, None) => format!("to {}", replicas.join(", ")),
    };
    let facts = screen.facts(&[
        ("node", text(node, "node")),
        ("state", Some(screen.painted(&state(node)))),
        ("drain", drain_line(screen, node)),
        ("connected", Some(connected)),
        ("in use", in_use(node)),
        ("labels", pairs(&node["labels"])),
        ("taints", list_of(&node["taints"])),
        ("queues", list_of(&node["queues"])),
        ("version", text(node, "version")),
    ]);
    let running = node["running"].as_array().map_or(&[][..], Vec::as_slice);
    if running.is_empty() {
        return format!("{facts}\n\nnothing runs there");
    }
    let rows = running.iter().map(|task| {
        vec![
            cell(text(task, "dag_id")),
            cell(text(task, "run_id")),
            cell(text(task, "task_id")),
            screen.state(&screen::state_of(task)),
            number(text(task, "try_number").unwrap_or_else(|| "-".into())),
            cell(screen.time(task, "started_at")),
        ]
    });
    let header = ["DAG", "RUN", "TASK", "STATE", "TRY", "STARTED"];
    format!("{facts}\n\n{}", screen.table(&header, rows))
}

/// `until 2026-07-01 12:10:00, asked for by admin at …, seen through by host:42`.
fn drain_line(screen: &Screen, node: &Value) -> Option<String> {
    let drain = Some(&node["drain"]).filter(|drain| drain.is_object())?;
    let asked = format!(
        "asked for by {} at {}",
        text(drain, "by").unwrap_or_default(),
        screen.time(drain, "since").unwrap_or_default()
    );
    let stage = match text(drain, "stage").as_deref() {
        Some("finishing") => {
            format!("tasks may finish until {}", screen.time(drain, "deadline").unwrap_or_default())
        }
        Some("stopping") => "time is up: what still runs is being stopped".into(),
        _ => "empty".into(),
    };
    let holder =
        text(node, "drain_holder").map_or_else(String::new, |holder| format!(", seen through by {holder}"));
    Some(format!("{stage}; {asked}{holder}"))
}

/// `cpu 1.5 of 4, memory 0.5 of 8.0 GiB, tasks 3 of 64`.
fn in_use(node: &Value) -> Option<String> {
    let capacity = node["capacity"].as_object().filter(|map| !map.is_empty())?;
    let shown = capacity.iter().map(|(name, has)| {
        let units = |value: &Value| value.as_u64().unwrap_or(0) as f64 / 1000.0;
        let (used, has) = (units(&node["used"][name]), units(has));
        match name.as_str() {
            Resources::MEMORY => {
                let gibi = f64::from(1 << 30);
                format!("{name} {:.1} of {:.1} GiB", used / gibi, has / gibi)
            }
            _ => format!("{name} {used} of {has}"),
        }
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

/// `disk=ssd, zone=a`.
fn pairs(map: &Value) -> Option<String> {
    let map = map.as_object().filter(|map| !map.is_empty())?;
    let shown = map.iter().map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={value}")
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

fn list_of(values: &Value) -> Option<String> {
    let values = values.as_array().filter(|values| !values.is_empty())?;
    let shown = values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    Some(shown.collect::<Vec<_>>().join(", "))
}

fn drain(args: &DrainArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let body = json!({ "deadline": duration::format(args.deadline) });
    let node = client.post(&path(&args.node).then("drain"), &body)?;
    if !args.wait {
        let said = match node["tasks"].as_u64() {
            Some(0) => format!("{} gets nothing new; nothing runs there", args.node),
            _ => format!("{} gets nothing new; {}", args.node, left(&node, None, SystemClock.now())),
        };
        return tell(context, &node, &said);
    }
    let node = watch(&client, args, node)?;
    tell(context, &node, &format!("{} is drained", args.node))
}

/// Until it is empty. The wait is only a view: whatever becomes of it, the drain goes on.
fn watch(client: &Client, args: &DrainArgs, mut node: Value) -> Result<Value, Failure> {
    let mut display = Display::new();
    let since = text(&node["drain"], "since");
    let mut failures = 0;
    loop {
        if text(&node["drain"], "since") != since {
            display.finish();
            return Err(Failure::Failed(format!(
                "{} is no longer being drained: somebody took that back",
                args.node
            )));
        }
        if text(&node["drain"], "stage").as_deref() == Some("drained") {
            display.finish();
            return Ok(node);
        }
        display.update(&node, SystemClock.now());
        std::thread::sleep(LOOK_EVERY);
        match client.get(&path(&args.node)) {
            Ok(answer) => (node, failures) = (answer, 0),
            Err(Failure::Unreachable(_)) if failures < PATIENT_LOOKS => failures += 1,
            Err(failure) => {
                display.finish();
                return Err(failure);
            }
        }
    }
}

/// `3 of 7 tasks left, 4m12s until they are stopped`.
fn left(node: &Value, of: Option<u64>, now: Timestamp) -> String {
    let tasks = match (node["tasks"].as_u64().unwrap_or(0), of) {
        (count, Some(all)) => format!("{count} of {all} tasks left"),
        (1, None) => "1 task left".to_owned(),
        (count, None) => format!("{count} tasks left"),
    };
    let stage = text(&node["drain"], "stage");
    match (stage.as_deref(), instant(&node["drain"], "deadline")) {
        (Some("finishing"), Some(deadline)) if deadline > now => {
            format!("{tasks}, {} until they are stopped", elapsed(now, deadline))
        }
        _ => format!("{tasks}, being stopped"),
    }
}

/// A bar on a terminal, a line whenever something changes elsewhere. On stderr: stdout belongs to the result.
struct Display {
    bar: Option<ProgressBar>,
    /// Tasks when last shown, and the most there were.
    last: Option<u64>,
    most: u64,
}

impl Display {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("[{bar:30}] {msg}").expect("the template is constant");
            ProgressBar::new(1).with_style(style)
        });
        Self { bar, last: None, most: 0 }
    }

    fn update(&mut self, node: &Value, now: Timestamp) {
        let tasks = node["tasks"].as_u64().unwrap_or(0);
        self.most = self.most.max(tasks);
        let said = left(node, Some(self.most), now);
        match &self.bar {
            Some(bar) => {
                bar.set_length(self.most.max(1));
                bar.set_position(self.most - tasks);
                bar.set_message(said);
            }
            None if self.last.replace(tasks) != Some(tasks) => eprintln!("{said}"),
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn undrain(node: &str, context: &Context) -> Result<(), Failure> {
    let answer = context.client()?.post(&path(node).then("undrain"), &json!({}))?;
    tell(context, &answer, &format!("{node} takes work again"))
}

#[cfg(test)]
mod tests {
    //! Goal: an operator sees at a glance how a node is and how long its drain will take.

    use super::super::screen::tests::plain;
    use super::*;

    fn node(stage: &str) -> Value {
        json!({
            "node": "gpu-7", "capacity": { "cpu": 4000, "memory": 8_589_934_592_000_u64, "tasks": 64_000 },
            "used": { "cpu": 1500, "tasks": 3000 }, "labels": { "zone": "a" }, "version": "0.1.0",
            "registered_at": "2026-07-01T09:00:00Z", "draining": true, "tasks": 3,
            "drain": { "since": "2026-07-01T09:50:00Z", "deadline": "2026-07-01T10:04:12Z", "by": "ada", "stage": stage },
            "heard_by": [{ "replica": "r1", "at": "2026-07-01T09:59:59Z" }, { "replica": "r2", "at": "2026-07-01T09:59:58Z" }],
            "drain_holder": "r1:42",
            "running": [{ "dag_id": "etl", "run_id": "r", "task_id": "load", "map_index": -1, "state": "running",
                "try_number": 1, "started_at": "2026-07-01T09:30:00Z" }],
        })
    }

    #[test]
    fn a_page_tells_what_a_node_has_and_how_its_drain_goes() {
        expect_test::expect![[r#"
            node       gpu-7
            state      draining
            drain      tasks may finish until 2026-07-01 12:04:12; asked for by ada at 2026-07-01 11:50:00, seen through by r1:42
            connected  to r1, r2; last (re)connected 2026-07-01 11:00:00
            in use     cpu 1.5 of 4, memory 0.0 of 8.0 GiB, tasks 3 of 64
            labels     zone=a
            version    0.1.0

            DAG  RUN  TASK  STATE    TRY  STARTED
            etl  r    load  running    1  2026-07-01 11:30:00"#]]
        .assert_eq(&page(&plain(), &node("finishing")));
        assert_eq!(pairs(&json!({ "disk": "ssd", "zone": "a" })).unwrap(), "disk=ssd, zone=a");
        assert_eq!(pairs(&json!({})), None);
        assert_eq!(state(&json!({ "heard_by": [] })), "not connected");
        assert_eq!(state(&node("drained")), "drained");
    }

    #[test]
    fn progress_counts_down_to_the_deadline() {
        let now = "2026-07-01T10:00:00Z".parse().unwrap();
        let progress = |node: &Value, of| left(node, of, now);
        assert_eq!(progress(&node("finishing"), Some(7)), "3 of 7 tasks left, 4m12s until they are stopped");
        assert_eq!(progress(&node("stopping"), Some(7)), "3 of 7 tasks left, being stopped");
        let one = json!({ "tasks": 1, "drain": { "stage": "stopping" } });
        assert_eq!(progress(&one, None), "1 task left, being stopped");
    }
}
