//! Assignments on the wire.

use tenure_model::{Assignment, EmbeddedFile, HttpRequest, OnDisconnect, Program, Resources};

use crate::convert::{Nonsense, attempt, name, span, ti};
use crate::wire;
use crate::wire::assignment::Program as WireProgram;

impl From<Assignment> for wire::Assignment {
    fn from(assignment: Assignment) -> Self {
        let files = assignment
            .files
            .into_iter()
            .map(|(path, EmbeddedFile { content, executable })| (path, wire::File { content, executable }));
        Self {
            attempt: Some(assignment.attempt.into()),
            ti: Some(assignment.ti.into()),
            node: assignment.node.to_string(),
            scope: assignment.scope,
            epoch: assignment.epoch,
            tenant: assignment.tenant.to_string(),
            dag: assignment.dag.to_string(),
            run_id: assignment.run_id.to_string(),
            task: assignment.task.to_string(),
            try_number: assignment.try_number,
            program: Some(assignment.program.into()),
            env: assignment.env,
            files: files.collect(),
            timeout: assignment.timeout.map(Into::into),
            grace: Some(assignment.grace.into()),
            secrets: assignment.secrets,
            resources: assignment.resources.0,
            run_as: assignment.run_as,
            stop_on_disconnect: assignment.on_disconnect == OnDisconnect::Stop,
        }
    }
}

impl TryFrom<wire::Assignment> for Assignment {
    type Error = Nonsense;

    fn try_from(assignment: wire::Assignment) -> Result<Self, Nonsense> {
        let files = assignment
            .files
            .into_iter()
            .map(|(path, wire::File { content, executable })| (path, EmbeddedFile { content, executable }));
        Ok(Self {
            attempt: attempt(assignment.attempt)?,
            ti: ti(assignment.ti)?,
            node: name("node", assignment.node)?.into(),
            scope: name("scope", assignment.scope)?,
            epoch: assignment.epoch,
            tenant: name("tenant", assignment.tenant)?.into(),
            dag: name("dag", assignment.dag)?.into(),
            run_id: name("run_id", assignment.run_id)?.into(),
            task: name("task", assignment.task)?.into(),
            try_number: assignment.try_number,
            program: assignment.program.ok_or_else(|| Nonsense::missing("program"))?.try_into()?,
            env: assignment.env,
            files: files.collect(),
            timeout: assignment.timeout.map(|timeout| span("timeout", timeout)).transpose()?,
            grace: span("grace", assignment.grace.ok_or_else(|| Nonsense::missing("grace"))?)?,
            secrets: assignment.secrets,
            resources: Resources(assignment.resources),
            run_as: assignment.run_as.map(|user| name("run_as", user)).transpose()?,
            on_disconnect: match assignment.stop_on_disconnect {
                true => OnDisconnect::Stop,
                false => OnDisconnect::Continue,
            },
        })
    }
}

impl From<Program> for WireProgram {
    fn from(program: Program) -> Self {
        match program {
            Program::Process { argv } => Self::Process(wire::Process { argv }),
            Program::Http { request } => Self::Http(wire::HttpRequest {
                method: request.method,
                url: request.url,
                headers: request.headers,
                body: request.body,
                expected_status: request.expected_status.into_iter().map(u32::from).collect(),
            }),
        }
    }
}

impl TryFrom<WireProgram> for Program {
    type Error = Nonsense;

    fn try_from(program: WireProgram) -> Result<Self, Nonsense> {
        let request = match program {
            WireProgram::Process(wire::Process { argv }) => return Ok(Self::Process { argv }),
            WireProgram::Http(request) => request,
        };
        let status = |code: u32| {
            let wrong = |_| Nonsense::new("http.expected_status", format!("has {code}, which is no status"));
            u16::try_from(code).map_err(wrong)
        };
        let request = HttpRequest {
            method: name("http.method", request.method)?,
            url: name("http.url", request.url)?,
            headers: request.headers,
            body: request.body,
            expected_status: request.expected_status.into_iter().map(status).collect::<Result<_, _>>()?,
        };
        Ok(Self::Http { request })
    }
}
