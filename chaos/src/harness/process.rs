//! One process of the cluster: started, killed, frozen, stopped and started again, and gone with its handle.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::wait_until;

/// How it is started, again and again.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
}

#[derive(Debug)]
pub struct Process {
    pub name: String,
    recipe: Recipe,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    pub fn start(name: &str, recipe: Recipe) -> Result<Self> {
        let log = recipe.folder.join(format!("{name}.log"));
        let mut process = Self { name: name.to_owned(), recipe, log, child: None };
        process.start_again()?;
        Ok(process)
    }

    /// After it has ended.
    pub fn start_again(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.recipe.program)
            .args(&self.recipe.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.recipe.folder)
            .env("RUST_BACKTRACE", "1")
            .envs(self.recipe.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.recipe.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0) // Ctrl-C is for the harness, which then ends the cluster in order
            .spawn()
            .with_context(|| format!("{} could not be started", self.recipe.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Says so when it has ended by itself.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal); // it may have ended meanwhile
        }
    }

    /// SIGKILL: no goodbye of any kind.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }

    /// SIGTERM, and how it ended. `None`: it did not, and was killed.
    pub fn stop(&mut self, within: Duration) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        let ended = wait_until(within, || self.has_ended());
        self.kill();
        ended
    }

    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills every process that names this folder in its command line: supervisors and tasks outlive their agent.
/// Answers with how many there were.
pub fn kill_all_of(folder: &Path) -> usize {
    let mark = folder.as_os_str().as_encoded_bytes();
    let own = rustix::process::getpid();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut killed = 0;
    for pid in pids.filter(|pid| *pid != own) {
        // Gone while we look, or not ours to read.
        let Ok(line) = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else { continue };
        let named = line.windows(mark.len()).any(|window| window == mark);
        if named && kill_process(pid, Signal::KILL).is_ok() {
            killed += 1;
        }
    }
    killed
}
