//! The wrapper's grip on the keeper, and through it on the command.

use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use tenure_clock::BootTime;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use super::keeper::KEEP;
use super::link::{self, Cut, End, Order, Report};
use super::processes;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// The name it was called by, then its arguments.
    pub words: Vec<std::ffi::OsString>,
    pub kill_after: Duration,
}

#[derive(Debug)]
pub struct Ward {
    keeper: Child,
    orders: PipeWriter,
    reports: Lines<BufReader<pipe::Receiver>>,
    /// Its ends of the pipes, until it has opened them.
    keepers_ends: Option<(OwnedFd, OwnedFd)>,
    command: Option<Pid>,
}

/// What became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The terminal has stopped it.
    Stopped,
    Ended {
        end: End,
        cut: Option<Cut>,
    },
    /// The keeper is gone without a word, and what was left of the command has been killed.
    KeeperDied,
}

impl Ward {
    /// Starts the keeper, and the command with it if the deadline allows.
    pub fn start(program: &Program, environment: &[(&str, String)], until: BootTime) -> io::Result<Self> {
        // Should the keeper be killed, its children come here to be killed too.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (orders_out, orders_in) = std::io::pipe()?;
        rustix::fs::fcntl_setfl(&orders_in, OFlags::NONBLOCK)?;
        let (reports_out, reports_in) = std::io::pipe()?;
        let keeper = Command::new("/proc/self/exe")
            .arg0("tenure")
            .arg(KEEP)
            .args([std::process::id().to_string(), orders_out.as_raw_fd().to_string()])
            .args([reports_in.as_raw_fd().to_string(), program.kill_after.as_millis().to_string()])
            .arg(&program.path)
            .args(&program.words)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::inherit())
            .spawn()?;
        let mut ward = Self {
            keeper,
            orders: orders_in,
            reports: BufReader::new(pipe::Receiver::from_owned_fd(reports_out.into())?).lines(),
            keepers_ends: Some((orders_out.into(), reports_in.into())),
            command: None,
        };
        ward.extend(until);
        Ok(ward)
    }

    pub fn extend(&mut self, until: BootTime) {
        self.order(Order::Until(link::nanos(until)));
    }

    pub fn signal(&mut self, signal: Signal) {
        self.order(Order::Signal(signal.as_raw()));
    }

    pub fn resume(&mut self) {
        self.order(Order::Resume);
    }

    pub fn kill(&mut self) {
        self.order(Order::Kill);
    }

    /// Never waits, and is not tokio's business: an order has to go out now, not when a reactor has looked. What
    /// does not fit, because the keeper has been stopped for long, is left out: that extends nothing.
    fn order(&mut self, order: Order) {
        let _ = self.orders.write_all(&link::line(&order));
    }

    /// For a keeper that does not answer: it is killed, and so is all that it was to keep.
    pub fn kill_by_force(&mut self) {
        if let Some(command) = self.command {
            // The keeper has not reaped it, for it has not said so: the number is still its own.
            let _ = rustix::process::kill_process_group(command, Signal::KILL);
        }
        let _ = self.keeper.start_kill(); // it may just have ended
    }

    /// Cancel-safe.
    pub async fn next(&mut self) -> News {
        loop {
            let line = tokio::select! {
                biased;
                line = self.reports.next_line() => line,
                // Our own copy of its end keeps the pipe open: without it, what it has said comes to an end.
                _ = self.keeper.wait(), if self.keepers_ends.is_some() => {
                    self.keepers_ends = None;
                    continue;
                }
            };
            let report = line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok());
            match report {
                Some(Report::Started(pid)) => {
                    self.command = Pid::from_raw(pid);
                    self.keepers_ends = None;
                }
                Some(Report::Stopped) => return News::Stopped,
                Some(Report::Ended { end, cut }) => {
                    let _ = self.keeper.wait().await; // it has nothing more to do
                    return News::Ended { end, cut };
                }
                None => {
                    self.mourn().await;
                    return News::KeeperDied;
                }
            }
        }
    }

    /// The keeper's pipe has ended, or it talks nonsense: whatever it is, nobody keeps the command any more.
    async fn mourn(&mut self) {
        self.kill_by_force();
        let _ = self.keeper.wait().await;
        let undying = tokio::task::spawn_blocking(processes::end_all_children).await.unwrap_or_default();
        if !undying.is_empty() {
            eprintln!("tenure: these processes of the command do not die: {undying:?}");
        }
    }
}
