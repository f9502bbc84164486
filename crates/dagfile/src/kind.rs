//! What a task does: a script, a program, Python, a request, or nothing.

use std::collections::BTreeMap;

use tenure_model::spec::PythonSource;
use tenure_model::{HttpRequest, TaskKind};

use crate::context::{Context, Field};
use crate::files::{self, FileError, MOST_EMBEDDED};
use crate::keys;
use crate::reading::{self, Fields};
use crate::yaml::{Data, Kind, Node};

const DEFAULT_INTERPRETER: &str = "python3";

pub fn read(cx: &mut Context<'_>, name: &str, node: &Node, field: &Field<'_>) -> Option<TaskKind> {
    match name {
        "bash" => Some(TaskKind::Bash { script: not_blank(cx, node, field)? }),
        "exec" => read_exec(cx, node, field),
        "python" => read_python(cx, node, field),
        "http" => read_http(cx, node, field),
        "empty" => read_empty(cx, node, field),
        other => unreachable!("the kind {other} is in the table of keys and not here"),
    }
}

/// A template that has something in it.
fn not_blank(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let text = reading::template(cx, node, field)?;
    if text.trim().is_empty() {
        cx.error(
            node.at,
            field,
            format!("{field} is empty (a task that does nothing is written as empty: true)"),
        );
        return None;
    }
    Some(text)
}

fn read_empty(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<TaskKind> {
    match &node.data {
        Data::Scalar(scalar) if scalar.kind == Kind::Bool(true) => Some(TaskKind::Empty),
        _ => {
            cx.error(node.at, field, format!("{field} must be true, not {}", node.describe()));
            None
        }
    }
}

fn read_exec(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<TaskKind> {
    let Data::List(items) = &node.data else {
        let message = format!(
            "{field} must be a list of a program and its arguments, not {} (a command line goes under bash)",
            node.describe()
        );
        cx.error(node.at, field, message);
        return None;
    };
    let argv = reading::each(cx, items, field, reading::template)?;
    let Some(program) = argv.first().filter(|program| !program.is_empty()) else {
        cx.error(node.at, field, format!("{field} names no program"));
        return None;
    };
    if program.starts_with("./") {
        let (at, field) = (&items[0], field.index(0));
        let name = embed(cx, at, &field, program)?;
        if !cx.embedded[&name].executable {
            let message = format!("the file {program:?} is not executable (chmod +x {name})");
            cx.error(at.at, &field, message);
        }
    }
    Some(TaskKind::Exec { argv })
}

fn read_python(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<TaskKind> {
    if !matches!(node.data, Data::Map(_)) {
        let text = reading::text(cx, node, field)?;
        let source = match is_file_name(&text) {
            true => PythonSource::File(embed(cx, node, field, text.trim())?),
            false => PythonSource::Inline(not_blank(cx, node, field)?),
        };
        return Some(TaskKind::Python { source, interpreter: DEFAULT_INTERPRETER.into(), args: vec![] });
    }
    let mut fields = Fields::open(cx, node, field, keys::PYTHON, "python")?;
    let (file, code) = (fields.get("file"), fields.get("code"));
    let (interpreter, args) = (fields.get("interpreter"), fields.get("args"));
    fields.done();
    let source = match (file, code) {
        (Some(file), None) => {
            let field = field.key("file");
            let path = reading::name(cx, file, &field)?;
            PythonSource::File(embed(cx, file, &field, path.trim())?)
        }
        (None, Some(code)) => PythonSource::Inline(not_blank(cx, code, &field.key("code"))?),
        _ => {
            cx.error(node.at, field, format!("{field} must have either a file or code"));
            return None;
        }
    };
    let interpreter = match interpreter {
        Some(node) => reading::name(cx, node, &field.key("interpreter"))?,
        None => DEFAULT_INTERPRETER.into(),
    };
    let args = match args {
        Some(node) => {
            let field = field.key("args");
            let items = reading::one_or_many(cx, node, &field)?;
            reading::each(cx, items, &field, reading::template)?
        }
        None => vec![],
    };
    Some(TaskKind::Python { source, interpreter, args })
}

fn is_file_name(text: &str) -> bool {
    let text = text.trim();
    text.ends_with(".py") && !text.contains('\n')
}

/// Reads a file into the dag version and returns its name there.
fn embed(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, path: &str) -> Option<String> {
    let name = files::name_in_run(path);
    if cx.embedded.contains_key(&name) {
        return Some(name);
    }
    let weight: usize = cx.embedded.values().map(|file| file.content.len()).sum();
    let file = match cx.files().read(path) {
        Ok(file) if weight + file.content.len() > MOST_EMBEDDED => Err(FileError::TooLarge),
        other => other,
    };
    match file {
        Ok(file) => {
            cx.embedded.insert(name.clone(), file);
            Some(name)
        }
        Err(error) => {
            cx.error(node.at, field, format!("{field} names the file {path:?}: {error}"));
            None
        }
    }
}

fn read_http(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<TaskKind> {
    let mut request = HttpRequest {
        method: "GET".into(),
        url: String::new(),
        headers: BTreeMap::new(),
        body: None,
        expected_status: vec![],
    };
    if !matches!(node.data, Data::Map(_)) {
        request.url = read_url(cx, node, field)?;
        return Some(TaskKind::Http { request });
    }
    let mut fields = Fields::open(cx, node, field, keys::HTTP, "http")?;
    if let Some(url) = fields.get("url").and_then(|node| read_url(cx, node, &field.key("url"))) {
        request.url = url;
    }
    if let Some(node) = fields.get("method") {
        let methods = keys::METHODS.map(|name| (name, name));
        let method = reading::choice(cx, node, &field.key("method"), &methods);
        request.method = method.unwrap_or_default().into();
    }
    if let Some(node) = fields.get("headers") {
        request.headers = read_headers(cx, node, &field.key("headers"));
    }
    let body = fields.get("body");
    request.body = body.and_then(|node| read_body(cx, node, &field.key("body"), &mut request.headers));
    if let Some(node) = fields.get("expect") {
        let field = field.key("expect");
        let items = reading::one_or_many(cx, node, &field).unwrap_or_default();
        let status = |cx: &mut Context<'_>, item: &Node, field: &Field<'_>| {
            reading::whole(cx, item, field, 100, 599).map(|status| status as u16)
        };
        request.expected_status = reading::each(cx, items, &field, status).unwrap_or_default();
    }
    fields.done();
    Some(TaskKind::Http { request })
}

fn read_url(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let url = not_blank(cx, node, field)?;
    let known = ["http://", "https://", "{{", "{%"].iter().any(|start| url.starts_with(start));
    if !known {
        cx.error(
            node.at,
            field,
            format!("{field} must begin with http:// or https://, not {}", node.describe()),
        );
        return None;
    }
    Some(url)
}

fn read_headers(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> BTreeMap<String, String> {
    // The characters of an HTTP token (RFC 9110, 5.6.2).
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let mut headers = BTreeMap::new();
    for (key, node) in reading::map(cx, node, field).unwrap_or_default() {
        let field = field.key(&key.text);
        if key.text.is_empty() || !key.text.chars().all(token) {
            cx.error(key.at, &field, format!("{:?} is not the name of a header", key.text));
        } else if let Some(value) = reading::template(cx, node, &field) {
            headers.insert(key.text.clone(), value);
        }
    }
    headers
}

/// Text is sent as it is; every other value as JSON, and said to be JSON.
fn read_body(
    cx: &mut Context<'_>,
    node: &Node,
    field: &Field<'_>,
    headers: &mut BTreeMap<String, String>,
) -> Option<String> {
    if let Data::Scalar(scalar) = &node.data
        && scalar.kind == Kind::Text
    {
        return reading::template(cx, node, field);
    }
    let value = node.to_json().map_err(|error| cx.yaml_error(error, field)).ok()?;
    let text = value.to_string();
    if !reading::check_template(cx, node, field, &text) {
        return None;
    }
    if !headers.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
        headers.insert("content-type".into(), "application/json".into());
    }
    Some(text)
}
