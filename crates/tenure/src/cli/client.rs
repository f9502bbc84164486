//! The HTTP side of the command line: finds the server, speaks JSON with it, turns refusals into
//! sentences.
//!
//! Promises: no request waits for ever, a refusal keeps the server's own words, and everything a user
//! names is escaped before it becomes part of a path.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;
use tenure_tls::Trust;
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::Globals;
use super::failure::Failure;
use crate::discovery::{self, Endpoint};

/// Longer than the longest long-poll the server grants (20 s), shorter than a user's patience.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The largest answers are the progress of runs with ten thousands of tasks: a few megabytes.
const LARGEST_ANSWER: u64 = 256 << 20;
/// What the server gives at most in one answer.
const PAGE: usize = 1000;

#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    endpoint: Endpoint,
    trust: Trust,
}

impl Client {
    pub fn connect(globals: &Globals) -> Result<Self, Failure> {
        let endpoint = endpoint(globals)?;
        let trust = trust(globals, &endpoint.url)?;
        Ok(Self::reaching(endpoint, trust, Some(ANSWER_WITHIN)))
    }

    fn reaching(endpoint: Endpoint, trust: Trust, answer_within: Option<Duration>) -> Self {
        let authorities: Vec<Certificate<'static>> =
            trust.authorities().iter().map(|known| Certificate::from_der(known).to_owned()).collect();
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&authorities)).build();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(ANSWER_WITHIN))
            .timeout_global(answer_within)
            .tls_config(tls)
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&endpoint.url) {
            config = config.proxy(None); // a proxy cannot reach what listens on this machine only
        }
        Self { agent: config.build().new_agent(), endpoint, trust }
    }

    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    pub fn get(&self, path: &Path) -> Result<Value, Failure> {
        self.send("GET", path, None, &[])
    }

    pub fn post(&self, path: &Path, body: &Value) -> Result<Value, Failure> {
        self.send("POST", path, Some(body), &[])
    }

    /// For verbs whose 409 is an answer like any other: `Err` inside `Ok` is its body.
    pub fn post_or_conflict(&self, path: &Path, body: &Value) -> Result<Result<Value, Value>, Failure> {
        let mut answer = self.exchange("POST", path, Some(body), &[])?;
        if answer.status().as_u16() != 409 {
            return self.body(path, answer).and_then(|body| self.parsed(path, &body)).map(Ok);
        }
        let body = answer.body_mut().read_to_vec().map_err(|error| self.unreachable(error))?;
        self.parsed(path, &body).map(Err)
    }

    /// A collection that comes whole: `key` names the array in the answer.
    pub fn items(&self, path: &Path, key: &str) -> Result<Vec<Value>, Failure> {
        match self.get(path)?[key].take() {
            Value::Array(items) => Ok(items),
            _ => Err(self.strange(path, &format!("it has no list of {key}"))),
        }
    }

    /// An answer without an end, line by line. Whoever reads it minds the silence.
    pub fn stream(&self, path: &Path) -> Result<Box<dyn BufRead + Send>, Failure> {
        let patient = Self::reaching(self.endpoint.clone(), self.trust.clone(), None);
        let answer = patient.exchange("GET", path, None, &[("Accept", "text/event-stream")])?;
        match answer.status().as_u16() {
            200..=299 => Ok(Box::new(BufReader::new(answer.into_body().into_reader()))),
            _ => patient.body(path, answer).and(Err(self.strange(path, "it is no stream"))),
        }
    }

    pub fn patch(&self, path: &Path, body: &Value) -> Result<Value, Failure> {
        self.send("PATCH", path, Some(body), &[])
    }

    pub fn put(&self, path: &Path, body: &Value) -> Result<Value, Failure> {
        self.send("PUT", path, Some(body), &[])
    }

    pub fn delete(&self, path: &Path) -> Result<(), Failure> {
        self.send("DELETE", path, None, &[]).map(drop)
    }

    /// Page after page of a collection, up to `most` items: `key` names the array in each answer.
    pub fn list(&self, path: &Path, key: &str, most: usize) -> Result<Vec<Value>, Failure> {
        let mut items = vec![];
        while items.len() < most {
            let limit = PAGE.min(most - items.len());
            let page = path.clone().query("limit", limit).query("offset", items.len());
            let mut answer = self.get(&page)?;
            let total = answer["total_entries"].as_u64().map_or(usize::MAX, |total| total as usize);
            let Value::Array(found) = answer[key].take() else {
                return Err(self.strange(&page, &format!("it has no list of {key}")));
            };
            let ended = found.is_empty() || found.len() + items.len() >= total;
            items.extend(found);
            if ended {
                break;
            }
        }
        Ok(items)
    }

    /// A piece of a text that is read bit by bit, and where the next one begins.
    pub fn get_text(&self, path: &Path) -> Result<(String, Option<String>), Failure> {
        let answer = self.exchange("GET", path, None, &[("Accept", "text/plain")])?;
        let next = answer.headers().get("x-continuation-token").and_then(|token| token.to_str().ok());
        let next = next.map(str::to_owned);
        Ok((String::from_utf8_lossy(&self.body(path, answer)?).into_owned(), next))
    }

    /// `headers` are added to the usual ones. An answer without a body is `null`.
    pub fn send(
        &self,
        method: &str,
        path: &Path,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Value, Failure> {
        let answer = self.exchange(method, path, body, headers)?;
        let body = self.body(path, answer)?;
        self.parsed(path, &body)
    }

    fn parsed(&self, path: &Path, body: &[u8]) -> Result<Value, Failure> {
        match body.is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice(body)
                .map_err(|_| self.strange(path, "it is not JSON; is this a Tenure server?")),
        }
    }

    fn exchange(
        &self,
        method: &str,
        path: &Path,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>, Failure> {
        let mut request =
            Request::builder().method(method).uri(format!("{}{}", self.endpoint.url, path.text));
        if let Some(token) = &self.endpoint.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let unfit = |error: ureq::http::Error| Failure::Usage(format!("the request cannot be made: {error}"));
        let answer = match body {
            Some(body) => {
                let request = request.header("Content-Type", "application/json");
                self.agent.run(request.body(body.to_string()).map_err(unfit)?)
            }
            None => self.agent.run(request.body(()).map_err(unfit)?),
        };
        answer.map_err(|error| self.unreachable(error))
    }

    fn body(&self, path: &Path, mut answer: Response<Body>) -> Result<Vec<u8>, Failure> {
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec();
        let body = body.map_err(|error| self.unreachable(error))?;
        match status {
            200..=299 => Ok(body),
            _ => Err(self.refusal(status, path, &body)),
        }
    }

    fn refusal(&self, status: u16, path: &Path, body: &[u8]) -> Failure {
        let said = serde_json::from_slice(body).ok().and_then(|body: Value| detail(&body["detail"]));
        let detail = match (status, said) {
            (401, _) => format!(
                "{} does not accept the token ({}); give the right one with --token or TENURE_TOKEN",
                self.endpoint.url, self.endpoint.token_origin
            ),
            (_, Some(said)) => said,
            (_, None) => format!("{} answered {status} to {}", self.endpoint.url, path.text),
        };
        Failure::Refused { status, detail, path: path.text.clone() }
    }

    fn unreachable(&self, error: ureq::Error) -> Failure {
        let url = &self.endpoint.url;
        let tls = match &error {
            ureq::Error::Rustls(cause) => tenure_tls::explain(cause),
            ureq::Error::Io(cause) => tenure_tls::explain(cause),
            _ => None,
        };
        if let Some(said) = tls {
            return Failure::Unreachable(format!("no connection to the Tenure server at {url}: {said}"));
        }
        Failure::Unreachable(match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => format!("{url} is not an address: {error}"),
            _ => format!("the Tenure server at {url} cannot be reached: {error}"),
        })
    }

    fn strange(&self, path: &Path, what: &str) -> Failure {
        Failure::Failed(format!(
            "the answer of {}{} cannot be understood: {what}",
            self.endpoint.url, path.text
        ))
    }
}

/// Whose word counts on who the server is. Without TLS nobody is asked.
pub fn trust(globals: &Globals, urls: &str) -> Result<Trust, Failure> {
    let named = globals.ca.as_deref().filter(|path| !path.as_os_str().is_empty());
    match urls.contains("https://") {
        true => Trust::load(named).map_err(|error| Failure::Usage(format!("--ca: {error}"))),
        false => Ok(Trust::default()),
    }
}

/// The server that a user means, and the token for it.
pub fn endpoint(globals: &Globals) -> Result<Endpoint, Failure> {
    // A variable that is set to nothing is not set.
    let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let mut endpoint = match given(&globals.server) {
        Some(url) => discovery::at(&checked(&url)?),
        None => discovery::find().map_err(|error| Failure::Unreachable(error.to_string()))?,
    };
    if let Some(token) = given(&globals.token) {
        endpoint.token = Some(token);
        endpoint.token_origin = "the token is from --token or TENURE_TOKEN".into();
    }
    Ok(endpoint)
}

/// A path below the server's address, built from segments that are escaped one by one.
#[derive(Clone, Debug)]
pub struct Path {
    text: String,
    has_query: bool,
}

impl Path {
    /// `root` is ours and taken as it is.
    pub fn new(root: &str) -> Self {
        Self { text: root.to_owned(), has_query: false }
    }

    pub fn dag(dag: &str) -> Self {
        Self::new("/api/v2/dags").then(dag)
    }

    pub fn runs(dag: &str) -> Self {
        Self::dag(dag).then("dagRuns")
    }

    pub fn run(dag: &str, run: &str) -> Self {
        Self::runs(dag).then(run)
    }

    pub fn task(dag: &str, run: &str, task: &str) -> Self {
        Self::run(dag, run).then("taskInstances").then(task)
    }

    pub fn then(mut self, segment: &str) -> Self {
        self.text.push('/');
        escape(segment, &mut self.text);
        self
    }

    pub fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        escape(name, &mut self.text);
        self.text.push('=');
        escape(&value.to_string(), &mut self.text);
        self
    }

    #[cfg(test)]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The dag that a path is about, as the user wrote it.
pub fn dag_in(path: &str) -> Option<String> {
    let rest = path.split_once("/dags/")?.1;
    let segment = rest.split(['/', '?']).next()?;
    unescape(segment).filter(|dag| dag != "~" && !dag.is_empty())
}

/// RFC 3986: everything but the unreserved characters.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ => write!(out, "%{byte:02X}").expect("a string takes everything"),
        }
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        match (byte, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                rest = tail;
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// `detail` is a text, or a list of what is wrong with which field, as in Airflow's API.
fn detail(detail: &Value) -> Option<String> {
    match detail {
        Value::String(text) => Some(text.clone()),
        Value::Array(problems) => Some(problems.iter().map(problem).collect::<Vec<_>>().join("; ")),
        // A refused dag file: the lines a person reads, with their data beside them.
        Value::Object(parts) if parts.get("message").is_some_and(Value::is_string) => {
            parts["message"].as_str().map(str::to_owned)
        }
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

fn problem(problem: &Value) -> String {
    let place: Vec<String> = problem["loc"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned))
        .filter(|part| part != "body")
        .collect();
    let message = problem["msg"].as_str().map_or_else(|| problem.to_string(), str::to_owned);
    if place.is_empty() { message } else { format!("{}: {message}", place.join(".")) }
}

fn checked(url: &str) -> Result<String, Failure> {
    match url.starts_with("http://") || url.starts_with("https://") {
        true => Ok(url.to_owned()),
        false => Err(Failure::Usage(format!(
            "--server {url:?} is not a URL (write it like http://127.0.0.1:8080)"
        ))),
    }
}

pub fn is_loopback(url: &str) -> bool {
    let host = url.split("://").nth(1).unwrap_or(url);
    ["127.", "localhost", "[::1]"].iter().any(|start| host.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_name_is_escaped_in_paths() {
        let path = Path::run("a/b?", "manual__2026-01-01T00:00:00+00:00").query("q", "ü &");
        assert_eq!(
            path.as_str(),
            "/api/v2/dags/a%2Fb%3F/dagRuns/manual__2026-01-01T00%3A00%3A00%2B00%3A00?q=%C3%BC%20%26"
        );
        assert_eq!(dag_in(path.as_str()).as_deref(), Some("a/b?"));
        assert_eq!(dag_in("/api/v2/dags/~/dagRuns?x=1"), None);
        assert_eq!(dag_in("/api/v2/pools/x"), None);
    }

    #[test]
    fn details_of_every_kind_become_sentences() {
        let check = |body: &str| detail(&serde_json::from_str(body).unwrap()).unwrap();
        assert_eq!(check(r#""no such dag""#), "no such dag");
        assert_eq!(check(r#"[{"loc":["body","conf",0],"msg":"not a map"}]"#), "conf.0: not a map");
        assert_eq!(check(r#"{"message":"a.yaml:3: no","diagnostics":[]}"#), "a.yaml:3: no");
        assert_eq!(check(r#"[{"loc":["body"],"msg":"empty"},{"x":1}]"#), r#"empty; {"x":1}"#);
    }

    #[test]
    fn an_address_without_a_scheme_is_wrong_usage() {
        assert!(matches!(checked("localhost:8080"), Err(Failure::Usage(_))));
        assert!(checked("https://x").is_ok());
    }
}
