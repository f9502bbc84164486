//! Whom to ask to leave so that a request fits: the least important, the fewest, the youngest.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tenure_model::{AttemptId, NodeId};

use crate::Request;
use crate::cluster::{Cluster, Reach};

/// An attempt that may have to leave its node for a more important one.
#[derive(Clone, Debug)]
pub struct Occupant {
    /// Ids grow with time: of equals the youngest leaves, because the least work is lost with it.
    pub attempt: AttemptId,
    pub priority: i64,
    pub request: Request,
}

/// A node, and who has to leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub node: NodeId,
    pub attempts: Vec<AttemptId>,
}

impl Cluster {
    /// Where the request would fit if attempts of a lower priority left. `None`: nowhere, or there is room without
    /// that. Costs the nodes that could take it and what runs on them.
    pub fn evict_for(
        &self,
        request: &Request,
        priority: i64,
        occupants: &BTreeMap<NodeId, Vec<Occupant>>,
    ) -> Option<Eviction> {
        let mut best: Option<(Cost, Eviction)> = None;
        for prospect in &self.catalog().prospects(request).nodes {
            let node = &self.catalog().entries()[prospect.entry].id;
            let missing = self.missing(prospect.entry, request, Reach::More);
            if missing.is_empty() {
                return None;
            }
            let lower = occupants.get(node).into_iter().flatten().filter(|one| one.priority < priority);
            let Some(leaving) = fewest(lower.collect(), &missing) else { continue };
            let highest = leaving.iter().map(|one| one.priority).max().unwrap_or(i64::MIN);
            let cost = (highest, leaving.len());
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                let attempts = leaving.iter().map(|one| one.attempt).collect();
                best = Some((cost, Eviction { node: node.clone(), attempts }));
            }
        }
        best.map(|(_, eviction)| eviction)
    }
}

/// The priority of the most important that leaves, and how many leave.
type Cost = (i64, usize);

/// Who leaves so that nothing is missing any more. Taken from the least important on, then spared from the most
/// important on: whoever came early and turned out not to be needed stays.
fn fewest<'a>(mut lower: Vec<&'a Occupant>, missing: &BTreeMap<String, u64>) -> Option<Vec<&'a Occupant>> {
    lower.sort_by_key(|one| (one.priority, Reverse(one.attempt)));
    let enough = |leaving: &[&Occupant]| {
        missing.iter().all(|(resource, missing)| {
            leaving.iter().map(|one| one.request.resources.get(resource)).sum::<u64>() >= *missing
        })
    };
    let helps = |one: &&Occupant| missing.keys().any(|resource| one.request.resources.get(resource) > 0);
    let mut leaving: Vec<&Occupant> = vec![];
    for one in lower.into_iter().filter(helps) {
        leaving.push(one);
        if enough(&leaving) {
            break;
        }
    }
    if !enough(&leaving) {
        return None;
    }
    for at in (0..leaving.len()).rev() {
        let spared = leaving.remove(at);
        if !enough(&leaving) {
            leaving.insert(at, spared);
        }
    }
    Some(leaving)
}

#[cfg(test)]
mod tests {
    //! Goal: nobody leaves in vain, nobody leaves for an equal, and the least important leave first.

    use std::sync::Arc;

    use proptest::prelude::*;
    use tenure_model::Resources;
    use uuid::Uuid;

    use super::*;
    use crate::{Catalog, History, Node, Policy};

    fn request(cpu: u64, gpu: u64) -> Request {
        let amounts = [("cpu", cpu), ("gpu", gpu)].into_iter().filter(|(_, amount)| *amount > 0);
        Request::new(
            Resources(amounts.map(|(name, amount)| (name.to_owned(), amount)).collect()),
            BTreeMap::new(),
        )
    }

    fn id(number: u128) -> AttemptId {
        AttemptId(Uuid::from_u128(number))
    }

    struct Floor {
        cluster: Cluster,
        occupants: BTreeMap<NodeId, Vec<Occupant>>,
    }

    impl Floor {
        fn new(nodes: &[(&str, u64, u64)]) -> Self {
            let node = |(name, cpu, gpu): &(&str, u64, u64)| {
                let mut capacity = request(*cpu, *gpu).resources;
                capacity.0.insert(Resources::TASKS.into(), 100_000);
                let queues = [tenure_model::QueueName::default()].into();
                (NodeId::new(name), Arc::new(Node { capacity, queues, reachable: true, ..Node::default() }))
            };
            let cluster = Cluster::of(Policy::default(), Catalog::new(nodes.iter().map(node)));
            Self { cluster, occupants: BTreeMap::new() }
        }

        fn with(mut self, node: &str, number: u128, priority: i64, cpu: u64, gpu: u64) -> Self {
            let (node, request) = (NodeId::new(node), request(cpu, gpu));
            self.cluster.reserve(&node, &request);
            self.occupants.entry(node).or_default().push(Occupant { attempt: id(number), priority, request });
            self
        }

        fn evicts(&self, priority: i64, cpu: u64, gpu: u64) -> Option<(String, Vec<u128>)> {
            let eviction = self.cluster.evict_for(&request(cpu, gpu), priority, &self.occupants)?;
            let attempts = eviction.attempts.iter().map(|attempt| attempt.0.as_u128()).collect();
            Some((eviction.node.to_string(), attempts))
        }
    }

    #[test]
    fn the_least_important_leaves_and_of_equals_the_youngest() {
        let floor =
            Floor::new(&[("a", 3, 0)]).with("a", 1, 5, 1, 0).with("a", 2, 1, 1, 0).with("a", 3, 1, 1, 0);
        assert_eq!(floor.evicts(9, 1, 0), Some(("a".into(), vec![3])));
        assert_eq!(floor.evicts(9, 2, 0), Some(("a".into(), vec![3, 2])));
        assert_eq!(floor.evicts(1, 1, 0), None, "nobody leaves for an equal");
        assert_eq!(floor.evicts(9, 4, 0), None, "it is too small for that");
    }

    #[test]
    fn whoever_would_leave_in_vain_stays() {
        let floor =
            Floor::new(&[("a", 4, 1)]).with("a", 1, 1, 1, 0).with("a", 2, 2, 0, 1).with("a", 3, 3, 3, 0);
        assert_eq!(floor.evicts(9, 0, 1), Some(("a".into(), vec![2])), "only one has what is missing");
        assert_eq!(floor.evicts(9, 3, 0), Some(("a".into(), vec![3])), "the small one does not help");
    }

    #[test]
    fn the_node_where_the_least_is_lost_is_taken() {
        let floor = Floor::new(&[("a", 2, 0), ("b", 2, 0), ("c", 2, 0)])
            .with("a", 1, 5, 2, 0)
            .with("b", 2, 1, 1, 0)
            .with("b", 3, 1, 1, 0)
            .with("c", 4, 1, 2, 0);
        assert_eq!(floor.evicts(9, 2, 0), Some(("c".into(), vec![4])));
    }

    #[test]
    fn where_there_is_room_nobody_leaves() {
        let floor = Floor::new(&[("a", 1, 0), ("b", 1, 0)]).with("a", 1, 1, 1, 0);
        assert_eq!(floor.evicts(9, 1, 0), None);
    }

    proptest! {
        #[test]
        fn an_eviction_makes_room_and_without_any_one_of_it_there_is_none(
            held in prop::collection::vec((0..3usize, 0..6i64, 0..3u64, 0..2u64), 0..14),
            (priority, cpu, gpu) in (0..7i64, 0..5u64, 0..3u64),
        ) {
            let names = ["a", "b", "c"];
            let mut floor = Floor::new(&[("a", 4, 2), ("b", 3, 0), ("c", 2, 2)]);
            for (number, (node, own, cpu, gpu)) in held.iter().enumerate() {
                if floor.cluster.explain(&request(*cpu, *gpu), &History::default()).candidates.iter().any(|fit| fit.node.as_str() == names[*node]) {
                    floor = floor.with(names[*node], number as u128, *own, *cpu, *gpu);
                }
            }
            let wanted = request(cpu, gpu);
            let Some(Eviction { node, attempts }) = floor.cluster.evict_for(&wanted, priority, &floor.occupants) else {
                return Ok(());
            };
            let leave = |without: Option<&AttemptId>| {
                let mut after = floor.cluster.clone();
                for one in &floor.occupants[&node] {
                    if attempts.contains(&one.attempt) && Some(&one.attempt) != without {
                        assert!(one.priority < priority);
                        after.release(&node, &one.request);
                    }
                }
                after.explain(&wanted, &History::default()).candidates.iter().any(|candidate| candidate.node == node)
            };
            prop_assert!(leave(None));
            for attempt in &attempts {
                prop_assert!(!leave(Some(attempt)), "{attempt:?} leaves in vain");
            }
        }
    }
}
