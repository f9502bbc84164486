//! What a try has printed, readable while it runs.
//!
//! Promises: whoever follows with the continuation token misses nothing, and the token ends (`null`) only
//! some time after the try has ended, when everything stored was handed out.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::{Timestamp, ToSpan};
use object_store::path::Path as LogPath;
use serde::{Deserialize, Serialize};
use tenure_logs::{LogChunk, LogCursor};
use tenure_model::TaskState;
use tenure_store::TryView;
use utoipa::{IntoParams, ToSchema};

use super::task_instances::no_such_try;
use super::{MappedTaskPath, TaskPath};
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{PathArgs, Query, wants_text};
use crate::state::ApiState;

/// Where the next piece begins, for clients that follow a log as text.
const CONTINUATION: HeaderName = HeaderName::from_static("x-continuation-token");
/// Pieces are about 1 MiB each; a whole log as one JSON document ends somewhere.
const MOST_JSON_PIECES: usize = 16;
/// An agent reports the end of a try and stores the rest of its output side by side, so that a slow log store
/// holds no task up. A reader waits this much longer for the rest.
const STRAGGLERS_SECONDS: i64 = 2;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct LogPathArgs {
    dag_id: String,
    dag_run_id: String,
    task_id: String,
    try_number: u32,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Everything at once instead of a piece of about 1 MiB.
    full_content: bool,
    map_index: Option<i32>,
    /// The continuation token that came with the piece before; `start` for the beginning.
    token: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskInstancesLogResponse)]
pub struct LogShape {
    /// One per line.
    content: Vec<LogLine>,
    /// Send it back to read on; `null` when the try has ended and this was all.
    continuation_token: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StructuredLogMessage)]
pub struct LogLine {
    event: String,
}

/// The log of a try: JSON, or with `Accept: text/plain` the text as it is. As text without a `token` it is
/// the whole log; with one it is the next piece, and `X-Continuation-Token` says where to go on (it is absent
/// when the try has ended and this was all).
#[utoipa::path(get, path =
    "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/logs/{try_number}", tag = "task instances",
    params(LogPathArgs, LogQuery),
    responses((status = 200, content((LogShape = "application/json"), (String = "text/plain"))), Refusals))]
pub async fn log(
    State(state): State<ApiState>,
    PathArgs(args): PathArgs<LogPathArgs>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let LogPathArgs { dag_id, dag_run_id, task_id, try_number } = args;
    let path = TaskPath { dag_id, dag_run_id, task_id }.at(query.map_index);
    // Read before the log: when the try has ended by now, so has its log.
    let ended = has_ended(&state, &path, try_number).await?;
    let log = Log { prefix: prefix(&state, &path, try_number), ended };
    let from = match &query.token {
        None => LogCursor::Start,
        Some(token) => {
            token.parse().map_err(|error| ApiError::field("query", "token", format!("{error}")))?
        }
    };
    match (wants_text(&headers), query.token.is_some() && !query.full_content) {
        (true, true) => log.text_piece(&state, from).await,
        (true, false) => Ok(log.whole_text(&state, from)),
        (false, _) => log.json(&state, from, if query.full_content { MOST_JSON_PIECES } else { 1 }).await,
    }
}

struct Log {
    prefix: LogPath,
    ended: bool,
}

impl Log {
    async fn json(&self, state: &ApiState, from: LogCursor, pieces: usize) -> ApiResult<Response> {
        let mut text = String::new();
        let mut chunk = LogChunk { text: String::new(), next: from, more: true };
        for _ in 0..pieces {
            chunk = tenure_logs::read(&*state.logs, &self.prefix, chunk.next).await?;
            text.push_str(&chunk.text);
            if !chunk.more {
                break;
            }
        }
        let content = text.lines().map(|line| LogLine { event: line.to_owned() }).collect();
        Ok(Json(LogShape { content, continuation_token: self.token(&chunk) }).into_response())
    }

    async fn text_piece(&self, state: &ApiState, from: LogCursor) -> ApiResult<Response> {
        let chunk = tenure_logs::read(&*state.logs, &self.prefix, from).await?;
        let token = self.token(&chunk);
        let mut response = text_response(Body::from(chunk.text));
        if let Some(token) = token {
            let token = HeaderValue::try_from(token).expect("a cursor is printed in ASCII");
            response.headers_mut().insert(CONTINUATION, token);
        }
        Ok(response)
    }

    /// Piece by piece, so that a log of any size passes through little memory.
    fn whole_text(&self, state: &ApiState, from: LogCursor) -> Response {
        let (logs, prefix) = (state.logs.clone(), self.prefix.clone());
        let pieces = stream::try_unfold(Some(from), move |from| {
            let (logs, prefix) = (logs.clone(), prefix.clone());
            async move {
                let Some(from) = from else { return Ok(None) };
                let chunk = tenure_logs::read(&*logs, &prefix, from).await?;
                Ok::<_, tenure_logs::LogError>(Some((chunk.text, chunk.more.then_some(chunk.next))))
            }
        });
        text_response(Body::from_stream(pieces))
    }

    fn token(&self, chunk: &LogChunk) -> Option<String> {
        (chunk.more || !self.ended).then(|| chunk.next.to_string())
    }
}

fn text_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn prefix(state: &ApiState, path: &MappedTaskPath, try_number: u32) -> LogPath {
    let (dag, run, task) =
        (path.dag_id.as_str().into(), path.dag_run_id.as_str().into(), path.task_id.as_str().into());
    tenure_logs::prefix(&state.tenant(), &dag, &run, &task, path.map_index, try_number)
}

/// Nothing more will be printed by this try.
async fn has_ended(state: &ApiState, path: &MappedTaskPath, number: u32) -> ApiResult<bool> {
    let ti = state.require_ti(path).await?;
    let tries =
        state.store.list_tries(&state.tenant(), &ti.dag, &ti.run_id, &ti.task_id, path.map_index).await?;
    match tries.iter().find(|one| one.instance.try_number == number) {
        Some(one) => Ok(is_over(one, state.clock.now())),
        // Asking for the log of a try that is about to come is not wrong; of one that cannot come, it is.
        None if number == ti.instance.try_number + 1 => Ok(false),
        None => Err(no_such_try(path, number)),
    }
}

fn is_over(one: &TryView, now: Timestamp) -> bool {
    let instance = &one.instance;
    let ended = !one.current || instance.state.is_finished() || instance.state == TaskState::UpForRetry;
    let settled = instance.ended_at.is_none_or(|ended_at| ended_at + STRAGGLERS_SECONDS.seconds() <= now);
    // What never started has printed nothing.
    ended && (settled || instance.started_at.is_none())
}
