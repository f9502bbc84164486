//! The state's database itself. Talks to Postgres, not to a server: some of this is for when no server runs.

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tenure_store_postgres::{ConnectError, Description, ReshardError, describe, reshard};

use super::screen::Screen;
use super::{Context, Failure, tell};

#[derive(Debug, Subcommand)]
pub enum DatabaseCommand {
    /// Show where it is, which version its tables have, and into how many shards it is divided. Changes nothing
    Status(DatabaseArgs),
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
        DatabaseCommand::Status(args) => runtime.block_on(status(args, context)),
        DatabaseCommand::Reshard(args) => runtime.block_on(run_reshard(args, context)),
    }
}

async fn status(args: &DatabaseArgs, context: &Context) -> Result<(), Failure> {
    let found = describe(&args.database_url).await.map_err(unreached)?;
    let answer = json!({
        "database": found.target, "schema_version": found.schema_version, "known_version": found.known_version,
        "shards": found.shards, "resharding": found.resharding, "has_token": found.has_token,
    });
    tell(context, &answer, &status_page(&context.screen, &found))
}

fn status_page(screen: &Screen, found: &Description) -> String {
    let tables = match (found.schema_version, found.known_version) {
        (0, known) => format!("none yet; a server makes version {known}"),
        (version, known) if version < known => {
            format!("version {version}; a server makes it version {known}")
        }
        (version, known) if version > known => {
            format!("version {version}, made by a newer release: this one knows {known}")
        }
        (version, _) => format!("version {version}"),
    };
    let shards = found.shards.map(|shards| match found.resharding {
        true => format!("{shards}, being divided anew: run the same tenure database reshard again"),
        false => shards.to_string(),
    });
    let token = if found.has_token { "set" } else { "none yet: TENURE_BOOTSTRAP_TOKEN names the first one" };
    screen.facts(&[
        ("database", Some(found.target.clone())),
        ("tables", Some(tables)),
        ("shards", shards),
        ("token", Some(token.into())),
    ])
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
    match error {
        ReshardError::Connect(cause) => unreached(cause),
        other => Failure::Failed(with_causes(other)),
    }
}

fn unreached(error: ConnectError) -> Failure {
    match error.is_refusal() {
        true => Failure::Failed(with_causes(error)),
        false => Failure::Unreachable(with_causes(error)),
    }
}

/// The outermost says where, the innermost what.
fn with_causes(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
