//! Nodes that start nothing: they speak the real interface of agents to every replica, claim what is assigned, and
//! say that it has succeeded as soon as the claim is accepted (or a set time later).
//!
//! Promises what a real agent promises, as far as replicas can tell: nothing begins before its claim is accepted; a
//! report is sent again, to any replica, until it is answered; a lower epoch than was seen is refused; an inventory
//! names everything that is held. Forgets everything with its process, and writes nothing down.

mod node;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure_agent_proto::wire::{self, Hello};
use tenure_agent_proto::{AgentItem, AgentsClient, LARGEST_MESSAGE, PROTOCOL, batches};
use tenure_model::ShardId;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use node::Node;

const HEARTBEAT: Duration = Duration::from_secs(5);
/// A replica that is frozen says nothing and closes nothing. Real agents leave it as early, where a report waits.
const PING_EVERY: Duration = Duration::from_secs(1);
const PONG_WITHIN: Duration = Duration::from_secs(2);
/// Before a replica that was lost is tried again.
const RECONNECT: Duration = Duration::from_millis(100);
/// How exactly a task's end, or a repetition, is timed.
const TIMER: Duration = Duration::from_millis(2);
/// More than is ever under way on a link at once, so that HTTP/2 itself holds nothing up.
const WINDOW: u32 = 8 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct AgentsConfig {
    pub replicas: Vec<String>,
    pub token: String,
    pub nodes: usize,
    /// Tasks that fit on each node.
    pub capacity: u64,
    /// How long a task takes from its start.
    pub hold: Duration,
}

/// A claim that was accepted: the moment from which a real agent would have started a process.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// On the boot-time clock.
    pub at: Duration,
    pub shard: ShardId,
    /// Under which the attempt was bound.
    pub epoch: u64,
    pub run: i64,
    pub task: u32,
    /// Which replica accepted the claim.
    pub replica: usize,
}

/// What the nodes have seen, all of them together.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    ended: AtomicU64,
    repeated: AtomicU64,
    superseded: AtomicU64,
    refused: AtomicU64,
    starts: Mutex<Starts>,
}

#[derive(Debug, Default)]
struct Starts {
    all: Vec<Start>,
    by_shard: HashMap<ShardId, usize>,
}

impl Seen {
    fn start(&self, start: Start) {
        let mut starts = self.starts.lock().expect("no panic with the starts");
        *starts.by_shard.entry(start.shard).or_default() += 1;
        starts.all.push(start);
    }
}

/// Ends with its handle.
pub struct Agents {
    seen: Arc<Seen>,
    nodes: Vec<Arc<Mutex<Node>>>,
    runtime: Option<Runtime>,
}

impl Agents {
    /// Returns once every node is connected to every replica.
    pub fn start(config: &AgentsConfig) -> Result<Self> {
        // One thread: the machine belongs to what is measured.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let seen = Arc::new(Seen::default());
        let token: MetadataValue<Ascii> = format!("Bearer {}", config.token).parse()?;
        let mut nodes = vec![];
        for number in 0..config.nodes {
            let name = format!("node-{number:02}");
            let node = Node::new(&name, config.replicas.len(), config.hold, Arc::clone(&seen));
            let node = Arc::new(Mutex::new(node));
            let hello = Hello {
                protocol: PROTOCOL,
                agent_version: env!("CARGO_PKG_VERSION").into(),
                node: name,
                session: Some(wire::Id { high: u64::from(std::process::id()), low: number as u64 + 1 }),
                capacity: [("tasks".to_owned(), config.capacity * 1_000)].into(),
                ..Hello::default()
            };
            for (replica, url) in config.replicas.iter().enumerate() {
                let link = Link {
                    node: Arc::clone(&node),
                    replica,
                    endpoint: endpoint(url)?,
                    token: token.clone(),
                    hello: hello.clone(),
                };
                runtime.spawn(link.keep());
            }
            nodes.push(node);
        }
        runtime.spawn(keep_time(nodes.clone()));
        let agents = Self { seen, nodes, runtime: Some(runtime) };
        agents.wait("all nodes to be connected", Duration::from_secs(30), || {
            agents.nodes.iter().all(|node| node.lock().expect("no panic with a node").is_everywhere())
        })?;
        Ok(agents)
    }

    /// Ends that were answered for good.
    pub fn ended(&self) -> u64 {
        self.seen.ended.load(Ordering::Relaxed)
    }

    pub fn started(&self) -> usize {
        self.starts(<[Start]>::len)
    }

    /// Looks at all starts so far, in their order.
    pub fn starts<T>(&self, look: impl FnOnce(&[Start]) -> T) -> T {
        look(&self.seen.starts.lock().expect("no panic with the starts").all)
    }

    pub fn started_of(&self, shard: ShardId) -> usize {
        let starts = self.seen.starts.lock().expect("no panic with the starts");
        starts.by_shard.get(&shard).copied().unwrap_or(0)
    }

    pub fn trouble(&self) -> Trouble {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Trouble {
            repeated: of(&self.seen.repeated),
            superseded: of(&self.seen.superseded),
            refused: of(&self.seen.refused),
            started_twice: self.starts(started_twice),
        }
    }

    pub fn wait_ended(&self, count: u64, within: Duration) -> Result<()> {
        self.wait(&format!("{count} tasks to end"), within, || self.ended() >= count)
    }

    /// Asks every few milliseconds.
    pub fn wait(&self, what: &str, within: Duration, done: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + within;
        while !done() {
            let (ended, started) = (self.ended(), self.started());
            ensure!(
                Instant::now() < deadline,
                "waited {within:?} in vain for {what} ({started} started, {ended} ended, {:?})",
                self.trouble()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What does not happen on a quiet day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Reports that had to be sent again.
    pub repeated: u64,
    /// Reports whose attempt was not current any more.
    pub superseded: u64,
    /// Assignments of an owner that had been deposed.
    pub refused: u64,
    /// Starts beyond the first one of a task.
    pub started_twice: usize,
}

fn started_twice(starts: &[Start]) -> usize {
    let mut counts: HashMap<(i64, u32), usize> = HashMap::with_capacity(starts.len());
    for start in starts {
        *counts.entry((start.run, start.task)).or_default() += 1;
    }
    starts.len() - counts.len()
}

fn endpoint(url: &str) -> Result<Endpoint> {
    Ok(Endpoint::from_shared(url.to_owned())
        .with_context(|| format!("{url:?} is no address"))?
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW))
}

/// One node's way to one replica.
struct Link {
    node: Arc<Mutex<Node>>,
    replica: usize,
    endpoint: Endpoint,
    token: MetadataValue<Ascii>,
    hello: Hello,
}

impl Link {
    /// Connects again and again, until the runtime ends.
    async fn keep(self) {
        loop {
            if let Ok(channel) = self.endpoint.connect().await {
                // However it ends: what was not answered goes another way, and here it is tried again.
                let _ = self.talk(channel).await;
                self.node.lock().expect("no panic with a node").lost(self.replica);
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn talk(&self, channel: Channel) -> Result<(), tonic::Status> {
        let mut client = AgentsClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE);
        let (queue, said) = mpsc::unbounded_channel();
        let _ = queue.send(AgentItem::Hello(Box::new(self.hello.clone()))); // its other end is in hand
        let mut request = Request::new(batches::<wire::FromAgent>(said));
        request.metadata_mut().insert("authorization", self.token.clone());
        let mut incoming = client.connect(request).await?.into_inner();
        self.node.lock().expect("no panic with a node").connected(self.replica, queue.clone());
        let mut heartbeats = tokio::time::interval(HEARTBEAT);
        loop {
            tokio::select! {
                message = incoming.message() => match message? {
                    Some(message) => self.node.lock().expect("no panic with a node").hear(self.replica, message),
                    None => return Ok(()),
                },
                _ = heartbeats.tick() => {
                    let _ = queue.send(AgentItem::Heartbeat); // the stream's end is seen above
                }
            }
        }
    }
}

/// Lets tasks end, and repeats what was not taken.
async fn keep_time(nodes: Vec<Arc<Mutex<Node>>>) {
    let mut ticks = tokio::time::interval(TIMER);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for node in &nodes {
            node.lock().expect("no panic with a node").pass_time(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
