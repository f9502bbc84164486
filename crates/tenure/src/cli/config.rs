//! What is set, and where it was set. Needs no server.

use clap::Subcommand;
use serde_json::{Value, json};

use super::screen::{self, cell};
use super::{Context, Failure};
use crate::replica;
use crate::settings::{Edition, ServerSettings, Settings, Shown};

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the settings, and show those in force with where each came from
    #[command(
        after_help = "Example:\n  tenure config check --config /etc/tenure/tenure.toml\n\nTakes everything that \
                      `tenure server` takes. Exit code 2 when something is wrong."
    )]
    Check(ServerSettings),
}

pub fn run(command: &ConfigCommand, context: &Context) -> Result<(), Failure> {
    let ConfigCommand::Check(given) = command;
    let settled = Settings::load(Edition::Server, &given.0);
    let settings = settled.map_err(|problems| Failure::Usage(problems.to_string()))?;
    // Whoever checks wants to know before the next start does.
    replica::tls(&settings).map_err(|error| Failure::Usage(format!("{error:#}")))?;
    if context.screen.is_json() {
        return screen::json(&as_json(&settings.shown));
    }
    let rows = settings.shown.iter().map(|shown| {
        vec![
            cell(Some(shown.key.to_owned())),
            cell(shown.value.clone()),
            cell(Some(shown.source.to_string())),
        ]
    });
    screen::say(&context.screen.table(&["SETTING", "VALUE", "FROM"], rows))
}

fn as_json(shown: &[Shown]) -> Value {
    let one = |shown: &Shown| json!({ "setting": shown.key, "value": shown.value, "from": shown.source.to_string() });
    Value::Array(shown.iter().map(one).collect())
}
