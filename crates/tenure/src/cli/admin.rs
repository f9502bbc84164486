//! What concerns the installation rather than a dag: pools, the audit trail, health.

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::{Value, json};

use super::client::{Client, Path};
use super::failure::{FAILED, Failure};
use super::run::RunArgs;
use super::screen::{self, Screen, cell, number, text};
use super::{Context, tell};

/// How often `audit --follow` looks for more.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the pools and how full they are
    List,
    /// Create a pool, or change its size
    #[command(
        after_help = "Example:\n  tenure pool set warehouse 4 --description \"connections to the warehouse\""
    )]
    Set {
        /// Name of the pool
        name: String,
        /// How many slots its tasks share
        slots: u32,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// Delete a pool; tasks that name it wait until it is there again
    Delete {
        /// Name of the pool
        name: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only what concerns this dag
    #[arg(long, value_name = "DAG")]
    dag: Option<String>,
    /// Go on with what happens from now on
    #[arg(long, short)]
    follow: bool,
}

pub fn pool(command: PoolCommand, context: &Context) -> Result<(), Failure> {
    match command {
        PoolCommand::List => list_pools(context),
        PoolCommand::Set { name, slots, description } => {
            set_pool(&name, slots, description.as_deref(), context)
        }
        PoolCommand::Delete { name, yes } => delete_pool(&name, yes, context),
    }
}

fn list_pools(context: &Context) -> Result<(), Failure> {
    let pools = context.client()?.list(&Path::new("/api/v2/pools"), "pools", usize::MAX)?;
    let header = ["POOL", "SLOTS", "RUNNING", "QUEUED", "OPEN", "DESCRIPTION"];
    context.screen.list(&pools, "no pools", &header, |pool| {
        let count = |key| number(text(pool, key).unwrap_or_else(|| "-".into()));
        vec![
            cell(text(pool, "name")),
            count("slots"),
            count("running_slots"),
            count("queued_slots"),
            count("open_slots"),
            cell(text(pool, "description")),
        ]
    })
}

fn set_pool(name: &str, slots: u32, description: Option<&str>, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let path = Path::new("/api/v2/pools").then(name);
    let mut body = json!({ "slots": slots });
    if let Some(description) = description {
        body["description"] = json!(description);
    }
    let pool = match client.get(&path) {
        Ok(_) => client.patch(&path, &body)?,
        Err(Failure::Refused { status: 404, .. }) => {
            body["name"] = json!(name);
            client.post(&Path::new("/api/v2/pools"), &body)?
        }
        Err(failure) => return Err(failure),
    };
    tell(context, &pool, &format!("pool {name} has {slots} slots"))
}

fn delete_pool(name: &str, yes: bool, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let path = Path::new("/api/v2/pools").then(name);
    client.get(&path)?; // a wrong name is noticed before the question
    context.confirm(&format!("Delete pool {name}? Tasks that name it will wait."), yes)?;
    client.delete(&path)?;
    tell(context, &json!({ "name": name, "deleted": true }), &format!("pool {name} is deleted"))
}

pub fn audit(args: &AuditArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let trail = Trail { client: &client, dag: args.dag.as_deref(), run: None };
    let mut after = None;
    let mut events = trail.after(&mut after)?;
    if !args.follow {
        return print_all(&events, false, context);
    }
    loop {
        for event in &events {
            match context.screen.is_json() {
                true => screen::say(&event.to_string())?, // one line each: a stream, not a list
                false => screen::say(&story(&context.screen, event, false))?,
            }
        }
        std::thread::sleep(LOOK_EVERY);
        events = trail.after(&mut after)?;
    }
}

pub fn audit_of_run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.dag, &args.run)?;
    client.get(&Path::run(&args.dag, &run_id))?; // a wrong name is an error, not an empty story
    let trail = Trail { client: &client, dag: Some(&args.dag), run: Some(&run_id) };
    print_all(&trail.after(&mut None)?, true, context)
}

fn print_all(events: &[Value], of_one_run: bool, context: &Context) -> Result<(), Failure> {
    if context.screen.is_json() {
        return screen::json(&Value::Array(events.to_vec()));
    }
    if events.is_empty() {
        eprintln!("nothing has happened yet");
    }
    events.iter().try_for_each(|event| screen::say(&story(&context.screen, event, of_one_run)))
}

struct Trail<'a> {
    client: &'a Client,
    dag: Option<&'a str>,
    run: Option<&'a str>,
}

impl Trail<'_> {
    /// Everything after the row `after`, which is moved to the last one seen.
    fn after(&self, after: &mut Option<i64>) -> Result<Vec<Value>, Failure> {
        let mut path = Path::new("/api/tenure/audit");
        for (name, value) in [("dag_id", self.dag), ("run_id", self.run)] {
            if let Some(value) = value {
                path = path.query(name, value);
            }
        }
        if let Some(after) = after {
            path = path.query("after_seq", *after);
        }
        let events = self.client.list(&path, "audit", usize::MAX)?;
        *after = events.last().and_then(|event| event["seq"].as_i64()).or(*after);
        Ok(events)
    }
}

/// One transaction as lines of a story: when, what, by whom, and under which authority.
fn story(screen: &Screen, event: &Value, of_one_run: bool) -> String {
    let when = screen.time(event, "at").unwrap_or_default();
    let who = text(event, "actor").unwrap_or_default();
    let authority = match (text(event, "scope"), text(event, "epoch")) {
        (Some(scope), Some(epoch)) => format!(" ({scope} e{epoch})"),
        _ => String::new(),
    };
    let whose = match (text(event, "dag"), text(event, "run_id")) {
        _ if of_one_run => String::new(),
        (Some(dag), Some(run)) => format!("{dag} {run} "),
        (Some(dag), None) => format!("{dag} "),
        _ => String::new(),
    };
    let entries = event["entries"].as_array().map_or(&[][..], Vec::as_slice);
    let lines =
        entries.iter().map(|entry| format!("{when}  {whose}{}  by {who}{authority}", step(screen, entry)));
    lines.collect::<Vec<_>>().join("\n")
}

/// `extract: claimed, queued → running (try 1, on node-a): why`.
fn step(screen: &Screen, entry: &Value) -> String {
    let subject = text(entry, "task").unwrap_or_else(|| "run".into());
    let event = text(entry, "event").unwrap_or_default();
    let change = match (text(entry, "from"), text(entry, "to")) {
        (Some(from), Some(to)) if from != to => format!(", {from} → {}", screen.painted(&to)),
        (None, Some(to)) => format!(", {}", screen.painted(&to)),
        _ => String::new(),
    };
    let details: Vec<String> = [
        text(entry, "try_number").map(|number| format!("try {number}")),
        text(entry, "node").map(|node| format!("on {node}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    let reason = text(entry, "reason").map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{subject}: {event}{change}{details}{reason}")
}

pub fn health(context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let health = client.get(&Path::new("/health"))?;
    let healthy = text(&health, "status").as_deref() == Some("healthy");
    tell(context, &health, &health_page(&context.screen, client.url(), &health))?;
    if healthy { Ok(()) } else { Err(Failure::Told(FAILED)) }
}

fn health_page(screen: &Screen, url: &str, health: &Value) -> String {
    let database = match (health["database"]["ok"].as_bool(), text(&health["database"], "error")) {
        (_, Some(error)) => Some(error),
        (Some(true), None) => Some("answers".into()),
        _ => None,
    };
    let facts = screen.facts(&[
        ("server", Some(url.to_owned())),
        ("status", text(health, "status").map(|status| screen.painted(&status))),
        ("reason", text(health, "reason")),
        ("version", text(health, "version")),
        ("database", database),
        ("shards", shards(&health["shards"])),
        ("controller", controller(&health["controller"])),
        ("last pass", screen.time(health, "last_pass_at")),
    ]);
    let scopes = health["scopes"].as_array().map_or(&[][..], Vec::as_slice);
    if scopes.is_empty() {
        return facts;
    }
    let header = ["SCOPE", "LEADING", "EPOCH", "OWNER", "ADDRESS", "LAST RENEWAL", "LAST PASS", "PROBLEM"];
    format!("{facts}\n\n{}", screen.table(&header, scopes.iter().map(|scope| scope_row(screen, scope))))
}

/// `owns 5 of 16 shards; 1 has no owner`.
fn shards(shards: &Value) -> Option<String> {
    let count = |key: &str| shards[key].as_u64();
    let (total, owned, ownerless) = (count("total")?, count("owned")?, count("ownerless")?);
    let plural = if total == 1 { "" } else { "s" };
    let mut said = match owned {
        0 => format!("owns none of {total} shard{plural}: stands by"),
        _ => format!("owns {owned} of {total} shard{plural}"),
    };
    match ownerless {
        0 => {}
        1 => said.push_str("; 1 has no owner"),
        more => said.push_str(&format!("; {more} have no owner")),
    }
    Some(said)
}

fn controller(scope: &Value) -> Option<String> {
    let owner = text(scope, "owner").unwrap_or_else(|| "nobody".into());
    let mut said = match scope["leading"].as_bool()? {
        true => "this process".to_owned(),
        false => text(scope, "address").map_or(owner.clone(), |address| format!("{owner} at {address}")),
    };
    if let Some(problem) = text(scope, "problem") {
        said.push_str(&format!(" ({problem})"));
    }
    Some(said)
}

fn scope_row(screen: &Screen, scope: &Value) -> Vec<Cell> {
    let yes_no = |key: &str| if scope[key].as_bool() == Some(true) { "yes" } else { "no" };
    let renewal = if yes_no("last_renewal_succeeded") == "yes" { "succeeded" } else { "failed" };
    vec![
        cell(text(scope, "scope")),
        Cell::new(yes_no("leading")),
        number(text(scope, "epoch").map_or_else(|| "-".into(), |epoch| format!("e{epoch}"))),
        cell(text(scope, "owner")),
        cell(text(scope, "address")),
        cell(screen.time(scope, "renewed_at").map(|at| format!("{renewal}, {at}"))),
        cell(screen.time(scope, "last_pass_at")),
        cell(text(scope, "problem")),
    ]
}

/// The own version is known without a server; the server's is a bonus.
pub fn version(context: &Context) -> Result<(), Failure> {
    let own = env!("CARGO_PKG_VERSION");
    let server = context.client().and_then(|client| {
        let answer = client.get(&Path::new("/health"))?;
        Ok((client.url().to_owned(), text(&answer, "version")))
    });
    let (url, server) = server.map_or((None, None), |(url, version)| (Some(url), version));
    let sentence = match (&url, &server) {
        (Some(url), Some(server)) => format!("tenure {own}\nserver {server} at {url}"),
        _ => format!("tenure {own}\nno server found"),
    };
    tell(context, &json!({ "client": own, "server": server, "url": url }), &sentence)
}

#[cfg(test)]
mod tests;
