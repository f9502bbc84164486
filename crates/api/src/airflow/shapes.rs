//! The JSON of runs, task instances, tries and versions: field for field Airflow's `DAGRunResponse`,
//! `TaskInstanceResponse`, `TaskInstanceHistoryResponse` and `DagVersionResponse`.
//!
//! Promises: the official Airflow client can parse them. What Tenure has no notion of is `null`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tenure_model::{RunType, TaskInstance, TaskSpec, TaskState};
use tenure_store::{RunView, TiView, TryView, VersionView};
use utoipa::ToSchema;
use uuid::Uuid;

/// Where dags come from that were pushed through the API rather than found in the watched folder.
pub const PUSHED: &str = "api";
const FOLDER: &str = "dags-folder";

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DagVersionResponse)]
pub struct VersionShape {
    id: Uuid,
    version_number: u32,
    dag_id: String,
    dag_display_name: String,
    bundle_name: Option<String>,
    /// The content hash of the version.
    bundle_version: Option<String>,
    bundle_url: Option<String>,
    created_at: Timestamp,
}

impl VersionShape {
    pub fn of(version: &VersionView) -> Self {
        let name = format!("{}/{}/{}", version.dag, version.version, version.hash);
        Self {
            id: Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()),
            version_number: version.version,
            dag_id: version.dag.to_string(),
            dag_display_name: version.dag.to_string(),
            bundle_name: Some(bundle(&version.origin).into()),
            bundle_version: Some(version.hash.to_string()),
            bundle_url: None,
            created_at: version.created_at,
        }
    }
}

pub fn bundle(origin: &str) -> &'static str {
    if origin == PUSHED { PUSHED } else { FOLDER }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGRunResponse)]
pub struct RunShape {
    dag_run_id: String,
    dag_id: String,
    dag_display_name: String,
    logical_date: Option<Timestamp>,
    queued_at: Option<Timestamp>,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
    /// Seconds.
    duration: Option<f64>,
    data_interval_start: Option<Timestamp>,
    data_interval_end: Option<Timestamp>,
    run_after: Timestamp,
    last_scheduling_decision: Option<Timestamp>,
    /// `scheduled`, `manual`, `backfill`.
    run_type: &'static str,
    /// `queued`, `running`, `success`, `failed`.
    state: &'static str,
    triggered_by: &'static str,
    triggering_user_name: Option<String>,
    conf: Map<String, Value>,
    note: Option<String>,
    dag_versions: Vec<VersionShape>,
    bundle_version: Option<String>,
    partition_key: Option<String>,
    partition_date: Option<Timestamp>,
    /// Tenure's own: why it is in this state, where its tasks do not say (a timeout, a cancel).
    reason: Option<String>,
}

impl RunShape {
    pub fn of(run: &RunView, version: Option<&VersionView>) -> Self {
        let manual = run.run_type == RunType::Manual;
        Self {
            dag_run_id: run.run_id.to_string(),
            dag_id: run.dag.to_string(),
            dag_display_name: run.dag.to_string(),
            logical_date: run.logical_date,
            queued_at: Some(run.queued_at),
            start_date: run.started_at,
            end_date: run.ended_at,
            duration: seconds_between(run.started_at, run.ended_at),
            data_interval_start: run.data_interval.map(|interval| interval.start),
            data_interval_end: run.data_interval.map(|interval| interval.end),
            run_after: run.run_after,
            last_scheduling_decision: run.started_at.map(|_| run.updated_at),
            run_type: run.run_type.as_str(),
            state: run.state.as_str(),
            triggered_by: match run.run_type {
                RunType::Scheduled => "timetable",
                RunType::Manual => "rest_api",
                RunType::Backfill => "backfill",
            },
            triggering_user_name: manual.then(|| run.triggered_by.clone()),
            conf: run.conf.as_object().cloned().unwrap_or_default(),
            note: run.note.clone(),
            dag_versions: version.map(VersionShape::of).into_iter().collect(),
            bundle_version: version.map(|version| version.hash.to_string()),
            partition_key: None,
            partition_date: None,
            reason: run.reason.clone(),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DAGRunCollectionResponse)]
pub struct RunsShape {
    pub dag_runs: Vec<RunShape>,
    pub total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskInstanceResponse)]
pub struct TaskInstanceShape {
    /// Changes with every try; the tries before keep theirs.
    id: Uuid,
    logical_date: Option<Timestamp>,
    run_after: Timestamp,
    #[serde(flatten)]
    common: TryShape,
    note: Option<String>,
    rendered_map_index: Option<String>,
    rendered_fields: Map<String, Value>,
    trigger: Option<Value>,
    triggerer_job: Option<Value>,
}

/// What a try in force and a try in the past have in common, which is all of the latter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskInstanceHistoryResponse)]
pub struct TryShape {
    task_id: String,
    task_display_name: String,
    dag_id: String,
    dag_display_name: String,
    dag_run_id: String,
    map_index: i32,
    /// `null` for a task that nothing has happened to yet.
    state: Option<&'static str>,
    try_number: u32,
    max_tries: u32,
    scheduled_when: Option<Timestamp>,
    queued_when: Option<Timestamp>,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
    /// Seconds.
    duration: Option<f64>,
    /// The node it runs on.
    hostname: Option<String>,
    unixname: Option<String>,
    pid: Option<u32>,
    pool: String,
    pool_slots: u32,
    queue: Option<String>,
    priority_weight: Option<i32>,
    /// The kind of task: `bash`, `exec`, `python`, `http`, `empty`.
    operator: Option<&'static str>,
    operator_name: Option<&'static str>,
    executor: Option<String>,
    executor_config: &'static str,
    dag_version: Option<VersionShape>,
    /// Tenure's own: why it is in this state (`exit code 3`, `killed by SIGKILL`, `marked failed by admin`).
    reason: Option<String>,
    /// Tenure's own: the placement that was, or is, in force for this try.
    attempt_id: Option<Uuid>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskInstanceCollectionResponse)]
pub struct TaskInstancesShape {
    pub task_instances: Vec<TaskInstanceShape>,
    pub total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskInstanceHistoryCollectionResponse)]
pub struct TriesShape {
    pub task_instances: Vec<TryShape>,
    pub total_entries: u64,
}

impl TaskInstanceShape {
    pub fn of(ti: &TiView, version: Option<&VersionView>) -> Self {
        Self {
            id: ti.key.public_id(ti.instance.try_number),
            logical_date: ti.logical_date,
            run_after: ti.run_after,
            common: TryShape::new(ti, &ti.instance, version),
            note: None,
            rendered_map_index: None,
            rendered_fields: Map::new(),
            trigger: None,
            triggerer_job: None,
        }
    }
}

impl TryShape {
    /// `ti` is the task instance that `try_view` was, or is, a try of.
    pub fn of(ti: &TiView, try_view: &TryView, version: Option<&VersionView>) -> Self {
        Self::new(ti, &try_view.instance, version)
    }

    fn new(ti: &TiView, instance: &TaskInstance, version: Option<&VersionView>) -> Self {
        // A task that a newer version no longer has is not in its spec.
        let spec: Option<&TaskSpec> = version.and_then(|version| version.spec.task(&ti.task_id));
        let kind = spec.map(|spec| spec.kind.name());
        Self {
            task_id: ti.task_id.to_string(),
            task_display_name: ti.task_id.to_string(),
            dag_id: ti.dag.to_string(),
            dag_display_name: ti.dag.to_string(),
            dag_run_id: ti.run_id.to_string(),
            map_index: ti.key.map_index,
            state: state_name(instance.state),
            try_number: instance.try_number,
            max_tries: instance.max_tries,
            scheduled_when: instance.scheduled_at,
            queued_when: instance.queued_at,
            start_date: instance.started_at,
            end_date: instance.ended_at,
            duration: seconds_between(instance.started_at, instance.ended_at),
            hostname: instance.node.as_ref().map(ToString::to_string),
            unixname: None,
            pid: None,
            pool: ti.pool.clone(),
            pool_slots: spec.map_or(1, |spec| spec.pool_slots),
            queue: None,
            priority_weight: spec.map(|spec| spec.priority),
            operator: kind,
            operator_name: kind,
            executor: None,
            executor_config: "{}",
            dag_version: version.map(VersionShape::of),
            reason: instance.reason.clone(),
            attempt_id: instance.attempt.map(|attempt| attempt.0),
        }
    }
}

/// Airflow's name of a state; untouched is `null` there.
pub fn state_name(state: TaskState) -> Option<&'static str> {
    match state {
        TaskState::None => None,
        other => Some(other.as_str()),
    }
}

fn seconds_between(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<f64> {
    Some((to?.duration_since(from?)).as_secs_f64())
}
