//! What this machine has to offer.

use tenure_model::{NodeId, Resources};
use tenure_store::NodeRegistration;

/// Tasks that ask for no resources are cheap, but each is still a process or two.
const TASKS_PER_CPU: u64 = 32;

/// The node is this installation, not this machine: two data folders on one host are two nodes, and an
/// installation that moves stays the node it was. Its name is therefore the folder's own.
pub fn describe(name: &str) -> NodeRegistration {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut capacity = Resources::default()
        .with(Resources::CPU, cpus * 1_000)
        .with(Resources::TASKS, cpus * TASKS_PER_CPU * 1_000);
    if let Some(bytes) = memory_bytes() {
        capacity = capacity.with(Resources::MEMORY, bytes * 1_000);
    }
    NodeRegistration::new(NodeId::new(name), capacity, env!("CARGO_PKG_VERSION"))
}

fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
