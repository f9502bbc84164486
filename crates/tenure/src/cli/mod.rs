//! The command line: every command that talks to a server, and the few that need none.
//!
//! Owns names, flags, help texts, tables and exit codes; knows nothing of databases or schedulers: all it
//! does goes through the HTTP API. Exit codes are a contract: 0 success, 1 the run (or what was asked for)
//! failed, 2 wrong usage, 3 the server cannot be reached, 73 the lease is not yours.

mod admin;
mod clear;
mod client;
mod config;
mod dag;
mod database;
mod failure;
mod joining;
mod lease;
mod logs;
mod node;
mod place;
mod progress;
mod quota;
mod run;
mod screen;
mod task;
mod trigger;
mod wait;

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde_json::Value;

use client::{Client, Path};
pub use client::{endpoint, is_loopback, trust};
pub use failure::{Failure, NOT_THE_MASTER};
use screen::Screen;

use crate::settings::ServerSettings;

/// Tenure schedules and runs workflows.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, propagate_version = false, after_help = EXAMPLES, subcommand_required = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tenure dag list                                  what there is to run
  tenure run trigger orders --param region=eu --wait
  tenure task logs orders latest extract -f        what a task prints, while it prints it
  tenure elect reports/leader -- ./reports.sh      a program that runs on one machine of many

Exit codes: 0 success, 1 failed, 2 wrong usage, 3 the server cannot be reached, 73 the lease is not yours.
On the machine of a running `tenure up` neither --server nor --token is needed.";

#[derive(Clone, Debug, Args)]
pub struct Globals {
    /// Address of the server, like http://127.0.0.1:8080; found by itself on the server's own machine
    #[arg(long, global = true, env = "TENURE_SERVER", value_name = "URL", help_heading = "Global options")]
    pub server: Option<String>,
    /// Token that the server accepts; found by itself on the server's own machine
    #[arg(
        long,
        global = true,
        env = "TENURE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Global options"
    )]
    pub token: Option<String>,
    /// Certificates (PEM) of authorities to trust beside the system's, for servers at https://
    #[arg(long, global = true, env = "TENURE_CA", value_name = "FILE", help_heading = "Global options")]
    pub ca: Option<std::path::PathBuf>,
    /// How results are printed: as tables for people or as JSON for scripts
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub output: OutputFormat,
    /// No colours (the same as setting NO_COLOR)
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_color: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything here: scheduler, API and agent in one process, with a database in a folder
    Up(crate::up::UpArgs),
    /// Run one replica of a cluster: scheduler and API on a shared Postgres, for agents elsewhere
    #[command(after_help = SERVER_HELP)]
    Server(ServerSettings),
    /// Run tasks on this machine for a cluster: connects to every replica, starts what they hand out
    #[command(after_help = crate::agent::HELP)]
    Agent(crate::agent::AgentArgs),
    /// What is set, and where each value came from
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// The state's database: how it is, and into how many shards it is divided
    #[command(subcommand)]
    Database(database::DatabaseCommand),
    /// Look at dags, register, pause and delete them, check dag files
    #[command(subcommand)]
    Dag(dag::DagCommand),
    /// Trigger runs, watch them, end them, run them again
    #[command(subcommand)]
    Run(run::RunCommand),
    /// Look at the tasks of a run and at what they print
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Limit how many tasks of a kind run at once
    #[command(subcommand)]
    Pool(admin::PoolCommand),
    /// Limit what a tenant's tasks take of all nodes together
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// The machines that tasks run on
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Where tasks would go, and why
    #[command(subcommand)]
    Place(place::PlaceCommand),
    /// Who is in charge of what, and for how long
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// The processes that stand for leases
    #[command(subcommand)]
    Member(lease::MemberCommand),
    /// Run a program only while holding a lease, on one machine of many
    Elect(crate::elect::ElectArgs),
    /// Everything that happened: who did what, when, and under which authority
    Audit(admin::AuditArgs),
    /// Ask the server how it is; exit code 1 when it cannot schedule
    Health,
    /// Print the completion script of a shell
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// The shell it is for
        shell: clap_complete::Shell,
    },
    /// Versions of this program and of the server
    Version,
}

const SERVER_HELP: &str = "\
Examples:
  export TENURE_DATABASE_URL=postgres://tenure:…@db/tenure
  export TENURE_BOOTSTRAP_TOKEN=…      made with: openssl rand -hex 32
  tenure server --listen 0.0.0.0:8080
  tenure server --config /etc/tenure/tenure.toml --advertise https://10.0.0.7:8080 --tls-cert … --tls-key …

TENURE_BOOTSTRAP_TOKEN names the administrators' token of a new database; none is built in.
Start as many replicas as you like: they share the work out. SIGTERM hands it over first.
See docs/cluster.md.";

const COMPLETION_HELP: &str = "\
Examples:
  tenure completion bash > ~/.local/share/bash-completion/completions/tenure
  tenure completion zsh > ~/.zfunc/_tenure
  tenure completion fish > ~/.config/fish/completions/tenure.fish";

pub fn run(command: Command, globals: Globals) -> ExitCode {
    let context = Context::new(globals);
    match dispatch(command, &context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let exit_code = failure.exit_code();
            if !matches!(failure, Failure::Told(_)) {
                eprintln!("error: {}", context.with_the_way_out(failure));
            }
            exit_code
        }
    }
}

fn dispatch(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Up(_) | Command::Server(_) | Command::Agent(_) | Command::Elect(_) => {
            unreachable!("`main` starts these itself")
        }
        Command::Dag(command) => dag::run(command, context),
        Command::Run(command) => run::run(command, context),
        Command::Task(command) => task::run(command, context),
        Command::Pool(command) => admin::pool(command, context),
        Command::Quota(command) => quota::run(command, context),
        Command::Node(command) => node::run(command, context),
        Command::Place(command) => place::run(command, context),
        Command::Lease(command) => lease::run(command, context),
        Command::Member(lease::MemberCommand::List { component }) => {
            lease::members(component.as_deref(), context)
        }
        Command::Config(command) => config::run(&command, context),
        Command::Database(command) => database::run(&command, context),
        Command::Audit(args) => admin::audit(&args, context),
        Command::Health => admin::health(context),
        Command::Version => admin::version(context),
        Command::Completion { shell } => completion(shell),
    }
}

fn completion(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// What every command needs. The server is looked for only when it is needed.
#[derive(Debug)]
pub struct Context {
    globals: Globals,
    screen: Screen,
    /// There is somebody to ask.
    interactive: bool,
}

impl Context {
    fn new(globals: Globals) -> Self {
        Self { screen: Screen::of(&globals), globals, interactive: std::io::stdin().is_terminal() }
    }

    fn client(&self) -> Result<Client, Failure> {
        Client::connect(&self.globals)
    }

    /// The run a user means: `latest` is the one created last.
    fn run_id(&self, client: &Client, dag: &str, run: &str) -> Result<String, Failure> {
        if run != "latest" {
            return Ok(run.to_owned());
        }
        let runs = client.list(&Path::runs(dag).query("order_by", "-id"), "dag_runs", 1)?;
        runs.first().and_then(|run| screen::text(run, "dag_run_id")).ok_or_else(|| {
            Failure::Failed(format!("{dag} has no runs yet; start one with: tenure run trigger {dag}"))
        })
    }

    /// Asks before something that cannot be undone. Without a terminal to ask on, `--yes` is the answer.
    fn confirm(&self, question: &str, yes: bool) -> Result<(), Failure> {
        if yes {
            return Ok(());
        }
        if !self.interactive {
            return Err(Failure::Usage(format!("{question} Say so with --yes.")));
        }
        eprint!("{question} [y/N] ");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::Failed("nothing was changed".into())),
        }
    }

    /// A refusal that a typing error may explain gets the names that come close.
    fn with_the_way_out(&self, failure: Failure) -> String {
        let said = failure.to_string();
        let Failure::Refused { status: 404, path, .. } = &failure else { return said };
        let Some(dag) = client::dag_in(path) else { return said };
        let known = self.client().and_then(|client| client.list(&Path::new("/api/v2/dags"), "dags", 1000));
        let Ok(known) = known else { return said };
        let names: Vec<String> = known.iter().filter_map(|dag| screen::text(dag, "dag_id")).collect();
        format!("{said}{}", hint(&dag, &names))
    }
}

fn hint(dag: &str, known: &[String]) -> String {
    if known.iter().any(|name| name == dag) {
        return format!("\n  its runs: tenure run list {dag}");
    }
    let mut close: Vec<(f64, &str)> =
        known.iter().map(|name| (strsim::jaro_winkler(dag, name), name.as_str())).collect();
    close.retain(|(likeness, _)| *likeness > 0.8);
    close.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names: Vec<&str> = close.into_iter().take(3).map(|(_, name)| name).collect();
    match names.as_slice() {
        [] => "\n  what there is: tenure dag list".into(),
        names => format!("\n  did you mean {}?", names.join(" or ")),
    }
}

/// One object on stdout: as JSON, or as the sentence that a person gets instead.
fn tell(context: &Context, answer: &Value, sentence: &str) -> Result<(), Failure> {
    match context.screen.is_json() {
        true => screen::json(answer),
        false => screen::say(sentence),
    }
}

#[cfg(test)]
mod tests;
