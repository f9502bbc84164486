//! Whatever happens in whatever order: no node is overcommitted, the books are right, and what is explained is done.

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::strategy::Strategy;

use super::*;
use crate::cluster::Reach;

#[derive(Clone, Debug)]
enum Event {
    Put {
        node: usize,
        as_node: Node,
    },
    Gone {
        node: usize,
    },
    Allow {
        node: usize,
        own: u64,
        more: u64,
    },
    Forget {
        node: usize,
    },
    /// An attempt that is found on a node, whether it fits or not.
    Recover {
        node: usize,
        request: Request,
    },
    Place {
        request: Request,
        history: History,
    },
    Release {
        pick: Index,
    },
    Fail {
        node: usize,
        at: i64,
    },
}

const NODES: usize = 4;

fn name(node: usize) -> NodeId {
    NodeId::from(format!("n{node}"))
}

fn a_node() -> impl Strategy<Value = Node> {
    let some_labels = select(vec!["", "zone=a", "zone=b", "zone=a disk=ssd"]);
    let taints = subsequence(vec!["gpu", "old=1"], 0..=1);
    let queues = subsequence(vec!["default", "big"], 1..=2);
    let amounts = (0..9u64, 0..3u64, 0..6u64);
    (amounts, some_labels, taints, queues, prop::bool::weighted(0.9), prop::bool::weighted(0.1)).prop_map(
        |((cpu, gpu, tasks), text, taints, queues, reachable, draining)| Node {
            capacity: amounts_of(cpu, gpu).with(Resources::TASKS, tasks * 1_000),
            labels: labels(text),
            taints: taints.iter().map(|taint| taint.parse().unwrap()).collect(),
            queues: queues.iter().map(QueueName::new).collect(),
            reachable,
            draining,
        },
    )
}

fn amounts_of(cpu: u64, gpu: u64) -> Resources {
    Resources::default().with("cpu", cpu * 1_000).with("gpu", gpu * 1_000)
}

fn a_request() -> impl Strategy<Value = Request> {
    let selector = select(vec!["", "", "zone=a", "disk=ssd"]);
    let tolerations = select(vec!["", "gpu old", "old=1"]);
    let affinity = select(vec!["", "zone", "disk=ssd"]);
    (0..4u64, 0..2u64, selector, tolerations, select(vec!["default", "big"]), affinity, 0..2u32).prop_map(
        |(cpu, gpu, selector, tolerations, queue, affinity, group)| Request {
            node_selector: labels(selector),
            tolerations: tolerations.split_whitespace().map(|text| text.parse().unwrap()).collect(),
            queue: QueueName::new(queue),
            affinity: match affinity {
                "disk=ssd" => Affinity { prefer: vec![prefers(affinity, 2)], spread: None },
                "zone" => Affinity { prefer: vec![], spread: Some("zone".into()) },
                _ => Affinity::default(),
            },
            group: (affinity == "zone").then(|| format!("dag{group}")),
            ..Request::new(amounts_of(cpu, gpu), BTreeMap::new())
        },
    )
}

fn a_history() -> impl Strategy<Value = History> {
    // One more than there are: nodes go, and what has run on them stays known.
    let near = prop::collection::btree_map((0..=NODES).prop_map(name), 0..4u32, 0..3);
    (prop::option::of((0..NODES).prop_map(name)), near)
        .prop_map(|(failed_on, near)| History { failed_on, near })
}

fn an_event() -> impl Strategy<Value = Event> {
    let node = || 0..NODES;
    prop_oneof![
        2 => (node(), a_node()).prop_map(|(node, as_node)| Event::Put { node, as_node }),
        1 => node().prop_map(|node| Event::Gone { node }),
        2 => (node(), 0..6u64, 0..4u64).prop_map(|(node, own, more)| Event::Allow { node, own, more }),
        1 => node().prop_map(|node| Event::Forget { node }),
        1 => (node(), a_request()).prop_map(|(node, request)| Event::Recover { node, request }),
        12 => (a_request(), a_history()).prop_map(|(request, history)| Event::Place { request, history }),
        6 => any::<Index>().prop_map(|pick| Event::Release { pick }),
        1 => (node(), 0..2_000i64).prop_map(|(node, at)| Event::Fail { node, at }),
    ]
}

/// What the cluster should know, kept in the simplest way there is.
#[derive(Default)]
struct Book {
    nodes: BTreeMap<NodeId, Node>,
    shared: bool,
    own: BTreeMap<NodeId, Resources>,
    held: Vec<(NodeId, Request)>,
}

impl Book {
    fn catalog(&self) -> Arc<Catalog> {
        let nodes = self.nodes.iter().map(|(id, node)| (id.clone(), Arc::new(node.clone())));
        Arc::new(Catalog::new(nodes))
    }

    fn used(&self, node: &NodeId, resource: &str) -> u64 {
        let held = self.held.iter().filter(|(at, _)| at == node);
        held.map(|(_, request)| request.resources.get(resource)).sum()
    }

    fn limit(&self, node: &NodeId, resource: &str) -> u64 {
        let capacity = self.nodes.get(node).map_or(0, |node| node.capacity.get(resource));
        let without = if self.shared { 0 } else { capacity };
        self.own.get(node).map_or(without, |own| own.get(resource).min(capacity))
    }

    fn can_take(&self, id: &NodeId, node: &Node, request: &Request) -> bool {
        let tolerated = |taint: &Taint| request.tolerations.iter().any(|one| one.covers(taint));
        node.reachable
            && !node.draining
            && node.queues.contains(&request.queue)
            && node.taints.iter().all(tolerated)
            && request.node_selector.iter().all(|(label, value)| node.labels.get(label) == Some(value))
            && request.resources.0.iter().all(|(resource, amount)| {
                *amount + self.used(id, resource) <= self.limit(id, resource).max(self.used(id, resource))
                    && *amount <= node.capacity.get(resource)
            })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_of_events_overcommits_a_node_and_what_is_explained_is_done(
        pack in any::<bool>(),
        shared in any::<bool>(),
        salt in 0..3u64,
        first in prop::collection::vec(a_node(), NODES),
        events in prop::collection::vec(an_event(), 1..80),
    ) {
        let strategy = if pack { crate::Strategy::Pack } else { crate::Strategy::Spread };
        let mut cluster = Cluster::new(Policy { strategy, ..Policy::default() }).salted(salt);
        let mut book = Book { shared, ..Book::default() };
        if shared {
            cluster.share_with_others();
        }
        let start = first.into_iter().enumerate().map(|(node, as_node)| Event::Put { node, as_node });
        for event in start.chain(events) {
            match event {
                Event::Put { node, as_node } => {
                    book.nodes.insert(name(node), as_node);
                    cluster.follow(book.catalog());
                }
                Event::Gone { node } => {
                    book.nodes.remove(&name(node));
                    book.own.remove(&name(node));
                    cluster.follow(book.catalog());
                }
                Event::Allow { node, own, more } if book.nodes.contains_key(&name(node)) => {
                    let of = |amount| amounts_of(amount, amount).with(Resources::TASKS, amount * 1_000);
                    cluster.allow(&name(node), Allowance { own: of(own), more: of(more) });
                    book.own.insert(name(node), of(own));
                }
                Event::Allow { .. } => {}
                Event::Forget { node } => {
                    cluster.forget_allowance(&name(node));
                    book.own.remove(&name(node));
                }
                Event::Recover { node, request } => {
                    cluster.reserve(&name(node), &request);
                    book.held.push((name(node), request));
                }
                Event::Place { request, history } => {
                    let explanation = cluster.explain(&request, &history);
                    for (reach, chosen) in [
                        (Reach::More, cluster.attainable(&request)),
                        (Reach::Whole, cluster.conceivable(&request)),
                    ] {
                        let all = cluster.explained(&request, &History::default(), reach).candidates;
                        prop_assert_eq!(chosen.as_ref(), all.first().map(|one| &one.node), "{:?}", reach);
                        prop_assert_eq!(cluster.has_room_for(&request, reach), chosen.is_some());
                    }
                    let placed = cluster.place(&request, &history);
                    let told: Vec<&NodeId> = explanation.candidates.iter().map(|one| &one.node).collect();
                    prop_assert_eq!(placed.as_ref(), told.first().copied(), "what is explained is done");
                    let able: BTreeSet<&NodeId> = book.nodes.iter()
                        .filter(|(id, node)| book.can_take(id, node, &request)).map(|(id, _)| id).collect();
                    prop_assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), able, "{:?}", &request);
                    prop_assert_eq!(told.len() + explanation.rejected.len(), book.nodes.len());
                    prop_assert!(explanation.rejected.iter().all(|one| !one.reasons.is_empty()));
                    let scores = explanation.candidates.iter().map(|one| std::cmp::Reverse(one.score));
                    prop_assert!(scores.is_sorted(), "the best first");
                    if let Some(node) = placed {
                        book.held.push((node.clone(), request.clone()));
                        for (resource, amount) in &request.resources.0 {
                            prop_assert!(*amount == 0 || book.used(&node, resource) <= book.limit(&node, resource),
                                "{node} is overcommitted in {resource}");
                        }
                    }
                }
                Event::Release { pick } if !book.held.is_empty() => {
                    let (node, request) = book.held.swap_remove(pick.index(book.held.len()));
                    cluster.release(&node, &request);
                }
                Event::Release { .. } => {}
                Event::Fail { node, at } => {
                    let at = Timestamp::from_second(at).unwrap();
                    cluster.note_failure(&name(node), at);
                    cluster.advance(at);
                }
            }
            for node in (0..NODES).map(name) {
                for resource in ["cpu", "gpu", Resources::TASKS] {
                    let reserved = cluster.reserved(&node).map_or(0, |reserved| reserved.get(resource));
                    prop_assert_eq!(reserved, book.used(&node, resource), "the books of {}", &node);
                }
            }
        }
    }
}
