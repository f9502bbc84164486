//! How long it takes to decide where attempts run: the pure part, with nothing around it, on one core.
//!
//! A thousand nodes of three sizes in eight zones, some tainted, some with a fast disk; ten thousand attempts that ask
//! for twenty different things, as the tasks of twenty dags do.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure_model::{Affinity, NodeId, Preference, QueueName, Resources};
use tenure_placement::{Catalog, Cluster, History, Node, Policy, Request};

use crate::report::{Figure, Machine, Report};
use crate::server::memory_of;

const NODES: usize = 1_000;
const ATTEMPTS: usize = 10_000;
const SHAPES: usize = 20;
/// As many as a busy shard sees in an hour.
const FINISHED: usize = 1_000_000;

pub fn measure(samples: usize) -> Result<Report> {
    let machine = Machine::here();
    let mut figures = vec![];
    let goal = Some(1_000.0);

    eprintln!("{NODES} nodes, {ATTEMPTS} attempts ({samples} times)");
    let nothing = vec![History::default()];
    let plain = |_| place_all(cluster(NODES), &shapes(false), &nothing);
    let before = processor_time();
    let times = (0..samples).map(plain).collect::<Result<Vec<_>>>()?;
    let used = processor_time() - before;
    let took = Figure::millis("1,000 nodes, 10,000 attempts placed", &times, goal);
    let rate = Figure::rate("the same: decisions", "/s", ATTEMPTS, &took);
    let name = "the same: processor, making the nodes included";
    figures.extend([took, rate, Figure::processor(name, "µs/attempt", used, ATTEMPTS * samples)]);
    let picky = |_| place_all(cluster(NODES), &shapes(true), &nothing);
    let times = (0..samples).map(picky).collect::<Result<Vec<_>>>()?;
    figures.push(Figure::millis("the same with preferred labels, spread over zones", &times, goal));
    let histories = histories();
    let near = |_| place_all(cluster(NODES), &shapes(false), &histories);
    let times = (0..samples).map(near).collect::<Result<Vec<_>>>()?;
    figures.push(Figure::millis("the first again, each after ten tasks on ten nodes", &times, goal));

    eprintln!("after {FINISHED} attempts have come and gone");
    let used = after_much_work();
    let again = |_| place_all(used.clone(), &shapes(false), &nothing);
    let times = (0..samples).map(again).collect::<Result<Vec<_>>>()?;
    figures.push(Figure::millis("the first again, after 1,000,000 attempts have ended", &times, goal));

    eprintln!("what nobody can take");
    let mut nodes = cluster(NODES);
    let large = Request::new(Resources::default().with(Resources::CPU, 1_000_000_000), BTreeMap::new());
    let choose = |_| timed(|| nodes.choose(&large, &nothing[0]));
    let times = (0..ATTEMPTS).map(choose).collect::<Result<Vec<_>>>()?;
    figures.push(micros("one request that is too large for every node", &times));
    let explain = |_| timed(|| nodes.explain(&large, &nothing[0]));
    let times = (0..samples).map(explain).collect::<Result<Vec<_>>>()?;
    figures.push(micros("every reason of 1,000 nodes, explained", &times));
    let memory = memory_of(std::process::id())?;
    figures.push(Figure::one("all of this process: memory", "MB", memory));
    Ok(Report { family: "placement".into(), machine, figures, skipped: vec![] })
}

fn micros(name: &str, times: &[Duration]) -> Figure {
    Figure::of(name, "µs", times.iter().map(|time| time.as_secs_f64() * 1e6).collect(), None)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn timed<T>(work: impl FnOnce() -> T) -> Result<Duration> {
    let started = Instant::now();
    black_box(work());
    Ok(started.elapsed())
}

/// All attempts, in the order in which dags take turns, each with one of the histories.
fn place_all(mut cluster: Cluster, shapes: &[Request], histories: &[History]) -> Result<Duration> {
    let started = Instant::now();
    let place = |attempt: &usize| {
        let history = &histories[attempt % histories.len()];
        cluster.place(&shapes[attempt % SHAPES], history).is_some()
    };
    let placed = (0..ATTEMPTS).filter(place).count();
    let took = started.elapsed();
    ensure!(
        placed == ATTEMPTS,
        "{placed} of {ATTEMPTS} had a place: the cluster is too small for what is measured"
    );
    Ok(took)
}

/// What tasks need has run on ten nodes, for each of a hundred tasks on others.
fn histories() -> Vec<History> {
    let near = |first: usize| {
        let nodes =
            (0..10).map(|number| NodeId::from(format!("node-{:04}", (first * 10 + number * 7) % NODES)));
        nodes.map(|node| (node, 1)).collect()
    };
    (0..100).map(|first| History { near: near(first), ..History::default() }).collect()
}

pub fn cluster(nodes: usize) -> Cluster {
    let node = |number: usize| {
        let size = [16, 32, 64][number % 3];
        let mut labels = BTreeMap::from([("zone".to_owned(), format!("z{}", number % 8))]);
        if number.is_multiple_of(2) {
            labels.insert("disk".into(), "ssd".into());
        }
        let taint = number.is_multiple_of(10).then(|| "gpu=a100".parse().expect("a taint"));
        let node = Node {
            capacity: Resources::default()
                .with(Resources::CPU, size * 1_000)
                .with(Resources::MEMORY, (size * 4 * 1_000) << 30)
                .with("gpu", if taint.is_some() { 8_000 } else { 0 })
                .with(Resources::TASKS, size * 32_000),
            labels,
            taints: taint.into_iter().collect(),
            queues: [QueueName::default()].into(),
            reachable: true,
            draining: false,
        };
        (NodeId::from(format!("node-{number:04}")), Arc::new(node))
    };
    Cluster::of(Policy::default(), Catalog::new((0..nodes).map(node)))
}

pub fn shapes(picky: bool) -> Vec<Request> {
    let shape = |number: usize| {
        let resources = Resources::default()
            .with(Resources::CPU, 250 * (1 + number as u64 % 4))
            .with(Resources::MEMORY, ((1 + number as u64 % 5) * 1_000) << 28);
        let mut request = Request::new(resources, BTreeMap::new());
        if number.is_multiple_of(4) {
            request.tolerations.push("gpu".parse().expect("a toleration"));
        }
        if picky {
            let prefer = vec![Preference { label: "disk".into(), value: "ssd".into(), weight: 10 }];
            request.affinity = Affinity { prefer, spread: Some("zone".into()) };
            request.group = Some(format!("dag-{number}"));
        }
        request
    };
    (0..SHAPES).map(shape).collect()
}

/// What a scheduler has in memory when much has run and nothing does.
fn after_much_work() -> Cluster {
    let (mut cluster, shapes) = (cluster(NODES), shapes(true));
    let mut running = std::collections::VecDeque::new();
    for attempt in 0..FINISHED {
        let request = &shapes[attempt % SHAPES];
        // A hundred nodes by turns: choosing is not what this is about.
        let node = NodeId::from(format!("node-{:04}", attempt % 100));
        cluster.reserve(&node, request);
        running.push_back((node, request));
        if running.len() > 100
            && let Some((node, request)) = running.pop_front()
        {
            cluster.release(&node, request);
        }
    }
    running.into_iter().for_each(|(node, request)| cluster.release(&node, request));
    cluster
}
