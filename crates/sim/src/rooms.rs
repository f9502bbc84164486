//! How much room a world has: plenty, or so little that tasks wait for it and shards have to trade it.
//!
//! Drawn from a source of its own, so that a world with plenty is what it would be if there were no others.

use std::time::Duration;

use tenure_model::{PoolName, Resources, TaskKind, TaskSpec};
use tenure_store::PoolRecord;

use crate::dice::Dice;

/// How many worlds in a hundred are short of room.
const SHORT: f64 = 50.0;
/// So many tasks fit on a node where there is plenty.
const PLENTY: u64 = 50;
const POOL: &str = "few";

pub struct Rooms {
    pub short: bool,
    /// One for each node.
    pub nodes: Vec<Resources>,
    pub pool: Option<PoolRecord>,
    dice: Dice,
}

impl Rooms {
    pub fn of(seed: u64, nodes: usize) -> Self {
        let dice = Dice::seeded(!seed);
        if !dice.chance(SHORT) {
            return Self::plenty(nodes);
        }
        // Every node can take the largest task, or a node that stays away would keep it waiting to the end.
        let node =
            |_| tasks(1 + dice.below(4) as u64).with(Resources::CPU, 2_000 + dice.below(3) as u64 * 500);
        let nodes = (0..nodes).map(node).collect();
        let slots = 1 + dice.below(3) as u32;
        let pool = PoolRecord { name: PoolName::new(POOL), slots, description: String::new() };
        Self { short: true, nodes, pool: Some(pool), dice }
    }

    pub fn plenty(nodes: usize) -> Self {
        Self { short: false, nodes: vec![tasks(PLENTY); nodes], pool: None, dice: Dice::seeded(0) }
    }

    /// Where room is short, what is there has to suffice for all that comes in an hour.
    pub fn longest_task(&self) -> Duration {
        Duration::from_secs(if self.short { 30 } else { 240 })
    }

    /// What a task asks for beside its place on a node.
    pub fn furnish(&self, task: &mut TaskSpec) {
        let Some(pool) = self.pool.as_ref().filter(|_| task.kind != TaskKind::Empty) else { return };
        if self.dice.chance(60.0) {
            let cpu = *self.dice.pick(&[500, 500, 1_000, 2_000]);
            task.resources = std::mem::take(&mut task.resources).with(Resources::CPU, cpu);
        }
        if self.dice.chance(40.0) {
            task.pool = pool.name.clone();
            task.pool_slots = 1 + self.dice.below(pool.slots.min(2) as usize) as u32;
        }
    }
}

fn tasks(count: u64) -> Resources {
    Resources::default().with(Resources::TASKS, count * 1_000)
}
