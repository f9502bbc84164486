//! Goal: the right node is chosen for a reason that can be told, and whoever waits is told why. Method: tiny clusters as
//! text, one fact per test; properties over random ones in `properties`.

mod properties;

use std::sync::Arc;

use expect_test::expect;
use jiff::{Timestamp, ToSpan};
use tenure_model::{NodeId, Preference};

use super::*;

/// `cpu=4 tasks=10`, in whole units.
fn amounts(text: &str) -> Resources {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("name=amount"));
    let thousandths = |amount: &str| amount.parse::<u64>().expect("a number") * 1_000;
    Resources(pairs.map(|(name, amount)| (name.to_owned(), thousandths(amount))).collect())
}

fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("label=value"));
    pairs.map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
}

/// A node with plenty of tasks.
fn node(capacity: &str) -> Node {
    Node {
        capacity: amounts(&format!("tasks=1000 {capacity}")),
        queues: [QueueName::default()].into(),
        reachable: true,
        ..Node::default()
    }
}

fn labelled(capacity: &str, text: &str) -> Node {
    Node { labels: labels(text), ..node(capacity) }
}

fn cluster(nodes: &[(&str, Node)]) -> Cluster {
    with_policy(Policy::default(), nodes)
}

fn with_policy(policy: Policy, nodes: &[(&str, Node)]) -> Cluster {
    Cluster::of(policy, catalog(nodes))
}

fn catalog(nodes: &[(&str, Node)]) -> Catalog {
    Catalog::new(nodes.iter().map(|(name, node)| (NodeId::new(name), Arc::new(node.clone()))))
}

/// The same nodes, and one more or one as it is now.
fn put(cluster: &mut Cluster, name: &str, node: Node) {
    let others = cluster.catalog().entries().iter().filter(|entry| entry.id.as_str() != name);
    let nodes = others.map(|entry| (entry.id.clone(), Arc::clone(&entry.node)));
    let nodes: Vec<_> = nodes.chain([(NodeId::new(name), Arc::new(node))]).collect();
    cluster.follow(Arc::new(Catalog::new(nodes)));
}

fn request(resources: &str) -> Request {
    Request::new(amounts(resources), BTreeMap::new())
}

fn prefers(label: &str, weight: u32) -> Preference {
    let (label, value) = label.split_once('=').expect("label=value");
    Preference { label: label.into(), value: value.into(), weight }
}

/// Where so many of them go, one after the other.
fn places(cluster: &mut Cluster, request: &Request, count: usize) -> String {
    let place = |_| cluster.place(request, &History::default()).map_or("-".into(), |node| node.to_string());
    (0..count).map(place).collect::<Vec<String>>().join(" ")
}

/// Needs that have run there, so many on each.
fn ran_on(nodes: &[(&str, u32)]) -> History {
    let near = nodes.iter().map(|(node, count)| (NodeId::new(node), *count)).collect();
    History { near, ..History::default() }
}

fn waits_because(cluster: &Cluster, request: &Request, expected: &str) {
    assert_eq!(cluster.refusal(request).expect("nobody can take it").to_string(), expected);
}

#[test]
fn the_least_loaded_node_is_chosen_and_ties_go_by_name() {
    let mut cluster = cluster(&[("b", node("cpu=4")), ("a", node("cpu=4"))]);
    assert_eq!(places(&mut cluster, &request("cpu=1"), 9), "a b a b a b a b -");
}

#[test]
fn packing_fills_one_node_after_the_other() {
    let policy = Policy { strategy: Strategy::Pack, ..Policy::default() };
    let mut cluster = with_policy(policy, &[("a", node("cpu=2")), ("b", node("cpu=3"))]);
    cluster.reserve(&NodeId::new("b"), &request("cpu=1"));
    assert_eq!(places(&mut cluster, &request("cpu=1"), 5), "b b a a -");
}

#[test]
fn a_difference_too_small_for_the_score_still_decides() {
    let mut cluster = cluster(&[("a", node("cpu=1000000")), ("b", node("cpu=1000000"))]);
    assert_eq!(places(&mut cluster, &request("cpu=1"), 4), "a b a b");
}

#[test]
fn with_a_salt_equals_come_in_another_order_that_is_always_the_same() {
    let order = |salt| {
        let nodes = ["a", "b", "c", "d"].map(|name| (name, node("cpu=1")));
        let mut cluster = cluster(&nodes).salted(salt);
        places(&mut cluster, &request("cpu=1"), 4)
    };
    assert_eq!(order(0), "a b c d");
    assert_eq!(order(1), order(1));
    let firsts: BTreeSet<char> = (1..20).filter_map(|salt| order(salt).chars().next()).collect();
    assert_eq!(firsts.len(), 4, "twenty schedulers begin with every node: {firsts:?}");
}

#[test]
fn a_selector_keeps_to_nodes_with_the_label() {
    let mut cluster = cluster(&[("a", node("cpu=4")), ("z", labelled("cpu=1", "disk=ssd"))]);
    let wants = Request { node_selector: labels("disk=ssd"), ..request("cpu=1") };
    assert_eq!(places(&mut cluster, &wants, 2), "z -");
}

#[test]
fn a_taint_keeps_all_away_but_those_who_tolerate_it() {
    let tainted =
        Node { taints: ["gpu=a100".parse().unwrap(), "old".parse().unwrap()].into(), ..node("cpu=8") };
    let mut cluster = cluster(&[("a", tainted), ("b", node("cpu=1"))]);
    assert_eq!(places(&mut cluster, &request("cpu=1"), 2), "b -");
    let tolerating = |text: &str| Request {
        tolerations: text.split(' ').map(|toleration| toleration.parse().unwrap()).collect(),
        ..request("cpu=1")
    };
    assert_eq!(places(&mut cluster, &tolerating("gpu"), 1), "-");
    assert_eq!(places(&mut cluster, &tolerating("gpu=h100 old"), 1), "-");
    assert_eq!(places(&mut cluster, &tolerating("gpu=a100 old"), 1), "a");
}

#[test]
fn a_node_gets_tasks_of_its_queues_and_of_no_other() {
    let queues =
        |names: &[&str]| Node { queues: names.iter().map(QueueName::new).collect(), ..node("cpu=1") };
    let mut cluster = cluster(&[("a", queues(&["big"])), ("b", queues(&["default", "big"]))]);
    assert_eq!(places(&mut cluster, &request("cpu=1"), 2), "b -");
    let big = Request { queue: QueueName::new("big"), ..request("cpu=1") };
    assert_eq!(places(&mut cluster, &big, 2), "a -");
}

#[test]
fn preferred_labels_go_before_an_empty_node_and_never_keep_anybody_waiting() {
    let mut cluster = cluster(&[
        ("a", node("cpu=2")),
        ("b", labelled("cpu=2", "disk=ssd")),
        ("c", labelled("cpu=2", "zone=b")),
    ]);
    let prefer = vec![prefers("disk=ssd", 10), prefers("zone=b", 1)];
    let wants = Request { affinity: Affinity { prefer, spread: None }, ..request("cpu=1") };
    assert_eq!(places(&mut cluster, &wants, 6), "b b c a c a");
}

#[test]
fn a_group_is_spread_over_the_values_of_a_label() {
    let mut cluster = cluster(&[
        ("a1", labelled("cpu=9", "zone=a")),
        ("a2", labelled("cpu=9", "zone=a")),
        ("b1", labelled("cpu=2", "zone=b")),
        ("x", node("cpu=9")),
    ]);
    let of = |group: &str| Request {
        affinity: Affinity { spread: Some("zone".into()), ..Affinity::default() },
        group: Some(group.into()),
        ..request("cpu=1")
    };
    assert_eq!(
        places(&mut cluster, &of("etl"), 5),
        "a1 b1 a2 b1 a1",
        "a zone that is full is not waited for"
    );
    assert_eq!(places(&mut cluster, &of("other"), 1), "a2", "another group is counted by itself");
    cluster.release(&NodeId::new("b1"), &of("etl"));
    assert_eq!(places(&mut cluster, &of("etl"), 1), "b1");
}

#[test]
fn a_try_avoids_the_node_that_failed_the_one_before_if_it_can() {
    let mut cluster = cluster(&[("a", node("cpu=9")), ("b", node("cpu=2"))]);
    let a = NodeId::new("a");
    let ones =
        (0..3).map(|_| cluster.place(&request("cpu=1"), &History::failed_on(a.clone())).unwrap().to_string());
    assert_eq!(ones.collect::<Vec<_>>(), ["b", "b", "a"]);
}

#[test]
fn the_node_where_what_it_needs_has_run_is_taken_before_its_equals_until_it_is_a_fifth_fuller() {
    let nodes = ["a", "b", "c"].map(|name| (name, node("cpu=10")));
    let where_to = |policy: Policy, history: &History| {
        let mut cluster = with_policy(policy, &nodes);
        let place = |_| cluster.place(&request("cpu=1"), history).unwrap().to_string();
        (0..6).map(place).collect::<Vec<_>>().join(" ")
    };
    let policy = Policy::default();
    assert_eq!(where_to(policy, &ran_on(&[("b", 1)])), "b b a c b a");
    assert_eq!(where_to(policy, &ran_on(&[("b", 1), ("c", 2), ("gone", 1)])), "c b a c b a", "in shares");
    assert_eq!(where_to(policy, &ran_on(&[("gone", 7), ("b", 0)])), "a b c a b c", "near to nobody");
    let failed = History { failed_on: Some(NodeId::new("b")), ..ran_on(&[("b", 1)]) };
    assert_eq!(where_to(policy, &failed), "a c a c a c", "having failed there counts for more");
    let mut indifferent = policy;
    indifferent.weights.locality = 0;
    assert_eq!(where_to(indifferent, &ran_on(&[("b", 1)])), "a b c a b c");
}

#[test]
fn a_node_that_failed_somebody_lately_comes_after_its_equals_for_ten_minutes() {
    let mut cluster = cluster(&[("a", node("cpu=9")), ("b", node("cpu=9"))]);
    let then = Timestamp::from_second(1_000_000).unwrap();
    cluster.note_failure(&NodeId::new("a"), then);
    let mut first_after = |minutes: i64| {
        cluster.advance(then + minutes.minutes());
        cluster.choose(&request("cpu=1"), &History::default()).unwrap().to_string()
    };
    assert_eq!([0, 9, 10].map(&mut first_after), ["b", "b", "a"]);
    cluster.note_failure(&NodeId::new("b"), then + 20.minutes());
    cluster.note_failure(&NodeId::new("a"), then + 22.minutes());
    cluster.advance(then + 23.minutes());
    assert_eq!(places(&mut cluster, &request("cpu=1"), 1), "b", "the one that failed longer ago");
}

#[test]
fn a_node_that_is_gone_gets_nothing_and_its_books_stay_open_until_its_attempts_have_ended() {
    let mut cluster = cluster(&[("a", node("cpu=9")), ("b", node("cpu=9"))]);
    let a = NodeId::new("a");
    cluster.reserve(&a, &request("cpu=1"));
    cluster.follow(Arc::new(catalog(&[("b", node("cpu=9"))])));
    assert_eq!(places(&mut cluster, &request("cpu=9"), 2), "b -");
    assert_eq!(
        cluster.explain(&request(""), &History::default()).rejected.len(),
        0,
        "a node that is gone is not talked about"
    );
    assert_eq!(cluster.reserved(&a).unwrap().get("cpu"), 1_000);
    cluster.release(&a, &request("cpu=1"));
    assert_eq!(cluster.reserved(&a), None);
    put(&mut cluster, "a", node("cpu=9"));
    assert_eq!(cluster.reserved(&a), None, "a successor starts with clean books");
    assert_eq!(places(&mut cluster, &request("cpu=9"), 2), "a -");
}

#[test]
fn of_a_shared_node_only_the_own_share_is_used_and_a_better_one_is_named() {
    let mut cluster =
        cluster(&[("a", node("cpu=8")), ("b", labelled("cpu=8", "disk=ssd")), ("c", node("cpu=8"))]);
    let share = |own: &str, more: &str| Allowance { own: amounts(own), more: amounts(more) };
    cluster.allow(&NodeId::new("a"), share("cpu=2 tasks=9", ""));
    cluster.allow(&NodeId::new("b"), share("", "cpu=1 tasks=9"));
    cluster.allow(&NodeId::new("c"), share("", ""));
    let prefer = vec![prefers("disk=ssd", 1)];
    let picky = Request { affinity: Affinity { prefer, spread: None }, ..request("cpu=1") };
    let (a, b) = (NodeId::new("a"), NodeId::new("b"));
    assert_eq!(cluster.better_elsewhere(&picky, &History::default()), Some(b.clone()));
    assert_eq!(
        cluster.better_elsewhere(&request("cpu=1"), &ran_on(&[("b", 1)])),
        None,
        "who has no wishes asks for nothing"
    );
    assert_eq!(cluster.better_elsewhere(&request("cpu=1"), &History::failed_on(a)), Some(b));
    assert_eq!(places(&mut cluster, &request("cpu=1"), 3), "a a -");
    assert_eq!(cluster.attainable(&request("cpu=1")), Some(NodeId::new("b")));
    assert_eq!(cluster.attainable(&request("cpu=2")), None);
    assert_eq!(cluster.conceivable(&request("cpu=2")), Some(NodeId::new("b")));
}

#[test]
fn of_shared_nodes_nothing_is_the_own_until_it_is_allowed_and_all_of_it_could_be_had() {
    let mut cluster = cluster(&[("a", node("cpu=8")), ("b", node("cpu=8"))]);
    cluster.share_with_others();
    let (a, b, one) = (NodeId::new("a"), NodeId::new("b"), request("cpu=1"));
    assert_eq!(cluster.choose(&one, &History::default()), None);
    let busy = cluster.explain(&one, &History::default());
    assert_eq!((busy.candidates.len(), busy.rejected.len()), (0, 2), "{busy:?}");
    assert_eq!(cluster.refusal(&one), None, "it could be had");
    assert_eq!(cluster.attainable(&request("cpu=8")), Some(a.clone()));
    cluster.allow(&a, Allowance::default());
    assert_eq!(cluster.attainable(&request("cpu=8")), Some(b.clone()), "there is nothing left of the other");
    cluster.forget_allowance(&a);
    assert_eq!(cluster.attainable(&request("cpu=8")), Some(a), "that was long ago");
    cluster.allow(&b, Allowance { own: amounts("cpu=2 tasks=2"), more: amounts("") });
    assert_eq!(places(&mut cluster, &one, 3), "b b -");
}

#[test]
fn a_resource_that_a_node_gets_later_is_counted_from_then_on() {
    let mut cluster = cluster(&[("a", node("cpu=1"))]);
    assert_eq!(places(&mut cluster, &request("gpu=1"), 1), "-");
    put(&mut cluster, "a", node("cpu=1 gpu=2"));
    assert_eq!(places(&mut cluster, &request("gpu=1"), 3), "a a -");
}

#[test]
fn whoever_waits_is_told_what_is_missing_and_how_close_the_closest_comes() {
    let whole = "cpu=8 memory=17179869184 gpu=4";
    let mut cluster = cluster(&[
        ("big", node("cpu=8 memory=17179869184")),
        ("small", node("cpu=2 memory=8589934592")),
        ("gone", Node { reachable: false, ..node(whole) }),
        ("leaving", Node { draining: true, ..node(whole) }),
    ]);
    waits_because(&Cluster::default(), &request("cpu=1"), "no node is registered");
    let gpu = "no node has gpu ≥ 1: 2 nodes too small (the largest has 0), 1 draining, 1 not connected";
    waits_because(&cluster, &request("gpu=1"), gpu);
    let memory = "no node has memory ≥ 32Gi: 4 nodes too small (the largest has 16Gi)";
    waits_because(&cluster, &request("memory=34359738368"), memory);
    cluster.reserve(&NodeId::new("big"), &request("cpu=5"));
    let half = Request::new(Resources::default().with("cpu", 3_500), BTreeMap::new());
    waits_because(
        &cluster,
        &half,
        "no node has cpu ≥ 3.5 free: 1 node too small (the largest has 2), 1 busy (the most that is free is 3), \
         1 draining, 1 not connected",
    );
    let nowhere = Request { node_selector: labels("disk=ssd"), ..request("cpu=1") };
    waits_because(&cluster, &nowhere, "no node can take it: 4 nodes without label disk=ssd");
    let unserved = Request { queue: QueueName::new("big"), ..request("cpu=4") };
    waits_because(
        &cluster,
        &unserved,
        "no node can take it: 1 node too small in cpu (the largest has 2), 3 not serving queue big",
    );
    put(&mut cluster, "big", Node { taints: ["gpu".parse().unwrap()].into(), ..node("cpu=8") });
    let taint = "no node has cpu ≥ 3: 1 node too small (the largest has 2), 1 with taint gpu (not tolerated), \
                 1 draining, 1 not connected";
    waits_because(&cluster, &request("cpu=3"), taint);
}

#[test]
fn an_explanation_has_the_parts_of_every_score_and_every_reason_of_every_refusal() {
    let mut cluster = cluster(&[
        ("a", node("cpu=4")),
        ("b", labelled("cpu=4", "disk=ssd")),
        (
            "c",
            Node {
                draining: true,
                taints: ["old".parse().unwrap()].into(),
                queues: [].into(),
                ..node("cpu=1")
            },
        ),
        ("d", node("cpu=2")),
    ]);
    cluster.reserve(&NodeId::new("d"), &request("cpu=2"));
    cluster.reserve(&NodeId::new("b"), &request("cpu=2"));
    let prefer = vec![prefers("disk=ssd", 3)];
    let wants = Request { affinity: Affinity { prefer, spread: None }, ..request("cpu=2") };
    let history = History { failed_on: Some(NodeId::new("a")), ..ran_on(&[("a", 3), ("b", 1), ("gone", 4)]) };
    let explanation = cluster.explain(&wants, &history);
    expect![[r#"
        {
          "candidates": [
            {
              "node": "b",
              "score": 25250,
              "parts": {
                "load": 5000,
                "preferred": 20000,
                "spread": 0,
                "failed_here": 0,
                "failed_lately": 0,
                "locality": 250
              },
              "uses": {
                "cpu": {
                  "capacity": 4000,
                  "before": 2000,
                  "after": 4000
                },
                "tasks": {
                  "capacity": 1000000,
                  "before": 1000,
                  "after": 2000
                }
              }
            },
            {
              "node": "a",
              "score": -69250,
              "parts": {
                "load": 10000,
                "preferred": 0,
                "spread": 0,
                "failed_here": -80000,
                "failed_lately": 0,
                "locality": 750
              },
              "uses": {
                "cpu": {
                  "capacity": 4000,
                  "before": 0,
                  "after": 2000
                },
                "tasks": {
                  "capacity": 1000000,
                  "before": 0,
                  "after": 1000
                }
              }
            }
          ],
          "rejected": [
            {
              "node": "c",
              "reasons": [
                {
                  "reason": "too_small",
                  "resource": "cpu",
                  "needed": 2000,
                  "capacity": 1000
                },
                {
                  "reason": "queue",
                  "queue": "default"
                },
                {
                  "reason": "taint",
                  "taint": "old"
                },
                {
                  "reason": "draining"
                }
              ]
            },
            {
              "node": "d",
              "reasons": [
                {
                  "reason": "busy",
                  "resource": "cpu",
                  "needed": 2000,
                  "free": 0
                }
              ]
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&explanation).unwrap());
    let read: Explanation = serde_json::from_value(serde_json::to_value(&explanation).unwrap()).unwrap();
    assert_eq!(read, explanation);
}
