//! Small words that facts are told in: register a dag, trigger a run, move its tasks, read it back.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Campaign, Candidacy, Elector, ElectorConfig, ElectorParts, Holder,
    LeaseMetrics, LeaseRecord, Scope, Session, Takeover, Tenure, Term,
};
use tenure_model::{
    AttemptId, DagId, DagSpec, NewRun, NodeId, RunId, RunKey, RunState, RunType, ShardId, TaskKind, TaskSpec,
    TaskState, TenantId, TiKey,
};
use tenure_store::{
    Attention, AttentionItem, AuditEntry, AuditQuery, AuditView, CachedTi, ClearRequest, ClearSelection,
    Committed, CreateRunOutcome, DagRegistration, Paging, Pass, Registered, RunChange, RunHeader,
    RunSnapshot, SharedStore, StateChange, StoreError, TiChange, Trigger,
};
use tokio::sync::Mutex;

use crate::{Fresh, Spoil, Spoiled};

pub const NODE: &str = "n1";
pub const ACTOR: &str = "ada";

/// Longer than any fact takes: nothing expires by accident.
const LONG: Duration = Duration::from_secs(600);

pub struct World {
    pub store: SharedStore,
    pub entropy: Entropy,
    spoil: Spoil,
    elector: Elector,
    /// Withdrawn when dropped, so they are kept beside what they won.
    tenures: Mutex<BTreeMap<Scope, (Candidacy, Tenure)>>,
    _keep: Box<dyn Any + Send + Sync>,
}

impl World {
    pub fn of(fresh: Fresh) -> Self {
        let Fresh { store, spoil, keep } = fresh;
        let entropy = Entropy::from_os();
        let parts = ElectorParts {
            leases: store.clone(),
            fences: store.clone(),
            clock: Arc::new(SystemClock),
            entropy: entropy.clone(),
            metrics: LeaseMetrics::default(),
        };
        let elector =
            Elector::start(parts, ElectorConfig::new(holder("owner"), LONG)).expect("there is slack");
        Self { store, entropy, spoil, elector, tenures: Mutex::default(), _keep: keep }
    }

    /// Makes a stored row unreadable, behind the store's back.
    pub async fn spoil(&self, what: Spoiled) {
        (self.spoil)(what).await;
    }

    pub async fn register(&self, spec: &DagSpec) -> Registered {
        self.store.register_dag(&registration(spec)).await.expect("registered")
    }

    /// Registers a dag of these tasks (`b<a` needs a) and triggers one run of it.
    pub async fn run_of(&self, dag: &str, tasks: &str) -> RunHeader {
        self.register(&spec(dag, tasks)).await;
        self.trigger(dag, "r1").await
    }

    pub async fn trigger(&self, dag: &str, run_id: &str) -> RunHeader {
        self.create(&new_run(dag, run_id)).await
    }

    pub async fn create(&self, run: &NewRun) -> RunHeader {
        match self.store.create_run(&user(), run).await.expect("created") {
            CreateRunOutcome::Created(header) => header,
            CreateRunOutcome::Replayed(_) => panic!("a new run was asked for"),
        }
    }

    pub async fn load(&self, run: RunKey) -> RunSnapshot {
        let mut loaded = self.store.load_runs(&[run]).await.expect("loaded");
        assert_eq!(loaded.unreadable, vec![]);
        loaded.runs.pop().expect("the run exists")
    }

    pub async fn shard_of(&self, dag: &str) -> ShardId {
        let shards = self.store.shard_count().await.expect("a count");
        ShardId::of(&tenant(), &DagId::new(dag), shards)
    }

    /// Authority over the shard of a dag; dags of one shard share it.
    pub async fn owner_of(&self, dag: &str) -> Tenure {
        self.owner(self.shard_of(dag).await).await
    }

    pub async fn owner(&self, shard: ShardId) -> Tenure {
        self.leader(Scope::new(shard.scope())).await
    }

    pub async fn leader(&self, scope: Scope) -> Tenure {
        let mut tenures = self.tenures.lock().await;
        if let Some((_, tenure)) = tenures.get(&scope) {
            return tenure.clone();
        }
        let mut candidacy = self.elector.campaign(Campaign {
            component: format!("owners of {scope}"),
            scopes: vec![scope.clone()],
            note: String::new(),
            sole_instance: false,
        });
        let tenure = candidacy.elected().await.expect("the elector goes on");
        tenures.insert(scope, (candidacy, tenure.clone()));
        tenure
    }

    /// Takes a scope away from a holder that does not notice.
    pub async fn heir_of(&self, paused: &Tenure) -> LeaseRecord {
        let request = AcquireRequest {
            scope: paused.scope().clone(),
            holder: holder("successor"),
            term: term(&self.entropy),
            duration: LONG,
            takeover: Takeover::OfDead(paused.term()),
            note: String::new(),
        };
        match self.store.acquire(&request).await.expect("answered") {
            AcquireOutcome::Granted(heir) => heir,
            other => panic!("a dead term is taken over: {other:?}"),
        }
    }

    /// Names of dags that belong to these shards, one each.
    pub async fn dags_in(&self, shards: &[ShardId]) -> Vec<String> {
        let names: Vec<String> = (0..1_000).map(|number| format!("dag-{number}")).collect();
        let mut found = vec![];
        for wanted in shards {
            for name in &names {
                if self.shard_of(name).await == *wanted {
                    found.push(name.clone());
                    break;
                }
            }
        }
        assert_eq!(found.len(), shards.len(), "a thousand names reach every shard");
        found
    }

    pub async fn commit(&self, owner: &Tenure, pass: &Pass) -> Result<Committed, StoreError> {
        self.store.commit_pass(&owner.guard().expect("a long lease"), pass).await
    }

    /// Commits a pass that must meet no conflict.
    pub async fn commit_whole(&self, owner: &Tenure, pass: &Pass) -> Committed {
        let committed = self.commit(owner, pass).await.expect("committed");
        assert_eq!(committed.conflicts, vec![]);
        committed
    }

    /// Moves tasks (`a=running b=success`) and, with `run=state`, the run itself, in one pass.
    pub async fn drive(&self, owner: &Tenure, run: RunKey, moves: &str) -> RunSnapshot {
        let change = self.change(&self.load(run).await, moves);
        self.commit_whole(owner, &pass_of(vec![change])).await;
        self.load(run).await
    }

    /// What `drive` commits.
    pub fn change(&self, run: &RunSnapshot, moves: &str) -> RunChange {
        let mut change = RunChange {
            run: run.header.key,
            revision: run.header.revision,
            state: None,
            tis: vec![],
            past_tries: vec![],
            results: vec![],
            audit: vec![],
        };
        for (name, state) in moves.split_whitespace().map(|text| text.split_once('=').expect("name=state")) {
            if name == "run" {
                let (from, to) = (run.header.state, RunState::parse(state).expect("a run state"));
                change.audit.push(entry(None, from.as_str(), to.as_str()));
                change.state = Some(StateChange { from, to, at: now(), reason: None });
            } else {
                self.move_ti(&mut change, ti(run, name), TaskState::parse(state).expect("a task state"));
            }
        }
        change
    }

    fn move_ti(&self, change: &mut RunChange, cached: &CachedTi, state: TaskState) {
        let mut to = cached.ti.clone();
        to.state = state;
        match state {
            TaskState::Scheduled => {
                to.try_number += 1;
                to.scheduled_at = Some(now());
            }
            TaskState::Queued => {
                to.attempt = Some(AttemptId(self.entropy.uuid(now())));
                to.node = Some(NodeId::new(NODE));
                to.queued_at = Some(now());
            }
            TaskState::Running => {
                to.started_at = Some(now());
                to.attempt = to.attempt.or_else(|| Some(AttemptId(self.entropy.uuid(now()))));
                to.node = Some(NodeId::new(NODE));
                to.try_number = to.try_number.max(1);
            }
            TaskState::None => to = cached.ti.cleared(0),
            _ => to.ended_at = Some(now()),
        }
        change.audit.push(entry(Some(cached), cached.ti.state.as_str(), state.as_str()));
        change.tis.push(TiChange {
            ti: key_of(change.run, cached),
            from: cached.ti.state,
            from_attempt: cached.ti.attempt,
            to,
        });
    }

    pub async fn attention(&self, shard: ShardId) -> Vec<AttentionItem> {
        self.store.attention(shard, 1_000).await.expect("attention").items
    }

    /// The version of the limits, which every shard sees, and whoever reads them.
    pub async fn limits_version(&self) -> u64 {
        let version = self.store.limits().await.expect("limits").version;
        for shard in (0..self.store.shard_count().await.expect("a count")).map(ShardId) {
            assert_eq!(self.store.attention(shard, 1).await.expect("attention").limits, version, "{shard}");
        }
        version
    }

    pub async fn attention_of(&self, dag: &str) -> Vec<Attention> {
        self.attention(self.shard_of(dag).await).await.into_iter().map(|item| item.what).collect()
    }

    /// Forgets all attention of a dag's shard.
    pub async fn attend(&self, owner: &Tenure, dag: &str) {
        let items = self.attention(self.shard_of(dag).await).await;
        let pass =
            Pass { attended: items.iter().map(|item| item.seq).collect(), ..Pass::new(now(), "owner") };
        self.commit_whole(owner, &pass).await;
    }

    pub async fn audit(&self, dag: &str, run: Option<&str>) -> Vec<AuditView> {
        let paging = Paging { limit: 100_000, ..Paging::default() };
        let query = AuditQuery {
            tenant: tenant(),
            dag: Some(dag.into()),
            run: run.map(RunId::new),
            after_seq: None,
            paging,
        };
        self.store.list_audit(&query).await.expect("audit").items
    }

    /// Every entry about a run, in order, as `task:event from>to`.
    pub async fn trail(&self, dag: &str, run: &str) -> Vec<String> {
        let rows = self.audit(dag, Some(run)).await;
        let entries = rows.into_iter().flat_map(|row| row.entries);
        let subject = |entry: &AuditEntry| entry.task.as_ref().map_or("run".to_owned(), ToString::to_string);
        entries
            .map(|entry| format!("{}:{} {}>{}", subject(&entry), entry.event, entry.from, entry.to))
            .collect()
    }
}

/// Whole microseconds: what every store keeps.
pub fn now() -> Timestamp {
    Timestamp::from_microsecond(SystemClock.now().as_microsecond()).expect("in range")
}

pub fn tenant() -> TenantId {
    TenantId::default_tenant()
}

pub fn user() -> Trigger {
    Trigger { tenant: tenant(), actor: ACTOR.into(), at: now() }
}

pub fn holder(name: &str) -> Holder {
    let (instance, address) = ("test".into(), Some("127.0.0.1:1".into()));
    Holder { name: name.into(), instance, session: Session(Entropy::from_os().uuid(now())), address }
}

pub fn term(entropy: &Entropy) -> Term {
    Term(entropy.uuid(now()))
}

/// `a b<a c<a,b`: three tasks, the last needs both others. One retry each.
pub fn spec(dag: &str, tasks: &str) -> DagSpec {
    let tasks = tasks.split_whitespace().map(|text| {
        let (id, needs) = text.split_once('<').unwrap_or((text, ""));
        let needs: Vec<&str> = needs.split(',').filter(|need| !need.is_empty()).collect();
        TaskSpec { retries: 1, ..TaskSpec::new(id, TaskKind::Empty) }.needs(&needs)
    });
    DagSpec::new(dag, tasks.collect())
}

pub fn registration(spec: &DagSpec) -> DagRegistration {
    DagRegistration {
        trigger: user(),
        spec: spec.clone(),
        source: format!("id: {}", spec.id),
        origin: format!("{}.yaml", spec.id),
        paused_if_new: false,
    }
}

pub fn new_run(dag: &str, run_id: &str) -> NewRun {
    NewRun {
        tenant: tenant(),
        dag: dag.into(),
        run_id: run_id.into(),
        run_type: RunType::Manual,
        logical_date: None,
        data_interval: None,
        run_after: now(),
        conf: json!({}),
        note: None,
        triggered_by: ACTOR.into(),
        idempotency_key: None,
    }
}

/// A run the timetable makes: `day` of January 2026.
pub fn due_run(dag: &str, day: i8) -> NewRun {
    let date = day_of_january(day);
    NewRun {
        run_id: RunType::Scheduled.run_id(date),
        run_type: RunType::Scheduled,
        logical_date: Some(date),
        data_interval: Some(tenure_model::DataInterval { start: date, end: date }),
        run_after: date,
        triggered_by: "timetable".into(),
        ..new_run(dag, "")
    }
}

pub fn day_of_january(day: i8) -> Timestamp {
    format!("2026-01-{day:02}T00:00:00Z").parse().expect("a date")
}

pub fn clear_of(dag: &str, run: &str, tasks: &[&str]) -> ClearRequest {
    let selection = match tasks {
        [] => ClearSelection::All,
        tasks => ClearSelection::Tasks(tasks.iter().map(tenure_model::TaskId::new).collect()),
    };
    ClearRequest {
        dag: dag.into(),
        run: run.into(),
        selection,
        only_failed: false,
        only_running: false,
        upstream: false,
        downstream: false,
        past: false,
        future: false,
        reset_runs: true,
        latest_version: false,
        dry_run: false,
    }
}

pub fn pass_of(runs: Vec<RunChange>) -> Pass {
    Pass { runs, ..Pass::new(now(), "owner") }
}

pub fn ti<'a>(run: &'a RunSnapshot, task: &str) -> &'a CachedTi {
    run.tis.iter().find(|cached| cached.task_id.as_str() == task).expect("a task of the run")
}

pub fn key_of(run: RunKey, cached: &CachedTi) -> TiKey {
    TiKey { run, task: cached.task, map_index: cached.map_index }
}

/// `a=none b=success`, by task number.
pub fn states(run: &RunSnapshot) -> String {
    let states = run.tis.iter().map(|cached| format!("{}={}", cached.task_id, cached.ti.state));
    states.collect::<Vec<_>>().join(" ")
}

pub fn entry(cached: Option<&CachedTi>, from: &str, to: &str) -> AuditEntry {
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

pub fn page(limit: u32, offset: u32, order_by: &str) -> Paging {
    Paging { limit, offset, order_by: (!order_by.is_empty()).then(|| order_by.to_owned()) }
}

#[track_caller]
pub fn assert_conflict<T: std::fmt::Debug>(outcome: Result<T, StoreError>, must_say: &str) {
    match outcome {
        Err(StoreError::Conflict(text)) => {
            assert!(text.contains(must_say), "{text:?} does not say {must_say:?}")
        }
        other => panic!("a conflict was expected: {other:?}"),
    }
}

#[track_caller]
pub fn assert_not_found<T: std::fmt::Debug>(outcome: Result<T, StoreError>, must_say: &str) {
    match outcome {
        Err(StoreError::NotFound(text)) => {
            assert!(text.contains(must_say), "{text:?} does not say {must_say:?}")
        }
        other => panic!("«not found» was expected: {other:?}"),
    }
}

pub fn value(number: i64) -> Value {
    json!({ "rows": number })
}

#[track_caller]
pub fn assert_fenced<T: std::fmt::Debug>(outcome: Result<T, StoreError>) {
    assert!(matches!(outcome, Err(StoreError::Fenced { .. })), "a deposed holder wrote: {outcome:?}");
}
