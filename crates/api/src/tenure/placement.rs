//! What would become of a task now, without anything happening.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure_model::{DagId, PoolName, QueueName, Resources, RunId, TaskKind, TaskSpec, Toleration};
use tenure_outlook::{Candidate, PoolUse, Preview, Rejection, Request};
use tenure_store::DagView;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::JsonBody;
use crate::state::ApiState;

/// A task of the latest version of a dag, or what a task might ask for, or both: then what is said here goes before what
/// the dag says. Amounts count thousandths of a unit.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PreviewBody {
    dag_id: Option<String>,
    /// Goes with `dag_id`.
    task_id: Option<String>,
    /// A run of the dag: where what the task needs has run there is better for it.
    run_id: Option<String>,
    /// Instead of the same resources of the task.
    #[schema(value_type = Object)]
    resources: Resources,
    /// Labels that the node must carry, beside those of the task.
    labels: BTreeMap<String, String>,
    queue: Option<String>,
    /// Taints that do not keep it away, like `gpu` or `gpu=a100`, beside those of the task.
    tolerations: Vec<String>,
    pool: Option<String>,
    pool_slots: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PreviewShape {
    dag_id: Option<String>,
    task_id: Option<String>,
    /// Of the dag, whose task was looked at.
    version: Option<u32>,
    /// False for a task that has nothing to run.
    needs_node: bool,
    /// What is asked of a node.
    #[schema(value_type = Object)]
    request: Request,
    #[schema(value_type = Object)]
    pool: PoolUse,
    /// Where it would be placed now; absent when it would wait.
    node: Option<String>,
    /// Everything that would keep it waiting, in words.
    held_up_by: Vec<String>,
    /// Nodes that could take it, the best first, with what speaks for each and their use before and after.
    #[schema(value_type = Vec<Object>)]
    candidates: Vec<Candidate>,
    /// Nodes that could not, by name.
    rejected: Vec<RejectedShape>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RejectedShape {
    node: String,
    /// Those that last longest first.
    reasons: Vec<ReasonShape>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ReasonShape {
    #[serde(flatten)]
    #[schema(value_type = Object)]
    rejection: Rejection,
    /// The same in words.
    text: String,
}

/// What would become of a task now: ranked candidates, every rejection with its reason, use before and after, and what
/// else would hold it up. Changes nothing.
#[utoipa::path(post, path = "/api/tenure/placement/preview", tag = "cluster", request_body = PreviewBody,
    responses((status = 200, body = PreviewShape), Refusals))]
pub async fn preview(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<PreviewBody>,
) -> ApiResult<Json<PreviewShape>> {
    let dag = dag_of(&state, &body).await?;
    let run = run_of(&state, dag.as_ref(), &body).await?;
    let task = task_of(dag.as_ref(), body)?;
    let (store, tenant) = (&*state.store, state.tenant());
    let preview = Preview::read(store, state.placement, &tenant, dag.as_ref(), &task, run.as_ref()).await?;
    let Preview { request, pool, held_up_by, explanation } = preview;
    let needs_node = !matches!(task.kind, TaskKind::Empty);
    let best = explanation.candidates.first().filter(|_| held_up_by.is_empty());
    let rejected = explanation.rejected.into_iter().map(|rejected| RejectedShape {
        node: rejected.node.to_string(),
        reasons: rejected.reasons.into_iter().map(ReasonShape::of).collect(),
    });
    Ok(Json(PreviewShape {
        dag_id: dag.as_ref().map(|dag| dag.dag.to_string()),
        task_id: dag.as_ref().map(|_| task.id.to_string()),
        version: dag.as_ref().map(|dag| dag.version),
        needs_node,
        request,
        pool,
        node: best.map(|best| best.node.to_string()),
        held_up_by,
        rejected: rejected.collect(),
        candidates: explanation.candidates,
    }))
}

impl ReasonShape {
    fn of(rejection: Rejection) -> Self {
        Self { text: rejection.in_full(), rejection }
    }
}

async fn dag_of(state: &ApiState, body: &PreviewBody) -> ApiResult<Option<DagView>> {
    match (&body.dag_id, &body.task_id) {
        (None, None) => Ok(None),
        (Some(dag), Some(_)) => {
            let found = state.store.get_dag(&state.tenant(), &DagId::new(dag)).await?;
            let missing = || ApiError::NotFound(format!("The Dag with ID: `{dag}` was not found"));
            found.ok_or_else(missing).map(Some)
        }
        (Some(_), None) => Err(ApiError::field("body", "task_id", "a dag_id needs a task_id beside it")),
        (None, Some(_)) => Err(ApiError::field("body", "dag_id", "a task_id needs a dag_id beside it")),
    }
}

async fn run_of(state: &ApiState, dag: Option<&DagView>, body: &PreviewBody) -> ApiResult<Option<RunId>> {
    match (dag, &body.run_id) {
        (_, None) => Ok(None),
        (Some(dag), Some(run)) => Ok(Some(state.require_run(dag.dag.as_str(), run).await?.run_id)),
        (None, Some(_)) => Err(ApiError::field("body", "dag_id", "a run_id needs a dag_id beside it")),
    }
}

fn task_of(dag: Option<&DagView>, body: PreviewBody) -> ApiResult<TaskSpec> {
    let mut task = match (dag, &body.task_id) {
        (Some(dag), Some(id)) => {
            let known = dag.spec.tasks.iter().find(|task| task.id.as_str() == id);
            let missing = || {
                let names: Vec<&str> = dag.spec.tasks.iter().take(10).map(|task| task.id.as_str()).collect();
                let more = if dag.spec.tasks.len() > names.len() { ", …" } else { "" };
                ApiError::NotFound(format!(
                    "Dag `{}` has no task `{id}`; it has {}{more}.",
                    dag.dag,
                    names.join(", ")
                ))
            };
            known.cloned().ok_or_else(missing)?
        }
        // What it runs does not matter; that it runs something does.
        _ => TaskSpec::new("preview", TaskKind::Exec { argv: vec![] }),
    };
    task.resources.0.extend(body.resources.0);
    if task.resources.0.contains_key(Resources::TASKS) {
        return Err(ApiError::field(
            "body",
            "resources",
            "every task takes one of `tasks`, and no other number",
        ));
    }
    task.node_selector.extend(body.labels);
    for text in body.tolerations {
        let toleration: Toleration =
            text.parse().map_err(|error| ApiError::field("body", "tolerations", format!("{error}")))?;
        task.tolerations.push(toleration);
    }
    if let Some(queue) = body.queue {
        task.queue = QueueName::new(queue);
    }
    if let Some(pool) = body.pool {
        task.pool = PoolName::new(pool);
    }
    if let Some(slots) = body.pool_slots {
        task.pool_slots = slots;
    }
    Ok(task)
}
