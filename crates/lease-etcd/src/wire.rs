//! The way to etcd: connections, failover, credentials, timeouts, and what a failure means.
//!
//! One connection at a time, to the first endpoint that answers. Whoever sees a call fail or time out, or drops
//! it half way, marks the connection as suspect, and the next call makes a new one, to the next endpoint: a
//! black-holed connection costs one call, not minutes of silence.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use tenure_lease::{BoxError, LeaseError, with_causes};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, IntoStreamingRequest, Request, Status, Streaming};

use crate::options::{Credentials, EtcdOptions, OptionsError};
use crate::protocol::{
    AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};

/// To connect and authenticate takes milliseconds; the other endpoints want their turn within one call.
const CONNECT: Duration = Duration::from_millis(700);
/// etcd hangs up on clients that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// A page of a listing is below a megabyte; this is for pages full of long notes.
const LARGEST_ANSWER: usize = 64 << 20;
/// A member that is not etcd's leader forwards keep-alives one by one: several streams share that wait.
const KEEP_ALIVE_STREAMS: usize = 8;
const KEEP_ALIVES_WORTH_A_STREAM: usize = 32;

/// Questions in flight at a time.
const AT_ONCE: usize = 32;

pub(crate) struct Wire {
    endpoints: Vec<Endpoint>,
    credentials: Option<Credentials>,
    timeout: Duration,
    line: Mutex<Dial>,
}

/// The connection in use, and which endpoint is tried next.
#[derive(Default)]
struct Dial {
    line: Option<Line>,
    next: usize,
}

#[derive(Clone)]
pub(crate) struct Line {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    suspect: Arc<AtomicBool>,
}

/// Whether a call changes something at etcd: what a lost answer means depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Writes,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It never left this process.
    NotSent(BoxError),
    /// It may have arrived.
    NoAnswer(BoxError),
    /// etcd itself says no.
    Status(Status),
}

/// How long an etcd lease has, in whole seconds.
pub(crate) struct TimeToLive {
    pub(crate) left: i64,
    pub(crate) granted: i64,
}

impl Wire {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, OptionsError> {
        let endpoints = options.endpoints.iter().map(|address| {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))
                .map_err(|_| OptionsError::Host(address.clone()))?;
            Ok(endpoint
                .tcp_nodelay(true)
                .tcp_keepalive(Some(PING_EVERY))
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_TIMEOUT))
        });
        let endpoints = endpoints.collect::<Result<Vec<_>, OptionsError>>()?;
        if endpoints.is_empty() {
            return Err(OptionsError::NoEndpoint);
        }
        let (credentials, timeout) = (options.credentials.clone(), options.timeout);
        Ok(Self { endpoints, credentials, timeout, line: Mutex::default() })
    }

    pub(crate) async fn read(&self, txn: TxnRequest) -> Result<TxnResponse, LeaseError> {
        self.txn(Effect::Reads, txn).await.map_err(|failure| failure.of(Effect::Reads))
    }

    pub(crate) async fn txn(&self, effect: Effect, txn: TxnRequest) -> Result<TxnResponse, Failure> {
        self.call(effect, |line| {
            let request = line.request(txn.clone());
            async move { Ok(kv(line).txn(request).await?.into_inner()) }
        })
        .await
    }

    /// Grants this very lease, or finds it granted before and gives it its full time again.
    pub(crate) async fn grant(&self, id: i64, seconds: i64) -> Result<(), LeaseError> {
        let granted = self.call(Effect::Reads, |line| {
            let request = line.request(LeaseGrantRequest { ttl: seconds, id });
            async move { Ok(lease(line).lease_grant(request).await?.into_inner()) }
        });
        // A lease without a key is nothing that a caller could see, so a lost answer counts as unavailable.
        match granted.await {
            Ok(_) => Ok(()),
            Err(Failure::Status(status)) if status.code() == Code::FailedPrecondition => {
                self.keep_alive(&[id]).await.map(|_| ())
            }
            Err(failure) => Err(failure.of(Effect::Reads)),
        }
    }

    /// Ends an etcd lease whose key is no longer attached to it. One that cannot be ended runs out by itself.
    pub(crate) async fn revoke(&self, id: i64) {
        if id == 0 {
            return; // the key hung on none
        }
        let revoked = self.call(Effect::Writes, |line| {
            let request = line.request(LeaseRevokeRequest { id });
            async move { Ok(lease(line).lease_revoke(request).await?.into_inner()) }
        });
        match revoked.await {
            Ok(_) => {}
            Err(Failure::Status(status)) if status.code() == Code::NotFound => {}
            Err(failure) => {
                let error = failure.of(Effect::Writes);
                tracing::debug!(lease = format!("{id:x}"), %error, "an etcd lease runs out by itself");
            }
        }
    }

    /// `None`: there is no such lease.
    pub(crate) async fn time_to_live(&self, id: i64) -> Result<Option<TimeToLive>, LeaseError> {
        let answer = self.call(Effect::Reads, |line| {
            let request = line.request(LeaseTimeToLiveRequest { id });
            async move { Ok(lease(line).lease_time_to_live(request).await?.into_inner()) }
        });
        match answer.await {
            // A lease that was never granted. One that has run out and is not yet revoked counts below zero.
            Ok(answer) if answer.granted_ttl == 0 => Ok(None),
            Ok(answer) => Ok(Some(TimeToLive { left: answer.ttl.max(0), granted: answer.granted_ttl })),
            Err(Failure::Status(status)) if status.code() == Code::NotFound => Ok(None),
            Err(failure) => Err(failure.of(Effect::Reads)),
        }
    }

    /// Starts the time of these leases anew. Answers which of them live.
    pub(crate) async fn keep_alive(&self, ids: &[i64]) -> Result<BTreeMap<i64, bool>, LeaseError> {
        let share = ids.len().div_ceil(KEEP_ALIVE_STREAMS).max(KEEP_ALIVES_WORTH_A_STREAM);
        let streams = ids.chunks(share).map(|share| self.keep_alive_stream(share.to_vec())).collect();
        Ok(in_order(streams).await?.into_iter().flatten().collect())
    }

    async fn keep_alive_stream(&self, ids: Vec<i64>) -> Result<Vec<(i64, bool)>, LeaseError> {
        let answers = self.call(Effect::Writes, |line| {
            let requests = ids.clone().into_iter().map(|id| LeaseKeepAliveRequest { id });
            let request = line.stream(stream::iter(requests));
            let expected = ids.len();
            async move {
                let mut answers = lease(line).lease_keep_alive(request).await?.into_inner();
                let mut alive = Vec::with_capacity(expected);
                while alive.len() < expected
                    && let Some(answer) = answers.message().await?
                {
                    alive.push((answer.id, answer.ttl > 0));
                }
                match alive.len() == expected {
                    true => Ok(alive),
                    false => Err(Status::unavailable("etcd answered only some of the keep-alives")),
                }
            }
        });
        answers.await.map_err(|failure| failure.of(Effect::Writes))
    }

    /// A watch that is set up. What it says arrives without a time limit; pings find a dead connection.
    pub(crate) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<(Line, Streaming<WatchResponse>), LeaseError> {
        let opened = self.call(Effect::Reads, |line| {
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create.clone())) };
            // The request side stays open: closing it ends the watch.
            let request = line.stream(stream::iter([create]).chain(stream::pending()));
            async move {
                let answers = WatchClient::new(line.channel.clone())
                    .max_decoding_message_size(LARGEST_ANSWER)
                    .watch(request)
                    .await?;
                Ok((line, answers.into_inner()))
            }
        });
        opened.await.map_err(|failure| failure.of(Effect::Reads))
    }

    /// Sends until there is an answer, as long as it is certain that nothing was done before.
    async fn call<A, F>(&self, effect: Effect, send: impl Fn(Line) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<A, Status>>,
    {
        // Each endpoint has its turn, and a connection that had died unnoticed does not count as one.
        let tries = self.endpoints.len() + 1;
        let mut sent = false;
        let calling = async {
            let mut tried = 0;
            loop {
                tried += 1;
                let line = self.line().await?;
                sent = true;
                let suspicion = Suspicion::of(&line);
                let status = match send(line).await {
                    Ok(answer) => {
                        suspicion.unfounded();
                        return Ok(answer);
                    }
                    Err(status) => status,
                };
                let failure = Failure::told_by(status);
                let again = match &failure {
                    Failure::NotSent(_) => true,
                    // It was refused at the door.
                    Failure::Status(status) if is_stale_token(status) => self.credentials.is_some(),
                    Failure::NoAnswer(_) => effect == Effect::Reads,
                    Failure::Status(status) => {
                        if status.code() != Code::Unavailable {
                            suspicion.unfounded();
                        }
                        false
                    }
                };
                if !again || tried >= tries {
                    return Err(failure);
                }
                sent = false;
            }
        };
        let done = timeout(self.timeout, calling).await;
        done.unwrap_or_else(|_| {
            let late = format!("etcd did not answer within {:?}", self.timeout).into();
            Err(if sent { Failure::NoAnswer(late) } else { Failure::NotSent(late) })
        })
    }

    async fn line(&self) -> Result<Line, Failure> {
        let mut dial = self.line.lock().await;
        match &dial.line {
            Some(line) if !line.suspect.load(Ordering::Relaxed) => return Ok(line.clone()),
            Some(_) => {
                dial.line = None;
                dial.next += 1;
            }
            None => {}
        }
        let mut failure = None;
        for _ in 0..self.endpoints.len() {
            let at = dial.next;
            // Before it is tried: a caller that stops waiting half way must not meet the same one again.
            dial.next += 1;
            let endpoint = &self.endpoints[at % self.endpoints.len()];
            let connecting = timeout(CONNECT, self.connected(endpoint)).await;
            match connecting.unwrap_or_else(|_| Err(unreachable(endpoint, "it does not answer".into()))) {
                Ok(line) => {
                    *dial = Dial { line: Some(line.clone()), next: at };
                    return Ok(line);
                }
                // Wrong credentials are wrong everywhere.
                Err(refused @ Failure::Status(_)) => return Err(refused),
                Err(other) => failure = Some(other),
            }
        }
        Err(failure.expect("there is at least one endpoint"))
    }

    async fn connected(&self, endpoint: &Endpoint) -> Result<Line, Failure> {
        let channel = endpoint.connect().await.map_err(|error| unreachable(endpoint, with_causes(&error)))?;
        let line = Line { channel, token: None, suspect: Arc::default() };
        let Some(Credentials { user, password }) = &self.credentials else { return Ok(line) };
        let question = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let authenticating = AuthClient::new(line.channel.clone()).authenticate(question).await;
        match authenticating {
            Ok(answer) => {
                let token = answer.into_inner().token.parse();
                let token = token.map_err(|_| unreachable(endpoint, "its token is no text".into()))?;
                Ok(Line { token: Some(token), ..line })
            }
            // As etcd's own client does: credentials for a server that asks for none do no harm.
            Err(status) if status.code() == Code::FailedPrecondition => Ok(line),
            Err(status) => match Failure::told_by(status) {
                Failure::NoAnswer(error) => Err(Failure::NotSent(error)),
                Failure::Status(status) if status.code() == Code::Unavailable => {
                    Err(unreachable(endpoint, status.message().into()))
                }
                other => Err(other),
            },
        }
    }
}

impl Line {
    /// Not to be used for another call.
    pub(crate) fn distrust(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.signed(Request::new(message))
    }

    fn stream<S, M>(&self, messages: S) -> Request<S>
    where
        S: stream::Stream<Item = M> + Send + 'static,
    {
        self.signed(messages.into_streaming_request())
    }

    fn signed<T>(&self, mut request: Request<T>) -> Request<T> {
        let metadata = request.metadata_mut();
        // A member that is cut off from its cluster says so at once, and the next endpoint has its turn.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }
}

fn unreachable(endpoint: &Endpoint, why: String) -> Failure {
    let at = endpoint.uri().authority().map_or("etcd", |authority| authority.as_str());
    Failure::NotSent(format!("{at}: {why}").into())
}

fn kv(line: Line) -> KvClient<Channel> {
    KvClient::new(line.channel).max_decoding_message_size(LARGEST_ANSWER)
}

fn lease(line: Line) -> LeaseClient<Channel> {
    LeaseClient::new(line.channel)
}

/// A connection is suspect until a call on it has been answered: this also covers callers that stop waiting.
struct Suspicion(Option<Line>);

impl Suspicion {
    fn of(line: &Line) -> Self {
        Self(Some(line.clone()))
    }

    fn unfounded(mut self) {
        self.0 = None;
    }
}

impl Drop for Suspicion {
    fn drop(&mut self) {
        if let Some(line) = &self.0 {
            line.distrust();
        }
    }
}

impl Failure {
    /// etcd's own statuses come without a cause; those that the transport makes up carry one.
    fn told_by(status: Status) -> Self {
        let mut cause = status.source();
        let made_up = cause.is_some();
        while let Some(error) = cause {
            if error.is::<ConnectError>() {
                return Self::NotSent(Box::new(status));
            }
            cause = error.source();
        }
        if made_up { Self::NoAnswer(Box::new(status)) } else { Self::Status(status) }
    }

    /// What the caller has to know.
    pub(crate) fn of(self, effect: Effect) -> LeaseError {
        let status = match self {
            Self::NotSent(error) => return LeaseError::Unavailable(error),
            Self::NoAnswer(error) if effect == Effect::Reads => return LeaseError::Unavailable(error),
            Self::NoAnswer(error) => return LeaseError::Ambiguous(error),
            Self::Status(status) => status,
        };
        let said = status.message();
        match status.code() {
            Code::PermissionDenied => LeaseError::Refused(format!(
                "{said}: the user needs readwrite on the whole prefix (etcdctl role grant-permission ROLE \
                 readwrite --prefix=true PREFIX)"
            )),
            Code::InvalidArgument if said.contains("user name is empty") => LeaseError::Refused(format!(
                "{said}: this etcd asks for a user, as in etcd://user:password@host:2379"
            )),
            Code::Unauthenticated | Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => {
                LeaseError::Refused(said.into())
            }
            // Too many requests, or no space left: etcd refuses before it begins.
            Code::ResourceExhausted | Code::FailedPrecondition => LeaseError::Unavailable(Box::new(status)),
            _ if effect == Effect::Reads => LeaseError::Unavailable(Box::new(status)),
            _ => LeaseError::Ambiguous(Box::new(status)),
        }
    }

    pub(crate) fn is_missing_lease(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == Code::NotFound)
    }
}

/// Runs them side by side, some at a time; the first error ends all.
pub(crate) async fn in_order<T>(
    futures: Vec<impl Future<Output = Result<T, LeaseError>>>,
) -> Result<Vec<T>, LeaseError> {
    stream::iter(futures).buffered(AT_ONCE).try_collect().await
}

/// Tokens run out, die when somebody changes users or roles, and were not asked for before authentication was
/// switched on.
fn is_stale_token(status: &Status) -> bool {
    let said = |text: &str| status.message().contains(text);
    status.code() == Code::Unauthenticated || said("auth store is old") || said("user name is empty")
}
