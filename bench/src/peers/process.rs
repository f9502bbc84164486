//! Processes of others: started in a session of their own, bounded in time, gone with their handle.
//!
//! Whatever happens to the benchmark, they go with it: each has a guard that waits for the end of a pipe which nobody but
//! the benchmark holds. What they use is counted with all their descendants, also those that have ended.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::database::Database;
use crate::server::Stat;

/// Becomes the command, beside a guard that kills its group when standard input ends.
const GUARDED: &str = r#"exec 3<&0; (read -r _ <&3; kill -9 0) & exec "$@" </dev/null 3<&-"#;
/// Long enough to say what is wrong, short enough to be read.
const LAST_LINES: usize = 8;
/// Whether a program has ended. Some are measured by how long they take.
const WAIT_EVERY: Duration = Duration::from_millis(1);
/// A look at the memory of forty Python processes costs a few milliseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A process and all that it starts.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// The end of it is the end of the process.
    input: Option<ChildStdin>,
}

impl Process {
    /// One that is only watched.
    pub fn start(command: &Command, log: &Path) -> Result<Self> {
        let mut guarded = in_session(&["sh", "-c", GUARDED, "guard"], command);
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        guarded.stdout(output.try_clone()?).stderr(output);
        Self::spawn(guarded, command, log)
    }

    fn spawn(mut actual: Command, meant: &Command, log: &Path) -> Result<Self> {
        let child = actual.stdin(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {}", name_of(meant)))?;
        let input = child.stdin.take();
        Ok(Self { child, log: log.to_owned(), input })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// That it has not ended.
    pub fn ensure_alive(&mut self, what: &str) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{what} ended ({status}):\n{}", self.last_lines());
        }
        Ok(())
    }

    pub fn last_lines(&self) -> String {
        last_lines(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let root = self.child.id();
        for round in 0..50 {
            let alive = |pid: &u32| Stat::of(*pid).is_ok_and(|stat| !stat.defunct);
            let family: Vec<u32> = family(&[root]).into_iter().filter(alive).collect();
            if round > 0 && family.is_empty() {
                return;
            }
            for pid in family.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(pid, Signal::KILL); // it may have ended by itself
            }
            drop(self.input.take());
            let _ = self.child.wait();
            std::thread::sleep(Duration::from_millis(20)); // until others have noticed their children's ends
        }
        eprintln!("something that process {root} has started does not end");
    }
}

/// Runs a command to its end.
pub fn run(what: &str, command: &Command, log: &Path, within: Duration) -> Result<()> {
    let mut process = Process::start(command, log)?;
    let deadline = Instant::now() + within;
    loop {
        match process.child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{what} failed ({status}):\n{}", process.last_lines()),
            None => std::thread::sleep(WAIT_EVERY),
        }
        ensure!(
            Instant::now() < deadline,
            "{what} took longer than {} s:\n{}",
            within.as_secs(),
            process.last_lines()
        );
    }
}

/// A process that one talks with, line by line. It ends by itself when its standard input does.
pub struct Talk {
    process: Process,
    lines: Receiver<String>,
}

impl Talk {
    pub fn start(command: &Command, log: &Path) -> Result<Self> {
        let mut actual = in_session(&[], command);
        let errors = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        actual.stdout(Stdio::piped()).stderr(errors);
        let mut process = Process::spawn(actual, command, log)?;
        let output = process.child.stdout.take().context("its output is a pipe")?;
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                let _ = said.send(line); // nobody listens any more
            }
        });
        Ok(Self { process, lines })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.process.input.as_mut().context("its input is a pipe")?;
        writeln!(input, "{line}").context("it does not listen any more")
    }

    /// Whatever else it says before is passed over.
    pub fn hear(&mut self, expected: &str, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == expected => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no {expected:?} within {} s:\n{}", within.as_secs(), self.process.last_lines())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended before it was {expected:?}:\n{}", self.process.last_lines())
                }
            }
        }
    }
}

/// What processes used while something was measured.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub processor: Duration,
    pub postgres: Duration,
    /// The most that was seen, in megabytes. What processes share counts once: forks of one Python share most of it.
    pub memory: f64,
}

/// Does something, and counts what these processes with their descendants and the database's server use meanwhile.
pub fn counted<T>(roots: &[u32], database: &Database, act: impl FnOnce() -> Result<T>) -> Result<(T, Usage)> {
    let done = AtomicBool::new(false);
    let (before, postgres) = (processor(roots), database.cpu()?);
    let (answer, memory) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| most_memory(roots, &done));
        let answer = act();
        done.store(true, Ordering::Relaxed);
        watch.thread().unpark();
        (answer, watch.join().expect("looking does not panic"))
    });
    let usage = Usage {
        processor: processor(roots).saturating_sub(before),
        postgres: database.cpu()?.saturating_sub(postgres),
        memory,
    };
    Ok((answer?, usage))
}

fn most_memory(roots: &[u32], done: &AtomicBool) -> f64 {
    let mut most: f64 = 0.0;
    loop {
        most = most.max(family(roots).into_iter().map(memory).sum());
        if done.load(Ordering::Relaxed) {
            return most;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// In megabytes. Nothing of a process that has ended.
fn memory(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    proportional(&rollup).unwrap_or(0.0)
}

/// The proportional share of a process in what it has in memory, in megabytes.
fn proportional(rollup: &str) -> Option<f64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1.024 / 1_000.0)
}

fn processor(roots: &[u32]) -> Duration {
    let stats = family(roots).into_iter().filter_map(|pid| Stat::of(pid).ok());
    stats.map(|stat| stat.own + stat.children).sum()
}

/// These processes, their sessions and all descendants.
fn family(roots: &[u32]) -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, Stat)> = pids.filter_map(|pid| Some((pid, Stat::of(pid).ok()?))).collect();
    let own = |(pid, stat): &&(u32, Stat)| roots.contains(pid) || roots.contains(&stat.session);
    let mut found: BTreeSet<u32> = all.iter().filter(own).map(|(pid, _)| *pid).collect();
    loop {
        let children = all.iter().filter(|(_, stat)| found.contains(&stat.parent)).map(|(pid, _)| *pid);
        let more: Vec<u32> = children.filter(|pid| !found.contains(pid)).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The command as it is, behind these words, as the leader of a new session: what is not a leader of a group yet becomes
/// one without another process.
fn in_session(words: &[&str], command: &Command) -> Command {
    let mut actual = Command::new("setsid");
    actual.args(words).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => actual.env(name, value),
            None => actual.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        actual.current_dir(folder);
    }
    actual
}

fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned()
}

pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests;
