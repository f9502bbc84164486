//! Live progress of one run, by long polling: an answer comes when something has changed.
//!
//! Promises: a watcher that sends the last revision it has seen misses no final state; the state of the run
//! and of its tasks in one answer belong together. It does not promise every state in between.

use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_model::{DagId, RunKey, ShardId, TiKey, duration};
use tenure_outlook::Reasons;
use tenure_store::{CachedTi, RunSnapshot, RunView};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{PathArgs, Query};
use crate::serve::Stopping;
use crate::state::ApiState;

/// Below the time limit of requests, with room for reading the run.
const LONGEST_WAIT: Duration = Duration::from_secs(25);
/// At most 20 reads a second for one watcher, fewer for big runs: 10,000 tasks are read 5 times a second.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_PER_TASK: Duration = Duration::from_micros(20);
/// Another process may own the run, and its commits do not reach `changes` here.
const LOOK_ANYWAY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ProgressPath {
    dag_id: String,
    run_id: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProgressQuery {
    /// Answer when the run has moved on from this revision; at once without it.
    after_revision: Option<i64>,
    /// Also say why tasks wait that have not begun, as far as can be told from the database now. It costs a few reads
    /// more, so ask for it when somebody reads the answer.
    reasons: Option<bool>,
    /// For how long to wait for that, `20s` at most 25s; what is there is the answer then.
    wait: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Progress {
    dag_id: String,
    run_id: String,
    state: &'static str,
    /// Whether anything more will happen by itself.
    finished: bool,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    /// Why it failed, where that is not a failed task; with `reasons`, also why it has not begun.
    reason: Option<String>,
    /// Send it back as `after_revision`.
    revision: i64,
    /// In the order of the dag file.
    tasks: Vec<TaskProgress>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TaskProgress {
    id: String,
    map_index: i32,
    state: &'static str,
    try_number: u32,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    node: Option<String>,
    reason: Option<String>,
}

/// A run and all its tasks, as soon as they have changed.
#[utoipa::path(get, path = "/api/tenure/dags/{dag_id}/runs/{run_id}/progress", tag = "runs",
    params(ProgressPath, ProgressQuery), responses((status = 200, body = Progress), Refusals))]
pub async fn progress(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<ProgressPath>,
    Query(query): Query<ProgressQuery>,
    stopping: Option<Extension<Stopping>>,
) -> ApiResult<Json<Progress>> {
    let wait = match &query.wait {
        None => Duration::ZERO,
        Some(text) => {
            duration::parse(text).map_err(|error| ApiError::field("query", "wait", error.to_string()))?
        }
    };
    let stopping = stopping.map_or_else(CancellationToken::new, |Extension(Stopping(token))| token);
    let mut deadline = std::pin::pin!(tokio::time::sleep(wait.min(LONGEST_WAIT)));
    let shards = state.store.shard_count().await?;
    let shard = ShardId::of(&state.tenant(), &DagId::new(&path.dag_id), shards);
    let mut hints = Hints { changes: state.changes.clone(), wakes: state.store.wakes(shard) };
    loop {
        hints.forget();
        let (run, snapshot) = read(&state, &path).await?;
        // When they do not belong together, the run has just moved on: look again.
        let consistent = run.state == snapshot.header.state;
        let news = query.after_revision.is_none_or(|seen| snapshot.header.revision != seen);
        let over = deadline.is_elapsed() || stopping.is_cancelled();
        if consistent && (news || over) {
            let reasons = match query.reasons.unwrap_or(false) {
                true => {
                    Reasons::of(&*state.store, std::slice::from_ref(&snapshot), state.clock.now()).await?
                }
                false => Reasons::default(),
            };
            return Ok(Json(Progress::of(&run, &snapshot, &reasons)));
        }
        let pause = SHORTEST_PAUSE.max(PAUSE_PER_TASK * snapshot.tis.len() as u32);
        tokio::select! {
            () = deadline.as_mut(), if !over => {}
            () = stopping.cancelled(), if !over => {}
            () = async { tokio::join!(hints.next(consistent), tokio::time::sleep(pause)); } => {}
        }
    }
}

/// The snapshot first: then the view is as new, or newer and seen to be so by its state.
async fn read(state: &ApiState, path: &ProgressPath) -> ApiResult<(RunView, RunSnapshot)> {
    let key = state.require_run(&path.dag_id, &path.run_id).await?.key;
    let mut loaded = state.store.load_runs(&[key]).await?;
    let run = state.require_run(&path.dag_id, &path.run_id).await?;
    if let Some((_, why)) = loaded.unreadable.pop() {
        return Err(ApiError::Internal(format!("The run `{}` cannot be read: {why}.", path.run_id)));
    }
    match loaded.runs.pop() {
        Some(snapshot) if run.key == key => Ok((run, snapshot)),
        _ => Err(ApiError::NotFound(format!("The run `{}` was deleted while it was read", path.run_id))),
    }
}

struct Hints {
    changes: watch::Receiver<u64>,
    wakes: watch::Receiver<u64>,
}

impl Hints {
    fn forget(&mut self) {
        self.changes.mark_unchanged();
        self.wakes.mark_unchanged();
    }

    /// Until there is reason to look again.
    async fn next(&mut self, consistent: bool) {
        if !consistent {
            return;
        }
        tokio::select! {
            Ok(()) = self.changes.changed() => {}
            Ok(()) = self.wakes.changed() => {}
            () = tokio::time::sleep(LOOK_ANYWAY_AFTER) => {}
        }
    }
}

impl Progress {
    fn of(run: &RunView, snapshot: &RunSnapshot, reasons: &Reasons) -> Self {
        let mut tis: Vec<&CachedTi> = snapshot.tis.iter().collect();
        tis.sort_by_key(|ti| (ti.task, ti.map_index));
        Self {
            dag_id: run.dag.to_string(),
            run_id: run.run_id.to_string(),
            state: run.state.as_str(),
            finished: run.state.is_finished(),
            started_at: run.started_at,
            ended_at: run.ended_at,
            reason: run.reason.clone().or_else(|| reasons.runs.get(&run.key).cloned()),
            revision: snapshot.header.revision,
            tasks: tis.into_iter().map(|ti| TaskProgress::of(run.key, ti, reasons)).collect(),
        }
    }
}

impl TaskProgress {
    fn of(run: RunKey, cached: &CachedTi, reasons: &Reasons) -> Self {
        let ti = &cached.ti;
        let key = TiKey { run, task: cached.task, map_index: cached.map_index };
        Self {
            id: cached.task_id.to_string(),
            map_index: cached.map_index,
            state: ti.state.as_str(),
            try_number: ti.try_number,
            started_at: ti.started_at,
            ended_at: ti.ended_at,
            node: ti.node.as_ref().map(ToString::to_string),
            // What holds it up now says more than why it is back in line.
            reason: reasons.tasks.get(&key).or(ti.reason.as_ref()).cloned(),
        }
    }
}
