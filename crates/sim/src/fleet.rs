//! The agents as one replica reaches them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{BootTime, Clock};
use tenure_dispatch::{AssignError, Executor, Link};
use tenure_model::{Assignment, AttemptId, Held, NodeId};
use tenure_store::SchedulingStore;
use tenure_store_memory::Bells;
use tokio::sync::{oneshot, watch};

use crate::agent::SimAgent;
use crate::gate::Gate;
use crate::machine::number_of;
use crate::network::QUICK;
use crate::replica::name;
use crate::store::RemoteStore;
use crate::time::SimClock;
use crate::world::{Party, World};

const INVENTORY_WITHIN: Duration = Duration::from_secs(5);
const RECORD_EVERY: Duration = Duration::from_secs(5);
const HEARD_WITHIN: Duration = Duration::from_secs(15);
const SILENT_FOR: Duration = Duration::from_secs(20);

pub struct SimFleet {
    world: Arc<World>,
    replica: usize,
    gate: Gate,
    clock: SimClock,
    /// By the number of the machine.
    links: Mutex<BTreeMap<usize, Link>>,
    last: AtomicU64,
    changes: Bells,
}

impl SimFleet {
    pub fn start(
        world: &Arc<World>,
        replica: usize,
        gate: Gate,
        clock: SimClock,
        store: Arc<RemoteStore>,
    ) -> Arc<Self> {
        let fleet = Arc::new(Self {
            world: Arc::clone(world),
            replica,
            gate: gate.clone(),
            clock,
            links: Mutex::default(),
            last: AtomicU64::new(0),
            changes: Bells::default(),
        });
        let recording = Arc::clone(&fleet);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = gate.died() => {}
                () = recording.record(store) => {}
            }
        });
        fleet
    }

    fn links_now(&self) -> MutexGuard<'_, BTreeMap<usize, Link>> {
        self.links.lock().expect("no panic while holding the links")
    }

    fn changed(&self) {
        self.changes.ring();
    }

    pub fn connect(&self, machine: usize) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.links_now().insert(machine, Link { id, heard: self.clock.boottime() });
        self.changed();
        id
    }

    /// False: this link is over.
    pub fn hear(&self, machine: usize, id: u64) -> bool {
        let now = self.clock.boottime();
        match self.links_now().get_mut(&machine) {
            Some(link) if link.id == id => {
                link.heard = now;
                true
            }
            _ => false,
        }
    }

    pub fn disconnect(&self, machine: usize, id: u64) {
        let mut links = self.links_now();
        if links.get(&machine).is_some_and(|link| link.id == id) {
            links.remove(&machine);
            drop(links);
            self.changed();
        }
    }

    /// Tells the others whom it hears, and lets go of whom it does not.
    async fn record(&self, store: Arc<RemoteStore>) {
        loop {
            let now = self.clock.boottime();
            let silence = |heard: BootTime| now.saturating_since(heard);
            let before = self.links_now().len();
            self.links_now().retain(|_, link| silence(link.heard) <= SILENT_FOR);
            if self.links_now().len() != before {
                self.changed();
            }
            let heard: Vec<NodeId> = self
                .links_now()
                .iter()
                .filter(|(_, link)| silence(link.heard) <= HEARD_WITHIN)
                .map(|(machine, _)| self.world.machines[*machine].node.clone())
                .collect();
            // Tried again in a moment anyway.
            let _ = store.record_presence(name(self.replica), &heard).await;
            tokio::time::sleep(RECORD_EVERY).await;
        }
    }

    async fn step(&self, step: &'static str, after: bool) {
        self.world.step(&self.gate, Party::Replica(self.replica), step, after).await;
    }

    fn agent_of(&self, node: &NodeId) -> Option<Arc<SimAgent>> {
        self.world.agent(number_of(node)?)
    }

    /// Brings something to the agent, as many times as the network likes.
    fn send(
        &self,
        node: &NodeId,
        boundary: &'static str,
        may_be_lost: bool,
        deed: impl Fn(&Arc<SimAgent>) + Send + Sync + Clone + 'static,
    ) {
        let Some(agent) = self.agent_of(node) else { return };
        let (mut copies, mut fault) = self.world.network().copies(&self.world.dice);
        if copies.is_empty() && !may_be_lost {
            // A stream loses nothing while it stands.
            (copies, fault) = (vec![QUICK], None);
        }
        if let Some(fault) = fault {
            self.world.trace().met(fault, boundary);
        }
        for delay in copies {
            let (world, replica, agent) = (Arc::clone(&self.world), self.replica, Arc::clone(&agent));
            let deed = deed.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                if world.network().cut_between(agent.machine.number, replica).back {
                    world.trace().met("cut to agent", boundary);
                    return;
                }
                if !agent.gate.is_up() {
                    world.trace().met("agent paused or dead", boundary);
                }
                agent.gate.pass().await;
                deed(&agent);
            });
        }
    }
}

#[async_trait]
impl Executor for SimFleet {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        self.gate.pass().await;
        let node = assignment.node.clone();
        if self.link(&node).is_none() {
            return Err(AssignError::NotTaken { node, reason: "it is not connected to this replica".into() });
        }
        let from = self.replica;
        self.step("assign", false).await;
        self.send(&node, "assign", true, move |agent| agent.assign(assignment.clone(), from));
        self.step("assign", true).await;
        Ok(())
    }

    fn link(&self, node: &NodeId) -> Option<Link> {
        self.links_now().get(&number_of(node)?).copied()
    }

    fn linked(&self) -> Vec<NodeId> {
        self.links_now().keys().map(|machine| self.world.machines[*machine].node.clone()).collect()
    }

    fn links(&self) -> watch::Receiver<u64> {
        self.changes.listen()
    }

    async fn inventory(&self, node: &NodeId) -> Option<Vec<Held>> {
        self.gate.pass().await;
        self.link(node)?;
        let (answer, heard) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        let (world, replica) = (Arc::clone(&self.world), self.replica);
        self.send(node, "inventory", true, move |agent| {
            let (held, number) = (agent.inventory(), agent.machine.number);
            let (world, answer) = (Arc::clone(&world), Arc::clone(&answer));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if !world.network().cut_between(number, replica).there {
                    let waiting = answer.lock().expect("no panic while answering").take();
                    let _ = waiting.map(|waiting| waiting.send(held)); // nobody may wait any more
                }
            });
        });
        let held = tokio::time::timeout(INVENTORY_WITHIN, heard).await.ok()?.ok();
        self.gate.pass().await;
        held
    }

    async fn stop(&self, node: &NodeId, attempt: AttemptId) {
        self.gate.pass().await;
        if self.link(node).is_some() {
            self.step("stop", false).await;
            self.send(node, "stop", false, move |agent| agent.stop(attempt));
            self.step("stop", true).await;
        }
    }
}
