//! Bad weather between an agent and its server: a relay that reads every message and passes it on late, twice, or not
//! at all. It speaks the agents' own protocol, because bytes cannot be doubled without breaking the stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tenure_agent_proto::wire::{
    FromAgent, JoinRequest, JoinResponse, LogEndRequest, LogEndResponse, PutLogPartRequest,
    PutLogPartResponse, RenewRequest, RenewResponse, ToAgent,
};
use tenure_agent_proto::{Agents, AgentsClient, AgentsServer, LARGEST_MESSAGE};
use tenure_clock::Entropy;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Every message but the first of a stream comes twice.
    pub twice: bool,
    /// Every message comes later by up to this.
    pub late: Duration,
    /// Streams break, and new ones are refused.
    pub cut: bool,
}

/// Gone with its handle.
pub struct Relay {
    pub url: String,
    state: Arc<watch::Sender<State>>,
    _runtime: Runtime,
}

#[derive(Clone, Copy, Debug)]
struct State {
    weather: Weather,
    /// Streams from before the latest cut are over.
    cuts: u64,
}

impl Relay {
    pub fn to(server: &str, weather: Weather) -> Self {
        let runtime = Runtime::new().unwrap();
        let state = Arc::new(watch::Sender::new(State { weather, cuts: 0 }));
        let channel = Endpoint::from_shared(server.to_owned()).unwrap();
        let channel = {
            let _inside = runtime.enter();
            channel.connect_lazy()
        };
        let between = Between { channel, state: Arc::clone(&state), entropy: Entropy::from_os() };
        let server = AgentsServer::new(between).max_decoding_message_size(LARGEST_MESSAGE);
        let router = axum::Router::new().route_service("/tenure.agent.v1.Agents/{*method}", server);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(tenure_api::serve(listener, router, CancellationToken::new()));
        Self { url, state, _runtime: runtime }
    }

    pub fn set(&self, weather: Weather) {
        self.state.send_modify(|state| {
            state.cuts += u64::from(weather.cut);
            state.weather = weather;
        });
    }

    /// Breaks what is open; the next streams have the weather of before.
    pub fn blink(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

#[derive(Clone)]
struct Between {
    channel: Channel,
    state: Arc<watch::Sender<State>>,
    entropy: Entropy,
}

impl Between {
    fn client(&self) -> Result<AgentsClient<Channel>, Status> {
        if self.state.borrow().weather.cut {
            return Err(Status::unavailable("the wire is cut"));
        }
        Ok(AgentsClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_MESSAGE))
    }

    /// Carries messages to `to` until either side or the wire ends.
    fn carry<M: Clone + Send + 'static>(
        &self,
        mut from: Streaming<M>,
        to: mpsc::Sender<Result<M, Status>>,
        broken: CancellationToken,
    ) {
        let (state, entropy) = (self.state.subscribe(), self.entropy.clone());
        let carrying = async move {
            let mut first = true;
            loop {
                let message = match from.message().await {
                    Ok(Some(message)) => Ok(message),
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let Weather { twice, late, .. } = state.borrow().weather;
                tokio::time::sleep(entropy.jitter(late)).await;
                let again = if twice && !first { message.as_ref().ok().cloned() } else { None };
                let over = message.is_err();
                if to.send(message).await.is_err() || over {
                    return;
                }
                if let Some(again) = again {
                    tokio::time::sleep(entropy.jitter(late)).await;
                    if to.send(Ok(again)).await.is_err() {
                        return;
                    }
                }
                first = false;
            }
        };
        tokio::spawn(async move {
            broken.run_until_cancelled(carrying).await;
            broken.cancel(); // either side's end is the end of both
        });
    }
}

fn messages<M: Send + 'static>(from: mpsc::Receiver<M>) -> BoxStream<'static, M> {
    let next = |mut from: mpsc::Receiver<M>| async move {
        let message = from.recv().await?;
        Some((message, from))
    };
    futures::stream::unfold(from, next).boxed()
}

/// What can be passed on of what an agent says.
struct Said(mpsc::Receiver<Result<FromAgent, Status>>);

impl Stream for Said {
    type Item = FromAgent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FromAgent>> {
        self.0.poll_recv(context).map(|message| message?.ok())
    }
}

impl Between {
    /// Both directions of one stream. Owns what it needs: whoever waits for it need not prove anything about borrows.
    async fn relay(self, request: Request<Streaming<FromAgent>>) -> Result<Relayed, Status> {
        let mut client = self.client()?;
        let broken = CancellationToken::new();
        tokio::spawn(break_with_the_wire(self.state.subscribe(), broken.clone()));
        let (metadata, _, said) = request.into_parts();
        let (there, out) = mpsc::channel(64);
        self.carry(said, there, broken.clone());
        let mut upstream = Request::new(Said(out));
        *upstream.metadata_mut() = metadata;
        let (metadata, heard, _) = client.connect(upstream).await?.into_parts();
        let (back, into) = mpsc::channel(64);
        self.carry(heard, back, broken.clone());
        let stream = messages(into).take_until(broken.cancelled_owned()).boxed();
        let mut response = Response::new(stream);
        *response.metadata_mut() = metadata;
        Ok(response)
    }
}

type Relayed = Response<BoxStream<'static, Result<ToAgent, Status>>>;

/// Gone with the relay: cut, too.
async fn break_with_the_wire(mut state: watch::Receiver<State>, broken: CancellationToken) {
    let since = state.borrow().cuts;
    let cut = async {
        while state.changed().await.is_ok() {
            if state.borrow().cuts != since {
                return;
            }
        }
    };
    broken.run_until_cancelled(cut).await;
    broken.cancel();
}

#[tonic::async_trait]
impl Agents for Between {
    type ConnectStream = BoxStream<'static, Result<ToAgent, Status>>;

    async fn connect(&self, request: Request<Streaming<FromAgent>>) -> Result<Relayed, Status> {
        let relayed = tokio::spawn(self.clone().relay(request));
        relayed.await.expect("the relay does not panic")
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        self.client()?.join(request).await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        self.client()?.renew(request).await
    }

    async fn put_log_part(
        &self,
        request: Request<PutLogPartRequest>,
    ) -> Result<Response<PutLogPartResponse>, Status> {
        self.client()?.put_log_part(request).await
    }

    async fn log_end(&self, request: Request<LogEndRequest>) -> Result<Response<LogEndResponse>, Status> {
        self.client()?.log_end(request).await
    }
}
