//! `tenure run …`: executions of a dag.

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Cell;
use serde_json::{Value, json};

use super::client::{Client, Path};
use super::failure::Failure;
use super::screen::{self, Screen, cell, state_of, text};
use super::{Context, admin, clear, task, tell, trigger};

#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Start a run; with --wait, stay until it has ended
    Trigger(trigger::TriggerArgs),
    /// List runs, the newest first
    List(ListArgs),
    /// Show a run and its tasks
    Show(RunArgs),
    /// End a run as failed: its running tasks are stopped
    Cancel(RunArgs),
    /// Run tasks of a run again
    Clear(clear::ClearArgs),
    /// Declare a run to be over: its running tasks are stopped
    Mark {
        #[command(flatten)]
        run: RunArgs,
        /// What it is to count as
        state: RunMark,
    },
    /// Forget a run that has ended, with its tasks and their tries
    Delete {
        #[command(flatten)]
        run: RunArgs,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Tell the story of a run: every step, who took it and why
    Audit(RunArgs),
}

/// Which run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Id of the dag
    pub dag: String,
    /// Id of the run, or `latest`
    pub run: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Id of the dag; all dags without it
    dag: Option<String>,
    /// Only runs in this state (more than once: in any of them)
    #[arg(long, value_enum, value_name = "STATE")]
    state: Vec<RunStateArg>,
    /// At most this many
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RunStateArg {
    Queued,
    Running,
    Success,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunMark {
    Success,
    Failed,
}

pub fn run(command: RunCommand, context: &Context) -> Result<(), Failure> {
    match command {
        RunCommand::Trigger(args) => trigger::trigger(&args, context),
        RunCommand::List(args) => list(&args, context),
        RunCommand::Show(args) => show(&args, context),
        RunCommand::Cancel(args) => cancel(&args, context),
        RunCommand::Clear(args) => clear::clear(&args, context),
        RunCommand::Mark { run, state } => mark(&run, state, context),
        RunCommand::Delete { run, yes } => delete(&run, yes, context),
        RunCommand::Audit(args) => admin::audit_of_run(&args, context),
    }
}

/// The word that the API and the tables use.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_owned()
}

fn list(args: &ListArgs, context: &Context) -> Result<(), Failure> {
    // `~` is the API's word for «of all dags».
    let mut path = Path::runs(args.dag.as_deref().unwrap_or("~")).query("order_by", "-id");
    for state in &args.state {
        path = path.query("state", name(*state));
    }
    let runs = context.client()?.list(&path, "dag_runs", args.limit)?;
    let empty = match (&args.dag, args.state.is_empty()) {
        (_, false) => "no runs in that state".to_owned(),
        (Some(dag), true) => format!("no runs yet; trigger one with: tenure run trigger {dag}"),
        (None, true) => {
            "no runs yet; trigger one with: tenure run trigger DAG (tenure dag list shows them)".into()
        }
    };
    let screen = &context.screen;
    screen.list(&runs, &empty, &["DAG", "RUN", "STATE", "STARTED", "TOOK", "BY"], |run| run_row(screen, run))
}

fn run_row(screen: &Screen, run: &Value) -> Vec<Cell> {
    vec![
        cell(text(run, "dag_id")),
        cell(text(run, "dag_run_id")),
        screen.state(&state_of(run)),
        cell(screen.time(run, "start_date")),
        cell(screen.took(run, "start_date", "end_date")),
        cell(text(run, "triggering_user_name").or_else(|| text(run, "run_type"))),
    ]
}

fn show(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let mut run = client.get(&Path::run(&args.dag, &run_id))?;
    let path = Path::run(&args.dag, &run_id).then("taskInstances");
    let mut tasks = client.list(&path, "task_instances", usize::MAX)?;
    run["reason"] = json!(task::add_reasons(&client, &args.dag, &run_id, &mut tasks)?);
    if context.screen.is_json() {
        run["task_instances"] = Value::Array(tasks);
        return screen::json(&run);
    }
    screen::say(&run_page(&context.screen, &run, &tasks))
}

fn run_page(screen: &Screen, run: &Value, tasks: &[Value]) -> String {
    let conf = run["conf"].as_object().filter(|conf| !conf.is_empty());
    let facts = screen.facts(&[
        ("dag", text(run, "dag_id")),
        ("run", text(run, "dag_run_id")),
        ("state", Some(screen.painted(&state_of(run)))),
        ("reason", text(run, "reason")),
        ("logical date", screen.time(run, "logical_date")),
        ("queued", screen.time(run, "queued_at")),
        ("started", screen.time(run, "start_date")),
        ("ended", screen.time(run, "end_date")),
        ("took", screen.took(run, "start_date", "end_date")),
        ("by", text(run, "triggering_user_name").or_else(|| text(run, "triggered_by"))),
        ("conf", conf.map(|conf| Value::Object(conf.clone()).to_string())),
        ("note", text(run, "note")),
    ]);
    format!("{facts}\n\n{}", task::table(screen, tasks))
}

/// Unlike a mark, a cancel is for what still runs.
fn cancel(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let state = screen::text(&client.get(&Path::run(&args.dag, &run_id))?, "state").unwrap_or_default();
    if state == "success" || state == "failed" {
        let way_out = format!("to change its outcome: tenure run mark {} {run_id} success|failed", args.dag);
        return Err(Failure::Failed(format!("run {run_id} has ended already ({state}); {way_out}")));
    }
    end(&client, &args.dag, &run_id, RunMark::Failed, "cancelled", context)
}

fn mark(args: &RunArgs, state: RunMark, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    end(&client, &args.dag, &run_id, state, &format!("marked {}", name(state)), context)
}

fn end(
    client: &Client,
    dag: &str,
    run_id: &str,
    state: RunMark,
    done: &str,
    context: &Context,
) -> Result<(), Failure> {
    let run = client.patch(&Path::run(dag, run_id), &json!({ "state": name(state) }))?;
    tell(context, &run, &format!("run {run_id} of {dag} is {done}"))
}

fn delete(args: &RunArgs, yes: bool, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    let path = Path::run(&args.dag, &run_id);
    client.get(&path)?; // a wrong name is noticed before the question
    context.confirm(&format!("Delete run {run_id} of {} with its tasks and history?", args.dag), yes)?;
    client.delete(&path)?;
    let answer = json!({ "dag_id": args.dag, "dag_run_id": run_id, "deleted": true });
    tell(context, &answer, &format!("run {run_id} of {} is deleted", args.dag))
}

#[cfg(test)]
mod tests;
