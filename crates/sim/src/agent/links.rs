//! The links of an agent to the replicas: kept, given signs of life on, and begun anew.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Clock;
use tenure_model::{Ack, Report};
use tenure_store::{IntentStore, NodeRegistration};

use super::SimAgent;
use crate::network::{Cut, QUICK};
use crate::replica::Replica;
use crate::world::World;

const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
const SILENT_FOR: Duration = Duration::from_secs(12);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const REGISTER_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// From an agent to a replica and back.
pub struct Way {
    pub world: Arc<World>,
    pub agent: usize,
    pub number: usize,
}

impl Way {
    fn cut(&self) -> Cut {
        self.world.network().cut_between(self.agent, self.number)
    }

    /// Brings a report to the replica's desk, and the answer back. `None`: something was lost on the way.
    pub async fn report(
        &self,
        replica: &Replica,
        report: Report,
        boundary: &'static str,
        delay: Duration,
    ) -> Option<Ack> {
        tokio::time::sleep(delay).await;
        if self.cut().there {
            self.world.trace().met("cut to replica", boundary);
            return None;
        }
        replica.gate.pass().await;
        let ack = replica.desk.submit(report).await;
        replica.gate.pass().await;
        let (copies, fault) = self.world.network().copies(&self.world.dice);
        if let Some(fault) = fault {
            self.world.trace().met(fault, "ack");
        }
        tokio::time::sleep(*copies.first()?).await;
        if self.cut().back {
            self.world.trace().met("cut to agent", "ack");
            return None;
        }
        let how = match ack {
            Ack::Accepted => "accepted",
            Ack::Superseded => "superseded",
            Ack::Retry => "retry",
        };
        self.world.event(self.world.machines[self.agent].node.as_str(), boundary, how);
        Some(ack)
    }
}

impl SimAgent {
    pub(super) async fn keep_link(&self, number: usize) {
        loop {
            self.gate.pass().await;
            let replica = self.world.replica(number).filter(|replica| replica.gate.is_up());
            let clear = self.world.network().cut_between(self.machine.number, number) == Cut::default();
            if let Some(replica) = replica.filter(|_| clear) {
                tokio::time::sleep(QUICK).await;
                self.hold(number, &replica).await;
                self.up.lock().expect("no panic while holding the links").remove(&number);
            }
            tokio::time::sleep(AGAIN_AFTER + self.entropy.jitter(AGAIN_AFTER)).await;
        }
    }

    async fn hold(&self, number: usize, replica: &Arc<Replica>) {
        let link = replica.fleet.connect(self.machine.number);
        self.up.lock().expect("no panic while holding the links").insert(number, Arc::clone(replica));
        self.world.event(self.machine.node.as_str(), "link", "ok");
        tokio::spawn(register(Arc::clone(replica), self.registration()));
        let mut silent = Duration::ZERO;
        loop {
            self.gate.pass().await;
            let sent = self.machine.clock.boottime();
            let cut = self.world.network().cut_between(self.machine.number, number);
            let heard = !cut.there && replica.gate.is_up();
            if heard && !replica.fleet.hear(self.machine.number, link) {
                return; // it has given this link up
            }
            if heard && !cut.back {
                silent = Duration::ZERO;
                self.heard_at(sent);
            } else {
                silent += HEARTBEAT_EVERY;
            }
            if silent > SILENT_FOR || replica.gate.is_dead() {
                if !cut.there {
                    replica.fleet.disconnect(self.machine.number, link);
                }
                self.world.event(self.machine.node.as_str(), "link", "lost");
                return;
            }
            tokio::select! {
                biased;
                () = replica.gate.died() => {}
                () = tokio::time::sleep(HEARTBEAT_EVERY) => {}
            }
        }
    }

    /// A word that was sent then has been answered.
    fn heard_at(&self, sent: tenure_clock::BootTime) {
        let mut contact = self.contact.lock().expect("no panic while holding the contact");
        *contact = (*contact).max(Some(sent));
        drop(contact);
        if self.book().any_fenced() {
            self.machine.note_contact(sent);
        }
    }

    fn registration(&self) -> NodeRegistration {
        let capacity = self.world.rooms.nodes[self.machine.number].clone();
        NodeRegistration::new(self.machine.node.clone(), capacity, "sim")
    }
}

async fn register(replica: Arc<Replica>, node: NodeRegistration) {
    while replica.store.register_node(&node, replica.clock.now()).await.is_err() {
        tokio::time::sleep(REGISTER_AGAIN_AFTER).await;
    }
}
