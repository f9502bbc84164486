//! Logs of tasks on other machines, on their way into this replica's log store.

use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tenure_agent_proto::wire;
use tenure_logs::Part;
use tenure_model::AttemptId;
use tonic::Status;
use uuid::Uuid;

use crate::fleet::Shared;

/// Agents try again, through another replica if there is one.
const WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn put(fleet: &Shared, request: wire::PutLogPartRequest) -> Result<(), Status> {
    let prefix = prefix(&request.prefix)?;
    let attempt = attempt(request.attempt)?;
    if request.start >= request.end {
        let text = format!("a part from {} to {} holds nothing", request.start, request.end);
        return Err(Status::invalid_argument(text));
    }
    let at = Part { attempt, start: request.start, end: request.end }.path(&prefix);
    let putting = fleet.parts.logs.put(&at, request.text.into());
    match tokio::time::timeout(WITHIN, putting).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Status::unavailable(format!("the log store did not take {at}: {error}"))),
        Err(_) => Err(Status::unavailable(format!("the log store did not take {at} within {WITHIN:?}"))),
    }
}

pub(crate) async fn end(fleet: &Shared, request: wire::LogEndRequest) -> Result<u64, Status> {
    let (prefix, attempt) = (prefix(&request.prefix)?, attempt(request.attempt)?);
    let finding = tenure_logs::stored_until(&*fleet.parts.logs, &prefix, attempt);
    match tokio::time::timeout(WITHIN, finding).await {
        Ok(Ok(end)) => Ok(end),
        Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
        Err(_) => Err(Status::unavailable(format!("no list of {prefix} within {WITHIN:?}"))),
    }
}

fn prefix(text: &str) -> Result<Path, Status> {
    match Path::parse(text) {
        Ok(path) if path.parts().next().is_some() => Ok(path),
        Ok(_) => Err(Status::invalid_argument("the prefix is empty")),
        Err(error) => Err(Status::invalid_argument(format!("the prefix is no path: {error}"))),
    }
}

fn attempt(id: Option<wire::Id>) -> Result<AttemptId, Status> {
    id.map(|id| AttemptId(Uuid::from(id))).ok_or_else(|| Status::invalid_argument("the attempt is missing"))
}
