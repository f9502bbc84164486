//! The audit trail in the shape of Airflow's event log: one event per transaction and run. The richer form
//! is `GET /api/tenure/audit`.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_model::{DagId, RunId};
use tenure_store::{AuditEntry, AuditQuery, AuditView};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiResult, Refusals};
use crate::input::{Query, paging};
use crate::state::ApiState;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// At most 1000; 50 without it.
    limit: Option<u32>,
    offset: Option<u32>,
    dag_id: Option<String>,
    run_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventLogCollectionResponse)]
pub struct EventsShape {
    event_logs: Vec<EventShape>,
    total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventLogResponse)]
pub struct EventShape {
    event_log_id: i64,
    when: Timestamp,
    dag_id: Option<String>,
    dag_display_name: Option<String>,
    run_id: Option<String>,
    task_id: Option<String>,
    task_display_name: Option<String>,
    map_index: Option<i32>,
    try_number: Option<u32>,
    logical_date: Option<Timestamp>,
    /// What happened, or `transitions` for several things at once; `extra` has them all.
    event: String,
    owner: String,
    /// JSON text.
    extra: String,
}

/// What has happened, oldest first.
#[utoipa::path(get, path = "/api/v2/eventLogs", tag = "audit", params(EventsQuery),
    responses((status = 200, body = EventsShape), Refusals))]
pub async fn list(
    State(state): State<ApiState>,
    Query(query): Query<EventsQuery>,
) -> ApiResult<Json<EventsShape>> {
    let query = AuditQuery {
        tenant: state.tenant(),
        dag: query.dag_id.map(DagId::from),
        run: query.run_id.map(RunId::from),
        after_seq: None,
        paging: paging(query.limit, query.offset, &[], &[])?,
    };
    let page = state.store.list_audit(&query).await?;
    let event_logs = page.items.iter().map(EventShape::of).collect();
    Ok(Json(EventsShape { event_logs, total_entries: page.total }))
}

impl EventShape {
    fn of(row: &AuditView) -> Self {
        let single = match row.entries.as_slice() {
            [entry] => Some(entry),
            _ => None,
        };
        let task = single.and_then(|entry| entry.task.as_ref()).map(ToString::to_string);
        let dag = row.dag.as_ref().map(ToString::to_string);
        Self {
            event_log_id: row.seq,
            when: row.at,
            dag_id: dag.clone(),
            dag_display_name: dag,
            run_id: row.run_id.as_ref().map(ToString::to_string),
            task_id: task.clone(),
            task_display_name: task,
            map_index: single.and_then(|entry| entry.map_index),
            try_number: single.and_then(|entry| entry.try_number),
            logical_date: None,
            event: common_event(&row.entries),
            owner: row.actor.clone(),
            extra: serde_json::to_string(&row.entries).expect("audit entries are plain data"),
        }
    }
}

fn common_event(entries: &[AuditEntry]) -> String {
    match entries {
        [first, rest @ ..] if rest.iter().all(|entry| entry.event == first.event) => first.event.clone(),
        _ => "transitions".into(),
    }
}
