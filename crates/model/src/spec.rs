//! A dag version: what a dag file says, with all defaults filled in. Immutable, addressed by its hash.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Affinity, DagId, EmbeddedFile, HttpRequest, OnDisconnect, PoolName, QueueName, Resources, TaskId,
    Toleration, TriggerRule, VersionHash, duration,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DagSpec {
    pub id: DagId,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub schedule: Schedule,
    /// An IANA name; it decides what `0 5 * * *` means.
    pub timezone: String,
    /// With data intervals, a run's logical date is the start of the interval before its tick.
    #[serde(default)]
    pub data_intervals: bool,
    #[serde(default)]
    pub start_date: Option<Timestamp>,
    #[serde(default)]
    pub end_date: Option<Timestamp>,
    #[serde(default)]
    pub catchup: bool,
    #[serde(default)]
    pub params: BTreeMap<String, ParamSpec>,
    #[serde(default)]
    pub tags: Vec<String>,
    pub owner: String,
    pub max_active_runs: u32,
    /// Per run.
    pub max_active_tasks: u32,
    #[serde(default, with = "duration::optional_text")]
    pub run_timeout: Option<Duration>,
    /// In the order of the file; a task's position is its number.
    pub tasks: Vec<TaskSpec>,
    /// Scripts named by tasks, read when the version was registered.
    #[serde(default)]
    pub files: BTreeMap<String, EmbeddedFile>,
}

impl DagSpec {
    pub const DEFAULT_MAX_ACTIVE_RUNS: u32 = 16;
    pub const DEFAULT_MAX_ACTIVE_TASKS: u32 = 16;

    /// The form that is stored and hashed. Field order is fixed by the types, map order by the keys.
    pub fn canonical_json(&self) -> String {
        serde_json::to_string(self).expect("a dag spec is plain data")
    }

    pub fn hash(&self) -> VersionHash {
        VersionHash::of(self.canonical_json().as_bytes())
    }

    pub fn task(&self, id: &TaskId) -> Option<&TaskSpec> {
        self.tasks.iter().find(|task| task.id == *id)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Schedule {
    /// Only when triggered.
    #[default]
    None,
    /// One run, ever.
    Once,
    /// The next run as soon as the last one has ended.
    Continuous,
    Cron {
        expression: String,
    },
    Every {
        #[serde(with = "duration::text")]
        interval: Duration,
    },
}

impl Schedule {
    /// As Airflow shows it: `0 5 * * *`, `@once`, an interval, or nothing.
    pub fn summary(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Once => Some("@once".into()),
            Self::Continuous => Some("@continuous".into()),
            Self::Cron { expression } => Some(expression.clone()),
            Self::Every { interval } => Some(duration::format(*interval)),
        }
    }
}

/// A parameter that a trigger may set with `conf`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamSpec {
    /// Absent: every trigger must give it. A default of null is a default.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema keywords that the value must meet (`type`, `enum`, `minimum`, `pattern`, …).
    #[serde(default)]
    pub schema: BTreeMap<String, Value>,
}

/// Without this, serde reads a null that is there as nothing at all.
fn present<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(input).map(Some)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    pub id: TaskId,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub needs: Vec<TaskId>,
    #[serde(default)]
    pub trigger_rule: TriggerRule,
    pub kind: TaskKind,
    #[serde(default)]
    pub env: BTreeMap<String, EnvValue>,
    pub retries: u32,
    #[serde(with = "duration::text")]
    pub retry_delay: Duration,
    /// Multiplier of exponential backoff; absent means a fixed delay.
    #[serde(default)]
    pub retry_backoff: Option<f64>,
    #[serde(default, with = "duration::optional_text")]
    pub max_retry_delay: Option<Duration>,
    #[serde(default, with = "duration::optional_text")]
    pub timeout: Option<Duration>,
    /// Between SIGTERM and SIGKILL when it is stopped.
    #[serde(with = "duration::text")]
    pub grace: Duration,
    pub pool: PoolName,
    pub pool_slots: u32,
    pub priority: i32,
    #[serde(default)]
    pub weight_rule: WeightRule,
    #[serde(default)]
    pub resources: Resources,
    /// Labels a node must carry.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of a node that do not keep it away. This and what follows is left out of the stored form where it says
    /// nothing: a version that was registered before there were such keys keeps its hash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(default, skip_serializing_if = "Affinity::is_empty")]
    pub affinity: Affinity,
    /// Only nodes that serve it are asked.
    #[serde(default, skip_serializing_if = "QueueName::is_default")]
    pub queue: QueueName,
    /// The user its process belongs to; absent: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<String>,
    #[serde(default, skip_serializing_if = "OnDisconnect::is_default")]
    pub on_disconnect: OnDisconnect,
    #[serde(default)]
    pub depends_on_past: bool,
    #[serde(default)]
    pub wait_for_downstream: bool,
    #[serde(default)]
    pub max_active_per_dag: Option<u32>,
    #[serde(default)]
    pub max_active_per_run: Option<u32>,
}

impl TaskSpec {
    pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(300);
    pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

    /// A task with every default, for tests and for building on.
    pub fn new(id: impl AsRef<str>, kind: TaskKind) -> Self {
        Self {
            id: TaskId::new(id),
            description: None,
            needs: vec![],
            trigger_rule: TriggerRule::default(),
            kind,
            env: BTreeMap::new(),
            retries: 0,
            retry_delay: Self::DEFAULT_RETRY_DELAY,
            retry_backoff: None,
            max_retry_delay: None,
            timeout: None,
            grace: Self::DEFAULT_GRACE,
            pool: PoolName::default_pool(),
            pool_slots: 1,
            priority: 1,
            weight_rule: WeightRule::default(),
            resources: Resources::default(),
            node_selector: BTreeMap::new(),
            tolerations: vec![],
            affinity: Affinity::default(),
            queue: QueueName::default(),
            run_as: None,
            on_disconnect: OnDisconnect::default(),
            depends_on_past: false,
            wait_for_downstream: false,
            max_active_per_dag: None,
            max_active_per_run: None,
        }
    }

    pub fn needs(mut self, upstreams: &[&str]) -> Self {
        self.needs = upstreams.iter().map(TaskId::new).collect();
        self
    }
}

impl DagSpec {
    /// A dag with every default, for tests and for building on.
    pub fn new(id: impl AsRef<str>, tasks: Vec<TaskSpec>) -> Self {
        Self {
            id: DagId::new(id),
            description: None,
            schedule: Schedule::None,
            timezone: "UTC".into(),
            data_intervals: false,
            start_date: None,
            end_date: None,
            catchup: false,
            params: BTreeMap::new(),
            tags: vec![],
            owner: "tenure".into(),
            max_active_runs: Self::DEFAULT_MAX_ACTIVE_RUNS,
            max_active_tasks: Self::DEFAULT_MAX_ACTIVE_TASKS,
            run_timeout: None,
            tasks,
            files: BTreeMap::new(),
        }
    }
}

/// What a task does. Texts are templates, rendered when the attempt is handed out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TaskKind {
    Bash {
        script: String,
    },
    Exec {
        argv: Vec<String>,
    },
    Python {
        source: PythonSource,
        interpreter: String,
        #[serde(default)]
        args: Vec<String>,
    },
    Http {
        #[serde(flatten)]
        request: HttpRequest,
    },
    Empty,
}

impl TaskKind {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bash { .. } => "bash",
            Self::Exec { .. } => "exec",
            Self::Python { .. } => "python",
            Self::Http { .. } => "http",
            Self::Empty => "empty",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PythonSource {
    /// A file of the dag version (a key of `DagSpec::files`).
    File(String),
    Inline(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvValue {
    /// A template.
    Text(String),
    /// The name of a secret that the server resolves when the attempt is handed out. It is in no
    /// version, no row and no log.
    Secret(String),
}

/// How a task's place in the graph adds to its priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightRule {
    /// Own weight plus that of everything downstream: critical paths first.
    #[default]
    Downstream,
    /// Own weight plus that of everything upstream: finish what was begun.
    Upstream,
    Absolute,
}
