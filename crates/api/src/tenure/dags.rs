//! Dag files over HTTP: push one, check one, and what is wrong in the watched folder.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tenure_model::DagSpec;
use tenure_store::DagRegistration;
use utoipa::{IntoParams, ToSchema};

use crate::airflow::PUSHED;
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::{Query, body_bytes, parse_json};
use crate::state::{ApiState, Attachments, Diagnostic, ImportError};

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PushQuery {
    /// How errors name the file, when the body is the text itself.
    file_name: Option<String>,
    /// Whether a dag that is new starts paused: true unless said otherwise. One that exists stays as it is.
    paused: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBody {
    /// The text of the dag file (YAML).
    source: String,
    /// How errors name it.
    #[serde(default)]
    file_name: Option<String>,
    /// Scripts that its tasks name, by their path beside the dag file: `{"load": {"content": "…", "executable": true}}`.
    #[serde(default)]
    #[schema(value_type = Object)]
    files: Attachments,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PushResponse {
    dag_id: String,
    version_number: u32,
    /// The content hash of the version.
    hash: String,
    /// False: this content was in force already.
    changed: bool,
    new_dag: bool,
    is_paused: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ValidateResponse {
    dag_id: String,
    tasks: usize,
    /// What the version's content hash would be.
    hash: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorsResponse {
    import_errors: Vec<ImportErrorShape>,
    total_entries: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ImportErrorShape {
    #[serde(flatten)]
    error: ImportError,
    /// All problems as one text, a line each.
    message: String,
}

/// Register a dag: the body is the YAML text, or JSON with `source`, `file_name` and `files`.
#[utoipa::path(post, path = "/api/tenure/dags", tag = "dags", params(PushQuery),
    request_body(content((PushBody = "application/json"), (String = "application/yaml"))), responses(
    (status = 201, description = "A new version is in force", body = PushResponse),
    (status = 200, description = "This content was in force already", body = PushResponse),
    Refusals,
))]
pub async fn push(
    State(state): State<ApiState>,
    Query(query): Query<PushQuery>,
    request: Request,
) -> ApiResult<(StatusCode, Json<PushResponse>)> {
    let paused_if_new = query.paused.unwrap_or(true);
    let pushed = read(&state, query, request).await?;
    let (spec, source) = parse(&state, pushed).await?;
    let registration =
        DagRegistration { trigger: state.trigger(), spec, source, origin: PUSHED.into(), paused_if_new };
    let registered = state.store.register_dag(&registration).await?;
    let version = registered.version;
    let dag = state.store.get_dag(&state.tenant(), &version.dag).await?;
    let status = if registered.changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((
        status,
        Json(PushResponse {
            dag_id: version.dag.to_string(),
            version_number: version.version,
            hash: version.hash.to_string(),
            changed: registered.changed,
            new_dag: registered.new_dag,
            is_paused: dag.is_some_and(|dag| dag.paused),
        }),
    ))
}

/// Check a dag file and change nothing. The body is as for pushing.
#[utoipa::path(post, path = "/api/tenure/dags/validate", tag = "dags", params(PushQuery),
    request_body(content((PushBody = "application/json"), (String = "application/yaml"))),
    responses((status = 200, body = ValidateResponse), Refusals))]
pub async fn validate(
    State(state): State<ApiState>,
    Query(query): Query<PushQuery>,
    request: Request,
) -> ApiResult<Json<ValidateResponse>> {
    let pushed = read(&state, query, request).await?;
    let (spec, _) = parse(&state, pushed).await?;
    Ok(Json(ValidateResponse {
        dag_id: spec.id.to_string(),
        tasks: spec.tasks.len(),
        hash: spec.hash().to_string(),
    }))
}

/// Files of the watched folder that are not in force, and why.
#[utoipa::path(get, path = "/api/tenure/dags/errors", tag = "dags",
    responses((status = 200, body = ErrorsResponse), Refusals))]
pub async fn errors(State(state): State<ApiState>) -> Json<ErrorsResponse> {
    let errors = state.import_errors.read().expect("nobody panics while writing import errors").clone();
    let shape = |error: ImportError| {
        let lines: Vec<_> = error.diagnostics.iter().map(Diagnostic::to_string).collect();
        ImportErrorShape { message: lines.join("\n"), error }
    };
    let import_errors: Vec<_> = errors.into_iter().map(shape).collect();
    Json(ErrorsResponse { total_entries: import_errors.len() as u64, import_errors })
}

struct Pushed {
    file_name: String,
    text: String,
    files: Attachments,
}

async fn read(state: &ApiState, query: PushQuery, request: Request) -> ApiResult<Pushed> {
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.starts_with("application/json");
    let bytes = body_bytes(request, state).await?;
    let (text, file_name, files) = if is_json {
        let body: PushBody = parse_json(&bytes)?;
        (body.source, body.file_name.or(query.file_name), body.files)
    } else {
        let text = String::from_utf8(bytes.into()).map_err(|_| ApiError::body("not UTF-8 text"))?;
        (text, query.file_name, Attachments::new())
    };
    Ok(Pushed { file_name: file_name.unwrap_or_else(|| "dag.yaml".into()), text, files })
}

/// Off the async threads: a file of megabytes takes its time.
async fn parse(state: &ApiState, pushed: Pushed) -> ApiResult<(DagSpec, String)> {
    let parser = state.parser.clone();
    let parsed = tokio::task::spawn_blocking(move || {
        let spec = parser(&pushed.file_name, &pushed.text, pushed.files);
        spec.map(|spec| (spec, pushed.text))
    });
    match parsed.await {
        Ok(result) => result.map_err(ApiError::BadDag),
        Err(error) => {
            tracing::error!(%error, "the parser panicked");
            Err(ApiError::Internal("The dag file made the parser fail; this is a bug of the server.".into()))
        }
    }
}
