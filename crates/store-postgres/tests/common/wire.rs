//! A wire to the server that can break on cue, or fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Where a connection is cut when a client's message holds the given text.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// The message never arrives.
    Before(&'static [u8]),
    /// It is obeyed to the end, and nobody hears so.
    After(&'static [u8]),
    Never,
}

impl Cut {
    fn cue(self) -> Option<&'static [u8]> {
        match self {
            Self::Before(cue) | Self::After(cue) => Some(cue),
            Self::Never => None,
        }
    }
}

pub struct Wire {
    pub url: String,
    /// The next message with the cue breaks the connection it comes on.
    armed: Arc<AtomicBool>,
    /// Nothing gets through any more, and no connection is closed.
    silent: Arc<AtomicBool>,
    /// How often a client has spoken after it had heard something.
    turns: Arc<AtomicUsize>,
}

/// «Ready for a query, in no transaction»: the last that a server says after everything it was asked.
const IDLE: &[u8] = b"Z\0\0\0\x05I";

impl Wire {
    pub async fn to(url: &str, cut: Cut) -> Self {
        let (head, rest) = url.split_once("127.0.0.1:").expect("a local server");
        let (port, database) = rest.split_once('/').expect("a database");
        let server_port: u16 = port.parse().expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{head}127.0.0.1:{}/{database}", listener.local_addr().unwrap().port());
        let wire = Self { url, armed: Arc::default(), silent: Arc::default(), turns: Arc::default() };
        let carrier = Carrier {
            cut,
            armed: Arc::clone(&wire.armed),
            silent: Arc::clone(&wire.silent),
            turns: Arc::clone(&wire.turns),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server_port)).await.expect("it listens");
                tokio::spawn(carrier.clone().carry(client, server));
            }
        });
        wire
    }

    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Round trips on all connections so far.
    pub fn round_trips(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    /// Connections that exist stay silent for good, even when the wire is whole again.
    pub fn fall_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Carrier {
    cut: Cut,
    armed: Arc<AtomicBool>,
    silent: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
}

impl Carrier {
    async fn carry(self, mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
        let (mut sent, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
        let mut heard = true;
        loop {
            tokio::select! {
                read = client.read(&mut sent) => {
                    let message = &sent[..read?];
                    if message.is_empty() {
                        return Ok(());
                    }
                    if std::mem::take(&mut heard) {
                        self.turns.fetch_add(1, Ordering::SeqCst);
                    }
                    self.stay_silent_if_told().await;
                    let fires = self.fires(message);
                    if fires && matches!(self.cut, Cut::Before(_)) {
                        return Ok(());
                    }
                    server.write_all(message).await?;
                    if fires {
                        return obeyed(&mut server).await;
                    }
                }
                read = server.read(&mut answered) => {
                    let message = &answered[..read?];
                    if message.is_empty() {
                        return Ok(());
                    }
                    self.stay_silent_if_told().await;
                    heard = true;
                    client.write_all(message).await?;
                }
            }
        }
    }

    fn fires(&self, message: &[u8]) -> bool {
        let heard = self.cut.cue().is_some_and(|cue| message.windows(cue.len()).any(|window| window == cue));
        heard && self.armed.swap(false, Ordering::SeqCst)
    }

    async fn stay_silent_if_told(&self) {
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending().await
        }
    }
}

/// Reads what nobody will ever hear, until the server is done.
async fn obeyed(server: &mut TcpStream) -> std::io::Result<()> {
    let (mut heard, mut answered) = (vec![], vec![0; 65_536]);
    let listening = async {
        while !heard.ends_with(IDLE) {
            match server.read(&mut answered).await? {
                0 => break,
                read => heard.extend_from_slice(&answered[..read]),
            }
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(10), listening).await.expect("the server answers")
}
