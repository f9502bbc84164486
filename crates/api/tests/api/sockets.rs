//! The accept loop, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::{Door, ServeLimits, serve_within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::harness::{Server, TOKEN};

struct Listening {
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Listening {
    async fn start(server: &Server, limits: ServeLimits) -> Self {
        Self::start_with(server, limits, None).await
    }

    async fn start_with(server: &Server, limits: ServeLimits, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let door = Door { listener, tls };
        let serving = tokio::spawn(serve_within(limits, door, server.router.clone(), shutdown.clone()));
        Self { address, shutdown, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(8), self.serving)
            .await
            .expect("stops in time")
            .unwrap()
            .unwrap();
    }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes));
    // A connection that is cut off may end with a reset.
    let _ = read.await.expect("the server closes in time");
    String::from_utf8(bytes).unwrap()
}

/// A request that is answered in 25 seconds, or when the server stops.
async fn long_poll(server: &Server) -> String {
    let path = "/api/tenure/dags/etl/runs/r1/progress";
    let revision = server.get(path).await["revision"].clone();
    format!("{path}?after_revision={revision}&wait=25s")
}

#[tokio::test]
async fn a_client_that_never_finishes_its_headers_is_cut_off() {
    let server = Server::start().await;
    let limits = ServeLimits { headers_within: Duration::from_millis(200), ..ServeLimits::default() };
    let listening = Listening::start(&server, limits).await;
    let mut stream = listening.connect().await;
    stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    listening.stop().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_or_half_a_preface_is_cut_off() {
    let server = Server::start().await;
    let limits = ServeLimits { headers_within: Duration::from_millis(200), ..ServeLimits::default() };
    let listening = Listening::start(&server, limits).await;
    for beginning in [&b""[..], b"PRI * HT", b"P"] {
        let mut stream = listening.connect().await;
        stream.write_all(beginning).await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, "");
    }
    listening.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_answer() {
    let server = Server::start().await;
    let limits = ServeLimits { headers_within: Duration::from_millis(200), ..ServeLimits::default() };
    let listening = Listening::start(&server, limits).await;
    let mut stream = listening.connect().await;
    ask(&mut stream, "/health/live").await;
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
    listening.stop().await;
}

#[tokio::test]
async fn stopping_answers_whoever_waits_and_then_ends() {
    let server = Server::with_run().await;
    let listening = Listening::start(&server, ServeLimits::default()).await;
    let mut stream = listening.connect().await;
    ask(&mut stream, &long_poll(&server).await).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    listening.stop().await;
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"run_id\":\"r1\""), "{answer}");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_for_its_turn() {
    let server = Server::start().await;
    let limits = ServeLimits { connections: 1, ..ServeLimits::default() };
    let listening = Listening::start(&server, limits).await;
    let first = listening.connect().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut second = listening.connect().await;
    ask(&mut second, "/health/live").await;
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(300), second.read_exact(&mut byte)).await;
    assert!(early.is_err(), "the second was served beside the first");
    drop(first);
    let answered = tokio::time::timeout(Duration::from_secs(10), second.read_exact(&mut byte)).await;
    answered.expect("served once the first is gone").unwrap();
    listening.stop().await;
}

/// A server's side and a client's side that trust each other.
fn both_sides(protocols: &[&str]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    (server.into(), client.into())
}

#[tokio::test]
async fn behind_a_certificate_everything_is_served_by_tls_and_nothing_without() {
    let server = Server::start().await;
    let (tls, client) = both_sides(&["http/1.1"]);
    let listening = Listening::start_with(&server, ServeLimits::default(), Some(tls)).await;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream =
        TlsConnector::from(client).connect(name, listening.connect().await).await.expect("a handshake");
    let request = "GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Whether the end is announced does not matter here.
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let mut plain = listening.connect().await;
    ask(&mut plain, "/api/v2/dags").await;
    let mut answer = [0; 1024];
    let length =
        tokio::time::timeout(Duration::from_secs(10), plain.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("https://"), "{answer}");
    drop((stream, plain));

    let mut silent = ServeLimits { headers_within: Duration::from_millis(200), ..ServeLimits::default() };
    silent.connections = 1;
    let (tls, _) = both_sides(&[]);
    let listening = Listening::start_with(&server, silent, Some(tls)).await;
    let mut half = listening.connect().await;
    half.write_all(&[0x16, 3, 1]).await.unwrap();
    assert_eq!(
        read_to_end(&mut half).await,
        "",
        "whoever does not finish the handshake loses the connection"
    );
    listening.stop().await;
}
