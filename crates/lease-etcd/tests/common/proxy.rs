//! A wire between a client and etcd that swallows what it is told to swallow.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What happens to bytes that are on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Connections stand, and nothing comes through, in either direction.
    BlackHole,
    /// Once a request holds this text, no answer comes back.
    AnswersLostAfter(&'static str),
    /// A request that holds this text does not arrive, nor does anything after it.
    RequestsLostFrom(&'static str),
    /// Every connection is closed, and so are new ones.
    Cut,
}

pub struct Proxy {
    pub endpoint: String,
    weather: watch::Sender<Weather>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let endpoint = listener.local_addr().expect("bound").to_string();
        let target: SocketAddr = target.parse().expect("an address");
        let (weather, _) = watch::channel(Weather::Fair);
        let sky = weather.clone();
        let task = tokio::spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                pipes.spawn(connection(client, target, sky.clone()));
            }
        });
        Self { endpoint, weather, task }
    }

    /// Connections that have met bad weather stay broken.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(client: TcpStream, target: SocketAddr, weather: watch::Sender<Weather>) {
    if *weather.borrow() == Weather::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (broken, _) = watch::channel(false);
    let broken = Arc::new(broken);
    let mut cut = weather.subscribe();
    let requests = pipe(from_client, to_server, weather.clone(), Arc::clone(&broken), true);
    let answers = pipe(from_server, to_client, weather, broken, false);
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = cut.wait_for(|weather| *weather == Weather::Cut) => {}
    }
}

/// Copies until the end. Swallowed bytes are read all the same: nobody notices a full buffer.
async fn pipe(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    weather: watch::Sender<Weather>,
    broken: Arc<watch::Sender<bool>>,
    requests: bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..length];
        let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let passes_always = match &*weather.borrow() {
            Weather::Fair => false,
            Weather::BlackHole => {
                broken.send_replace(true);
                false
            }
            Weather::AnswersLostAfter(text) => {
                if requests && holds(text) {
                    broken.send_replace(true);
                }
                requests
            }
            Weather::RequestsLostFrom(text) => {
                if requests && holds(text) {
                    broken.send_replace(true);
                }
                !requests
            }
            Weather::Cut => return,
        };
        // A connection that has lost bytes is of no more use to anybody.
        let passes = passes_always || !*broken.borrow();
        if passes && to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
