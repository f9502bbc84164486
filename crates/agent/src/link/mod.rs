//! The way from an agent to a control plane on other machines: one stream to each replica, for as long as both live.
//!
//! A report goes to the replica that owns its scope, as far as the last assignment of that scope tells, and to another
//! one as soon as that link breaks, falls silent, or asks for a retry. Whatever happened on the way, repeating a report
//! is harmless, so nothing here is remembered beyond the process.
//!
//! Promises: a report is never held for longer than a bound by a replica that gives no sign of life while another one
//! does. Messages of one stream are taken in the order they were sent.

mod identity;
mod keeper;
mod logs;
mod trouble;
mod wire;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{BootTime, Clock, Entropy};
use tenure_model::{Ack, Assignment, AttemptId, Held, NodeId, QueueName, Report, Resources, Taint};
use tenure_tls::Trust;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{Agent, AssignError, ControlPlane};
pub use identity::Access;
use identity::Keyring;
pub use keeper::Server;
pub use logs::RemoteLogs;
pub use trouble::{LinkState, Trouble};
use wire::Wire;

/// For streams to be let go; nothing depends on it.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Whoever carries out what replicas ask for: an [`Agent`], or something that plays one.
#[async_trait]
pub trait Worker: Send + Sync {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError>;
    async fn stop(&self, attempt: AttemptId);
    fn inventory(&self) -> Vec<Held>;
}

#[async_trait]
impl Worker for Agent {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        Agent::assign(self, assignment).await
    }

    async fn stop(&self, attempt: AttemptId) {
        Agent::stop(self, attempt).await;
    }

    fn inventory(&self) -> Vec<Held> {
        Agent::inventory(self)
    }
}

#[derive(Clone)]
pub struct LinksConfig {
    /// Where replicas can be reached, like `https://10.0.0.7:8080`. The others are learned from these.
    pub servers: Vec<String>,
    /// Whose word on who a replica is counts, where it speaks TLS.
    pub trust: Trust,
    pub access: Access,
    pub node: NodeId,
    pub capacity: Resources,
    pub labels: BTreeMap<String, String>,
    pub taints: BTreeSet<Taint>,
    pub queues: BTreeSet<QueueName>,
    /// Of the agent, for people to see.
    pub version: String,
}

impl fmt::Debug for LinksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinksConfig").field("servers", &self.servers).field("node", &self.node).finish()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadLinks {
    #[error("no server is named")]
    NoServer,
    #[error("{url:?} is no address of a server (write it like http://10.0.0.7:8080): {reason}")]
    BadServer { url: String, reason: String },
    #[error("the token holds signs that no token has: give it as it was printed, on one line")]
    BadToken,
    #[error("the identity in {file} cannot be read: {error}")]
    BadIdentity { file: String, error: String },
    #[error(
        "the identity in {file} is that of node {own}, and this agent is to be {asked}: start it with --name {own}, or with \
         a data folder of its own (--data) and a join token"
    )]
    OtherNode { file: String, own: String, asked: String },
}

/// The links to all replicas.
#[derive(Clone)]
pub struct Links {
    shared: Arc<Shared>,
}

struct Shared {
    config: LinksConfig,
    keyring: Keyring,
    /// Which process of the agent this is.
    session: Uuid,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    wires: RwLock<Vec<Arc<Wire>>>,
    /// When the latest word was said that any replica has answered.
    contact: Mutex<Option<BootTime>>,
    /// Which replica has handed out work of a scope, and under which epoch.
    owners: RwLock<HashMap<String, (u64, Uuid)>>,
    /// Grows when a link comes up or gives a sign of life again.
    usable: watch::Sender<u64>,
    /// What is reached already: two addresses may lead to one replica.
    reached: Mutex<HashSet<Uuid>>,
    /// What is being kept, and a way to say «try now».
    servers: Mutex<HashMap<Server, Arc<Notify>>>,
    states: watch::Sender<BTreeMap<Server, LinkState>>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Links {
    /// Connects to nobody yet: what is submitted waits for [`open`](Self::open).
    pub fn new(config: LinksConfig, clock: Arc<dyn Clock>, entropy: Entropy) -> Result<Self, BadLinks> {
        let servers: Vec<Server> =
            config.servers.iter().map(|url| Server::parse(url)).collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err(BadLinks::NoServer);
        }
        let keyring = Keyring::open(&config.access, &config.node, &*clock, &entropy)?;
        let shared = Shared {
            session: entropy.uuid(clock.now()),
            config,
            keyring,
            clock,
            entropy,
            wires: RwLock::default(),
            contact: Mutex::default(),
            owners: RwLock::default(),
            usable: watch::channel(0).0,
            reached: Mutex::default(),
            servers: Mutex::default(),
            states: watch::channel(servers.into_iter().map(|url| (url, LinkState::Connecting)).collect()).0,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Connects, and stays connected until closed.
    pub fn open(&self, worker: Arc<dyn Worker>) {
        let configured: Vec<Server> = self.shared.states.borrow().keys().cloned().collect();
        for server in configured {
            keeper::add(&self.shared, &worker, server, true);
        }
        let (closing, renewing) =
            (self.shared.closing.clone(), identity::keep_renewed(Arc::clone(&self.shared)));
        self.shared.tasks.spawn(async move { closing.run_until_cancelled(renewing).await });
    }

    /// How it stands with each address.
    pub fn states(&self) -> watch::Receiver<BTreeMap<Server, LinkState>> {
        self.shared.states.subscribe()
    }

    /// The replicas' log store.
    pub fn logs(&self) -> RemoteLogs {
        RemoteLogs::new(Arc::clone(&self.shared))
    }

    /// Hangs up. What is submitted afterwards waits in vain.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(CLOSE_WITHIN, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("a link to a replica does not end; leaving it");
        }
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("states", &*self.shared.states.borrow()).finish_non_exhaustive()
    }
}

#[async_trait]
impl ControlPlane for Links {
    /// Waits for a link if there is none, which is all that can be done then. `Retry` only if every replica that gives
    /// a sign of life has said so, or takes too long.
    async fn submit(&self, report: Report) -> Ack {
        let mut usable = self.shared.usable.subscribe();
        let mut asked = Vec::new();
        loop {
            usable.mark_unchanged();
            match self.shared.choose(&report, &asked) {
                Some(wire) => match wire.submit(&report, &*self.shared.clock).await {
                    Some(ack @ (Ack::Accepted | Ack::Superseded)) => return ack,
                    Some(Ack::Retry) => asked.push(wire.replica),
                    // Broken or silent: it is not chosen again before it is well.
                    None => {}
                },
                None if !asked.is_empty() => return Ack::Retry,
                None => usable.changed().await.expect("the sender is in self"),
            }
        }
    }

    fn contact(&self, _clock: &dyn Clock) -> Option<BootTime> {
        *lock(&self.shared.contact)
    }
}

impl Shared {
    /// The owner if it can be reached, otherwise anybody who has not been asked.
    fn choose(&self, report: &Report, asked: &[Uuid]) -> Option<Arc<Wire>> {
        let owner =
            self.owners.read().expect("no panic while holding the owners").get(&report.scope).copied();
        let wires = self.wires.read().expect("no panic while holding the wires");
        let fit: Vec<&Arc<Wire>> =
            wires.iter().filter(|wire| wire.is_well() && !asked.contains(&wire.replica)).collect();
        let owner = fit.iter().find(|wire| owner.is_some_and(|(_, replica)| wire.replica == replica));
        // Spread by the attempt, so that no replica gets them all.
        let any = || fit.get((report.body.attempt().0.as_u128() % fit.len().max(1) as u128) as usize);
        owner.or_else(any).map(|wire| Arc::clone(wire))
    }

    fn well(&self) -> Vec<Arc<Wire>> {
        let wires = self.wires.read().expect("no panic while holding the wires");
        wires.iter().filter(|wire| wire.is_well()).cloned().collect()
    }

    /// Whoever hands out work of a scope under the highest epoch is its owner.
    fn note_owner(&self, scope: &str, epoch: u64, replica: Uuid) {
        let news =
            |known: Option<&(u64, Uuid)>| known.is_none_or(|known| known.0 <= epoch && known.1 != replica);
        if news(self.owners.read().expect("no panic while holding the owners").get(scope)) {
            let mut owners = self.owners.write().expect("no panic while holding the owners");
            if news(owners.get(scope)) {
                owners.insert(scope.to_owned(), (epoch, replica));
            }
        }
    }

    fn note_contact(&self, said: BootTime) {
        let mut contact = lock(&self.contact);
        *contact = (*contact).max(Some(said));
    }

    fn set_state(&self, server: &Server, state: LinkState) {
        self.states.send_if_modified(|states| {
            let is_news = states.get(server) != Some(&state);
            if is_news {
                states.insert(server.clone(), state);
            }
            is_news
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while holding the links' books")
}
