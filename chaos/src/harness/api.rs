//! The cluster as its clients see it, over HTTP.

use std::time::Duration;

use serde_json::Value;

/// Patience with one answer: longer than a busy server needs, shorter than a cut wire lasts.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Clone, Debug)]
pub struct Api {
    agent: ureq::Agent,
    token: String,
}

/// An answer, or none: then nobody knows what was done.
pub type Answered = Option<(u16, Value)>;

impl Api {
    pub fn new(token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            // A connection that is kept outlives the server it was made to.
            .max_idle_connections(0)
            .http_status_as_error(false);
        Self { agent: config.build().into(), token: token.to_owned() }
    }

    pub fn get(&self, url: &str, path: &str) -> Answered {
        let request = self.agent.get(format!("{url}{path}")).header("authorization", self.bearer());
        read(request.call())
    }

    pub fn post(&self, url: &str, path: &str, key: Option<&str>, body: &Value) -> Answered {
        let mut request = self.agent.post(format!("{url}{path}")).header("authorization", self.bearer());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        read(request.send_json(body))
    }

    pub fn patch(&self, url: &str, path: &str, body: &Value) -> Answered {
        let request = self.agent.patch(format!("{url}{path}")).header("authorization", self.bearer());
        read(request.send_json(body))
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answered {
    let mut answer = answer.ok()?;
    let status = answer.status().as_u16();
    // An answer that breaks off in the middle is none.
    let text = answer.body_mut().read_to_string().ok()?;
    Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}
