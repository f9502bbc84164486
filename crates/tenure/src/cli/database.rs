//! The state's database itself. Talks to Postgres, not to a server: some of this is for when no server runs.

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tenure_store_postgres::{ReshardError, reshard};

use super::{Context, Failure, tell};

#[derive(Debug, Subcommand)]
pub enum DatabaseCommand {
    /// Divide the dags into another number of shards. All servers must have been stopped
    #[command(
        after_help = "Example:\n  tenure database reshard --shards 32 --yes\n\nAfter a crash in the middle, run \
                            it again: it goes on where it was, and no server starts before it has finished."
    )]
    Reshard(ReshardArgs),
}

#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// The database: postgres://user:password@host/database
    #[arg(long, env = "TENURE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: String,
}

#[derive(Debug, Args)]
pub struct ReshardArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// How many there shall be
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: u16,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub fn run(command: &DatabaseCommand, context: &Context) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        DatabaseCommand::Reshard(args) => runtime.block_on(run_reshard(args, context)),
    }
}

async fn run_reshard(args: &ReshardArgs, context: &Context) -> Result<(), Failure> {
    let question = format!(
        "Divide the database into {} shards? All servers must have been stopped, and none starts before it is done.",
        args.shards
    );
    context.confirm(&question, args.yes)?;
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} dags and runs").expect("a known template");
    bar.set_style(style);
    let done = reshard(&args.database.database_url, args.shards, |looked_at, of| {
        bar.set_length(of);
        bar.set_position(looked_at);
    })
    .await;
    bar.finish_and_clear();
    let done = done.map_err(failure)?;
    let answer = json!({
        "from": done.from, "to": done.to, "moved_dags": done.moved_dags, "moved_runs": done.moved_runs,
    });
    let sentence = format!(
        "{} shards are {} now; {} dags and {} runs have moved",
        done.from, done.to, done.moved_dags, done.moved_runs
    );
    tell(context, &answer, &sentence)
}

fn failure(error: ReshardError) -> Failure {
    match &error {
        ReshardError::Connect(cause) if !cause.is_refusal() => Failure::Unreachable(with_causes(error)),
        _ => Failure::Failed(with_causes(error)),
    }
}

/// The outermost says where, the innermost what.
fn with_causes(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
