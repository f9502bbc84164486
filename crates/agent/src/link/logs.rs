//! The replicas' log store, reached through whichever replica answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use tenure_agent_proto::AgentsClient;
use tenure_agent_proto::wire::{LogEndRequest, PutLogPartRequest};
use tenure_logs::Part;
use tenure_model::AttemptId;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::Shared;
use crate::{BoxError, LogStore};

const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub struct RemoteLogs {
    shared: Arc<Shared>,
}

#[derive(Debug, thiserror::Error)]
enum RemoteLogError {
    #[error("no replica is connected")]
    NoLink,
    #[error("no replica takes logs; the last one said: {0}")]
    Refused(String),
}

impl RemoteLogs {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Asks one replica after the other until one has done it.
    async fn ask<T, F>(&self, call: impl Fn(AgentsClient<Channel>) -> F) -> Result<T, BoxError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut trouble = RemoteLogError::NoLink;
        for wire in self.shared.well() {
            match tokio::time::timeout(ANSWER_WITHIN, call(wire.client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => trouble = RemoteLogError::Refused(status.message().to_owned()),
                Err(_) => trouble = RemoteLogError::Refused(format!("nothing within {ANSWER_WITHIN:?}")),
            }
        }
        Err(trouble.into())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.shared.keyring.current());
        request
    }
}

#[async_trait]
impl LogStore for RemoteLogs {
    async fn put_part(&self, prefix: &Path, part: Part, text: Bytes) -> Result<(), BoxError> {
        let Part { attempt, start, end } = part;
        let message =
            PutLogPartRequest { prefix: prefix.to_string(), attempt: Some(attempt.into()), start, end, text };
        let put = |mut client: AgentsClient<Channel>| {
            let request = self.request(message.clone());
            async move { client.put_log_part(request).await }
        };
        self.ask(put).await.map(drop)
    }

    async fn stored_until(&self, prefix: &Path, attempt: AttemptId) -> Result<u64, BoxError> {
        let message = LogEndRequest { prefix: prefix.to_string(), attempt: Some(attempt.into()) };
        let find = |mut client: AgentsClient<Channel>| {
            let request = self.request(message.clone());
            async move { client.log_end(request).await }
        };
        Ok(self.ask(find).await?.into_inner().end)
    }
}

impl fmt::Debug for RemoteLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteLogs")
    }
}
