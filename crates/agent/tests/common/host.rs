//! An agent in a process of its own, to be killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tenure_model::{Assignment, AttemptId};

use super::{Bench, EXECUTABLE, eventually};

/// An agent in another process, killed when it goes out of scope at the latest.
pub struct Host(Child);

impl Host {
    pub fn start(bench: &Bench, tasks: &[&Assignment], variables: &[(&str, &str)]) -> Self {
        Self::of(Path::new(EXECUTABLE), bench, tasks, variables)
    }

    pub fn of(program: &Path, bench: &Bench, tasks: &[&Assignment], variables: &[(&str, &str)]) -> Self {
        let files = tasks.iter().map(|task| {
            let path = bench.path(&format!("{}.json", task.attempt));
            std::fs::write(&path, serde_json::to_vec(task).unwrap()).unwrap();
            path
        });
        let child = Command::new(program)
            .args([PathBuf::from("host"), bench.path("data"), bench.path("logs"), bench.path("reports")])
            .args(files)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The numbers of the supervisor and of the task, as far as they are known.
fn started(bench: &Bench, attempt: AttemptId) -> Vec<i32> {
    let text = std::fs::read_to_string(bench.folder_of(attempt).join("started")).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect()
}

pub async fn running(bench: &Bench, attempt: AttemptId) -> Vec<i32> {
    eventually("the task is started", || started(bench, attempt).len() == 2).await;
    started(bench, attempt)
}

pub fn signal(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
