//! What this machine has for tasks: what the kernel lets this process use of it, not what is built in.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tenure_model::Resources;

use crate::limits::Machine;

/// Tasks that ask for no resources are cheap, but each is still a process or two.
const TASKS_PER_CPU: u64 = 32;

/// Cpus, memory, gpus and a number of tasks, in thousandths.
pub fn capacity() -> Resources {
    let limits = Machine::here().ok().and_then(|machine| machine.own_group().ok());
    let limits = limits.map_or_else(Ceiling::default, |(mount, own)| Ceiling::of(&own, &mount));
    let visible = std::env::var("NVIDIA_VISIBLE_DEVICES").ok();
    let devices = names_in(Path::new("/dev"));
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cpus = limits.cpu_thousandths.unwrap_or(u64::MAX).min(affine_cpus() * 1_000);
    let memory = memory_bytes(&meminfo).into_iter().chain(limits.memory_bytes).min();
    let mut capacity = Resources::default()
        .with(Resources::CPU, cpus)
        .with(Resources::TASKS, cpus.div_ceil(1_000) * TASKS_PER_CPU * 1_000);
    if let Some(bytes) = memory {
        capacity = capacity.with(Resources::MEMORY, bytes * 1_000);
    }
    match gpus(&devices, visible.as_deref()) {
        0 => capacity,
        gpus => capacity.with(GPU, gpus * 1_000),
    }
}

const GPU: &str = "gpu";

/// What the groups that this process is in allow, all of them together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ceiling {
    cpu_thousandths: Option<u64>,
    memory_bytes: Option<u64>,
}

impl Ceiling {
    fn of(own: &Path, mount: &Path) -> Self {
        let groups: Vec<&Path> = own.ancestors().take_while(|group| group.starts_with(mount)).collect();
        let least = |file: &str, parse: fn(&str) -> Option<u64>| {
            let limit = |group: &&Path| parse(fs::read_to_string(group.join(file)).ok()?.trim());
            groups.iter().filter_map(limit).min()
        };
        Self {
            cpu_thousandths: least("cpu.max", cpu_max),
            memory_bytes: least("memory.max", |text| text.parse().ok()),
        }
    }
}

/// `150000 100000` is one and a half; `max 100000` is no limit.
fn cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota * 1_000).checked_div(period)
}

fn affine_cpus() -> u64 {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => u64::from(set.count()).max(1),
        // More processors than a fixed set holds.
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from) as u64,
    }
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Devices `nvidia0`, `nvidia1`, …; a container's runtime says in a variable which of them are meant for it.
fn gpus(devices: &BTreeSet<String>, visible: Option<&str>) -> u64 {
    let is_gpu = |name: &&String| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let present = devices.iter().filter(is_gpu).count() as u64;
    match visible.map(str::trim) {
        None | Some("all" | "") => present,
        Some("none" | "void") => 0,
        Some(list) => list.split(',').filter(|device| !device.trim().is_empty()).count() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("a").join("b");
        fs::create_dir_all(&own).unwrap();
        let write = |group: &str, file: &str, text: &str| {
            fs::write(root.path().join(group).join(file), text).unwrap();
        };
        assert_eq!(Ceiling::of(&own, root.path()), Ceiling::default());
        write("a", "cpu.max", "150000 100000\n");
        write("a/b", "cpu.max", "max 100000\n");
        write("a", "memory.max", "max\n");
        write("a/b", "memory.max", "1048576\n");
        let expected = Ceiling { cpu_thousandths: Some(1_500), memory_bytes: Some(1024 * 1024) };
        assert_eq!(Ceiling::of(&own, root.path()), expected);
    }

    #[test]
    fn gpus_are_devices_with_a_number_or_what_the_container_was_given() {
        let devices: BTreeSet<String> =
            ["nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"].map(str::to_owned).into();
        assert_eq!(gpus(&devices, None), 3);
        assert_eq!(gpus(&devices, Some("all")), 3);
        assert_eq!(gpus(&devices, Some("none")), 0);
        assert_eq!(gpus(&devices, Some("GPU-1a,GPU-2b")), 2);
        assert_eq!(gpus(&BTreeSet::new(), None), 0);
    }

    #[test]
    fn this_machine_has_something() {
        let capacity = capacity();
        assert!(
            capacity.get(Resources::CPU) >= 1 && capacity.get(Resources::TASKS) >= 32_000,
            "{capacity:?}"
        );
        assert!(capacity.get(Resources::MEMORY) > 1_000_000, "{capacity:?}");
        assert_eq!(memory_bytes("MemFree: 1 kB\nMemTotal:   2048 kB\n"), Some(2048 * 1024));
    }
}
