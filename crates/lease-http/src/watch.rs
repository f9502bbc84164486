//! Hints from the server's event stream, read on a thread of its own: a blocked read must not keep a runtime from
//! ending. The stream breaks sooner or later; it is taken up again, from another server if there is one, and every
//! beginning says «look at everything», because what happened meanwhile is not told.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_clock::Entropy;
use tenure_lease::Hint;
use tokio::sync::broadcast;
use ureq::Agent;

use crate::calls::{Servers, near};
use crate::wire::OfScope;

/// The server gives a sign of life every 5 s; three in a row missing is a dead connection.
const SILENT_FOR: Duration = Duration::from_secs(16);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The server looks at all leases before it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A lease with the longest note, every character of it escaped.
const LONGEST_LINE: u64 = 64 * 1024;

/// The thread that reads. It ends when this is dropped.
#[derive(Debug)]
pub struct Watching {
    ending: Arc<Ending>,
    agent: Agent,
}

impl Watching {
    pub fn start(servers: Arc<Servers>, hints: broadcast::Sender<Hint>, entropy: Entropy) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(servers.tls().clone())
            .timeout_resolve(Some(CONNECT_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(ANSWER_WITHIN))
            .timeout_per_read(Some(SILENT_FOR));
        if near(servers.addresses()) {
            config = config.proxy(None);
        }
        let agent = config.build().new_agent();
        let ending = Arc::new(Ending::default());
        let reader = Reader {
            // The servers end with their leases, not with this thread.
            servers: Arc::downgrade(&servers),
            agent: agent.clone(),
            hints,
            entropy,
            ending: Arc::clone(&ending),
        };
        let started = std::thread::Builder::new().name("lease-hints".into()).spawn(move || reader.run());
        if let Err(error) = started {
            // Hints only make things faster.
            tracing::warn!(%error, "no thread to watch the leases with: changes are noticed by looking");
        }
        Self { ending, agent }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.ending.begin();
        self.agent.clone().shutdown(); // a read in progress ends at once
    }
}

#[derive(Debug, Default)]
struct Ending {
    begun: Mutex<bool>,
    wake: Condvar,
}

impl Ending {
    fn begin(&self) {
        *self.flag() = true;
        self.wake.notify_all();
    }

    fn has_begun(&self) -> bool {
        *self.flag()
    }

    fn pause(&self, longest: Duration) {
        let waiting = self.wake.wait_timeout_while(self.flag(), longest, |begun| !*begun);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    fn flag(&self) -> MutexGuard<'_, bool> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Reader {
    servers: Weak<Servers>,
    agent: Agent,
    hints: broadcast::Sender<Hint>,
    entropy: Entropy,
    ending: Arc<Ending>,
}

impl Reader {
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        for turn in 0.. {
            let Some(request) = self.request(turn) else { return };
            let mut synced = false;
            let ended = self.follow(request, &mut synced);
            if self.ending.has_begun() {
                return;
            }
            pause = if synced { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            match ended {
                Ok(()) => tracing::debug!("the watch of the leases ended; it is taken up again"),
                Err(error) => tracing::debug!(%error, "the watch of the leases broke; it is taken up again"),
            }
            // Spread, so that all who lost one server do not come back to it at once.
            self.ending.pause(pause / 2 + self.entropy.jitter(pause / 2));
        }
    }

    /// To the server whose turn it is. `None`: nobody needs hints any more.
    fn request(&self, turn: usize) -> Option<ureq::RequestBuilder<ureq::typestate::WithoutBody>> {
        let servers = self.servers.upgrade()?;
        let addresses = servers.addresses();
        let mut request = self.agent.get(format!("{}/api/leases/watch", addresses[turn % addresses.len()]));
        if let Some(authorization) = servers.authorization() {
            request = request.header("Authorization", authorization);
        }
        Some(request)
    }

    fn follow(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
        synced: &mut bool,
    ) -> Result<(), ureq::Error> {
        let answer = request.call()?;
        if answer.status() != 200 {
            return Err(ureq::Error::StatusCode(answer.status().as_u16()));
        }
        let mut lines = BufReader::new(answer.into_body().into_reader());
        let (mut line, mut event) = (String::new(), String::new());
        loop {
            line.clear();
            let length = lines.by_ref().take(LONGEST_LINE).read_line(&mut line).map_err(ureq::Error::Io)?;
            if length == 0 || self.ending.has_begun() {
                return Ok(());
            }
            let text = line.trim_end();
            if let Some(name) = text.strip_prefix("event:") {
                event = name.trim().to_owned();
            } else if let Some(data) = text.strip_prefix("data:") {
                if let Some(hint) = hint(&event, data) {
                    // Nobody may be listening.
                    let _ = self.hints.send(hint);
                }
                *synced |= event == "synced";
            }
        }
    }
}

fn hint(event: &str, data: &str) -> Option<Hint> {
    match event {
        // What there is comes one by one, and then: look.
        "current" => None,
        "synced" => Some(Hint::Resync),
        "unavailable" => None,
        // A change, by whatever name.
        _ => match serde_json::from_str::<OfScope>(data) {
            Ok(of) => Some(Hint::Changed(of.scope)),
            Err(_) => Some(Hint::Resync),
        },
    }
}
