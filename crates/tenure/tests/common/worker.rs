//! A `tenure agent` in a process of its own, called `worker`.

use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};

use super::cluster::{Cluster, PATIENCE};
use super::wait_until;

/// Killed with its handle.
pub struct Worker<'a> {
    cluster: &'a Cluster,
    child: Child,
}

impl<'a> Worker<'a> {
    /// What it says goes behind what others of the same cluster have said.
    pub fn spawn(cluster: &'a Cluster, mut command: Command) -> Self {
        let log = cluster.path("worker.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { cluster, child }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.path("worker.log")).unwrap_or_default()
    }

    pub fn wait_said(&self, words: &str, times: usize) {
        let said =
            wait_until("its words", PATIENCE, || (self.log().matches(words).count() >= times).then_some(()));
        assert!(said.is_some(), "in vain waited for {words:?}, {times} times:\n{}", self.log());
    }

    /// Its exit code, once it has ended by itself.
    pub fn wait_end(&mut self) -> Option<i32> {
        let ended = wait_until("its end", PATIENCE, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it goes on:\n{}", self.log())).code()
    }

    /// SIGKILL: no goodbye of any kind.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// To the agent alone: its supervisors and tasks get nothing of it.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn terminate(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.wait_end(), Some(0), "{}", self.log());
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// To its end, which must come by itself.
pub fn to_its_end(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if wait_until("its end", PATIENCE, || child.try_wait().unwrap()).is_none() {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}
