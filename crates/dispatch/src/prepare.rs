//! From a binding to an assignment: every template rendered, every secret resolved, every file inside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tenure_model::spec::PythonSource;
use tenure_model::{
    Assignment, AttemptId, DagSpec, DataInterval, EmbeddedFile, EnvValue, HttpRequest, NodeId, Program,
    RunId, TaskKind, TaskSpec, TenantId, TiKey,
};
use tenure_store::{Store, StoreError};

use crate::template::Renderer;

/// A committed decision: this attempt runs on that node.
#[derive(Clone, Debug)]
pub struct Binding {
    pub attempt: AttemptId,
    pub ti: TiKey,
    pub node: NodeId,
    pub scope: String,
    pub epoch: u64,
    pub tenant: TenantId,
    pub run: Arc<RunContext>,
    pub spec: Arc<DagSpec>,
    /// Position of the task in `spec`.
    pub task: usize,
    pub try_number: u32,
}

impl Binding {
    pub fn task(&self) -> &TaskSpec {
        &self.spec.tasks[self.task]
    }
}

/// What templates can see of a run.
#[derive(Clone, Debug)]
pub struct RunContext {
    pub run_id: RunId,
    pub logical_date: Option<Timestamp>,
    pub data_interval: Option<DataInterval>,
    pub run_after: Timestamp,
    pub conf: Value,
}

/// Where the values of `{ secret: NAME }` come from.
pub trait SecretSource: Send + Sync {
    fn secret(&self, name: &str) -> Option<String>;
}

/// Secrets from the server's own environment: `api-token` is `TENURE_SECRET_API_TOKEN`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvSecrets;

impl SecretSource for EnvSecrets {
    fn secret(&self, name: &str) -> Option<String> {
        std::env::var(secret_variable(name)).ok()
    }
}

/// A name that every shell can set.
fn secret_variable(name: &str) -> String {
    let plain = |sign: char| if sign.is_ascii_alphanumeric() { sign.to_ascii_uppercase() } else { '_' };
    format!("TENURE_SECRET_{}", name.chars().map(plain).collect::<String>())
}

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("template in {field}, line {line}: {error}")]
    Template { field: &'static str, line: usize, error: String },
    #[error(
        "env {variable} asks for the secret {name:?}, which is not there: set {} for the server",
        secret_variable(name)
    )]
    NoSecret { variable: String, name: String },
    #[error("the results of earlier tasks could not be read: {0}")]
    Results(#[from] StoreError),
}

impl PrepareError {
    /// Trying again later may well succeed.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Results(StoreError::Unavailable { .. } | StoreError::Unknown { .. }))
    }
}

/// Linux takes at most 128 KiB in one argument; longer scripts travel as a file.
const LONGEST_ARGUMENT: usize = 100 * 1024;

pub(crate) async fn prepare(
    binding: &Binding,
    store: &dyn Store,
    secrets: &dyn SecretSource,
) -> Result<Assignment, PrepareError> {
    let params = params(&binding.spec, &binding.run.conf);
    let results = if mentions_results(binding.task()) { results(binding, store).await? } else { Value::Null };
    let mut hidden = BTreeSet::new();
    hide_sensitive(&params, &mut hidden);
    hide_sensitive(&binding.run.conf, &mut hidden);

    let renderer = Renderer::new(binding, &params, &results);
    let task = binding.task();
    let env = environment(task, &renderer, secrets, &mut hidden)?;
    let mut files = binding.spec.files.clone();
    let program = program(task, &renderer, binding.attempt, &mut files)?;
    Ok(Assignment {
        attempt: binding.attempt,
        ti: binding.ti,
        node: binding.node.clone(),
        scope: binding.scope.clone(),
        epoch: binding.epoch,
        tenant: binding.tenant.clone(),
        dag: binding.spec.id.clone(),
        run_id: binding.run.run_id.clone(),
        task: task.id.clone(),
        try_number: binding.try_number,
        program,
        env,
        files,
        timeout: task.timeout,
        grace: task.grace,
        secrets: hidden.into_iter().collect(),
        resources: task.resources.clone(),
        run_as: task.run_as.clone(),
        on_disconnect: task.on_disconnect,
    })
}

fn program(
    task: &TaskSpec,
    renderer: &Renderer<'_>,
    attempt: AttemptId,
    files: &mut BTreeMap<String, EmbeddedFile>,
) -> Result<Program, PrepareError> {
    // A script too long for an argument becomes a file of this attempt.
    let mut inline = |flag: &str, interpreter: String, ending: &str, script: String| {
        if script.len() <= LONGEST_ARGUMENT {
            return vec![interpreter, flag.to_owned(), script];
        }
        let name = format!(".tenure-{attempt}.{ending}");
        files.insert(name.clone(), EmbeddedFile { content: script, executable: false });
        vec![interpreter, name]
    };
    let all = |field, texts: &[String]| {
        texts.iter().map(|text| renderer.text(field, text)).collect::<Result<Vec<_>, _>>()
    };
    let argv = match &task.kind {
        TaskKind::Bash { script } => inline("-c", "bash".into(), "sh", renderer.text("bash", script)?),
        TaskKind::Exec { argv } => all("exec", argv)?,
        TaskKind::Python { source, interpreter, args } => {
            let interpreter = renderer.text("python.interpreter", interpreter)?;
            let mut argv = match source {
                PythonSource::File(name) => vec![interpreter, name.clone()],
                PythonSource::Inline(code) => inline("-c", interpreter, "py", renderer.text("python", code)?),
            };
            argv.extend(all("python.args", args)?);
            argv
        }
        TaskKind::Http { request } => return Ok(Program::Http { request: http(request, renderer)? }),
        // The planner completes empty tasks itself; one that arrives here does nothing, successfully.
        TaskKind::Empty => vec!["true".into()],
    };
    Ok(Program::Process { argv })
}

fn http(request: &HttpRequest, renderer: &Renderer<'_>) -> Result<HttpRequest, PrepareError> {
    let headers = request
        .headers
        .iter()
        .map(|(name, value)| Ok((name.clone(), renderer.text("http.headers", value)?)))
        .collect::<Result<_, PrepareError>>()?;
    Ok(HttpRequest {
        method: renderer.text("http.method", &request.method)?,
        url: renderer.text("http.url", &request.url)?,
        headers,
        body: request.body.as_deref().map(|body| renderer.text("http.body", body)).transpose()?,
        expected_status: request.expected_status.clone(),
    })
}

fn environment(
    task: &TaskSpec,
    renderer: &Renderer<'_>,
    secrets: &dyn SecretSource,
    hidden: &mut BTreeSet<String>,
) -> Result<BTreeMap<String, String>, PrepareError> {
    let mut env = BTreeMap::new();
    for (variable, value) in &task.env {
        let value = match value {
            EnvValue::Text(text) => renderer.text("env", text)?,
            EnvValue::Secret(name) => {
                let missing = || PrepareError::NoSecret { variable: variable.clone(), name: name.clone() };
                let value = secrets.secret(name).ok_or_else(missing)?;
                hidden.insert(value.clone());
                value
            }
        };
        if is_sensitive(variable) {
            hidden.insert(value.clone());
        }
        env.insert(variable.clone(), value);
    }
    Ok(env)
}

/// Defaults of the dag, overridden by what the trigger gave.
fn params(spec: &DagSpec, conf: &Value) -> Value {
    let mut params: Map<String, Value> = spec
        .params
        .iter()
        .filter_map(|(name, param)| param.default.clone().map(|default| (name.clone(), default)))
        .collect();
    if let Value::Object(given) = conf {
        params.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    Value::Object(params)
}

async fn results(binding: &Binding, store: &dyn Store) -> Result<Value, PrepareError> {
    let results = store.results(binding.ti.run).await?;
    Ok(Value::Object(results.into_iter().map(|(task, _, value)| (task.to_string(), value)).collect()))
}

/// Most tasks read no results, and then there is no round trip for them.
fn mentions_results(task: &TaskSpec) -> bool {
    let mentions = |text: &str| text.contains("results");
    let in_env = task.env.values().any(|value| matches!(value, EnvValue::Text(text) if mentions(text)));
    in_env
        || match &task.kind {
            TaskKind::Bash { script } => mentions(script),
            TaskKind::Exec { argv } => argv.iter().any(|text| mentions(text)),
            TaskKind::Python { source, args, .. } => {
                args.iter().any(|text| mentions(text))
                    || matches!(source, PythonSource::Inline(code) if mentions(code))
            }
            TaskKind::Http { request } => {
                mentions(&request.url)
                    || request.headers.values().any(|text| mentions(text))
                    || request.body.as_deref().is_some_and(mentions)
            }
            TaskKind::Empty => false,
        }
}

/// Names that announce a secret, as Airflow's masking knows them.
fn is_sensitive(name: &str) -> bool {
    const MARKS: [&str; 9] = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "api_key",
        "apikey",
        "private_key",
        "access_key",
    ];
    let name = name.to_ascii_lowercase().replace('-', "_");
    MARKS.iter().any(|mark| name.contains(mark))
}

fn hide_sensitive(value: &Value, hidden: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if is_sensitive(name) => {
                        hidden.insert(text.clone());
                    }
                    other => hide_sensitive(other, hidden),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| hide_sensitive(item, hidden)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests;
