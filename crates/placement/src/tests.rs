//! Goal: no node is ever overcommitted, and whoever waits is told why.

use proptest::prelude::*;

use super::*;

fn node(cpu: u64, tasks: u64) -> Node {
    let capacity = Resources::default().with("cpu", cpu * 1_000).with(Resources::TASKS, tasks * 1_000);
    Node { capacity, labels: BTreeMap::new(), reachable: true, draining: false }
}

fn request(cpu: u64) -> Request {
    Request::new(Resources::default().with("cpu", cpu * 1_000), BTreeMap::new())
}

#[test]
fn the_least_loaded_node_is_chosen_and_ties_go_by_name() {
    let mut cluster = Cluster::default();
    cluster.put(NodeId::new("b"), node(4, 10));
    cluster.put(NodeId::new("a"), node(4, 10));
    let placed: Vec<String> = (0..4).map(|_| cluster.place(&request(1)).unwrap().to_string()).collect();
    assert_eq!(placed, ["a", "b", "a", "b"]);
}

#[test]
fn every_node_says_why_it_cannot() {
    let mut cluster = Cluster::default();
    cluster.put(NodeId::new("small"), node(1, 10));
    cluster.put(NodeId::new("busy"), node(4, 10));
    cluster.put(NodeId::new("gone"), Node { draining: true, ..node(8, 10) });
    cluster.reserve(&NodeId::new("busy"), &request(3).resources);
    let error = cluster.place(&request(2)).unwrap_err();
    assert_eq!(error.to_string(), "no node can take it: 1 busy in cpu, 1 draining, 1 too small in cpu");
    assert_eq!(Cluster::default().place(&request(1)).unwrap_err().to_string(), "no node is registered");
}

#[test]
fn a_selector_keeps_to_nodes_with_the_label() {
    let mut cluster = Cluster::default();
    cluster.put(NodeId::new("a"), node(4, 10));
    cluster.put(NodeId::new("z"), Node { labels: [("disk".into(), "ssd".into())].into(), ..node(4, 10) });
    let wants = Request { node_selector: [("disk".into(), "ssd".into())].into(), ..request(1) };
    assert_eq!(cluster.place(&wants).unwrap(), NodeId::new("z"));
}

proptest! {
    #[test]
    fn no_sequence_of_placements_and_releases_overcommits_a_node(
        nodes in prop::collection::vec((1..8u64, 1..6u64), 1..5),
        steps in prop::collection::vec((0..6u64, any::<bool>(), any::<prop::sample::Index>()), 1..200),
    ) {
        let mut cluster = Cluster::default();
        for (at, (cpu, tasks)) in nodes.iter().enumerate() {
            cluster.put(NodeId::from(format!("n{at}")), node(*cpu, *tasks));
        }
        let mut held: Vec<(NodeId, Resources)> = vec![];
        for (cpu, release, pick) in steps {
            if release && !held.is_empty() {
                let (node, resources) = held.swap_remove(pick.index(held.len()));
                cluster.release(&node, &resources);
            } else if let Ok(node) = cluster.place(&request(cpu)) {
                held.push((node, request(cpu).resources));
            }
            for (id, place) in &cluster.nodes {
                let mut expected = Resources::default();
                held.iter().filter(|(node, _)| node == id).for_each(|(_, resources)| expected.add(resources));
                for (resource, used) in &place.reserved.0 {
                    prop_assert!(*used <= place.node.capacity.get(resource), "{id} overcommitted in {resource}");
                    prop_assert_eq!(*used, expected.get(resource));
                }
            }
        }
    }
}
