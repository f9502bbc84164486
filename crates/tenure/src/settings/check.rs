//! From what was written to what is meant, and whether it makes sense.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use tenure_lease::{LossPolicy, NOT_THE_MASTER};
use tenure_model::duration;
use tenure_scheduler::{Policy, SignalRules, Strategy, Weights};
use tenure_store::LONGEST_JOIN_TOKEN;
use tenure_store_postgres::LONGEST_STATEMENT;

use super::file::Entry;
use super::knobs::{KNOBS, Knob};
use super::masks::masked;
use super::{Edition, Given, LeaseBackend, Problems, Profile, Settings, Shown, Source, TlsFiles};
use crate::epochs::Epochs;

/// How often an agent speaks at the least.
pub const AGENTS_SPEAK_EVERY: Duration = Duration::from_secs(5);
/// One heartbeat may be lost, one may be late; what is silent for longer than this is silent.
const HEARTBEATS: u32 = 3;
/// Each is a lease of its own; beyond this, renewing them is all that a replica does.
const MOST_SHARDS: u16 = 1024;
const MOST_CONNECTIONS: usize = 1000;
const MOST_DISPATCH: usize = 1_000_000;
const MOST_WEIGHT: u16 = 1_000;
const MOST_KEPT_NODES: usize = 1_000_000;
/// Agents renew when half of it has passed, and need time for that.
const SHORTEST_IDENTITY: Duration = Duration::from_secs(10);
/// What is known of removed nodes is kept for as long.
const LONGEST_IDENTITY: Duration = LONGEST_JOIN_TOKEN;
const SHORTEST_TICK: Duration = Duration::from_millis(10);

pub fn settle(edition: Edition, given: &Given, file: Vec<Entry>) -> Result<Settings, Problems> {
    let mut file: BTreeMap<&str, (String, Source)> =
        file.into_iter().map(|(key, value, source)| (key, (value, source))).collect();
    let mut said = |key: &str| given.get(key).or_else(|| file.remove(key));

    let asked = said("profile");
    let url = said("database_url");
    let fallback = if edition == Edition::Server || url.is_some() { Profile::Pro } else { Profile::Lite };
    let profile = asked.as_ref().and_then(|(text, _)| self::profile(text).ok()).unwrap_or(fallback);

    let mut values = BTreeMap::new();
    for knob in KNOBS {
        let own = match knob.key {
            "profile" => asked.clone().or(Some((profile.name().into(), Source::Default(profile)))),
            "database_url" => url.clone(),
            key => said(key),
        };
        let default = || Some((knob.default.of(edition, profile)?.to_owned(), Source::Default(profile)));
        if let Some(value) = own.or_else(default) {
            values.insert(knob.key, value);
        }
    }
    Desk { edition, profile, values, problems: vec![] }.settings()
}

struct Desk {
    edition: Edition,
    profile: Profile,
    values: BTreeMap<&'static str, (String, Source)>,
    problems: Vec<String>,
}

impl Desk {
    fn settings(mut self) -> Result<Settings, Problems> {
        let settings = Settings {
            profile: self.take("profile", profile).unwrap_or(self.profile),
            listen: self.need("listen", |text| {
                text.parse().map_err(|_| "is no address with a port, like 127.0.0.1:8080".into())
            }),
            advertise: self.take("advertise", url),
            tls: self.tls(),
            identity_lifetime: self.need("identity_lifetime", some_time),
            data: self.need("data", folder),
            logs: self.take("logs", folder),
            dags: self.take("dags", folder),
            database_url: self.take("database_url", postgres),
            database_connections: self.need("database_connections", |text| count(text, MOST_CONNECTIONS)),
            statement_timeout: self.need("statement_timeout", some_time),
            epochs: self.need("epochs", epochs),
            shards: self.need("shards", |text| count(text, MOST_SHARDS)),
            shards_asked: !matches!(self.values["shards"].1, Source::Default(_)),
            leases: self.need("leases", leases),
            lease_duration: self.need("lease_duration", some_time),
            on_loss: self.need("on_loss", on_loss),
            tick: self.need("tick", some_time),
            claim_timeout: self.need("claim_timeout", some_time),
            heartbeat_threshold: self.need("heartbeat_threshold", some_time),
            orphan_threshold: self.need("orphan_threshold", some_time),
            dispatch_workers: self.need("dispatch_workers", |text| count(text, MOST_DISPATCH)),
            dispatch_queue: self.need("dispatch_queue", |text| count(text, MOST_DISPATCH)),
            placement: Policy {
                strategy: self.need("placement_strategy", strategy),
                weights: Weights {
                    load: self.need("placement_load", weight),
                    preferred: self.need("placement_preferred", weight),
                    spread: self.need("placement_spread", weight),
                    failed_here: self.need("placement_failed_here", weight),
                    failed_lately: self.need("placement_failed_lately", weight),
                    locality: self.need("placement_locality", weight),
                },
            },
            preemption: self.need("placement_preemption", on_or_off),
            webhook: self.take("signals_webhook", webhook),
            signals: SignalRules {
                shortage_after: self.need("signals_shortage_after", some_time),
                idle_after: self.need("signals_idle_after", some_time),
                keep_nodes: self.need("signals_keep_nodes", kept_nodes),
                interval: self.need("signals_interval", some_time),
            },
            keep_runs: self.need("keep_runs", keep),
            keep_audit: self.need("keep_audit", keep),
            shown: self.shown(),
        };
        // What cannot be read has been replaced by a default: comparing it would blame the innocent.
        if self.problems.is_empty() {
            self.weigh(&settings);
        }
        if self.problems.is_empty() { Ok(settings) } else { Err(Problems(self.problems)) }
    }

    /// What makes no sense together.
    fn weigh(&mut self, settings: &Settings) {
        if settings.tick < SHORTEST_TICK {
            self.blame("tick", format!("is shorter than {}", time(SHORTEST_TICK)));
        }
        if settings.statement_timeout > LONGEST_STATEMENT {
            let longest = time(LONGEST_STATEMENT);
            self.blame(
                "statement_timeout",
                format!("is longer than {longest}, and no answer is waited for longer"),
            );
        }
        if settings.claim_timeout < settings.tick {
            self.blame_either(
                "claim_timeout",
                "tick",
                "a task that nobody claims is found by a tick, so claim_timeout cannot be shorter than tick",
            );
        }
        if settings.orphan_threshold < settings.tick {
            self.blame_either(
                "orphan_threshold",
                "tick",
                "orphaned runs are found by a tick, so orphan_threshold cannot be shorter than tick",
            );
        }
        let silence = AGENTS_SPEAK_EVERY * HEARTBEATS;
        if settings.heartbeat_threshold <= silence {
            let (every, silence) = (time(AGENTS_SPEAK_EVERY), time(silence));
            self.blame(
                "heartbeat_threshold",
                format!(
                    "must be longer than {silence}: agents speak every {every}, one heartbeat may be lost and one \
                     late, and the tasks of an agent that is only slow must not be given up"
                ),
            );
        }
        if !(SHORTEST_IDENTITY..=LONGEST_IDENTITY).contains(&settings.identity_lifetime) {
            let (shortest, longest) = (time(SHORTEST_IDENTITY), time(LONGEST_IDENTITY));
            self.blame("identity_lifetime", format!("is not between {shortest} and {longest}"));
        }
        let in_clear = settings.advertise.as_ref().is_some_and(|url| url.starts_with("http://"));
        if settings.tls.is_some() && in_clear {
            self.blame_either(
                "advertise",
                "tls_cert",
                "what is served with a certificate is reached at https://, and at no other address",
            );
        }
        if self.edition == Edition::Server && settings.database_url.is_none() {
            self.problems.push(
                "a server needs a database that its replicas share: name one with --database-url \
                 postgres://user:password@host/database (on one machine, without a database server: tenure up)"
                    .into(),
            );
        }
    }

    /// Both files, or neither.
    fn tls(&mut self) -> Option<TlsFiles> {
        match (self.take("tls_cert", file), self.take("tls_key", file)) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            (Some(_), None) => {
                self.blame("tls_cert", "needs its private key: name it with --tls-key".into());
                None
            }
            (None, Some(_)) => {
                self.blame("tls_key", "needs its certificate: name it with --tls-cert".into());
                None
            }
        }
    }

    /// A value that has a default. Where it cannot be read, the default stands in, and there is a problem.
    fn need<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Result<T, String>) -> T {
        self.take(key, &read).unwrap_or_else(|| {
            let default = Knob::find(key).and_then(|knob| knob.default.of(self.edition, self.profile));
            let default = default.expect("what is needed has a default");
            read(default).unwrap_or_else(|why| panic!("the default of {key} is {default:?}, which {why}"))
        })
    }

    fn take<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let (text, _) = self.values.get(key)?;
        match read(text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.blame(key, why);
                None
            }
        }
    }

    fn blame(&mut self, key: &'static str, why: String) {
        let (text, source) = &self.values[key];
        self.problems.push(format!("{source}: {key} = \"{}\" {why}", masked(key, text)));
    }

    /// Two settings do not go together: whichever was set by somebody is named first.
    fn blame_either(&mut self, key: &'static str, other: &'static str, why: &str) {
        let is_default = |key: &str| matches!(self.values[key].1, Source::Default(_));
        let (first, second) = if is_default(key) { (other, key) } else { (key, other) };
        let told = |key: &'static str| {
            let (text, source) = &self.values[key];
            (format!("{key} = \"{text}\""), source.to_string())
        };
        let ((first, at), (second, also)) = (told(first), told(second));
        self.problems.push(format!("{at}: {first} does not go with {second} ({also}): {why}"));
    }

    fn shown(&self) -> Vec<Shown> {
        let one = |knob: &'static Knob| {
            let known = self.values.get(knob.key);
            let source = known.map_or(Source::Default(self.profile), |(_, source)| source.clone());
            Shown { key: knob.key, value: known.map(|(text, _)| masked(knob.key, text)), source }
        };
        KNOBS.iter().map(one).collect()
    }
}

fn time(duration: Duration) -> String {
    duration::format(duration)
}

fn profile(text: &str) -> Result<Profile, String> {
    match text {
        "lite" => Ok(Profile::Lite),
        "pro" => Ok(Profile::Pro),
        _ => Err("is neither lite nor pro".into()),
    }
}

fn folder(text: &str) -> Result<std::path::PathBuf, String> {
    if text.is_empty() { Err("is no folder".into()) } else { Ok(text.into()) }
}

fn file(text: &str) -> Result<std::path::PathBuf, String> {
    if text.is_empty() { Err("is no file".into()) } else { Ok(text.into()) }
}

fn some_time(text: &str) -> Result<Duration, String> {
    let parsed = duration::parse(text).map_err(|_| NOT_A_TIME.to_owned())?;
    if parsed.is_zero() { Err("must be longer than nothing".into()) } else { Ok(parsed) }
}

const NOT_A_TIME: &str = "is no duration (write it like 500ms, 30s, 10m, 1h30m or 2d)";

fn keep(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err("would delete everything at once; to keep everything, write off".into()),
        Ok(time) => Ok(Some(time)),
        Err(_) => Err(format!("{NOT_A_TIME} and is not \"off\"")),
    }
}

fn count<T: FromStr + PartialOrd + From<u8> + Copy + Display>(text: &str, most: T) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(number) if number >= T::from(1) && number <= most => Ok(number),
        _ => Err(format!("is not a whole number from 1 to {most}")),
    }
}

fn url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host.map(|host| host.trim_end_matches('/')) {
        Some(host) if !host.is_empty() && !host.contains(['/', ' ', '?', '#']) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err("is no address that others could use, like http://10.0.0.7:8080".into()),
    }
}

fn postgres(text: &str) -> Result<String, String> {
    match text.starts_with("postgres://") || text.starts_with("postgresql://") {
        true => Ok(text.to_owned()),
        false => {
            Err("is no Postgres database (postgres://user:password@host/database); on SQLite there is only \
                      one process: tenure up, without --database-url"
                .into())
        }
    }
}

fn epochs(text: &str) -> Result<Epochs, String> {
    clap::ValueEnum::from_str(text, false).map_err(|_| "is neither count nor clock".into())
}

fn leases(text: &str) -> Result<LeaseBackend, String> {
    match text.split_once("://").map_or(text, |(scheme, _)| scheme) {
        "postgres" if text == "postgres" => Ok(LeaseBackend::Database),
        "etcd" | "etcds" => {
            text.parse().map(LeaseBackend::Etcd).map_err(|error| format!("is wrong: {error}"))
        }
        _ => {
            Err("is neither postgres (the state's own database) nor etcd://host:port[,host:port][/prefix]"
                .into())
        }
    }
}

fn strategy(text: &str) -> Result<Strategy, String> {
    match text {
        "spread" => Ok(Strategy::Spread),
        "pack" => Ok(Strategy::Pack),
        _ => Err("is neither spread nor pack".into()),
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("is neither on nor off".into()),
    }
}

/// Nothing switches a part of the score off.
fn weight(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(weight) if weight <= MOST_WEIGHT => Ok(weight),
        _ => Err(format!("is not a whole number from 0 to {MOST_WEIGHT}")),
    }
}

/// Unlike other addresses of ours it may have a path and a query, which are often its secret.
fn webhook(text: &str) -> Result<String, String> {
    let known = text.starts_with("http://") || text.starts_with("https://");
    let uri: Option<ureq::http::Uri> = text.parse().ok().filter(|_| known);
    match uri.and_then(|uri| uri.host().map(|host| !host.is_empty())) {
        Some(true) => Ok(text.to_owned()),
        _ => Err("is no address that something could be sent to, like https://scaler.internal/tenure".into()),
    }
}

/// With none kept, every node may be told to be idle.
fn kept_nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count <= MOST_KEPT_NODES => Ok(count),
        _ => Err(format!("is not a whole number from 0 to {MOST_KEPT_NODES}")),
    }
}

fn on_loss(text: &str) -> Result<LossPolicy, String> {
    match text {
        "demote" => Ok(LossPolicy::Demote),
        "exit" => Ok(LossPolicy::Exit(NOT_THE_MASTER)),
        _ => Err("is neither demote nor exit".into()),
    }
}
