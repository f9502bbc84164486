//! A dag version's shape, computed once and shared by all its runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_model::{DagSpec, TaskId, TaskSpec, WeightRule};

#[derive(Debug)]
pub struct DagGraph {
    spec: Arc<DagSpec>,
    nodes: Vec<Node>,
    by_id: BTreeMap<TaskId, u32>,
    depends_on_past: bool,
}

#[derive(Debug)]
struct Node {
    upstream: Vec<u32>,
    downstream: Vec<u32>,
    weight: i64,
}

impl DagGraph {
    /// A spec that was validated when it was registered; unknown names in `needs` are left out.
    pub fn new(spec: Arc<DagSpec>) -> Self {
        let by_id: BTreeMap<TaskId, u32> =
            spec.tasks.iter().enumerate().map(|(at, task)| (task.id.clone(), at as u32)).collect();
        let mut nodes: Vec<Node> = spec
            .tasks
            .iter()
            .map(|task| {
                let mut upstream: Vec<u32> =
                    task.needs.iter().filter_map(|id| by_id.get(id).copied()).collect();
                upstream.sort_unstable();
                upstream.dedup();
                Node { upstream, downstream: vec![], weight: i64::from(task.priority) }
            })
            .collect();
        for at in 0..nodes.len() {
            for up in nodes[at].upstream.clone() {
                nodes[up as usize].downstream.push(at as u32);
            }
        }
        let depends_on_past = spec.tasks.iter().any(|task| task.depends_on_past || task.wait_for_downstream);
        let mut graph = Self { spec, nodes, by_id, depends_on_past };
        graph.weigh();
        graph
    }

    pub fn spec(&self) -> &Arc<DagSpec> {
        &self.spec
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn task(&self, at: u32) -> &TaskSpec {
        &self.spec.tasks[at as usize]
    }

    pub fn position(&self, id: &TaskId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub fn upstream(&self, at: u32) -> &[u32] {
        &self.nodes[at as usize].upstream
    }

    pub fn downstream(&self, at: u32) -> &[u32] {
        &self.nodes[at as usize].downstream
    }

    /// Decides the run's outcome together with the other leaves.
    pub fn is_leaf(&self, at: u32) -> bool {
        self.nodes[at as usize].downstream.is_empty()
    }

    /// Priority with the task's place in the graph counted in.
    pub fn weight(&self, at: u32) -> i64 {
        self.nodes[at as usize].weight
    }

    /// Some task looks at the previous run.
    pub fn depends_on_past(&self) -> bool {
        self.depends_on_past
    }

    fn weigh(&mut self) {
        let rules: Vec<WeightRule> = self.spec.tasks.iter().map(|task| task.weight_rule).collect();
        let own: Vec<i64> = self.spec.tasks.iter().map(|task| i64::from(task.priority)).collect();
        for (rule, next) in [
            (WeightRule::Downstream, Self::downstream as fn(&Self, u32) -> &[u32]),
            (WeightRule::Upstream, Self::upstream),
        ] {
            if !rules.contains(&rule) {
                continue;
            }
            for (at, sum) in self.closure_sums(&own, next).into_iter().enumerate() {
                if rules[at] == rule {
                    self.nodes[at].weight = sum;
                }
            }
        }
    }

    /// For each task the sum of `own` over itself and everything reachable through `next`, each
    /// counted once. Bit sets keep a dag of 20,000 tasks at 20,000² / 8 = 50 MB for a moment.
    fn closure_sums(&self, own: &[i64], next: fn(&Self, u32) -> &[u32]) -> Vec<i64> {
        let count = self.nodes.len();
        let words = count.div_ceil(64);
        let mut reach = vec![0u64; count * words];
        let mut sums = own.to_vec();
        // Most dags give all tasks one priority; then counting the relatives is enough.
        let alike = own.first().copied().filter(|first| own.iter().all(|weight| weight == first));
        for at in self.after_all_reachable(next) {
            let mut set = vec![0u64; words];
            for &to in next(self, at) {
                set[to as usize / 64] |= 1 << (to % 64);
                let theirs = &reach[to as usize * words..(to as usize + 1) * words];
                set.iter_mut().zip(theirs).for_each(|(mine, their)| *mine |= their);
            }
            sums[at as usize] += match alike {
                Some(weight) => weight * set.iter().map(|word| i64::from(word.count_ones())).sum::<i64>(),
                None => bits(&set).map(|other| own[other]).sum(),
            };
            reach[at as usize * words..(at as usize + 1) * words].copy_from_slice(&set);
        }
        sums
    }

    /// An order in which everything reachable from a task comes before it. Without recursion: a
    /// chain of 20,000 tasks must not exhaust the stack.
    fn after_all_reachable(&self, next: fn(&Self, u32) -> &[u32]) -> Vec<u32> {
        let mut waiting: Vec<usize> = (0..self.nodes.len() as u32).map(|at| next(self, at).len()).collect();
        let mut before: Vec<Vec<u32>> = vec![vec![]; self.nodes.len()];
        for at in 0..self.nodes.len() as u32 {
            for &to in next(self, at) {
                before[to as usize].push(at);
            }
        }
        let mut order: Vec<u32> =
            (0..self.nodes.len() as u32).filter(|at| waiting[*at as usize] == 0).collect();
        let mut done = 0;
        while done < order.len() {
            for &at in &before[order[done] as usize] {
                waiting[at as usize] -= 1;
                if waiting[at as usize] == 0 {
                    order.push(at);
                }
            }
            done += 1;
        }
        order
    }
}

fn bits(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
    set.iter().enumerate().flat_map(|(word, bits)| {
        let rest = std::iter::successors(Some(*bits), |left| Some(left & left.wrapping_sub(1)));
        rest.take_while(|left| *left != 0).map(move |left| word * 64 + left.trailing_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_model::TaskKind;

    fn graph(rule: WeightRule) -> DagGraph {
        let task = |id: &str, needs: &[&str], priority| TaskSpec {
            priority,
            weight_rule: rule,
            ..TaskSpec::new(id, TaskKind::Empty).needs(needs)
        };
        // A diamond: the common descendant counts once.
        let tasks =
            vec![task("a", &[], 1), task("b", &["a"], 2), task("c", &["a"], 4), task("d", &["b", "c"], 8)];
        DagGraph::new(Arc::new(DagSpec::new("g", tasks)))
    }

    #[test]
    fn weights_follow_their_rule_and_count_each_relative_once() {
        let weights = |rule| (0..4).map(|at| graph(rule).weight(at)).collect::<Vec<_>>();
        assert_eq!(weights(WeightRule::Downstream), [15, 10, 12, 8]);
        assert_eq!(weights(WeightRule::Upstream), [1, 3, 5, 15]);
        assert_eq!(weights(WeightRule::Absolute), [1, 2, 4, 8]);
    }

    #[test]
    fn a_chain_of_twenty_thousand_is_weighed_without_recursion() {
        let tasks = (0..20_000).map(|at| {
            let task = TaskSpec::new(format!("t{at}"), TaskKind::Empty);
            if at == 0 { task } else { task.needs(&[&format!("t{}", at - 1)]) }
        });
        let graph = DagGraph::new(Arc::new(DagSpec::new("chain", tasks.collect())));
        assert_eq!((graph.weight(0), graph.weight(19_999)), (20_000, 1));
    }
}
