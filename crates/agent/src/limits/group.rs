//! The group of one attempt, as its supervisor handles it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::processes;

/// The kernel's usual period: a task that asks for half a cpu gets 50 of every 100 ms.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel takes no less.
const LEAST_CPU_QUOTA_US: u64 = 1_000;
/// How long the processes of a group may take to be gone after their SIGKILL.
const END_ROUNDS: u32 = 100;
const END_EVERY: Duration = Duration::from_millis(10);

/// What a supervisor has to know to make a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GroupOrder {
    pub path: PathBuf,
    /// Where the supervisor itself belongs.
    pub outside: PathBuf,
    pub memory_bytes: Option<u64>,
    pub cpu_thousandths: Option<u64>,
    pub pids: Option<u64>,
    /// A task that cannot be limited is not started.
    pub required: bool,
}

#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// A group that was made before.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn make(order: &GroupOrder) -> io::Result<Self> {
        fs::create_dir(&order.path)?;
        let group = Self::at(order.path.clone());
        group.limit(order).inspect_err(|_| group.end())?;
        Ok(group)
    }

    fn limit(&self, order: &GroupOrder) -> io::Result<()> {
        if let Some(bytes) = order.memory_bytes {
            self.write("memory.max", &bytes.to_string())?;
            // All of it dies together: half a task is of no use to anybody.
            self.write("memory.oom.group", "1")?;
            // Where there is no swap there is no such file.
            if self.path.join("memory.swap.max").exists() {
                self.write("memory.swap.max", "0")?;
            }
        }
        if let Some(thousandths) = order.cpu_thousandths {
            let quota = (thousandths * CPU_PERIOD_US / 1_000).max(LEAST_CPU_QUOTA_US);
            self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        if let Some(pids) = order.pids {
            self.write("pids.max", &pids.to_string())?;
        }
        Ok(())
    }

    /// Moves this process in, so that whatever it starts is born there.
    pub fn enter(&self) -> io::Result<()> {
        self.write("cgroup.procs", "0")
    }

    /// Moves this process out again; what it has started stays.
    pub fn leave(outside: &Path) -> io::Result<()> {
        tell(&outside.join("cgroup.procs"), "0")
    }

    /// Whether the kernel has killed for memory here.
    pub fn ran_out_of_memory(&self) -> bool {
        self.events("memory.events").iter().any(|(name, count)| name == "oom_kill" && *count > 0)
    }

    pub fn is_empty(&self) -> bool {
        self.events("cgroup.events").iter().all(|(name, value)| name != "populated" || *value == 0)
    }

    /// Everything in it and below it, at once, whatever it does. Linux before 5.14 has no such word; there it is one
    /// process after the other, and whoever calls does it again.
    pub fn kill(&self) {
        match self.write("cgroup.kill", "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path.exists() => {
                for_each(&self.path, &mut |group| {
                    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                    for pid in text.lines().filter_map(|line| line.parse().ok()) {
                        processes::kill(pid, Signal::KILL);
                    }
                });
            }
            // Gone already, or empty.
            _ => {}
        }
    }

    /// Kills what is in it and removes it. A group that resists is left to the next agent's sweep.
    pub fn end(&self) {
        for _ in 0..END_ROUNDS {
            self.kill();
            if self.remove().is_ok() {
                return;
            }
            thread::sleep(END_EVERY);
        }
    }

    fn remove(&self) -> io::Result<()> {
        let mut removed = Ok(());
        for_each(&self.path, &mut |group| {
            removed = match fs::remove_dir(group) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        });
        removed
    }

    fn events(&self, file: &str) -> Vec<(String, u64)> {
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().filter_map(pair).collect()
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.path.join(file);
        tell(&path, text)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

/// Never creates: a file that is not there is a word that this kernel does not know.
pub(super) fn tell(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

/// A task that may make groups of its own has made them below its own; the lowest first, the group itself last.
fn for_each(group: &Path, act: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            for_each(&entry.path(), act);
        }
    }
    act(group);
}
