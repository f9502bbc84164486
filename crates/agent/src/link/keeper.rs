//! Keeps one link: connects, says hello, listens, and begins again when it is over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_agent_life::Backoff;
use tenure_agent_proto::wire::{Hello, InventoryAnswer, ToAgent, Welcome};
use tenure_agent_proto::{
    AgentItem, AgentsClient, LARGEST_MESSAGE, PROTOCOL, REPLICA_KEY, Why, batches, wire as messages,
};
use tenure_model::{Assignment, AttemptId, QueueName, Taint};
use tokio::sync::{Notify, mpsc};
use tokio::time::MissedTickBehavior;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

use super::wire::{Look, Wire};
use super::{BadLinks, LinkState, Shared, Trouble, Worker, lock};
use crate::AssignError;

const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// From the call to the welcome.
const WELCOME_WITHIN: Duration = Duration::from_secs(5);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A replica that is back should not be without its nodes for long, and a refused connection costs little.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// What somebody has to mend is not tried again more often.
const PAUSE_FOR_SOMEBODY: Duration = Duration::from_secs(5);
/// An address that leads where another one leads already is of use when that one breaks.
const ALIAS_PAUSE: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(5);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Room for a few batches on their way: what is in flight must not wait for window updates.
const WINDOW: u32 = 8 * 1024 * 1024;

/// Where a replica can be reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server(String);

impl Server {
    pub fn parse(url: &str) -> Result<Self, BadLinks> {
        let bad = |reason: &str| BadLinks::BadServer { url: url.to_owned(), reason: reason.to_owned() };
        let trimmed = url.trim().trim_end_matches('/');
        let Some(rest) = trimmed.strip_prefix("http://").or_else(|| trimmed.strip_prefix("https://")) else {
            return Err(bad("it begins with neither http:// nor https://"));
        };
        if rest.is_empty() || rest.contains('/') {
            return Err(bad("it is http:// or https://, a host and a port"));
        }
        Endpoint::from_shared(trimmed.to_owned()).map_err(|error| bad(&error.to_string()))?;
        Ok(Self(trimmed.to_owned()))
    }

    fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Begins to keep a link to this address. If it is kept already and down, it is tried at once: somebody has just heard of
/// the replica.
pub(super) fn add(shared: &Arc<Shared>, worker: &Arc<dyn Worker>, server: Server, configured: bool) {
    let mut servers = lock(&shared.servers);
    if let Some(try_now) = servers.get(&server) {
        return try_now.notify_one();
    }
    if shared.closing.is_cancelled() {
        return;
    }
    let try_now = Arc::new(Notify::new());
    servers.insert(server.clone(), Arc::clone(&try_now));
    drop(servers);
    let (shared, worker) = (Arc::clone(shared), Arc::clone(worker));
    let (closing, tasks) = (shared.closing.clone(), shared.tasks.clone());
    let keeper = Keeper { shared, worker, server, configured, try_now };
    tasks.spawn(async move { closing.run_until_cancelled(keeper.keep()).await });
}

struct Keeper {
    shared: Arc<Shared>,
    worker: Arc<dyn Worker>,
    server: Server,
    /// Somebody has named this address; others are forgotten when no replica names them any more.
    configured: bool,
    try_now: Arc<Notify>,
}

/// Why a connection is over.
enum Over {
    /// It never was a link.
    Failed(Trouble),
    /// The replica is reached by another address.
    Alias,
    /// It was a link.
    Lost(Trouble),
}

impl Keeper {
    async fn keep(&self) {
        let begin = || Backoff::up_to(LONGEST_PAUSE, &self.shared.entropy);
        let mut backoff = begin();
        loop {
            let trouble = match self.connect().await {
                Over::Lost(trouble) => {
                    backoff = begin();
                    trouble
                }
                Over::Failed(trouble) => trouble,
                Over::Alias => {
                    self.shared.set_state(&self.server, LinkState::Alias);
                    self.while_others_change(ALIAS_PAUSE).await;
                    continue;
                }
            };
            let needs_somebody = trouble.needs_somebody();
            self.shared.set_state(&self.server, LinkState::Down(trouble));
            if self.is_forgotten() {
                lock(&self.shared.servers).remove(&self.server);
                self.shared.states.send_modify(|states| drop(states.remove(&self.server)));
                return;
            }
            let pause = async {
                if needs_somebody {
                    let more = self.shared.entropy.jitter(PAUSE_FOR_SOMEBODY);
                    tokio::time::sleep(PAUSE_FOR_SOMEBODY + more).await;
                } else {
                    backoff.pause().await;
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.try_now.notified() => {}
            }
        }
    }

    /// A replica that others no longer know is gone for good. Without any link nobody can say so.
    fn is_forgotten(&self) -> bool {
        let wires = self.shared.wires.read().expect("no panic while holding the wires");
        let named = wires.iter().any(|wire| lock(&wire.peers).contains(&self.server));
        !self.configured && !wires.is_empty() && !named
    }

    async fn while_others_change(&self, at_most: Duration) {
        let mut states = self.shared.states.subscribe();
        // Whichever comes first: both only mean «look again».
        let _ = tokio::time::timeout(at_most, states.changed()).await;
    }

    /// An identity that is refused is replaced, where there is a join token, before anybody hears of it.
    async fn connect(&self) -> Over {
        match self.try_once().await {
            (Over::Failed(trouble), Some(shown)) if self.can_join_again(&trouble, &shown) => {
                self.try_once().await.0
            }
            (Over::Lost(trouble), Some(shown)) if self.can_join_again(&trouble, &shown) => {
                Over::Lost(Trouble::Ended { said: trouble.to_string() })
            }
            (over, _) => over,
        }
    }

    fn can_join_again(&self, trouble: &Trouble, shown: &MetadataValue<Ascii>) -> bool {
        let Shared { keyring, clock, entropy, .. } = &*self.shared;
        trouble.is_refusal() && keyring.refused(shown, trouble, &**clock, entropy)
    }

    /// How it went, and what was shown.
    async fn try_once(&self) -> (Over, Option<MetadataValue<Ascii>>) {
        let client = match self.reach().await {
            Ok(client) => client,
            Err(trouble) => return (Over::Failed(trouble), None),
        };
        match self.shared.keyring.show(&client, &*self.shared.clock).await {
            Ok(shown) => (self.call(client, &shown).await, Some(shown)),
            Err(trouble) => (Over::Failed(trouble), None),
        }
    }

    async fn reach(&self) -> Result<AgentsClient<Channel>, Trouble> {
        let shared = &self.shared;
        let mut endpoint = Endpoint::from_shared(self.server.0.clone()).expect("it was parsed before");
        if self.server.is_secure() {
            let tls = ClientTlsConfig::new().trust_anchors(shared.config.trust.anchors().iter().cloned());
            endpoint = match endpoint.tls_config(tls) {
                Ok(endpoint) => endpoint,
                Err(error) => return Err(Trouble::unreachable(&error)),
            };
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_WITHIN)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_WITHIN)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * 2);
        match tokio::time::timeout(CONNECT_WITHIN, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(AgentsClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE)),
            Ok(Err(error)) => Err(Trouble::unreachable(&error)),
            Err(_) => Err(Trouble::Silent),
        }
    }

    async fn call(&self, client: AgentsClient<Channel>, shown: &MetadataValue<Ascii>) -> Over {
        let shared = &self.shared;
        let (queue, said) = mpsc::unbounded_channel();
        let mut request = Request::new(batches::<messages::FromAgent>(said));
        request.metadata_mut().insert("authorization", shown.clone());

        let mut caller = client.clone();
        let called = tokio::time::timeout(WELCOME_WITHIN, caller.connect(request)).await;
        let response = match called {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => return Over::Failed(Trouble::from_status(&status)),
            Err(_) => return Over::Failed(Trouble::Silent),
        };
        let replica =
            response.metadata().get(REPLICA_KEY).and_then(|id| Uuid::parse_str(id.to_str().ok()?).ok());
        let mut incoming = response.into_inner();
        let Some(replica) = replica else { return Over::Failed(nameless(&mut incoming).await) };
        let Some(_reached) = Reached::claim(shared, replica) else { return Over::Alias };
        let wire = Arc::new(Wire::new(replica, client, queue, shared.clock.boottime()));
        wire.say(AgentItem::Hello(Box::new(self.hello())));
        let welcome = match tokio::time::timeout(WELCOME_WITHIN, first(&mut incoming)).await {
            Ok(Ok(welcome)) => welcome,
            Ok(Err(status)) => return Over::Failed(Trouble::from_status(&status)),
            Err(_) => return Over::Failed(Trouble::Silent),
        };
        Over::Lost(self.hold(wire, welcome, incoming).await)
    }

    fn hello(&self) -> Hello {
        let config = &self.shared.config;
        Hello {
            protocol: PROTOCOL,
            agent_version: config.version.clone(),
            node: config.node.to_string(),
            session: Some(self.shared.session.into()),
            capacity: config.capacity.0.clone(),
            labels: config.labels.clone(),
            taints: config.taints.iter().map(Taint::to_string).collect(),
            queues: config.queues.iter().map(QueueName::to_string).collect(),
        }
    }

    /// A link, from its welcome to its end.
    async fn hold(&self, wire: Arc<Wire>, first: ToAgent, mut incoming: Streaming<ToAgent>) -> Trouble {
        let shared = &self.shared;
        let name = first.welcome.as_ref().map(|welcome| welcome.replica.clone()).unwrap_or_default();
        let _up = Up::new(shared, &wire);
        shared.set_state(&self.server, LinkState::Up { replica: name });
        self.take_in(&wire, first).await;
        let listening = async {
            loop {
                match incoming.message().await {
                    Ok(Some(message)) => self.take_in(&wire, message).await,
                    Ok(None) => return Trouble::Ended { said: "without a word".into() },
                    Err(status) => return Trouble::from_status(&status),
                }
            }
        };
        tokio::select! {
            trouble = listening => trouble,
            () = self.watch(&wire) => Trouble::Silent,
        }
    }

    /// Gives signs of life, asks for some, and returns when there have been none for too long.
    async fn watch(&self, wire: &Wire) {
        let every = |period| {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let (mut looks, mut heartbeats) = (every(LOOK_EVERY), every(HEARTBEAT_EVERY));
        let mut asked = 0u32;
        loop {
            tokio::select! {
                _ = heartbeats.tick() => wire.ping(self.shared.clock.boottime()),
                _ = looks.tick() => match wire.look(self.shared.clock.boottime()) {
                    Look::Fine => asked = 0,
                    Look::Ask => {
                        // Once in a while is enough; the answer comes at once if anybody is there.
                        if asked.is_multiple_of(4) {
                            wire.ping(self.shared.clock.boottime());
                        }
                        asked += 1;
                    }
                    Look::Dead => return,
                }
            }
        }
    }

    async fn take_in(&self, wire: &Wire, message: ToAgent) {
        if wire.hear(self.shared.clock.boottime()) {
            self.shared.usable.send_modify(|count| *count += 1);
        }
        if let Some(said) = wire.take_acks(&message) {
            self.shared.note_contact(said);
        }
        if let Some(welcome) = message.welcome {
            self.meet(wire, welcome);
        }
        for assignment in message.assignments {
            self.assign(wire, assignment).await;
        }
        for stop in message.stops {
            self.worker.stop(AttemptId(stop.into())).await;
        }
        if !message.inventory_requests.is_empty() {
            let held: Vec<messages::Held> = self.worker.inventory().into_iter().map(Into::into).collect();
            for request in message.inventory_requests {
                wire.say(AgentItem::Inventory(InventoryAnswer { request, held: held.clone() }));
            }
        }
    }

    /// Other replicas are reached too, as soon as somebody tells of them.
    fn meet(&self, wire: &Wire, welcome: Welcome) {
        let known = welcome.peers.iter().filter_map(|url| Server::parse(url).ok());
        // What opens a door is not shown in clear on the word of somebody else.
        let fit = |peer: &Server| {
            let fit = peer.is_secure() || !self.server.is_secure();
            if !fit {
                tracing::warn!("{peer} is not connected to: {} speaks TLS, and it does not", self.server);
            }
            fit
        };
        let peers: Vec<Server> = known.filter(fit).collect();
        *lock(&wire.peers) = peers.clone();
        for peer in peers {
            add(&self.shared, &self.worker, peer, false);
        }
    }

    async fn assign(&self, wire: &Wire, assignment: messages::Assignment) {
        let named = (assignment.attempt, assignment.ti, assignment.scope.clone());
        let why = match Assignment::try_from(assignment) {
            Ok(assignment) => {
                self.shared.note_owner(&assignment.scope, assignment.epoch, wire.replica);
                match self.worker.assign(assignment).await {
                    Ok(()) => return,
                    Err(AssignError::StaleEpoch { highest, .. }) => Why::StaleEpoch { highest },
                    Err(error) => Why::NotTaken { reason: error.to_string() },
                }
            }
            Err(nonsense) => Why::Unreadable { reason: format!("its node could not read it: {nonsense}") },
        };
        let (attempt, ti, scope) = named;
        tracing::warn!(attempt = ?attempt.map(Uuid::from), scope, ?why, "an assignment was refused");
        // Without a name there is nothing to refuse; the owner's deadline for claims will tell.
        if attempt.is_some() && ti.is_some() && !scope.is_empty() {
            wire.say(AgentItem::Refusal(messages::Refusal { attempt, ti, scope, why: Some(why.into()) }));
        }
    }
}

async fn first(incoming: &mut Streaming<ToAgent>) -> Result<ToAgent, Status> {
    let first = incoming.message().await?;
    first
        .filter(|message| message.welcome.is_some())
        .ok_or_else(|| Status::unimplemented("it does not say welcome"))
}

/// What answers there gives no name: its own words tell whether that will change. Something in front of replicas that are
/// away says so with a plain status of HTTP.
async fn nameless(incoming: &mut Streaming<ToAgent>) -> Trouble {
    match tokio::time::timeout(WELCOME_WITHIN, incoming.message()).await {
        Ok(Err(status)) => Trouble::from_status(&status),
        Ok(Ok(_)) => Trouble::NotTenure { said: "it does not give its name".into() },
        Err(_) => Trouble::Silent,
    }
}

/// Held while a replica is reached, so that a second address does not throw the first one out.
struct Reached<'a> {
    shared: &'a Shared,
    replica: Uuid,
}

impl<'a> Reached<'a> {
    fn claim(shared: &'a Shared, replica: Uuid) -> Option<Self> {
        let is_new = lock(&shared.reached).insert(replica);
        is_new.then(|| Self { shared, replica })
    }
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        lock(&self.shared.reached).remove(&self.replica);
    }
}

/// Held while a link can be used.
struct Up<'a> {
    shared: &'a Shared,
    wire: &'a Arc<Wire>,
}

impl<'a> Up<'a> {
    fn new(shared: &'a Shared, wire: &'a Arc<Wire>) -> Self {
        shared.wires.write().expect("no panic while holding the wires").push(Arc::clone(wire));
        shared.usable.send_modify(|count| *count += 1);
        Self { shared, wire }
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        // First out of sight, then hung up: whoever is let go must not choose it again.
        let mut wires = self.shared.wires.write().expect("no panic while holding the wires");
        wires.retain(|wire| !Arc::ptr_eq(wire, self.wire));
        drop(wires);
        self.wire.close();
    }
}
