//! The door: who may come in, and the gRPC methods behind it.

use std::sync::Arc;

use axum::Router;
use futures::stream::BoxStream;
use tenure_agent_proto::wire::{
    FromAgent, JoinRequest, JoinResponse, LogEndRequest, LogEndResponse, PutLogPartRequest,
    PutLogPartResponse, RenewRequest, RenewResponse, ToAgent,
};
use tenure_agent_proto::{Agents, AgentsServer, LARGEST_MESSAGE, REPLICA_KEY};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::conversation;
use crate::door::{self, Guest};
use crate::fleet::Shared;
use crate::link::Voice;
use crate::{ReportSink, logs};

/// What the fleet is connected to when it is opened.
#[derive(Clone)]
pub struct Gate {
    pub sink: Arc<dyn ReportSink>,
    /// Whether this token of the API opens the door for an agent.
    pub admits: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

#[derive(Clone)]
pub(crate) struct Service {
    fleet: Arc<Shared>,
    gate: Gate,
}

impl Service {
    pub fn new(fleet: Arc<Shared>, gate: Gate) -> Self {
        Self { fleet, gate }
    }

    pub fn into_router(self) -> Router {
        let server = AgentsServer::new(self).max_decoding_message_size(LARGEST_MESSAGE);
        Router::new().route_service("/tenure.agent.v1.Agents/{*method}", server)
    }

    /// For a stream, which is let in on the database's word.
    async fn admit(&self, metadata: &MetadataMap) -> Result<Guest, Status> {
        match door::bearer(metadata)? {
            token if (self.gate.admits)(token) => Ok(Guest::Anybody),
            secret => self.fleet.identify(secret).await,
        }
    }

    /// For a call beside a stream. What it is about is named by the id of an attempt, which only its node knows.
    async fn admit_call(&self, metadata: &MetadataMap) -> Result<(), Status> {
        match door::bearer(metadata)? {
            token if (self.gate.admits)(token) => Ok(()),
            secret => self.fleet.recognize(secret).await.map(drop),
        }
    }
}

#[tonic::async_trait]
impl Agents for Service {
    type ConnectStream = BoxStream<'static, Result<ToAgent, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let guest = self.admit(request.metadata()).await?;
        let fleet = &self.fleet;
        if fleet.closing.is_cancelled() {
            return Err(Status::unavailable("this replica is stopping"));
        }
        let (voice, said) = Voice::new(fleet.parts.metrics.clone());
        let (sink, incoming) = (Arc::clone(&self.gate.sink), request.into_inner());
        fleet.tasks.spawn(conversation::hold(Arc::clone(fleet), sink, incoming, voice, guest));
        let mut response = Response::new(said);
        let session = fleet.session.to_string().parse().expect("an id is plain text");
        response.metadata_mut().insert(REPLICA_KEY, session);
        Ok(response)
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let token = door::bearer(request.metadata())?.to_owned();
        let valid_for = self.fleet.join(&token, request.into_inner()).await?;
        Ok(Response::new(JoinResponse { valid_for_ms: valid_for.as_millis() as u64 }))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        let secret = door::bearer(request.metadata())?.to_owned();
        let valid_for = self.fleet.renew(&secret, request.into_inner()).await?;
        Ok(Response::new(RenewResponse { valid_for_ms: valid_for.as_millis() as u64 }))
    }

    async fn put_log_part(
        &self,
        request: Request<PutLogPartRequest>,
    ) -> Result<Response<PutLogPartResponse>, Status> {
        self.admit_call(request.metadata()).await?;
        logs::put(&self.fleet, request.into_inner()).await?;
        Ok(Response::new(PutLogPartResponse {}))
    }

    async fn log_end(&self, request: Request<LogEndRequest>) -> Result<Response<LogEndResponse>, Status> {
        self.admit_call(request.metadata()).await?;
        let end = logs::end(&self.fleet, request.into_inner()).await?;
        Ok(Response::new(LogEndResponse { end }))
    }
}
