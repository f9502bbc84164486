//! A supervisor as the agent sees it: one pidfd, by which it is watched and signalled. A pidfd names one
//! process for good, so a signal can never reach a stranger that got the same number.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::SUPERVISE;
use crate::folder::AttemptFolder;

#[derive(Debug)]
pub(crate) struct Supervisor {
    pidfd: AsyncFd<OwnedFd>,
}

impl Supervisor {
    /// Starts a supervisor and hands it the lock. No code runs between fork and exec, so the standard
    /// library can use posix_spawn, which stays cheap however large this process is.
    pub fn spawn(executable: &Path, folder: &AttemptFolder, lock: File) -> io::Result<Self> {
        let output = folder.open_output()?;
        let child = Command::new(executable)
            .arg0("tenure")
            .arg(SUPERVISE)
            .arg(folder.path())
            .stdin(lock)
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()?;
        // Nobody but `ended` reaps it, so the number is still its own.
        Self::open(Pid::from_child(&child))
    }

    /// The living supervisor of an earlier agent; `None` if it is not known or has just ended.
    ///
    /// The pidfd is opened first and the lock is looked at afterwards: if the lock is still held, the holder
    /// was alive all the time, and its number meant nobody else.
    pub fn adopt(folder: &AttemptFolder) -> io::Result<Option<Self>> {
        let Some(started) = folder.started()? else { return Ok(None) };
        let Some(pid) = Pid::from_raw(started.supervisor) else { return Ok(None) };
        let supervisor = match Self::open(pid) {
            Ok(supervisor) => supervisor,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(folder.try_lock()?.is_none().then_some(supervisor))
    }

    /// Whether this machine can do what `open` needs.
    pub fn check_support() -> io::Result<()> {
        rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        Ok(())
    }

    #[allow(
        unsafe_code,
        reason = "tokio offers no safe way to poll a descriptor of our own; the proof is below"
    )]
    fn open(pid: Pid) -> io::Result<Self> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: what is asked for is that the descriptor stays open and the same while it is registered.
        // `OwnedFd` owns it and gives the same number until it is dropped, which `AsyncFd` does only after
        // deregistering it; nothing here takes it out or replaces it.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Self { pidfd })
    }

    /// Returns when the process has ended, and reaps it if it is this process's child.
    pub async fn ended(&self) -> io::Result<()> {
        let _readable = self.pidfd.readable().await?;
        let pidfd = WaitId::PidFd(rustix::fd::AsFd::as_fd(self.pidfd.get_ref()));
        match rustix::process::waitid(pidfd, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(_) | Err(rustix::io::Errno::CHILD) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A process that has ended already needs no signal.
    pub fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), signal);
    }
}
