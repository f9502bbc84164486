//! Requests and their fate: answered, certainly not carried out, or unknown.
//!
//! Calls block a thread of tokio's pool for at most their budget. A caller that gives up lets the request in flight
//! go on, because it cannot be called back, but no further server is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_clock::Clock;
use tenure_lease::{BoxError, LeaseError};
use ureq::http::{Request, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body, Timeout};

use crate::wire::Refusal;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// For all servers together, where no lease says how long it may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Below this, a busy machine would give up on a healthy server.
const SHORTEST_BUDGET: Duration = Duration::from_millis(200);
/// Below the idle timeout of the server (15 s), so that it rarely hangs up on a request.
const KEEP_IDLE_FOR: Duration = Duration::from_secs(10);
/// One elector has a renewal, an acquire or two and a listing under way.
const IDLE_CONNECTIONS: usize = 4;
/// A hundred thousand leases.
const LARGEST_ANSWER: u64 = 64 * 1024 * 1024;

/// An address that no server can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the address of a Tenure server: {reason}. Write it like http://host:8080")]
pub struct BadAddress {
    text: String,
    reason: String,
}

/// Servers over one database: whichever answers will do.
#[derive(Debug)]
pub struct Servers {
    addresses: Vec<String>,
    authorization: Option<String>,
    agent: Agent,
    tls: TlsConfig,
    clock: Arc<dyn Clock>,
    /// The one that answered last.
    preferred: AtomicUsize,
}

impl Drop for Servers {
    /// Nobody waits for what is still under way.
    fn drop(&mut self) {
        self.agent.clone().shutdown();
    }
}

impl Servers {
    /// Without `authorities`, those that are compiled in are trusted.
    pub fn new(
        addresses: &str,
        token: Option<&str>,
        authorities: Option<&[&[u8]]>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BadAddress> {
        let addresses = addresses.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
        let roots = authorities.map_or(RootCerts::WebPki, |known| {
            let known: Vec<_> = known.iter().map(|known| Certificate::from_der(known).to_owned()).collect();
            RootCerts::new_with_certs(&known)
        });
        let tls = TlsConfig::builder().root_certs(roots).build();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls.clone())
            .max_idle_age(KEEP_IDLE_FOR)
            .max_idle_connections(IDLE_CONNECTIONS * addresses.len())
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .user_agent(concat!("tenure-lease-http/", env!("CARGO_PKG_VERSION")));
        if near(&addresses) {
            config = config.proxy(None);
        }
        Ok(Self {
            addresses,
            authorization: token.map(|token| format!("Bearer {token}")),
            agent: config.build().new_agent(),
            tls,
            clock,
            preferred: AtomicUsize::new(0),
        })
    }

    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub fn tls(&self) -> &TlsConfig {
        &self.tls
    }

    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    pub async fn ask(self: &Arc<Self>, call: Call) -> Result<Reply, LeaseError> {
        let (servers, asked) = (Arc::clone(self), GivenUp::default());
        let given_up = Arc::clone(&asked.0);
        let asking = tokio::task::spawn_blocking(move || servers.ask_in_turn(&call, &given_up));
        // A panic in there may have come after the request had been sent.
        asking.await.unwrap_or_else(|error| Err(LeaseError::Ambiguous(error.into())))
    }

    fn ask_in_turn(&self, call: &Call, given_up: &AtomicBool) -> Result<Reply, LeaseError> {
        let begun = self.clock.boottime();
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.addresses.len());
        let (mut unknown, mut failure) = (false, BoxError::from("there was no time to ask"));
        for turn in 0..count {
            let left = call.budget.saturating_sub(self.clock.boottime().saturating_since(begun));
            if given_up.load(Ordering::Relaxed) || left.is_zero() {
                break;
            }
            let server = (first + turn) % count;
            let within = left / (count - turn) as u32;
            match self.ask_one(&self.addresses[server], call, within) {
                Ok((status, body)) => {
                    self.preferred.store(server, Ordering::Relaxed);
                    return Reply { status, body, write: call.body.is_some(), retold: unknown }.accepted();
                }
                Err(Miss { sent, error }) => {
                    // What changes nothing cannot have been carried out.
                    unknown |= sent && call.body.is_some();
                    failure = format!("{}: {error}", self.addresses[server]).into();
                }
            }
        }
        Err(match unknown {
            true => LeaseError::Ambiguous(failure),
            false => LeaseError::Unavailable(failure),
        })
    }

    fn ask_one(&self, server: &str, call: &Call, within: Duration) -> Result<(u16, Vec<u8>), Miss> {
        let mut request = Request::builder().uri(format!("{server}{}", call.path));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = match &call.body {
            Some(body) => {
                let request = request.method("POST").header("Content-Type", "application/json");
                self.run(request.body(body.as_str()), within)
            }
            None => self.run(request.body(()), within),
        };
        let mut answer = answer.map_err(Miss::of)?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec();
        let body = body.map_err(|error| Miss { sent: true, error: error.into() })?;
        match status {
            503 => Err(Miss { sent: false, error: detail(status, &body).into() }),
            // A gateway that gave up, or a server that failed half-way.
            500.. => Err(Miss { sent: true, error: detail(status, &body).into() }),
            _ => Ok((status, body)),
        }
    }
}

impl Servers {
    fn run(
        &self,
        request: Result<Request<impl AsSendBody>, ureq::http::Error>,
        within: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        // Or the whole would run out first, and it would not be known that nothing was sent.
        let connect_within = Some(CONNECT_WITHIN.min(within / 3));
        let request = self.agent.configure_request(request?).timeout_global(Some(within));
        let request = request.timeout_resolve(connect_within).timeout_connect(connect_within);
        self.agent.run(request.build())
    }
}

/// Set when the caller's future is dropped.
#[derive(Default)]
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn address(text: &str) -> Result<String, BadAddress> {
    let text = text.trim();
    let bad = |reason: &str| BadAddress { text: text.into(), reason: reason.into() };
    let uri: Uri = text.parse().map_err(|error: ureq::http::uri::InvalidUri| bad(&error.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(bad("it begins neither with http:// nor with https://")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(bad("it names no host"));
    }
    if uri.query().is_some() {
        return Err(bad("it holds a query"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// All on this machine: a proxy cannot reach what listens here only.
pub fn near(addresses: &[String]) -> bool {
    addresses.iter().all(|address| {
        let uri: Option<Uri> = address.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        host == "localhost" || host.starts_with("127.") || host == "[::1]"
    })
}

/// One request.
#[derive(Debug)]
pub struct Call {
    path: String,
    /// Only what changes something has one.
    body: Option<String>,
    budget: Duration,
}

impl Call {
    pub fn read(path: &str, query: &[(&str, &str)]) -> Self {
        let mut path = path.to_owned();
        for (number, (name, value)) in query.iter().enumerate() {
            path.push(if number == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            escape(value, &mut path);
        }
        Self { path, body: None, budget: ANSWER_WITHIN }
    }

    /// `lease_duration` bounds the budget: an answer after a third of it is of no use to a holder.
    pub fn write(path: &str, body: &impl Serialize, lease_duration: Option<Duration>) -> Self {
        let third = lease_duration.map_or(ANSWER_WITHIN, |duration| duration / 3);
        let body = serde_json::to_string(body).expect("plain data is JSON");
        Self { path: path.into(), body: Some(body), budget: third.clamp(SHORTEST_BUDGET, ANSWER_WITHIN) }
    }
}

/// Everything but what RFC 3986 calls unreserved.
fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => into.push(byte.into()),
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// No answer.
#[derive(Debug)]
struct Miss {
    /// The server may have carried it out.
    sent: bool,
    error: BoxError,
}

impl Miss {
    /// Certainly not sent: there was nothing to send it over. All else may have arrived.
    fn of(error: ureq::Error) -> Self {
        use std::io::ErrorKind;
        let unsent = match &error {
            ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::BadUri(_)
            | ureq::Error::Http(_)
            | ureq::Error::InvalidProxyUrl
            | ureq::Error::ConnectProxyFailed(_)
            | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
            ureq::Error::Io(error) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::AddrNotAvailable | ErrorKind::NotConnected => true,
                // A host that is not found has no kind of its own. Should the text change, it is taken for unknown.
                _ => error.to_string().starts_with("failed to lookup address"),
            },
            _ => false,
        };
        Self { sent: !unsent, error: error.into() }
    }
}

/// An answer of the server.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    body: Vec<u8>,
    write: bool,
    /// The request had been sent before, to a server that did not answer.
    retold: bool,
}

impl Reply {
    /// 404 and 409 mean something; what else is no success is a refusal.
    fn accepted(self) -> Result<Self, LeaseError> {
        match self.status {
            200..=299 | 404 | 409 => Ok(self),
            _ => Err(self.refusal()),
        }
    }

    fn refusal(&self) -> LeaseError {
        LeaseError::Refused(detail(self.status, &self.body))
    }

    /// The answer to what was asked for and granted.
    pub fn granted<T: DeserializeOwned>(&self) -> Result<T, LeaseError> {
        match self.status {
            200..=299 => self.read(),
            _ => Err(self.refusal()),
        }
    }

    /// The answer to a question about something that may not exist.
    pub fn found<T: DeserializeOwned>(&self) -> Result<Option<T>, LeaseError> {
        match self.status {
            404 => Ok(None),
            _ => self.granted().map(Some),
        }
    }

    pub fn read<T: DeserializeOwned>(&self) -> Result<T, LeaseError> {
        serde_json::from_slice(&self.body).map_err(|error| match self.write {
            true => LeaseError::Ambiguous(strange_text(&error.to_string()).into()),
            false => LeaseError::Unavailable(strange_text(&error.to_string()).into()),
        })
    }

    /// An outcome that says «nothing was done» is only true of the last try.
    pub fn settled<T>(&self, outcome: T) -> Result<T, LeaseError> {
        match self.retold {
            false => Ok(outcome),
            true => {
                Err(LeaseError::Ambiguous("an earlier try was not answered, and may have done it".into()))
            }
        }
    }
}

/// An answer that makes no sense here.
pub fn strange(what: &str) -> LeaseError {
    LeaseError::Ambiguous(strange_text(what).into())
}

fn strange_text(what: &str) -> String {
    format!("the answer cannot be understood: {what}; is this a Tenure server of this version?")
}

/// The server's own words, or the bare status.
fn detail(status: u16, body: &[u8]) -> String {
    let said = serde_json::from_slice::<Refusal>(body).ok().map(|refusal| match refusal.detail {
        Value::String(text) => text,
        Value::Array(problems) => {
            let text = |problem: &Value| {
                let place = problem["loc"].as_array().and_then(|loc| loc.last()).and_then(Value::as_str);
                let message = problem["msg"].as_str().unwrap_or_default();
                format!("{}: {message}", place.unwrap_or_default())
            };
            problems.iter().map(text).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    });
    match (status, said) {
        (401, _) => "the server does not accept the token".into(),
        (_, Some(said)) => format!("{said} ({status})"),
        (_, None) => format!("it answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an address is right or refused with a reason, and what is asked for arrives as it was meant.

    use super::*;

    #[test]
    fn an_address_is_checked_before_it_is_used() {
        let good = [
            ("http://a:8080", "http://a:8080"),
            (" https://a/ ", "https://a"),
            ("http://[::1]:1/behind/a/proxy/", "http://[::1]:1/behind/a/proxy"),
        ];
        for (text, expected) in good {
            assert_eq!(address(text).as_deref(), Ok(expected));
        }
        for (text, reason) in [
            ("", "empty string"),
            ("a:8080", "neither with http"),
            ("postgres://a", "neither with http"),
            ("/a", "neither with http"),
            ("http://a?b", "holds a query"),
        ] {
            let refused = address(text).unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.contains("Write it like"), "{text:?}: {refused}");
        }
    }

    #[test]
    fn a_query_survives_everything() {
        let call = Call::read("/x", &[("a", "b/c d&e=%_日\\"), ("f", "1")]);
        assert_eq!(call.path, "/x?a=b%2Fc%20d%26e%3D%25_%E6%97%A5%5C&f=1");
    }

    #[test]
    fn a_call_takes_no_longer_than_a_third_of_the_lease() {
        let budget = |millis| Call::write("/", &(), Some(Duration::from_millis(millis))).budget;
        assert_eq!(budget(9_000), Duration::from_secs(3));
        assert_eq!(budget(60_000), ANSWER_WITHIN);
        assert_eq!(budget(100), SHORTEST_BUDGET);
    }

    #[test]
    fn a_refusal_is_in_the_servers_words() {
        assert_eq!(detail(403, br#"{"detail": "not yours"}"#), "not yours (403)");
        let problems = br#"{"detail": [{"loc": ["body", "scope"], "msg": "is empty"}]}"#;
        assert_eq!(detail(422, problems), "scope: is empty (422)");
        assert_eq!(detail(502, b"<html>"), "it answered 502");
        assert_eq!(detail(401, b"{}"), "the server does not accept the token");
    }
}
