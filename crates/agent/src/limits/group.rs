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

#[cfg(test)]
mod tests {
    //! Goal: what a task asked for is said to the kernel in its own words, and what the kernel says is understood.
    //! Method: a plain folder in place of a group, with the files that a kernel would put there. That the kernel
    //! obeys is for `tests/limits.rs`, on machines that have such groups.
    use std::collections::HashSet;

    use tempfile::TempDir;
    use tenure_model::{AttemptId, Resources};
    use uuid::Uuid;

    use super::super::{CONTROLLERS, Groups};
    use super::*;

    const MEBI: u64 = 1024 * 1024;
    const FILES: [&str; 5] = ["memory.max", "memory.oom.group", "memory.swap.max", "cpu.max", "pids.max"];

    /// A group with these files, and the order for it of an agent that can limit what is `available`.
    fn group(files: &[&str], available: &[&str], resources: &Resources) -> (TempDir, GroupOrder) {
        let folder = tempfile::tempdir().unwrap();
        let groups = Groups {
            home: folder.path().to_owned(),
            own: folder.path().to_owned(),
            available: available.iter().map(|controller| (*controller).to_owned()).collect::<HashSet<_>>(),
            pids: 20,
            required: false,
        };
        let order = groups.order(AttemptId(Uuid::nil()), resources);
        fs::create_dir(&order.path).unwrap();
        files.iter().for_each(|file| fs::write(order.path.join(file), "").unwrap());
        (folder, order)
    }

    /// What the kernel would have been told, one file after the other.
    fn told(files: &[&str], available: &[&str], resources: &Resources) -> Vec<String> {
        let (_folder, order) = group(files, available, resources);
        Group::at(order.path.clone()).limit(&order).unwrap();
        let text = |file: &&str| fs::read_to_string(order.path.join(file)).unwrap_or_else(|_| "-".into());
        FILES.iter().map(text).collect()
    }

    fn asked(memory: u64, cpu: u64) -> Resources {
        Resources::default().with(Resources::MEMORY, memory).with(Resources::CPU, cpu)
    }

    fn says(file: &str, text: &str) -> (TempDir, Group) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        let group = Group::at(folder.path().to_owned());
        (folder, group)
    }

    #[test]
    fn limits_are_written_in_the_words_of_the_kernel() {
        let all = told(&FILES, &CONTROLLERS, &asked(24 * MEBI * 1_000, 1_500));
        assert_eq!(all, ["25165824", "1", "0", "150000 100000", "20"]);
        let least = told(&FILES, &CONTROLLERS, &asked(1, 1));
        assert_eq!(
            least,
            ["1", "1", "0", "1000 100000", "20"],
            "the kernel takes no shorter quota than 1 ms"
        );
    }

    #[test]
    fn nothing_is_written_that_nobody_asked_for_or_that_cannot_be_limited_here() {
        assert_eq!(told(&FILES, &CONTROLLERS, &Resources::default()), ["", "", "", "", "20"]);
        assert_eq!(told(&FILES, &["memory"], &asked(1_000, 1_000)), ["1", "1", "0", "", ""]);
        let without_swap = told(&["memory.max", "memory.oom.group"], &["memory"], &asked(1_000, 0));
        assert_eq!(without_swap, ["1", "1", "-", "-", "-"], "a machine without swap has no limit of it");
    }

    #[test]
    fn a_group_that_cannot_be_limited_is_refused_by_the_name_of_the_file_and_not_left_behind() {
        let (_folder, order) = group(&[], &CONTROLLERS, &asked(1_000, 0));
        fs::remove_dir(&order.path).unwrap();
        let refused = Group::make(&order).unwrap_err();
        assert!(refused.to_string().contains("memory.max"), "{refused}");
        assert!(!order.path.exists());
    }

    #[test]
    fn a_kill_for_memory_is_what_the_kernel_counts_as_one() {
        let ran_out = |text: &str| {
            let (_folder, group) = says("memory.events", text);
            group.ran_out_of_memory()
        };
        assert!(ran_out("low 0\nhigh 0\nmax 31\noom 1\noom_kill 2\n"));
        assert!(
            !ran_out("low 0\nhigh 0\nmax 31\noom 1\noom_kill 0\n"),
            "it came to its limit, and nobody was killed"
        );
        assert!(!ran_out("oom_group_kill 1\n") && !ran_out("") && !ran_out("oom_kill"));
        let (_folder, group) = says("cgroup.events", "populated 1\n");
        assert!(!group.ran_out_of_memory(), "where memory is not counted");
    }

    #[test]
    fn a_group_is_empty_when_the_kernel_says_that_nobody_is_in_it() {
        let (_folder, group) = says("cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!group.is_empty());
        let (_folder, group) = says("cgroup.events", "populated 0\nfrozen 0\n");
        assert!(group.is_empty());
    }
}
