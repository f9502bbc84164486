//! The children of this process, by number, and their end.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use tenure_clock::{Clock, SystemClock};

/// How long SIGKILL may take. Only a process stuck in the kernel needs longer.
pub const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// A killed process may fork a last child that appears only after its death.
pub const KILL_AGAIN_EVERY: Duration = Duration::from_millis(2);

/// Kills and reaps every child, and whatever becomes one when its own parent dies. For a subreaper that is
/// all that was ever started below it. Answers with those that do not die.
pub fn end_all_children() -> BTreeSet<i32> {
    let deadline = SystemClock.boottime() + KILL_PATIENCE;
    while !nothing_left() {
        let children = own_children();
        if SystemClock.boottime() >= deadline {
            return children;
        }
        for child in children.into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(child, Signal::KILL); // gone already is as good
        }
        std::thread::sleep(KILL_AGAIN_EVERY);
    }
    BTreeSet::new()
}

/// Reaps what has ended. True when there are no children any more.
fn nothing_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// The children of this process, zombies included.
pub fn own_children() -> BTreeSet<i32> {
    // A small file for each thread where the kernel offers it, all of /proc where not.
    let threads = numbers("/proc/self/task");
    let files = threads.iter().map(|thread| fs::read_to_string(format!("/proc/self/task/{thread}/children")));
    let lists: Vec<String> = files.flatten().collect();
    if lists.is_empty() {
        let me = std::process::id() as i32;
        return numbers("/proc")
            .into_iter()
            .filter(|pid| Ties::of(*pid).is_some_and(|ties| ties.parent == me))
            .collect();
    }
    lists.iter().flat_map(|list| list.split_ascii_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Where a process belongs. Zero stands for what lies outside this process namespace: a container's first process
/// may be in a session that was begun outside. (The system calls say so too, but their wrappers do not take it.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ties {
    pub parent: i32,
    pub group: i32,
    pub session: i32,
}

impl Ties {
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    pub fn own() -> Option<Self> {
        Self::read("/proc/self/stat")
    }

    /// The second field is the program's name in brackets and may hold anything, brackets included.
    fn read(path: &str) -> Option<Self> {
        let stat = fs::read_to_string(path).ok()?;
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(1);
        let mut next = || fields.next()?.parse().ok();
        Some(Self { parent: next()?, group: next()?, session: next()? })
    }
}
