//! A lease server without a scheduler, with a socket where one is needed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tenure_api::{LeaseApi, ServeLimits, TokenDigest, lease_router, serve_within};
use tenure_clock::{Clock, Entropy, ManualClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Hint, Holder, LeaseError, LeaseRecord, LeaseStore,
    Lifeline, MemoryLeases, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Takeover, Term,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;

pub const TOKEN: &str = "the-token";
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Office {
    pub leases: Arc<MemoryLeases>,
    /// What the routes see of them.
    pub shaky: Arc<Shaky>,
    pub clock: ManualClock,
    pub router: Router,
}

pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    /// `409 x is held by …`, with the field of a 422.
    pub fn refusal(&self) -> String {
        let detail = &self.body["detail"];
        let text = match detail {
            Value::Array(items) => {
                let place = items[0]["loc"].as_array().unwrap().last().unwrap().as_str().unwrap();
                format!("{place}: {}", items[0]["msg"].as_str().unwrap())
            }
            other => other.as_str().unwrap_or_else(|| panic!("no refusal: {}", self.body)).to_owned(),
        };
        format!("{} {text}", self.status)
    }
}

impl Office {
    pub fn open() -> Self {
        Self::with(MemoryLeases::new)
    }

    /// As if etcd kept the leases: the server installs the fence itself.
    pub fn unfenced() -> Self {
        Self::with(MemoryLeases::unfenced)
    }

    fn with(leases: impl FnOnce(Arc<dyn Clock>) -> MemoryLeases) -> Self {
        let clock = ManualClock::starting_at("2026-01-01T12:00:00Z".parse().unwrap());
        let leases = Arc::new(leases(Arc::new(clock.clone())));
        let shaky =
            Arc::new(Shaky { leases: Arc::clone(&leases), mood: Mutex::default(), looks: AtomicU64::new(0) });
        let api = LeaseApi {
            leases: shaky.clone(),
            fences: leases.clone(),
            clock: Arc::new(clock.clone()),
            entropy: Entropy::seeded(7),
        };
        Self { leases, shaky, clock, router: lease_router(api, TokenDigest::of(TOKEN)) }
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.router.clone().oneshot(request));
        let answer = answer.await.expect("an answer in time").expect("the router never fails");
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("a whole body");
        Answer { status: status.as_u16(), body: serde_json::from_slice(&bytes).expect("JSON") }
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let request = Request::builder().method(method).uri(path).header("authorization", bearer());
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        self.send(request.body(body).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, None).await;
        assert_eq!(answer.status, StatusCode::OK, "GET {path}: {}", answer.body);
        answer.body
    }

    pub async fn post(&self, verb: &str, body: Value) -> Answer {
        self.call("POST", &format!("/api/leases/{verb}"), Some(body)).await
    }

    pub async fn ok(&self, verb: &str, body: Value) -> Value {
        let answer = self.post(verb, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{verb}: {}", answer.body);
        answer.body
    }

    pub async fn refused(&self, verb: &str, body: Value) -> String {
        self.post(verb, body).await.refusal()
    }

    /// Takes `scope` for 15 seconds and answers the lease.
    pub async fn taken(&self, scope: &str, holder: &str) -> Value {
        self.ok("acquire", wish(scope, holder)).await["lease"].clone()
    }

    /// The same behind the server's back, quickly, with a note.
    pub async fn taken_quietly(&self, scope: &str, note: String) {
        let holder = Holder {
            name: "h:1".into(),
            instance: String::new(),
            session: Session(Uuid::nil()),
            address: None,
        };
        let request = AcquireRequest {
            scope: Scope::new(scope),
            holder,
            term: Term(Uuid::from_u128(1)),
            duration: Duration::from_secs(15),
            takeover: Takeover::IfFree,
            note,
        };
        self.leases.acquire(&request).await.unwrap();
    }

    pub fn later(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub async fn listen(&self) -> Listening {
        self.listen_within(ServeLimits::default()).await
    }

    pub async fn listen_within(&self, limits: ServeLimits) -> Listening {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve_within(limits, listener, self.router.clone(), shutdown.clone()));
        Listening { address, shutdown, serving }
    }
}

pub fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

/// An acquire of 15 seconds.
pub fn wish(scope: &str, holder: &str) -> Value {
    json!({ "scope": scope, "holder": { "name": holder }, "duration": "15s" })
}

/// What a holder sends of the lease that it was granted.
pub fn claim(lease: &Value) -> Value {
    json!({ "scope": lease["scope"], "term": lease["term"], "epoch": lease["epoch"],
        "duration_ms": lease["duration_ms"] })
}

/// The same, to give it back.
pub fn farewell(lease: &Value) -> Value {
    json!({ "scope": lease["scope"], "term": lease["term"], "epoch": lease["epoch"] })
}

/// The values of one field in a list.
pub fn each(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("{list} is not a list"));
    let text = |item: &Value| item[field].as_str().map_or_else(|| item[field].to_string(), str::to_owned);
    items.iter().map(text).collect()
}

pub struct Listening {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Listening {
    /// A watcher's connection, with its request sent. HTTP/1.0, so that the body is plain text until it ends.
    pub async fn watch(&self, under: &str) -> Reader {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let path = format!("/api/leases/watch?under={under}");
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\nAuthorization: {}\r\n\r\n", bearer());
        stream.write_all(request.as_bytes()).await.unwrap();
        Reader { stream: BufReader::new(stream) }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        let stopped = tokio::time::timeout(Duration::from_secs(8), self.serving).await;
        stopped.expect("stops in time").unwrap().unwrap();
    }
}

/// Reads server-sent events.
pub struct Reader {
    stream: BufReader<TcpStream>,
}

impl Reader {
    /// `None`: the stream has ended.
    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line));
        // A connection that is cut off may end with a reset.
        let _ = read.await.expect("a line in time");
        line.ends_with('\n').then(|| line.trim_end().to_owned())
    }

    /// The status line of the answer; what comes then are events.
    pub async fn status(&mut self) -> String {
        let status = self.line().await.expect("a status");
        while self.line().await.is_some_and(|line| !line.is_empty()) {}
        status
    }

    /// Name and data. Comments are passed over.
    pub async fn event(&mut self) -> Option<(String, Value)> {
        let (mut name, mut data) = (String::new(), Value::Null);
        loop {
            let line = self.line().await?;
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.to_owned();
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = serde_json::from_str(text).expect("JSON");
            } else if line.is_empty() && !name.is_empty() {
                return Some((name, data));
            }
        }
    }

    /// `acquired a/leader h:1 e2`.
    pub async fn told(&mut self) -> String {
        let (name, data) = self.event().await.expect("an event");
        match name.as_str() {
            "synced" => format!("synced {}", data["leases"]),
            "unavailable" => "unavailable".to_owned(),
            _ => {
                let text = |field: &str| data[field].as_str().unwrap().to_owned();
                format!("{name} {} {} e{}", text("scope"), text("holder"), data["epoch"])
            }
        }
    }
}

/// How the lease store behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    Unavailable,
    /// Does what it is asked to, and loses the answer.
    Forgetful,
    Refusing,
    /// Neither does it nor answers.
    Silent,
}

/// Leases in memory behind a bad line.
pub struct Shaky {
    leases: Arc<MemoryLeases>,
    mood: Mutex<Mood>,
    /// How often somebody looked.
    pub looks: AtomicU64,
}

impl Shaky {
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    async fn before(&self) -> Result<(), LeaseError> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Silent => std::future::pending().await,
            Mood::Unavailable => Err(LeaseError::Unavailable("no route to host".into())),
            Mood::Refusing => Err(LeaseError::Refused("this lease store is read-only".into())),
            Mood::Well | Mood::Forgetful => Ok(()),
        }
    }

    fn after<T>(&self, answer: Result<T, LeaseError>) -> Result<T, LeaseError> {
        match *self.mood.lock().unwrap() {
            Mood::Forgetful => Err(LeaseError::Ambiguous("the connection broke".into())),
            _ => answer,
        }
    }
}

#[async_trait]
impl LeaseStore for Shaky {
    fn capabilities(&self) -> Capabilities {
        self.leases.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.before().await?;
        self.after(self.leases.acquire(request).await)
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.before().await?;
        self.after(self.leases.renew(claims).await)
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.before().await?;
        self.after(self.leases.release(claim).await)
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.before().await?;
        self.leases.list_leases(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.before().await?;
        self.leases.find_lease(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.before().await?;
        self.leases.lease_history(scope, limit).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.leases.watch()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.leases.attach(session).await
    }
}
