//! What lets machines join as nodes, and how they are sent away.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::Path;
use super::screen::{self, cell, number, text};
use super::{Context, Failure, tell};

pub const TOKEN_HELP: &str = "\
Examples:
  tenure node token                                for one machine, within the hour
  tenure node token --name gpu-7                   for the node of this name, and no other
  tenure node token --uses 20 --expires 7d         for a group of machines
  tenure node token revoke 3f9a0c2b11

The token is printed once: give it to the agent with --token or TENURE_TOKEN. The agent exchanges it for an identity of
its own, which it keeps and renews; the token is not needed again.";

pub const REMOVE_HELP: &str = "\
Its tasks are treated as those of any node that says nothing more: those that nobody has claimed are placed elsewhere,
those that run are given up after heartbeat_threshold. To have it back: tenure node token --name NODE";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Option<TokenCommand>,
    /// For how long it can be used [default: 1h, at most 30d]
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Only for the node of this name, even if there is one already
    #[arg(long, value_name = "NODE")]
    name: Option<String>,
    /// How many nodes may join with it [default: 1]
    #[arg(long, value_name = "COUNT")]
    uses: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// List the join tokens; what they are shown as is not known any more
    List,
    /// Revoke a join token; nodes that have joined with it stay
    Revoke {
        /// Its id, from the list
        id: String,
    },
}

pub fn token(args: &TokenArgs, context: &Context) -> Result<(), Failure> {
    match &args.command {
        Some(TokenCommand::List) => list_tokens(context),
        Some(TokenCommand::Revoke { id }) => revoke_token(id, context),
        None => make_token(args, context),
    }
}

fn tokens() -> Path {
    Path::new("/api/tenure/join-tokens")
}

fn make_token(args: &TokenArgs, context: &Context) -> Result<(), Failure> {
    let mut body = Map::new();
    let asked = [
        ("node", args.name.clone().map(Value::from)),
        ("uses", args.uses.map(Value::from)),
        ("expires", args.expires.clone().map(Value::from)),
    ];
    body.extend(asked.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let made = context.client()?.post(&tokens(), &Value::Object(body))?;
    let token = text(&made, "token").unwrap_or_default();
    if context.screen.is_json() {
        return screen::json(&made);
    }
    // The token alone on stdout, so that a script can take it as it is.
    screen::say(&token)?;
    let whose = match text(&made, "node") {
        Some(node) => format!("for node {node}"),
        None => "for any node".into(),
    };
    let times = match made["uses"].as_u64() {
        Some(1) | None => "once".to_owned(),
        Some(uses) => format!("{uses} times"),
    };
    let until = context.screen.time(&made, "expires_at").unwrap_or_default();
    let id = text(&made, "id").unwrap_or_default();
    eprintln!(
        "join token {id}, {whose}, {times}, until {until}; start the agent with --token or TENURE_TOKEN"
    );
    Ok(())
}

fn list_tokens(context: &Context) -> Result<(), Failure> {
    let tokens = context.client()?.items(&tokens(), "join_tokens")?;
    let screen = &context.screen;
    let header = ["TOKEN", "NODE", "USED", "OF", "MADE", "BY", "EXPIRES", "REVOKED"];
    screen.list(&tokens, "no join tokens; make one with: tenure node token", &header, |token| {
        let count = |key| number(text(token, key).unwrap_or_else(|| "-".into()));
        vec![
            cell(text(token, "id")),
            cell(Some(text(token, "node").unwrap_or_else(|| "any".into()))),
            count("used"),
            count("uses"),
            cell(screen.time(token, "created_at")),
            cell(text(token, "created_by")),
            cell(screen.time(token, "expires_at")),
            cell(screen.time(token, "revoked_at")),
        ]
    })
}

fn revoke_token(id: &str, context: &Context) -> Result<(), Failure> {
    context.client()?.delete(&tokens().then(id))?;
    tell(context, &json!({ "id": id, "revoked": true }), &format!("join token {id} is revoked"))
}

pub fn remove(node: &str, yes: bool, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    context.confirm(&format!("Remove node {node}? Its agent is cut off."), yes)?;
    let removed = client.send("DELETE", &Path::new("/api/tenure/nodes").then(node), None, &[])?;
    let mut said = format!("node {node} is removed");
    match removed["holds"].as_u64() {
        Some(0) | None => {}
        Some(1) => said.push_str("; it is listed until the task that it holds has ended"),
        Some(held) => {
            said.push_str(&format!("; it is listed until the {held} tasks that it holds have ended"))
        }
    }
    if removed["had_identity"] == false {
        said.push_str(
            "; its agent has no identity of its own: if it uses a token of the API, it comes back until it is stopped",
        );
    }
    let mut answer = json!({ "node": node, "removed": true });
    for key in ["holds", "had_identity"] {
        answer[key] = removed[key].clone();
    }
    tell(context, &answer, &said)
}
