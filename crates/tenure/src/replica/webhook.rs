//! Sends signals to whoever scales the cluster.
//!
//! A thread of its own does the sending: the controller never waits for it, and a process that ends does not either.
//! Bounded in every way: so many batches wait, each attempt takes so long, and there are so many of them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tenure_clock::Entropy;
use tenure_scheduler::{Signal, SignalListener};
use tenure_tls::Trust;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::cli::is_loopback;
use crate::settings::without_secrets;

/// Batches that wait for the one that is being sent.
const QUEUE: usize = 16;
/// For one attempt, from the first packet to the last.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 5;
/// Before the second attempt; doubled before each further one: 15 s and their jitter in all.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

type Posts = Family<Outcome, Counter>;

pub struct Webhook {
    queue: SyncSender<Value>,
    posts: Posts,
    /// This process, as others know it.
    replica: String,
    /// Without its secrets.
    shown: String,
}

impl Webhook {
    pub fn start(url: &str, replica: &str, entropy: &Entropy, registry: &mut Registry) -> Result<Self> {
        Self::with_pause(url, replica, entropy, registry, FIRST_PAUSE)
    }

    fn with_pause(
        url: &str,
        replica: &str,
        entropy: &Entropy,
        registry: &mut Registry,
        first_pause: Duration,
    ) -> Result<Self> {
        let posts = Posts::default();
        registry.register("tenure_webhook_posts", "POSTs of signals, by what became of them", posts.clone());
        let (queue, letters) = sync_channel(QUEUE);
        let (replica, shown) = (replica.to_owned(), without_secrets(url));
        let sender = Sender {
            agent: agent(url)?,
            url: url.to_owned(),
            shown: shown.clone(),
            entropy: entropy.clone(),
            posts: posts.clone(),
            first_pause,
        };
        std::thread::Builder::new()
            .name("webhook".into())
            .spawn(move || sender.send_all(&letters))
            .context("the thread that sends signals cannot be started")?;
        Ok(Self { queue, posts, replica, shown })
    }
}

impl SignalListener for Webhook {
    fn hear(&self, at: Timestamp, signals: &[Signal]) {
        let letter = json!({ "at": at, "replica": self.replica, "signals": signals });
        if self.queue.try_send(letter).is_err() {
            count(&self.posts, "dropped");
            let url = &self.shown;
            tracing::warn!(url, "signals are not sent: too many wait for the webhook's answer");
        }
    }
}

fn agent(url: &str) -> Result<Agent> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(ANSWER_WITHIN))
        .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")));
    if url.starts_with("https://") {
        let trust = Trust::load(None)?;
        let known = trust.authorities().iter().map(|known| Certificate::from_der(known).to_owned());
        let known: Vec<Certificate<'static>> = known.collect();
        config =
            config.tls_config(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&known)).build());
    }
    if is_loopback(url) {
        config = config.proxy(None); // a proxy cannot reach what listens on this machine only
    }
    Ok(config.build().new_agent())
}

fn count(posts: &Posts, outcome: &'static str) {
    posts.get_or_create(&Outcome { outcome }).inc();
}

struct Sender {
    agent: Agent,
    url: String,
    shown: String,
    entropy: Entropy,
    posts: Posts,
    first_pause: Duration,
}

/// Why an attempt came to nothing.
enum Refused {
    /// It may be otherwise later.
    ForNow(String),
    ForGood(String),
}

impl Sender {
    /// Until nobody can say anything any more.
    fn send_all(&self, letters: &Receiver<Value>) {
        for letter in letters {
            match self.send(&letter) {
                Ok(()) => count(&self.posts, "delivered"),
                Err(why) => {
                    count(&self.posts, "failed");
                    tracing::warn!(url = self.shown, why, "signals were not delivered to the webhook");
                }
            }
        }
    }

    fn send(&self, letter: &Value) -> Result<(), String> {
        let mut pause = self.first_pause;
        for attempt in 1.. {
            match self.attempt(letter) {
                Ok(()) => return Ok(()),
                Err(Refused::ForGood(why)) => return Err(why),
                Err(Refused::ForNow(why)) if attempt == ATTEMPTS => {
                    return Err(format!("{why}, {ATTEMPTS} times"));
                }
                Err(Refused::ForNow(_)) => {}
            }
            std::thread::sleep(pause + self.entropy.jitter(pause / 4));
            pause *= 2;
        }
        unreachable!("the last attempt returns")
    }

    fn attempt(&self, letter: &Value) -> Result<(), Refused> {
        // An error of the transport may name the whole URL: only its kind is told.
        let answer = self.agent.post(&self.url).send_json(letter).map_err(|error| match error {
            ureq::Error::BadUri(_) => Refused::ForGood("its address cannot be used".into()),
            ureq::Error::Timeout(_) => Refused::ForNow(format!("no answer within {ANSWER_WITHIN:?}")),
            ureq::Error::Io(error) => Refused::ForNow(error.kind().to_string()),
            ureq::Error::HostNotFound => Refused::ForNow("its host is not known".into()),
            other => Refused::ForNow(other.to_string().replace(&self.url, &self.shown)),
        })?;
        let status = answer.status();
        let why = format!("it answered {status}");
        match status.as_u16() {
            200..=299 => Ok(()),
            408 | 429 | 500..=599 => Err(Refused::ForNow(why)),
            _ => Err(Refused::ForGood(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a webhook that stumbles gets its signals, one that refuses them is not pestered, and nobody waits for it.

    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Answers with these codes, one connection after the other, and passes on what it was sent.
    fn hook(codes: &'static [u16]) -> (String, Receiver<Value>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/T0P/s3cret", listener.local_addr().unwrap());
        let (heard, hearing) = mpsc::channel();
        std::thread::spawn(move || {
            for code in codes {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream);
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let answer = format!("HTTP/1.1 {code} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
                let _ = heard.send(serde_json::from_slice(&body).unwrap());
            }
        });
        (url, hearing)
    }

    fn webhook(url: &str) -> Webhook {
        let entropy = Entropy::seeded(1);
        Webhook::with_pause(url, "r1", &entropy, &mut Registry::default(), Duration::from_millis(1)).unwrap()
    }

    fn hear(webhook: &Webhook, shape: &str) {
        let at = "2026-07-01T12:00:00Z".parse().unwrap();
        webhook.hear(at, &[Signal::CapacityShortageOver { shape: shape.into() }]);
    }

    fn wait_count(webhook: &Webhook, outcome: &'static str, wanted: u64) {
        let reached = || webhook.posts.get_or_create(&Outcome { outcome }).get() == wanted;
        let mut left = PATIENCE.as_millis();
        while !reached() && left > 0 {
            std::thread::sleep(Duration::from_millis(1));
            left -= 1;
        }
        assert!(reached(), "{outcome} is not {wanted}");
    }

    #[test]
    fn a_webhook_that_stumbles_is_tried_again_with_the_same_words() {
        let (url, heard) = hook(&[500, 429, 204]);
        let webhook = webhook(&url);
        hear(&webhook, "gpu 1");
        wait_count(&webhook, "delivered", 1);
        let letters: Vec<Value> = (0..3).map(|_| heard.recv_timeout(PATIENCE).unwrap()).collect();
        let expected = json!({
            "at": "2026-07-01T12:00:00Z", "replica": "r1",
            "signals": [{ "type": "capacity_shortage_over", "shape": "gpu 1" }],
        });
        assert!(letters.iter().all(|letter| *letter == expected), "{letters:?}");
    }

    #[test]
    fn a_webhook_that_refuses_is_not_asked_again_and_one_that_is_away_not_for_ever() {
        let (url, heard) = hook(&[404, 200]);
        let refusing = webhook(&url);
        hear(&refusing, "one");
        wait_count(&refusing, "failed", 1);
        hear(&refusing, "two");
        wait_count(&refusing, "delivered", 1);
        let shapes: Vec<Value> =
            (0..2).map(|_| heard.recv_timeout(PATIENCE).unwrap()["signals"][0]["shape"].take()).collect();
        assert_eq!(shapes, ["one", "two"]);

        let nowhere = format!("http://127.0.0.1:{}/s3cret", tenure_testkit::free_port());
        let away = webhook(&nowhere);
        hear(&away, "three");
        wait_count(&away, "failed", 1);
    }

    #[test]
    fn what_finds_too_many_waiting_is_dropped_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let webhook = webhook(&format!("http://{}/", silent.local_addr().unwrap()));
        // One is being sent, as many as fit wait, and these do not fit.
        (0..QUEUE + 3).for_each(|number| hear(&webhook, &number.to_string()));
        let dropped = webhook.posts.get_or_create(&Outcome { outcome: "dropped" }).get();
        assert!((2..=3).contains(&dropped), "{dropped}");
    }

    #[test]
    fn a_failure_is_told_without_the_secrets_of_the_address() {
        let url = format!("http://127.0.0.1:{}/T0P/s3cret?key=s3cret", tenure_testkit::free_port());
        let posts = Posts::default();
        let sender = Sender {
            agent: agent(&url).unwrap(),
            shown: without_secrets(&url),
            url,
            entropy: Entropy::seeded(1),
            posts,
            first_pause: Duration::from_millis(1),
        };
        let why = sender.send(&json!({})).unwrap_err();
        assert!(why.contains("refused") && why.contains("5 times") && !why.contains("s3cret"), "{why}");
        assert!(!sender.shown.contains("s3cret"), "{}", sender.shown);
    }
}
