//! A server without a socket, and an owner that moves its runs.

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use object_store::memory::InMemory;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tenure_api::{
    ApiState, Attachments, Diagnostic, HealthSource, ImportError, SchedulerHealth, ScopeHealth, TokenDigest,
    router,
};
use tenure_clock::{Clock, Entropy, ManualClock};
use tenure_lease::{
    Campaign, Candidacy, Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Scope, Session, Tenure,
};
use tenure_model::{
    AttemptId, DagId, DagSpec, NodeId, RunId, RunState, ShardId, TaskKind, TaskSpec, TaskState, TenantId,
    TiKey,
};
use tenure_store::{
    AuditEntry, CachedTi, DagRegistration, Pass, RunChange, SharedStore, StateChange, TiChange, Trigger,
    TryRecord,
};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::watch;
use tower::ServiceExt;

pub const TOKEN: &str = "the-token";
pub const NOON: &str = "2026-01-01T12:00:00Z";

pub struct Server {
    pub store: SharedStore,
    pub clock: ManualClock,
    pub logs: Arc<InMemory>,
    pub import_errors: Arc<RwLock<Vec<ImportError>>>,
    pub ready: Arc<Health>,
    pub changes: watch::Sender<u64>,
    pub router: Router,
    owner: Tenure,
    entropy: Entropy,
    _elector: (Elector, Candidacy),
}

/// What the test says about the scheduler; `Err("panic")` panics.
pub struct Health {
    ready: Mutex<Result<(), String>>,
    scopes: Mutex<Vec<ScopeHealth>>,
}

impl Health {
    pub fn set(&self, ready: Result<(), &str>) {
        *self.ready.lock().unwrap() = ready.map_err(str::to_owned);
    }

    pub fn scopes(&self, scopes: Vec<ScopeHealth>) {
        *self.scopes.lock().unwrap() = scopes;
    }
}

impl HealthSource for Health {
    fn health(&self) -> SchedulerHealth {
        let ready = self.ready.lock().unwrap().clone();
        assert_ne!(ready, Err("panic".into()), "asked to panic");
        SchedulerHealth {
            ready,
            last_pass_at: Some(NOON.parse().unwrap()),
            scopes: self.scopes.lock().unwrap().clone(),
            controller: None,
        }
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// `404 The Dag with ID: …`, with the place and field of a 422.
    pub fn refusal(&self) -> String {
        let detail = &self.json()["detail"];
        let text = match detail {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                let one = |item: &Value| {
                    let place: Vec<_> =
                        item["loc"].as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
                    format!("{}: {}", place.join("."), item["msg"].as_str().unwrap())
                };
                items.iter().map(one).collect::<Vec<_>>().join("; ")
            }
            other => other.to_string(),
        };
        format!("{} {text}", self.status.as_u16())
    }
}

impl Server {
    pub async fn start() -> Self {
        let clock = ManualClock::starting_at(NOON.parse().unwrap());
        let shared_clock: Arc<dyn Clock> = Arc::new(clock.clone());
        let store: SharedStore =
            Arc::new(SqliteStore::in_memory(SqliteOptions::default(), Arc::clone(&shared_clock)).unwrap());
        let entropy = Entropy::seeded(7);
        let (elector, owner) = own(&store, &shared_clock, &entropy).await;
        let ready =
            Arc::new(Health { ready: Mutex::new(Ok(())), scopes: Mutex::new(vec![ScopeHealth::of(&owner)]) });
        let (changes, changed) = watch::channel(0);
        let (logs, import_errors) = (Arc::new(InMemory::new()), Arc::default());
        let state = ApiState {
            store: Arc::clone(&store),
            leases: store.clone(),
            fences: store.clone(),
            clock: shared_clock,
            entropy: entropy.clone(),
            token: TokenDigest::of(TOKEN),
            logs: logs.clone(),
            parser: Arc::new(parse),
            placement: Default::default(),
            import_errors: Arc::clone(&import_errors),
            health: ready.clone(),
            metrics: Arc::new(registry()),
            changes: changed,
            info: json!({ "data": "./tenure-data", "profile": "lite" }),
        };
        let router = router(state);
        Self { store, clock, logs, import_errors, ready, changes, router, owner, entropy, _elector: elector }
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let answer = tokio::time::timeout(Duration::from_secs(60), self.router.clone().oneshot(request));
        let answer = answer.await.expect("an answer in time").expect("the router never fails");
        let (parts, body) = answer.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a whole body");
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.into()).unwrap(),
        }
    }

    /// With the token; `path` is escaped where a URL needs it.
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        self.send(request(method, path).header("content-type", "application/json").body(body).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, None).await;
        assert_eq!(answer.status, StatusCode::OK, "GET {path}: {}", answer.text);
        answer.json()
    }

    pub async fn get_text(&self, path: &str) -> Answer {
        self.send(request("GET", path).header("accept", "text/plain").body(Body::empty()).unwrap()).await
    }

    pub async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(method, path, Some(body)).await;
        assert!(answer.status.is_success(), "{method} {path}: {} {}", answer.status, answer.text);
        answer.json()
    }

    pub async fn refused(&self, method: &str, path: &str, body: Option<Value>) -> String {
        self.call(method, path, body).await.refusal()
    }

    pub async fn register(&self, spec: DagSpec) {
        let registration = DagRegistration {
            trigger: self.trigger_by("dags folder"),
            source: format!("id: {}\n", spec.id),
            origin: format!("{}.yaml", spec.id),
            spec,
            paused_if_new: false,
        };
        self.store.register_dag(&registration).await.unwrap();
    }

    /// A dag `etl` of `a b<a` with a run `r1`.
    pub async fn with_run() -> Self {
        let server = Self::start().await;
        server.register(spec("etl", "a b<a")).await;
        server.ok("POST", "/api/v2/dags/etl/dagRuns", json!({ "dag_run_id": "r1" })).await;
        server
    }

    pub fn trigger_by(&self, actor: &str) -> Trigger {
        Trigger { tenant: TenantId::default_tenant(), actor: actor.into(), at: self.clock.now() }
    }

    pub fn later(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Moves tasks (`a=running b=success`) and, with `run=state`, the run itself, as an owner would.
    pub async fn drive(&self, dag: &str, run: &str, moves: &str) {
        self.drive_with(dag, run, moves, None).await;
    }

    /// As `drive`; the tasks that are moved return `result`.
    pub async fn drive_with(&self, dag: &str, run: &str, moves: &str, result: Option<Value>) {
        let tenant = TenantId::default_tenant();
        let view = self.store.get_run(&tenant, &DagId::new(dag), &RunId::new(run)).await.unwrap().unwrap();
        let snapshot = self.store.load_runs(&[view.key]).await.unwrap().runs.pop().unwrap();
        let mut change = RunChange {
            run: view.key,
            revision: snapshot.header.revision,
            state: None,
            tis: vec![],
            past_tries: vec![],
            results: vec![],
            audit: vec![],
        };
        for (name, state) in moves.split_whitespace().map(|text| text.split_once('=').expect("name=state")) {
            if name == "run" {
                let to = RunState::parse(state).expect("a run state");
                let state =
                    StateChange { from: snapshot.header.state, to, at: self.clock.now(), reason: None };
                change.audit.push(entry(None, state.from.as_str(), to.as_str()));
                change.state = Some(state);
            } else {
                let cached = snapshot.tis.iter().find(|ti| ti.task_id.as_str() == name).expect("a task");
                self.move_ti(&mut change, cached, TaskState::parse(state).expect("a task state"), &result);
            }
        }
        let pass = Pass { runs: vec![change], ..Pass::new(self.clock.now(), "owner") };
        let committed = self.store.commit_pass(&self.owner.guard().unwrap(), &pass).await.unwrap();
        assert_eq!(committed.conflicts, vec![]);
    }

    fn move_ti(&self, change: &mut RunChange, cached: &CachedTi, state: TaskState, result: &Option<Value>) {
        let key = TiKey { run: change.run, task: cached.task, map_index: cached.map_index };
        let now = Some(self.clock.now());
        let mut to = cached.ti.clone();
        match state {
            TaskState::Scheduled => {
                if to.state == TaskState::UpForRetry {
                    let instance = to.clone();
                    change.past_tries.push(TryRecord { ti: key, task_id: cached.task_id.clone(), instance });
                }
                (to.try_number, to.scheduled_at, to.ended_at) = (to.try_number + 1, now, None);
            }
            TaskState::Running => {
                to.attempt = Some(AttemptId(self.entropy.uuid(self.clock.now())));
                to.node = Some(NodeId::new("n1"));
                (to.queued_at, to.started_at, to.try_number) = (now, now, to.try_number.max(1));
            }
            _ => to.ended_at = now,
        }
        to.state = state;
        if let Some(result) = result {
            change.results.push((key, result.clone()));
        }
        change.audit.push(entry(Some(cached), cached.ti.state.as_str(), state.as_str()));
        change.tis.push(TiChange { ti: key, from: cached.ti.state, from_attempt: cached.ti.attempt, to });
    }
}

/// With the token.
pub fn request(method: &str, path: &str) -> axum::http::request::Builder {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    request.header("authorization", format!("Bearer {TOKEN}"))
}

/// `a b<a c<a,b`: three tasks, the last needs both others.
pub fn spec(dag: &str, tasks: &str) -> DagSpec {
    let tasks = tasks.split_whitespace().map(|text| {
        let (id, needs) = text.split_once('<').unwrap_or((text, ""));
        let needs: Vec<&str> = needs.split(',').filter(|need| !need.is_empty()).collect();
        let kind = TaskKind::Bash { script: format!("echo {id}") };
        TaskSpec { retries: 1, ..TaskSpec::new(id, kind) }.needs(&needs)
    });
    DagSpec::new(dag, tasks.collect())
}

/// Stands in for the dag file parser: `id: name` and nothing else.
fn parse(file: &str, text: &str, _files: Attachments) -> Result<DagSpec, Vec<Diagnostic>> {
    assert_ne!(text, "panic", "asked to panic");
    match text.trim().strip_prefix("id: ") {
        Some(id) => Ok(spec(id, "a")),
        None => Err(vec![Diagnostic {
            file: file.into(),
            line: 1,
            column: 1,
            field: "id".into(),
            message: "a dag needs an id".into(),
        }]),
    }
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    let passes = Counter::<u64>::default();
    passes.inc();
    registry.register("passes", "Passes committed", passes);
    registry
}

async fn own(
    store: &SharedStore,
    clock: &Arc<dyn Clock>,
    entropy: &Entropy,
) -> ((Elector, Candidacy), Tenure) {
    let session = Session(entropy.uuid(clock.now()));
    let holder = Holder { name: "host:1".into(), instance: "test".into(), session, address: None };
    let config = ElectorConfig {
        margin: Duration::from_secs(60),
        ..ElectorConfig::new(holder, Duration::from_secs(86_400))
    };
    let parts = ElectorParts {
        leases: store.clone(),
        fences: store.clone(),
        clock: Arc::clone(clock),
        entropy: entropy.clone(),
        metrics: LeaseMetrics::default(),
    };
    let elector = Elector::start(parts, config).unwrap();
    let mut candidacy = elector.campaign(Campaign {
        component: "scheduler".into(),
        scopes: vec![Scope::new(ShardId(0).scope())],
        note: "a note".into(),
        sole_instance: true,
    });
    let elected = tokio::time::timeout(Duration::from_secs(30), candidacy.elected());
    let owner = elected.await.expect("elected in time").expect("the elector runs");
    ((elector, candidacy), owner)
}

fn entry(cached: Option<&CachedTi>, from: &str, to: &str) -> AuditEntry {
    AuditEntry {
        task: cached.map(|cached| cached.task_id.clone()),
        map_index: None,
        event: "moved".into(),
        from: from.into(),
        to: to.into(),
        try_number: cached.map(|cached| cached.ti.try_number),
        attempt: None,
        node: None,
        reason: None,
    }
}

/// For snapshots: what changes with every release or every change of the spec's form is masked.
pub fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(&masked(value.clone())).unwrap()
}

fn masked(value: Value) -> Value {
    match value {
        Value::String(text) if text == env!("CARGO_PKG_VERSION") => "<version>".into(),
        Value::String(text) if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            "<hash>".into()
        }
        Value::String(text) if uuid::Uuid::parse_str(&text).is_ok() => "<uuid>".into(),
        Value::Array(items) => items.into_iter().map(masked).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, masked(value))).collect(),
        other => other,
    }
}

/// The values of one field in a list.
pub fn each(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("{list} is not a list"));
    items
        .iter()
        .map(|item| item[field].as_str().map_or_else(|| item[field].to_string(), str::to_owned))
        .collect()
}

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}
