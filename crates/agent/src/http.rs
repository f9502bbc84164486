//! An http task as a process: sends the request of its order, prints what happened, and ends with 0 when
//! the status was the expected one. A response in JSON is the task's result, if it fits.
//!
//! Runs under a supervisor like any program, so it is timed out, stopped and accounted for in the same way
//! and outlives the server.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use tenure_model::{HttpRequest, Program};
use ureq::http::{Request, Response, StatusCode};

use crate::folder::{AttemptFolder, Order};
use crate::verdict::kibibytes;

/// How much of a body is printed that is not a result.
const PRINTED: usize = 4 * 1024;

pub(crate) fn http_task(folder: &Path) -> ExitCode {
    let folder = AttemptFolder::at(folder);
    match folder.order() {
        Ok(Some(order)) => perform(&order, &folder),
        Ok(None) => failed("the order of this task is missing"),
        Err(error) => failed(&format!("the order of this task cannot be read: {error}")),
    }
}

/// Needs of the folder no more than a result that can be written.
pub(crate) fn perform(order: &Order, folder: &AttemptFolder) -> ExitCode {
    match try_perform(order, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &str) -> ExitCode {
    println!("{error}");
    ExitCode::FAILURE
}

fn try_perform(order: &Order, folder: &AttemptFolder) -> Result<(), String> {
    let Program::Http { request } = &order.assignment.program else {
        return Err("this task is not an http task".into());
    };
    let (method, url) = (&request.method, &request.url);
    let mut response = send(request).map_err(|error| format!("{method} {url} failed: {error}"))?;
    let status = response.status();
    println!("{method} {url}: {status}");

    let mut body = Vec::new();
    let most = order.result_limit.max(PRINTED) as u64 + 1;
    let read = response.body_mut().as_reader().take(most).read_to_end(&mut body);
    read.map_err(|error| format!("the body of the response could not be read: {error}"))?;
    if !expected(status, &request.expected_status) {
        print_body(&body);
        return Err(format!(
            "status {status} is not what was expected ({})",
            wanted(&request.expected_status)
        ));
    }
    keep_result(&body, order, folder)
}

fn send(request: &HttpRequest) -> Result<Response<ureq::Body>, ureq::Error> {
    let wants_redirect = request.expected_status.iter().any(|status| (300..400).contains(status));
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .max_redirects(if wants_redirect { 0 } else { 10 })
        .max_redirects_will_error(!wants_redirect)
        .build()
        .new_agent();
    let mut builder = Request::builder().method(request.method.as_str()).uri(&request.url);
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    match &request.body {
        Some(body) => agent.run(builder.body(body.as_str())?),
        None => agent.run(builder.body(())?),
    }
}

fn expected(status: StatusCode, wanted: &[u16]) -> bool {
    if wanted.is_empty() { status.is_success() } else { wanted.contains(&status.as_u16()) }
}

fn wanted(statuses: &[u16]) -> String {
    match statuses {
        [] => "any 2xx".into(),
        some => some.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn keep_result(body: &[u8], order: &Order, folder: &AttemptFolder) -> Result<(), String> {
    if body.len() > order.result_limit {
        let limit = kibibytes(order.result_limit as u64);
        println!(
            "the response is larger than {limit}, the most a task may return: it is not kept as a result"
        );
        return Ok(());
    }
    if serde_json::from_slice::<serde_json::Value>(body).is_err() {
        print_body(body);
        return Ok(());
    }
    fs::write(folder.result_path(), body).map_err(|error| format!("the result could not be written: {error}"))
}

fn print_body(body: &[u8]) {
    let shown = &body[..body.len().min(PRINTED)];
    if !shown.is_empty() {
        println!("{}", String::from_utf8_lossy(shown));
    }
}
