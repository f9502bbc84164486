//! Tasks whose dependencies are met, in the order they should get a place.
//!
//! Higher priority first; at equal priority tenants take turns, and in a tenant's turn its dags do; within a dag the
//! older run first. A task that
//! a limit holds back is parked under that limit and looked at again when the limit has room, so a
//! million tasks behind a full pool cost nothing.
//!
//! Entries are hints: an entry is checked against its run when it comes up, so nobody has to remove
//! what a cancel or a reload has made stale.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use tenure_model::{RunKey, TaskNo, TiKey};

use crate::dags::{DagNo, TenantNo};
use crate::ledger::{Limit, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub priority: Reverse<i64>,
    pub date: Timestamp,
    pub run: RunKey,
    pub task: TaskNo,
    pub dag: DagNo,
    pub tenant: TenantNo,
}

/// Candidates by priority; of equal priority, tenants in turns, and the dags of each tenant in turns.
#[derive(Debug, Default)]
struct FairQueue {
    levels: BTreeMap<Reverse<i64>, Level>,
    len: usize,
}

/// Candidates of one priority.
type Level = Turns<TenantNo, Turns<DagNo, BTreeSet<Candidate>>>;

/// Those that are served one after the other, each with a line of its own.
#[derive(Debug)]
struct Turns<K, L> {
    /// Whose turn it is. Holds exactly those that have a line.
    order: VecDeque<K>,
    lines: BTreeMap<K, L>,
}

impl<K, L> Default for Turns<K, L> {
    fn default() -> Self {
        Self { order: VecDeque::new(), lines: BTreeMap::new() }
    }
}

/// Whose line a candidate stands in.
trait Stands: Copy + Ord {
    fn of(candidate: &Candidate) -> Self;
}

impl Stands for TenantNo {
    fn of(candidate: &Candidate) -> Self {
        candidate.tenant
    }
}

impl Stands for DagNo {
    fn of(candidate: &Candidate) -> Self {
        candidate.dag
    }
}

trait Line: Default {
    /// False: it stands there already.
    fn push(&mut self, candidate: Candidate) -> bool;
    fn pop(&mut self) -> Option<Candidate>;
    fn remove(&mut self, candidate: &Candidate) -> bool;
    fn is_empty(&self) -> bool;
    /// In no order that matters.
    fn each(&self) -> Box<dyn Iterator<Item = &Candidate> + '_>;
}

impl Line for BTreeSet<Candidate> {
    fn push(&mut self, candidate: Candidate) -> bool {
        self.insert(candidate)
    }

    fn pop(&mut self) -> Option<Candidate> {
        self.pop_first()
    }

    fn remove(&mut self, candidate: &Candidate) -> bool {
        BTreeSet::remove(self, candidate)
    }

    fn is_empty(&self) -> bool {
        BTreeSet::is_empty(self)
    }

    fn each(&self) -> Box<dyn Iterator<Item = &Candidate> + '_> {
        Box::new(self.iter())
    }
}

impl<K: Stands, L: Line> Line for Turns<K, L> {
    fn push(&mut self, candidate: Candidate) -> bool {
        let whose = K::of(&candidate);
        let line = self.lines.entry(whose).or_insert_with(|| {
            self.order.push_back(whose);
            L::default()
        });
        line.push(candidate)
    }

    /// Whoever had the turn goes to the end.
    fn pop(&mut self) -> Option<Candidate> {
        let whose = self.order.pop_front()?;
        let line = self.lines.get_mut(&whose).expect("every turn has a line");
        let candidate = line.pop().expect("an empty line is removed");
        if line.is_empty() {
            self.lines.remove(&whose);
        } else {
            self.order.push_back(whose);
        }
        Some(candidate)
    }

    fn remove(&mut self, candidate: &Candidate) -> bool {
        let whose = K::of(candidate);
        let Some(line) = self.lines.get_mut(&whose) else { return false };
        let removed = line.remove(candidate);
        if line.is_empty() {
            self.lines.remove(&whose);
            self.order.retain(|other| *other != whose);
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn each(&self) -> Box<dyn Iterator<Item = &Candidate> + '_> {
        Box::new(self.lines.values().flat_map(L::each))
    }
}

impl FairQueue {
    fn push(&mut self, candidate: Candidate) {
        let level = self.levels.entry(candidate.priority).or_default();
        self.len += usize::from(level.push(candidate));
    }

    /// The next candidate by priority and turn.
    fn pop(&mut self) -> Option<Candidate> {
        let mut level = self.levels.first_entry()?;
        let candidate = level.get_mut().pop().expect("an empty level is removed");
        if level.get().is_empty() {
            level.remove();
        }
        self.len -= 1;
        Some(candidate)
    }

    /// The priority of the next candidate.
    fn best(&self) -> Option<Reverse<i64>> {
        self.levels.first_key_value().map(|(priority, _)| *priority)
    }

    fn remove(&mut self, candidate: &Candidate) {
        let Some(level) = self.levels.get_mut(&candidate.priority) else { return };
        self.len -= usize::from(level.remove(candidate));
        if level.is_empty() {
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

    /// This limit may have room again. A pool's slots, or a quota, are worth something to tasks of every size.
    pub fn free(&mut self, limit: Limit) {
        match &limit {
            Limit::Pool(pool, _) => {
                let sizes = Limit::Pool(pool.clone(), 0)..=Limit::Pool(pool.clone(), u32::MAX);
                self.freed.extend(self.parked.range(sizes).map(|(limit, _)| limit.clone()));
            }
            Limit::Quota(tenant, _) => {
                let quota = |shape| Limit::Quota(tenant.clone(), shape);
                let shapes = quota(Shape::FIRST)..=quota(Shape::LAST);
                self.freed.extend(self.parked.range(shapes).map(|(limit, _)| limit.clone()));
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

    /// Whoever waits for a share of a better node has waited long enough. False: nobody does.
    pub fn free_better_nodes(&mut self) -> bool {
        let first = Limit::BetterNode(TiKey::unmapped(RunKey(i64::MIN), TaskNo(0)));
        let waiting = self.parked.range(first..).map(|(limit, _)| limit);
        let waiting = waiting.take_while(|limit| matches!(limit, Limit::BetterNode(_))).cloned();
        let before = self.freed.len();
        self.freed.extend(waiting);
        self.freed.len() > before
    }

    /// Before a newcomer takes what has fallen free, whoever is more important and waits for it is brought back, one at a
    /// time. Only limits that dags share are looked at, because those are few: within a dag the next refill is soon
    /// enough.
    pub fn promote(&mut self, mut room: impl FnMut(&Limit) -> usize) {
        let Some(best) = self.ready.best().filter(|_| !self.freed.is_empty()) else { return };
        let shared = self.freed.range(Limit::first_shared()..).take_while(|limit| limit.is_shared());
        let waiting = shared.filter_map(|limit| Some((self.parked.get(limit)?.best()?, limit)));
        let more_important = waiting.filter(|(priority, limit)| *priority < best && room(limit) > 0);
        let Some(limit) = more_important.min().map(|(_, limit)| limit.clone()) else { return };
        let waiting = self.parked.get_mut(&limit).expect("found just now");
        self.ready.push(waiting.pop().expect("an empty queue is removed"));
        if waiting.len == 0 {
            self.parked.remove(&limit);
        }
    }

    /// Brings back as many parked candidates as their freed limits have room for. False: none.
    pub fn refill(&mut self, mut room: impl FnMut(&Limit) -> usize) -> bool {
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

    /// Candidates that no node has room for, so many of each request, those that weigh most first.
    pub fn waiting_for_room(&self, most: usize) -> impl Iterator<Item = &Candidate> {
        let shapes = self.parked.iter().filter(|(limit, _)| matches!(limit, Limit::Capacity(_)));
        shapes.flat_map(move |(_, waiting)| waiting.levels.values().flat_map(Line::each).take(most))
    }

    /// The first of those that each limit holds back.
    pub fn first_parked(&self) -> impl Iterator<Item = (&Limit, &Candidate)> {
        self.parked.iter().filter_map(|(limit, waiting)| {
            let first = waiting.levels.values().flat_map(Line::each).next()?;
            Some((limit, first))
        })
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
            tenant: TenantNo(0),
        }
    }

    fn of_tenant(tenant: u32, dag: u32, run: i64) -> Candidate {
        Candidate { tenant: TenantNo(tenant), ..candidate(dag, run, 1) }
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
    fn a_tenant_with_many_dags_gets_no_more_turns_than_one_with_a_single_dag() {
        let mut queue = ReadyQueue::default();
        for dag in 1..=3 {
            queue.push(of_tenant(0, dag, 10));
            queue.push(of_tenant(0, dag, 11));
        }
        (1..=3).for_each(|run| queue.push(of_tenant(7, 9, run)));
        let order = drain(&mut queue);
        let expected = [(1, 10), (9, 1), (2, 10), (9, 2), (3, 10), (9, 3), (1, 11), (2, 11), (3, 11)];
        assert_eq!(order, expected);
    }

    #[test]
    fn tenants_take_turns_behind_a_limit_too_and_leave_nothing_behind() {
        let mut queue = ReadyQueue::default();
        let limit = Limit::Run(RunKey(1));
        for candidate in [of_tenant(0, 1, 1), of_tenant(0, 1, 2), of_tenant(0, 2, 3), of_tenant(7, 3, 4)] {
            queue.park(limit.clone(), candidate);
        }
        queue.remove(&of_tenant(0, 1, 2), std::slice::from_ref(&limit));
        queue.free(limit);
        let mut order = vec![];
        while queue.refill(|_| 1) {
            order.extend(drain(&mut queue));
        }
        assert_eq!(order, [(1, 1), (3, 4), (2, 3)]);
        assert!(queue.parked.is_empty() && queue.ready.levels.is_empty());
    }

    #[test]
    fn whoever_waits_for_a_better_node_is_freed_without_the_others() {
        let mut queue = ReadyQueue::default();
        let better = |run: i64| Limit::BetterNode(TiKey::unmapped(RunKey(run), TaskNo(0)));
        assert!(!queue.free_better_nodes());
        queue.park(Limit::Run(RunKey(1)), candidate(1, 1, 1));
        queue.park(better(2), candidate(1, 2, 1));
        queue.park(better(3), candidate(1, 3, 1));
        assert!(queue.free_better_nodes());
        assert!(queue.refill(|_| 1));
        assert_eq!(drain(&mut queue), [(1, 2), (1, 3)]);
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
    fn whoever_is_more_important_and_waits_for_what_is_free_goes_before_a_newcomer_and_nobody_else_does() {
        let mut queue = ReadyQueue::default();
        let pool = Limit::Pool("p".into(), 1);
        for priority in [9, 5, 1] {
            queue.park(pool.clone(), candidate(1, priority, priority));
        }
        queue.park(Limit::Run(RunKey(1)), candidate(2, 20, 20));
        queue.push(candidate(3, 30, 3));
        queue.promote(|_| 2);
        assert_eq!(queue.pop(), Some(candidate(3, 30, 3)), "nothing was freed");
        queue.push(candidate(3, 30, 3));
        queue.free(pool.clone());
        queue.free(Limit::Run(RunKey(1)));
        queue.promote(|_| 0);
        assert_eq!(queue.ready.len, 1, "there is no room after all");
        let mut order = vec![];
        for _ in 0..4 {
            queue.promote(|_| 2);
            order.extend(queue.pop().map(|next| next.run.0));
        }
        assert_eq!(order, [9, 5, 30], "one at a time, the most important first; then the newcomer");
        assert!(queue.refill(|_| 2), "the rest as always");
        assert_eq!(drain(&mut queue), [(2, 20), (1, 1)]);
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
