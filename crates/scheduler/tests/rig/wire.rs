//! A wire between one process and its Postgres. When it is cut the process notices at once and the server does not: what
//! was sent goes on there.

use std::sync::Arc;

use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub struct Wire {
    /// The database, by this way.
    pub url: String,
    cuts: Arc<watch::Sender<u32>>,
    task: JoinHandle<()>,
}

impl Wire {
    pub async fn to(url: &str) -> Self {
        let (user, place) = url.split_once('@').expect("user@host");
        let (server, database) = place.split_once('/').expect("host/database");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let (cuts, server) = (Arc::new(watch::Sender::new(0)), server.to_owned());
        let cut = Arc::clone(&cuts);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (cut, server) = (cut.subscribe(), server.clone());
                connections.spawn(async move { connect(client, &server, cut).await });
            }
        });
        Self { url: format!("{user}@{here}/{database}"), cuts, task }
    }

    /// Ends every connection that stands. New ones come through.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(mut client: TcpStream, server: &str, mut cut: watch::Receiver<u32>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    tokio::select! {
        biased;
        _ = cut.changed() => {
            drop(client);
            // Open at the far end for as long as the wire is there.
            std::future::pending().await
        }
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}
