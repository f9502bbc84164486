//! Accepts connections and serves the router on them, until told to stop.
//!
//! Promises: a client that sends its headers too slowly, idles, or stops reading its answer loses its connection; over
//! HTTP/2, where agents keep one open, whoever does not answer pings loses it;
//! only so many are open at once, the next ones wait; with a certificate, who does not speak TLS is told so and nothing
//! else; after `shutdown` no new connection is accepted, requests in flight are
//! finished, and whoever takes longer than the grace is cut off.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ApiError;

/// Where clients come in.
#[derive(Debug)]
pub struct Door {
    pub listener: TcpListener,
    /// With it, nothing is served without TLS.
    pub tls: Option<Arc<ServerConfig>>,
}

impl From<TcpListener> for Door {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    pub connections: usize,
    /// From the last answer, or from connecting, to the end of the next request's headers.
    pub headers_within: Duration,
    /// For a client to take some of its answer, once it has let the line fill up.
    pub reads_within: Duration,
    /// For requests in flight after `shutdown`.
    pub grace: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            headers_within: Duration::from_secs(15),
            reads_within: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// HTTP/2 connections are long and often quiet: a ping shows whether anybody is there.
const PING_EVERY: Duration = Duration::from_secs(10);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Room for a few of an agent's batches on their way.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const PAUSE_IN_PREFACE: Duration = Duration::from_millis(5);
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The first byte of a TLS handshake; no HTTP request begins with it.
const HANDSHAKE: u8 = 0x16;
/// What a gRPC client takes for «this cannot work as things are».
const FAILED_PRECONDITION: &str = "9";
const SPEAKS_TLS: &str = "This port speaks TLS: write https:// instead of http://";

/// Accepting fails when file descriptors run out; trying again at once would only spin.
const PAUSE_AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(100);

/// Told to handlers, so that those who wait for something end early.
#[derive(Clone, Debug)]
pub(crate) struct Stopping(pub CancellationToken);

pub async fn serve(door: impl Into<Door>, router: Router, shutdown: CancellationToken) -> io::Result<()> {
    serve_within(ServeLimits::default(), door, router, shutdown).await
}

pub async fn serve_within(
    limits: ServeLimits,
    door: impl Into<Door>,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let Door { listener, tls } = door.into();
    let router = router.layer(Extension(Stopping(shutdown.clone())));
    let house = House { router, tls: tls.map(TlsAcceptor::from), limits, shutdown: shutdown.clone() };
    let places = Arc::new(Semaphore::new(limits.connections));
    let (connections, cut_off) = (TaskTracker::new(), CancellationToken::new());

    while let Some((stream, place)) = next_connection(&listener, &places, &shutdown).await {
        let (house, cut_off) = (house.clone(), cut_off.clone());
        connections.spawn(async move {
            cut_off.run_until_cancelled(house.receive(stream)).await;
            drop(place);
        });
    }

    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.grace, connections.wait()).await.is_err() {
        tracing::warn!(grace = ?limits.grace, "some requests were still running; their connections are cut off");
        cut_off.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// What stands behind the door.
#[derive(Clone)]
struct House {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ServeLimits,
    shutdown: CancellationToken,
}

impl House {
    async fn receive(self, stream: TcpStream) {
        // Small answers should not wait for an acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
        // Looked at here, because the builder itself would wait for a preface for ever.
        let Some(tongue) = self.in_time(tongue(&stream)).await else { return };
        let stream = Patient::new(stream, self.limits.reads_within);
        match (&self.tls, tongue) {
            (None, tongue) => self.talk(stream, tongue == Tongue::Http2, self.router.clone()).await,
            (Some(tls), Tongue::Tls) => match self.in_time(tls.accept(stream)).await {
                Some(Ok(stream)) => {
                    let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    self.talk(stream, speaks_http2, self.router.clone()).await;
                }
                Some(Err(error)) => tracing::debug!(%error, "a client did not get past the TLS handshake"),
                None => {}
            },
            (Some(_), tongue) => {
                let deaf = Router::new().fallback(speaks_tls);
                self.talk(stream, tongue == Tongue::Http2, deaf).await;
            }
        }
    }

    /// `None`: it took too long, or the end came first.
    async fn in_time<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let bounded = tokio::time::timeout(self.limits.headers_within, step);
        self.shutdown.run_until_cancelled(bounded).await?.ok()
    }

    async fn talk<S>(&self, stream: S, speaks_http2: bool, router: Router)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.headers_within);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_WITHIN)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * 4);
        let builder = if speaks_http2 { builder.http2_only() } else { builder.http1_only() };
        let service = TowerToHyperService::new(router);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// What a client begins to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tongue {
    Http1,
    Http2,
    Tls,
}

/// Without taking anything off the stream. A client that says nothing, or ends, is left to the one that reads.
async fn tongue(stream: &TcpStream) -> Tongue {
    let mut beginning = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut beginning).await {
            Ok(0) | Err(_) => return Tongue::Http1,
            Ok(_) if beginning[0] == HANDSHAKE => return Tongue::Tls,
            Ok(length) if beginning[..length] != PREFACE[..length] => return Tongue::Http1,
            Ok(length) if length == PREFACE.len() => return Tongue::Http2,
            // Half a preface. More of it does not make the stream readable anew, so it is looked at again.
            Ok(_) => tokio::time::sleep(PAUSE_IN_PREFACE).await,
        }
    }
}

/// For who comes without TLS, in the words of an agent or of everybody else.
async fn speaks_tls(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    match kind {
        Some(kind) if kind.starts_with("application/grpc") => {
            let mut answer = Response::default();
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static(FAILED_PRECONDITION));
            headers.insert("grpc-message", HeaderValue::from_static(SPEAKS_TLS));
            answer
        }
        _ => ApiError::BadRequest(format!("{SPEAKS_TLS}.")).into_response(),
    }
}

/// Waits for a client and for a place among the connections. `None`: told to stop.
async fn next_connection(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    loop {
        let next = async {
            let place = Arc::clone(places).acquire_owned().await.expect("nobody closes the semaphore");
            listener.accept().await.map(|(stream, _)| (stream, place))
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return None,
            accepted = next => accepted,
        };
        match accepted {
            Ok(connection) => return Some(connection),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(PAUSE_AFTER_FAILED_ACCEPT).await;
            }
        }
    }
}

/// A stream whose writes fail when the other side takes nothing for too long: hyper itself would wait for ever,
/// and with it whatever the answer holds on to.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Since the other side last took something.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, patience: Duration) -> Self {
        Self { stream, patience, stalled: None }
    }

    fn bounded<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
