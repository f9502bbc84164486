//! Tasks whose dependencies are met, in the order they should get a place.
//!
//! Higher priority first; at equal priority dags take turns; within a dag the older run first. A task that
//! a limit holds back is parked under that limit and looked at again when the limit has room, so a
//! million tasks behind a full pool cost nothing.
//!
//! Entries are hints: an entry is checked against its run when it comes up, so nobody has to remove
//! what a cancel or a reload has made stale.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use tenure_model::{RunKey, TaskNo};

use crate::dags::DagNo;
use crate::ledger::Limit;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub priority: Reverse<i64>,
    pub date: Timestamp,
    pub run: RunKey,
    pub task: TaskNo,
    pub dag: DagNo,
}

/// Candidates by priority, dags of equal priority in turns.
#[derive(Debug, Default)]
struct FairQueue {
    levels: BTreeMap<Reverse<i64>, Level>,
    len: usize,
}

/// Candidates of one priority.
#[derive(Debug, Default)]
struct Level {
    /// Whose turn it is. Holds exactly the dags that have a queue.
    turns: VecDeque<DagNo>,
    queues: BTreeMap<DagNo, BTreeSet<Candidate>>,
}

impl FairQueue {
    fn push(&mut self, candidate: Candidate) {
        let level = self.levels.entry(candidate.priority).or_default();
        let queue = level.queues.entry(candidate.dag).or_insert_with(|| {
            level.turns.push_back(candidate.dag);
            BTreeSet::new()
        });
        self.len += usize::from(queue.insert(candidate));
    }

    /// The next candidate by priority and turn; its dag goes to the end of the line.
    fn pop(&mut self) -> Option<Candidate> {
        let mut level = self.levels.first_entry()?;
        let Level { turns, queues } = level.get_mut();
        let dag = turns.pop_front().expect("a level with no turns is removed");
        let queue = queues.get_mut(&dag).expect("every turn has a queue");
        let candidate = queue.pop_first().expect("an empty queue is removed");
        if queue.is_empty() {
            queues.remove(&dag);
        } else {
            turns.push_back(dag);
        }
        if turns.is_empty() {
            level.remove();
        }
        self.len -= 1;
        Some(candidate)
    }

    fn remove(&mut self, candidate: &Candidate) {
        let Some(level) = self.levels.get_mut(&candidate.priority) else { return };
        let Some(queue) = level.queues.get_mut(&candidate.dag) else { return };
        self.len -= usize::from(queue.remove(candidate));
        if queue.is_empty() {
            level.queues.remove(&candidate.dag);
            level.turns.retain(|dag| *dag != candidate.dag);
        }
        if level.turns.is_empty() {
            self.levels.remove(&candidate.priority);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    ready: FairQueue,
    parked: BTreeMap<Limit, FairQueue>,
    /// Limits that may have room again.
    freed: BTreeSet<Limit>,
}

impl ReadyQueue {
    pub fn push(&mut self, candidate: Candidate) {
        self.ready.push(candidate);
    }

    pub fn pop(&mut self) -> Option<Candidate> {
        self.ready.pop()
    }

    pub fn is_empty(&self) -> bool {
        self.ready.len == 0
    }

    pub fn park(&mut self, limit: Limit, candidate: Candidate) {
        self.parked.entry(limit).or_default().push(candidate);
    }

    /// Forgets a candidate, wherever it waits. `limits` are all that could hold it back.
    pub fn remove(&mut self, candidate: &Candidate, limits: &[Limit]) {
        self.ready.remove(candidate);
        for limit in limits {
            if let Some(waiting) = self.parked.get_mut(limit) {
                waiting.remove(candidate);
                if waiting.len == 0 {
                    self.parked.remove(limit);
                }
            }
        }
    }

    /// This limit may have room again. A pool's slots are worth something to tasks of every size.
    pub fn free(&mut self, limit: Limit) {
        match &limit {
            Limit::Pool(pool, _) => {
                let sizes = Limit::Pool(pool.clone(), 0)..=Limit::Pool(pool.clone(), u32::MAX);
                self.freed.extend(self.parked.range(sizes).map(|(limit, _)| limit.clone()));
            }
            _ if self.parked.contains_key(&limit) => {
                self.freed.insert(limit);
            }
            _ => {}
        }
    }

    /// A pass with room to hand out would find something to try.
    pub fn has_work(&self) -> bool {
        !self.is_empty() || !self.freed.is_empty()
    }

    /// Any limit that holds something back may have room again.
    pub fn free_all(&mut self) {
        self.freed.extend(self.parked.keys().cloned());
    }

    /// Some node has room again.
    pub fn free_capacity(&mut self) {
        self.freed.extend(self.parked.keys().filter(|limit| matches!(limit, Limit::Capacity(_))).cloned());
    }

    /// Brings back as many parked candidates as their freed limits have room for. False: none.
    pub fn refill(&mut self, room: impl Fn(&Limit) -> usize) -> bool {
        let mut moved = false;
        for limit in std::mem::take(&mut self.freed) {
            let Some(waiting) = self.parked.get_mut(&limit) else { continue };
            let count = room(&limit).min(waiting.len);
            for candidate in (0..count).map_while(|_| waiting.pop()) {
                self.ready.push(candidate);
            }
            if waiting.len == 0 {
                self.parked.remove(&limit);
            } else if count > 0 {
                // Those brought back may fail at another limit and leave this room to the rest.
                self.freed.insert(limit);
            }
            moved |= count > 0;
        }
        moved
    }

    /// How many candidates each limit holds back.
    pub fn parked(&self) -> impl Iterator<Item = (&Limit, usize)> {
        self.parked.iter().map(|(limit, waiting)| (limit, waiting.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(dag: u32, run: i64, priority: i64) -> Candidate {
        Candidate {
            priority: Reverse(priority),
            date: Timestamp::UNIX_EPOCH,
            run: RunKey(run),
            task: TaskNo(0),
            dag: DagNo(dag),
        }
    }

    fn drain(queue: &mut ReadyQueue) -> Vec<(u32, i64)> {
        std::iter::from_fn(|| queue.pop()).map(|next| (next.dag.0, next.run.0)).collect()
    }

    #[test]
    fn dags_of_equal_priority_take_turns_and_higher_priority_goes_first() {
        let mut queue = ReadyQueue::default();
        for run in 1..=3 {
            queue.push(candidate(1, run, 1));
        }
        queue.push(candidate(2, 10, 1));
        queue.push(candidate(3, 20, 5));
        assert_eq!(drain(&mut queue), [(3, 20), (1, 1), (2, 10), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_freed_limit_brings_back_as_many_as_it_has_room_for_best_first() {
        let mut queue = ReadyQueue::default();
        let limit = Limit::Run(RunKey(1));
        for priority in [1, 9, 5] {
            queue.park(limit.clone(), candidate(1, priority, priority));
        }
        assert!(!queue.refill(|_| 2), "nothing was freed");
        queue.free(limit);
        assert!(queue.refill(|_| 2));
        assert_eq!(drain(&mut queue), [(1, 9), (1, 5)]);
        assert!(queue.refill(|_| 1), "room that was not used goes to the next in line");
        assert_eq!(drain(&mut queue), [(1, 1)]);
        assert!(!queue.refill(|_| 1));
    }

    #[test]
    fn dags_take_turns_behind_a_limit_too() {
        let mut queue = ReadyQueue::default();
        let limit = Limit::Run(RunKey(1));
        for run in 1..=3 {
            queue.park(limit.clone(), candidate(1, run, 1));
        }
        queue.park(limit.clone(), candidate(2, 10, 1));
        queue.free(limit);
        let mut order = vec![];
        while queue.refill(|_| 1) {
            order.extend(drain(&mut queue));
        }
        assert_eq!(order, [(1, 1), (2, 10), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_removed_candidate_is_nowhere_and_its_dag_loses_its_turn() {
        let mut queue = ReadyQueue::default();
        let limit = Limit::Run(RunKey(1));
        queue.push(candidate(1, 1, 1));
        queue.park(limit.clone(), candidate(1, 1, 1));
        queue.push(candidate(2, 2, 1));
        queue.remove(&candidate(1, 1, 1), std::slice::from_ref(&limit));
        queue.free(limit);
        assert!(!queue.refill(|_| 9));
        assert_eq!(drain(&mut queue), [(2, 2)]);
        assert!(queue.ready.levels.is_empty() && queue.parked.is_empty());
    }
}
