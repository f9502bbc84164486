//! Real servers, bad servers, and a candidate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_api::{LeaseApi, TokenDigest, lease_router, serve};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{AcquireRequest, Claim, Epoch, Holder, MemoryLeases, Scope, Session, Takeover, Term};
use tenure_lease_http::HttpLeases;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const TOKEN: &str = "token";

/// A lease server. Dropping it stops it.
pub struct Real {
    pub address: SocketAddr,
    stop: CancellationToken,
    serving: AbortOnDropHandle<std::io::Result<()>>,
}

impl Real {
    pub async fn start(memory: &Arc<MemoryLeases>) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), memory).await
    }

    pub async fn start_at(address: SocketAddr, memory: &Arc<MemoryLeases>) -> Self {
        let api = LeaseApi {
            leases: memory.clone(),
            fences: memory.clone(),
            clock: Arc::new(SystemClock),
            entropy: Entropy::from_os(),
        };
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router = lease_router(api, TokenDigest::of(TOKEN));
        let serving = AbortOnDropHandle::new(tokio::spawn(serve(listener, router, stop.clone())));
        Self { address, stop, serving }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let stopped = tokio::time::timeout(Duration::from_secs(15), self.serving);
        stopped.await.expect("stops in time").unwrap().unwrap();
    }
}

pub fn memory() -> Arc<MemoryLeases> {
    Arc::new(MemoryLeases::new(Arc::new(SystemClock)))
}

/// What a bad server does with a request, once it has read all of it.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    Silent,
    HangsUp,
    Says(u16, &'static str),
}

/// A server that treats every request alike.
pub struct Bad {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Bad {
    pub async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(treat(stream, manner, Arc::clone(&counted)));
            }
        });
        Self { address, requests, _serving: AbortOnDropHandle::new(serving) }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn treat(mut stream: TcpStream, manner: Manner, requests: Arc<AtomicUsize>) {
    let mut seen = vec![];
    while !is_whole(&seen) {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(read @ 1..) => seen.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    requests.fetch_add(1, Ordering::SeqCst);
    match manner {
        Manner::Silent => std::future::pending().await,
        Manner::HangsUp => {}
        Manner::Says(status, body) => {
            let answer = format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            // The client may have gone.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

pub fn leases_at(addresses: &[SocketAddr]) -> HttpLeases {
    let addresses: Vec<_> = addresses.iter().map(|address| format!("http://{address}")).collect();
    HttpLeases::new(&addresses.join(","), Some(TOKEN), Arc::new(SystemClock), Entropy::from_os()).unwrap()
}

/// A port that nobody listens on.
pub fn nobody() -> SocketAddr {
    ([127, 0, 0, 1], tenure_testkit::free_port()).into()
}

pub fn holder(name: &str) -> Holder {
    let session = Session(Entropy::from_os().uuid(SystemClock.now()));
    Holder { name: name.into(), instance: String::new(), session, address: None }
}

/// Lasts so long that a call may take 1 s.
pub fn request(scope: &str) -> AcquireRequest {
    AcquireRequest {
        scope: Scope::new(scope),
        holder: holder("h:1"),
        term: Term(Entropy::from_os().uuid(SystemClock.now())),
        duration: Duration::from_secs(3),
        takeover: Takeover::IfFree,
        note: String::new(),
    }
}

pub fn claim(request: &AcquireRequest, epoch: u64) -> Claim {
    let AcquireRequest { scope, term, duration, .. } = request.clone();
    Claim { scope, term, duration, epoch: Epoch(epoch) }
}
