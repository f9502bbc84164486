//! `tenure dag …`: the workflows themselves.

use std::path::{Path as FilePath, PathBuf};

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::{Value, json};
use tenure_dagfile::{Diagnostics, Folder};
use tenure_model::DagSpec;

use super::client::Path;
use super::failure::{FAILED, Failure};
use super::screen::{self, Screen, cell, number, text};
use super::{Context, tell};

#[derive(Debug, Subcommand)]
pub enum DagCommand {
    /// List the dags
    List(ListArgs),
    /// Show a dag and its tasks
    Show {
        /// Id of the dag
        dag: String,
    },
    /// Check dag files and register what they hold as the version in force
    #[command(after_help = "Example:\n  tenure dag push dags/orders.yaml --unpaused")]
    Push {
        /// Dag files; scripts beside them that they name are sent along
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Dags that are new run by their schedule at once, instead of starting paused
        #[arg(long)]
        unpaused: bool,
    },
    /// Stop making runs by schedule; runs that exist go on
    Pause {
        /// Ids of the dags
        #[arg(required = true, value_name = "DAG")]
        dags: Vec<String>,
    },
    /// Make runs by schedule again
    Unpause {
        /// Ids of the dags
        #[arg(required = true, value_name = "DAG")]
        dags: Vec<String>,
    },
    /// Forget a dag with all its versions and runs
    Delete {
        /// Id of the dag
        dag: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Check dag files without a server
    #[command(after_help = "Example:\n  tenure dag validate dags/*.yaml")]
    Validate {
        /// Dag files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print the JSON Schema of dag files, for editors
    #[command(after_help = "Example:\n  tenure dag schema > dag.schema.json\n  \
        and on top of a dag file:  # yaml-language-server: $schema=dag.schema.json")]
    Schema,
    /// List the files of the dags folder that are broken, with their errors
    Errors,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only dags with this tag (more than once: with any of them)
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only paused dags
    #[arg(long, conflicts_with = "active")]
    paused: bool,
    /// Only dags that are not paused
    #[arg(long)]
    active: bool,
    /// At most this many
    #[arg(long, default_value_t = 1000, value_name = "N")]
    limit: usize,
}

pub fn run(command: DagCommand, context: &Context) -> Result<(), Failure> {
    match command {
        DagCommand::List(args) => list(&args, context),
        DagCommand::Show { dag } => show(&dag, context),
        DagCommand::Push { files, unpaused } => push(&files, unpaused, context),
        DagCommand::Pause { dags } => set_paused(&dags, true, context),
        DagCommand::Unpause { dags } => set_paused(&dags, false, context),
        DagCommand::Delete { dag, yes } => delete(&dag, yes, context),
        DagCommand::Validate { files } => validate(&files, context),
        DagCommand::Schema => screen::json(&tenure_dagfile::json_schema()),
        DagCommand::Errors => errors(context),
    }
}

fn list(args: &ListArgs, context: &Context) -> Result<(), Failure> {
    let mut path = Path::new("/api/v2/dags").query("order_by", "dag_id");
    for tag in &args.tag {
        path = path.query("tags", tag);
    }
    if args.paused || args.active {
        path = path.query("paused", args.paused);
    }
    let dags = context.client()?.list(&path, "dags", args.limit)?;
    let screen = &context.screen;
    let empty = "no dags; put a file into the dags folder or send one with: tenure dag push FILE";
    screen.list(&dags, empty, &["DAG", "STATE", "SCHEDULE", "NEXT RUN", "TAGS", "OWNER"], |dag| {
        dag_row(screen, dag)
    })
}

fn dag_row(screen: &Screen, dag: &Value) -> Vec<Cell> {
    let paused = dag["is_paused"].as_bool().unwrap_or(false);
    vec![
        cell(text(dag, "dag_id")),
        screen.state(if paused { "paused" } else { "active" }),
        cell(text(dag, "timetable_summary")),
        cell(screen.time(dag, "next_dagrun_run_after").filter(|_| !paused)),
        cell(some(tags(dag))),
        cell(some(strings(&dag["owners"]))),
    ]
}

fn show(dag: &str, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let mut details = client.get(&Path::dag(dag).then("details"))?;
    let tasks = client.get(&Path::dag(dag).then("tasks"))?["tasks"].take();
    if context.screen.is_json() {
        details["tasks"] = tasks;
        return screen::json(&details);
    }
    screen::say(&dag_page(&context.screen, &details, tasks.as_array().map_or(&[], Vec::as_slice)))
}

fn dag_page(screen: &Screen, dag: &Value, tasks: &[Value]) -> String {
    let paused = dag["is_paused"].as_bool().unwrap_or(false);
    let facts = screen.facts(&[
        ("dag", text(dag, "dag_id")),
        ("description", text(dag, "description")),
        ("state", Some(screen.painted(if paused { "paused" } else { "active" }))),
        (
            "schedule",
            Some(text(dag, "timetable_summary").unwrap_or_else(|| "none: runs only when triggered".into())),
        ),
        ("time zone", text(dag, "timezone")),
        ("next run", screen.time(dag, "next_dagrun_run_after").filter(|_| !paused)),
        ("start date", screen.time(dag, "start_date")),
        ("end date", screen.time(dag, "end_date")),
        (
            "catch-up",
            dag["catchup"].as_bool().filter(|on| *on).map(|_| "every missed run is made up for".into()),
        ),
        ("at once", Some(at_once(dag))),
        ("params", params(&dag["params"])),
        ("tags", some(tags(dag))),
        ("owner", some(strings(&dag["owners"]))),
        ("version", text(&dag["latest_dag_version"], "version_number")),
        ("file", text(dag, "fileloc")),
    ]);
    let header = ["TASK", "KIND", "NEEDS", "RULE", "RETRIES", "POOL"];
    format!("{facts}\n\n{}", screen.table(&header, tasks.iter().map(|task| task_row(task, tasks))))
}

fn at_once(dag: &Value) -> String {
    let most = |key: &str| text(dag, key).unwrap_or_else(|| "any number of".into());
    format!("{} runs, {} tasks of each", most("max_active_runs"), most("max_active_tasks"))
}

/// Airflow's shape names what comes after a task; people ask what must come before it.
fn task_row(task: &Value, all: &[Value]) -> Vec<Cell> {
    let id = text(task, "task_id").unwrap_or_default();
    let leads_here = |other: &&Value| {
        other["downstream_task_ids"]
            .as_array()
            .is_some_and(|ids| ids.iter().any(|other| *other == id.as_str()))
    };
    let needs: Vec<String> =
        all.iter().filter(leads_here).filter_map(|other| text(other, "task_id")).collect();
    vec![
        Cell::new(&id),
        cell(text(task, "operator_name")),
        cell(some(needs.join(", "))),
        cell(text(task, "trigger_rule")),
        number(task["retries"].as_f64().unwrap_or(0.0)),
        cell(text(task, "pool")),
    ]
}

fn push(files: &[PathBuf], unpaused: bool, context: &Context) -> Result<(), Failure> {
    // All are checked before the first is sent: a typing error in one leaves the server as it was.
    let checked: Vec<Checked> = files.iter().map(|file| check(file)).collect::<Result<_, _>>()?;
    let broken: Vec<&Diagnostics> = checked.iter().filter_map(|file| file.parsed.as_ref().err()).collect();
    if !broken.is_empty() {
        broken.iter().for_each(|diagnostics| eprintln!("{diagnostics}"));
        return Err(Failure::Told(FAILED));
    }
    let client = context.client()?;
    let path = Path::new("/api/tenure/dags").query("paused", !unpaused);
    let mut answers = vec![];
    for file in &checked {
        let Ok(spec) = &file.parsed else { continue };
        let body = json!({ "source": file.source, "file_name": file.name, "files": spec.files });
        let answer = client.post(&path, &body)?;
        if !context.screen.is_json() {
            screen::say(&pushed(&spec.id.to_string(), &answer))?;
        }
        answers.push(answer);
    }
    if context.screen.is_json() { screen::json(&Value::Array(answers)) } else { Ok(()) }
}

fn pushed(dag: &str, answer: &Value) -> String {
    let version =
        text(answer, "version_number").map_or_else(String::new, |version| format!(" version {version}"));
    match (answer["changed"].as_bool(), answer["is_paused"].as_bool()) {
        (Some(false), _) => format!("{dag}: unchanged,{version} is in force already"),
        (_, Some(true)) => format!("{dag}:{version} is in force; it is paused: tenure dag unpause {dag}"),
        _ => format!("{dag}:{version} is in force"),
    }
}

fn set_paused(dags: &[String], paused: bool, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let mut answers = vec![];
    for dag in dags {
        answers.push(client.patch(&Path::dag(dag), &json!({ "is_paused": paused }))?);
        if !context.screen.is_json() {
            screen::say(&format!("{dag} is {}", if paused { "paused" } else { "active" }))?;
        }
    }
    if context.screen.is_json() { screen::json(&Value::Array(answers)) } else { Ok(()) }
}

fn delete(dag: &str, yes: bool, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    client.get(&Path::dag(dag))?; // a wrong name is noticed before the question
    context.confirm(&format!("Delete {dag} with all its versions, runs and history?"), yes)?;
    client.delete(&Path::dag(dag))?;
    tell(context, &json!({ "dag_id": dag, "deleted": true }), &format!("{dag} is deleted"))
}

fn errors(context: &Context) -> Result<(), Failure> {
    let errors =
        context.client()?.list(&Path::new("/api/tenure/dags/errors"), "import_errors", usize::MAX)?;
    if context.screen.is_json() {
        return screen::json(&Value::Array(errors));
    }
    if errors.is_empty() {
        eprintln!("no broken dag files");
    }
    errors.iter().try_for_each(|error| screen::say(&text(error, "message").unwrap_or_default()))
}

fn validate(files: &[PathBuf], context: &Context) -> Result<(), Failure> {
    let checked = files.iter().map(|file| check(file));
    let checked: Vec<Checked> = checked.collect::<Result<_, _>>()?;
    let broken = checked.iter().any(|file| file.parsed.is_err());
    match context.screen.is_json() {
        true => screen::json(&checked.iter().map(verdict).collect())?,
        false => checked.iter().try_for_each(print_verdict)?,
    }
    if broken { Err(Failure::Told(FAILED)) } else { Ok(()) }
}

fn verdict(file: &Checked) -> Value {
    match &file.parsed {
        Ok(spec) => json!({
            "file": file.name, "valid": true, "dag_id": spec.id, "tasks": spec.tasks.len(), "errors": []
        }),
        Err(diagnostics) => json!({ "file": file.name, "valid": false, "errors": diagnostics.list }),
    }
}

fn print_verdict(file: &Checked) -> Result<(), Failure> {
    match &file.parsed {
        Ok(spec) => {
            screen::say(&format!("{}: ok, dag {} with {} tasks", file.name, spec.id, spec.tasks.len()))
        }
        Err(diagnostics) => {
            eprintln!("{diagnostics}");
            Ok(())
        }
    }
}

struct Checked {
    name: String,
    source: String,
    parsed: Result<DagSpec, Diagnostics>,
}

fn check(file: &FilePath) -> Result<Checked, Failure> {
    let name = file.display().to_string();
    let source =
        std::fs::read_to_string(file).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    let parsed = tenure_dagfile::parse(&name, &source, &Folder::of(file));
    Ok(Checked { name, source, parsed })
}

fn params(params: &Value) -> Option<String> {
    let params = params.as_object().filter(|params| !params.is_empty())?;
    let shown = params.iter().map(|(name, param)| {
        let value = param.get("value").or_else(|| param.get("default")).unwrap_or(param);
        if value.is_null() { format!("{name} (must be given)") } else { format!("{name}={value}") }
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

fn tags(dag: &Value) -> String {
    let names = dag["tags"].as_array().into_iter().flatten().filter_map(|tag| text(tag, "name"));
    names.collect::<Vec<_>>().join(", ")
}

fn strings(list: &Value) -> String {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
