//! A wire that can be cut, silenced, muted or slowed: a small TCP proxy in front of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the wire does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    #[default]
    Open,
    /// Connections end, new ones are refused.
    Cut,
    /// Nothing passes, nothing ends: as if a cable had been pulled. What was sent meanwhile arrives later.
    Silent,
    /// Requests arrive, answers do not.
    Mute,
    /// Everything arrives late.
    Slow(Duration),
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    wire: Wire,
    /// Connections from before the latest cut are over.
    cuts: u64,
}

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    state: Arc<watch::Sender<State>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Proxy {
    pub fn start(runtime: &Handle, target: SocketAddr) -> Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(watch::Sender::new(State::default()));
        let accepting = runtime.spawn(accept(listener, target, Arc::clone(&state)));
        Ok(Self { port, state, accepting })
    }

    pub fn set(&self, wire: Wire) {
        self.state.send_modify(|state| {
            // Where answers have been swallowed, the rest of a conversation makes no sense any more.
            if wire == Wire::Cut || state.wire == Wire::Mute {
                state.cuts += 1;
            }
            state.wire = wire;
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Wire::Cut);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: Arc<watch::Sender<State>>) {
    loop {
        // Running out of descriptors passes; whoever could not be served asks again.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if state.borrow().wire != Wire::Cut {
            tokio::spawn(serve(client, target, state.subscribe()));
        }
    }
}

async fn serve(client: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    let since = state.borrow().cuts;
    // A silent wire lets nobody through, not even to say hello.
    if state.wait_for(|now| now.wire != Wire::Silent || now.cuts != since).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = client.set_nodelay(true); // a hint; without it everything is only slower
    let _ = server.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let there = pump(from_client, to_server, state.clone(), since, Way::There);
    let back = pump(from_server, to_client, state.clone(), since, Way::Back);
    let severed = async move {
        let _ = state.wait_for(|now| now.cuts != since).await; // gone with the proxy: severed, too
    };
    // Either side's end is the end of both, as for a process that dies.
    tokio::select! {
        () = there => {}
        () = back => {}
        () = severed => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    since: u64,
    way: Way,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let Ok(now) =
            state.wait_for(|now| now.wire != Wire::Silent || now.cuts != since).await.map(|now| *now)
        else {
            return;
        };
        if now.cuts != since {
            return;
        }
        match now.wire {
            Wire::Mute if way == Way::Back => continue,
            Wire::Slow(late) => tokio::time::sleep(late).await,
            Wire::Open | Wire::Mute | Wire::Silent | Wire::Cut => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Plain;

    use super::*;

    /// A server that answers every byte with the same byte, through a proxy.
    fn echo(runtime: &Handle) -> Proxy {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let target = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Proxy::start(runtime, target).unwrap()
    }

    fn connect(proxy: &Proxy) -> Plain {
        let stream = Plain::connect(("127.0.0.1", proxy.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        stream
    }

    /// The answer to one byte, if one comes in time.
    fn ask(stream: &mut Plain, byte: u8) -> std::io::Result<u8> {
        stream.write_all(&[byte])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn a_wire_can_be_cut_silenced_and_muted() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let proxy = echo(runtime.handle());
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);

        proxy.set(Wire::Silent);
        assert_eq!(ask(&mut stream, 2).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        proxy.set(Wire::Open);
        let mut late = [0];
        stream.read_exact(&mut late).unwrap();
        assert_eq!(late, [2], "what was sent into a silent wire arrives later");

        proxy.set(Wire::Mute);
        assert_eq!(ask(&mut stream, 3).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        proxy.set(Wire::Open);
        assert!(ask(&mut stream, 4).is_err(), "a conversation that has lost answers is over");

        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 5).unwrap(), 5);
        proxy.set(Wire::Cut);
        assert!(ask(&mut stream, 6).is_err());
        assert!(ask(&mut connect(&proxy), 7).is_err(), "nobody gets in");
        proxy.set(Wire::Open);
        assert_eq!(ask(&mut connect(&proxy), 8).unwrap(), 8);
    }
}
