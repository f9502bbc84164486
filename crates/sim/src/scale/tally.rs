//! What is kept of the tasks of a large world.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tenure_judge::history::Effect;
use tenure_model::ShardId;

use super::TASKS_IN_RUN;

#[derive(Debug, Default)]
pub struct Tally {
    pub started: u64,
    pub ended: u64,
    pub succeeded: u64,
    /// Successes of tasks that had succeeded before.
    pub done_twice: u64,
    runs: BTreeMap<String, Run>,
    /// How long runs took, in seconds, by who asked for them.
    pub modest: Vec<f64>,
    pub greedy: Vec<f64>,
    done: usize,
    /// Tasks asked for and done.
    shards: BTreeMap<ShardId, (u64, u64)>,
}

#[derive(Debug)]
struct Run {
    asked_at: Timestamp,
    shard: ShardId,
    greedy: bool,
    /// A bit for each of its tasks that is done.
    done: u128,
}

const _: () = assert!(TASKS_IN_RUN <= u128::BITS as usize);

impl Tally {
    pub fn asked(&mut self, run: String, asked_at: Timestamp, shard: ShardId, greedy: bool) {
        self.runs.insert(run, Run { asked_at, shard, greedy, done: 0 });
        self.shards.entry(shard).or_default().0 += TASKS_IN_RUN as u64;
    }

    pub fn ended(&mut self, effect: &Effect, success: bool, now: Timestamp) {
        self.ended += 1;
        let Some(start) = effect.starts.first().filter(|_| success) else { return };
        self.succeeded += 1;
        let bit = task_bit(&start.task);
        let Some(run) = self.runs.get_mut(&start.run.run).filter(|run| run.done & bit == 0) else {
            self.done_twice += 1;
            return;
        };
        run.done |= bit;
        self.shards.entry(run.shard).or_default().1 += 1;
        if run.done.count_ones() as usize == TASKS_IN_RUN {
            let took = now.duration_since(run.asked_at).as_secs_f64();
            if run.greedy {
                self.greedy.push(took)
            } else {
                self.modest.push(took)
            }
            self.done += 1;
            self.runs.remove(&start.run.run);
        }
    }

    pub fn runs(&self) -> usize {
        self.done + self.runs.len()
    }

    pub fn unfinished(&self) -> usize {
        self.runs.len()
    }

    /// For each shard, how much of what was asked of it is done.
    pub fn done_of_asked(&self) -> Vec<f64> {
        self.shards.values().map(|(asked, done)| *done as f64 / *asked as f64).collect()
    }
}

/// Of `t0` to `t99`.
fn task_bit(task: &str) -> u128 {
    let number: u32 = task[1..].parse().expect("tasks of large worlds are numbered");
    1 << number
}
