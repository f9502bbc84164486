//! The folder of one attempt: what was ordered, how far it got, and who holds it.
//!
//! - `assignment.json`: the [`Order`], written by the agent before it claims.
//! - `lock`: held (flock) by the agent until the supervisor has it as its standard input, then by the
//!   supervisor until it ends. Whoever gets the lock knows that nobody runs this attempt and that nobody
//!   will: no number of a process has to be trusted for that.
//! - `output`: what the task prints, raw.
//! - `started`: written by the supervisor *before* it spawns the task. No such file: nothing ever began.
//! - `exit.json`: how it ended, moved into place by the supervisor as its last act.
//! - `result`: what the task returns.
//! - `cuts`: what was cut out of `output` to keep it within its bound.
//! - `refused`: why a process that was to become the task's program could not.
//! - `report.json`: a verdict of the agent's own, which could not be derived from the other files again.
//!
//! No fsync anywhere: a kill -9 loses nothing that was written, and after a power cut (another boot id)
//! nobody believes a missing file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_model::{Assignment, Outcome};

use crate::limits::GroupOrder;
use crate::users::RunAs;

/// Everything the supervisor has to know. Holds secrets; so the folder is closed to others.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Another boot id than today's means that no process of this attempt can be alive.
    pub boot_id: String,
    pub argv: Vec<String>,
    /// The whole environment of the task.
    pub env: BTreeMap<String, String>,
    pub run_dir: PathBuf,
    pub result_limit: usize,
    /// How much room `output` may take, about.
    #[serde(default = "default_output_most")]
    pub output_most: u64,
    #[serde(default)]
    pub group: Option<GroupOrder>,
    /// Another user than the agent's own.
    #[serde(default)]
    pub user: Option<RunAs>,
    #[serde(default)]
    pub fence: Option<FenceOrder>,
    /// Without `env`, which is above, and without its files, which are in the run folder already; those of another user
    /// are put there by the task's own process, as that user.
    pub assignment: Assignment,
}

/// When to stop a task that must not run on without the control plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FenceOrder {
    /// Where the agent writes down its contact.
    pub contact: PathBuf,
    #[serde(with = "tenure_model::duration::text")]
    pub after: Duration,
}

pub(crate) const DEFAULT_OUTPUT_MOST: u64 = 64 * 1024 * 1024;

fn default_output_most() -> u64 {
    DEFAULT_OUTPUT_MOST
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Started {
    /// 0 if it is not known.
    pub supervisor: i32,
    pub task: Option<StartedTask>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StartedTask {
    /// Also the number of its process group.
    pub pid: i32,
    /// In clock ticks since boot; together with the pid it names one process for good.
    pub start_time: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub end: End,
    pub cut: Option<Cut>,
    pub ended_at: Timestamp,
    /// The kernel has killed for memory in its group.
    #[serde(default)]
    pub out_of_memory: bool,
}

impl Exit {
    pub fn new(end: End, cut: Option<Cut>, ended_at: Timestamp) -> Self {
        Self { end, cut, ended_at, out_of_memory: false }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum End {
    Code { code: i32 },
    Signal { name: String },
    CannotStart { error: String },
}

/// Why the supervisor ended the task itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cut {
    TimedOut,
    Stopped,
    /// No replica was heard for so long, and the task must not run on then.
    Silence {
        silent_ms: u64,
    },
}

/// What a final report says, apart from whose it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub outcome: Outcome,
    pub ended_at: Timestamp,
    pub result: Option<serde_json::Value>,
}

#[derive(Clone, Debug)]
pub(crate) struct AttemptFolder {
    path: PathBuf,
}

impl AttemptFolder {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn result_path(&self) -> PathBuf {
        self.path.join("result")
    }

    pub fn output_path(&self) -> PathBuf {
        self.path.join("output")
    }

    pub fn cuts_path(&self) -> PathBuf {
        self.path.join("cuts")
    }

    /// Makes the folder and locks it; fails if it exists.
    pub fn create(&self, order: &Order) -> io::Result<File> {
        // Another user finds its result here, and can look at nothing else.
        let mode = if order.user.is_some() { 0o711 } else { 0o700 };
        fs::DirBuilder::new().mode(mode).create(&self.path)?;
        let lock = self.open_lock()?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        if let Some(user) = &order.user {
            let result = self.private(&self.result_path())?;
            std::os::unix::fs::fchown(&result, Some(user.uid), Some(user.gid))?;
        }
        self.private(&self.path.join("assignment.json"))?.write_all(&serde_json::to_vec(order)?)?;
        Ok(lock)
    }

    /// Where a process says why it could not become the task's program.
    pub fn open_refusal(&self) -> io::Result<File> {
        self.private(&self.path.join("refused"))
    }

    pub fn refusal(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(self.path.join("refused")) {
            Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `None`: a supervisor (or an agent that is about to start one) is alive.
    pub fn try_lock(&self) -> io::Result<Option<File>> {
        let lock = self.open_lock()?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn order(&self) -> io::Result<Option<Order>> {
        read_json(&self.path.join("assignment.json"))
    }

    pub fn open_output(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.output_path())
    }

    pub fn begin(&self, supervisor: u32) -> io::Result<File> {
        let mut file = File::create(self.path.join("started"))?;
        file.write_all(format!("supervisor {supervisor}\n").as_bytes())?;
        Ok(file)
    }

    pub fn note_task(started: &mut File, task: &StartedTask) -> io::Result<()> {
        started.write_all(format!("task {} {}\n", task.pid, task.start_time).as_bytes())
    }

    /// `None`: the supervisor has not begun. A file without a whole first line counts as begun without a
    /// known number, which is what it is.
    pub fn started(&self) -> io::Result<Option<Started>> {
        match fs::read_to_string(self.path.join("started")) {
            Ok(text) => Ok(Some(parse_started(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        self.replace("exit.json", &serde_json::to_vec(exit)?)
    }

    pub fn exit(&self) -> io::Result<Option<Exit>> {
        read_json(&self.path.join("exit.json"))
    }

    pub fn write_report(&self, verdict: &Verdict) -> io::Result<()> {
        self.replace("report.json", &serde_json::to_vec(verdict)?)
    }

    pub fn report(&self) -> io::Result<Option<Verdict>> {
        read_json(&self.path.join("report.json"))
    }

    pub fn delete(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn open_lock(&self) -> io::Result<File> {
        OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(self.path.join("lock"))
    }

    /// For its owner's eyes only: orders and verdicts may hold secrets.
    fn private(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = self.path.join(format!("{name}.new"));
        self.private(&temporary)?.write_all(content)?;
        fs::rename(temporary, self.path.join(name))
    }
}

/// Missing and half-written are the same to callers: a crash leaves either behind. Whole JSON of another
/// shape is an error, because another version has written it and means something by it.
fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => {
            let text = format!("{} was written by another version: {error}", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
        Err(_) => Ok(None),
    }
}

fn parse_started(text: &str) -> Started {
    let mut started = Started::default();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("supervisor"), Some(pid), None) => started.supervisor = pid.parse().unwrap_or(0),
            (Some("task"), Some(pid), Some(start)) => {
                started.task = pid
                    .parse()
                    .ok()
                    .zip(start.parse().ok())
                    .map(|(pid, start_time)| StartedTask { pid, start_time });
            }
            _ => {}
        }
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_line_in_started_names_no_process() {
        assert_eq!(parse_started(""), Started { supervisor: 0, task: None });
        assert_eq!(parse_started("supervisor 12"), Started { supervisor: 0, task: None });
        assert_eq!(parse_started("supervisor 12\ntask 13 4"), Started { supervisor: 12, task: None });
        let task = Some(StartedTask { pid: 13, start_time: 45 });
        assert_eq!(parse_started("supervisor 12\ntask 13 45\n"), Started { supervisor: 12, task });
    }
}
