//! `tenure lease watch`: server-sent events as lines. Goes on over breaks, and tells only what is news.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_clock::{Clock, SystemClock};

use super::super::Context;
use super::super::client::Client;
use super::super::failure::Failure;
use super::super::screen::{self, Screen, text};
use super::{epoch_of, state_of, under};

/// The server gives a sign of life every 5 s; three in a row missing is a dead connection.
const SILENCE: Duration = Duration::from_secs(16);
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(500);

pub fn watch(beginning: Option<&str>, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let path = under("/api/leases/watch", beginning);
    let mut news = News::default();
    let mut stream = client.stream(&path)?; // a first failure is told; later ones are waited out
    loop {
        let lines = read_in_background(stream);
        let mut event = Event::default();
        while let Ok(line) = lines.recv_timeout(SILENCE) {
            if let Some((name, data)) = event.line(&line) {
                for lease in news.of(&name, data) {
                    print(context, &name, &lease)?;
                }
            }
        }
        eprintln!("the connection ended; connecting again");
        stream = again(&client, &path)?;
    }
}

fn again(client: &Client, path: &super::Path) -> Result<Box<dyn BufRead + Send>, Failure> {
    loop {
        std::thread::sleep(CONNECT_AGAIN_AFTER);
        match client.stream(path) {
            Err(Failure::Unreachable(_) | Failure::Refused { status: 500.., .. }) => {}
            answer => return answer,
        }
    }
}

/// A read cannot be given up, so it happens on a thread of its own, which ends with the connection.
fn read_in_background(stream: Box<dyn BufRead + Send>) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stream.lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// An event as it comes in, line by line.
#[derive(Default)]
struct Event {
    name: String,
    data: String,
}

impl Event {
    /// The event that an empty line completes. Comments are signs of life.
    fn line(&mut self, line: &str) -> Option<(String, Value)> {
        if let Some(name) = line.strip_prefix("event:") {
            self.name = name.trim().to_owned();
        } else if let Some(data) = line.strip_prefix("data:") {
            self.data.push_str(data.trim_start());
        } else if line.is_empty() && !self.data.is_empty() {
            let Self { name, data } = std::mem::take(self);
            return Some((name, serde_json::from_str(&data).unwrap_or(Value::String(data))));
        }
        None
    }
}

/// What has been told of each scope, so that a new connection repeats nothing.
#[derive(Default)]
struct News {
    told: BTreeMap<String, Value>,
    /// Those that are there, while a connection counts them up.
    current: BTreeMap<String, Value>,
}

impl News {
    /// The leases to print for this event.
    fn of(&mut self, event: &str, data: Value) -> Vec<Value> {
        match event {
            "current" => {
                let scope = text(&data, "scope").unwrap_or_default();
                self.current.insert(scope.clone(), data.clone());
                if self.is_news(&scope, &data) { vec![data] } else { vec![] }
            }
            // Nothing more to say of those that have gone meanwhile: a record without a holder is no news.
            "synced" => {
                self.told = std::mem::take(&mut self.current);
                vec![]
            }
            "unavailable" => vec![data],
            _ => {
                self.told.insert(text(&data, "scope").unwrap_or_default(), data.clone());
                vec![data]
            }
        }
    }

    fn is_news(&self, scope: &str, lease: &Value) -> bool {
        self.told.get(scope).is_none_or(|old| {
            (&old["term"], &old["epoch"], state_of(old)) != (&lease["term"], &lease["epoch"], state_of(lease))
        })
    }
}

fn print(context: &Context, event: &str, lease: &Value) -> Result<(), Failure> {
    match context.screen.is_json() {
        true => screen::say(&json!({ "event": event, "lease": lease }).to_string()), // one line each: a stream
        false => {
            screen::say(&line(&Screen { now: SystemClock.now(), ..context.screen.clone() }, event, lease))
        }
    }
}

fn line(screen: &Screen, event: &str, lease: &Value) -> String {
    let when = screen.shown(screen.now);
    if event == "unavailable" {
        return format!("{when}  unavailable  {}", text(lease, "detail").unwrap_or_default());
    }
    let word = if event == "current" { state_of(lease) } else { event };
    let scope = text(lease, "scope").unwrap_or_default();
    let holder = text(lease, "holder").unwrap_or_default();
    let epoch = epoch_of(lease).unwrap_or_default();
    let details = match word {
        "held" | "acquired" => {
            let succession = text(lease, "succession").unwrap_or_default();
            format!("{holder} holds it at {epoch} (succession: {succession})")
        }
        _ => format!("{holder} held it at {epoch}"),
    };
    format!("{when}  {}  {scope}  {details}", screen.painted(&format!("{word:<8}")))
}

#[cfg(test)]
mod tests {
    use super::super::super::screen::tests::plain;
    use super::*;

    fn events(text: &str) -> Vec<(String, Value)> {
        let mut event = Event::default();
        text.lines().filter_map(|line| event.line(line)).collect()
    }

    #[test]
    fn events_are_read_between_signs_of_life() {
        let read =
            events(":\n\nevent: current\ndata: {\"a\":1}\n\n:\n\nevent: synced\ndata: {\"leases\":1}\n\n");
        assert_eq!(read, [("current".into(), json!({"a": 1})), ("synced".into(), json!({"leases": 1}))]);
    }

    fn lease(epoch: u32, held: bool) -> Value {
        json!({ "scope": "a/b", "term": format!("t{epoch}"), "epoch": epoch, "held": held, "released": !held,
                "holder": "host:1", "succession": "first" })
    }

    #[test]
    fn a_new_connection_repeats_nothing_and_tells_what_was_missed() {
        let mut news = News::default();
        assert_eq!(news.of("current", lease(1, true)).len(), 1);
        assert!(news.of("synced", json!({})).is_empty());
        assert!(news.of("current", lease(1, true)).is_empty());
        assert!(news.of("synced", json!({})).is_empty());
        assert_eq!(news.of("released", lease(1, false)).len(), 1);
        assert_eq!(news.of("current", lease(2, true)).len(), 1);
    }

    #[test]
    fn a_change_is_one_line() {
        expect_test::expect!["2026-07-01 12:00:00  acquired  a/b  host:1 holds it at e1 (succession: first)"]
            .assert_eq(&line(&plain(), "acquired", &lease(1, true)));
        expect_test::expect!["2026-07-01 12:00:00  released  a/b  host:1 held it at e1"].assert_eq(&line(
            &plain(),
            "current",
            &lease(1, false),
        ));
    }
}
