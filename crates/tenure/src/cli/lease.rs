//! `tenure lease …`: who is in charge of what, and taking charge by hand.
//!
//! The verbs are those of the HTTP API, compare-and-swap on scope, term and epoch. Exit code 73 says that the
//! lease is not the caller's: somebody else holds it, or it was lost.

mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::{Value, json};
use tenure_clock::{BootTime, Clock, Entropy, SystemClock};
use tenure_lease::Scope;
use tenure_model::duration;
use uuid::Uuid;

use super::client::{Client, Path};
use super::failure::Failure;
use super::screen::{self, Screen, cell, number, text};
use super::{Context, tell};
use crate::elect;

/// A release is noticed within this; an expiry at once, because the loser's answer says when it is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An answer may be lost; asking again with the same term is asking once.
const ASK_TIMES: usize = 3;

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// List the leases, with their latest holders
    List {
        /// Only scopes that begin with this
        under: Option<String>,
    },
    /// Show all that is known about a lease
    Show(ScopeArg),
    /// Who held a lease, from when to when, and how each term ended
    History {
        #[command(flatten)]
        scope: ScopeArg,
        /// At most this many terms
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Take a lease that nobody holds; exit code 73 when somebody does
    Acquire(AcquireArgs),
    /// Hold a lease for longer; exit code 73 when it is lost
    Renew(RenewArgs),
    /// Give a lease back; exit code 73 when it was not yours any more
    Release(ClaimArgs),
    /// Print every change of the leases as it happens
    Watch {
        /// Only scopes that begin with this
        under: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct ScopeArg {
    /// What the lease is for, like controller/leader
    #[arg(value_parser = scope)]
    scope: Scope,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure lease acquire controller/leader --lease-duration 30s
  tenure lease acquire controller/leader --wait -o json | jq '.epoch, .term'

A lease is permission to try. Pass its epoch with every write, and let what is written to refuse a lower one.
Whoever wants to run a program under a lease is better served by: tenure elect")]
pub struct AcquireArgs {
    #[command(flatten)]
    scope: ScopeArg,
    /// How long it lasts without being renewed
    #[arg(long, default_value = "15s", env = "TENURE_LEASE_DURATION", value_name = "DURATION", value_parser = duration::parse)]
    lease_duration: Duration,
    /// Who others are told holds it [default: host:process]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// A remark that others can read
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// Wait until it can be had
    #[arg(long, short)]
    wait: bool,
    /// Stop waiting after this long, like 10m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "wait")]
    timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct ClaimArgs {
    #[command(flatten)]
    scope: ScopeArg,
    /// The term that `lease acquire` has printed
    #[arg(long, value_name = "UUID")]
    term: Uuid,
    /// The epoch that `lease acquire` has printed
    #[arg(long, value_name = "N", value_parser = epoch)]
    epoch: u64,
}

#[derive(Debug, Args)]
pub struct RenewArgs {
    #[command(flatten)]
    claim: ClaimArgs,
    /// How long it lasts from now on [default: as long as it was taken for]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease_duration: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// List the processes that stand for leases, and what each of them holds
    List {
        /// Only members of this component
        component: Option<String>,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).map_err(|error| error.to_string())
}

/// `12`, or `e12` as tables show it.
fn epoch(text: &str) -> Result<u64, String> {
    text.strip_prefix('e').unwrap_or(text).parse().map_err(|_| "write it like 12".into())
}

pub fn run(command: LeaseCommand, context: &Context) -> Result<(), Failure> {
    match command {
        LeaseCommand::List { under } => list(under.as_deref(), context),
        LeaseCommand::Show(of) => show(&of.scope, context),
        LeaseCommand::History { scope, limit } => history(&scope.scope, limit, context),
        LeaseCommand::Acquire(args) => acquire(&args, context),
        LeaseCommand::Renew(args) => renew(&args, context),
        LeaseCommand::Release(args) => release(&args, context),
        LeaseCommand::Watch { under } => watch::watch(under.as_deref(), context),
    }
}

fn under(path: &str, under: Option<&str>) -> Path {
    under.map_or_else(|| Path::new(path), |under| Path::new(path).query("under", under))
}

fn list(beginning: Option<&str>, context: &Context) -> Result<(), Failure> {
    let leases = context.client()?.items(&under("/api/leases", beginning), "leases")?;
    let screen = &context.screen;
    let empty =
        "no leases; take one with: tenure lease acquire SCOPE, or run a program under one with: tenure elect";
    screen.list(&leases, empty, &LEASE_COLUMNS, |lease| lease_row(screen, lease))
}

const LEASE_COLUMNS: [&str; 9] =
    ["SCOPE", "STATE", "HOLDER", "ADDRESS", "EPOCH", "REMAINING", "ACQUIRED", "RENEWED", "NOTE"];

fn lease_row(screen: &Screen, lease: &Value) -> Vec<Cell> {
    vec![
        cell(text(lease, "scope")),
        screen.state(state_of(lease)),
        cell(text(lease, "holder")),
        cell(text(lease, "address")),
        number(epoch_of(lease).unwrap_or_else(|| "-".into())),
        cell(remaining(lease)),
        cell(screen.time(lease, "acquired_at")),
        cell(screen.time(lease, "renewed_at")),
        cell(text(lease, "note")),
    ]
}

fn state_of(lease: &Value) -> &'static str {
    match (lease["held"].as_bool(), lease["released"].as_bool()) {
        (Some(true), _) => "held",
        (_, Some(true)) => "released",
        _ => "expired",
    }
}

fn epoch_of(lease: &Value) -> Option<String> {
    text(lease, "epoch").map(|epoch| format!("e{epoch}"))
}

/// `None` once nobody holds it.
fn remaining(lease: &Value) -> Option<String> {
    lease["remaining_ms"].as_u64().filter(|millis| *millis > 0).map(seconds)
}

fn seconds(millis: u64) -> String {
    format!("{:.1}s", millis as f64 / 1000.0)
}

fn show(scope: &Scope, context: &Context) -> Result<(), Failure> {
    let lease = context.client()?.get(&Path::new("/api/leases/record").query("scope", scope))?;
    tell(context, &lease, &lease_page(&context.screen, &lease))
}

fn lease_page(screen: &Screen, lease: &Value) -> String {
    screen.facts(&[
        ("scope", text(lease, "scope")),
        ("state", Some(screen.painted(state_of(lease)))),
        ("holder", text(lease, "holder")),
        ("instance", text(lease, "instance")),
        ("address", text(lease, "address")),
        ("session", text(lease, "session")),
        ("epoch", text(lease, "epoch")),
        ("term", text(lease, "term")),
        (
            "duration",
            lease["duration_ms"].as_u64().map(|millis| duration::format(Duration::from_millis(millis))),
        ),
        ("remaining", remaining(lease)),
        ("acquired", screen.time(lease, "acquired_at")),
        ("renewed", screen.time(lease, "renewed_at")),
        ("succession", text(lease, "succession")),
        ("transitions", text(lease, "transitions")),
        ("resource version", text(lease, "resource_version")),
        ("note", text(lease, "note")),
    ])
}

fn history(scope: &Scope, limit: u32, context: &Context) -> Result<(), Failure> {
    let path = Path::new("/api/leases/history").query("scope", scope).query("limit", limit);
    let terms = context.client()?.items(&path, "history")?;
    let screen = &context.screen;
    let header = ["EPOCH", "HOLDER", "BEGAN AS", "FROM", "TO", "HELD FOR", "ENDED AS", "NOTE"];
    screen.list(&terms, "nobody has held it yet", &header, |term| {
        vec![
            number(epoch_of(term).unwrap_or_else(|| "-".into())),
            cell(text(term, "holder")),
            cell(text(term, "succession")),
            cell(screen.time(term, "acquired_at")),
            cell(screen.time(term, "ended_at")),
            cell(screen.took(term, "acquired_at", "ended_at")),
            cell(text(term, "end")),
            cell(text(term, "note")),
        ]
    })
}

fn acquire(args: &AcquireArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let scope = &args.scope.scope;
    let entropy = Entropy::from_os();
    let body = json!({
        "scope": scope,
        "holder": {
            "name": args.holder.clone().unwrap_or_else(elect::own_name),
            "instance": args.holder.clone().unwrap_or_else(elect::host_name),
            "session": entropy.uuid(SystemClock.now()),
        },
        "duration_ms": args.lease_duration.as_millis() as u64,
        "term": entropy.uuid(SystemClock.now()),
        "note": args.note,
    });
    let give_up_at = args.timeout.map(|timeout| SystemClock.boottime() + timeout);
    let mut told = None;
    loop {
        let held = match ask(&client, &Path::new("/api/leases/acquire"), &body)? {
            Ok(won) => return print_acquired(scope, &won, context),
            Err(held) => held,
        };
        let lease = &held["held_by"];
        let over = give_up_at.is_some_and(|at| SystemClock.boottime() >= at);
        if !args.wait || over {
            return not_ours(context, &held, &held_text(scope, lease));
        }
        if told.as_ref() != Some(&lease["term"]) {
            told = Some(lease["term"].clone());
            eprintln!("{}; waiting", held_text(scope, lease));
        }
        std::thread::sleep(pause(lease["remaining_ms"].as_u64(), give_up_at));
    }
}

fn pause(remaining_ms: Option<u64>, give_up_at: Option<BootTime>) -> Duration {
    let due = remaining_ms.map_or(LOOK_EVERY, Duration::from_millis);
    let left = give_up_at.map_or(LOOK_EVERY, |at| at.saturating_since(SystemClock.boottime()));
    due.min(LOOK_EVERY).min(left).max(Duration::from_millis(10))
}

/// Ok: granted. Err: the loser's answer.
fn ask(client: &Client, path: &Path, body: &Value) -> Result<Result<Value, Value>, Failure> {
    let mut asked = 1;
    loop {
        match client.post_or_conflict(path, body) {
            Err(Failure::Refused { status: 504, .. } | Failure::Unreachable(_)) if asked < ASK_TIMES => {
                asked += 1
            }
            answer => return answer,
        }
    }
}

fn held_text(scope: &Scope, lease: &Value) -> String {
    let holder = text(lease, "holder").unwrap_or_else(|| "somebody".into());
    let epoch = epoch_of(lease).unwrap_or_default();
    let left = remaining(lease).unwrap_or_else(|| "0s".into());
    format!("{scope} is held by {holder} at {epoch}, for another {left} unless it is renewed")
}

fn print_acquired(scope: &Scope, won: &Value, context: &Context) -> Result<(), Failure> {
    let mut lease = won["lease"].clone();
    let claim = format!(
        "{scope} --term {} --epoch {}",
        text(&lease, "term").unwrap_or_default(),
        text(&lease, "epoch").unwrap_or_default()
    );
    let facts = context.screen.facts(&[
        ("scope", text(&lease, "scope")),
        ("epoch", text(&lease, "epoch")),
        ("term", text(&lease, "term")),
        ("valid for", won["valid_for_ms"].as_u64().map(seconds)),
    ]);
    lease["valid_for_ms"] = won["valid_for_ms"].clone();
    let sentence = format!(
        "{facts}\n\nHold it longer:  tenure lease renew {claim}\nGive it back:    tenure lease release {claim}"
    );
    tell(context, &lease, &sentence)
}

fn renew(args: &RenewArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let ClaimArgs { scope: ScopeArg { scope }, term, epoch } = &args.claim;
    let lasting = match args.lease_duration {
        Some(duration) => duration.as_millis() as u64,
        None => recorded_duration(&client, scope)?,
    };
    let claim = json!({ "scope": scope, "term": term, "epoch": epoch, "duration_ms": lasting });
    let mut answer = client.post(&Path::new("/api/leases/renew"), &json!({ "claims": [claim] }))?;
    let mut outcome = answer["outcomes"][0].take();
    outcome["term"] = json!(term);
    outcome["epoch"] = json!(epoch);
    match outcome["renewed"].as_bool() {
        Some(true) => {
            outcome["duration_ms"] = json!(lasting);
            tell(context, &outcome, &format!("{scope} is yours for another {} at e{epoch}", seconds(lasting)))
        }
        _ => {
            let why = text(&outcome["lost"], "detail").unwrap_or_else(|| "it is not yours".into());
            not_ours(context, &outcome, &format!("{scope} is lost at e{epoch}: {why}"))
        }
    }
}

fn recorded_duration(client: &Client, scope: &Scope) -> Result<u64, Failure> {
    match client.get(&Path::new("/api/leases/record").query("scope", scope)) {
        Ok(lease) => Ok(lease["duration_ms"].as_u64().unwrap_or(0)),
        Err(Failure::Refused { status: 404, .. }) => {
            Err(Failure::Lost(format!("{scope} is lost: its record is gone")))
        }
        Err(failure) => Err(failure),
    }
}

fn release(args: &ClaimArgs, context: &Context) -> Result<(), Failure> {
    let ClaimArgs { scope: ScopeArg { scope }, term, epoch } = args;
    let body = json!({ "scope": scope, "term": term, "epoch": epoch });
    let answer = context.client()?.post(&Path::new("/api/leases/release"), &body)?;
    let outcome = json!({ "scope": scope, "term": term, "epoch": epoch, "released": answer["released"] });
    match answer["released"].as_bool() {
        Some(true) => tell(context, &outcome, &format!("{scope} is given back")),
        _ => {
            let why = "the lease is not held under that term and epoch any more; nothing was changed";
            not_ours(context, &outcome, &format!("{scope}: {why}"))
        }
    }
}

/// The answer for scripts on stdout, the sentence for people on stderr, and exit code 73 for both.
fn not_ours(context: &Context, answer: &Value, sentence: &str) -> Result<(), Failure> {
    if context.screen.is_json() {
        screen::json(answer)?;
    }
    Err(Failure::Lost(sentence.to_owned()))
}

pub fn members(component: Option<&str>, context: &Context) -> Result<(), Failure> {
    let path = Path::new("/api/leases/members");
    let path = component.map_or_else(|| path.clone(), |component| path.clone().query("component", component));
    let members = context.client()?.items(&path, "members")?;
    let screen = &context.screen;
    let header = ["COMPONENT", "MEMBER", "HOLDS", "SINCE", "REMAINING", "ADDRESS", "NOTE"];
    screen.list(&members, "no members: nobody stands for a lease here", &header, |member| {
        let scopes = member["scopes"].as_array().map_or(&[][..], Vec::as_slice);
        let held: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
        vec![
            cell(text(member, "component")),
            cell(text(member, "holder")),
            cell(Some(held.join(", ")).filter(|held| !held.is_empty())),
            cell(screen.time(member, "since")),
            cell(remaining(member)),
            cell(text(member, "address")),
            cell(text(member, "note")),
        ]
    })
}

#[cfg(test)]
mod tests;
