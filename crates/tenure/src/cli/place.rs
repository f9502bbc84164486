//! `tenure place preview`: what would become of a task now.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tenure_model::{QueueName, Resources, Toleration};

use super::client::Path;
use super::failure::Failure;
use super::screen::{Screen, cell, number, text};
use super::{Context, tell};
use crate::node_args;

#[derive(Debug, Subcommand)]
pub enum PlaceCommand {
    /// Show where a task would go now, and why not elsewhere; nothing happens
    #[command(after_help = "Examples:\n  tenure place preview orders load\n  \
                            tenure place preview orders load --run latest\n  \
                            tenure place preview orders load --memory 32Gi\n  \
                            tenure place preview --cpu 4 --resource gpu=1 --label zone=b --tolerate gpu --queue big")]
    Preview(PreviewArgs),
}

#[derive(Debug, Args)]
pub struct PreviewArgs {
    /// A dag, whose latest version counts
    #[arg(requires = "task")]
    dag: Option<String>,
    /// One of its tasks
    task: Option<String>,
    /// In this run of the dag, or `latest`: nodes where what the task needs has run are better
    #[arg(long, value_name = "RUN", requires = "dag")]
    run: Option<String>,
    /// Processors it asks for, like 2 or 500m
    #[arg(long, value_name = "AMOUNT", value_parser = cpu)]
    cpu: Option<u64>,
    /// Memory it asks for, like 512Mi or 16Gi
    #[arg(long, value_name = "AMOUNT", value_parser = memory)]
    memory: Option<u64>,
    /// Anything else it asks for, like gpu=1; may be given several times
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_delimiter = ',', value_parser = node_args::amount)]
    resources: Vec<(String, u64)>,
    /// A label that the node must carry; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = node_args::label)]
    labels: Vec<(String, String)>,
    /// The queue it waits in
    #[arg(long, value_name = "NAME", value_parser = node_args::queue)]
    queue: Option<QueueName>,
    /// A taint that does not keep it away; may be given several times
    #[arg(long = "tolerate", value_name = "KEY[=VALUE]", value_delimiter = ',')]
    tolerations: Vec<Toleration>,
    /// The pool it takes slots of
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// How many slots it takes
    #[arg(long, value_name = "COUNT")]
    pool_slots: Option<u32>,
}

fn cpu(text: &str) -> Result<u64, String> {
    node_args::amount(&format!("{}={text}", Resources::CPU)).map(|(_, amount)| amount)
}

fn memory(text: &str) -> Result<u64, String> {
    node_args::amount(&format!("{}={text}", Resources::MEMORY)).map(|(_, amount)| amount)
}

pub fn run(command: PlaceCommand, context: &Context) -> Result<(), Failure> {
    let PlaceCommand::Preview(mut args) = command;
    let client = context.client()?;
    if let (Some(dag), Some(run)) = (&args.dag, &args.run) {
        args.run = Some(context.run_id(&client, dag, run)?);
    }
    let answer = client.post(&Path::new("/api/tenure/placement/preview"), &args.body())?;
    tell(context, &answer, &page(&context.screen, &answer))
}

impl PreviewArgs {
    fn body(self) -> Value {
        let named = [(Resources::CPU, self.cpu), (Resources::MEMORY, self.memory)];
        let named = named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
        let resources: Map<String, Value> =
            self.resources.into_iter().chain(named).map(|(name, amount)| (name, amount.into())).collect();
        let labels: Map<String, Value> =
            self.labels.into_iter().map(|(label, value)| (label, value.into())).collect();
        json!({
            "dag_id": self.dag, "task_id": self.task, "run_id": self.run, "resources": resources, "labels": labels,
            "queue": self.queue, "tolerations": self.tolerations, "pool": self.pool, "pool_slots": self.pool_slots,
        })
    }
}

fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn page(screen: &Screen, answer: &Value) -> String {
    let task = text(answer, "dag_id").map(|dag| {
        let (task, version) = (text(answer, "task_id").unwrap_or_default(), &answer["version"]);
        format!("{task} of {dag}, version {version}")
    });
    let held: Vec<&str> = items(answer, "held_up_by").iter().filter_map(Value::as_str).collect();
    let verdict = match (text(answer, "node"), answer["needs_node"] == false, held.first()) {
        (_, _, Some(_)) => "it would wait".to_owned(),
        (Some(node), ..) => format!("it would go to {node}"),
        (None, true, _) => "it has nothing to run, and needs no node".to_owned(),
        (None, false, None) => "no node is registered".to_owned(),
    };
    let mut facts = vec![
        ("task", task),
        ("asks for", asked(answer)),
        ("pool", pool(&answer["pool"])),
        ("now", Some(verdict)),
    ];
    facts.extend(held.iter().map(|reason| ("", Some((*reason).to_owned()))));
    let mut page = screen.facts(&facts);
    let candidates = items(answer, "candidates");
    if !candidates.is_empty() {
        let rows = candidates.iter().enumerate().map(|(rank, candidate)| {
            vec![
                number(rank + 1),
                cell(text(candidate, "node")),
                number(text(candidate, "score").unwrap_or_default()),
                cell(parts(&candidate["parts"])),
                cell(uses(&candidate["uses"])),
            ]
        });
        let header = ["RANK", "NODE", "SCORE", "MADE OF", "USED, BEFORE AND AFTER"];
        page += &format!("\n\n{}", screen.table(&header, rows));
    }
    let rejected = items(answer, "rejected");
    if !rejected.is_empty() {
        let rows = rejected.iter().map(|rejected| {
            let reasons: Vec<String> =
                items(rejected, "reasons").iter().filter_map(|reason| text(reason, "text")).collect();
            vec![cell(text(rejected, "node")), cell(Some(reasons.join("; ")))]
        });
        page += &format!("\n\n{}", screen.table(&["NODE", "WHY NOT"], rows));
    }
    page
}

/// `cpu 2, memory 1.0 GiB, zone=b, queue big`.
fn asked(answer: &Value) -> Option<String> {
    let request = &answer["request"];
    let amounts = request["resources"].as_object().into_iter().flatten();
    let amounts = amounts.filter(|(name, _)| *name != Resources::TASKS);
    let amounts = amounts.map(|(name, amount)| format!("{name} {}", shown(name, amount)));
    let labels = request["node_selector"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(label, value)| Some(format!("{label}={}", value.as_str()?)));
    let queue = text(request, "queue").filter(|queue| queue != QueueName::DEFAULT);
    let tolerates: Vec<&str> = items(request, "tolerations").iter().filter_map(Value::as_str).collect();
    let tolerates = (!tolerates.is_empty()).then(|| format!("tolerates {}", tolerates.join(" ")));
    let parts: Vec<String> =
        amounts.chain(labels).chain(queue.map(|queue| format!("queue {queue}"))).chain(tolerates).collect();
    Some(if parts.is_empty() { "nothing but a slot on a node".into() } else { parts.join(", ") })
}

/// `etl: 1 slot, 3 of 4 used`.
fn pool(pool: &Value) -> Option<String> {
    let (name, asked) = (text(pool, "name")?, pool["asked"].as_u64()?);
    let plural = if asked == 1 { "" } else { "s" };
    let used = match pool["slots"].as_u64() {
        Some(slots) => format!("{} of {slots} used", pool["used"]),
        None => "does not exist".to_owned(),
    };
    Some(format!("{name}: {asked} slot{plural}, {used}"))
}

/// `load 9000, spread 40000`; what counts for nothing is left out.
fn parts(parts: &Value) -> Option<String> {
    let parts = parts.as_object()?.iter().filter(|(_, points)| points.as_i64() != Some(0));
    Some(parts.map(|(name, points)| format!("{name} {points}")).collect::<Vec<_>>().join(", "))
}

/// `cpu 1.5 → 3.5 of 4, gpu 0 → 1 of 1`; what does not change is left out.
fn uses(uses: &Value) -> Option<String> {
    let changed = uses.as_object()?.iter().filter(|(_, one)| one["before"] != one["after"]);
    let shown = changed.map(|(name, one)| {
        let [before, after, capacity] = ["before", "after", "capacity"].map(|key| shown(name, &one[key]));
        format!("{name} {before} → {after} of {capacity}")
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

/// Thousandths as people write them.
fn shown(name: &str, amount: &Value) -> String {
    Resources::shown(name, amount.as_u64().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    //! Goal: a person sees where a task would go and why, at a glance.

    use clap::Parser;

    use super::super::screen::tests::plain;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        preview: PreviewArgs,
    }

    #[test]
    fn what_is_asked_about_is_a_task_of_a_dag_or_anything_at_all() {
        let body = |words: &[&str]| {
            Line::try_parse_from(["place"].iter().chain(words)).map(|line| line.preview.body())
        };
        let task = body(&["orders", "load", "--memory", "1Ki"]).unwrap();
        assert_eq!((&task["dag_id"], &task["task_id"]), (&json!("orders"), &json!("load")));
        assert_eq!(task["resources"], json!({ "memory": 1_024_000 }));
        let words = "--cpu 500m --resource gpu=1 --label zone=b --queue big --tolerate gpu=a100 --pool etl";
        let free = body(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(free["resources"], json!({ "gpu": 1000, "cpu": 500 }));
        assert_eq!((&free["labels"], &free["tolerations"]), (&json!({ "zone": "b" }), &json!(["gpu=a100"])));
        assert_eq!((&free["queue"], &free["pool"]), (&json!("big"), &json!("etl")));
        assert!(body(&["orders"]).is_err(), "a dag needs a task");
        assert_eq!(body(&["orders", "load", "--run", "r"]).unwrap()["run_id"], "r");
        assert!(body(&["--run", "r"]).is_err(), "a run needs a dag");
        assert!(body(&["--cpu", "four"]).unwrap_err().to_string().contains("no amount of cpu"));
    }

    #[test]
    fn a_page_ranks_the_nodes_and_says_why_the_others_are_out() {
        let uses = |before: u64| {
            json!({
                "cpu": { "before": before, "after": before + 2_000, "capacity": 8_000 },
                "memory": { "before": 0, "after": 0, "capacity": 8_000 },
            })
        };
        let answer = json!({
            "dag_id": "orders", "task_id": "load", "version": 3, "needs_node": true, "node": "b",
            "request": { "resources": { "cpu": 2_000, "memory": 1_073_741_824_000_u64, "tasks": 1_000 },
                "node_selector": { "zone": "b" }, "queue": "default", "tolerations": ["gpu"] },
            "pool": { "name": "etl", "slots": 4, "used": 3, "asked": 1 },
            "held_up_by": [],
            "candidates": [
                { "node": "b", "score": 9_000, "parts": { "load": 9_000, "spread": 0 }, "uses": uses(0) },
                { "node": "a", "score": 5_000, "parts": { "load": 7_000, "failed_lately": -2_000 }, "uses": uses(1_500) },
            ],
            "rejected": [{ "node": "c", "reasons": [{ "reason": "draining", "text": "draining" }, { "text": "not connected" }] }],
        });
        expect_test::expect![[r#"
            task      load of orders, version 3
            asks for  cpu 2, memory 1.0 GiB, zone=b, tolerates gpu
            pool      etl: 1 slot, 3 of 4 used
            now       it would go to b

            RANK  NODE  SCORE  MADE OF                         USED, BEFORE AND AFTER
               1  b      9000  load 9000                       cpu 0 → 2 of 8
               2  a      5000  load 7000, failed_lately -2000  cpu 1.5 → 3.5 of 8

            NODE  WHY NOT
            c     draining; not connected"#]]
        .assert_eq(&page(&plain(), &answer));
        let waits =
            json!({ "held_up_by": ["its dag is paused", "pool etl is full (4 slots)"], "needs_node": true });
        expect_test::expect![[r#"
            asks for  nothing but a slot on a node
            now       it would wait
                      its dag is paused
                      pool etl is full (4 slots)"#]]
        .assert_eq(&page(&plain(), &waits));
    }
}
