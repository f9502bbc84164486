//! Starts processes, kills them, and starts them again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::agent::SimAgent;
use crate::dice::Dice;
use crate::plants::Plant;
use crate::replica::{Replica, name};
use crate::time::SimClock;
use crate::world::{Party, World};

/// Starts, kills and restarts processes.
pub struct Operator {
    world: Arc<World>,
    dice: Dice,
    pub shards: u16,
    pub plant: Option<Plant>,
    pub clocks: Vec<SimClock>,
    lives: Mutex<BTreeMap<usize, u32>>,
}

impl Operator {
    pub fn new(
        world: &Arc<World>,
        dice: &Dice,
        shards: u16,
        plant: Option<Plant>,
        clocks: Vec<SimClock>,
    ) -> Self {
        let lives = Mutex::default();
        Self { world: Arc::clone(world), dice: dice.child(), shards, plant, clocks, lives }
    }

    pub fn start_replica(&self, number: usize) {
        let life = {
            let mut lives = self.lives.lock().expect("no panic while holding the lives");
            let life = lives.entry(number).or_default();
            *life += 1;
            *life
        };
        self.world.event(name(number), "begin", "ok");
        self.world.tell(|| format!("{}#{life} begins", name(number)));
        let clock = self.clocks[number].clone();
        clock.thaw();
        let replica = Replica::start(&self.world, number, life, clock, self.shards, self.plant);
        self.world.set_replica(number, Some(replica));
    }

    pub fn start_agent(&self, number: usize) {
        self.world.event(self.world.machines[number].node.as_str(), "begin", "ok");
        let agent = SimAgent::start(&self.world, number, self.plant);
        self.world.set_agent(number, Some(agent));
    }

    /// Those who stepped into a trap are dead already; their slots are cleared here, and filled again.
    pub async fn bury(self: Arc<Self>, mut fallen: mpsc::UnboundedReceiver<Party>) {
        while let Some(who) = fallen.recv().await {
            let back = self.dice.spread(Duration::from_secs(1), Duration::from_secs(90));
            match who {
                Party::Replica(number) => {
                    self.world.tell(|| format!("{} has died at a boundary", name(number)));
                    self.kill_replica(number, back);
                }
                Party::Agent(number) => {
                    self.world.tell(|| format!("n{number} has died at a boundary"));
                    self.kill_agent(number, back, self.dice.chance(30.0));
                }
            }
        }
    }

    pub fn kill_replica(self: &Arc<Self>, number: usize, back_after: Duration) {
        let Some(replica) = self.world.replica(number) else { return };
        replica.kill();
        self.world.set_replica(number, None);
        let told = self
            .dice
            .chance(70.0)
            .then(|| self.dice.spread(Duration::from_millis(1), Duration::from_secs(5)));
        let (operator, session) = (Arc::clone(self), replica.session);
        tokio::spawn(async move {
            if let Some(after) = told {
                tokio::time::sleep(after).await;
                operator.world.store.leases().crash(session);
            }
        });
        let operator = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(back_after).await;
            operator.start_replica(number);
        });
    }

    pub fn kill_agent(self: &Arc<Self>, number: usize, back_after: Duration, power: bool) {
        let Some(agent) = self.world.agent(number) else { return };
        agent.kill();
        if power {
            self.world.machines[number].lose_power();
        }
        self.world.set_agent(number, None);
        let operator = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(back_after).await;
            operator.start_agent(number);
        });
    }
}
