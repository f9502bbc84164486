//! `tenure task …`: the tasks of a run.

use std::collections::HashMap;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Cell;
use serde_json::{Value, json};

use super::client::{Client, Path};
use super::failure::Failure;
use super::progress::Progress;
use super::run::RunArgs;
use super::screen::{Screen, cell, number, state_of, text};
use super::{Context, clear, logs, tell};

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List the tasks of a run
    List(RunArgs),
    /// Show a task of a run
    Show(TaskArgs),
    /// Print what a task has printed
    Logs(logs::LogsArgs),
    /// List the tries of a task, past and present
    Tries(TaskArgs),
    /// Declare a task to be over; if it runs, it is stopped
    Mark {
        #[command(flatten)]
        task: TaskArgs,
        /// What it is to count as
        state: TaskMark,
    },
    /// Run a task again (the same as `tenure run clear --task`)
    Clear(clear::TaskClearArgs),
}

/// Which task of which run.
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// Id of the dag
    pub dag: String,
    /// Id of the run, or `latest`
    pub run: String,
    /// Id of the task
    pub task: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TaskMark {
    Success,
    Failed,
    Skipped,
}

pub fn run(command: TaskCommand, context: &Context) -> Result<(), Failure> {
    match command {
        TaskCommand::List(args) => list(&args, context),
        TaskCommand::Show(args) => show(&args, context),
        TaskCommand::Logs(args) => logs::logs(&args, context),
        TaskCommand::Tries(args) => tries(&args, context),
        TaskCommand::Mark { task, state } => mark(&task, state, context),
        TaskCommand::Clear(args) => clear::clear_task(&args, context),
    }
}

fn list(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let path = Path::run(&args.dag, &run_id).then("taskInstances");
    let mut tasks = client.list(&path, "task_instances", usize::MAX)?;
    add_reasons(&client, &args.dag, &run_id, &mut tasks)?;
    let screen = &context.screen;
    screen.list(&tasks, "this run has no tasks", &HEADER, |task| row(screen, task))
}

const HEADER: [&str; 6] = ["TASK", "STATE", "TRY", "STARTED", "TOOK", "NODE"];

pub fn table(screen: &Screen, tasks: &[Value]) -> String {
    screen.table(&HEADER, tasks.iter().map(|task| row(screen, task)))
}

/// Airflow's shape has no place for why a task is in its state; Tenure's own progress report has. The
/// answer is the report's reason for the run itself.
pub fn add_reasons(
    client: &Client,
    dag: &str,
    run_id: &str,
    tasks: &mut [Value],
) -> Result<Option<String>, Failure> {
    let report = Progress::with_reasons(client, dag, run_id)?;
    let reasons: HashMap<(&str, i64), &str> = report
        .tasks
        .iter()
        .filter_map(|task| Some(((task.id.as_str(), i64::from(task.map_index)), task.reason.as_deref()?)))
        .collect();
    for task in tasks {
        let map_index = task["map_index"].as_i64().unwrap_or(-1);
        let reason = task["task_id"].as_str().and_then(|id| reasons.get(&(id, map_index)));
        if let Some(reason) = reason {
            task["reason"] = json!(reason);
        }
    }
    Ok(report.reason)
}

fn row(screen: &Screen, task: &Value) -> Vec<Cell> {
    let reason = text(task, "reason").map_or_else(String::new, |reason| format!(" ({reason})"));
    vec![
        cell(text(task, "task_id")),
        screen.state_with(&state_of(task), &reason),
        number(text(task, "try_number").unwrap_or_else(|| "-".into())),
        cell(screen.time(task, "start_date")),
        cell(screen.took(task, "start_date", "end_date")),
        cell(text(task, "hostname")),
    ]
}

fn show(args: &TaskArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let mut task = client.get(&Path::task(&args.dag, &run_id, &args.task))?;
    add_reasons(&client, &args.dag, &run_id, std::slice::from_mut(&mut task))?;
    tell(context, &task, &page(&context.screen, &task))
}

fn page(screen: &Screen, task: &Value) -> String {
    let tries = match (text(task, "try_number"), task["max_tries"].as_u64()) {
        (Some(number), Some(most)) => Some(format!("{number} of up to {}", most + 1)),
        (number, _) => number,
    };
    screen.facts(&[
        ("dag", text(task, "dag_id")),
        ("run", text(task, "dag_run_id")),
        ("task", text(task, "task_id")),
        ("kind", text(task, "operator_name").or_else(|| text(task, "operator"))),
        ("state", Some(screen.painted(&state_of(task)))),
        ("reason", text(task, "reason")),
        ("try", tries),
        ("scheduled", screen.time(task, "scheduled_when")),
        ("queued", screen.time(task, "queued_when")),
        ("started", screen.time(task, "start_date")),
        ("ended", screen.time(task, "end_date")),
        ("took", screen.took(task, "start_date", "end_date")),
        ("node", text(task, "hostname")),
        ("pool", text(task, "pool")),
        ("id", text(task, "id")),
        ("note", text(task, "note")),
    ])
}

fn tries(args: &TaskArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let mut answer = client.get(&Path::task(&args.dag, &run_id, &args.task).then("tries"))?;
    let tries = answer["task_instances"].take();
    let screen = &context.screen;
    let tries = tries.as_array().map_or(&[][..], Vec::as_slice);
    screen.list(tries, "this task has not been tried yet", &HEADER, |task| row(screen, task))
}

fn mark(args: &TaskArgs, state: TaskMark, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let state = state.to_possible_value().expect("no value is hidden");
    let body = json!({ "new_state": state.get_name() });
    let answer = client.patch(&Path::task(&args.dag, &run_id, &args.task), &body)?;
    let said = format!("task {} of run {run_id} is marked {}", args.task, state.get_name());
    tell(context, &answer["task_instances"], &said)
}
