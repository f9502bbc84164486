//! The machines that run tasks: what they have, what is used of it, who hears them, and emptying them.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tenure_model::{NodeId, Resources, duration};
use tenure_outlook::{Hearing, Picture};
use tenure_store::{NodeRecord, Paging, TiQuery, TiView, drain_scope};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{JsonBody, PathArgs};
use crate::state::ApiState;

/// What runs on a node, as far as one answer lists it.
const MOST_TASKS: u32 = 1000;
/// How long tasks may take to finish when nobody says.
const DEADLINE: Duration = Duration::from_secs(600);
/// A deadline beyond this is a typing error.
const LONGEST_DEADLINE: Duration = Duration::from_secs(366 * 24 * 3600);

#[derive(Debug, Serialize, ToSchema)]
pub struct Nodes {
    nodes: Vec<NodeShape>,
    total_entries: u64,
}

/// Amounts count thousandths of a unit.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeShape {
    #[serde(flatten)]
    #[schema(value_type = Object)]
    record: NodeRecord,
    draining: bool,
    /// What attempts that are bound there take.
    #[schema(value_type = Object)]
    used: Resources,
    /// How many attempts are bound there.
    tasks: u32,
    /// Replicas that hear from it. None: it is not connected.
    #[schema(value_type = Vec<Object>)]
    heard_by: Vec<Hearing>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct NodeDetail {
    #[serde(flatten)]
    node: NodeShape,
    /// Who sees its drain through: the holder of the lease `node/<id>/drain`.
    drain_holder: Option<String>,
    /// What is bound there; the first thousand.
    running: Vec<RunningShape>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RunningShape {
    dag_id: String,
    run_id: String,
    task_id: String,
    map_index: i32,
    state: &'static str,
    try_number: u32,
    attempt: Option<String>,
    queued_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct NodePath {
    node: String,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DrainBody {
    /// How long what runs there may take to finish, `10m` without it; then it is stopped and goes elsewhere.
    deadline: Option<String>,
}

/// The machines that have an agent, what they have to offer, and what is used of it.
#[utoipa::path(get, path = "/api/tenure/nodes", tag = "cluster", responses((status = 200, body = Nodes), Refusals))]
pub async fn list(State(state): State<ApiState>) -> ApiResult<Json<Nodes>> {
    let picture = Picture::read(&*state.store).await?;
    let nodes: Vec<NodeShape> = picture.nodes.iter().map(|node| NodeShape::of(node, &picture)).collect();
    Ok(Json(Nodes { total_entries: nodes.len() as u64, nodes }))
}

/// One machine, with what runs there and how far its drain is.
#[utoipa::path(get, path = "/api/tenure/nodes/{node}", tag = "cluster", params(NodePath),
    responses((status = 200, body = NodeDetail), Refusals))]
pub async fn show(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<NodePath>,
) -> ApiResult<Json<NodeDetail>> {
    detail(&state, &NodeId::new(&path.node)).await.map(Json)
}

/// Empties a machine: it gets nothing new from now on, and what runs there may finish until the deadline. Asked for
/// again, the deadline is the new one.
#[utoipa::path(post, path = "/api/tenure/nodes/{node}/drain", tag = "cluster", params(NodePath),
    request_body = DrainBody, responses((status = 200, body = NodeDetail), Refusals))]
pub async fn drain(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<NodePath>,
    JsonBody(body): JsonBody<DrainBody>,
) -> ApiResult<Json<NodeDetail>> {
    let refused = |message: String| ApiError::field("body", "deadline", message);
    let time = match &body.deadline {
        None => DEADLINE,
        Some(text) => duration::parse(text).map_err(|error| refused(error.to_string()))?,
    };
    if time > LONGEST_DEADLINE {
        return Err(refused(format!("{} is more than a year", duration::format(time))));
    }
    let trigger = state.trigger();
    let deadline = trigger.at + SignedDuration::try_from(time).expect("a year fits");
    let node = NodeId::new(&path.node);
    state.store.drain_node(&trigger, &node, deadline).await?;
    detail(&state, &node).await.map(Json)
}

/// Lets a machine take work again.
#[utoipa::path(post, path = "/api/tenure/nodes/{node}/undrain", tag = "cluster", params(NodePath),
    responses((status = 200, body = NodeDetail), Refusals))]
pub async fn undrain(
    State(state): State<ApiState>,
    PathArgs(path): PathArgs<NodePath>,
) -> ApiResult<Json<NodeDetail>> {
    let node = NodeId::new(&path.node);
    state.store.undrain_node(&state.trigger(), &node).await?;
    detail(&state, &node).await.map(Json)
}

async fn detail(state: &ApiState, node: &NodeId) -> ApiResult<NodeDetail> {
    let picture = Picture::read(&*state.store).await?;
    let record = picture.node(node.as_str());
    let record = record.ok_or_else(|| ApiError::NotFound(format!("There is no node `{node}`.")))?;
    let bound = TiQuery {
        tenant: state.tenant(),
        dag: None,
        run: None,
        task: None,
        map_index: None,
        states: vec![],
        pools: vec![],
        bound_to: Some(node.clone()),
        paging: Paging { limit: MOST_TASKS, ..Paging::default() },
    };
    let running = state.store.list_tis(&bound).await?.items.iter().map(RunningShape::of).collect();
    let lease = match record.drain {
        Some(_) => state.leases.find_lease(&drain_scope(node)).await?,
        None => None,
    };
    let drain_holder = lease.filter(|lease| lease.is_held()).map(|lease| lease.holder.to_string());
    Ok(NodeDetail { node: NodeShape::of(record, &picture), drain_holder, running })
}

impl NodeShape {
    fn of(node: &NodeRecord, picture: &Picture) -> Self {
        Self {
            draining: node.drain.is_some(),
            used: picture.used(&node.node),
            tasks: picture.bound(&node.node),
            heard_by: picture.heard_by(&node.node).to_vec(),
            record: node.clone(),
        }
    }
}

impl RunningShape {
    fn of(ti: &TiView) -> Self {
        Self {
            dag_id: ti.dag.to_string(),
            run_id: ti.run_id.to_string(),
            task_id: ti.task_id.to_string(),
            map_index: ti.key.map_index,
            state: ti.instance.state.as_str(),
            try_number: ti.instance.try_number,
            attempt: ti.instance.attempt.map(|attempt| attempt.to_string()),
            queued_at: ti.instance.queued_at,
            started_at: ti.instance.started_at,
        }
    }
}
