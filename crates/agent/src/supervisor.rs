//! The process above one attempt: starts the task, waits, ends it when time or the agent says so, leaves
//! nothing of it behind, and writes down how it ended.
//!
//! Single-threaded and without a runtime, because every attempt pays for its start. It lives in a session of
//! its own, so neither Ctrl-C nor the end of the agent reaches it, and it is the subreaper of everything the
//! task starts: a process whose parent dies becomes its child, wherever it has put itself. «No children
//! left» therefore means that nothing of the attempt is alive.
//!
//! SIGTERM asks it to stop the task.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use tenure_clock::{BootTime, Clock, SystemClock};
use tenure_model::duration;

use crate::folder::{AttemptFolder, Cut, End, Exit, Order, StartedTask};
use crate::processes::{self, own_children};

/// How long SIGKILL may take to empty the attempt. Only a process stuck in the kernel needs longer.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// A killed process may fork a last child that appears only after its death.
const KILL_AGAIN_EVERY: Duration = Duration::from_millis(20);
/// Callers look again whenever they wake, so a far deadline needs no single long sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// While the disk is full there is nothing to do but wait: the exit code must not be lost.
const WRITE_AGAIN_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn supervise(folder: &Path) -> ExitCode {
    match try_supervise(AttemptFolder::at(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: the supervisor failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_supervise(folder: AttemptFolder) -> io::Result<()> {
    // Refused only to the leader of a process group, which is alone in its group already.
    let _ = rustix::process::setsid();
    // Before `started` exists: from then on a SIGTERM must not end this process.
    let signals = Signals::install()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let order = folder.order()?.ok_or_else(|| io::Error::other("its order is missing"))?;
    let mut started = folder.begin(std::process::id())?;

    let exit = match spawn(&order) {
        Err(error) => Exit { end: End::CannotStart { error }, cut: None, ended_at: SystemClock.now() },
        Ok(task) => {
            let start_time = processes::start_time(task.as_raw_pid()).unwrap_or(0);
            let noted = StartedTask { pid: task.as_raw_pid(), start_time };
            if let Err(error) = AttemptFolder::note_task(&mut started, &noted) {
                eprintln!("tenure: could not note the task's process: {error}");
            }
            Supervision { task, signals }.run(&order)
        }
    };
    write_exit(&folder, &exit)
}

struct Supervision {
    task: Pid,
    signals: Signals,
}

impl Supervision {
    fn run(&self, order: &Order) -> Exit {
        let cut = self.wait_for_end_or_cut(order.assignment.timeout);
        if let Some(cut) = cut {
            announce(cut, order);
            self.terminate(order.assignment.grace);
        }
        let ended_at = SystemClock.now();
        Exit { end: self.bury(), cut, ended_at }
    }

    fn wait_for_end_or_cut(&self, timeout: Option<Duration>) -> Option<Cut> {
        let deadline = timeout.map(|timeout| SystemClock.boottime() + timeout);
        loop {
            if self.task_ended() {
                return None;
            }
            if self.signals.stop_requested() {
                return Some(Cut::Stopped);
            }
            if deadline.is_some_and(|deadline| SystemClock.boottime() >= deadline) {
                return Some(Cut::TimedOut);
            }
            if self.signals.wait_until(deadline) && !self.task_ended() {
                self.reap_adopted();
            }
        }
    }

    /// SIGTERM to all that can be reached, until everything is gone or the grace is over.
    fn terminate(&self, grace: Duration) {
        let deadline = SystemClock.boottime() + grace;
        self.signal_group(Signal::TERM);
        let mut told = BTreeSet::new();
        loop {
            let adopted = self.reap_adopted();
            if self.task_ended() && adopted.is_empty() {
                return;
            }
            for pid in adopted {
                if told.insert(pid) {
                    processes::kill(pid, Signal::TERM);
                }
            }
            if SystemClock.boottime() >= deadline {
                return;
            }
            self.signals.wait_until(Some(deadline));
        }
    }

    /// Kills whatever is left and says how the task ended.
    fn bury(&self) -> End {
        // Until it is reaped the task keeps its number, so the group that is killed is its own.
        self.signal_group(Signal::KILL);
        let status = self.wait_for_task(WaitIdOptions::EXITED);
        let deadline = SystemClock.boottime() + KILL_PATIENCE;
        while !nothing_left() {
            let children = own_children();
            if SystemClock.boottime() >= deadline {
                eprintln!("tenure: these processes of the task do not die: {children:?}");
                break;
            }
            for pid in children {
                processes::kill(pid, Signal::KILL);
            }
            self.signals.wait_until(Some(SystemClock.boottime() + KILL_AGAIN_EVERY));
        }
        status.map_or_else(
            || unreachable!("a child that is waited for without NOHANG has ended"),
            |status| end_of(&status),
        )
    }

    fn task_ended(&self) -> bool {
        self.wait_for_task(WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_some()
    }

    fn wait_for_task(&self, options: WaitIdOptions) -> Option<WaitIdStatus> {
        loop {
            match rustix::process::waitid(WaitId::Pid(self.task), options) {
                Err(rustix::io::Errno::INTR) => {}
                answer => return answer.expect("the task is our child until we reap it"),
            }
        }
    }

    /// The adopted children that live; the dead among them are reaped on the way.
    fn reap_adopted(&self) -> BTreeSet<i32> {
        let mut children = own_children();
        children.remove(&self.task.as_raw_pid());
        children.retain(|pid| {
            let pid = Pid::from_raw(*pid).expect("/proc lists no process 0");
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
        });
        children
    }

    fn signal_group(&self, signal: Signal) {
        // Fails only when the group is empty already.
        let _ = rustix::process::kill_process_group(self.task, signal);
    }
}

fn nothing_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn end_of(status: &WaitIdStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Code { code },
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal);
            End::Signal { name: name.map_or_else(|| format!("signal {signal}"), str::to_owned) }
        }
        (None, None) => unreachable!("only exits were waited for"),
    }
}

fn announce(cut: Cut, order: &Order) {
    let grace = duration::format(order.assignment.grace);
    match (cut, order.assignment.timeout) {
        (Cut::TimedOut, Some(timeout)) => {
            eprintln!(
                "tenure: timed out after {}: SIGTERM, and SIGKILL in {grace}",
                duration::format(timeout)
            );
        }
        _ => eprintln!("tenure: stopped on request: SIGTERM, and SIGKILL in {grace}"),
    }
}

fn write_exit(folder: &AttemptFolder, exit: &Exit) -> io::Result<()> {
    loop {
        match folder.write_exit(exit) {
            // Without its folder nobody will ever ask.
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(WRITE_AGAIN_EVERY),
            answer => return answer,
        }
    }
}

/// Starts the task in a group of its own; standard output and error are the supervisor's own, `output`.
fn spawn(order: &Order) -> Result<Pid, String> {
    std::env::set_current_dir(&order.run_dir)
        .map_err(|error| format!("the run folder {} cannot be entered: {error}", order.run_dir.display()))?;
    let name = order.argv.first().map(String::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or("the command is empty: name a program to run")?;
    let program = find_program(name, order.env.get("PATH").map_or("", String::as_str))?;
    let child = Command::new(&program)
        .arg0(name)
        .args(&order.argv[1..])
        .env_clear()
        .envs(&order.env)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| why_not(name, &program, &error))?;
    Ok(Pid::from_child(&child))
}

/// Looks the program up itself: it can say where it looked, and a known path lets the standard library use
/// posix_spawn, which does not copy the page tables.
fn find_program(name: &str, search: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let candidates = std::env::split_paths(search).map(|folder| folder.join(name));
    let mut files = candidates.filter(|path| path.is_file());
    let executable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    files.find(executable).ok_or_else(|| {
        format!("the program {name:?} was not found in PATH ({search}): install it there or name it with its full path")
    })
}

fn why_not(name: &str, program: &Path, error: &io::Error) -> String {
    let exists = program.exists();
    match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOENT.raw_os_error() && exists => {
            format!(
                "{name:?} exists, but the interpreter in its first line does not: check what follows its #!"
            )
        }
        Some(code) if code == rustix::io::Errno::NOENT.raw_os_error() => {
            format!(
                "the program {name:?} does not exist (a relative path counts from the run folder): check its spelling and that the task has brought it along"
            )
        }
        Some(code) if code == rustix::io::Errno::ACCESS.raw_os_error() => {
            format!("{name:?} may not be executed: check that it is a file with the execute bit (chmod +x)")
        }
        Some(code) if code == rustix::io::Errno::NOEXEC.raw_os_error() => {
            format!(
                "{name:?} is not a program this machine can run: a script needs a first line like #!/bin/sh"
            )
        }
        Some(code) if code == rustix::io::Errno::TOOBIG.raw_os_error() => {
            format!(
                "the arguments and environment of {name:?} are too large for the system: pass large values in a file"
            )
        }
        _ => format!("{name:?} could not be started: {error}"),
    }
}

/// Signals as bytes in a pipe, so that one `poll` waits for them, for children and for time without a gap.
/// Handlers, unlike ignored signals, are not inherited by the task.
struct Signals {
    wake: OwnedFd,
    stop: Arc<AtomicBool>,
}

impl Signals {
    fn install() -> io::Result<Self> {
        let (wake, waker) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let stop = Arc::new(AtomicBool::new(false));
        // In this order: whoever is woken sees the flag.
        signal_hook::flag::register(SIGTERM, Arc::clone(&stop))?;
        signal_hook::low_level::pipe::register(SIGTERM, waker.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGCHLD, waker)?;
        for ignored in [SIGINT, SIGHUP] {
            signal_hook::flag::register(ignored, Arc::default())?;
        }
        Ok(Self { wake, stop })
    }

    fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sleeps until a signal (true) or about the deadline (false).
    fn wait_until(&self, deadline: Option<BootTime>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_since(SystemClock.boottime()));
        let left = left
            .map(|left| left.min(LONGEST_SLEEP))
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => false,
            // An interrupted poll means that a handler has just written to the pipe.
            _ => {
                let mut bytes = [0; 64];
                let _ = rustix::io::read(&self.wake, &mut bytes);
                true
            }
        }
    }
}
