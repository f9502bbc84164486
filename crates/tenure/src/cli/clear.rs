//! `tenure run clear` and `tenure task clear`: run tasks again.

use clap::Args;
use serde_json::{Value, json};

use super::client::Path;
use super::failure::Failure;
use super::run::RunArgs;
use super::{Context, screen, task};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run clear orders latest --only-failed            the failed tasks, and what waits for them
  tenure run clear orders latest --task load --downstream load and everything after it
  tenure run clear orders latest --dry-run                only say what would run again")]
pub struct ClearArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Only this task (more than once: these tasks); all without it
    #[arg(long = "task", short, value_name = "TASK")]
    tasks: Vec<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub struct TaskClearArgs {
    #[command(flatten)]
    task: task::TaskArgs,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Only tasks that failed, or could not run because others failed
    #[arg(long)]
    only_failed: bool,
    /// Also what comes before the tasks
    #[arg(long)]
    upstream: bool,
    /// Also what comes after the tasks
    #[arg(long)]
    downstream: bool,
    /// Also in runs with an earlier logical date
    #[arg(long)]
    past: bool,
    /// Also in runs with a later logical date
    #[arg(long)]
    future: bool,
    /// Follow the newest version of the dag from now on, instead of the one the run was made from
    #[arg(long)]
    latest_version: bool,
    /// Say what would run again and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub fn clear(args: &ClearArgs, context: &Context) -> Result<(), Failure> {
    send(&args.run.dag, &args.run.run, &args.tasks, &args.how, context)
}

pub fn clear_task(args: &TaskClearArgs, context: &Context) -> Result<(), Failure> {
    let tasks = std::slice::from_ref(&args.task.task);
    send(&args.task.dag, &args.task.run, tasks, &args.how, context)
}

fn send(dag: &str, run: &str, tasks: &[String], how: &How, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, dag, run)?;
    let path = Path::dag(dag).then("clearTaskInstances");
    let ask = |dry_run| -> Result<Vec<Value>, Failure> {
        let mut answer = client.post(&path, &how.body(&run_id, tasks, dry_run))?;
        Ok(answer["task_instances"].take().as_array_mut().map(std::mem::take).unwrap_or_default())
    };
    // Past tries stay in the history, so a script need not be told twice.
    if how.dry_run || context.interactive && !how.yes {
        let selected = ask(true)?;
        show(&selected, how.dry_run, context)?;
        if how.dry_run || selected.is_empty() {
            return Ok(());
        }
        context.confirm(&format!("Run these {} tasks again?", selected.len()), false)?;
    }
    let cleared = ask(false)?;
    match context.screen.is_json() {
        true => screen::json(&Value::Array(cleared)),
        false => screen::say(&format!(
            "{} tasks of {dag} run again: tenure run show {dag} {run_id}",
            cleared.len()
        )),
    }
}

/// What would run again: the result of a dry run, and otherwise a part of the question.
fn show(selected: &[Value], is_the_result: bool, context: &Context) -> Result<(), Failure> {
    match (is_the_result, selected) {
        (true, _) if context.screen.is_json() => screen::json(&Value::Array(selected.to_vec())),
        (_, []) => {
            eprintln!("nothing to run again: no task fits");
            Ok(())
        }
        (true, _) => screen::say(&task::table(&context.screen, selected)),
        (false, _) => {
            eprintln!("{}", task::table(&context.screen, selected));
            Ok(())
        }
    }
}

impl How {
    fn body(&self, run_id: &str, tasks: &[String], dry_run: bool) -> Value {
        let mut body = json!({
            "dry_run": dry_run,
            "dag_run_id": run_id,
            "only_failed": self.only_failed,
            "include_upstream": self.upstream,
            "include_downstream": self.downstream,
            "include_past": self.past,
            "include_future": self.future,
            "reset_dag_runs": true,
        });
        if self.latest_version {
            body["run_on_latest_version"] = json!(true);
        }
        if !tasks.is_empty() {
            body["task_ids"] = json!(tasks);
        }
        body
    }
}
