//! What /proc says about processes, and the end of those that outlived their supervisor.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure_model::AttemptId;

use crate::folder::StartedTask;

/// Changes with every boot of the machine.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When a process began, in clock ticks since boot.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat(pid).map(|stat| stat.start_time)
}

/// The children of this process, zombies included, lowest number first.
pub(crate) fn own_children() -> BTreeSet<i32> {
    let me = std::process::id() as i32;
    // One small file where the kernel offers it, all of /proc where not.
    if let Ok(list) = fs::read_to_string(format!("/proc/{me}/task/{me}/children")) {
        return list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    all().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == me)).collect()
}

/// Kills what is left of an attempt whose supervisor is gone, until nothing is found or the patience ends.
/// Its own group is recognised by its leader's start time, everything else by the attempt id in its
/// environment, which children inherit wherever they go. Says how many could not be ended.
pub(crate) fn kill_leftovers(attempt: AttemptId, task: Option<&StartedTask>) -> usize {
    let mark = format!("TENURE_ATTEMPT_ID={attempt}");
    let mut found = 0;
    for round in 0..100 {
        let group = task.filter(|task| start_time(task.pid) == Some(task.start_time)).map(|task| task.pid);
        let leftovers: Vec<i32> = all().filter(|pid| belongs(*pid, group, mark.as_bytes())).collect();
        found = leftovers.len();
        if found == 0 {
            break;
        }
        for pid in leftovers {
            kill(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(if round < 10 { 2 } else { 100 }));
    }
    found
}

/// A process that is gone already is what we want.
pub(crate) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn belongs(pid: i32, group: Option<i32>, mark: &[u8]) -> bool {
    let Some(stat) = stat(pid).filter(|stat| !stat.dead) else { return false };
    group == Some(stat.group)
        || fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
}

struct Stat {
    dead: bool,
    parent: i32,
    group: i32,
    start_time: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The second field is the program's name in brackets and may hold anything, brackets included.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    Some(Stat {
        dead: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 22 22 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9876 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.dead, stat.parent, stat.group, stat.start_time), (false, 1, 22, 9876));
    }

    #[test]
    fn this_process_has_a_start_time() {
        assert!(start_time(std::process::id() as i32).is_some());
        assert_eq!(start_time(-1), None);
    }
}
