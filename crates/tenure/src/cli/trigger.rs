//! `tenure run trigger`: what the user gives becomes the body of a request.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tenure_model::duration;

use super::client::Path;
use super::failure::Failure;
use super::{Context, screen, tell, wait};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run trigger orders
  tenure run trigger orders --param region=us --param limit=100 --wait
  tenure run trigger orders --conf @conf.json --logical-date 2026-01-01 --wait --timeout 10m
  tenure run trigger orders --wait -o json    one JSON object at the end; exit code 0 or 1")]
pub struct TriggerArgs {
    /// Id of the dag
    pub dag: String,
    /// Values for the run: a JSON object, or @FILE to read one (@- reads stdin)
    #[arg(long, value_name = "JSON|@FILE")]
    conf: Option<String>,
    /// One value for the run, over --conf; JSON if it reads as such, otherwise text
    #[arg(long = "param", short, value_name = "NAME=VALUE", value_parser = param)]
    params: Vec<(String, Value)>,
    /// The moment the run is about, like 2026-01-01 or 2026-01-01T05:00:00Z; none by default
    #[arg(long, value_name = "TIME", value_parser = moment)]
    logical_date: Option<Timestamp>,
    /// Name of the run; made from the time by default
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// A remark that stays with the run
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Triggering again with the same key gives the same run, not a second one
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Show the progress until the run has ended; the exit code follows its outcome
    #[arg(long, short)]
    wait: bool,
    /// Stop waiting after this long, like 10m; the run goes on
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "wait")]
    timeout: Option<Duration>,
}

pub fn trigger(args: &TriggerArgs, context: &Context) -> Result<(), Failure> {
    if args.run_id.as_deref() == Some("latest") {
        return Err(Failure::Usage(
            "a run cannot be called latest: that word means the one created last".into(),
        ));
    }
    let body = args.body()?;
    let client = context.client()?;
    let key = args.idempotency_key.as_deref().map(|key| ("Idempotency-Key", key));
    let run = client.send("POST", &Path::runs(&args.dag), Some(&body), key.as_slice())?;
    let run_id = screen::text(&run, "dag_run_id")
        .ok_or_else(|| Failure::Failed(format!("the server's answer names no run: {run}")))?;
    match args.wait {
        true => wait::until_ended(&client, &args.dag, &run_id, args.timeout, context),
        false => tell(context, &run, &triggered(&args.dag, &run_id)),
    }
}

fn triggered(dag: &str, run_id: &str) -> String {
    format!("run {run_id} of {dag} is triggered\n  look at it: tenure run show {dag} {run_id}")
}

impl TriggerArgs {
    fn body(&self) -> Result<Value, Failure> {
        let mut conf = self.conf.as_deref().map_or_else(|| Ok(Map::new()), conf)?;
        conf.extend(self.params.iter().cloned());
        let mut body = json!({ "logical_date": self.logical_date, "conf": conf });
        for (key, value) in [("dag_run_id", &self.run_id), ("note", &self.note)] {
            if let Some(value) = value {
                body[key] = json!(value);
            }
        }
        Ok(body)
    }
}

fn conf(text: &str) -> Result<Map<String, Value>, Failure> {
    let (origin, text) = match text.strip_prefix('@') {
        None => ("--conf".to_owned(), text.to_owned()),
        Some("-") => ("stdin".to_owned(), std::io::read_to_string(std::io::stdin())?),
        Some(file) => {
            let unreadable = |error| Failure::Usage(format!("--conf @{file}: {error}"));
            (file.to_owned(), std::fs::read_to_string(file).map_err(unreadable)?)
        }
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(conf)) => Ok(conf),
        Ok(_) => {
            Err(Failure::Usage(format!("{origin} must be a JSON object, like '{{\"region\": \"eu\"}}'")))
        }
        Err(error) => Err(Failure::Usage(format!("{origin} is not JSON: {error}"))),
    }
}

fn param(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((name.to_owned(), value))
        }
        _ => Err("write it as NAME=VALUE".into()),
    }
}

/// An instant; a date or a time without a zone is meant in UTC, as the server's own run ids are.
fn moment(text: &str) -> Result<Timestamp, String> {
    let local = || text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    text.parse()
        .ok()
        .or_else(|| local().map(|zoned| zoned.timestamp()))
        .ok_or_else(|| "write it like 2026-01-01 or 2026-01-01T05:00:00Z".into())
}

#[cfg(test)]
mod tests;
